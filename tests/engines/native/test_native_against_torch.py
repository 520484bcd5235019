"""Native with float weights against torch: every part of a Transformer, every search and rule, the same tokens."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from both_engines import DEFAULTS, PICKS, REFUSED, SMALL, Pair, assert_same, needs_core, opened, search, sources
from model_variants import PARTS, V, transformer

from transduce.core.errors import ConfigError
from transduce.engines.native.lowering import RUNS, lower, reasons_against
from transduce.model.attention import Attention
from transduce.model.blocks import PreNorm
from transduce.model.positions import Alibi, Learned, RelativeBias, Rotary
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.search.constraints import DecodingConstraints
from transduce.search.settings import Beam, Greedy, Limits, Sample

pytestmark = needs_core
LIMITS = Limits(longest_extra=3)


@pytest.mark.parametrize(("name", "number"), REFUSED)
def test_a_part_that_is_not_run_is_refused(name: str, number: int) -> None:
    config = transformer(DEFAULTS | {name: number})
    with pytest.raises(ConfigError, match="the native engine cannot run this model: "):
        lower(config, config.build(V, V, shared=True), False)


def test_no_part_is_refused_that_is_run() -> None:
    refused = [PARTS[name][number] for name, number in REFUSED]
    known = [kind for kinds in RUNS.values() for kind in kinds]
    assert not [part for part in refused if part in known or type(part) in known]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return opened(SMALL, tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("pick", PICKS, ids=lambda pick: "-".join(map(str, pick.values())))
def test_every_part_that_is_not_refused(pick: dict[str, int], tmp_path: Path) -> None:
    config = transformer(pick)
    if reasons_against(config):
        with pytest.raises(ConfigError, match="the native engine cannot run this model: "):
            lower(config, config.build(V, V, shared=True), False)
        return
    both = opened(config, tmp_path)
    texts = sources(5, V)
    for how in (Greedy(LIMITS), Beam(size=3, n_best=2, limits=LIMITS)):
        assert_same(search(both.native, texts, how), search(both.torch, texts, how))
    targets = sources(5, V, seed=2)
    for own, expected in zip(both.native.score(texts, targets), both.torch.score(texts, targets), strict=True):
        assert own == pytest.approx(expected, abs=1e-4, rel=1e-4)
    for layer in (None, 0, -1):
        pairs = zip(both.native.attend(texts, targets, layer), both.torch.attend(texts, targets, layer), strict=True)
        for looked, wanted in pairs:
            np.testing.assert_allclose(looked, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("tie", ["all", "none"])
def test_a_bias_of_the_logits(tie: Any, tmp_path: Path) -> None:
    both, texts, targets = (
        opened(replace(SMALL, tie=tie, output_bias=True), tmp_path),
        sources(9, V),
        sources(9, V, seed=2),
    )
    plain = opened(replace(SMALL, tie=tie), tmp_path)
    for how in (Greedy(LIMITS), Beam(size=3, n_best=3, limits=LIMITS)):
        assert_same(search(both.native, texts, how), search(both.torch, texts, how))
    scores = both.native.score(texts, targets)
    for own, expected in zip(scores, both.torch.score(texts, targets), strict=True):
        assert own == pytest.approx(expected, abs=1e-4, rel=1e-4)
    assert scores != plain.native.score(texts, targets)


def test_a_decoder_that_sees_its_past_unnormed(tmp_path: Path) -> None:
    decoder = replace(SMALL.decoder, residual=PreNorm(), unnormed_past=True)  # type: ignore[call-arg]
    both = opened(replace(SMALL, encoder=replace(SMALL.encoder, residual=PreNorm()), decoder=decoder), tmp_path)
    texts, targets = sources(9, V), sources(9, V, seed=2)
    for how in (Greedy(LIMITS), Beam(size=3, n_best=3, limits=LIMITS)):
        assert_same(search(both.native, texts, how), search(both.torch, texts, how))
    for own, expected in zip(both.native.score(texts, targets), both.torch.score(texts, targets), strict=True):
        assert own == pytest.approx(expected, abs=1e-4, rel=1e-4)


def test_a_window_is_refused() -> None:
    config = replace(SMALL, decoder=replace(SMALL.decoder, window=3))
    with pytest.raises(ConfigError, match=r"model\.decoder\.window is 3, and only attention to all places is run"):
        lower(config, config.build(V, V, shared=True), False)


def test_most_combinations_are_not_refused() -> None:
    assert sum(not reasons_against(transformer(pick)) for pick in PICKS) > 0.8 * len(PICKS)


SHAPES = [
    (72, 4, 2, 100, 1, 3, 97),
    (80, 5, 0, 33, 3, 1, 65),
    (130, 1, 0, 64, 1, 1, 1100),
    (48, 12, 3, 1, 2, 2, 64),
    (64, 1, 0, 128, 1, 2, 2049),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "positions", [Learned(60), Rotary(), Alibi(), RelativeBias(8, 20)], ids=lambda p: type(p).__name__
)
def test_odd_sizes(shape: tuple[int, ...], positions: Any, tmp_path: Path) -> None:
    d_model, heads, key_heads, d_ff, encoder, decoder, vocabulary = shape
    attention = Attention(heads, key_heads)
    if isinstance(positions, Rotary) and d_model // heads % 2:
        pytest.skip("rotary positions turn pairs")
    config = Model(
        d_model,
        0.0,
        "none",
        TransformerEncoder(encoder, attention, d_ff, positions=positions),
        TransformerDecoder(decoder, attention, d_ff, positions=positions),
        output_bias=True,
    )
    both = opened_with(config, vocabulary, tmp_path)
    texts = sources(7, vocabulary, longest=20)
    for how in (Greedy(LIMITS), Beam(size=5, n_best=5, length_penalty=1.0, limits=LIMITS)):
        assert_same(search(both.native, texts, how), search(both.torch, texts, how))


def opened_with(config: Model, vocabulary: int, folder: Path) -> Pair:
    import model_variants

    before, model_variants.V = model_variants.V, vocabulary
    try:
        return opened(config, folder)
    finally:
        model_variants.V = before


SEARCHES = [
    Greedy(),
    Greedy(Limits(shortest=6, no_repeat=2, forbid=(5, 9))),
    Greedy(Limits(longest=3)),
    Beam(size=1),
    Beam(size=4, n_best=4),
    Beam(size=4, n_best=2, length_penalty=0.0),
    Beam(size=6, n_best=3, length_penalty=2.0),
    Beam(size=3, n_best=3, length_penalty=-2.0),
    Beam(size=13, n_best=13, limits=Limits(longest_extra=2)),
    Beam(size=4, n_best=4, length_penalty=1.0, length_normalization="power"),
    Beam(size=3, n_best=2, length_penalty=-1.5, length_normalization="power"),
    Beam(size=6, n_best=6, shrinking=True),
    Beam(size=5, n_best=1, length_penalty=0.6, length_normalization="power", shrinking=True),
    Beam(size=4, n_best=4, limits=Limits(shortest=5, no_repeat=1)),
    Beam(size=4, n_best=4, limits=Limits(no_repeat=3, forbid=(4, 5, 6, 7, 8))),
    Beam(size=4, n_best=4, limits=Limits(longest=2)),
    Sample(samples=3, seed=7),
    Sample(samples=4, temperature=0.5, top_k=4, seed=-3),
    Sample(samples=4, top_p=0.6),
    Sample(samples=2, top_k=6, top_p=0.8, temperature=1.7, limits=Limits(shortest=4, no_repeat=2)),
]


@pytest.mark.parametrize("how", SEARCHES, ids=str)
@pytest.mark.parametrize("constrained", [False, True])
def test_every_search_and_rule(pair: Pair, how: Any, constrained: bool) -> None:
    texts = sources(20, V)
    constraints = [random_constraints(number, isinstance(how, Beam)) for number in range(20)] if constrained else ()
    assert_same(search(pair.native, texts, how, constraints), search(pair.torch, texts, how, constraints))


def random_constraints(number: int, beam: bool) -> DecodingConstraints:
    """Some of each, contradictions among them, drawn by number."""
    draw = random.Random(number)

    def phrase(longest: int) -> tuple[int, ...]:
        return tuple(draw.randrange(4, V) for _ in range(draw.randint(1, longest)))

    prefix = phrase(4) if draw.random() < 0.5 else ()
    exclude = tuple(phrase(3) for _ in range(draw.randrange(4)))
    include = tuple(tuple(phrase(3) for _ in range(draw.randint(1, 2))) for _ in range(draw.randrange(4) * beam))
    return DecodingConstraints(prefix, include, exclude)


def test_targets_are_scored_to_their_end_whatever_is_in_them(pair: Pair) -> None:
    texts, targets = [[5, 6]], [[4, 3, 2, 0, 1, 7]]  # the end symbol and others that no search writes
    (own,), (expected,) = pair.native.score(texts, targets), pair.torch.score(texts, targets)
    assert own == pytest.approx(expected, abs=1e-4, rel=1e-4)
    assert len(own) == 7
