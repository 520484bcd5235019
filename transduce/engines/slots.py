"""Translating any number of sentences in a room of fixed size: those that are done make way for those that wait.

The room's shapes are rounded up, so that few of them serve all batches (and their graphs are soon recorded). The host
runs one step ahead of what it knows: it asks for a step, and while that is done looks at who was done before it.
Shapes: B sentences at a time, b arrivals, S source length, P prefix length.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from transduce.data.batch import pad_sources
from transduce.data.symbols import Symbols
from transduce.engines.graphs import Recorder
from transduce.model.contract import Holding, Room
from transduce.model.stepping import in_a_room
from transduce.search.board import Arrivals, Board, Finding, longest_first
from transduce.search.constraints import phrase_table
from transduce.search.fixed import Constants, Plan, Stepper
from transduce.search.hypothesis import Hypothesis
from transduce.search.wishes import Wishes

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


@dataclass(frozen=True)
class Job:
    """A sentence that waits: its number, its source, bounds on what is written, what else is asked of that, and where
    the random draws of its paths begin."""

    number: int
    source: Sequence[int]
    longest: int
    shortest: int
    wishes: Wishes
    streams: Sequence[int]

    @property
    def wanted(self) -> bool:
        return self.wishes.stop is None or not self.wishes.stop.asked


def jobs_of(
    sources: Sequence[Sequence[int]], plan: Plan, wishes: Sequence[Wishes], streams: Sequence[Sequence[int]]
) -> list[Job]:
    """One a source (given without end symbol), the longest first."""
    longest = plan.limits.lengths([len(source) + 1 for source in sources], wishes)
    made = [
        Job(i, source, longest[i], plan.limits.shortest + len(wishes[i].prefix), wishes[i], streams[i])
        for i, source in enumerate(sources)
    ]
    return [made[i] for i in longest_first([len(source) for source in sources])]


@dataclass(frozen=True)
class Shape:
    """What a room is known by: its size, the longest prefix, how many phrases to exclude and how long, the search."""

    room: Room
    prefix: int
    exclude: tuple[int, int]
    plan: Plan

    @classmethod
    def of(cls, jobs: Sequence[Job], plan: Plan, most: int) -> Shape:
        """For these jobs, or as many at a time as have no more than `most` places for tokens between them."""
        length = rounded(max(job.longest for job in jobs))
        sentences, fitting = crowd(len(jobs)), max(1, most // (plan.paths * length))
        if sentences > fitting:  # a power of two, so that lists of any size share the room
            sentences = 1 << (fitting.bit_length() - 1)
        source = rounded(max(len(job.source) + 1 for job in jobs))
        prefix = max(len(job.wishes.prefix) for job in jobs)
        most_phrases = max(len(job.wishes.exclude) for job in jobs)
        tokens = max((len(phrase) for job in jobs for phrase in job.wishes.exclude), default=0)
        phrases = (crowd(most_phrases), crowd(tokens)) if tokens else (0, 0)
        room = Room(sentences, plan.paths, source, length)
        return cls(room, rounded(prefix) if prefix else 0, phrases, plan)


class Slots:
    """A room, who is in it, and the work done there."""

    def __init__(self, model: Holding, source: Symbols, shape: Shape, stepper: Stepper, compiled: bool) -> None:
        self.model, self.source, self.shape, self.stepper = model, source, shape, stepper
        self.device = stepper.board.place.device
        module = cast("nn.Module", model)
        # Not the parameters themselves, which may be given other memory while these are still read.
        weights = tuple(tensor.detach() for tensor in itertools.chain(module.parameters(), module.buffers()))
        self.recorder = Recorder(self.device, weights)
        self.step = compiled_step(stepper) if compiled else stepper
        self.arrivals: dict[tuple[int, int], Arrivals] = {}
        self.visits = self.steps = 0

    @classmethod
    def of(cls, model: Holding, source: Symbols, shape: Shape, device: torch.device, compiled: bool) -> Slots | None:
        """None where the model cannot have such a room."""
        held = model.reserve(shape.room)
        if held is None:
            return None
        board = Board.of(shape.room, shape.plan.kept, shape.prefix, shape.exclude, device)
        stepper = Stepper(model, held, board, shape.plan, Constants.of(shape.plan, board))
        return cls(model, source, shape, stepper, compiled)

    def run(self, jobs: Sequence[Job]) -> list[list[Hypothesis]]:
        """Hypotheses of each job, by its number."""
        self.visits += 1
        run = Run(self, deque(jobs))
        with in_a_room():
            while run.going:
                run.step()
        return run.found(len(jobs))

    def take_in(self, jobs: Sequence[Job], slots: Sequence[int]) -> None:
        """Encode sources and put them in their slots."""
        waiting = self._pack(jobs, slots)
        shape = (len(waiting.slots), waiting.source.size(1))
        if shape not in self.arrivals:
            self.arrivals[shape] = Arrivals(*(tensor.to(self.device) for tensor in waiting.tensors()))
        arrivals = self.arrivals[shape]
        for place, tensor in zip(arrivals.tensors(), waiting.tensors(), strict=True):
            place.copy_(pinned(tensor, self.device), non_blocking=True)
        self.recorder.run(("arrivals", shape), lambda: self._admit(arrivals))

    def _pack(self, jobs: Sequence[Job], slots: Sequence[int]) -> Arrivals:
        """Rows are a power of two: the last sentence comes in as often as it takes, to the same slot."""
        rows = min(crowd(len(jobs)), self.shape.room.sentences)
        more = rows - len(jobs)
        jobs, slots = [*jobs, *[jobs[-1]] * more], [*slots, *[slots[-1]] * more]
        sources = [job.source for job in jobs]
        width = rounded(max(len(source) + 1 for source in sources))
        prefixes = [[*job.wishes.prefix, *[-1] * (self.shape.prefix - len(job.wishes.prefix))] for job in jobs]
        excluded = [phrase_table(job.wishes.exclude, *self.shape.exclude) for job in jobs]
        return Arrivals(
            *pad_sources(sources, self.source, width),
            torch.tensor(slots),
            torch.tensor([job.longest for job in jobs]),
            torch.tensor([job.shortest for job in jobs]),
            torch.tensor(prefixes, dtype=torch.int64).view(rows, self.shape.prefix),
            torch.tensor(excluded, dtype=torch.int64).view(rows, *self.shape.exclude),
            torch.tensor([job.streams for job in jobs], dtype=torch.int64),
        )

    def _admit(self, arrivals: Arrivals) -> None:
        memory = self.model.encode(arrivals.source, arrivals.mask)
        self.model.fill(self.stepper.held, arrivals.slots, memory)
        self.stepper.board.admit(arrivals, self.shape.plan.symbols)

    def advance(self, written: int) -> None:
        """One token further for everybody, of whom none has written more than `written`."""
        self.steps += 1
        self.recorder.recording = self.visits > 1 or self.steps > PATIENCE
        reach = min(reached(written + 1), self.shape.room.length)
        self.recorder.run(("step", reach), lambda: self.step(reach))


def compiled_step(stepper: Stepper) -> Callable[[int], None]:
    """The same step, compiled at its first call for each reach."""
    step = torch.compile(stepper.__call__, dynamic=False)

    def run(reach: int) -> None:
        # Every room and reach is a program of its own, and torch gives up compiling after eight of one function.
        with torch._dynamo.config.patch(recompile_limit=1024, accumulated_recompile_limit=4096):
            step(reach)

    return run


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """Where a GPU can fetch it by itself while the host goes on."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


class Run:
    """One list of jobs on its way through the slots."""

    def __init__(self, slots: Slots, waiting: deque[Job]) -> None:
        self.slots, self.waiting = slots, waiting
        self.stoppable = any(job.wishes.stop is not None for job in waiting)
        self.board = slots.stepper.board
        self.inside: dict[int, Job] = {}
        self.free = list(range(slots.shape.room.sentences))
        self.since = [0] * len(self.free)  # the step at which each slot's sentence came in
        self.now = 0
        self.reports: deque[Report] = deque()
        self.left: list[tuple[list[Job], Finding]] = []

    @property
    def going(self) -> bool:
        return bool(self.waiting or self.inside)

    def step(self) -> None:
        """Let in who waits, if it is worth it, go one token further, and let go who was done before."""
        self._forget()
        if self.waiting and (not self.inside or len(self.free) * 8 >= len(self.since)):
            self._let_in()
        if not self.inside:
            return
        written = [self.now - self.since[slot] for slot in self.inside]
        if any(count < job.longest for count, job in zip(written, self.inside.values(), strict=True)):
            self.slots.advance(max(written))
            self.now += 1
            self.reports.append(Report(self.board.done, dict(self.inside)))
            if self.slots.device.type == "cuda" and len(self.reports) < 2:
                return
        self._let_go(self.reports.popleft())

    def _forget(self) -> None:
        """Sentences that nobody waits for leave at once; their slots go on idly until others come."""
        if not self.stoppable:  # thousands may wait, and to ask each takes as long as a step
            return
        self.waiting = deque(job for job in self.waiting if job.wanted)
        for slot in [slot for slot, job in self.inside.items() if not job.wanted]:
            del self.inside[slot]
            self.free.append(slot)

    def _let_in(self) -> None:
        count = min(len(self.waiting), len(self.free))
        jobs = [self.waiting.popleft() for _ in range(count)]
        taken, self.free = self.free[:count], self.free[count:]
        self.slots.take_in(jobs, taken)
        for slot, job in zip(taken, jobs, strict=True):
            self.inside[slot], self.since[slot] = job, self.now

    def _let_go(self, report: Report) -> None:
        done = [slot for slot in report.done() if self.inside.get(slot) is report.inside[slot]]
        if not done:
            return
        index = pinned(torch.tensor(done), self.slots.device).to(self.slots.device, non_blocking=True)
        self.left.append(([self.inside.pop(slot) for slot in done], Finding.of(self.board, index)))
        self.free += done

    def found(self, count: int) -> list[list[Hypothesis]]:
        """Read only now, so that nothing waited for the device in between; nothing for who was not waited for."""
        results: list[list[Hypothesis]] = [[UNFINISHED] for _ in range(count)]
        if not self.left:
            return results
        jobs = [job for own, _ in self.left for job in own]
        read = self.slots.shape.plan.read(Finding.joined([finding for _, finding in self.left]))
        for job, hypotheses in zip(jobs, read, strict=True):
            results[job.number] = hypotheses
        return results


class Report:
    """Who was done after a step, on its way from the device, and who was inside then."""

    def __init__(self, done: Tensor, inside: dict[int, Job]) -> None:
        self.inside = inside
        self.flags = torch.empty(done.shape, dtype=torch.bool, pin_memory=done.device.type == "cuda")
        self.flags.copy_(done, non_blocking=True)
        self.arrived = torch.cuda.Event() if done.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if self.arrived is not None:
            self.arrived.record()

    def done(self) -> list[int]:
        """Slots whose sentences are decided."""
        if self.arrived is not None:
            self.arrived.synchronize()
        flags = self.flags.tolist()
        return [slot for slot in self.inside if flags[slot]]
