"""Diverse beam search against a plain-Python one that never stops early."""

from __future__ import annotations

from collections import Counter

import pytest
from markov_model import EOS, SYMBOLS, Markov, V, check_sound, close, markov, memory

from transduce.core.errors import ConfigError
from transduce.search.constraints import DecodingConstraints
from transduce.search.settings import Beam, Limits

Found = list[tuple[float, tuple[int, ...]]]


def plain_groups(
    model: Markov, number: int, limit: int, size: int, groups: int, strength: float, alpha: float, n_best: int
) -> Found:
    """Finished hypotheses of all groups by score, at most n_best.

    Each group gives as many as it has paths; what is missing to n_best different ones, the next best of all groups.
    """
    part = size // groups
    live: list[Found] = [[(0.0, ())] for _ in range(groups)]
    finished: list[Found] = [[] for _ in range(groups)]
    for step in range(1, limit + 1):
        used: Counter[int] = Counter()
        for group in range(groups):
            candidates = [
                (total + model.log_probs(number, (*tokens, token))[-1], (*tokens, token))
                for total, tokens in live[group]
                for token in range(1, V)
            ]
            candidates.sort(key=lambda pair: strength * used[pair[1][-1]] - pair[0])
            candidates = candidates[: 2 * part]
            finished[group] += [(p / ((5 + step) / 6) ** alpha, t[:-1]) for p, t in candidates[:part] if t[-1] == EOS]
            live[group] = [(p, t) for p, t in candidates if t[-1] != EOS][:part]
            used.update([t[-1] for _, t in live[group]])
    ranked = [[(round(score, 9), tokens) for score, tokens in sorted(group, reverse=True)] for group in finished]
    kept = {one for group in ranked for one in group[: min(n_best, part)]}
    for one in sorted({one for group in ranked for one in group[:n_best]} - kept, reverse=True):
        kept |= {one} if len(kept) < n_best else set()
    return sorted(kept, reverse=True)[:n_best]


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.6])
@pytest.mark.parametrize(
    ("size", "groups", "strength", "n_best"),
    [(4, 2, 0.5, 4), (4, 4, 2.0, 4), (6, 3, 0.3, 2), (6, 2, 9.0, 1), (3, 3, 0, 3), (6, 3, 0.1, 6), (6, 3, 0, 5)],
)
def test_groups_find_what_a_plain_search_finds(alpha, size, groups, strength, n_best):
    sentences, limit = 20, 12
    model = markov(sentences, seed=21)
    model.tables[..., EOS] += 1
    beam = Beam(size, alpha, n_best, Limits(longest=limit), groups, strength)
    found = beam.build()(model, memory(list(range(sentences))), SYMBOLS)
    assert model.sizes[-1] < size * sentences, "some sentence must have stopped early, or this shows nothing"
    for number in range(sentences):
        truth = plain_groups(model, number, limit, size, groups, strength, alpha, n_best)
        finished = [hypothesis for hypothesis in found[number] if hypothesis.finished]
        assert [hypothesis.tokens for hypothesis in finished] == [tokens for _, tokens in truth]
        assert all(close(a.score, b) for a, (b, _) in zip(finished, truth, strict=True))
        for hypothesis in found[number]:
            check_sound(model, number, hypothesis)


def test_one_group_is_the_plain_beam_whatever_the_strength():
    model = markov(sentences=20, seed=22)
    batch, limits = memory(list(range(20))), Limits(longest=12)
    plain = Beam(4, 0.6, 3, limits).build()(model, batch, SYMBOLS)
    assert Beam(4, 0.6, 3, limits, groups=1, diversity=7.0).build()(model, batch, SYMBOLS) == plain


@pytest.mark.parametrize("strength", [0.0, 0.05, 0.5])
def test_what_groups_find_alike_is_replaced_by_what_else_they_found(strength):
    """Without strength all groups find the same: its two best are there, and four more that differ."""
    model = markov(sentences=10, seed=23)
    model.tables[..., EOS] += 1
    batch, limits = memory(list(range(10))), Limits(longest=30)
    found = Beam(6, 0.6, 6, limits, groups=3, diversity=strength).build()(model, batch, SYMBOLS)
    single = Beam(2, 0.6, 2, limits).build()(model, batch, SYMBOLS)
    for own, best in zip(found, single, strict=True):
        assert len({hypothesis.tokens for hypothesis in own}) == 6
        assert own[:1] == best[:1] or strength
        assert set(best) <= set(own)
        assert own == sorted(own, key=lambda one: -one.score)


def test_strength_makes_translations_differ_sooner():
    model = markov(sentences=40, seed=24)
    model.tables[..., EOS] -= 1
    batch = memory(list(range(40)))

    def first_tokens(strength: float) -> float:
        found = Beam(4, 0.6, 4, groups=4, diversity=strength).build()(model, batch, SYMBOLS)
        return sum(len({hypothesis.tokens[:1] for hypothesis in own}) for own in found) / 40

    assert first_tokens(0.0) < first_tokens(0.5) < first_tokens(3.0)


@pytest.mark.parametrize("include", [(), (((2, 4),),), (((3,), (4, 4)), ((2, 2),))])
def test_neighbours_change_nothing(include):
    model = markov(sentences=12, seed=25)
    lengths = [1 + number % 4 for number in range(12)]
    constraints = [DecodingConstraints(include=include if number % 3 else ()) for number in range(12)]
    search = Beam(6, 0.6, 4, Limits(longest_extra=6), groups=3, diversity=0.7).build()
    together = search(model, memory(list(range(12)), lengths), SYMBOLS, constraints)
    for number in range(12):
        alone = search(model, memory([number], [lengths[number]], width=9), SYMBOLS, [constraints[number]])
        assert alone == [together[number]]


GROUPS = "groups: expected a number of equal parts of the beam's size (4), got"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"groups": 3}, f"{GROUPS} 3"),
        ({"groups": 0}, f"{GROUPS} 0"),
        ({"groups": 8}, f"{GROUPS} 8"),
        ({"diversity": -0.1}, "diversity: expected a log-probability of at least 0, got -0.1"),
        ({"diversity": float("inf")}, "diversity: expected a log-probability of at least 0, got inf"),
    ],
)
def test_refused_settings_of_groups(settings, text):
    with pytest.raises(ConfigError) as error:
        Beam(**settings)
    assert str(error.value) == text
