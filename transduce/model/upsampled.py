"""A model that writes all tokens at once on `factor` frames for each source token, by CTC (Libovicky and Helcl 2018).

Each frame says a token or the blank; equal neighbours are one, then blanks fall away. The frames are independent given
the source, so that the probability of a translation is a sum over all ways to space it out (Graves et al. 2006).
Shapes: B batch, S source length, C = S * factor frames, T target length, D d_model, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from transduce.errors import ConfigError
from transduce.model.attention import Trace
from transduce.model.contract import UNDECIDED, Memory
from transduce.model.whole import Embedding, EncoderDecoder, Parts
from transduce.sizes import FEW, check_most


class UpsampledSeq2Seq(EncoderDecoder):
    """Source tokens in, logits over the vocabulary and the blank (number V) for every frame out."""

    def __init__(self, parts: Parts, factor: int) -> None:
        super().__init__(parts)
        d_model = parts.target.weight.size(1)
        self.factor = factor
        self.split = nn.Linear(d_model, factor * d_model)  # an undecided frame begins as its share of a source state
        self.blank = Embedding(1, d_model)

    def stacked(self) -> dict[Tensor, int]:
        """The map to each frame of a source state."""
        return {self.split.weight: self.factor}

    def lengths(self, memory: Memory) -> Tensor:
        """log p (B, L) that there are n frames: 0 for the one number that there are."""
        frames = torch.arange(memory.mask.size(1) * self.factor + 1, device=memory.mask.device)
        certain = torch.zeros(len(memory.mask), len(frames), device=memory.mask.device)
        return certain.masked_fill(frames != memory.mask.sum(1, keepdim=True) * self.factor, -torch.inf)

    def refine(self, canvas: Tensor, mask: Tensor, memory: Memory, trace: Trace | None = None) -> Tensor:
        """Logits (B, C, V + 1) for canvas (B, C) of tokens, blanks or UNDECIDED; mask (B, C) True at real frames.

        C may be less than S * factor where the rest would be padding.
        """
        vocabulary = self.target_embedding.weight.size(0)
        states = memory.layers[-1]
        frames = self.split(states).view(len(states), -1, states.size(2))[:, : canvas.size(1)]  # (B, C, D)
        said = self.target_embedding(canvas.clamp(0, vocabulary - 1))
        said = torch.where((canvas == vocabulary).unsqueeze(-1), self.blank(torch.zeros_like(canvas)), said)
        x = torch.where((canvas == UNDECIDED).unsqueeze(-1), frames, said)
        x, _ = self.decoder(x, self.decoder.start(memory), trace, mask)  # type: ignore[operator]
        return torch.cat((self.logits(x), self.blank.logits(x)), dim=-1)

    def token_log_probs(self, memory: Memory, target: Tensor, mask: Tensor, trace: Trace | None = None) -> Tensor:
        """log P(begins with y_1 .. y_i) - log P(begins with y_1 .. y_i-1); the end symbol's is what the whole lacks."""
        real = memory.mask.repeat_interleave(self.factor, dim=1)  # (B, C)
        undecided = torch.full_like(real, UNDECIDED, dtype=torch.int64)
        log_probs = self.refine(undecided, real, memory, trace).float().log_softmax(-1)
        entered, whole = entry_log_probs(log_probs, real, target[:, 1:], mask)
        if trace is not None:
            self._by_token(trace, entered)
        begun = entered.logsumexp(-1)  # (B, T): whatever follows a beginning has probability 1
        before = torch.cat((torch.zeros_like(begun[:, :1]), begun[:, :-1]), dim=1)  # (B, T)
        last = torch.arange(mask.size(1), device=mask.device) == mask.sum(1, keepdim=True) - 1
        parts = torch.where(last, whole.unsqueeze(1), begun) - before
        return parts.where(before > -torch.inf, torch.zeros_like(parts)).float()  # after the impossible nothing counts

    def _by_token(self, trace: Trace, entered: Tensor) -> None:
        """Where each token looks (B, H, T, S): where the frames look that may begin it, by their probabilities."""
        share = entered.softmax(-1).nan_to_num()  # (B, T, C)
        for name, weights in trace.items():
            if name.startswith("decoder.") and name.endswith(".cross"):
                trace[name] = torch.einsum("btc,bhcs->bhts", share.to(weights.dtype), weights)


def entry_log_probs(log_probs: Tensor, real: Tensor, gold: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """log P that frame c begins token i after those before it (B, T, C), and that all tokens are said (B,), in float64.

    log_probs (B, C, V + 1), real (B, C) True at frames that are there, gold and mask (B, T) with the end symbol, which
    is no part of what is said. Frames are independent, so that what is said begins with the first i tokens with the
    sum over frames of the i-th row.
    """
    batch, tokens = gold.shape
    frames = log_probs.double()
    gold = gold.masked_fill(~mask, 0)
    fresh = torch.ones_like(gold, dtype=torch.bool)  # whether a token may follow the one before without a blank
    fresh[:, 1:] = gold[:, 1:] != gold[:, :-1]
    never = frames.new_full((batch, tokens), -torch.inf)
    # Ways to have said i tokens, i = 0 .. T - 1: ending in a blank (or at the very beginning), ending in token i.
    blank, token = torch.cat((frames.new_zeros(batch, 1), never[:, 1:]), dim=1), never
    found: list[Tensor] = []
    for number in range(frames.size(1)):
        frame, there = frames[:, number], real[:, number, None]
        said = frame.gather(1, gold)  # (B, T): token i + 1 in column i
        entered = said + torch.logaddexp(blank, token.masked_fill(~fresh, -torch.inf))
        found.append(torch.where(there, entered, never))
        stayed = torch.cat((never[:, :1], token[:, 1:] + said[:, :-1]), dim=1)
        arrived = torch.cat((never[:, :1], entered[:, :-1]), dim=1)
        rested = torch.logaddexp(blank, token) + frame[:, -1:]
        blank = torch.where(there, rested, blank)
        token = torch.where(there, torch.logaddexp(stayed, arrived), token)
    said_all = torch.logaddexp(blank, token).gather(1, mask.sum(1, keepdim=True) - 1).squeeze(1)
    return torch.stack(found, dim=-1), said_all


@dataclass(frozen=True)
class Upsampled:
    """`factor` frames for each source token, its end symbol included; CTC needs one for every target token."""

    offers: ClassVar[str] = "ctc"
    factor: int = 3

    def __post_init__(self) -> None:
        if self.factor < 1:
            raise ConfigError(f"factor: expected at least 1, got {self.factor}")
        check_most(self, FEW, "factor")

    def places(self, source: int, target: int) -> int:
        """Of the canvas for a batch with so many places on each side."""
        return self.factor * source

    def assemble(self, parts: Parts) -> UpsampledSeq2Seq:
        return UpsampledSeq2Seq(parts, self.factor)
