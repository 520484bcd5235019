"""SIGTERM and Ctrl-C ask for a stop at the next step; a second one aborts at once.

In a group of processes it does not: a cluster sends its signals to them and to their launcher, which sends them on.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_ABORTS: dict[signal.Signals, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


class StopRequest:
    """`with StopRequest() as stop: ... if stop.signal: save and leave`. Only the main thread can catch signals."""

    def __init__(self, promise: str = "saving after this step", speaks: bool = True, aborts: bool = True) -> None:
        self.promise = promise  # what is told to whoever asked
        self.speaks, self.aborts = speaks, aborts
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.aborts:  # the next one does what it always did, and one that a shell's background made deaf aborts too
            for one, before in self._before.items():
                signal.signal(one, _ABORTS[one] if before is signal.SIG_IGN else before)
        again, self.signal = self.signal is not None, signal.Signals(number)
        # Not print: where the signal interrupts a print to the same stream, Python raises instead of printing.
        if self.speaks and not again:
            os.write(2, f"\n{self.signal.name}: {self.promise}{'; once more aborts' * self.aborts}\n".encode())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
