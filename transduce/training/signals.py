"""SIGTERM and Ctrl-C ask for a stop at the next step; a second one aborts at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """`with StopRequest() as stop: ... if stop.signal: save and leave`. Only the main thread can catch signals."""

    def __init__(self, promise: str = "saving after this step") -> None:
        self.promise = promise  # what is told to whoever asked
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._restore()  # so that the next one does what it always did
        self.signal = signal.Signals(number)
        # Not print: where the signal interrupts a print to the same stream, Python raises instead of printing.
        os.write(2, f"\n{self.signal.name}: {self.promise}; once more aborts\n".encode())

    def _restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
