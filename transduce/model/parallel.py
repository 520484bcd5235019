"""A model that writes all tokens at once on a canvas of tokens, and the two ways to know how large that is.

A canvas is n places to write and the end symbol. Undecided places have a learned vector of the decoder's own, so that
no vocabulary needs a symbol for them (Ghazvininejad et al. 2019).
Shapes: B batch, S source length, T target length, C places of the canvas, L lengths, D d_model, V vocabulary.

A model that writes all tokens at once on `factor` frames for each source token, by CTC (Libovicky and Helcl 2018).

Each frame says a token or the blank; equal neighbours are one, then blanks fall away. The frames are independent given
the source, so that the probability of a translation is a sum over all ways to space it out (Graves et al. 2006).
Shapes: B batch, S source length, C = S * factor frames, T target length, D d_model, V vocabulary.

The decoder that writes all tokens at once: a Transformer decoder whose every place sees all others.

How it knows the length of what it writes is a choice, and decides which of two models it belongs to:
`ParallelSeq2Seq` or `UpsampledSeq2Seq`. Gu et al. 2018; Ghazvininejad et al. 2019; Libovicky and Helcl 2018.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from transduce.core.errors import ConfigError
from transduce.core.sizes import FEW, PLACES, check_most
from transduce.model.attention import Trace
from transduce.model.contract import UNDECIDED, Canvas, Memory
from transduce.model.encoder_decoder import Embedding, EncoderDecoder, Parts
from transduce.model.transformer import DecoderStack, WiredStack


class ParallelSeq2Seq(EncoderDecoder):
    """Source tokens and a canvas in, logits for every place of the canvas out."""

    def __init__(self, parts: Parts, length: LengthModule) -> None:
        super().__init__(parts)
        self.undecided = Embedding(1, parts.target.weight.size(1))
        self.length = length

    def lengths(self, memory: Memory) -> Tensor:
        """log p (B, L) that there are n places to write before the last end symbol."""
        log_probs: Tensor = self.length(memory)
        return log_probs

    def refine(self, canvas: Tensor, mask: Tensor, memory: Memory, trace: Trace | None = None) -> Tensor:
        """Logits (B, C, V) for canvas (B, C) of tokens or UNDECIDED; mask (B, C) is True where the canvas is."""
        written = self.target_embedding(canvas.clamp(min=0))
        x = torch.where((canvas == UNDECIDED).unsqueeze(-1), self.undecided(torch.zeros_like(canvas)), written)
        x, _ = self.decoder(x, self.decoder.start(memory), trace, mask)  # type: ignore[operator]
        return self.logits(x)

    def lay(self, memory: Memory, gold: Tensor, mask: Tensor) -> Canvas:
        """The canvas for gold (B, T), which ends in the end symbol; mask (B, T). A row without a pair has no place."""
        written = mask.sum(1) - 1  # (B,), without the end symbol; -1 in a row without a pair
        room = self.length.room(memory, written).masked_fill(written < 0, -1)
        width = max(gold.size(1), self.length.widest(memory.mask.size(1)) + 1)
        place = torch.arange(width, device=gold.device)
        end = gold.gather(1, written.clamp(min=0).unsqueeze(1))  # (B, 1)
        filled = torch.cat((gold, end.expand(-1, width - gold.size(1))), dim=1)
        return Canvas(
            gold=torch.where(place < written.unsqueeze(1), filled, end),
            mask=place <= room.unsqueeze(1),
            open=place < room.unsqueeze(1),
            log_prob=self.length.log_prob(memory, room).masked_fill(written < 0, 0.0),
        )

    def token_log_probs(self, memory: Memory, target: Tensor, mask: Tensor, trace: Trace | None = None) -> Tensor:
        """Of each token when all places are undecided; the end symbol's holds that of the length."""
        canvas = self.lay(memory, target[:, 1:], mask)
        logits = self.refine(canvas.gold.masked_fill(canvas.open, UNDECIDED), canvas.mask, memory, trace)
        log_probs = logits.float().log_softmax(-1).gather(-1, canvas.gold.unsqueeze(-1)).squeeze(-1)
        given = log_probs.where(canvas.open, log_probs.new_zeros(()))[:, : mask.size(1)]  # (B, T)
        last = torch.arange(mask.size(1), device=mask.device) == mask.sum(1, keepdim=True) - 1
        return given + canvas.log_prob.unsqueeze(1) * last


class LengthModule(nn.Module):
    """How many places to write a source gets."""

    def widest(self, source_length: int) -> int:
        """The most places that a source of so many tokens, padding included, may ask for of its own accord."""
        raise NotImplementedError

    def room(self, memory: Memory, written: Tensor) -> Tensor:
        """The places (B,) for a given translation of so many tokens (B,), the end symbol not counted."""
        raise NotImplementedError

    def log_prob(self, memory: Memory, room: Tensor) -> Tensor:
        """log p (B,) of so many places."""
        raise NotImplementedError


class ClassifiedLength(LengthModule):
    """A linear classifier on the mean of the source's states says how far the length is from what one expects."""

    def __init__(self, d_model: int, reach: int, ratio: float) -> None:
        super().__init__()
        self.reach, self.ratio = reach, ratio
        self.output = nn.Linear(d_model, 2 * reach + 1)

    def forward(self, memory: Memory) -> Tensor:
        expected = self._expected(memory).unsqueeze(1)  # (B, 1)
        length = torch.arange(int(self.ratio * memory.mask.size(1)) + self.reach + 2, device=expected.device)
        number = length - expected + self.reach  # (B, L): the class of each length
        known = (number >= 0) & (number <= 2 * self.reach)
        return self._classes(memory).gather(1, number.clamp(0, 2 * self.reach)).masked_fill(~known, -torch.inf)

    def widest(self, source_length: int) -> int:
        return 0  # a given translation has the length it has

    def room(self, memory: Memory, written: Tensor) -> Tensor:
        return written

    def log_prob(self, memory: Memory, room: Tensor) -> Tensor:
        """A length out of reach counts as the nearest one within."""
        expected = self._expected(memory)
        number = (room.maximum(expected - self.reach) - expected + self.reach).clamp(max=2 * self.reach)
        return self._classes(memory).gather(1, number.unsqueeze(1)).squeeze(1)

    def _expected(self, memory: Memory) -> Tensor:
        """(B,), from the number of source tokens without their end symbol."""
        return ((memory.mask.sum(1) - 1).clamp(min=0).double() * self.ratio).round().long()

    def _classes(self, memory: Memory) -> Tensor:
        """log p (B, 2 * reach + 1) of each difference; a length below 0 is none."""
        states, real = memory.layers[-1], memory.mask.unsqueeze(-1)
        mean = states.masked_fill(~real, 0).sum(1) / real.sum(1).clamp(min=1)  # (B, D)
        logits: Tensor = self.output(mean).float()
        difference = torch.arange(-self.reach, self.reach + 1, device=logits.device)
        below = self._expected(memory).unsqueeze(1) + difference < 0
        return logits.masked_fill(below, -torch.inf).log_softmax(-1)


class GenerousLength(LengthModule):
    """More places than a translation needs, whatever the source says; end symbols fill the rest."""

    def __init__(self, ratio: float, extra: int) -> None:
        super().__init__()
        self.ratio, self.extra = ratio, extra

    def forward(self, memory: Memory) -> Tensor:
        length = torch.arange(self.widest(memory.mask.size(1)) + 1, device=memory.mask.device)
        return torch.zeros(len(memory.mask), len(length), device=memory.mask.device).masked_fill(
            length != self._places(memory).unsqueeze(1), -torch.inf
        )

    def widest(self, source_length: int) -> int:
        return int(self.ratio * source_length) + self.extra

    def room(self, memory: Memory, written: Tensor) -> Tensor:
        """A longer translation is given the places it needs: it can be trained on and scored, though not found."""
        return self._places(memory).maximum(written)

    def log_prob(self, memory: Memory, room: Tensor) -> Tensor:
        return torch.zeros_like(room, dtype=torch.float32)

    def _places(self, memory: Memory) -> Tensor:
        return (memory.mask.sum(1).double() * self.ratio).long() + self.extra  # (B,), rounded as in `widest`


class LengthConfig(Protocol):
    """The config of how many places a parallel decoder writes."""

    @property
    def offers(self) -> str:
        """To searches and objectives: "parallel", or "ctc"."""
        ...

    def places(self, source: int, target: int) -> int:
        """Of the canvas for a batch with so many places on each side."""
        ...

    def assemble(self, parts: Parts) -> EncoderDecoder:
        """The model of a decoder with such lengths."""
        ...


@dataclass(frozen=True)
class LengthClassifier:
    """The model says how long the translation is before it writes it.

    It chooses among lengths at most `reach` tokens from `ratio` times the source's length. Ghazvininejad et al. (2019)
    choose among absolute lengths.
    """

    offers: ClassVar[str] = "parallel"
    reach: int = 64
    ratio: float = 1.0

    def __post_init__(self) -> None:
        if self.reach < 1:
            raise ConfigError(f"reach: expected at least 1, got {self.reach}")
        check_most(self, PLACES, "reach")
        check_ratio(self.ratio)

    def places(self, source: int, target: int) -> int:
        """Of the canvas for a batch with so many places on each side."""
        return target

    def assemble(self, parts: Parts) -> ParallelSeq2Seq:
        return ParallelSeq2Seq(parts, ClassifiedLength(parts.target.weight.size(1), self.reach, self.ratio))


@dataclass(frozen=True)
class CutAtEnd:
    """A canvas of `ratio` times the source's length plus `extra`; what follows the first end symbol is cut."""

    offers: ClassVar[str] = "parallel"
    ratio: float = 1.5
    extra: int = 8

    def __post_init__(self) -> None:
        check_ratio(self.ratio)
        if self.extra < 0:
            raise ConfigError(f"extra: expected 0 or more, got {self.extra}")
        check_most(self, PLACES, "extra")

    def places(self, source: int, target: int) -> int:
        """Of the canvas for a batch with so many places on each side."""
        return max(target, int(self.ratio * source) + self.extra + 1)

    def assemble(self, parts: Parts) -> ParallelSeq2Seq:
        return ParallelSeq2Seq(parts, GenerousLength(self.ratio, self.extra))


def check_ratio(ratio: float) -> None:
    if not 0 < ratio < math.inf:
        raise ConfigError(f"ratio: expected a number above 0, got {ratio}")


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


Length = LengthClassifier | CutAtEnd | Upsampled


@dataclass(frozen=True)
class ParallelDecoder(WiredStack):
    """N blocks of self-attention without a mask against looking ahead, attention to the encoder, and feed-forward."""

    kind: ClassVar[str] = "parallel"
    length: Length | LengthConfig = LengthClassifier()

    @property
    def offers(self) -> str:
        """To searches and objectives: "parallel", or "ctc"."""
        return self.length.offers

    @property
    def one_length(self) -> bool:
        """Whether a sentence has a single length to try, so that a search finds one translation of it."""
        return isinstance(self.length, CutAtEnd)

    def build(self, d_model: int, dropout: float, encoder_layers: int) -> DecoderStack:
        return DecoderStack(self, d_model, dropout, encoder_layers, causal=False)

    def assemble(self, parts: Parts) -> EncoderDecoder:
        return self.length.assemble(parts)
