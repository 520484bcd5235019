"""Shared by tests of static caches: a random model whose sentences end anywhere, decoded statically and eagerly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from transduce.engines.torch.engine import TorchEngine
from transduce.model.attention import Attention
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.search import Hypothesis
from transduce.search.constraints import UNCONSTRAINED, DecodingConstraints
from transduce.search.settings import Beam, Greedy, Limits, MinimumBayesRisk, Sample, Samples
from transduce.text.vocabulary import Symbols

SYMBOLS = Symbols(pad=0, bos=2, eos=3, unk=1, never=(0, 1, 2))
CPU = torch.device("cpu")
CUDA = torch.device("cuda")
V = 90
SHORT = Limits(longest=14, longest_extra=6)
VARIED = Limits(longest=14, no_repeat=1)  # else random models fall into loops and do not end


def engine_of(device: torch.device = CPU, **parts: Any) -> TorchEngine:
    """A random model whose sentences end at all lengths, in caches too small for a test's sentences."""
    torch.manual_seed(5)
    shared = {"layers": 2, "attention": Attention(2), "d_ff": 24, **parts}
    config = Model(16, 0.1, "none", TransformerEncoder(**shared), TransformerDecoder(**shared))
    model = config.build(V, V, shared=True).to(device).eval()
    with torch.no_grad():
        model.output_embedding.weight.mul_(2)[SYMBOLS.eos] *= 1.5
    engine = TorchEngine(model, SYMBOLS, SYMBOLS, device, graphs="on")
    assert engine.cache_pool
    engine.cache_pool.places = 300
    return engine


def sentences(count: int, seed: int = 3, longest: int = 9) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, longest, (count,), generator=generator).tolist()
    return [torch.randint(4, V, (length,), generator=generator).tolist() for length in lengths]


def decode_eagerly(
    engine: TorchEngine, sources: Sequence[Sequence[int]], search: Any, constraints: Sequence[DecodingConstraints] = ()
) -> Any:
    plain = TorchEngine(engine.model, SYMBOLS, SYMBOLS, engine.device)
    return plain.search(sources, search, constraints or [UNCONSTRAINED] * len(sources), list(range(len(sources))))


def assert_alike(found: Sequence[Sequence[Hypothesis]], expected: Sequence[Sequence[Hypothesis]]) -> None:
    assert [[h.tokens for h in own] for own in found] == [[h.tokens for h in own] for own in expected]
    for own, others in zip(found, expected, strict=True):
        for one, other in zip(own, others, strict=True):
            assert one.finished == other.finished
            assert one.score == pytest.approx(other.score, abs=1e-4, rel=1e-5)
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-4)
            assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-4)


def visits(engine: TorchEngine) -> int:
    assert engine.cache_pool
    return sum(slots.visits for slots in engine.cache_pool.batchers.values())


def decode_static(
    engine: TorchEngine, sources: Sequence[Sequence[int]], search: Any, constraints: Sequence[DecodingConstraints] = ()
) -> list[list[Hypothesis]]:
    """Decode in a static cache, and nowhere else."""
    assert engine.cache_pool
    with torch.inference_mode():
        found = engine.cache_pool.search(
            sources, search, constraints or [UNCONSTRAINED] * len(sources), list(range(len(sources)))
        )
    assert found is not None
    return found


SEARCHES = [
    Greedy(SHORT),
    Greedy(VARIED),
    Greedy(Limits(longest=14, shortest=4, no_repeat=2, forbid=(9, 10))),
    Sample(limits=SHORT, samples=3, seed=5),
    Sample(0.7, 8, 0.9, 2, limits=Limits(longest=14, shortest=2, no_repeat=2)),
    MinimumBayesRisk(Samples(samples=4, temperature=2.0, seed=2, limits=SHORT)),
    Beam(1, limits=SHORT),
    Beam(4, limits=VARIED),
    Beam(3, n_best=3, length_penalty=0.0, limits=SHORT),
    Beam(4, n_best=4, length_penalty=-1.5, limits=Limits(longest=11, no_repeat=1)),
    Beam(5, n_best=2, length_penalty=2.0, limits=Limits(longest=9, shortest=3, no_repeat=3)),
    Beam(2, n_best=2, limits=Limits(longest=1)),
    Beam(4, n_best=2, length_penalty=1.0, limits=VARIED, length_normalization="power"),
    Beam(4, n_best=4, length_normalization="power", limits=VARIED, shrinking=True),
    Beam(3, length_penalty=-0.5, limits=SHORT, shrinking=True),
]
