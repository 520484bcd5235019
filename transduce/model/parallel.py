"""Non-autoregressive models: a decoder predicts all tokens at once, on a canvas of tokens or on CTC frames.

A canvas has n positions to write and the end symbol. Undecided positions have a learned vector of the decoder's own, so
that no vocabulary needs a mask symbol (Ghazvininejad et al. 2019).
Shapes: B batch, S source length, T target length, C positions of the canvas, L lengths, D d_model, V vocabulary.

The CTC model predicts `factor` frames for each source token (Libovicky and Helcl 2018). Each frame is a token or the
blank; equal neighbours are merged, then blanks removed. Frames are independent given the source, so the probability of
a translation is a sum over all alignments (Graves et al. 2006).
Shapes: C = S * factor frames.

`ParallelDecoder` is a Transformer decoder without a causal mask. How it knows the length of its output is a choice,
which decides between the two models. Gu et al. 2018; Ghazvininejad et al. 2019; Libovicky and Helcl 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol

import torch
from torch import Tensor, nn

from transduce.core.bounds import FEW, PLACES, Bounds, PositiveFloat, check_bounds
from transduce.model.attention import Trace
from transduce.model.contract import UNDECIDED, Canvas, Memory
from transduce.model.encoder_decoder import Embedding, EncoderDecoder, Parts
from transduce.model.transformer import DecoderStack, WiredStack


class ParallelSeq2Seq(EncoderDecoder):
    """Non-autoregressive model: source tokens and a canvas in, logits for every position of the canvas out."""

    def __init__(self, parts: Parts, length: LengthModule) -> None:
        super().__init__(parts)
        self.undecided = Embedding(1, parts.target.weight.size(1))
        self.length = length

    def lengths(self, memory: Memory) -> Tensor:
        """Log p (B, L) of n positions to write before the last end symbol."""
        log_probs: Tensor = self.length(memory)
        return log_probs

    def refine(self, canvas: Tensor, mask: Tensor, memory: Memory, trace: Trace | None = None) -> Tensor:
        """Logits (B, C, V) for canvas (B, C) of tokens or UNDECIDED; mask (B, C) is True at real positions."""
        written = self.target_embedding(canvas.clamp(min=0))
        x = torch.where((canvas == UNDECIDED).unsqueeze(-1), self.undecided(torch.zeros_like(canvas)), written)
        x, _ = self.decoder(x, self.decoder.start(memory), trace, mask)  # type: ignore[operator]
        return self.logits(x)

    def build_canvas(self, memory: Memory, gold: Tensor, mask: Tensor) -> Canvas:
        """Build the canvas for gold (B, T), which ends in the end symbol; mask (B, T). Empty rows get no position."""
        written = mask.sum(1) - 1  # (B,), without the end symbol; -1 in a row without a pair
        count = self.length.count(memory, written).masked_fill(written < 0, -1)
        width = max(gold.size(1), self.length.widest(memory.mask.size(1)) + 1)
        position = torch.arange(width, device=gold.device)
        end_symbol = gold.gather(1, written.clamp(min=0).unsqueeze(1))  # (B, 1)
        filled = torch.cat((gold, end_symbol.expand(-1, width - gold.size(1))), dim=1)
        return Canvas(
            gold=torch.where(position < written.unsqueeze(1), filled, end_symbol),
            mask=position <= count.unsqueeze(1),
            open=position < count.unsqueeze(1),
            log_prob=self.length.log_prob(memory, count).masked_fill(written < 0, 0.0),
        )

    def token_log_probs(self, memory: Memory, target: Tensor, mask: Tensor, trace: Trace | None = None) -> Tensor:
        """Log p of each token when all positions are undecided; the end symbol's entry is that of the length."""
        canvas = self.build_canvas(memory, target[:, 1:], mask)
        logits = self.refine(canvas.gold.masked_fill(canvas.open, UNDECIDED), canvas.mask, memory, trace)
        log_probs = logits.float().log_softmax(-1).gather(-1, canvas.gold.unsqueeze(-1)).squeeze(-1)
        token_log_probs = log_probs.where(canvas.open, log_probs.new_zeros(()))[:, : mask.size(1)]  # (B, T)
        last = torch.arange(mask.size(1), device=mask.device) == mask.sum(1, keepdim=True) - 1
        return token_log_probs + canvas.log_prob.unsqueeze(1) * last


class LengthModule(nn.Module):
    """Chooses the number of positions to write for a source."""

    def widest(self, source_length: int) -> int:
        """The most positions that a source of so many tokens, padding included, may get."""
        raise NotImplementedError

    def count(self, memory: Memory, written: Tensor) -> Tensor:
        """The positions (B,) for a given translation of so many tokens (B,), without the end symbol."""
        raise NotImplementedError

    def log_prob(self, memory: Memory, count: Tensor) -> Tensor:
        """Log p (B,) of so many positions."""
        raise NotImplementedError


class ClassifiedLength(LengthModule):
    """A linear classifier on the mean of the source's states, over differences from the expected length."""

    def __init__(self, d_model: int, reach: int, ratio: float) -> None:
        super().__init__()
        self.reach, self.ratio = reach, ratio
        self.output = nn.Linear(d_model, 2 * reach + 1)

    def forward(self, memory: Memory) -> Tensor:
        expected = self._expected(memory).unsqueeze(1)  # (B, 1)
        length = torch.arange(int(self.ratio * memory.mask.size(1)) + self.reach + 2, device=expected.device)
        length_class = length - expected + self.reach  # (B, L): the class of each length
        known = (length_class >= 0) & (length_class <= 2 * self.reach)
        return self._classes(memory).gather(1, length_class.clamp(0, 2 * self.reach)).masked_fill(~known, -torch.inf)

    def widest(self, source_length: int) -> int:
        return 0  # a given translation keeps its own length

    def count(self, memory: Memory, written: Tensor) -> Tensor:
        return written

    def log_prob(self, memory: Memory, count: Tensor) -> Tensor:
        """Log p (B,) of a length; one out of reach counts as the nearest one within."""
        expected = self._expected(memory)
        length_class = (count.maximum(expected - self.reach) - expected + self.reach).clamp(max=2 * self.reach)
        return self._classes(memory).gather(1, length_class.unsqueeze(1)).squeeze(1)

    def _expected(self, memory: Memory) -> Tensor:
        """Expected length (B,), from the number of source tokens without their end symbol."""
        return ((memory.mask.sum(1) - 1).clamp(min=0).double() * self.ratio).round().long()

    def _classes(self, memory: Memory) -> Tensor:
        """Log p (B, 2 * reach + 1) of each difference; negative lengths are excluded."""
        states, real = memory.layers[-1], memory.mask.unsqueeze(-1)
        mean = states.masked_fill(~real, 0).sum(1) / real.sum(1).clamp(min=1)  # (B, D)
        logits: Tensor = self.output(mean).float()
        difference = torch.arange(-self.reach, self.reach + 1, device=logits.device)
        below = self._expected(memory).unsqueeze(1) + difference < 0
        return logits.masked_fill(below, -torch.inf).log_softmax(-1)


class GenerousLength(LengthModule):
    """More positions than a translation needs, by a fixed ratio; end symbols fill the rest."""

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

    def count(self, memory: Memory, written: Tensor) -> Tensor:
        """The fixed number, raised for a longer translation: it can be trained on and scored, though not generated."""
        return self._places(memory).maximum(written)

    def log_prob(self, memory: Memory, count: Tensor) -> Tensor:
        return torch.zeros_like(count, dtype=torch.float32)

    def _places(self, memory: Memory) -> Tensor:
        return (memory.mask.sum(1).double() * self.ratio).long() + self.extra  # (B,), rounded as in `widest`


class LengthConfig(Protocol):
    """Config of the canvas length of a parallel decoder."""

    @property
    def offers(self) -> str:
        """Capability offered to searches and objectives: "parallel" or "ctc"."""
        ...

    def places(self, source: int, target: int) -> int:
        """Return the canvas length for a batch with `source` and `target` positions."""
        ...

    def assemble(self, parts: Parts) -> EncoderDecoder:
        """Assemble the model of a decoder with this length config."""
        ...


@dataclass(frozen=True)
class LengthClassifier:
    """The model predicts the length of the translation before it writes it.

    It chooses among lengths at most `reach` tokens from `ratio` times the source's length. Ghazvininejad et al. (2019)
    choose among absolute lengths.
    """

    offers: ClassVar[str] = "parallel"
    reach: Annotated[int, Bounds(1, PLACES)] = 64
    ratio: PositiveFloat = 1.0

    def __post_init__(self) -> None:
        check_bounds(self)

    def places(self, source: int, target: int) -> int:
        """Canvas size for a batch of such source and target lengths."""
        return target

    def assemble(self, parts: Parts) -> ParallelSeq2Seq:
        return ParallelSeq2Seq(parts, ClassifiedLength(parts.target.weight.size(1), self.reach, self.ratio))


@dataclass(frozen=True)
class CutAtEnd:
    """A canvas of `ratio` times the source's length plus `extra`; output after the first end symbol is cut."""

    offers: ClassVar[str] = "parallel"
    ratio: PositiveFloat = 1.5
    extra: Annotated[int, Bounds(0, PLACES)] = 8

    def __post_init__(self) -> None:
        check_bounds(self)

    def places(self, source: int, target: int) -> int:
        """Canvas size for a batch of such source and target lengths."""
        return max(target, int(self.ratio * source) + self.extra + 1)

    def assemble(self, parts: Parts) -> ParallelSeq2Seq:
        return ParallelSeq2Seq(parts, GenerousLength(self.ratio, self.extra))


class UpsampledSeq2Seq(EncoderDecoder):
    """CTC model: source tokens in, logits over the vocabulary and the blank (index V) for every frame out."""

    def __init__(self, parts: Parts, factor: int) -> None:
        super().__init__(parts)
        d_model = parts.target.weight.size(1)
        self.factor = factor
        self.split = nn.Linear(d_model, factor * d_model)  # an undecided frame starts as its slice of a source state
        self.blank = Embedding(1, d_model)

    def stacked(self) -> dict[Tensor, int]:
        """The map to the frames of a source state, which stacks one map per frame."""
        return {self.split.weight: self.factor}

    def lengths(self, memory: Memory) -> Tensor:
        """Log p (B, L) of n frames: 0 for the only possible number."""
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
        written = self.target_embedding(canvas.clamp(0, vocabulary - 1))
        written = torch.where((canvas == vocabulary).unsqueeze(-1), self.blank(torch.zeros_like(canvas)), written)
        x = torch.where((canvas == UNDECIDED).unsqueeze(-1), frames, written)
        x, _ = self.decoder(x, self.decoder.start(memory), trace, mask)  # type: ignore[operator]
        return torch.cat((self.logits(x), self.blank.logits(x)), dim=-1)

    def token_log_probs(self, memory: Memory, target: Tensor, mask: Tensor, trace: Trace | None = None) -> Tensor:
        """Log P(prefix y_1 .. y_i) - log P(prefix y_1 .. y_i-1) for each token; the end symbol takes the remainder."""
        real = memory.mask.repeat_interleave(self.factor, dim=1)  # (B, C)
        undecided = torch.full_like(real, UNDECIDED, dtype=torch.int64)
        log_probs = self.refine(undecided, real, memory, trace).float().log_softmax(-1)
        entered, complete = entry_log_probs(log_probs, real, target[:, 1:], mask)
        if trace is not None:
            self._by_token(trace, entered)
        prefix = entered.logsumexp(-1)  # (B, T): summed over all continuations
        before = torch.cat((torch.zeros_like(prefix[:, :1]), prefix[:, :-1]), dim=1)  # (B, T)
        last = torch.arange(mask.size(1), device=mask.device) == mask.sum(1, keepdim=True) - 1
        parts = torch.where(last, complete.unsqueeze(1), prefix) - before
        return parts.where(
            before > -torch.inf, torch.zeros_like(parts)
        ).float()  # after an impossible token nothing counts

    def _by_token(self, trace: Trace, entered: Tensor) -> None:
        """Turn frame attention into token attention (B, H, T, S), by the probability that a frame starts a token."""
        share = entered.softmax(-1).nan_to_num()  # (B, T, C)
        for name, weights in trace.items():
            if name.startswith("decoder.") and name.endswith(".cross"):
                trace[name] = torch.einsum("btc,bhcs->bhts", share.to(weights.dtype), weights)


def entry_log_probs(log_probs: Tensor, real: Tensor, gold: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Log P that frame c starts token i after those before it (B, T, C), and of the whole output (B,), in float64.

    log_probs (B, C, V + 1), real (B, C) True at real frames, gold and mask (B, T) with the end symbol, which is not
    part of the output. Frames are independent, so the probability of the first i tokens is the sum over frames of the
    i-th row.
    """
    batch, tokens = gold.shape
    frames = log_probs.double()
    gold = gold.masked_fill(~mask, 0)
    fresh = torch.ones_like(gold, dtype=torch.bool)  # whether a token may follow the previous one without a blank
    fresh[:, 1:] = gold[:, 1:] != gold[:, :-1]
    never = frames.new_full((batch, tokens), -torch.inf)
    # Paths that have emitted i tokens, i = 0 .. T - 1: ending in a blank (or at the very start), ending in token i.
    blank, token = torch.cat((frames.new_zeros(batch, 1), never[:, 1:]), dim=1), never
    entries: list[Tensor] = []
    for number in range(frames.size(1)):
        frame, is_real = frames[:, number], real[:, number, None]
        emitted = frame.gather(1, gold)  # (B, T): token i + 1 in column i
        entered = emitted + torch.logaddexp(blank, token.masked_fill(~fresh, -torch.inf))
        entries.append(torch.where(is_real, entered, never))
        stayed = torch.cat((never[:, :1], token[:, 1:] + emitted[:, :-1]), dim=1)
        arrived = torch.cat((never[:, :1], entered[:, :-1]), dim=1)
        rested = torch.logaddexp(blank, token) + frame[:, -1:]
        blank = torch.where(is_real, rested, blank)
        token = torch.where(is_real, torch.logaddexp(stayed, arrived), token)
    complete = torch.logaddexp(blank, token).gather(1, mask.sum(1, keepdim=True) - 1).squeeze(1)
    return torch.stack(entries, dim=-1), complete


@dataclass(frozen=True)
class Upsampled:
    """`factor` frames for each source token, its end symbol included; CTC needs one for every target token."""

    offers: ClassVar[str] = "ctc"
    factor: Annotated[int, Bounds(1, FEW)] = 3

    def __post_init__(self) -> None:
        check_bounds(self)

    def places(self, source: int, target: int) -> int:
        """Canvas size for a batch of such source and target lengths."""
        return self.factor * source

    def assemble(self, parts: Parts) -> UpsampledSeq2Seq:
        return UpsampledSeq2Seq(parts, self.factor)


Length = LengthClassifier | CutAtEnd | Upsampled


@dataclass(frozen=True)
class ParallelDecoder(WiredStack):
    """Config of a non-autoregressive decoder: layers of unmasked self-attention, cross-attention and FFN."""

    kind: ClassVar[str] = "parallel"
    length: Length | LengthConfig = LengthClassifier()

    @property
    def offers(self) -> str:
        """The kind of decoding it supports: "parallel", or "ctc"."""
        return self.length.offers

    @property
    def one_length(self) -> bool:
        """Whether a sentence has a single possible length, so that a search finds one translation of it."""
        return isinstance(self.length, CutAtEnd)

    def build(self, d_model: int, dropout: float, encoder_layers: int) -> DecoderStack:
        return DecoderStack(self, d_model, dropout, encoder_layers, causal=False)

    def assemble(self, parts: Parts) -> EncoderDecoder:
        return self.length.assemble(parts)
