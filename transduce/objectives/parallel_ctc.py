"""CTC for a parallel decoder on upsampled frames: -log of the sum over all ways to space the target out.

Graves et al. 2006; Libovicky and Helcl 2018; with glancing Gu and Kong 2021.
Shapes: B batch, C frames, T target length, V vocabulary, whose size is the blank's number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.data.batch import Batch
from transduce.model.contract import UNDECIDED, NonAutoregressive
from transduce.objectives.base import NO_CONTEXT, Loss, Objective, ObjectiveContext
from transduce.objectives.masking import Everything, Glancing


@dataclass(frozen=True)
class ParallelCTC:
    """The count is that of the target's tokens with their end symbol, as in other objectives, though CTC says none.

    A target with more tokens than frames adds nothing; the metric `too_long` counts such sentences.
    """

    kind: ClassVar[str] = "parallel_ctc"
    needs: ClassVar[str] = "ctc"  # of a decoder (search/fit.py)

    masking: Everything | Glancing = Everything()

    def build(self, tools: ObjectiveContext = NO_CONTEXT) -> Objective:
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
            told = self.masking.revealed((guess.argmax(-1) != right) & mask, mask, step)
            canvas = right.where(told, canvas)
        log_probs = model.refine(canvas, mask, memory).float().log_softmax(-1)
        total = ctc(log_probs, batch, frames)
        metrics = {"nll": total.detach(), "too_long": (needed(batch) > frames).sum()}
        return Loss(total, batch.target_mask.sum(), metrics)


def ctc(log_probs: Tensor, batch: Batch, frames: Tensor) -> Tensor:
    """The sum of -log p of the targets that have frames enough: log_probs (B, C, V + 1), frames (B,)."""
    tokens = (batch.target_mask.sum(1) - 1).clamp(min=0)  # without the end symbol, if the row holds a pair
    blank = log_probs.size(-1) - 1
    return F.ctc_loss(log_probs.transpose(0, 1), batch.gold, frames, tokens, blank, reduction="sum", zero_infinity=True)


def needed(batch: Batch) -> Tensor:
    """The fewest frames (B,) that can say each target: one a token, and one between two that are the same."""
    gold, mask = batch.gold, batch.target_mask
    return mask.sum(1) - 1 + ((gold[:, 1:] == gold[:, :-1]) & mask[:, 1:]).sum(1)


def align(log_probs: Tensor, batch: Batch, frames: Tensor) -> Tensor:
    """What each frame (B, C) most probably says if all together say the target.

    Gu and Kong take the most probable path; this takes each frame's most probable token over all paths, which CTC's
    gradient holds: with respect to the logits it is what the model says less what the target wants.
    """
    with torch.enable_grad():
        given = log_probs.detach().requires_grad_()
        (difference,) = torch.autograd.grad(ctc(given, batch, frames), given)
    return (log_probs.exp() - difference).argmax(-1)
