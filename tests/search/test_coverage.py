"""The coverage penalty against its formula in plain Python: over everything, and in a beam that never stops early."""

from __future__ import annotations

import pytest
import torch
from markov_model import EOS, SYMBOLS, check_sound, close, enumerate_all, markov, memory, plain_beam

from transduce.core.errors import ConfigError
from transduce.search.beam import LEAST, attention, coverage_penalty
from transduce.search.settings import Beam, Limits

LENGTHS = [3, 1, 5, 4, 2, 5]


@pytest.mark.parametrize(("alpha", "weight"), [(0.0, 0.2), (0.6, 1.0), (-1.0, 0.5), (2.0, 5.0)])
def test_a_wide_beam_finds_the_best_of_all(alpha, weight):
    model = markov(6, seed=31, source=5)
    beam = Beam(400, alpha, 20, Limits(longest=5), coverage=weight)
    found = beam.build()(model, memory(list(range(6)), LENGTHS, width=5), SYMBOLS)
    for number, length in enumerate(LENGTHS):
        everything = enumerate_all(model, number, limit=5, alpha=alpha)
        truth = sorted(((s + weight * model.covered((*t, EOS), length), t) for s, t in everything), reverse=True)
        assert [hypothesis.tokens for hypothesis in found[number]] == [tokens for _, tokens in truth[:20]]
        for hypothesis, (score, _) in zip(found[number], truth, strict=False):
            assert close(hypothesis.score, score)
            check_sound(model, number, hypothesis)


@pytest.mark.parametrize("weight", [0.1, 1.0])
@pytest.mark.parametrize(("size", "n_best"), [(1, 1), (3, 2), (4, 4)])
def test_stopping_early_loses_nothing(size, n_best, weight):
    sentences, limit = 25, 15
    model = markov(sentences, seed=32, source=3)
    model.tables[..., EOS] += 1
    beam = Beam(size, 0.6, n_best, Limits(longest=limit), coverage=weight)
    found = beam.build()(model, memory(list(range(sentences))), SYMBOLS)
    assert model.sizes[-1] < size * sentences, "some sentence must have stopped early, or this shows nothing"
    for number in range(sentences):
        truth = plain_beam(
            model, number, limit, size, 0.6, n_best, lambda tokens: weight * model.covered(tokens, length=3)
        )
        finished = [hypothesis for hypothesis in found[number] if hypothesis.finished]
        assert [hypothesis.tokens for hypothesis in finished] == [tokens for _, tokens in truth]


def test_it_changes_what_is_found_and_covers_more():
    model = markov(40, seed=33, source=4)
    model.tables[..., EOS] += 1
    batch = memory(list(range(40)), [4] * 40)

    def covered(weight: float) -> float:
        found = Beam(8, 0.0, coverage=weight).build()(model, batch, SYMBOLS)
        return sum(model.covered((*best.tokens, EOS), 4) for (best,) in found)

    assert covered(0.0) < covered(0.3) < covered(3.0)


def test_neighbours_change_nothing():
    model = markov(sentences=12, seed=34, source=9)
    lengths = [1 + number % 4 for number in range(12)]
    search = Beam(4, 0.6, 2, Limits(longest_extra=4), groups=2, coverage=0.4).build()
    together = search(model, memory(list(range(12)), lengths), SYMBOLS)
    for number in range(12):
        (alone,) = search(model, memory([number], [lengths[number]], width=9), SYMBOLS)
        assert [h.tokens for h in alone] == [h.tokens for h in together[number]]
        assert all(close(a.score, b.score) for a, b in zip(alone, together[number], strict=True))


def test_the_formula():
    covered = torch.tensor([[[0.5, 1.0, 3.0, 0.25]], [[0.0, 2.0, 0.0, 0.0]]])
    real = torch.tensor([[True, True, True, False], [True, True, False, False]])
    expected = torch.tensor([[0.5], [LEAST]]).log() * 2
    assert torch.allclose(coverage_penalty(covered, real, 2.0), expected)


def test_attention_is_the_last_layers_and_that_of_all_members():
    one, two, other = torch.rand(3, 2, 4, 1, 6)
    assert torch.equal(attention({"decoder.0.cross": one, "decoder.1.cross": two, "x": other}), two.mean(1)[:, 0])
    members = {"member.0.decoder.0.cross": one, "member.1.decoder.0.cross": two, "member.1.decoder.0.self": other}
    assert torch.allclose(attention(members), (one.mean(1) + two.mean(1))[:, 0] / 2)


def test_a_model_without_attention_is_refused():
    with pytest.raises(ConfigError, match="coverage: this model's decoder has no attention to the source"):
        Beam(coverage=0.2).build()(markov(), memory([0]), SYMBOLS)
    assert Beam(coverage=0.2).needs_attention
    assert not Beam().needs_attention


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf")])
def test_refused_settings_of_coverage(weight):
    with pytest.raises(ConfigError) as error:
        Beam(coverage=weight)
    text = "coverage: expected a weight of at least 0, such as 0.2, or 0 for no such penalty, got"
    assert str(error.value) == f"{text} {weight}"
