"""Inspect models in a child process: torch takes neither the server's memory nor its interpreter.

The child starts with the first inspection, opens the models it is asked about, and ends after a minute without one.
When a request is cancelled, its answer is discarded; only if it takes longer is the child killed. A server that runs
torch itself inspects in a thread of its own instead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from transduce.core.errors import RunError, UserError
from transduce.core.plugins import import_path
from transduce.search.constraints import CancelToken
from transduce.search.settings import STEPWISE
from transduce.server.answers import Refused, pieces
from transduce.server.models import Served
from transduce.translate.translator import Translator

IDLE_SECONDS = 60.0  # without an inspection, after which the child ends and its memory is free
LOOK_SECONDS = 0.02  # between two checks for cancellation
GRACE_SECONDS = 5.0  # for a cancelled answer: to load torch again takes as long
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # one sentence needs no more; translations use the others
ANSWERED, REFUSED, LACKING, FAILED = "answered", "refused", "lacking", "failed"  # first field of the child's answer
# The child imports what the server does, and nothing from the folder that it was started in.
PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import main; main({descriptor})"


@dataclass(frozen=True)
class Inspect:
    """Inspect one sentence; see `transduce.inspection.inspect.inspect`."""

    text: str
    to: str
    beam: int
    prefix: tuple[int, ...]
    model: str

    def run(self, translator: Translator, stop: CancelToken | None) -> dict[str, Any]:
        from transduce.inspection.inspect import InspectOptions, inspect

        beam = self.beam if getattr(translator.decoder, "offers", STEPWISE) == STEPWISE else 0
        seen = inspect(
            translator, self.text, to=self.to, beam=beam, prefix=self.prefix, looking=InspectOptions(branches=0),
            model=self.model, stop=stop,
        )  # fmt: skip
        return seen.as_json()


@dataclass(frozen=True)
class Learn:
    """Code and tensors of every block of the paper's figure 1; needs torch."""

    text: str
    to: str
    layer: int

    def run(self, translator: Translator, stop: CancelToken | None) -> dict[str, Any]:
        from transduce.inspection.figure_one import alive

        return alive(translator, self.text, self.to, self.layer, stop)


Job = Inspect | Learn
Work = tuple[str, Callable[[], Translator], Job]  # a model's name, how it is opened, and the job


def as_json(tree: Any) -> bytes:
    """Serialize a tree as JSON in small steps, so that the event loop has its turn in between."""
    return b"".join(piece.encode() for piece in pieces(tree))


class Abandoned(RunError):
    """The request for an inspection was cancelled."""

    def __init__(self) -> None:
        super().__init__("inspect: cancelled before the answer was ready; try again")


class NoAnswer(OSError):
    """The child died before it sent anything."""


@contextmanager
def _raising_no_answer() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        raise NoAnswer(*error.args) from None


class InspectionProcess:
    """Runs inspections one at a time, in the child where that keeps torch out of this process."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS, grace_seconds: float = GRACE_SECONDS) -> None:
        self._idle_seconds, self._grace_seconds = idle_seconds, grace_seconds
        self._lock = threading.Lock()
        self._closed = CancelToken()
        self._child: _InspectionChild | None = None
        self._timer: threading.Timer | None = None

    def run(self, served: Served, job: Job, stop: CancelToken) -> bytes:
        """The inspection as JSON; raise UserError if it is rejected, ModuleNotFoundError for a missing library."""
        with self._lock:
            if served.reopen is None or _runs_torch():
                return as_json(job.run(served.translator, stop))
            self._stop_timer()
            try:
                if stop.cancelled or self._closed.cancelled:
                    raise Abandoned
                return self._ask((served.name, served.reopen, job), stop)
            except TimeoutError:
                self._end_child()
                raise Abandoned from None
            except (EOFError, OSError):  # killed, perhaps for lack of memory, or not to be started
                self._end_child()
                if self._closed.cancelled:
                    raise Abandoned from None
                words = "the inspection process ended early; try again"
                raise Refused(503, f"inspect: {words}", "inspection", 1) from None
            finally:
                self._start_timer()

    def _ask(self, work: Work, stop: CancelToken) -> bytes:
        """The answer of the child; of a new one where the old one has died since the last inspection."""
        if self._child is not None and self._child.process.poll() is not None:
            self._end_child()
        if self._child is not None:
            try:
                return self._child.ask(work, stop, self._closed, self._grace_seconds)
            except NoAnswer:  # it most likely died before it began this job
                self._end_child()
        if self._closed.cancelled:
            raise Abandoned
        self._child = _InspectionChild()
        return self._child.ask(work, stop, self._closed, self._grace_seconds)

    def close(self) -> None:
        """End the child, and with it an inspection under way or about to begin."""
        self._closed.cancel()
        child = self._child
        if child is not None:
            child.process.kill()
        self._end_idle_child()

    def _end_idle_child(self) -> None:
        with self._lock:
            self._stop_timer()
            self._end_child()

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        child = self._child
        return None if child is None else child.process.pid

    def _start_timer(self) -> None:
        if self._child is not None:
            self._timer = threading.Timer(self._idle_seconds, self._end_idle_child)
            self._timer.daemon = True
            self._timer.start()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None


def _runs_torch() -> bool:
    """Whether this process has imported torch: then a child would spare nothing."""
    return sys.modules.get("torch") is not None


class _InspectionChild:
    """The parent's end: a process and the pipe to it."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        program = PROGRAM.format(path=import_path(), module=__name__, descriptor=theirs.fileno())
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **THREADS},
                start_new_session=True,  # Ctrl-C in a terminal is for the server, which ends the child
            )
        finally:
            theirs.close()

    def ask(self, work: Work, stop: CancelToken, closed: CancelToken, grace: float) -> bytes:
        """The JSON of an answer.

        `Abandoned` if the request was cancelled meanwhile, TimeoutError if the answer took too long after that.
        """
        with _raising_no_answer():
            self._pipe.send(work)
        since: float | None = None
        while not self._pipe.poll(LOOK_SECONDS):
            if since is None and stop.cancelled:
                since = time.monotonic()
            if closed.cancelled or (since is not None and time.monotonic() - since > grace):
                raise TimeoutError
        with _raising_no_answer():
            how, words = self._pipe.recv()
        answer = self._pipe.recv_bytes() if how == ANSWERED else b""
        if since is not None:
            raise Abandoned
        if how == REFUSED:
            raise UserError(words)
        if how == LACKING:
            raise ModuleNotFoundError(f"No module named {words!r}", name=words)
        if how == FAILED:
            raise RuntimeError(f"an inspection failed in its process: {words}")
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._pipe.close()


def main(descriptor: int) -> None:
    """Run the child: answer until the parent closes its end of the pipe."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # for the server: it answers first and then ends us
        signal.signal(number, signal.SIG_IGN)
    translators: dict[str, Translator] = {}
    with Connection(descriptor) as pipe, suppress(EOFError, BrokenPipeError):
        while True:
            name, reopen, job = pipe.recv()
            try:
                translator = translators[name] = translators.get(name) or reopen()
                answer = as_json(job.run(translator, None))
            except UserError as error:
                pipe.send((REFUSED, str(error)))
            except ModuleNotFoundError as error:
                pipe.send((LACKING, error.name))
            except Exception as error:  # a bug, for the server's log
                traceback.print_exc()
                pipe.send((FAILED, f"{type(error).__name__}: {error}"))
            else:
                pipe.send((ANSWERED, ""))
                pipe.send_bytes(answer)
