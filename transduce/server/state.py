"""What all handlers of an application share: settings, models, the gate, and the threads behind it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from copy import copy
from typing import Any, TypeVar

from transduce.search.constraints import CancelToken
from transduce.server.admission import Gate, Keys
from transduce.server.batcher import Batcher
from transduce.server.inspection_process import InspectionProcess
from transduce.server.meter import Meter
from transduce.server.models import Models, Served
from transduce.server.settings import Proxies, Settings
from transduce.text.languages import Detector
from transduce.translate.translator import Translator

T = TypeVar("T")


class ServerState:
    """One a server. `run` is for work of other kinds than translating (looking into a model, say)."""

    def __init__(self, served: Sequence[Served], settings: Settings) -> None:
        self.settings = settings
        self.models = Models(served, settings.pivot)
        self.gate = Gate(settings.queue_tokens, settings.patience)
        self.meter = Meter(self)
        self.keys = Keys(settings.keys, settings.requests_a_minute)
        self.proxies = Proxies(settings.proxies)
        self.detector = Detector(self.models.known)
        self._detects = False
        self.batchers = {one.name: Batcher(_bounded(one.translator, settings), settings, self._told) for one in served}
        self.characters: Counter[bytes] = Counter()  # translated since the start, by who asked
        self._made: dict[str, Any] = {}
        self.inspections = InspectionProcess()
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="aside")

    async def run(self, work: Callable[[CancelToken], T], tokens: int = 64) -> T:
        """What a function gives, run in a thread of its own behind the gate, one at a time.

        Cancelled, it asks the function to stop; the room at the gate is free when the thread is, and not before.
        """
        room, stop = ExitStack(), CancelToken()
        room.enter_context(self.gate.admit(tokens))
        job = self._aside.submit(_tidied, work, stop)
        ended = asyncio.wrap_future(job)
        ended.add_done_callback(lambda _: room.close())
        ended.add_done_callback(_seen)
        try:
            return await asyncio.shield(ended)  # whose end is that of the thread, whoever waits
        except asyncio.CancelledError:
            stop.cancel()
            job.cancel()  # if it has not begun
            raise

    async def detecting(self) -> Detector:
        """The detector when it has read its tables, at first in a thread: meanwhile the loop answers others."""
        if not self._detects:
            await asyncio.to_thread(self.detector.prepare)
            self._detects = True
        return self.detector

    def once(self, name: str, make: Callable[[ServerState], T]) -> T:
        """What `make` gives for this state, made at the first call: for what is the same for everybody."""
        if name not in self._made:
            self._made[name] = make(self)
        made: T = self._made[name]
        return made

    def drain(self) -> None:
        """Let nobody in from now on; who is in is served."""
        self.gate.closed = True

    def close(self) -> None:
        """End the threads."""
        self.drain()
        for batcher in self.batchers.values():
            batcher.close()
        self._aside.shutdown(wait=False, cancel_futures=True)
        self.inspections.close()

    def _told(self, sentences: int, tokens: int, seconds: float) -> None:
        self.gate.done(tokens)
        self.meter.batch(sentences, tokens, seconds)


def _seen(ended: asyncio.Future[Any]) -> None:
    """Look at the error of work that nobody waits for any more: asyncio would log it as one that was missed."""
    if not ended.cancelled():
        ended.exception()


def _tidied(work: Callable[[CancelToken], T], stop: CancelToken) -> T:
    """What work gives. Memory that it needed for a moment is the system's again; modules that it loaded stay: nobody
    waits while the collector looks through torch."""
    known = len(sys.modules)
    try:
        return work(stop)
    finally:
        if len(sys.modules) > known:
            gc.freeze()
        _trim()


def _trim() -> None:
    """Give free memory back to the system: each thread has a heap of its own, which keeps what it once had."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def _bounded(translator: Translator, settings: Settings) -> Translator:
    """The same model, with batches no larger than a server's: a long sentence is cut into parts, which fill some."""
    found = copy(translator)
    found.batch_tokens = min(translator.batch_tokens, settings.batch_tokens)
    return found
