"""Guided attention: cross-attention pushed toward the diagonal, or toward given word alignments.

Both read the attention weights that the decoder leaves in its trace, before any dropout on them.
Shapes: B batch, S source length, T target length, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from transduce.errors import ConfigError, DataError
from transduce.model.seq2seq import Model
from transduce.objectives.base import ForwardOutput, ObjectiveContext
from transduce.objectives.weighted import Added, Weighted


@dataclass(frozen=True)
class Guided(Weighted):
    """`layer` of the decoder counts from 0, or from the top when negative; `heads` of it, () for all."""

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
        """Of a decoder that looks at the source by so many heads in each layer."""
        own, looking = heads[self.layer], [layer for layer, count in enumerate(heads) if count]
        if not own:
            fit = f"choose layer {' or '.join(map(str, looking))}" if looking else "choose a decoder that does"
            raise ConfigError(
                f"layer: guided attention needs a layer that attends to the source, and layer {self.layer} of"
                f" model.decoder does not; {fit}, or leave the term out"
            )
        if max(self.heads, default=0) >= own:
            raise ConfigError(f"heads: expected numbers from 0 to {own - 1} in this layer, got {list(self.heads)}")

    def attention(self, passed: ForwardOutput) -> Tensor:
        """Cross-attention of the chosen layer and heads, (B, heads, T, S), in single precision."""
        layers = len({name.split(".")[1] for name in passed.trace if name.startswith("decoder.")})
        weights = passed.trace.get(f"decoder.{self.layer % max(1, layers)}.cross")
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
    """Toward the diagonal (Tachibana et al., 2017): a target token pays for looking away from its place in the source.

    Looking from place t of T at place s of S costs 1 - exp(-(s/S - t/T)^2 / (2 width^2)), S and T the sentence's own
    lengths; the cost of a token is what its heads look at, on average. The paper takes the mean over all (t, s), which
    is 1/S of this, and so depends on the length of the source.
    """

    kind: ClassVar[str] = "guided_attention"
    width: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.width > 0:
            raise ConfigError(f"width: expected a number above 0, got {self.width}")

    def build(self, tools: ObjectiveContext) -> Added:
        return self._loss

    def _loss(self, passed: ForwardOutput) -> Tensor:
        # Of the memory, not of the source: it has fewer places than there are frames of speech.
        cost = off_diagonal(passed.memory.mask, passed.batch.target_mask, self.width)
        return (self.attention(passed).mean(1) * cost).sum()


def off_diagonal(source_mask: Tensor, target_mask: Tensor, width: float) -> Tensor:
    """What looking from each target place at each source place costs (B, T, S); nothing where either is padding."""
    source, target = places(source_mask).unsqueeze(1), places(target_mask).unsqueeze(2)  # (B, 1, S), (B, T, 1)
    cost = 1 - torch.exp(-(source - target).square() / (2 * width**2))
    return cost.where(source_mask.unsqueeze(1) & target_mask.unsqueeze(2), cost.new_zeros(()))


def places(mask: Tensor) -> Tensor:
    """0, 1/L, 2/L ... along each row of mask (B, L'), where L counts what is real in that row."""
    count = torch.arange(mask.size(1), device=mask.device, dtype=torch.float)
    return count / mask.sum(1, keepdim=True).clamp_min(1)


@dataclass(frozen=True)
class GuidedAlignment(Guided):
    """Toward the corpus's word alignments (Chen et al., 2016): -sum of a_ts log p_ts at each target token with links.

    The defaults are those of Garg et al. (2019): one head of the layer below the top. Of several heads each is guided,
    and the mean is taken. Target tokens without links cost nothing.
    """

    kind: ClassVar[str] = "guided_alignment"
    weight: float = 0.05
    layer: int = -2
    heads: tuple[int, ...] = (0,)

    def build(self, tools: ObjectiveContext) -> Added:
        return self._loss

    def _loss(self, passed: ForwardOutput) -> Tensor:
        links = passed.batch.alignment  # (B, T, S)
        if links is None:
            raise DataError(
                "objective.terms: guided_alignment needs word alignments, and the corpus has none;"
                " give `transduce prepare` a file of them in Pharaoh format, train.alignment=FILE"
            )
        weights = self.attention(passed)
        logs = weights.clamp_min(torch.finfo(weights.dtype).tiny).log().mean(1)  # (B, T, S)
        return -(links * logs).sum()
