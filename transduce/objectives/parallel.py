"""Objectives of parallel decoders: masked prediction (CMLM) and CTC over upsampled frames.

Masked prediction (Ghazvininejad et al. 2019): the decoder fills in the positions of a canvas that are hidden from it;
a masking strategy chooses them, and the others hold the reference. CTC (Graves et al. 2006; Libovicky and Helcl 2018;
with glancing Gu and Kong 2021): -log of the sum over all ways to space the target out.
Shapes: B batch, C positions of the canvas (or frames), T target length, V vocabulary, whose size is the blank's number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.core.bounds import BelowOne, Bounds, NonNegativeFloat, PositiveInt, check_bounds
from transduce.data.batch import Batch
from transduce.model.contract import UNDECIDED, NonAutoregressive, TokenCanvasModel
from transduce.objectives import NO_CONTEXT, Loss, Objective, ObjectiveContext
from transduce.objectives.cross_entropy import smoothed_loss


@dataclass(frozen=True)
class Uniform:
    """Hide a number of positions drawn uniformly from 1 to all (Ghazvininejad et al. 2019), for refinement."""

    def masked(self, places: Tensor, wrong: Callable[[], Tensor], step: int) -> Tensor:
        """The positions (B, C) to predict out of `places` (B, C); `wrong()` (B, C): where a first pass errs."""
        count = places.sum(1)
        drawn = (torch.rand(len(count), device=count.device) * count).long() + 1  # 1 .. count
        return draw(places, drawn)


@dataclass(frozen=True)
class Everything:
    """Hide all positions (Gu et al. 2018), for decoding in one pass."""

    def masked(self, places: Tensor, wrong: Callable[[], Tensor], step: int) -> Tensor:
        return places


@dataclass(frozen=True)
class Glancing:
    """Hide all but a random share, as many as a fraction of those a first pass gets wrong (GLAT, Qian et al. 2021).

    For decoding in one pass: the revealed tokens help with the hidden ones, and fewer are revealed the more the model
    knows. The share falls linearly from `first` to `last` within `steps` steps.
    """

    first: Annotated[float, Bounds(0, 1, expected="a share from 0 to 1")] = 0.5
    last: Annotated[float, Bounds(0, 1, expected="a share from 0 to 1")] = 0.3
    steps: PositiveInt = 50_000

    def __post_init__(self) -> None:
        check_bounds(self)

    def masked(self, places: Tensor, wrong: Callable[[], Tensor], step: int) -> Tensor:
        return places & ~self.revealed(wrong() & places, places, step)

    def revealed(self, wrong: Tensor, among: Tensor, step: int) -> Tensor:
        """The positions (B, C) to reveal: `share` times the count of `wrong` (B, C), any of `among` (B, C)."""
        share = self.first + (self.last - self.first) * min(1.0, step / self.steps)
        return draw(among, (wrong.sum(1) * share).long())


def draw(among: Tensor, count: Tensor) -> Tensor:
    """Choose `count` (B,) positions a row uniformly among those that are True (B, C)."""
    chance = torch.rand(among.shape, device=among.device).masked_fill(~among, 2.0)
    return (chance.argsort(dim=1).argsort(dim=1) < count.unsqueeze(1)) & among


@dataclass(frozen=True)
class MaskedPrediction:
    """Smoothed cross-entropy of hidden positions, plus `length_weight` times that of the length, once a sentence.

    The count is that of the hidden positions, so that reports are means over the predicted tokens.
    """

    needs: ClassVar[str] = "parallel"  # of a decoder (search/settings.py)

    label_smoothing: BelowOne = 0.1
    length_weight: NonNegativeFloat = 0.1
    masking: Uniform | Everything | Glancing = Uniform()

    def __post_init__(self) -> None:
        check_bounds(self)

    def build(self, context: ObjectiveContext = NO_CONTEXT) -> Objective:
        return self._loss

    def _loss(self, model: TokenCanvasModel, batch: Batch, step: int) -> Loss:
        memory = model.encode(batch.source, batch.source_mask)
        canvas = model.build_canvas(memory, batch.gold, batch.target_mask)

        def wrong() -> Tensor:
            with torch.no_grad():
                guess = model.refine(canvas.gold.masked_fill(canvas.open, UNDECIDED), canvas.mask, memory)
            return guess.argmax(-1) != canvas.gold

        hidden = self.masking.masked(canvas.open, wrong, step)  # (B, C)
        logits = model.refine(canvas.gold.masked_fill(hidden, UNDECIDED), canvas.mask, memory)
        words = smoothed_loss(logits.float().log_softmax(-1), canvas.gold, hidden, self.label_smoothing)
        length = -canvas.log_prob.sum()
        metrics = {**words.metrics, "length": length.detach()}
        return Loss(words.total + self.length_weight * length, words.count, metrics)


@dataclass(frozen=True)
class ParallelCTC:
    """CTC loss of a parallel decoder; the count is target tokens with their end symbol, as in other objectives.

    CTC itself has no end symbol. A target with more tokens than frames adds nothing; the metric `too_long` counts such
    sentences.
    """

    kind: ClassVar[str] = "parallel_ctc"
    needs: ClassVar[str] = "ctc"  # of a decoder (search/settings.py)

    masking: Everything | Glancing = Everything()

    def build(self, context: ObjectiveContext = NO_CONTEXT) -> Objective:
        return self._loss

    def _loss(self, model: NonAutoregressive, batch: Batch, step: int) -> Loss:
        memory = model.encode(batch.source, batch.source_mask)
        lengths = model.lengths(memory)
        frames = lengths.argmax(1)  # (B,)
        mask = torch.arange(lengths.size(1) - 1, device=frames.device) < frames.unsqueeze(1)  # (B, C)
        canvas = torch.full_like(mask, UNDECIDED, dtype=torch.int64)
        if isinstance(self.masking, Glancing):
            with torch.no_grad():
                guess = model.refine(canvas, mask, memory).float().log_softmax(-1)
            right = align(guess, batch, frames)
            shown = self.masking.revealed((guess.argmax(-1) != right) & mask, mask, step)
            canvas = right.where(shown, canvas)
        log_probs = model.refine(canvas, mask, memory).float().log_softmax(-1)
        total = ctc(log_probs, batch, frames)
        metrics = {"nll": total.detach(), "too_long": (needed(batch) > frames).sum()}
        return Loss(total, batch.target_mask.sum(), metrics)


def ctc(log_probs: Tensor, batch: Batch, frames: Tensor) -> Tensor:
    """The sum of -log p of the targets that have enough frames: log_probs (B, C, V + 1), frames (B,)."""
    tokens = (batch.target_mask.sum(1) - 1).clamp(min=0)  # without the end symbol, if the row holds a pair
    blank = log_probs.size(-1) - 1
    return F.ctc_loss(log_probs.transpose(0, 1), batch.gold, frames, tokens, blank, reduction="sum", zero_infinity=True)


def needed(batch: Batch) -> Tensor:
    """The minimum frames (B,) for each target: one a token, and a blank between two equal ones."""
    gold, mask = batch.gold, batch.target_mask
    return mask.sum(1) - 1 + ((gold[:, 1:] == gold[:, :-1]) & mask[:, 1:]).sum(1)


def align(log_probs: Tensor, batch: Batch, frames: Tensor) -> Tensor:
    """The most probable token of each frame (B, C), given that all frames together spell the target.

    Gu and Kong take the most probable path; this takes each frame's most probable token over all paths, which CTC's
    gradient holds: with respect to the logits it is what the model says less what the target wants.
    """
    with torch.enable_grad():
        given = log_probs.detach().requires_grad_()
        (difference,) = torch.autograd.grad(ctc(given, batch, frames), given)
    return (log_probs.exp() - difference).argmax(-1)
