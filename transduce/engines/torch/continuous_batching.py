"""Continuous batching in a static cache: finished sentences give their slots to waiting ones.

Shapes are rounded up, so that few of them serve all batches (and their graphs are soon recorded). The host runs one
step ahead of what it knows: it requests a step, and meanwhile checks who was done before it and reads their results. It
never waits for the step it requested last, except at the end of a run.
Shapes: B sentences at a time, b arrivals, S source length, P prefix length.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from transduce.data.batch import pad_sources
from transduce.engines.torch.cuda_graphs import CudaGraphCache
from transduce.model.contract import CacheShape, SupportsStaticCache
from transduce.search import Hypothesis
from transduce.search.constraints import UNCONSTRAINED, DecodingConstraints
from transduce.search.rules import phrase_table
from transduce.search.static_search import (
    PrefillBatch,
    StaticSearchConfig,
    StaticSearchResult,
    StaticSearchState,
    StaticSearchStep,
    StepConstants,
    longest_first,
)
from transduce.text.vocabulary import Symbols

AT_ONCE = 128  # sentences encoded together: the device starts with the longest while the others are prepared
LUMP = 64  # results read together while others are in flight: fewer are not worth a read
PATIENCE = 64  # eager steps with a new shape before any is recorded, unless it is used again
UNFINISHED = Hypothesis((), 0.0, 0.0, False, ())  # a cancelled sentence
SIZES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def rounded(length: int) -> int:
    """Round a length up to a supported one: 16, 32, 48, 64, 96, 128 ..., above 512 a multiple of 256."""
    return next((size for size in SIZES if length <= size), -(-length // 256) * 256)


def reached(length: int) -> int:
    """Round up how far attention reads: 32, 64, 128 ..., each with a graph of its own."""
    return max(32, 1 << (length - 1).bit_length())


def crowd(count: int) -> int:
    """Round a number of sentences up: a power of two up to 16, then as `rounded`."""
    return rounded(count) if count > SIZES[0] else 1 << (count - 1).bit_length()


class QueuedSentence(NamedTuple):
    """A waiting sentence: its index, source, limits, constraints, and the seeds of its paths' random streams.

    Not a dataclass: a GPU waits while hundreds are made.
    """

    number: int
    source: Sequence[int]
    longest: int
    shortest: int
    constraints: DecodingConstraints
    streams: Sequence[int]

    @property
    def wanted(self) -> bool:
        return self.constraints.cancel_token is None or not self.constraints.cancel_token.cancelled


def jobs_of(
    sources: Sequence[Sequence[int]],
    plan: StaticSearchConfig,
    constraints: Sequence[DecodingConstraints],
    streams: Sequence[Sequence[int]],
) -> list[QueuedSentence]:
    """One per source (given without end symbol), the longest first."""
    lengths = [len(source) + 1 for source in sources]
    longest = plan.limits.lengths(lengths, constraints)
    shortest = [plan.limits.shortest + len(constraint.prefix) for constraint in constraints]
    queued = list(map(QueuedSentence, range(len(sources)), sources, longest, shortest, constraints, streams))
    return [queued[i] for i in longest_first(lengths)]


@dataclass(frozen=True)
class Shape:
    """Key of a batcher: its cache shape, the longest prefix, the number and length of excluded phrases, the search."""

    cache_shape: CacheShape
    prefix: int
    exclude: tuple[int, int]
    plan: StaticSearchConfig

    @classmethod
    def of(cls, jobs: Sequence[QueuedSentence], plan: StaticSearchConfig, most: int) -> Shape:
        """The shape for these jobs, or for as many at a time as fit in `most` tokens of all paths."""
        length = rounded(max(job.longest for job in jobs))
        sentences, fitting = crowd(len(jobs)), max(1, most // (plan.paths * length))
        if sentences > fitting:  # a power of two, so that lists of any size share the shape
            sentences = 1 << (fitting.bit_length() - 1)
        source = rounded(max(len(job.source) + 1 for job in jobs))
        constrained = [job.constraints for job in jobs if job.constraints is not UNCONSTRAINED]
        prefix = max((len(constraint.prefix) for constraint in constrained), default=0)
        most_phrases = max((len(constraint.exclude) for constraint in constrained), default=0)
        tokens = max((len(phrase) for constraint in constrained for phrase in constraint.exclude), default=0)
        phrases = (crowd(most_phrases), crowd(tokens)) if tokens else (0, 0)
        cache_shape = CacheShape(sentences, plan.paths, source, length)
        return cls(cache_shape, rounded(prefix) if prefix else 0, phrases, plan)

    @property
    def places(self) -> int:
        """Tokens of all paths together."""
        return self.cache_shape.sentences * self.cache_shape.paths * self.cache_shape.length

    def fits(self, needed: Shape) -> bool:
        """Whether work of the `needed` shape can be done in this one."""
        same = (self.plan, self.prefix, self.exclude) == (needed.plan, needed.prefix, needed.exclude)
        available, required = self.cache_shape, needed.cache_shape
        large = (
            available.sentences >= required.sentences
            and available.source >= required.source
            and available.length >= required.length
        )
        return same and large

    @property
    def widths(self) -> tuple[int, int, int, int]:
        """Numbers per sentence besides its source: four bounds, streams, prefix, phrases."""
        return 4, self.cache_shape.paths, self.prefix, math.prod(self.exclude)


class ContinuousBatcher:
    """Decodes sentences continuously in one static cache."""

    def __init__(
        self, model: SupportsStaticCache, source: Symbols, shape: Shape, stepper: StaticSearchStep, compiled: bool
    ) -> None:
        self.model, self.source, self.shape, self.stepper = model, source, shape, stepper
        self.device = stepper.state.position.device
        self.ahead = 1 if self.device.type == "cuda" else 0  # steps requested before results are known
        module = cast("nn.Module", model)
        # Not the parameters themselves, which may be moved while these are still read.
        self.weights = tuple(tensor.detach() for tensor in itertools.chain(module.parameters(), module.buffers()))
        self.recorder = CudaGraphCache(self.device)
        self.step = compiled_step(stepper) if compiled else stepper
        self.arrivals: dict[torch.Size, Tensor] = {}
        self.visits = self.steps = 0

    @classmethod
    def of(
        cls, model: SupportsStaticCache, source: Symbols, shape: Shape, device: torch.device, compiled: bool
    ) -> ContinuousBatcher | None:
        """Build a batcher; None if the model cannot have such a cache."""
        cache = model.allocate_cache(shape.cache_shape)
        if cache is None:
            return None
        state = StaticSearchState.of(shape.cache_shape, shape.plan.kept, shape.prefix, shape.exclude, device)
        stepper = StaticSearchStep(model, cache, state, shape.plan, StepConstants.of(shape.plan, state))
        return cls(model, source, shape, stepper, compiled)

    def run(self, jobs: Sequence[QueuedSentence]) -> list[list[Hypothesis]]:
        """Decode jobs: the hypotheses of each, by its number."""
        self.visits += 1
        run = BatchRun(self, jobs)
        while run.going:
            run.step()
        run.read()
        return [run.results.get(number) or [UNFINISHED] for number in range(len(jobs))]

    def admit(self, jobs: Sequence[QueuedSentence], slots: Sequence[int]) -> None:
        """Encode sources, and put them in their slots."""
        table = self._table(jobs, slots)
        if table.shape not in self.arrivals:
            self.arrivals[table.shape] = torch.empty(table.shape, dtype=table.dtype, device=self.device)
        arrivals = self.arrivals[table.shape]
        arrivals.copy_(table, non_blocking=True)
        self.recorder.run(("arrivals", table.shape), lambda: self._admit(arrivals), self.weights)

    def _table(self, jobs: Sequence[QueuedSentence], slots: Sequence[int]) -> Tensor:
        """The inputs of `_admit` in one tensor on the host, since each copy to a GPU takes the host ten microseconds.

        Rows are a power of two: the last sentence is repeated to fill them, in the same slot.
        """
        rows = min(crowd(len(jobs)), self.shape.cache_shape.sentences)
        more = rows - len(jobs)
        jobs, slots = [*jobs, *[jobs[-1]] * more], [*slots, *[slots[-1]] * more]
        _, sources, longest, shortest, constraints, streams = zip(*jobs, strict=True)
        tokens = [len(source) + 1 for source in sources]
        padded, _ = pad_sources(sources, self.source, rounded(max(tokens)))
        width, on_gpu = sum(self.shape.widths) + padded.size(1), self.device.type == "cuda"
        table = torch.empty(rows, width, dtype=torch.int64, pin_memory=on_gpu)
        bounds, draws, prefix, exclude, source = (part.numpy() for part in self._columns(table))
        bounds[:] = np.transpose([tokens, slots, longest, shortest])
        draws[:] = streams
        source[:] = padded.numpy()
        if most := prefix.shape[1]:
            prefix[:] = [[*constraint.prefix, *[-1] * (most - len(constraint.prefix))] for constraint in constraints]
        if exclude.shape[1]:
            tables = [phrase_table(constraint.exclude, *self.shape.exclude) for constraint in constraints]
            exclude[:] = np.reshape(tables, exclude.shape)
        return table

    def _columns(self, table: Tensor) -> tuple[Tensor, ...]:
        """Split a table into the parts of `Shape.widths`, and last the sources."""
        widths = self.shape.widths
        return torch.split(table, [*widths, table.size(1) - sum(widths)], dim=1)

    def _admit(self, table: Tensor) -> None:
        bounds, streams, prefix, exclude, source = self._columns(table)
        tokens, slots, longest, shortest = bounds.t().contiguous()
        phrases = exclude.view(len(table), *self.shape.exclude)
        arrivals = PrefillBatch(source.contiguous(), tokens, slots, longest, shortest, prefix, phrases, streams)
        self.model.prefill(self.stepper.cache, arrivals.slots, arrivals.source, arrivals.mask)
        self.stepper.state.admit(arrivals, self.shape.plan.symbols)

    def advance(self, written: int) -> None:
        """Decode one token of every sentence; none has written more than `written`."""
        self.steps += 1
        self.recorder.recording = self.visits > 1 or self.steps > PATIENCE
        reach = min(reached(written + 1), self.shape.cache_shape.length)
        self.recorder.run(("step", reach), lambda: self.step(reach), self.weights)


def compiled_step(stepper: StaticSearchStep) -> Callable[[int], None]:
    """The step, compiled at its first call for each reach."""
    step = torch.compile(stepper.__call__, dynamic=False)

    def run(reach: int) -> None:
        # Every shape and reach is a program of its own, and torch stops compiling after eight of one function.
        with torch._dynamo.config.patch(recompile_limit=1024, accumulated_recompile_limit=4096):
            step(reach)

    return run


class BatchRun:
    """One list of jobs on its way through the slots."""

    def __init__(self, batcher: ContinuousBatcher, jobs: Sequence[QueuedSentence]) -> None:
        self.batcher, self.waiting = batcher, deque(jobs)
        self.cancellable = any(job.constraints.cancel_token is not None for job in jobs)
        self.state = batcher.stepper.state
        self.in_flight: dict[int, QueuedSentence] = {}
        self.free = list(range(batcher.shape.cache_shape.sentences))
        self.since = [0] * len(self.free)  # the step at which each slot's sentence was admitted
        self.until = [0] * len(self.free)  # and at which it reaches its limit
        self.now = 0
        self.reports: deque[PendingFlags] = deque()
        self.left: list[PendingResult] = []  # not read yet
        self.results: dict[int, list[Hypothesis]] = {}  # by number of the job

    @property
    def going(self) -> bool:
        return bool(self.waiting or self.in_flight)

    def step(self) -> None:
        """Admit waiting sentences if worthwhile, decode a token, and release those done before or at their limit."""
        self._drop_cancelled()
        if self.waiting and (not self.in_flight or len(self.free) * 8 >= len(self.since)):
            self._admit()
        if not self.in_flight:
            return
        self.batcher.advance(self.now - min(self.since[slot] for slot in self.in_flight))
        self.now += 1
        if sum(len(leaving.jobs) for leaving in self.left) >= LUMP:
            self.read()  # before others finish, whose results follow the step just requested
        self._release([slot for slot in self.in_flight if self.until[slot] <= self.now])
        if not self.in_flight:
            return
        self.reports.append(PendingFlags(self.state.done, dict(self.in_flight)))
        if len(self.reports) <= self.batcher.ahead:
            return
        report = self.reports.popleft()
        self._release([slot for slot in report.done() if self.in_flight.get(slot) is report.in_flight[slot]])

    def _drop_cancelled(self) -> None:
        """Drop cancelled sentences at once; their slots idle until others are admitted."""
        if not self.cancellable:  # thousands may wait, and checking each takes as long as a step
            return
        self.waiting = deque(job for job in self.waiting if job.wanted)
        for slot in [slot for slot, job in self.in_flight.items() if not job.wanted]:
            del self.in_flight[slot]
            self.free.append(slot)

    def _admit(self) -> None:
        while self.waiting and self.free:
            count = min(len(self.waiting), len(self.free), AT_ONCE)
            jobs = [self.waiting.popleft() for _ in range(count)]
            taken, self.free = self.free[:count], self.free[count:]
            self.batcher.admit(jobs, taken)
            for slot, job in zip(taken, jobs, strict=True):
                self.in_flight[slot], self.since[slot], self.until[slot] = job, self.now, self.now + job.longest

    def _release(self, done: list[int]) -> None:
        if done:
            self.left.append(PendingResult([self.in_flight.pop(slot) for slot in done], self.state, done))
            self.free += done

    def read(self) -> None:
        """Read the results of released sentences."""
        if not self.left:
            return
        results = [pending.result() for pending in self.left]
        jobs = itertools.chain.from_iterable(pending.jobs for pending in self.left)
        for job, hypotheses in zip(jobs, self.batcher.shape.plan.read(StaticSearchResult.joined(results)), strict=True):
            self.results[job.number] = hypotheses
        self.left = []


class DeviceFence:
    """A CUDA event recorded after all queued work; a no-op on CPU."""

    def __init__(self, device: torch.device) -> None:
        self.event = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if self.event is not None:
            self.event.record()

    def wait(self) -> None:
        """Wait until the device has reached the event."""
        if self.event is not None:
            self.event.synchronize()


class PendingResult:
    """Sentences that are done, with their results on the way from the device."""

    def __init__(self, jobs: Sequence[QueuedSentence], state: StaticSearchState, slots: Sequence[int]) -> None:
        device = state.position.device
        index = torch.tensor(slots, pin_memory=device.type == "cuda").to(device, non_blocking=True)
        self.jobs, self.copy = jobs, StaticSearchResult.of(state, index)
        self.fence = DeviceFence(device)

    def result(self) -> StaticSearchResult:
        self.fence.wait()
        return self.copy


class PendingFlags:
    """Which slots were done after a step, on the way from the device, and which sentences were in flight."""

    def __init__(self, done: Tensor, in_flight: dict[int, QueuedSentence]) -> None:
        self.in_flight = in_flight
        self.flags = torch.empty(done.shape, dtype=torch.bool, pin_memory=done.device.type == "cuda")
        self.flags.copy_(done, non_blocking=True)
        self.fence = DeviceFence(done.device)

    def done(self) -> list[int]:
        """Slots whose sentences are decided."""
        self.fence.wait()
        flags = self.flags.tolist()
        return [slot for slot in self.in_flight if flags[slot]]
