"""One forward and backward pass of a micro-batch: as it is written, or replayed as a CUDA graph.

A small model spends most of a step launching kernels one by one. A graph holds all launches of the pass for one shape
of batch, and costs one. The first batch of a shape is run as it is written, the second is recorded, the rest replayed;
random draws follow the seed as they do without, so the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from transduce.data.batch import Batch
from transduce.objectives.base import Loss, Step

MOST_GRAPHS = 128  # shapes; a corpus has a few dozen that come again and again
Shape = tuple[tuple[int, ...], ...]


class Eager:
    """Adds the gradients of a micro-batch's loss to those there are; gives the loss, detached."""

    drops_gradients: ClassVar[bool] = True  # between updates; else they are set to zero where they are

    def __init__(self, module: Step, device: torch.device, bf16: bool) -> None:
        self.module, self.device, self.bf16 = module, device, bf16

    def __call__(self, batch: Batch, step: int) -> Loss:
        return self.run(batch.to(self.device), step)

    def run(self, batch: Batch, step: int) -> Loss:
        """The same for a batch that is on the device."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            loss: Loss = self.module(batch, step)
        loss.total.backward()  # type: ignore[no-untyped-call]
        return replace(loss, total=loss.total.detach())


@dataclass(frozen=True)
class Recorded:
    """A graph, the batch it reads and the loss it leaves. `kept` are tensors it reads that others might drop."""

    graph: torch.cuda.CUDAGraph
    batch: Batch
    loss: Loss
    kept: tuple[Tensor, ...]


class Graphed(Eager):
    """Replays the pass for shapes that come again.

    For objectives that do the same at every step: numbers that Python works out are recorded as they were. Gradients
    are added in place, so they are zeroed, never dropped, between updates.
    """

    drops_gradients: ClassVar[bool] = False

    def __init__(self, module: Step, device: torch.device, bf16: bool, say: Callable[[str], None]) -> None:
        super().__init__(module, device, bf16)
        self.say = say
        self.seen: set[Shape] = set()
        self.recorded: dict[Shape, Recorded] = {}
        self.pool = torch.cuda.graph_pool_handle()
        self.failed = False

    def __call__(self, batch: Batch, step: int) -> Loss:
        shape = tuple(tuple(tensor.shape) for tensor in batch.tensors())
        if shape in self.recorded:
            return self._replay(self.recorded[shape], batch)
        if shape in self.seen and not self.failed and len(self.recorded) < MOST_GRAPHS:
            self._record(shape, batch, step)
            if shape in self.recorded:
                return self._replay(self.recorded[shape], batch)
        self.seen.add(shape)
        return super().__call__(batch, step)

    def _replay(self, recorded: Recorded, batch: Batch) -> Loss:
        for place, tensor in zip(recorded.batch.tensors(), batch.tensors(), strict=True):
            place.copy_(tensor, non_blocking=True)
        recorded.graph.replay()
        return recorded.loss

    def _record(self, shape: Shape, batch: Batch, step: int) -> None:
        """Record the pass for this shape; where that cannot be done, say so once and go on without."""
        held = batch.to(self.device)
        graph = torch.cuda.CUDAGraph()
        try:
            # thread_local: the thread that makes batches may meanwhile use the device
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                loss = self.run(held, step)
        except RuntimeError as error:
            self.failed = True
            reason = str(error).split("\n")[0]
            self.say(f"training.graphs: this model's step cannot be recorded ({reason}); going on without")
            return
        self.recorded[shape] = Recorded(graph, held, loss, tuple(self.module.buffers()))
