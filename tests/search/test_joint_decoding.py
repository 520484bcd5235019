"""Decoder and CTC head ranked together: scores by hand, both kinds of candidates, the same in any batch."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from transduce.core.errors import ConfigError
from transduce.data.batch import pad_sources
from transduce.model.attention import Attention
from transduce.model.seq2seq import CTCHead, Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.search import Hypothesis
from transduce.search.constraints import UNCONSTRAINED, DecodingConstraints
from transduce.search.settings import Beam, Joint, Limits
from transduce.text.vocabulary import Symbols

SYMBOLS = Symbols(pad=0, bos=1, eos=2, unk=3, never=(0, 1, 3))
SOURCES = [[4, 5, 6, 4], [5], [6, 6, 4, 5, 6]]
SHORT = Limits(longest=4)


def build(heads: tuple[Any, ...] = (CTCHead(upsample=1),)) -> Any:
    torch.manual_seed(3)
    stacks = TransformerEncoder(1, Attention(2), 16), TransformerDecoder(1, Attention(2), 16)
    model = Model(16, 0.0, encoder=stacks[0], decoder=stacks[1], heads=heads).build(7, 7, shared=True).eval()
    for parameter in model.parameters():
        parameter.data *= 2  # surer of itself than a new model
    return model


def find(search: Any, model: Any, sources: list[list[int]], constraints: Any = None) -> list[list[Hypothesis]]:
    with torch.no_grad():
        memory = model.encode(*pad_sources(sources, SYMBOLS))
    found: list[list[Hypothesis]] = search.build()(model, memory, SYMBOLS, constraints)
    return found


def heard(model: Any, source: list[int], tokens: tuple[int, ...]) -> float:
    """The log p of the tokens under the head: the sum over every path that collapses to them."""
    with torch.no_grad():
        memory = model.encode(*pad_sources([source], SYMBOLS))
        log_probs = model.heads["ctc"](memory)[0].double().log_softmax(-1)
    total = 0.0
    for path in itertools.product(sorted({*tokens, 7}), repeat=len(log_probs)):
        said = tuple(token for token, _ in itertools.groupby(path) if token != 7)
        if said == tokens:
            total += math.exp(sum(log_probs[place, token].item() for place, token in enumerate(path)))
    return math.log(total) if total else -1e9


def told(model: Any, source: list[int], tokens: tuple[int, ...]) -> float:
    """The log p under the decoder, a token at a time."""
    with torch.no_grad():
        state = model.start(model.encode(*pad_sources([source], SYMBOLS)))
        total, before = 0.0, SYMBOLS.bos
        for token in (*tokens, SYMBOLS.eos):
            logits, state = model.advance(torch.tensor([[before]]), state)
            total += logits[0, -1].double().log_softmax(-1)[token].item()
            before = token
    return total


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_scores_are_the_weighted_sum_of_both(weight: float) -> None:
    model = build()
    for source, found in zip(SOURCES, find(Joint(3, weight, 3, SHORT), model, SOURCES), strict=True):
        assert len(found) == 3
        finished = [one for one in found if one.finished]
        assert finished == sorted(finished, key=lambda one: -one.score)
        for one in found:
            decoder, head = told(model, source, one.tokens), heard(model, source, one.tokens)
            assert one.log_prob == pytest.approx(decoder, abs=1e-4)
            expected = (1 - weight) * decoder + weight * head
            assert one.score == pytest.approx(expected, abs=1e-3 * max(1, abs(expected)))


def test_candidates_come_from_both_and_the_best_of_all_wins() -> None:
    model = build()
    for number, source in enumerate(SOURCES):
        (by_decoder,) = find(Beam(3, 0.0, 3, SHORT), model, [source])
        (by_head,) = find(Joint(3, 1.0, 3, SHORT), model, [source])
        best = max(
            (one for one in [*by_decoder, *by_head] if one.finished),
            key=lambda one: 0.5 * told(model, source, one.tokens) + 0.5 * heard(model, source, one.tokens),
        )
        assert find(Joint(3, 0.5, 1, SHORT), model, SOURCES)[number][0].tokens == best.tokens, "in any batch"
        assert {one.tokens for one in by_head} - {one.tokens for one in by_decoder}, "the head adds some"


def test_what_must_be_said_is_said() -> None:
    model = build()
    constraint = DecodingConstraints(prefix=(4, 4))
    (free, bound) = find(Joint(3, 0.9, 3, SHORT), model, SOURCES[:2], [UNCONSTRAINED, constraint])
    assert free
    assert all(one.tokens[:2] == (4, 4) for one in bound)
    include, exclude = DecodingConstraints(include=(((6, 6),),)), DecodingConstraints(exclude=((5,), (4,)))
    with_it, without = find(Joint(3, 0.9, 3, SHORT), model, SOURCES[:2], [include, exclude])
    assert all((6, 6) in itertools.pairwise(one.tokens) for one in with_it)  # the head would say other things
    assert without
    assert not any({4, 5} & {*one.tokens} for one in without)


def test_a_model_without_a_head_is_refused() -> None:
    with pytest.raises(ConfigError, match="'joint' needs a model with a CTC head"):
        find(Joint(), build(()), SOURCES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size: expected an integer of at least 1, got 0"),
        ({"weight": 1.5}, "weight: expected the CTC head's share of the score, from 0 to 1, got 1.5"),
        ({"n_best": 6}, "n_best: expected an integer from 1 to the candidates of each kind, size = 5, got 6"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Joint(**settings)
