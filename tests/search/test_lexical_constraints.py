"""Phrases that must appear: the automaton against naive matching, the search against enumeration of everything."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from markov_model import EOS, SYMBOLS, V, check_sound, close, enumerate_all, markov, memory

from transduce.search import Hypothesis
from transduce.search.beam import LexicalConstraints
from transduce.search.constraints import UNCONSTRAINED, Automaton, DecodingConstraints, without_implied
from transduce.search.settings import Beam, Limits
from transduce.text.vocabulary import Symbols

CPU = torch.device("cpu")
Include = tuple[tuple[tuple[int, ...], ...], ...]
CASES: list[Include] = [
    (((2,),),),
    (((3, 4),),),
    (((2, 2, 3),),),
    (((2, 3, 2, 4),),),
    (((2,),), ((4,),)),
    (((3, 3),), ((4,),)),
    (((4, 2), (3, 3)),),
    (((2, 3), (2,)), ((4,), (3, 4))),
    (((2, 3),), ((2, 3),)),
    (((3,),), ((2, 3, 4), (3, 3)), ((4, 4), (3,))),
]


def occurs(phrase: tuple[int, ...], tokens: tuple[int, ...]) -> bool:
    return any(phrase == tokens[i : i + len(phrase)] for i in range(len(tokens)))


def fulfils(tokens: tuple[int, ...], include: Include) -> bool:
    return all(any(occurs(phrase, tokens) for phrase in ways) for ways in include)


def search(beam: Beam, model, number: int, include: Include) -> list[Hypothesis]:
    return beam.build()(model, memory([number]), SYMBOLS, [DecodingConstraints(include=include)])[0]


# -- the automaton ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("include", [*CASES, (((2, 3, 2, 3, 4), (3, 2, 3)), ((2, 3, 2, 2),))])
def test_the_automaton_agrees_with_reading_all_that_is_written(include):
    wanted, kept = LexicalConstraints.of([include, ()], CPU), without_implied(include)
    sentence = torch.tensor([0])
    draw = random.Random(1)
    for _ in range(30):
        standing, written = wanted.start(sentence, 1), ()
        for _ in range(9):
            ahead = wanted.left_after(sentence, standing)[0, 0].tolist()
            token = draw.choice(range(2, V))
            written = (*written, token)
            standing = wanted.after(sentence, standing, torch.tensor([[token]]))
            met = [any(occurs(phrase, written) for phrase in ways) for ways in kept]
            assert standing.met[0, 0].tolist() == met
            needed = [0 if done else min(map(len, ways)) for done, ways in zip(met, kept, strict=True)]
            begun = [
                min(len(way) - n for way in ways for n in range(len(way)) if written[len(written) - n :] == way[:n])
                for ways in kept
            ]
            options = [sum(needed) - whole + rest for whole, rest in zip(needed, begun, strict=True) if whole]
            left = wanted.left(sentence, standing).item()
            assert left == min(options, default=0)
            column = Automaton.of(include).tokens
            assert left == ahead[column.index(token) if token in column else -1]


def test_a_phrase_that_another_contains_counts_once():
    assert without_implied((((3,),), ((2, 3),), ((4,),))) == (((2, 3),), ((4,),))
    assert without_implied((((2, 3),), ((3,),), ((2, 3),))) == (((2, 3),),)
    assert without_implied((((2,), (3,)), ((3,), (2,)))) == (((2,), (3,)),)
    assert without_implied((((2,), (3,)), ((2, 4),))) == (((2, 4),),)
    assert without_implied((((2, 4), (3,)), ((2,),))) == (((2, 4), (3,)), ((2,),))


def test_some_token_always_helps():
    for include in CASES:
        wanted = LexicalConstraints.of([include], CPU)
        sentence, draw = torch.tensor([0]), random.Random(2)
        for _ in range(20):
            standing = wanted.start(sentence, 1)
            for _ in range(6):
                left = wanted.left(sentence, standing).item()
                assert left == 0 or wanted.left_after(sentence, standing).min() < left
                standing = wanted.after(sentence, standing, torch.tensor([[draw.choice(range(2, V))]]))


# -- the search ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("include", CASES)
@pytest.mark.parametrize("alpha", [0.0, 0.6, -1.0])
def test_a_wide_beam_finds_the_best_of_all_that_hold_the_phrases(include, alpha):
    model = markov(4, seed=41)
    beam = Beam(400, alpha, 10, Limits(longest=6))
    constraints = [DecodingConstraints(include=include)] * 4
    found = beam.build()(model, memory([0, 1, 2, 3]), SYMBOLS, constraints)
    for number in range(4):
        everything = enumerate_all(model, number, limit=6, alpha=alpha)
        truth = [(score, tokens) for score, tokens in everything if fulfils(tokens, include)][:10]
        assert [hypothesis.tokens for hypothesis in found[number]] == [tokens for _, tokens in truth]
        for hypothesis, (score, _) in zip(found[number], truth, strict=True):
            assert hypothesis.finished
            assert close(hypothesis.score, score)
            check_sound(model, number, hypothesis)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("extra", [0, 1, 4, 12])
def test_even_a_narrow_beam_includes_all_and_ends(size, extra):
    """`extra` tokens beyond the phrases: with none, nothing but the phrases and the end fit."""
    model = markov(10, seed=42)
    for include in CASES:
        longest = sum(min(map(len, ways)) for ways in include) + 1 + extra
        beam = Beam(size, 0.6, size, Limits(longest=longest, longest_extra=99))
        every = beam.build()(model, memory(list(range(10))), SYMBOLS, [DecodingConstraints(include=include)] * 10)
        for number, found in enumerate(every):
            assert found[0].finished
            for hypothesis in found:
                assert fulfils(hypothesis.tokens, include) == hypothesis.finished
                assert len(hypothesis.token_log_probs) <= longest
                check_sound(model, number, hypothesis)


def test_a_narrow_beam_stays_near_the_best():
    """The share of the best score that is lost; placing the phrases first or last would lose far more."""
    model = markov(10, seed=43)
    include = (((2, 3, 4),), ((4, 4),))
    lost, worst = 0.0, 0.0
    for number in range(10):
        everything = enumerate_all(model, number, limit=7, alpha=0.6)
        best = next(score for score, tokens in everything if fulfils(tokens, include))
        found = search(Beam(4, 0.6, limits=Limits(longest=7)), model, number, include)[0].score
        first = next(s for s, tokens in everything if tokens == (2, 3, 4, 4, 4))
        lost, worst = lost + best - found, worst + best - first
    assert -1e-4 < lost < 0.2 * worst


def test_neighbours_change_nothing_whatever_they_ask():
    model = markov(sentences=12, seed=44)
    lengths = [1 + number % 4 for number in range(12)]
    asked = [DecodingConstraints(include=include) for include in CASES[:9]] + [
        UNCONSTRAINED,
        DecodingConstraints((4, 2)),
        DecodingConstraints((2,), (((2, 2),),), ((3,),)),
    ]
    for settings in ({}, {"groups": 2}, {"size": 1, "n_best": 1}):
        run = Beam(**{"size": 4, "n_best": 2, "limits": Limits(longest_extra=6), **settings}).build()
        together = run(model, memory(list(range(12)), lengths), SYMBOLS, asked)
        for number in range(12):
            alone = run(model, memory([number], [lengths[number]], width=9), SYMBOLS, [asked[number]])
            assert alone == [together[number]]
    plain = run(model, memory([9], [lengths[9]]), SYMBOLS)
    assert plain == [together[9]]


def test_of_equal_paths_the_first_is_taken_in_any_company():
    model = markov(2)
    model.tables[:], model.drift[:] = 0, 0
    run = Beam(3, 0.0, 3, Limits(longest=4)).build()
    (plain,) = run(model, memory([0]), SYMBOLS)
    beside, _ = run(model, memory([0, 1]), SYMBOLS, [UNCONSTRAINED, DecodingConstraints(include=(((2, 3, 4),),))])
    assert beside == plain


def test_where_the_limit_leaves_no_room_it_says_so():
    model = markov(6, seed=45)
    include = (((2, 3, 4),), ((4, 2),))
    beam = Beam(4, limits=Limits(longest=4))
    for number in range(6):
        (best,) = search(beam, model, number, include)
        assert not best.finished
        assert len(best.tokens) == 4
        assert occurs((2, 3, 4), best.tokens) or occurs((4, 2), best.tokens)  # as much of it as fits


def test_the_first_number_is_a_token_as_any_other():
    """In a table of others it may be a word."""
    others = Symbols(pad=4, bos=4, eos=EOS, unk=4, never=(4,))
    for number in range(10):
        constraint = DecodingConstraints(include=(((0, 2, 0),),))
        (best,) = Beam(2, limits=Limits(longest=4)).build()(markov(10, seed=2), memory([number]), others, [constraint])[
            0
        ]
        assert (best.tokens, best.finished) == ((0, 2, 0), True)


def test_phrases_that_overlap_may_share_tokens():
    model = markov(6, seed=46)
    include = (((2, 3),), ((3, 4),))
    for number in range(6):
        (best,) = search(Beam(4, limits=Limits(longest=4)), model, number, include)
        assert (best.tokens, best.finished) == ((2, 3, 4), True)


def test_what_the_prefix_holds_need_not_come_again():
    model = markov(8, seed=47)
    constraints = [DecodingConstraints((4, 2, 3), (((2, 3),), ((4, 4),)))] * 8
    for (best,) in Beam(4, limits=Limits(longest=3)).build()(model, memory(list(range(8))), SYMBOLS, constraints):
        assert best.tokens == (4, 2, 3, 4, 4)
        assert best.finished
    short = [
        DecodingConstraints((4, 2, 3), (((4, 4, 4, 4),),))
    ] * 8  # no room after the prefix, which must stand all the same
    for (best,) in Beam(4, limits=Limits(longest=3)).build()(model, memory(list(range(8))), SYMBOLS, short):
        assert (best.tokens[:3], best.finished) == ((4, 2, 3), False)


@pytest.mark.parametrize("limits", [Limits(longest=6, forbid=(3,)), Limits(longest=6, no_repeat=1)])
def test_what_other_rules_forbid_is_not_said_to_be_there(limits):
    include = (((3, 2, 3),),)
    for number in range(5):
        found = search(Beam(3, n_best=3, limits=limits), markov(5, seed=48), number, include)
        assert found
        assert not any(hypothesis.finished for hypothesis in found)
        assert not any(fulfils(hypothesis.tokens, include) for hypothesis in found)


def test_included_and_excluded_at_once():
    model = markov(8, seed=49)
    constraint = DecodingConstraints(include=(((2, 3),), ((4,),)), exclude=((3, 4), (4, 2)))
    for size in (3, 400):
        beam = Beam(size, n_best=3, limits=Limits(longest=6))
        found = beam.build()(model, memory(list(range(8))), SYMBOLS, [constraint] * 8)
        for number in range(8):
            everything = [tokens for _, tokens in enumerate_all(model, number, limit=6, alpha=0.6)]
            right = [
                t
                for t in everything
                if fulfils(t, constraint.include) and not any(occurs(p, t) for p in constraint.exclude)
            ]
            if size == 400:
                assert [hypothesis.tokens for hypothesis in found[number]] == right[:3]
            assert found[number][0].finished
            assert {hypothesis.tokens for hypothesis in found[number] if hypothesis.finished} <= {*right}


def test_all_orders_of_the_phrases_are_tried():
    """Whatever order a model likes best, a beam of the smallest width finds it."""
    phrases = ((2, 2), (3, 3), (4, 4))
    for order in itertools.permutations(phrases):
        model = markov(1, seed=50, spread=0.1)
        liked = (0, 0, *itertools.chain(*order), EOS)
        for before, last, then in zip(liked, liked[1:], liked[2:], strict=False):
            model.tables[0, before, last, then] += 2
        (best,) = search(Beam(1, limits=Limits(longest=8)), model, 0, tuple((phrase,) for phrase in phrases))
        assert best.tokens == (*itertools.chain(*order),)


def test_the_beam_is_as_wide_as_the_stages():
    model = markov(3, seed=51)
    include = (((2, 3, 4),), ((4, 4),))
    Beam(2, limits=Limits(longest=9)).build()(
        model, memory([0, 1]), SYMBOLS, [DecodingConstraints(include=include), UNCONSTRAINED]
    )
    assert model.sizes[0] == 2 * 6
    model.sizes.clear()
    Beam(8, limits=Limits(longest=9)).build()(model, memory([0]), SYMBOLS, [DecodingConstraints(include=include)])
    assert model.sizes[0] == 8


def test_included_tokens_must_exist():
    with pytest.raises(ValueError, match=r"include: expected tokens below the vocabulary's size \(5\), got 9"):
        search(Beam(), markov(), 0, (((2, 9),),))
