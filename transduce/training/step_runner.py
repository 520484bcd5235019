"""Forward and backward passes of micro-batches: eager, or replayed as CUDA graphs, and split when memory runs out.

A small model spends most of a step launching kernels one by one. A graph holds all launches of the pass for one shape
of batch, and costs one. The first batch of a shape is run eagerly, the second is recorded, the rest replayed; random
draws follow the seed as they do without, so the numbers are the same.

Micro-batches that proved too large for the device's memory are run in two halves. Losses are sums with counts, so that
halves add up to the whole; only random draws (dropout) are others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from transduce.data.batch import Batch
from transduce.data.stream import Portion
from transduce.engines.torch.cuda_graphs import CudaGraphCache
from transduce.experiment import Config
from transduce.model.encoder_decoder import EncoderDecoder
from transduce.objectives import Loss, ObjectiveStep
from transduce.objectives.cross_entropy import Smoothed
from transduce.training.distributed import Group
from transduce.training.session import Session

MOST_GRAPHS = 128  # shapes; a corpus has a few dozen that come again and again
Shape = tuple[tuple[int, ...], ...]


def shape_of(batch: Batch) -> Shape:
    """The key of a CUDA graph: tensor shapes and packing capacity."""
    return (*(tuple(tensor.shape) for tensor in batch.tensors()), batch.capacity)


class EagerRunner:
    """Run a micro-batch eagerly: add its gradients to the parameters', and return the detached loss."""

    drops_gradients: ClassVar[bool] = True  # between updates; else they are set to zero where they are

    def __init__(self, module: ObjectiveStep, device: torch.device, bf16: bool) -> None:
        self.module, self.device, self.bf16 = module, device, bf16

    def __call__(self, batch: Batch, step: int, last: bool = True, counted: bool = True) -> Loss:
        """Run a batch of the host. For several processes: `last` before the update; not `counted`, it adds nothing."""
        return self.run(batch.to(self.device), step, counted)

    def run(self, batch: Batch, step: int, counted: bool = True) -> Loss:
        """Run a batch that is on the device."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            loss = self.loss(batch, step)
        loss = loss if counted else loss.uncounted()
        self.add_gradients(loss.total)
        return replace(loss, total=loss.total.detach())

    def add_gradients(self, total: Tensor) -> None:
        """Run the backward pass."""
        total.backward()  # type: ignore[no-untyped-call]

    def loss(self, batch: Batch, step: int) -> Loss:
        """Run the forward pass."""
        found: Loss = self.module(batch, step)
        return found


def add_gradients(total: Tensor, parameters: Sequence[Tensor]) -> None:
    """Do what `total.backward()` does, with a few fused kernels for all parameters instead of one for each."""
    found: Sequence[Tensor | None] = torch.autograd.grad(total, parameters, allow_unused=True)
    alike: tuple[list[Tensor], list[Tensor]] = [], []
    for parameter, gradient in zip(parameters, found, strict=True):
        if gradient is None:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if gradient.stride() == parameter.grad.stride() and gradient.dtype == parameter.grad.dtype:
            alike[0].append(parameter.grad)
            alike[1].append(gradient)
        else:
            parameter.grad += gradient
    torch._foreach_add_(*alike)


@dataclass(frozen=True)
class RecordedStep:
    """The static input batch of a graph, and the loss that it leaves."""

    batch: Batch
    loss: Loss


class GraphedRunner(EagerRunner):
    """Replay the pass as a CUDA graph for shapes that recur.

    For objectives that do the same at every step: numbers that Python computes are recorded as they were. Gradients
    are added in place, so they are zeroed, never dropped, between updates.
    """

    drops_gradients: ClassVar[bool] = False

    def __init__(self, module: ObjectiveStep, device: torch.device, bf16: bool, say: Callable[[str], None]) -> None:
        super().__init__(module, device, bf16)
        self.seen: set[Shape] = set()
        self.recorded: dict[Shape, RecordedStep] = {}
        self.graphs = CudaGraphCache(device, lambda text: say(f"training.graphs: {text}"))

    def __call__(self, batch: Batch, step: int, last: bool = True, counted: bool = True) -> Loss:
        shape = shape_of(batch)
        if shape not in self.recorded and shape in self.seen and len(self.recorded) < MOST_GRAPHS:
            self._record(shape, batch, step)
        if shape in self.recorded:
            return self._replay(shape, batch)
        self.seen.add(shape)
        return super().__call__(batch, step)

    def add_gradients(self, total: Tensor) -> None:
        add_gradients(total, [parameter for parameter in self.module.parameters() if parameter.requires_grad])

    def _replay(self, shape: Shape, batch: Batch) -> Loss:
        recorded = self.recorded[shape]
        for static, tensor in zip(recorded.batch.tensors(), batch.tensors(), strict=True):
            static.copy_(tensor, non_blocking=True)
        self.graphs.graphs[shape].replay()
        return recorded.loss

    def _record(self, shape: Shape, batch: Batch, step: int) -> None:
        fixed, losses = batch.to(self.device), []
        buffers = tuple(self.module.buffers())  # as they are now: a table that grows is replaced
        if self.graphs.record(shape, lambda: losses.append(self.run(fixed, step)), buffers):
            self.recorded[shape] = RecordedStep(fixed, losses[0])


def make_runner(
    module: ObjectiveStep, model: EncoderDecoder, config: Config, group: Group, say: Callable[[str], None]
) -> EagerRunner:
    """Choose how micro-batches are run: distributed, replayed as CUDA graphs for steady objectives, or eagerly.

    What several processes exchange within a pass is not recorded.
    """
    device, bf16 = group.device, config.training.narrow(group.device.type)
    if group.size > 1:
        from transduce.training.parallel import Copies, Pieces  # slow to import, and of no use to a single process

        if config.training.parallel == "fsdp":
            return Pieces(module, model, device, bf16)
        # Our own objectives use all of a model but the heads whose terms they lack or are done with.
        foreign = not type(config.objective).__module__.startswith("transduce.")
        return Copies(module, device, bf16, sparing=bool(config.model.heads) or foreign)
    steady = isinstance(config.objective, Smoothed) and config.objective.steady
    fresh = config.training.activation_checkpointing  # it saves and restores states of random generators
    if device.type == "cuda" and config.training.graphs and steady and not fresh:
        return GraphedRunner(module, device, bf16, say)
    return EagerRunner(module, device, bf16)


@contextmanager
def trial(session: Session, module: nn.Module) -> Iterator[None]:
    """Run passes as a trial: at the end gradients are zeroed, and running statistics restored."""
    saved = {name: tensor.clone() for name, tensor in session.model.weights().items()}
    module.train()
    try:
        yield
    finally:
        session.model.load_weights(saved)
        # Zeros, not None: replayed graphs add to the gradients that were there.
        session.optimizer.zero_grad(set_to_none=False)


MicroBatch = tuple[Portion, Batch]
_SECOND = 1 << 20  # added to the number of a piece for the draws of a second half
_ROUND = 256  # packed halves have capacities in multiples of it, so that few shapes occur


class OomSplitter:
    """Back-propagate the sums of a step's micro-batches, halving those that run out of memory.

    When memory runs out the step is restarted with the micro-batch in question cut in two by rows, once for each shape;
    all of that shape are cut from then on. Not where `unsplittable`: a model with batch statistics needs its batches as
    they are, and several processes must do the same.
    """

    def __init__(
        self, passes: EagerRunner, session: Session, seed: int, unsplittable: bool, say: Callable[[str], None]
    ) -> None:
        self.passes, self.session, self.seed, self.unsplittable, self.say = passes, session, seed, unsplittable, say
        self.halved: set[Shape] = set()

    def __call__(self, micro_batches: Sequence[MicroBatch]) -> list[Loss]:
        """The detached losses of all micro-batches; their gradients are those of the optimizer's parameters."""
        while True:
            self.session.optimizer.zero_grad(set_to_none=self.passes.drops_gradients)
            done: list[Loss] = []
            shortage = self._run(micro_batches, done)
            if shortage is None:
                return done
            batch = micro_batches[self._reached][1]
            shape = _places(batch)
            if self.unsplittable or shape in self.halved or len(batch.source) < 2:
                raise shortage
            # Only the text: the error itself references what was in memory when it was raised.
            reason = str(shortage).split(". ")[0]
            shortage = None
            self.halved.add(shape)
            if self.session.device.type == "cuda":
                torch.cuda.empty_cache()
            rows, source, target = len(batch.source), batch.source.size(1), batch.gold.size(1)
            self.say(
                f"step {self.session.progress.step + 1:,}: out of memory on {rows} pairs of {source} and {target}"
                f" positions ({reason}); such batches are halved from here on"
            )

    def _run(self, micro_batches: Sequence[MicroBatch], done: list[Loss]) -> torch.OutOfMemoryError | None:
        """Run all passes; return the error if memory ran out."""
        step = self.session.progress.step
        for self._reached, (portion, batch) in enumerate(micro_batches):
            last = self._reached == len(micro_batches) - 1
            try:
                if _places(batch) not in self.halved:
                    seed_pass(self.seed, step, portion.number, portion.piece)
                    done.append(_copied(self.passes(batch, step, last, portion.counted)))
                    continue
                for half, part in enumerate(halves(batch)):
                    seed_pass(self.seed, step, portion.number, portion.piece + half * _SECOND)
                    done.append(_copied(self.passes(part, step, last and half == 1, portion.counted)))
            except torch.OutOfMemoryError as error:
                return error.with_traceback(None)
        return None


def seed_pass(seed: int, step: int, micro: int, piece: int) -> None:
    """Seed torch for one piece of a micro-batch: dropout and the like follow from these four numbers alone."""
    torch.manual_seed((((seed * 1_000_003 + step) * 1_009 + micro) + piece * 0x9E3779B97F4A7C15) % (1 << 63))


def _places(batch: Batch) -> Shape:
    """The shape without the packing capacity, which on a CPU differs from batch to batch."""
    return shape_of(batch)[:-1]


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """The upper rows and the lower ones; packed, each with capacity for its own tokens."""
    middle = -(-len(batch.source) // 2)
    upper, lower = (
        batch.with_tensors(*(tensor[rows] for tensor in batch.tensors()))
        for rows in (slice(middle), slice(middle, None))
    )
    return _fitted(upper), _fitted(lower)


def _fitted(batch: Batch) -> Batch:
    if batch.capacity == (0, 0):
        return batch
    # On a batch that is still on the host: nothing waits for the device.
    most = max(int(batch.source_mask.sum()), int(batch.target_mask.sum()), 1)
    capacity = -(-most // _ROUND) * _ROUND
    return replace(batch, capacity=(min(capacity, batch.capacity[0]), min(capacity, batch.capacity[1])))


def _copied(loss: Loss) -> Loss:
    """Copy a loss: replayed graphs leave every loss of a shape in the same memory."""
    return Loss(loss.total.clone(), loss.count.clone(), {name: value.clone() for name, value in loss.metrics.items()})
