"""Greedy search and sampling: one loop, two ways to pick the next token.

A sample is a pure function of the seed, the sentence's key, the sample's number and the step, so that neither the batch
nor the order of work changes it.
Shapes: B sentences, N rows (the samples of a sentence stand together), t tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.model.contract import Autoregressive, Memory, rows
from transduce.search import Hypothesis
from transduce.search.constraints import DecodingConstraints, cancelled_rows, check_one_path
from transduce.search.rules import checked, next_log_probs, rules_of
from transduce.search.settings import Limits, Sample
from transduce.text.vocabulary import Symbols

Step = int | Tensor  # tokens written so far, by all rows or by each (N,)
Pick = Callable[[Tensor, Tensor, Step], Tensor]  # log-probabilities (N, V), streams (N,), step -> tokens (N,)


@dataclass(frozen=True)
class StepwiseSearch:
    """Decode token by token: advance, pick, and drop rows that have ended or reached their limit."""

    pick: Pick
    limits: Limits
    samples: int = 1
    seed: int = 0

    @torch.no_grad()
    def __call__(
        self, model: Autoregressive, memory: Memory, symbols: Symbols,
        constraints: Sequence[DecodingConstraints] | None = None, keys: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:  # fmt: skip
        batch, device = len(memory.mask), memory.mask.device
        required = checked(constraints, batch)
        check_one_path(required)
        rules = rules_of(self.limits, symbols, required, device)
        lengths = torch.tensor(self.limits.lengths(memory.mask.sum(1).tolist(), required), device=device)
        row = torch.arange(batch * self.samples, device=device)
        progress = RowProgress(
            row=row,
            streams=make_streams(self.seed, range(batch) if keys is None else keys, self.samples, batch).to(device),
            tokens=row.new_empty(len(row), 0),
            log_probs=torch.empty(len(row), 0, device=device),
        )
        state = rows(model.start(memory), row // self.samples)
        newest = torch.full_like(row, symbols.bos)
        finished: list[RowProgress] = []
        step = 0
        while len(progress.row):
            logits, state = model.advance(newest[:, None], state)
            sentence = progress.row // self.samples
            log_probs = next_log_probs(logits[:, -1], progress.tokens, sentence, rules, symbols.eos)
            newest = self.pick(log_probs, progress.streams, step)
            progress = progress.append(newest, log_probs.gather(1, newest[:, None]))
            step += 1
            lengths[cancelled_rows(required)] = 0
            staying, leaving = part((newest == symbols.eos) | (lengths[sentence] <= step))
            if len(leaving):
                finished.append(rows(progress, leaving))
                progress, newest = rows(progress, staying), newest[staying]
                if len(staying):
                    state = rows(state, staying)
        return self._collect(finished, batch, symbols.eos)

    def _collect(self, finished: list[RowProgress], batch: int, eos: int) -> list[list[Hypothesis]]:
        hypotheses_of: list[list[tuple[int, Hypothesis]]] = [[] for _ in range(batch)]
        for chunk in finished:
            columns = (chunk.row.tolist(), chunk.tokens.tolist(), chunk.log_probs.tolist())
            for row, tokens, log_probs in zip(*columns, strict=True):
                hypotheses_of[row // self.samples].append((row, Hypothesis.read(tokens, log_probs, eos)))
        for sentence in hypotheses_of:  # ties in the order of their sample numbers
            sentence.sort(key=lambda pair: (-pair[1].score, pair[0]))
        return [[hypothesis for _, hypothesis in sentence] for sentence in hypotheses_of]


@dataclass(frozen=True)
class RowProgress:
    """Output of rows so far: row (N,) their indices at the start, streams (N,), tokens and log_probs (N, t)."""

    row: Tensor
    streams: Tensor
    tokens: Tensor
    log_probs: Tensor

    def append(self, newest: Tensor, log_probs: Tensor) -> RowProgress:
        """Append a step: newest (N,), log_probs (N, 1)."""
        tokens = torch.cat([self.tokens, newest[:, None]], dim=1)
        return RowProgress(self.row, self.streams, tokens, torch.cat([self.log_probs, log_probs], dim=1))


def part(done: Tensor) -> tuple[Tensor, Tensor]:
    """Split row indices into those not done and those done, in order; the only wait for the device in a step."""
    order = done.to(torch.int8).argsort(stable=True)
    staying = len(done) - int(done.sum())
    return order[:staying], order[staying:]


def most_probable(log_probs: Tensor, streams: Tensor, step: Step) -> Tensor:
    """Pick the most probable token, ties to the first as argmax promises: (N, V) -> (N,)."""
    return log_probs.argmax(-1)


def drawing(settings: Sample) -> Pick:
    """Build a pick that samples after temperature, top_k and top_p."""

    def pick(log_probs: Tensor, streams: Tensor, step: Step) -> Tensor:
        log_probs = log_probs / settings.temperature
        if 0 < settings.top_k < log_probs.shape[1]:
            log_probs = keep_top_k(log_probs, settings.top_k)
        if settings.top_p < 1:
            log_probs = keep_top_p(log_probs, settings.top_p)
        return invert(log_probs, uniform(streams, step))

    return pick


def keep_top_k(log_probs: Tensor, count: int) -> Tensor:
    """Set all below the `count`-th greatest in each row to -inf: (N, V) -> (N, V)."""
    least = log_probs.topk(count).values[:, -1:]
    return log_probs.masked_fill(log_probs < least, -torch.inf)


def keep_top_p(log_probs: Tensor, mass: float) -> Tensor:
    """Set all but the fewest tokens that hold `mass` of each row's probability to -inf: (N, V) -> (N, V)."""
    ranked = log_probs.sort(descending=True).values
    probabilities = ranked.softmax(-1, dtype=torch.float64)
    before = probabilities.cumsum(-1) - probabilities  # the mass of the more probable tokens
    least = ranked.masked_fill(before >= mass, torch.inf).amin(-1, keepdim=True)
    return log_probs.masked_fill(log_probs < least, -torch.inf)


def invert(log_probs: Tensor, draws: Tensor) -> Tensor:
    """Sample by inversion: the token where cumulated probability passes a draw in [0, 1): (N, V), (N,) -> (N,)."""
    highest = log_probs.amax(-1, keepdim=True)
    cumulative = (log_probs - highest).to(torch.float64).exp().cumsum(-1)
    total = cumulative[:, -1:]
    # Rounding may lift a draw near 1 to the total, which no token passes.
    point = torch.minimum(draws[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, point, right=True).squeeze(1)


def uniform(streams: Tensor, step: Step) -> Tensor:
    """Uniform numbers in [0, 1), float64, one for each stream (N,) at this step."""
    weyl = 0x9E3779B97F4A7C15
    moved = (
        _signed((step + 1) * weyl) if isinstance(step, int) else (step + 1) * _signed(weyl)
    )  # both wrap around alike
    high = _shift_right(_mix(streams + moved), 11)
    return high.to(torch.float64) * 2.0**-53


def make_streams(seed: int, keys: Sequence[int], samples: int, batch: int) -> Tensor:
    """Seed a random stream per row: (batch * samples,) int64, hashed from seed, key and sample number."""
    if len(keys) != batch:
        raise ValueError(f"keys: expected one a sentence, {batch} in all, got {len(keys)}")
    key = torch.tensor([_signed(key) for key in keys], dtype=torch.int64).repeat_interleave(samples)
    sample = torch.arange(samples).repeat(batch)
    return _mix(_mix(_mix(torch.tensor(_signed(seed))) ^ key) ^ sample)


def _mix(bits: Tensor) -> Tensor:
    """Output function of splitmix64 (Steele, Lea and Flood 2014), on int64 with wrap-around."""
    bits = (bits ^ _shift_right(bits, 30)) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shift_right(bits, 27)) * _signed(0x94D049BB133111EB)
    return bits ^ _shift_right(bits, 31)


def _shift_right(bits: Tensor, by: int) -> Tensor:
    """Logical right shift: torch's own copies the sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _signed(value: int) -> int:
    """The signed 64-bit integer with the same bits."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
