"""The contract of objectives: a sum, its divisor, and sums to report.

Only the loop divides, once, after adding up micro-batches and processes: the mean of means is not the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn import functional as F

from transduce.data.batch import Batch
from transduce.model.contract import Autoregressive, Memory, TrainableSeq2Seq
from transduce.text.vocabulary import Symbols


@dataclass(frozen=True)
class Loss:
    """A differentiable sum `total`, its divisor `count` (target tokens), and detached sums in `metrics`."""

    total: Tensor
    count: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)

    def uncounted(self) -> Loss:
        """A loss of zero with zero gradients and a count of 0."""
        return Loss(self.total * 0, self.count * 0, {name: value * 0 for name, value in self.metrics.items()})


class Objective(Protocol):
    """Own the forward pass: the loop never sees logits. `step` is the number of updates made so far.

    The model is of the kind that the objective needs, stepwise if it says nothing: the config has seen to it.
    """

    def __call__(self, model: Any, batch: Batch, step: int) -> Loss: ...


def _no_teacher(folder: str) -> Autoregressive:
    raise ValueError("an objective with a teacher is built with ObjectiveContext(teacher=...)")


@dataclass(frozen=True)
class ForwardOutput:
    """The result of one forward pass for an objective and its terms: states (B, T, D) of all target positions.

    `inputs` (B, T) is what the decoder read. `trace` holds the attention weights it recorded, empty if none were
    requested.
    """

    model: TrainableSeq2Seq
    batch: Batch
    inputs: Tensor
    memory: Memory
    states: Tensor
    trace: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def logits(self) -> Tensor:
        """The logits (B, T, V); large, so computed on demand."""
        return F.linear(self.states, self.model.output, self.model.output_bias)

    @cached_property
    def log_probs(self) -> Tensor:
        """Log-probabilities (B, T, V) of every token at every target position, in single precision."""
        return self.logits.float().log_softmax(-1)


def forward(
    model: TrainableSeq2Seq,
    batch: Batch,
    trace: dict[str, Tensor] | None = None,
    read: Callable[[Memory], Tensor] | None = None,
) -> ForwardOutput:
    """Run all target positions at once; the decoder reads the reference shifted by one, or what `read` gives (B, T)."""
    memory = model.encode(batch.source, batch.source_mask)  # never traced: no term reads it, and it stays fused
    inputs = batch.inputs if read is None else read(memory)
    states, _ = model.states(inputs, model.start(memory), trace, batch.target_mask)
    return ForwardOutput(model, batch, inputs, memory, states, {} if trace is None else trace)


def teacher_force(model: TrainableSeq2Seq, batch: Batch) -> Tensor:
    """The logits (B, T, V) of a teacher-forced forward pass."""
    return forward(model, batch).logits


@dataclass(frozen=True)
class ObjectiveContext:
    """What some objectives need beside model and batch: target symbols and text, and other trained models.

    Handed to `build` by the loop; an objective that uses none may be built without.
    """

    symbols: Symbols = Symbols(pad=0, bos=1, eos=2, unk=3)
    detokenize: Callable[[Sequence[int]], str] = lambda tokens: " ".join(map(str, tokens))
    teacher: Callable[[str], Autoregressive] = _no_teacher
    vocabulary: int = 0  # target tokens there are, special ones included; 0: unknown


NO_CONTEXT = ObjectiveContext()


class ObjectiveConfig(Protocol):
    """The config of an objective; `needs` names the kind of decoder it is for, where that is not "stepwise"."""

    def build(self, context: ObjectiveContext) -> Objective:
        """Build a function of model, batch and step that returns a `Loss`."""
        ...


class ObjectiveStep(nn.Module):
    """Model and objective as one module: what distributed training wraps, so that every gradient is seen."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, batch: Batch, step: int) -> Loss:
        return self.objective(self.model, batch, step)
