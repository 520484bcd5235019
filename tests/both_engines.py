"""What the tests of the native engine share: random models opened by both engines, and what "the same" means."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from model_variants import PARTS, SYMBOLS, covering, randomised, transformer

from transduce.engines.native import library, weight_file
from transduce.engines.native.engine import NativeEngine
from transduce.engines.native.lowering import lower, reasons_against
from transduce.engines.torch.engine import TorchEngine
from transduce.model.attention import Attention
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.search import Hypothesis
from transduce.search.constraints import UNCONSTRAINED, DecodingConstraints

needs_core = pytest.mark.skipif(library.built() is None, reason="the core is not built: make native")
KERNELS = ["avx512", "avxvnni", "avx2", "portable"]
SMALL = Model(
    d_model=16,
    dropout=0.0,
    encoder=TransformerEncoder(2, Attention(2), 24),
    decoder=TransformerDecoder(2, Attention(2), 24),
)
DEFAULTS = dict.fromkeys(PARTS, 0)


def is_run(name: str, number: int) -> bool:
    """Whether the native engine runs a part among parts that it runs."""
    return not reasons_against(transformer(DEFAULTS | {name: number}))


# Parts that the native engine runs, in all pairs; what it refuses does not change which pairs meet.
RUN = {name: [n for n in range(len(choices)) if is_run(name, n)] for name, choices in PARTS.items()}
PICKS = [{name: RUN[name][n] for name, n in pick.items()} for pick in covering(RUN, 2)]
REFUSED = [(name, n) for name, choices in PARTS.items() for n in range(len(choices)) if n not in RUN[name]]


@dataclass(frozen=True)
class Pair:
    """The same model in both engines."""

    torch: TorchEngine
    native: NativeEngine
    path: Path


def runs(kernels: str) -> bool:
    """Whether this machine has what these kernels need."""
    features = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    needed = {"avx512": "avx512_vnni", "avxvnni": "avx_vnni", "avx2": "avx2", "portable": ""}
    return needed[kernels] in features


def opened(config: Model, folder: Path, quantize: bool = False, threads: int = 2, kernels: str = "") -> Pair:
    model = randomised(config).float()
    path = folder / "model.native"
    weight_file.write(path, lower(config, model, quantize))
    native = NativeEngine(path, SYMBOLS, SYMBOLS, threads, kernels)
    return Pair(TorchEngine(model, SYMBOLS, SYMBOLS, torch.device("cpu")), native, path)


def sources(count: int, vocabulary: int, longest: int = 9, seed: int = 1) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(4, vocabulary) for _ in range(draw.randrange(longest + 1))] for _ in range(count)]


def search(
    engine: Any, texts: Sequence[Sequence[int]], how: Any, constraints: Sequence[DecodingConstraints] = ()
) -> list[list[Hypothesis]]:
    found: list[list[Hypothesis]] = engine.search(
        texts, how, constraints or [UNCONSTRAINED] * len(texts), range(len(texts))
    )
    return found


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    """Tokens and all; numbers as near as sums in another order are."""
    assert [[h.tokens for h in own] for own in found] == [[h.tokens for h in own] for own in expected]
    for left, right in zip(chain.from_iterable(found), chain.from_iterable(expected), strict=True):
        assert left.finished == right.finished
        assert left.log_prob == pytest.approx(right.log_prob, abs=1e-4, rel=1e-4)
        assert left.score == pytest.approx(right.score, abs=1e-4, rel=1e-4)
        assert left.token_log_probs == pytest.approx(right.token_log_probs, abs=1e-4, rel=1e-4)
