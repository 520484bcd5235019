"""A model small enough to enumerate: a second-order Markov chain for each sentence, behind the model contract."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from transduce.model.contract import DecoderState, Memory
from transduce.search import Hypothesis
from transduce.text.vocabulary import Symbols

V = 5
EOS = 1
SYMBOLS = Symbols(pad=0, bos=0, eos=EOS, unk=0, never=(0,))


@dataclass
class Markov:
    """Logits are tables[sentence, token before last, last token] + drift[step], (V,) each.

    The token before last comes from the state, so that a search which forgets to reorder the state goes wrong. Without
    drift, two texts of the same triples in another order would be exactly as probable.
    """

    tables: Tensor
    drift: Tensor = field(default_factory=lambda: torch.zeros(64, V))
    looks: Tensor | None = None  # (layers, heads, V, V, S): where it looks after two tokens, before the softmax
    sizes: list[int] = field(default_factory=list)

    def start(self, memory: Memory) -> DecoderState:
        number = memory.layers[0][:, 0, 0].to(torch.int64)
        return DecoderState(
            static={"number": number, "mask": memory.mask}, cache=(torch.zeros_like(number), None), length=0
        )

    def advance(
        self, tokens: Tensor, state: DecoderState, trace: dict[str, Tensor] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        assert tokens.shape[1] == 1
        self.sizes.append(len(tokens))
        before, last = state.cache[0], tokens[:, 0]
        logits = self.tables[state.static["number"], before, last] + self.drift[state.length]
        if trace is not None and self.looks is not None:
            for layer, looks in enumerate(self.looks[..., : state.static["mask"].shape[1]]):  # (heads, V, V, S)
                scores = looks[:, before, last].transpose(0, 1).masked_fill(~state.static["mask"][:, None], -torch.inf)
                trace[f"decoder.{layer}.cross"] = scores.softmax(-1)[:, :, None]  # (N, heads, 1, S)
                trace[f"decoder.{layer}.out"] = logits[:, None]
        return logits[:, None], DecoderState(state.static, (last, None), state.length + 1)

    def log_probs(self, number: int, tokens: tuple[int, ...]) -> list[float]:
        """What the model gives each of the tokens, worked out without any search."""
        history = torch.tensor((0, 0, *tokens))
        logits = self.tables[number, history[:-2], history[1:-1]] + self.drift[: len(tokens)]
        found: list[float] = logits.double().log_softmax(-1).gather(1, history[2:, None]).flatten().tolist()
        return found

    def covered(self, tokens: tuple[int, ...], length: int) -> float:
        """sum_j log(min(sum_i p_ij, 1)) over `length` source tokens, worked out without any search."""
        assert self.looks is not None
        history = (0, 0, *tokens[:-1])
        received = [0.0] * length
        for before, last in itertools.pairwise(history):
            heads = self.looks[-1, :, before, last, :length].double().softmax(-1).tolist()
            received = [sum(column) / len(heads) + old for old, *column in zip(received, *heads, strict=True)]
        return sum(math.log(min(one, 1.0)) for one in received)


def markov(sentences: int = 1, seed: int = 0, spread: float = 1.5, source: int = 0) -> Markov:
    """With a `source` length it has two layers of attention, of two heads each."""
    generator = torch.Generator().manual_seed(seed)
    tables = torch.randn(sentences, V, V, V, generator=generator) * spread
    drift = torch.randn(64, V, generator=generator) / 2
    return Markov(tables, drift, torch.randn(2, 2, V, V, source, generator=generator) * 2 if source else None)


def memory(numbers: list[int], lengths: list[int] | None = None, width: int | None = None) -> Memory:
    """Memory of sentences `numbers` (rows of a Markov's tables) whose sources have these lengths."""
    lengths = lengths or [3] * len(numbers)
    width = width or max(lengths)
    mask = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    layer = torch.tensor(numbers, dtype=torch.float32)[:, None, None].expand(-1, width, 1)
    return Memory((layer,), mask)


def wu_penalty(length: int, alpha: float) -> float:
    """Wu et al. 2016, equation 14; `length` counts the end symbol."""
    return float(((5 + length) / 6) ** alpha)


def power_penalty(length: int, alpha: float) -> float:
    """Marian's: log-probabilities are divided by length^alpha."""
    return float(length**alpha)


def enumerate_all(
    model: Markov, number: int, limit: int, alpha: float, penalty: Callable[[int, float], float] = wu_penalty
) -> list[tuple[float, tuple[int, ...]]]:
    """Every translation of at most `limit` tokens with its end symbol, by score."""
    found = []
    for length in range(limit):
        for tokens in itertools.product([token for token in range(V) if token not in (0, EOS)], repeat=length):
            log_prob = sum(model.log_probs(number, (*tokens, EOS)))
            found.append((log_prob / penalty(length + 1, alpha), tokens))
    return sorted(found, reverse=True)


def plain_beam(
    model: Markov,
    number: int,
    limit: int,
    size: int,
    alpha: float,
    n_best: int,
    bonus: Callable[[tuple[int, ...]], float] = lambda tokens: 0.0,
    penalty: Callable[[int, float], float] = wu_penalty,
    shrinking: bool = False,
) -> list[tuple[float, tuple[int, ...]]]:
    """Beam search in plain Python that never stops before the limit. Finished hypotheses by score, at most n_best.

    `bonus` is added to the score of what has ended, end symbol included. A `shrinking` beam is as wide as it was less
    what has ended, as in Marian.
    """
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[tuple[float, tuple[int, ...]]] = []
    for step in range(1, limit + 1):
        candidates = [
            (total + model.log_probs(number, (*tokens, token))[-1], (*tokens, token))
            for total, tokens in live
            for token in range(1, V)
        ]
        candidates.sort(key=lambda pair: -pair[0])
        ended = [(p, t) for p, t in candidates[:size] if t[-1] == EOS]
        finished += [(p / penalty(step, alpha) + bonus(t), t[:-1]) for p, t in ended]
        size -= len(ended) if shrinking else 0
        live = [(p, t) for p, t in candidates if t[-1] != EOS][:size]
    return sorted(finished, reverse=True)[:n_best]


def close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-5)


def check_sound(model: Markov, number: int, hypothesis: Hypothesis) -> None:
    """The parts of a hypothesis agree with each other and with the model."""
    written = (*hypothesis.tokens, EOS) if hypothesis.finished else hypothesis.tokens
    truth = model.log_probs(number, written)
    assert len(hypothesis.token_log_probs) == len(written)
    assert all(close(a, b) for a, b in zip(hypothesis.token_log_probs, truth, strict=True))
    assert close(hypothesis.log_prob, sum(truth))
    assert EOS not in hypothesis.tokens
