"""Beam search against enumeration of everything, and against a plain one that never stops early."""

from __future__ import annotations

import pytest
import torch
from markov_model import (
    EOS,
    SYMBOLS,
    Markov,
    V,
    check_sound,
    close,
    enumerate_all,
    markov,
    memory,
    plain_beam,
    power_penalty,
    wu_penalty,
)

from transduce.core.errors import ConfigError
from transduce.search.beam_state import greatest
from transduce.search.settings import Beam, Greedy, Limits

ALPHAS = [-1.0, 0.0, 0.6, 1.0, 2.5]
PENALTIES = {"gnmt": wu_penalty, "power": power_penalty}


@pytest.mark.parametrize("normalization", PENALTIES)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_wide_beam_finds_the_best_of_all(alpha, normalization):
    sentences = 6
    model = markov(sentences, seed=11)
    wide = Beam(400, alpha, n_best=20, limits=Limits(longest=5), length_normalization=normalization)
    found = wide.build()(model, memory(list(range(sentences))), SYMBOLS)
    for number in range(sentences):
        truth = enumerate_all(model, number, limit=5, alpha=alpha, penalty=PENALTIES[normalization])
        assert [hypothesis.tokens for hypothesis in found[number]] == [tokens for _, tokens in truth[:20]]
        for hypothesis, (score, _) in zip(found[number], truth, strict=False):
            assert hypothesis.finished
            assert close(hypothesis.score, score)
            check_sound(model, number, hypothesis)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(("size", "n_best"), [(1, 1), (2, 1), (3, 3), (5, 2)])
@pytest.mark.parametrize("normalization", PENALTIES)
@pytest.mark.parametrize("shrinking", [False, True])
def test_stopping_early_loses_nothing(alpha, size, n_best, normalization, shrinking):
    sentences, limit = 25, 15
    model = markov(sentences, seed=12)
    model.tables[..., EOS] += 1
    limits = Limits(longest=limit)
    beam = Beam(size, alpha, n_best, limits, length_normalization=normalization, shrinking=shrinking)
    found = beam.build()(model, memory(list(range(sentences))), SYMBOLS)
    if (alpha, normalization) != (2.5, "power"):  # which would let almost any long path win
        assert model.sizes[-1] < size * sentences, "some sentence must have stopped early, or this shows nothing"
    for number in range(sentences):
        penalty = PENALTIES[normalization]
        truth = plain_beam(model, number, limit, size, alpha, n_best, penalty=penalty, shrinking=shrinking)
        finished = [hypothesis for hypothesis in found[number] if hypothesis.finished]
        assert [hypothesis.tokens for hypothesis in finished] == [tokens for _, tokens in truth]
        assert all(close(a.score, b) for a, (b, _) in zip(finished, truth, strict=True))
        assert len(found[number]) == n_best


def test_a_beam_of_one_is_greedy():
    model = markov(sentences=60, seed=13)
    batch = memory(list(range(60)))
    limits = Limits(longest=12)
    greedy = Greedy(limits).build()(model, batch, SYMBOLS)
    assert Beam(size=1, length_penalty=0.0, limits=limits).build()(model, batch, SYMBOLS) == greedy
    assert {hypothesis.finished for (hypothesis,) in greedy} == {True, False}


@pytest.mark.parametrize("alpha", [-0.5, 0.6])
def test_neighbours_change_nothing(alpha):
    model = markov(sentences=12, seed=14)
    lengths = [1 + number % 4 for number in range(12)]
    search = Beam(3, alpha, 2, Limits(longest_extra=4)).build()
    together = search(model, memory(list(range(12)), lengths), SYMBOLS)
    backwards = search(model, memory(list(range(11, -1, -1)), lengths[::-1]), SYMBOLS)
    assert backwards == together[::-1]
    for number in range(12):
        assert search(model, memory([number], [lengths[number]], width=9), SYMBOLS) == [together[number]]


def test_sentences_leave_when_they_are_decided():
    model = markov(sentences=20, seed=12)
    model.tables[..., EOS] += 1
    Beam(4, limits=Limits(longest=15)).build()(model, memory(list(range(20))), SYMBOLS)
    assert model.sizes == sorted(model.sizes, reverse=True)
    assert model.sizes[0] == 80 > model.sizes[-1]
    assert all(size % 4 == 0 for size in model.sizes)


def test_without_a_penalty_a_certain_end_stops_at_once():
    table = torch.full((1, V, V, V), -9.0)
    table[..., EOS] = 9.0
    model = Markov(table)
    (best,) = Beam(length_penalty=0.0).build()(model, memory([0]), SYMBOLS)[0]
    assert (best.tokens, best.finished, model.sizes) == ((), True, [4])


def test_cut_paths_fill_only_empty_places_and_come_last():
    model = markov(seed=15)
    model.tables[..., EOS] -= 4  # an end among the best is rare
    found = Beam(6, 0.6, 6, Limits(longest=4)).build()(model, memory([0]), SYMBOLS)[0]
    finished = [hypothesis.finished for hypothesis in found]
    assert len(found) == 6
    assert finished == sorted(finished, reverse=True)
    for kind in (True, False):
        scores = [hypothesis.score for hypothesis in found if hypothesis.finished is kind]
        assert scores == sorted(scores, reverse=True)
    for hypothesis in found:
        check_sound(model, 0, hypothesis)
        assert hypothesis.finished or len(hypothesis.tokens) == 4
    assert len({(hypothesis.tokens, hypothesis.finished) for hypothesis in found}) == 6
    assert not finished[-1]


def test_fewer_hypotheses_where_the_rules_allow_no_more():
    limits = Limits(forbid=(3, 4), longest=2)
    found = Beam(4, n_best=4, limits=limits).build()(markov(), memory([0]), SYMBOLS)[0]
    assert {(hypothesis.tokens, hypothesis.finished) for hypothesis in found} == {
        ((), True),
        ((2,), True),
        ((2, 2), False),
    }


def test_a_longer_penalty_favours_longer_translations():
    model = markov(sentences=40, seed=16)
    model.tables[..., EOS] += 1
    batch = memory(list(range(40)))
    lengths = [
        sum(len(best.tokens) for best, *_ in Beam(8, alpha).build()(model, batch, SYMBOLS)) for alpha in (-1, 0, 1, 2)
    ]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_of_equal_paths_the_lowest_beam_and_token_come_first():
    model = Markov(torch.zeros(1, V, V, V))
    found = Beam(3, 0.0, 3, Limits(longest=2, forbid=(EOS,))).build()(model, memory([0]), SYMBOLS)[0]
    assert [hypothesis.tokens for hypothesis in found] == [(2, 2), (2, 3), (2, 4)]


def test_greatest_agrees_with_a_stable_sort():
    generator = torch.Generator().manual_seed(1)
    totals = -torch.rand(40, 300, generator=generator).mul(20).round().div(4)  # many equals, zeros among them
    totals[:, ::7] = -torch.inf
    totals[0, 5:9] = torch.tensor([0.0, -0.0, -1e-42, -3e38])
    assert torch.equal(greatest(totals, 12), totals.argsort(dim=1, descending=True, stable=True)[:, :12])


def test_an_impossible_model_still_gives_one_hypothesis():
    table = torch.zeros(1, V, V, V)
    table[..., EOS] = -torch.inf
    (best,) = Beam(limits=Limits(forbid=(2, 3, 4))).build()(Markov(table), memory([0]), SYMBOLS)[0]
    assert (best.tokens, best.finished) == ((), True)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"size": 0}, "size: expected a whole number of at least 1, got 0"),
        ({"length_normalization": "wu"}, "length_normalization: expected 'gnmt' or 'power', got 'wu'"),
        ({"length_penalty": 7.0}, "length_penalty: expected a number from -5 to 5, got 7.0"),
        ({"length_penalty": float("nan")}, "length_penalty: expected a number from -5 to 5, got nan"),
        ({"n_best": 0}, "n_best: expected a whole number from 1 to the beam's size (4); raise size for more, got 0"),
        ({"n_best": 5}, "n_best: expected a whole number from 1 to the beam's size (4); raise size for more, got 5"),
    ],
)
def test_refused_settings_of_the_beam(settings, text):
    with pytest.raises(ConfigError) as error:
        Beam(**settings)
    assert str(error.value) == text
