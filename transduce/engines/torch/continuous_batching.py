"""Translating any number of sentences in a room of fixed size: those that are done make way for those that wait.

The room's shapes are rounded up, so that few of them serve all batches (and their graphs are soon recorded). The host
runs one step ahead of what it knows: it asks for a step, and while that is done looks at who was done before it, and
reads what they have written: it never waits for what it asked last, but for the end of a run.
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
from transduce.search.constraints import UNCONSTRAINED, DecodingConstraints
from transduce.search.hypothesis import Hypothesis
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

AT_ONCE = 128  # sentences encoded together: the device begins with the longest while the others are made ready
LUMP = 64  # sentences read together while others are still inside: less is not worth a look
PATIENCE = 64  # steps run as they are written in a new room before any is recorded, if nobody comes to it again
UNFINISHED = Hypothesis((), 0.0, 0.0, False, ())  # of a sentence left before its end
SIZES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def rounded(length: int) -> int:
    """The next length for which there is room: 16, 32, 48, 64, 96, 128 ..., above 512 a multiple of 256."""
    return next((size for size in SIZES if length <= size), -(-length // 256) * 256)


def reached(length: int) -> int:
    """How far attention looks where paths have so many places: 32, 64, 128 ..., for each there is a graph."""
    return max(32, 1 << (length - 1).bit_length())


def crowd(count: int) -> int:
    """The next number of sentences for which there is room: a power of two up to 16, then as `rounded`."""
    return rounded(count) if count > SIZES[0] else 1 << (count - 1).bit_length()


class QueuedSentence(NamedTuple):
    """A sentence that waits: its number, its source, bounds on what is written, what else is asked of that, and where
    the random draws of its paths begin. No dataclass: a GPU waits while hundreds are made."""

    number: int
    source: Sequence[int]
    longest: int
    shortest: int
    constraints: DecodingConstraints
    streams: Sequence[int]

    @property
    def wanted(self) -> bool:
        return self.constraints.stop is None or not self.constraints.stop.cancelled


def jobs_of(
    sources: Sequence[Sequence[int]],
    plan: StaticSearchConfig,
    constraints: Sequence[DecodingConstraints],
    streams: Sequence[Sequence[int]],
) -> list[QueuedSentence]:
    """One a source (given without end symbol), the longest first."""
    lengths = [len(source) + 1 for source in sources]
    longest = plan.limits.lengths(lengths, constraints)
    shortest = [plan.limits.shortest + len(constraint.prefix) for constraint in constraints]
    made = list(map(QueuedSentence, range(len(sources)), sources, longest, shortest, constraints, streams))
    return [made[i] for i in longest_first(lengths)]


@dataclass(frozen=True)
class Shape:
    """What a room is known by: its size, the longest prefix, how many phrases to exclude and how long, the search."""

    room: CacheShape
    prefix: int
    exclude: tuple[int, int]
    plan: StaticSearchConfig

    @classmethod
    def of(cls, jobs: Sequence[QueuedSentence], plan: StaticSearchConfig, most: int) -> Shape:
        """For these jobs, or as many at a time as have no more than `most` places for tokens between them."""
        length = rounded(max(job.longest for job in jobs))
        sentences, fitting = crowd(len(jobs)), max(1, most // (plan.paths * length))
        if sentences > fitting:  # a power of two, so that lists of any size share the room
            sentences = 1 << (fitting.bit_length() - 1)
        source = rounded(max(len(job.source) + 1 for job in jobs))
        asked = [job.constraints for job in jobs if job.constraints is not UNCONSTRAINED]
        prefix = max((len(constraint.prefix) for constraint in asked), default=0)
        most_phrases = max((len(constraint.exclude) for constraint in asked), default=0)
        tokens = max((len(phrase) for constraint in asked for phrase in constraint.exclude), default=0)
        phrases = (crowd(most_phrases), crowd(tokens)) if tokens else (0, 0)
        room = CacheShape(sentences, plan.paths, source, length)
        return cls(room, rounded(prefix) if prefix else 0, phrases, plan)

    @property
    def places(self) -> int:
        """Tokens that all paths may write between them."""
        return self.room.sentences * self.room.paths * self.room.length

    def holds(self, other: Shape) -> bool:
        """Whether what would have the other room can be done in this one."""
        same = (self.plan, self.prefix, self.exclude) == (other.plan, other.prefix, other.exclude)
        own, asked = self.room, other.room
        large = own.sentences >= asked.sentences and own.source >= asked.source and own.length >= asked.length
        return same and large

    @property
    def widths(self) -> tuple[int, int, int, int]:
        """Numbers that come in with each sentence besides its source: four bounds, streams, prefix, phrases."""
        return 4, self.room.paths, self.prefix, math.prod(self.exclude)


class ContinuousBatcher:
    """A room, who is in it, and the work done there."""

    def __init__(
        self, model: SupportsStaticCache, source: Symbols, shape: Shape, stepper: StaticSearchStep, compiled: bool
    ) -> None:
        self.model, self.source, self.shape, self.stepper = model, source, shape, stepper
        self.device = stepper.board.position.device
        self.ahead = 1 if self.device.type == "cuda" else 0  # steps asked for before it is known who was done
        module = cast("nn.Module", model)
        # Not the parameters themselves, which may be given other memory while these are still read.
        self.weights = tuple(tensor.detach() for tensor in itertools.chain(module.parameters(), module.buffers()))
        self.recorder = CudaGraphCache(self.device)
        self.step = compiled_step(stepper) if compiled else stepper
        self.arrivals: dict[torch.Size, Tensor] = {}
        self.visits = self.steps = 0

    @classmethod
    def of(
        cls, model: SupportsStaticCache, source: Symbols, shape: Shape, device: torch.device, compiled: bool
    ) -> ContinuousBatcher | None:
        """None where the model cannot have such a room."""
        held = model.allocate_cache(shape.room)
        if held is None:
            return None
        board = StaticSearchState.of(shape.room, shape.plan.kept, shape.prefix, shape.exclude, device)
        stepper = StaticSearchStep(model, held, board, shape.plan, StepConstants.of(shape.plan, board))
        return cls(model, source, shape, stepper, compiled)

    def run(self, jobs: Sequence[QueuedSentence]) -> list[list[Hypothesis]]:
        """Hypotheses of each job, by its number."""
        self.visits += 1
        run = BatchRun(self, jobs)
        while run.going:
            run.step()
        run.read()
        return [run.found.get(number) or [UNFINISHED] for number in range(len(jobs))]

    def take_in(self, jobs: Sequence[QueuedSentence], slots: Sequence[int]) -> None:
        """Encode sources and put them in their slots."""
        table = self._table(jobs, slots)
        if table.shape not in self.arrivals:
            self.arrivals[table.shape] = torch.empty(table.shape, dtype=table.dtype, device=self.device)
        arrivals = self.arrivals[table.shape]
        arrivals.copy_(table, non_blocking=True)
        self.recorder.run(("arrivals", table.shape), lambda: self._admit(arrivals), self.weights)

    def _table(self, jobs: Sequence[QueuedSentence], slots: Sequence[int]) -> Tensor:
        """What `_admit` reads, in one tensor on the host, since each copy to a GPU takes the host ten microseconds.

        Rows are a power of two: the last sentence comes in as often as it takes, to the same slot.
        """
        rows = min(crowd(len(jobs)), self.shape.room.sentences)
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
        """The parts of a table that `Shape.widths` tells, and last the sources."""
        widths = self.shape.widths
        return torch.split(table, [*widths, table.size(1) - sum(widths)], dim=1)

    def _admit(self, table: Tensor) -> None:
        bounds, streams, prefix, exclude, source = self._columns(table)
        tokens, slots, longest, shortest = bounds.t().contiguous()
        phrases = exclude.view(len(table), *self.shape.exclude)
        arrivals = PrefillBatch(source.contiguous(), tokens, slots, longest, shortest, prefix, phrases, streams)
        self.model.prefill(self.stepper.held, arrivals.slots, arrivals.source, arrivals.mask)
        self.stepper.board.admit(arrivals, self.shape.plan.symbols)

    def advance(self, written: int) -> None:
        """One token further for everybody, of whom none has written more than `written`."""
        self.steps += 1
        self.recorder.recording = self.visits > 1 or self.steps > PATIENCE
        reach = min(reached(written + 1), self.shape.room.length)
        self.recorder.run(("step", reach), lambda: self.step(reach), self.weights)


def compiled_step(stepper: StaticSearchStep) -> Callable[[int], None]:
    """The same step, compiled at its first call for each reach."""
    step = torch.compile(stepper.__call__, dynamic=False)

    def run(reach: int) -> None:
        # Every room and reach is a program of its own, and torch gives up compiling after eight of one function.
        with torch._dynamo.config.patch(recompile_limit=1024, accumulated_recompile_limit=4096):
            step(reach)

    return run


class BatchRun:
    """One list of jobs on its way through the slots."""

    def __init__(self, slots: ContinuousBatcher, jobs: Sequence[QueuedSentence]) -> None:
        self.slots, self.waiting = slots, deque(jobs)
        self.stoppable = any(job.constraints.stop is not None for job in jobs)
        self.board = slots.stepper.board
        self.inside: dict[int, QueuedSentence] = {}
        self.free = list(range(slots.shape.room.sentences))
        self.since = [0] * len(self.free)  # the step at which each slot's sentence came in
        self.until = [0] * len(self.free)  # and at which it is over, if it did not end before
        self.now = 0
        self.reports: deque[PendingFlags] = deque()
        self.left: list[PendingResult] = []  # and not read yet
        self.found: dict[int, list[Hypothesis]] = {}  # by number of the job

    @property
    def going(self) -> bool:
        return bool(self.waiting or self.inside)

    def step(self) -> None:
        """Let in who waits, if it is worth it, go one token further, and let go who was done before or is over."""
        self._forget()
        if self.waiting and (not self.inside or len(self.free) * 8 >= len(self.since)):
            self._let_in()
        if not self.inside:
            return
        self.slots.advance(self.now - min(self.since[slot] for slot in self.inside))
        self.now += 1
        if sum(len(leaving.jobs) for leaving in self.left) >= LUMP:
            self.read()  # before others leave, whose findings come only after the step that was just asked for
        self._let_go([slot for slot in self.inside if self.until[slot] <= self.now])
        if not self.inside:
            return
        self.reports.append(PendingFlags(self.board.done, dict(self.inside)))
        if len(self.reports) <= self.slots.ahead:
            return
        report = self.reports.popleft()
        self._let_go([slot for slot in report.done() if self.inside.get(slot) is report.inside[slot]])

    def _forget(self) -> None:
        """Sentences that nobody waits for leave at once; their slots go on idly until others come."""
        if not self.stoppable:  # thousands may wait, and to ask each takes as long as a step
            return
        self.waiting = deque(job for job in self.waiting if job.wanted)
        for slot in [slot for slot, job in self.inside.items() if not job.wanted]:
            del self.inside[slot]
            self.free.append(slot)

    def _let_in(self) -> None:
        while self.waiting and self.free:
            count = min(len(self.waiting), len(self.free), AT_ONCE)
            jobs = [self.waiting.popleft() for _ in range(count)]
            taken, self.free = self.free[:count], self.free[count:]
            self.slots.take_in(jobs, taken)
            for slot, job in zip(taken, jobs, strict=True):
                self.inside[slot], self.since[slot], self.until[slot] = job, self.now, self.now + job.longest

    def _let_go(self, done: list[int]) -> None:
        if done:
            self.left.append(PendingResult([self.inside.pop(slot) for slot in done], self.board, done))
            self.free += done

    def read(self) -> None:
        """What those have found who left."""
        if not self.left:
            return
        findings = [leaving.finding() for leaving in self.left]
        jobs = itertools.chain.from_iterable(leaving.jobs for leaving in self.left)
        for job, hypotheses in zip(jobs, self.slots.shape.plan.read(StaticSearchResult.joined(findings)), strict=True):
            self.found[job.number] = hypotheses
        self.left = []


class DeviceFence:
    """Behind all that a device was asked so far; on a CPU that is done."""

    def __init__(self, device: torch.device) -> None:
        self.event = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if self.event is not None:
            self.event.record()

    def wait(self) -> None:
        """Until the device has come by."""
        if self.event is not None:
            self.event.synchronize()


class PendingResult:
    """Sentences that are done, and what they found, on its way from the device."""

    def __init__(self, jobs: Sequence[QueuedSentence], board: StaticSearchState, slots: Sequence[int]) -> None:
        device = board.position.device
        index = torch.tensor(slots, pin_memory=device.type == "cuda").to(device, non_blocking=True)
        self.jobs, self.coming = jobs, StaticSearchResult.of(board, index)
        self.mark = DeviceFence(device)

    def finding(self) -> StaticSearchResult:
        self.mark.wait()
        return self.coming


class PendingFlags:
    """Who was done after a step, on its way from the device, and who was inside then."""

    def __init__(self, done: Tensor, inside: dict[int, QueuedSentence]) -> None:
        self.inside = inside
        self.flags = torch.empty(done.shape, dtype=torch.bool, pin_memory=done.device.type == "cuda")
        self.flags.copy_(done, non_blocking=True)
        self.mark = DeviceFence(done.device)

    def done(self) -> list[int]:
        """Slots whose sentences are decided."""
        self.mark.wait()
        flags = self.flags.tolist()
        return [slot for slot in self.inside if flags[slot]]
