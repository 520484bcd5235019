"""Shared state of an application's handlers: settings, models, the gate, the threads behind it, Prometheus metrics.

No text, key or address is a label of a metric; endpoints are a closed list.
"""

from __future__ import annotations

import asyncio
import collections
import ctypes
import gc
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from copy import copy
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from transduce.search.constraints import CancelToken
from transduce.server.admission import Gate, Keys
from transduce.server.batcher import Batcher
from transduce.server.glossaries import GlossaryStore
from transduce.server.inspection_process import InspectionProcess
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
        self.gate = Gate(settings.queue_tokens, settings.queue_seconds)
        self.meter = Meter(self)
        self.keys = Keys(settings.keys, settings.requests_a_minute)
        self.proxies = Proxies(settings.proxies)
        self.glossaries = GlossaryStore(settings)
        self.detector = Detector(self.models.known)
        self._detects = False
        self.batchers = {
            model.name: Batcher(_bounded(model.translator, settings), settings, self._report) for model in served
        }
        self.characters: collections.Counter[bytes] = collections.Counter()  # translated since the start, by caller
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
        self.glossaries.close()

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


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Meter:
    """The metrics of one application."""

    def __init__(self, state: ServerState) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "transduce_requests_total", "Requests answered.", ["endpoint", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "transduce_request_seconds", "Time to an answer.", ["endpoint"], buckets=_SECONDS, registry=self.registry
        )
        self._batches = Histogram(
            "transduce_batch_sentences", "Sentences of a batch.", buckets=_SIZES, registry=self.registry
        )
        self._batch_seconds = Histogram(
            "transduce_batch_seconds", "Time of a batch.", buckets=_SECONDS, registry=self.registry
        )
        self._tokens = Counter("transduce_source_tokens_total", "Source tokens translated.", registry=self.registry)
        self._gone = Counter(
            "transduce_disconnects_total", "Clients that went away before the answer.", registry=self.registry
        )
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "transduce_gate_tokens": ("Tokens admitted and not done.", lambda: state.gate.held),
            "transduce_gate_capacity_tokens": ("Tokens that may be admitted now.", lambda: state.gate.capacity),
            "transduce_gate_requests": ("Requests admitted and not answered.", lambda: state.gate.requests),
            "transduce_gate_admitted": ("Requests admitted since the start.", lambda: state.gate.admitted),
            "transduce_gate_refused": ("Requests refused since the start.", lambda: state.gate.refused),
            "transduce_waiting_sentences": (
                "Sentences that wait for the model.",
                lambda: sum(batcher.waiting for batcher in state.batchers.values()),
            ),
            "transduce_running_sentences": (
                "Sentences in the model.",
                lambda: sum(batcher.running for batcher in state.batchers.values()),
            ),
        }
        for name, (text, read) in gauges.items():
            Gauge(name, text, registry=self.registry).set_function(read)

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        """Record an answered request."""
        self._requests.labels(endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def gone(self) -> None:
        """Record a client that went away."""
        self._gone.inc()

    def batch(self, sentences: int, tokens: int, seconds: float) -> None:
        """Record a translated batch."""
        self._batches.observe(sentences)
        self._batch_seconds.observe(seconds)
        self._tokens.inc(tokens)

    def text(self) -> bytes:
        """Export all metrics as text."""
        return generate_latest(self.registry)
