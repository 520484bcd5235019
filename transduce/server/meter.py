"""Prometheus metrics of a server. No text, key or address is a label; endpoints are a closed list."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from transduce.server.state import ServerState

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
