"""Top continuations by chunks of the vocabulary, ties in order; which searches the static driver serves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.search import static_search
from transduce.search.constraints import UNCONSTRAINED, DecodingConstraints
from transduce.search.settings import Beam, Greedy, Limits, MaskPredict, MinimumBayesRisk, Sample
from transduce.search.static_search import VOCABULARY_BLOCK, StaticSearchConfig, best
from transduce.text.vocabulary import Symbols

SYMBOLS = Symbols(pad=0, bos=2, eos=3, unk=1, never=(0, 1, 2))


@settings(max_examples=200, deadline=None)
@given(
    sentences=st.integers(1, 3),
    paths=st.integers(1, 5),
    stretches=st.sampled_from([1, 2, 3, 8]),
    values=st.integers(1, 60),
    seed=st.integers(0, 1000),
)
def test_the_best_are_the_best_of_all_and_of_equals_the_first(
    sentences: int, paths: int, stretches: int, values: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    vocabulary = stretches * VOCABULARY_BLOCK
    log_probs = -torch.randint(0, values, (sentences, paths, vocabulary), generator=generator).float() / 4
    log_probs[torch.rand(log_probs.shape, generator=generator) < 0.3] = -torch.inf
    rank = -torch.randint(0, 5, (sentences, paths), generator=generator).float() / 4
    rank[:, 1:][torch.rand(sentences, paths - 1, generator=generator) < 0.3] = -torch.inf
    count = 2 * paths
    starts = torch.arange(0, paths * vocabulary, VOCABULARY_BLOCK)
    places, costs = best(-rank, log_probs, count, starts, torch.arange(VOCABULARY_BLOCK))
    for row in range(sentences):
        every = (rank[row][:, None] + log_probs[row]).flatten().tolist()
        order = sorted(range(len(every)), key=lambda place: (-every[place], place))[:count]
        possible = [place for place in order if every[place] > -torch.inf]
        assert places[row].tolist()[: len(possible)] == possible
        assert costs[row].tolist() == [-every[place] for place in order]


@pytest.mark.parametrize(
    ("search", "constraint", "served"),
    [
        (Greedy(), UNCONSTRAINED, True),
        (Greedy(), DecodingConstraints(prefix=(5, 6)), True),
        (Greedy(Limits(no_repeat=2, shortest=3, forbid=(7,))), UNCONSTRAINED, True),
        (Beam(4, n_best=3, length_penalty=-1.0), UNCONSTRAINED, True),
        (Beam(4, groups=2), UNCONSTRAINED, False),
        (Beam(4, coverage=0.1), UNCONSTRAINED, False),
        (Beam(4), DecodingConstraints(include=(((5,),),)), False),
        (Beam(4), DecodingConstraints(exclude=((5,),)), True),
        (Beam(4), DecodingConstraints(exclude=((5, 20),)), False),
        (Beam(11), UNCONSTRAINED, False),  # 2 * 11 continuations of the first path, of 20 tokens
        (Greedy(), DecodingConstraints(prefix=(20,)), False),  # the plain search says what is wrong
        (Greedy(Limits(forbid=(20,))), UNCONSTRAINED, False),
        (Greedy(Limits(forbid=(3,))), UNCONSTRAINED, False),  # nothing but the limit ends it
        (Greedy(Limits(forbid=tuple(range(4, 20)))), UNCONSTRAINED, False),
        (Sample(samples=30), UNCONSTRAINED, True),
        (MinimumBayesRisk(), UNCONSTRAINED, True),
        (Sample(), DecodingConstraints(include=(((5,),),)), False),
        (MaskPredict(), UNCONSTRAINED, False),
    ],
)
def test_what_is_done_in_fixed_shapes(search: Any, constraint: DecodingConstraints, served: bool) -> None:
    assert (StaticSearchConfig.of(search, [UNCONSTRAINED, constraint], SYMBOLS, 20) is not None) == served


def test_a_limit_that_is_not_known_is_left_to_the_eager_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_search, "KNOWN_LIMITS", ("longest", "shortest"))
    for limits, served in ((Limits(longest=9, shortest=2), True), (Limits(no_repeat=2), False)):
        assert (StaticSearchConfig.of(Greedy(limits), [UNCONSTRAINED], SYMBOLS, 20) is not None) == served
