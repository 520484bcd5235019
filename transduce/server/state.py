"""The shared state of an application's handlers: settings, models, the gate, and the threads behind it."""

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
    """The state of one server; `run` is for work other than translating (inspecting a model, say)."""

    def __init__(self, served: Sequence[Served], settings: Settings) -> None:
        self.settings = settings
        self.models = Models(served, settings.pivot)
        self.gate = Gate(settings.queue_tokens, settings.patience)
        self.meter = Meter(self)
        self.keys = Keys(settings.keys, settings.requests_a_minute)
        self.proxies = Proxies(settings.proxies)
        self.detector = Detector(self.models.known)
        self._detects = False
        self.batchers = {
            model.name: Batcher(_bounded(model.translator, settings), settings, self._report) for model in served
        }
        self.characters: Counter[bytes] = Counter()  # translated since the start, by caller
        self._made: dict[str, Any] = {}
        self.inspections = InspectionProcess()
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="aside")

    async def run(self, work: Callable[[CancelToken], T], tokens: int = 64) -> T:
        """Run a function behind the gate in a thread of its own, one at a time.

        When cancelled, it asks the function to stop; its share of the gate is released when the thread ends, and not
        before.
        """
        admission, stop = ExitStack(), CancelToken()
        admission.enter_context(self.gate.admit(tokens))
        job = self._aside.submit(_tidied, work, stop)
        ended = asyncio.wrap_future(job)
        ended.add_done_callback(lambda _: admission.close())
        ended.add_done_callback(_seen)
        try:
            return await asyncio.shield(ended)  # ends with the thread, even if the request is cancelled
        except asyncio.CancelledError:
            stop.cancel()
            job.cancel()  # if it has not begun
            raise

    async def detecting(self) -> Detector:
        """The language detector, its tables loaded in a thread at first: meanwhile the loop serves other requests."""
        if not self._detects:
            await asyncio.to_thread(self.detector.prepare)
            self._detects = True
        return self.detector

    def once(self, name: str, make: Callable[[ServerState], T]) -> T:
        """The result of `make` for this state, cached at the first call: for what is common to all requests."""
        if name not in self._made:
            self._made[name] = make(self)
        made: T = self._made[name]
        return made

    def drain(self) -> None:
        """Stop admitting requests; in-flight ones complete."""
        self.gate.closed = True

    def close(self) -> None:
        """Drain, and end the threads."""
        self.drain()
        for batcher in self.batchers.values():
            batcher.close()
        self._aside.shutdown(wait=False, cancel_futures=True)
        self.inspections.close()

    def _report(self, sentences: int, tokens: int, seconds: float) -> None:
        self.gate.done(tokens)
        self.meter.batch(sentences, tokens, seconds)


def _seen(ended: asyncio.Future[Any]) -> None:
    """Retrieve the exception of cancelled work: asyncio would log it as never retrieved."""
    if not ended.cancelled():
        ended.exception()


def _tidied(work: Callable[[CancelToken], T], stop: CancelToken) -> T:
    """Run work, then return its temporary memory to the system and freeze the modules that it loaded.

    Frozen, they stay: nobody waits while the collector looks through torch.
    """
    known = len(sys.modules)
    try:
        return work(stop)
    finally:
        if len(sys.modules) > known:
            gc.freeze()
        _trim()


def _trim() -> None:
    """Return free memory to the system: each thread has a heap of its own, which keeps what it once had."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def _bounded(translator: Translator, settings: Settings) -> Translator:
    """A copy of the translator with batches no larger than a server's; parts of one long sentence fill several."""
    found = copy(translator)
    found.batch_tokens = min(translator.batch_tokens, settings.batch_tokens)
    return found
