"""One set of laws over every driver of decoding: the eager search, the static cache and the C++ core.

What is found is held against the model's own log-probabilities, enumeration of everything, and a plain beam search.
"""

from __future__ import annotations

from typing import Any

import pytest
from decoding_drivers import DRIVERS, SEARCHES, WORDS, Driver, driver_of, source_length
from markov_model import EOS, V, check_sound, close, enumerate_all, plain_beam, power_penalty, wu_penalty

from transduce.search.constraints import CancelToken, DecodingConstraints
from transduce.search.settings import Beam, Greedy, Sample

ALPHAS = [-1.0, 0.0, 0.6, 1.0, 2.5]
PENALTIES = {"gnmt": wu_penalty, "power": power_penalty}


@pytest.fixture(scope="module", params=DRIVERS)
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return driver_of(request.param, tmp_path_factory.mktemp("driver"))


@pytest.mark.parametrize("shrinking", [False, True])
@pytest.mark.parametrize(("alpha", "normalization"), [(0.0, "gnmt"), (0.6, "gnmt"), (-1.0, "power"), (1.0, "power")])
def test_scores_are_what_the_model_gives(driver: Driver, alpha: float, normalization: Any, shrinking: bool) -> None:
    """Divided by the length penalty; finished translations come first, each kind by score, and none twice."""
    limits, numbers = driver.limits(6), driver.first(20)
    beam = Beam(4, alpha, 4, limits, length_normalization=normalization, shrinking=shrinking)
    found = driver.search(numbers, beam)
    for number, hypotheses in zip(numbers, found, strict=True):
        assert len(hypotheses) == len({(one.tokens, one.finished) for one in hypotheses}) == 4
        order = [(one.finished, one.score) for one in hypotheses]
        assert order == sorted(order, reverse=True)
        for one in hypotheses:
            check_sound(driver.model, number, one)
            assert close(one.score, one.log_prob / PENALTIES[normalization](len(one.token_log_probs), alpha))
            assert len(one.tokens) <= 5 if one.finished else len(one.tokens) == 6
            assert set(one.tokens) <= set(WORDS)
    assert len({one.tokens for own in found for one in own}) > 12, "or this shows little"


@pytest.mark.parametrize("normalization", PENALTIES)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_wide_beam_finds_the_best_of_all(driver: Driver, alpha: float, normalization: Any) -> None:
    size, longest = driver.wide
    wide = Beam(size, alpha, min(20, size), driver.limits(longest), length_normalization=normalization)
    for number, hypotheses in enumerate(driver.search(driver.first(6), wide)):
        truth = enumerate_all(driver.model, number, longest, alpha, PENALTIES[normalization])[:20]
        finished = [hypothesis for hypothesis in hypotheses if hypothesis.finished]
        assert [hypothesis.tokens for hypothesis in finished] == [tokens for _, tokens in truth]
        for hypothesis, (score, _) in zip(finished, truth, strict=True):
            assert close(hypothesis.score, score)
            check_sound(driver.model, number, hypothesis)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(("size", "n_best"), [(1, 1), (2, 1), (3, 3), (5, 2)])
@pytest.mark.parametrize("normalization", PENALTIES)
@pytest.mark.parametrize("shrinking", [False, True])
def test_stopping_early_loses_nothing(
    driver: Driver, alpha: float, size: int, n_best: int, normalization: Any, shrinking: bool
) -> None:
    numbers, longest = driver.first(25), 15 if driver.name.endswith("table") else 6
    limits, penalty = driver.limits(longest), PENALTIES[normalization]
    beam = Beam(size, alpha, n_best, limits, length_normalization=normalization, shrinking=shrinking)
    found = driver.search(numbers, beam)
    if driver.name == "short table" and (alpha, normalization) != (2.5, "power"):  # there almost any long path may win
        assert driver.model.sizes[-1] < size * 25, "some sentence must have stopped early, or this shows nothing"
    for number in numbers:
        truth = plain_beam(driver.model, number, longest, size, alpha, n_best, penalty=penalty, shrinking=shrinking)
        finished = [hypothesis for hypothesis in found[number] if hypothesis.finished]
        assert [hypothesis.tokens for hypothesis in finished] == [tokens for _, tokens in truth]
        assert all(close(a.score, b) for a, (b, _) in zip(finished, truth, strict=True))
        assert len(found[number]) == n_best


def test_greedy_follows_the_most_probable_token(driver: Driver) -> None:
    longest = 12 if driver.name.endswith("table") else 6
    numbers = driver.first(60)
    found = driver.search(numbers, Greedy(driver.limits(longest)))
    if driver.name != "short table":
        assert {hypothesis.finished for (hypothesis,) in found} == {True, False}
    for number, (hypothesis,) in zip(numbers, found, strict=True):
        tokens: tuple[int, ...] = ()
        while len(tokens) < longest and tokens[-1:] != (EOS,):
            best = max(range(1, V), key=lambda token: driver.model.log_probs(number, (*tokens, token))[-1])
            tokens = (*tokens, best)
        finished = tokens[-1] == EOS
        assert (hypothesis.tokens, hypothesis.finished) == (tokens[:-1] if finished else tokens, finished)
        assert hypothesis.score == hypothesis.log_prob
        check_sound(driver.model, number, hypothesis)


def test_a_beam_of_one_is_greedy(driver: Driver) -> None:
    numbers, limits = driver.first(60), driver.limits(12)
    greedy = driver.search(numbers, Greedy(limits))
    driver.assert_same(driver.search(numbers, Beam(size=1, length_penalty=0.0, limits=limits)), greedy)
    if driver.name != "short table":
        assert {hypothesis.finished for (hypothesis,) in greedy} == {True, False}


@pytest.mark.parametrize(
    "make",
    [
        lambda limits: Greedy(limits(12)),
        lambda limits: Sample(samples=3, limits=limits(12)),
        lambda limits: Sample(top_p=0.8, limits=limits(12)),
        lambda limits: Beam(3, -0.5, 2, limits(longest_extra=4)),
        lambda limits: Beam(3, 0.6, 2, limits(longest_extra=4)),
    ],
    ids=["greedy", "samples", "top_p", "beam, short", "beam"],
)
def test_neighbours_in_a_batch_change_nothing(driver: Driver, make: Any) -> None:
    search = make(driver.limits)
    together = driver.search(range(12), search)
    driver.assert_same(driver.search(range(11, -1, -1), search), together[::-1])
    for number in range(12):
        driver.assert_same(driver.search([number], search), [together[number]])


def test_cut_paths_fill_only_empty_places_and_come_last(driver: Driver) -> None:
    found = driver.search(driver.first(20), Beam(6, 0.6, 6, driver.limits(4, shortest=3)))
    kinds = set()
    for number, hypotheses in enumerate(found):
        assert len({(hypothesis.tokens, hypothesis.finished) for hypothesis in hypotheses}) == len(hypotheses) == 6
        finished = [hypothesis.finished for hypothesis in hypotheses]
        kinds.add((finished[0], finished[-1]))
        assert finished == sorted(finished, reverse=True)
        for kind in (True, False):
            scores = [hypothesis.score for hypothesis in hypotheses if hypothesis.finished is kind]
            assert scores == sorted(scores, reverse=True)
        for hypothesis in hypotheses:
            check_sound(driver.model, number, hypothesis)
            assert len(hypothesis.tokens) == 3 if hypothesis.finished else len(hypothesis.tokens) == 4
    assert (True, False) in kinds


def test_fewer_hypotheses_where_the_rules_allow_no_more(driver: Driver) -> None:
    found = driver.search([0], Beam(4, n_best=4, limits=driver.limits(2, forbid=(3, 4))))[0]
    assert {(hypothesis.tokens, hypothesis.finished) for hypothesis in found} == {
        ((), True),
        ((2,), True),
        ((2, 2), False),
    }


def test_a_longer_penalty_favours_longer_translations(driver: Driver) -> None:
    numbers, limits = driver.first(40), driver.limits(20)
    lengths = [
        sum(len(best.tokens) for best, *_ in driver.search(numbers, Beam(8, alpha, limits=limits)))
        for alpha in (-1, 0, 1, 2)
    ]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


@pytest.mark.parametrize("name", DRIVERS)
def test_of_equal_paths_the_lowest_beam_and_token_come_first(name: str, tmp_path: Any) -> None:
    equal = driver_of(name, tmp_path, equals=True)
    found = equal.search([0], Beam(3, 0.0, 3, equal.limits(2, forbid=(EOS,))))[0]
    assert [hypothesis.tokens for hypothesis in found] == [(2, 2), (2, 3), (2, 4)]
    found = equal.search([0], Beam(3, 0.0, 3, equal.limits(3, shortest=2)))[0]
    assert [(hypothesis.tokens, hypothesis.finished) for hypothesis in found] == [
        ((2, 2), True),
        ((2, 2, 2), False),
        ((2, 2, 3), False),
    ]
    (greedy,) = equal.search([0], Greedy(equal.limits(3, shortest=2)))[0]
    assert (greedy.tokens, greedy.finished) == ((2, 2), True)  # the end symbol is the lowest token of all
    (greedy,) = equal.search([0], Greedy(equal.limits(3, forbid=(EOS,))))[0]
    assert greedy.tokens == (2, 2, 2)


@pytest.mark.parametrize("search", SEARCHES)
def test_every_search_keeps_to_its_limits(driver: Driver, search: Any) -> None:
    def run(*longest: int, **settings: Any) -> Any:
        return [found[0] for found in driver.search(range(4), search(limits=driver.limits(*longest, **settings)))]

    for number, hypothesis in enumerate(run(longest_ratio=2, longest_extra=1)):
        assert len(hypothesis.token_log_probs) <= 2 * source_length(number) + 1
        assert hypothesis.finished == (len(hypothesis.token_log_probs) == len(hypothesis.tokens) + 1)
    cut = run(2, forbid=(EOS,))
    assert [(len(hypothesis.tokens), hypothesis.finished) for hypothesis in cut] == [(2, False)] * 4
    assert all(len(hypothesis.tokens) >= 6 for hypothesis in run(shortest=6))
    assert all(3 not in hypothesis.tokens for hypothesis in run(forbid=(3,), shortest=6))
    for hypothesis in run(no_repeat=2, shortest=6):
        pairs = list(zip(hypothesis.tokens, hypothesis.tokens[1:], strict=False))
        assert len(pairs) == len(set(pairs))
    once = run(no_repeat=1, shortest=6)  # three tokens can be written, so the fourth must be the end
    assert [(sorted(hypothesis.tokens), hypothesis.finished) for hypothesis in once] == [([2, 3, 4], True)] * 4


@pytest.mark.parametrize("search", SEARCHES)
def test_every_search_begins_with_the_prefix(driver: Driver, search: Any) -> None:
    prefixes = [(), (4, 4, 4, 2, 3), (2,), (0, 3)]  # 0 is forbidden, but a prefix may hold it
    constraints, limited = list(map(DecodingConstraints, prefixes)), search(limits=driver.limits(3))
    found = driver.search(range(4), limited, constraints)
    for hypotheses, prefix in zip(found, prefixes, strict=True):
        for hypothesis in hypotheses:
            assert hypothesis.tokens[: len(prefix)] == prefix
            assert len(hypothesis.token_log_probs) <= len(prefix) + 3
    for number in range(4):
        driver.assert_same(driver.search([number], limited, [constraints[number]]), [found[number]])


@pytest.mark.parametrize(
    "make",
    [Greedy, lambda limits: Sample(samples=5, limits=limits), lambda limits: Beam(limits=limits)],
    ids=["greedy", "samples", "beam"],
)
def test_every_search_leaves_out_what_is_excluded(driver: Driver, make: Any) -> None:
    search = make(driver.limits(20, longest_extra=20, shortest=12))
    free = driver.search(range(12), search)
    written = [own[0].tokens for own in free]
    phrases = [((own[:1],), (own[1:3], own[4:6]), (own[2:5], (4, 4, 4)), ())[i % 4] for i, own in enumerate(written)]
    constraints = [DecodingConstraints(exclude=own) for own in phrases]
    found = driver.search(range(12), search, constraints)

    def occurs(phrase: tuple[int, ...], hypotheses: Any) -> bool:
        return any(phrase == h.tokens[i : i + len(phrase)] for h in hypotheses for i in range(len(h.tokens)))

    assert not any(occurs(phrase, found[i]) for i in range(12) for phrase in phrases[i])
    for i in range(12):
        driver.assert_same([found[i]], driver.search([i], search, [constraints[i]]))
        if phrases[i]:
            assert found[i] != free[i]
        else:
            driver.assert_same([found[i]], [free[i]])


@pytest.mark.parametrize("search", SEARCHES)
def test_a_row_to_which_nothing_is_left_ends(driver: Driver, search: Any) -> None:
    for number, hypotheses in enumerate(driver.search(range(3), search(limits=driver.limits(6, forbid=tuple(WORDS))))):
        assert [(hypothesis.tokens, hypothesis.finished) for hypothesis in hypotheses] == [((), True)]
        check_sound(driver.model, number, hypotheses[0])


@pytest.mark.parametrize("make", [Greedy, Beam, Sample])
def test_cancelled_sentences_are_left_and_the_others_stay(driver: Driver, make: Any) -> None:
    settings = {Greedy: {}, Beam: {"size": 3}, Sample: {"samples": 2}}[make]
    search = make(limits=driver.limits(64, longest_extra=64, shortest=63), **settings)
    expected = driver.search(range(5), search, [DecodingConstraints(stop=CancelToken()) for _ in range(5)])
    tokens = [CancelToken() for _ in range(5)]
    tokens[1].cancel()
    found = driver.search(range(5), search, [DecodingConstraints(stop=token) for token in tokens])
    assert all(len(hypothesis.tokens) <= 1 and not hypothesis.finished for hypothesis in found[1])
    for number in (0, 2, 3, 4):
        assert [one.tokens for one in found[number]] == [one.tokens for one in expected[number]]
