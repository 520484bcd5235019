"""Terms added to the forward pass of cross-entropy or R-Drop, each with a weight, a last step and what it needs.

A term reads what the one forward pass of an objective left, and gives a sum over the batch in the objective's unit,
target tokens, so that its weight means the same however a batch is cut.

Guided attention pushes cross-attention toward the diagonal, or toward given word alignments. Both read the attention
weights that the decoder leaves in its trace, before any dropout on them.

Word-level distillation (Hinton et al., 2015; Kim and Rush, 2016, section 3.1): agree with a teacher at each token.

    temperature^2 * KL(teacher || student), both softened by the temperature, at each target token

The square keeps the gradient's size as the temperature grows. The papers mix, (1 - a) CE + a KD; here the term's weight
stands beside the objective's own, so that `weight = a` and `objective.weight = 1 - a` are theirs.

Shapes: B batch, S source length, T target length, V vocabulary, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.core.bounds import Bounds, NonNegativeFloat, PositiveFloat, check_bounds
from transduce.core.config import kind_of
from transduce.core.errors import ConfigError, DataError
from transduce.model.contract import Autoregressive, HasHeads
from transduce.model.seq2seq import Model
from transduce.objectives import ForwardOutput, Loss, ObjectiveContext

Added = Callable[[ForwardOutput], Tensor]


@dataclass(frozen=True)
class Weighted:
    """Settings of every term: `weight` multiplies its sum, `until` is its last step, 0 for all steps."""

    weight: NonNegativeFloat = 1.0
    until: Annotated[int, Bounds(0, expected="a step, or 0 for all of them")] = 0
    kind: ClassVar[str]  # the term's name in configs and reports
    traced: ClassVar[bool] = False  # whether the term reads a trace of the decoder
    head: ClassVar[str] = ""  # the kind of the model's head that the term trains

    def __post_init__(self) -> None:
        check_bounds(self)

    def check(self, model: Model) -> None:
        """Raise ConfigError for a model that lacks what the term needs."""
        kinds = [head.kind for head in model.heads]
        if self.head and self.head not in kinds:
            raise ConfigError(
                f"kind: this term trains a head that the model has not; set model.heads={[*kinds, self.head]}"
            )

    def active(self, step: int) -> bool:
        """Whether the term counts at this step; `step` is the number of updates made so far."""
        return not self.until or step < self.until


def read_head(output: ForwardOutput, kind: str) -> Tensor:
    """The logits of the model's head of this kind over the memory, in single precision."""
    return cast("HasHeads", output.model).heads[kind](output.memory).float()


@dataclass(frozen=True)
class Guided(Weighted):
    """Settings of guided attention: decoder `layer` from 0, or from the top if negative; `heads` of it, () for all."""

    layer: int = -1
    heads: tuple[int, ...] = ()
    traced: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(head < 0 for head in self.heads):
            raise ConfigError(f"heads: expected numbers from 0, got {list(self.heads)}")

    def check(self, model: Model) -> None:
        layers = model.decoder.layers
        if not -layers <= self.layer < layers:
            raise ConfigError(
                f"layer: expected a decoder layer from 0 to {layers - 1}, or from {-layers} to -1 counted from the top,"
                f" got {self.layer}"
            )
        heads = getattr(model.decoder, "cross_heads", None)  # of a user's own class nothing is known before it runs
        if heads is not None:
            self._check_heads(heads)

    def _check_heads(self, heads: tuple[int, ...]) -> None:
        """Raise ConfigError unless the layer attends to the source with the chosen heads (`heads`: counts a layer)."""
        count_here, looking = heads[self.layer], [layer for layer, count in enumerate(heads) if count]
        if not count_here:
            fit = f"choose layer {' or '.join(map(str, looking))}" if looking else "choose a decoder that does"
            raise ConfigError(
                f"layer: guided attention needs a layer that attends to the source, and layer {self.layer} of"
                f" model.decoder does not; {fit}, or leave the term out"
            )
        if max(self.heads, default=0) >= count_here:
            raise ConfigError(
                f"heads: expected numbers from 0 to {count_here - 1} in this layer, got {list(self.heads)}"
            )

    def attention(self, output: ForwardOutput) -> Tensor:
        """Cross-attention of the chosen layer and heads, (B, heads, T, S), in single precision."""
        layers = len({name.split(".")[1] for name in output.trace if name.startswith("decoder.")})
        weights = output.trace.get(f"decoder.{self.layer % max(1, layers)}.cross")
        if weights is None:
            raise ConfigError(
                "objective.terms: guided attention needs a decoder that attends to the source, and layer"
                f" {self.layer} of this one does not; choose another layer or decoder, or leave the term out"
            )
        if max(self.heads, default=0) >= weights.size(1):
            raise ConfigError(
                f"objective.terms: guided attention on heads {list(self.heads)}, but the layer has {weights.size(1)}"
                " (counted from 0)"
            )
        return (weights[:, list(self.heads)] if self.heads else weights).float()


@dataclass(frozen=True)
class GuidedAttention(Guided):
    """Guide attention to the diagonal (Tachibana et al., 2017): a target token pays for looking away from it.

    Looking from position t of T at position s of S costs 1 - exp(-(s/S - t/T)^2 / (2 width^2)), S and T the sentence's
    own lengths; the cost of a token is what its heads look at, on average. The paper takes the mean over all (t, s),
    which is 1/S of this, and so depends on the length of the source.
    """

    kind: ClassVar[str] = "guided_attention"
    width: PositiveFloat = 0.2

    def build(self, context: ObjectiveContext) -> Added:
        return self._loss

    def _loss(self, output: ForwardOutput) -> Tensor:
        # Of the memory, not of the source: it has fewer positions than there are frames of speech.
        cost = off_diagonal(output.memory.mask, output.batch.target_mask, self.width)
        return (self.attention(output).mean(1) * cost).sum()


def off_diagonal(source_mask: Tensor, target_mask: Tensor, width: float) -> Tensor:
    """The cost (B, T, S) of looking from each target at each source position; 0 where either is padding."""
    source, target = places(source_mask).unsqueeze(1), places(target_mask).unsqueeze(2)  # (B, 1, S), (B, T, 1)
    cost = 1 - torch.exp(-(source - target).square() / (2 * width**2))
    return cost.where(source_mask.unsqueeze(1) & target_mask.unsqueeze(2), cost.new_zeros(()))


def places(mask: Tensor) -> Tensor:
    """Relative positions 0, 1/L, 2/L ... along each row of mask (B, L'), where L counts the row's real positions."""
    count = torch.arange(mask.size(1), device=mask.device, dtype=torch.float)
    return count / mask.sum(1, keepdim=True).clamp_min(1)


@dataclass(frozen=True)
class GuidedAlignment(Guided):
    """Guide attention to given word alignments (Chen et al., 2016): -sum of a_ts log p_ts at each linked token.

    The defaults are those of Garg et al. (2019): one head of the layer below the top. Of several heads each is guided,
    and the mean is taken. Target tokens without links cost nothing.
    """

    kind: ClassVar[str] = "guided_alignment"
    weight: float = 0.05
    layer: int = -2
    heads: tuple[int, ...] = (0,)

    def build(self, context: ObjectiveContext) -> Added:
        return self._loss

    def _loss(self, output: ForwardOutput) -> Tensor:
        links = output.batch.alignment  # (B, T, S)
        if links is None:
            raise DataError(
                "objective.terms: guided_alignment needs word alignments, and the corpus has none;"
                " give `transduce prepare` a file of them in Pharaoh format, train.alignment=FILE"
            )
        weights = self.attention(output)
        logs = weights.clamp_min(torch.finfo(weights.dtype).tiny).log().mean(1)  # (B, T, S)
        return -(links * logs).sum()


@dataclass(frozen=True)
class Distillation(Weighted):
    """Distil from `teacher`, a run folder; its tokenizer must be the student's own."""

    kind: ClassVar[str] = "distillation"
    teacher: str = ""
    temperature: PositiveFloat = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.teacher:
            raise ConfigError("teacher: expected the run folder of a trained model, such as runs/teacher, got ''")

    def build(self, context: ObjectiveContext) -> Added:
        teacher = context.teacher(self.teacher)
        return lambda output: self._loss(output, teacher)

    def _loss(self, output: ForwardOutput, teacher: Autoregressive) -> Tensor:
        batch = output.batch
        with torch.no_grad():
            memory = teacher.encode(batch.source, batch.source_mask)
            logits, _ = teacher.advance(output.inputs, teacher.start(memory), mask=batch.target_mask)
            wanted = (logits.float() / self.temperature).log_softmax(-1)  # (B, T, V)
        student = output.log_probs
        if self.temperature != 1:
            student = (student / self.temperature).log_softmax(-1)
        divergence = F.kl_div(student, wanted, reduction="none", log_target=True).sum(-1)  # (B, T)
        return self.temperature**2 * divergence.where(batch.target_mask, divergence.new_zeros(())).sum()


@dataclass(frozen=True)
class CTC(Weighted):
    """-log p(target) under the model's CTC head (Graves et al., 2006): the sum over all ways to space the tokens out.

    The end symbol is no part of it. A target with too few frames (see the head's `upsample`) adds nothing.
    """

    kind: ClassVar[str] = "ctc"
    head: ClassVar[str] = "ctc"
    weight: float = 0.3

    def build(self, context: ObjectiveContext) -> Added:
        return ctc_loss


def ctc_loss(output: ForwardOutput) -> Tensor:
    """The CTC loss summed over sentences; one wait a batch on a GPU, since torch wants the lengths on the host."""
    log_probs = read_head(output, "ctc").log_softmax(-1)  # (B, S * upsample, V + 1)
    mask = output.memory.mask
    frames = mask.sum(1) * (log_probs.size(1) // mask.size(1))
    tokens = (output.batch.target_mask.sum(1) - 1).clamp(min=0)  # gold ends in eos, or the row holds no pair
    blank = log_probs.size(2) - 1
    return F.ctc_loss(
        log_probs.transpose(0, 1), output.batch.gold, frames, tokens, blank, reduction="sum", zero_infinity=True
    )


@dataclass(frozen=True)
class Length(Weighted):
    """-log p(length of the target) under the model's length head, once a sentence, as if it were one more token."""

    kind: ClassVar[str] = "length"
    head: ClassVar[str] = "length"
    weight: float = 0.1

    def build(self, context: ObjectiveContext) -> Added:
        return length_loss


def length_loss(output: ForwardOutput) -> Tensor:
    """The length loss summed over sentences; a target longer than the last class is of that class."""
    logits = read_head(output, "length")  # (B, longest + 1)
    length = (output.batch.target_mask.sum(1) - 1).clamp_max(logits.size(1) - 1)  # -1 in rows without a pair
    return F.cross_entropy(logits, length, reduction="sum", ignore_index=-1)


@dataclass(frozen=True)
class ZLoss(Weighted):
    """(log Z)^2 at every target token, Z the softmax's normaliser: keeps logits from drifting (PaLM, section 5)."""

    kind: ClassVar[str] = "z_loss"
    weight: float = 1e-4

    def build(self, context: ObjectiveContext) -> Added:
        return z_loss


def z_loss(output: ForwardOutput) -> Tensor:
    """The z-loss summed over target tokens."""
    squared = output.logits.float().logsumexp(-1).square()  # (B, T)
    return squared.where(output.batch.target_mask, squared.new_zeros(())).sum()


class TermConfig(Protocol):
    """The config of a term. One that derives from `Weighted` has all of this but `build`."""

    @property
    def weight(self) -> float:
        """Factor of the term's sum."""
        ...

    @property
    def traced(self) -> bool:
        """Whether the term reads a trace of the decoder."""
        ...

    def check(self, model: Model) -> None:
        """Refuse, with ConfigError, a model that lacks what the term needs."""
        ...

    def active(self, step: int) -> bool:
        """Whether the update after `step` others has the term."""
        ...

    def build(self, context: ObjectiveContext) -> Added:
        """A function from what a forward pass left to a differentiable sum over the batch, in target tokens."""
        ...


Term = GuidedAttention | GuidedAlignment | CTC | Length | ZLoss | Distillation


class Terms:
    """The built terms of an objective."""

    def __init__(self, configs: Sequence[Term | TermConfig], context: ObjectiveContext) -> None:
        self._terms = [(config, config.build(context)) for config in configs]

    def trace(self, step: int) -> dict[str, Tensor] | None:
        """An empty trace to fill, if a term of this step reads one (attention then cannot be fused), else None."""
        return {} if any(config.traced and config.active(step) for config, _ in self._terms) else None

    def add(self, loss: Loss, output: ForwardOutput, step: int) -> Loss:
        """Add the terms of this step to the loss; each reports its own sum, before its weight."""
        total, metrics = loss.total, dict(loss.metrics)
        for number, (config, term) in enumerate(self._terms):
            if config.active(step):
                value = term(output)
                total = total + config.weight * value
                name = kind_of(type(config))
                metrics[name if name not in metrics else f"{name}_{number}"] = value.detach()
        return Loss(total, loss.count, metrics)
