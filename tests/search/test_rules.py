"""Each rule alone, how rules combine, how long a translation may be, and what the settings refuse."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from markov_model import EOS, SYMBOLS, V, markov, memory

from transduce.core.errors import ConfigError
from transduce.search.constraints import UNCONSTRAINED, DecodingConstraints
from transduce.search.rules import exclude, forbid, force, hold_back, next_log_probs, no_repeat, rules_of
from transduce.search.settings import Beam, Greedy, Joint, Limits, MaskPredict, Sample

CPU = torch.device("cpu")
SEARCHES = [Greedy, Sample, Beam]


def allowed(rule, tokens: list[list[int]], sentence: list[int] | None = None, size: int = V) -> list[list[int]]:
    """The tokens that a rule leaves to each row."""
    sentence = sentence or list(range(len(tokens)))
    everything = torch.ones(len(tokens), size, dtype=torch.bool)
    left = rule(everything, torch.tensor(tokens).view(len(tokens), -1), torch.tensor(sentence))
    assert everything.all(), "a rule must not change what it is given"
    return [row.nonzero().flatten().tolist() for row in left]


def test_forbid():
    assert allowed(forbid((0, 3), CPU), [[2], [4]]) == [[1, 2, 4], [1, 2, 4]]
    assert allowed(forbid((), CPU), [[2]]) == [[0, 1, 2, 3, 4]]


def test_hold_back_counts_each_sentence_by_itself():
    rule = hold_back(EOS, [1, 3], CPU)
    assert allowed(rule, [[2, 2], [2, 2]]) == [[0, 1, 2, 3, 4], [0, 2, 3, 4]]
    assert allowed(rule, [[2, 2, 2], [2, 2, 2]]) == [[0, 1, 2, 3, 4]] * 2


@pytest.mark.parametrize(
    ("size", "tokens", "left"),
    [
        (1, [2, 3], [0, 1, 4]),
        (2, [2, 3, 2], [0, 1, 2, 4]),
        (2, [2], [0, 1, 2, 3, 4]),
        (2, [2, 2], [0, 1, 3, 4]),
        (3, [2, 3, 4, 2, 3], [0, 1, 2, 3]),
        (2, [2, 3, 2, 4, 2], [0, 1, 2]),
        (3, [2, 3], [0, 1, 2, 3, 4]),
        (4, [2, 3], [0, 1, 2, 3, 4]),
    ],
)
def test_no_repeat(size, tokens, left):
    assert allowed(no_repeat(size), [tokens]) == [left]


def test_no_repeat_agrees_with_counting():
    tokens = torch.randint(0, V, (50, 12), generator=torch.Generator().manual_seed(3)).tolist()
    for size in (1, 2, 3):
        for row, left in zip(tokens, allowed(no_repeat(size), tokens), strict=True):
            grams = {tuple(row[i : i + size]) for i in range(len(row) - size + 1)}
            latest = row[len(row) - size + 1 :]
            assert left == [token for token in range(V) if (*latest, token) not in grams]


def test_exclude_strikes_the_last_token_of_a_phrase_just_begun():
    rule = exclude([((2, 3), (4,), (3, 3, 2)), (), ((4, 4),)], CPU)
    everything = [0, 1, 2, 3, 4]
    assert allowed(rule, [[], [], []]) == [[0, 1, 2, 3], everything, everything]
    assert allowed(rule, [[2], [2], [4]]) == [[0, 1, 2], everything, [0, 1, 2, 3]]
    assert allowed(rule, [[3, 3], [4, 4], [2, 3]]) == [[0, 1, 3], everything, everything]
    assert allowed(rule, [[4, 4], [2, 2]], [2, 0]) == [[0, 1, 2, 3], [0, 1, 2]]


def test_a_prefix_overrules_what_is_excluded():
    found = Greedy(Limits(longest=5)).build()(
        markov(), memory([0]), SYMBOLS, [DecodingConstraints((2, 3), exclude=((3,),))]
    )
    assert found[0][0].tokens[:2] == (2, 3)
    assert 3 not in found[0][0].tokens[2:]


@pytest.mark.parametrize("search", [Greedy(), Sample()])
def test_only_a_beam_includes(search):
    with pytest.raises(ConfigError, match="include: words that must appear need a beam search, which keeps paths"):
        search.build()(markov(), memory([0]), SYMBOLS, [DecodingConstraints(include=(((2,),),))])


def test_force_by_sentence_not_by_row():
    rule = force([(3, 4), (), (2,)], CPU)
    assert allowed(rule, [[], [], []], [2, 1, 0]) == [[2], [0, 1, 2, 3, 4], [3]]
    assert allowed(rule, [[9], [9]], [0, 2]) == [[4], [0, 1, 2, 3, 4]]
    assert allowed(rule, [[9, 9]], [0]) == [[0, 1, 2, 3, 4]]


def test_log_probs_are_the_models_own():
    logits = torch.randn(2, V, dtype=torch.bfloat16)
    rules = rules_of(Limits(forbid=(3,)), SYMBOLS, [DecodingConstraints((4,)), UNCONSTRAINED], CPU)
    found = next_log_probs(logits, torch.empty(2, 0, dtype=torch.int64), torch.arange(2), rules, EOS)
    truth = logits.float().log_softmax(-1)
    assert found.dtype == torch.float32
    assert found[0].isfinite().nonzero().flatten().tolist() == [4]
    assert found[1].isfinite().nonzero().flatten().tolist() == [1, 2, 4]
    assert torch.equal(found[found.isfinite()], truth[found.isfinite()])


def test_a_prefix_overrules_other_rules():
    limits = Limits(forbid=(3,), no_repeat=1, shortest=2)
    rules = rules_of(limits, SYMBOLS, [DecodingConstraints((0, 0, 3))], CPU)
    for written in ([], [0], [0, 0]):
        tokens = torch.tensor([written], dtype=torch.int64).view(1, -1)
        found = next_log_probs(torch.zeros(1, V), tokens, torch.zeros(1, dtype=torch.int64), rules, EOS)
        assert found.isfinite().nonzero()[:, 1].tolist() == [(0, 0, 3)[len(written)]]


def test_a_row_with_nothing_left_may_end():
    rules = rules_of(Limits(forbid=(2, 3, 4), shortest=3), SYMBOLS, [UNCONSTRAINED], CPU)
    logits = torch.randn(1, V)
    sentence = torch.zeros(1, dtype=torch.int64)
    found = next_log_probs(logits, torch.empty(1, 0, dtype=torch.int64), sentence, rules, EOS)
    assert found.isfinite().nonzero()[:, 1].tolist() == [EOS]
    assert found[0, EOS] == logits.log_softmax(-1)[0, EOS]


def test_even_an_impossible_end_is_finite():
    logits = torch.tensor([[0.0, -torch.inf, 0.0, 0.0, 0.0]])
    sentence = torch.zeros(1, dtype=torch.int64)
    found = next_log_probs(logits, torch.empty(1, 0, dtype=torch.int64), sentence, [forbid((0, 2, 3, 4), CPU)], EOS)
    assert found.isfinite().nonzero()[:, 1].tolist() == [EOS]


def test_lengths_come_from_a_sentences_own_source():
    sources = [0, 3, 9]
    assert Limits(longest_ratio=1.5, longest_extra=2, longest=12).lengths(sources, [UNCONSTRAINED] * 3) == [2, 6, 12]
    assert Limits(longest_ratio=0, longest_extra=0).lengths(sources, [UNCONSTRAINED] * 3) == [1, 1, 1]
    assert Limits(longest_ratio=1, longest_extra=0, shortest=5).lengths(sources, [UNCONSTRAINED] * 3) == [6, 6, 9]
    assert Limits(longest_ratio=1, longest_extra=0).lengths(
        sources, [DecodingConstraints((2,)), UNCONSTRAINED, DecodingConstraints((2, 3))]
    ) == [
        2,
        3,
        11,
    ]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"longest_ratio": -1.0}, "longest_ratio: expected a number from 0 to 100, got -1.0"),
        ({"longest_ratio": float("nan")}, "longest_ratio: expected a number from 0 to 100, got nan"),
        ({"longest_extra": -1}, "longest_extra: expected an integer from 0 to 4,096, got -1"),
        ({"longest": 0}, "longest: expected an integer from 1 to 100,000, got 0"),
        ({"shortest": -1}, "shortest: expected an integer from 0 up to, not including, longest (512), got -1"),
        (
            {"shortest": 9, "longest": 9},
            "shortest: expected an integer from 0 up to, not including, longest (9), got 9",
        ),
        ({"no_repeat": -2}, "no_repeat: expected an n-gram size, or 0 for no such rule, got -2"),
        ({"forbid": (3, -1)}, "forbid: expected token numbers of at least 0, got (3, -1)"),
    ],
)
def test_refused_settings(settings, text):
    with pytest.raises(ConfigError) as error:
        Limits(**settings)
    assert str(error.value) == text


def test_forbidden_tokens_must_exist():
    with pytest.raises(ConfigError) as error:
        Greedy(Limits(forbid=(7,))).build()(markov(), memory([0]), SYMBOLS)
    assert str(error.value) == "forbid: expected token numbers below the vocabulary's size (5), got 7"


@pytest.mark.parametrize("search", SEARCHES)
def test_constraints_must_fit(search):
    with pytest.raises(ValueError) as error:
        search().build()(markov(), memory([0]), SYMBOLS, [DecodingConstraints((2,)), DecodingConstraints((3,))])
    assert str(error.value) == "constraints: expected one a sentence, 1 in all, got 2"
    for name, constraint in (
        ("prefix", DecodingConstraints((2, 9))),
        ("exclude", DecodingConstraints(exclude=((2,), (3, 9)))),
    ):
        with pytest.raises(ValueError) as error:
            search().build()(markov(), memory([0]), SYMBOLS, [constraint])
        assert str(error.value) == f"{name}: expected tokens below the vocabulary's size (5), got 9"


def test_what_other_engines_share_needs_no_torch():
    shared = ("search", "search.constraints", "search.settings")
    code = f"import sys; sys.modules['torch'] = None; import {', '.join(f'transduce.{name}' for name in shared)}"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("longest_ratio", 1e9, "a number from 0 to 100"),
        ("longest_ratio", math.nan, "a number from 0 to 100"),
        ("longest_extra", 4097, "an integer from 0 to 4,096"),
        ("longest", 100_001, "an integer from 1 to 100,000"),
        ("shortest", 4097, "an integer from 0 to 4,096"),
    ],
)
def test_no_search_may_be_requested_that_never_ends(name: str, value: float, expected: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: expected {expected}, got "):
        Limits(**{"longest": 100_000, name: value})


@pytest.mark.parametrize(
    "make",
    [Beam, lambda size, limits: Sample(samples=size, limits=limits), Joint],
    ids=["beam", "sample", "joint"],
)
def test_many_paths_may_not_all_be_long(make: Any) -> None:
    """In a folder of a stranger they ran for hours for one word."""
    make(4, limits=Limits(longest=5000, longest_extra=4096, shortest=4096))
    make(4096, limits=Limits())
    with pytest.raises(ConfigError, match=r"^limits\.shortest: expected at most 512 tokens where a sentence has 4,096"):
        make(4096, limits=Limits(longest=2000, shortest=1999))
    with pytest.raises(ConfigError, match=r"^limits\.longest_extra: expected at most 512 tokens where"):
        make(4096, limits=Limits(longest=2000, longest_extra=4096))
    make(4096, limits=Limits(longest_extra=4096))  # `longest` bounds it


def test_a_translation_is_not_polished_without_end() -> None:
    with pytest.raises(ConfigError, match=r"^iterations: expected an integer from 1 to 1,000, got 1001"):
        MaskPredict(iterations=1001)
