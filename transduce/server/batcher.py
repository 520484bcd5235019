"""Batch sentences of different users: worker threads take queued sentences, by tokens, and run the model.

A free thread takes a sentence at once; where the last batch held several, it first waits a few milliseconds for more.
Sentences of cancelled requests are not begun, and those in the model are cancelled. Items of one kind of work and
equal settings go through the model together.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from transduce.core.errors import UserError
from transduce.engines import Scored, Translation
from transduce.search import SearchConfig
from transduce.search.constraints import CancelToken
from transduce.server.settings import Settings
from transduce.text.alignment import Alignment, Unit
from transduce.text.terms import TermMatch
from transduce.translate.options import TranslateOptions
from transduce.translate.translator import Translator


@dataclass(frozen=True)
class Sentence:
    """A text to translate with its own constraints; for scores and alignments, `prefix` is the given translation."""

    text: str
    to: str = ""
    prefix: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    tokens: tuple[int, ...] | None = None  # of the text, where they are known
    source: str = ""
    terms: tuple[TermMatch, ...] = ()  # of glossaries, found in the text


@dataclass(frozen=True)
class Translate:
    """Translate with a search config, align if requested, and keep spans that are no language."""

    search: SearchConfig
    align: Unit | None = None
    protect: bool = True

    def run(self, translator: Translator, items: Sequence[Sentence], stops: Sequence[CancelToken]) -> list[Translation]:
        """One translation an item."""
        options = TranslateOptions(
            search=self.search,
            to=[item.to for item in items],
            prefixes=[item.prefix for item in items],
            include=[item.include for item in items],
            exclude=[item.exclude for item in items],
            align=self.align,
            dense=False,
            cancel_tokens=stops,
            protect=self.protect,
            source=[item.source for item in items],
            tokens={item.text: item.tokens for item in items if item.tokens is not None},
            terms=[item.terms for item in items] if any(item.terms for item in items) else (),
        )
        return list(translator.run([item.text for item in items], options))


@dataclass(frozen=True)
class Score:
    """Score given translations."""

    def run(self, translator: Translator, items: Sequence[Sentence], stops: Sequence[CancelToken]) -> list[Scored]:
        """One score an item."""
        return translator.score(
            [item.text for item in items], [item.prefix for item in items], [item.to for item in items]
        )


@dataclass(frozen=True)
class Align:
    """Align given translations by one decoder layer or all; links alone, or the whole matrix."""

    unit: Unit
    layer: int | None = None
    matrix: bool = False

    def run(self, translator: Translator, items: Sequence[Sentence], stops: Sequence[CancelToken]) -> list[Alignment]:
        """One alignment an item."""
        targets, languages = [item.prefix for item in items], [item.to for item in items]
        sources = [item.text for item in items]
        return translator.align(sources, targets, languages, self.unit, self.layer, dense=self.matrix)


Work = Translate | Score | Align


log = logging.getLogger("transduce.server")
POLITENESS = 10  # niceness of the model's threads, relative to the event loop


@dataclass(eq=False)
class QueuedWork:
    """A queued sentence: its kind of work, its cost, and the future of its result."""

    work: Work
    item: Sentence
    tokens: int
    future: asyncio.Future[Any]
    stop: CancelToken = field(default_factory=CancelToken)


class Batcher:
    """The queue of one model and its worker threads; `report(sentences, tokens, seconds)` follows every batch."""

    def __init__(self, translator: Translator, settings: Settings, report: Callable[[int, int, float], None]) -> None:
        self.translator, self.settings, self._report = translator, settings, report
        self.running = 0  # sentences in the model
        self.gathering = 0  # threads that wait for more sentences
        self._waiting: deque[QueuedWork] = deque()
        self._waiting_tokens = 0  # of all queued sentences
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._last_was_shared = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def run(self, work: Work, item: Sentence, tokens: int) -> Any:
        """Queue one item and await its result; cancelling the call cancels the work."""
        job = QueuedWork(work, item, tokens, asyncio.get_running_loop().create_future())
        with self._changed:
            if self._closed:
                raise RuntimeError("this batcher is closed")
            self._waiting.append(job)
            self._waiting_tokens += tokens
            self._start_threads()
            self._changed.notify()
        try:
            return await job.future
        except asyncio.CancelledError:
            job.stop.cancel()
            raise

    def close(self) -> None:
        """Join the threads once the queue is empty."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _start_threads(self) -> None:
        while len(self._threads) < self.settings.workers:
            thread = threading.Thread(target=self._serve, name=f"model-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self) -> None:
        _step_back()
        while batch := self._next():
            begun = time.monotonic()
            answers = self._answers(batch)
            tokens, seconds = sum(job.tokens for job in batch), time.monotonic() - begun
            # The loop may be closed, and with it all clients.
            with suppress(RuntimeError):
                batch[0].future.get_loop().call_soon_threadsafe(self._deliver, batch, answers, tokens, seconds)

    def _next(self) -> list[QueuedWork]:
        """The next batch, or [] when the batcher is closed and the queue empty."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._last_was_shared and not self._closed:
                    self.gathering += 1
                    self._wait_for_more()
                    self.gathering -= 1
                batch = self._take()
                if batch:
                    self._last_was_shared = len(batch) > 1
                    self.running += len(batch)
                    return batch
                if self._closed and not self._waiting:
                    return []

    def _wait_for_more(self) -> None:
        until = time.monotonic() + self.settings.batch_seconds
        while self._waiting_tokens < self.settings.batch_tokens:
            left = until - time.monotonic()
            if left <= 0 or self._closed:
                return
            self._changed.wait(left)

    def _take(self) -> list[QueuedWork]:
        """Take queued items of the first one's work, in order, as many as fit; drop cancelled ones."""
        batch: list[QueuedWork] = []
        passed: list[QueuedWork] = []
        free = self.settings.batch_tokens
        while self._waiting and free > 0:
            job = self._waiting.popleft()
            self._waiting_tokens -= job.tokens
            if job.stop.cancelled:
                continue
            if batch and (job.work != batch[0].work or job.tokens > free):
                passed.append(job)
                if len(passed) >= 64:
                    break
                continue
            batch.append(job)
            free -= job.tokens
        self._waiting.extendleft(reversed(passed))
        self._waiting_tokens += sum(job.tokens for job in passed)
        if passed:
            self._changed.notify()  # another thread may begin with these
        return batch

    def _answers(self, batch: Sequence[QueuedWork]) -> list[Any]:
        """A result or an exception for each job. Where a batch fails, each is retried alone: one is at fault."""
        work, translator = batch[0].work, self.translator
        try:
            return list(work.run(translator, [job.item for job in batch], [job.stop for job in batch]))
        except Exception as error:
            if len(batch) > 1:
                return [answer for job in batch for answer in self._answers([job])]
            if not isinstance(error, UserError):
                log.exception("a sentence could not be translated")
            return [error]

    def _deliver(self, batch: Sequence[QueuedWork], answers: Sequence[Any], tokens: int, seconds: float) -> None:
        """Resolve the futures; runs in the event loop's thread."""
        with self._changed:
            self.running -= len(batch)
        self._report(len(batch), tokens, seconds)
        for job, answer in zip(batch, answers, strict=True):
            if job.future.done():
                continue  # cancelled meanwhile
            if isinstance(answer, Exception):
                job.future.set_exception(answer)
            else:
                job.future.set_result(answer)


def _step_back() -> None:
    """Lower the priority of this thread, and of those the engine starts from it, below the event loop's.

    The loop must stay responsive, if only to reject requests.
    """
    with suppress(OSError, AttributeError):  # where threads have no priorities of their own
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + POLITENESS)
