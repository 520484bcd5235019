"""Alignments: pieces to words, parts to texts, links and Pharaoh lines, from fakes and from a real model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import transduce
from transduce.core.errors import ConfigError, DataError, UserError
from transduce.engines.torch.engine import cross_attention
from transduce.search import Hypothesis
from transduce.search.ensemble import Ensemble
from transduce.search.settings import Greedy
from transduce.text.alignment import AlignedPart, Alignment, Grouped, group_text, group_tokens, join, merge
from transduce.text.tokenizer import Tokenizers
from transduce.text.train_tokenizer import SentencePiece
from transduce.translate.translator import Translator

if TYPE_CHECKING:
    from pathlib import Path

    from toy_model import Toy

LINES = ["one two three. four five, six", "eins zwei drei vier fünf", "一二三。四五，六"]


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    return SentencePiece(vocabulary=310, symbols=("<2de>",), normalization="identity").train(LINES, LINES).tokenizers


# -- units -----------------------------------------------------------------------------------------------------------

TEXTS = ["one two three.", "  fünf,   one\tsix ", "一二 三。 four", "😀 x😀 one", "", "one"]


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokens_of_each_word_spell_it(tokenizers: Tokenizers, text: str) -> None:
    tokenizer = tokenizers.source
    for found in (
        group_text(tokenizer, text, "words"),
        group_tokens(tokenizer, tokenizer.encode([text])[0], text, "words"),
    ):
        assert list(found.tokens) == tokenizer.encode([text])[0]
        assert list(found.units) == text.split()
        assert list(found.unit) == sorted(found.unit)
        for number, word in enumerate(found.units):
            own = [token for token, unit in zip(found.tokens, found.unit, strict=True) if unit == number]
            assert tokenizer.decode(own).strip() == word


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_units_of_their_own(tokenizers: Tokenizers, text: str) -> None:
    found = group_text(tokenizers.source, text, "pieces")
    assert found.unit == tuple(range(len(found.tokens)))
    assert list(found.units) == tokenizers.source.pieces(found.tokens)


def test_a_tokenizer_that_changes_words_still_gives_every_token_a_word() -> None:
    """NFKC makes words of marks, and drops some."""
    tokenizer = SentencePiece(vocabulary=300, normalization="nmt_nfkc").train(LINES, LINES).tokenizers.source
    for text in ("one ´a\u200b two", "\u200b one", "a\u00a0b ¨ c", "\u3000one\u2028two "):
        found = group_text(tokenizer, text, "words")
        assert list(found.units) == text.split()
        assert list(found.tokens) == tokenizer.encode([text])[0]
        assert all(0 <= unit < len(found.units) for unit in found.unit)


# -- matrices --------------------------------------------------------------------------------------------------------


def test_source_pieces_are_added_and_target_pieces_averaged() -> None:
    source = Grouped((1, 2, 3), ("ab", "c"), (0, 0, 1))
    target = Grouped((4, 5, 6), ("x", "yz"), (0, 1, 1))
    weights = np.array([[0.25, 0.25, 0.5], [0.5, 0.25, 0.25], [0, 0.25, 0.75]], dtype=np.float32)
    merged = merge(weights, source, target)
    assert merged.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert Alignment.read(source.units, target.units, merged).links == ((0, 0), (0, 1))  # of equals the first


def test_a_word_without_pieces_has_no_link() -> None:
    nothing = Grouped((1,), ("\u200b", "a"), (1,))
    found = join([AlignedPart(nothing, nothing, merge(np.ones((1, 1), dtype=np.float32), nothing, nothing))])
    assert found.links == ((1, 1),)
    assert found.weights == ((0.0, 0.0), (0.0, 1.0))
    empty = Grouped((), (), ())
    assert join([AlignedPart(empty, nothing, merge(np.ones((1, 0), dtype=np.float32), empty, nothing))]).pharaoh() == ""
    assert join([AlignedPart(nothing, empty, merge(np.ones((0, 1), dtype=np.float32), nothing, empty))]).pharaoh() == ""


def test_tokens_without_any_text_are_linked_to_nothing() -> None:
    """A hypothesis may consist of a space alone."""
    word, space = Grouped((4,), ("seven",), (0,)), Grouped((5,), (), (0,))
    for source, target in ((word, space), (space, word), (space, space)):
        block = AlignedPart(source, target, merge(np.ones((1, 1), dtype=np.float32), source, target))
        assert block.weights.shape == (len(target.units), len(source.units))
        assert join([block]) == Alignment(source.units, target.units, join([block]).weights)


def test_parts_stand_one_after_the_other_and_cut_words_are_mended() -> None:
    def block(source: str, target: str) -> AlignedPart:
        sides = [
            Grouped(tuple(range(len(t.split()))), tuple(t.split()), tuple(range(len(t.split()))))
            for t in (source, target)
        ]
        shape = len(sides[1].units), len(sides[0].units)
        return AlignedPart(*sides, np.eye(*shape, dtype=np.float32))

    found = join([block("a b", "x y"), block("c d", "z w")], [False, False])
    assert found.pharaoh() == "0-0 1-1 2-2 3-3"
    assert (found.strengths, found.weights) == ((1.0,) * 4, ())  # of parts there are links, and no matrix
    mended = join([block("a b", "x y"), block("c d", "z w")], [False, True])
    assert (mended.source, mended.target) == (("a", "bc", "d"), ("x", "yz", "w"))
    assert mended.pharaoh() == "0-0 1-1 2-2"
    assert mended.strengths == (1.0, 2.0, 1.0)  # both halves look at it


def test_a_cut_word_has_one_link_wherever_it_stands_and_however_weak() -> None:
    def block(source: str, target: str, weights: list[list[float]]) -> AlignedPart:
        sides = [Grouped((), tuple(text.split()), ()) for text in (source, target)]
        return AlignedPart(*sides, np.array(weights, dtype=np.float32).reshape(len(target.split()), -1))

    first = block("a b c", "x y", [[0.5, 0, 0], [0, 0.25, 0]])
    found = join([first, block("d", "z", [[0.125]])], [False, True])
    assert (found.target, found.links, found.strengths) == (("x", "yz"), ((0, 0), (1, 1)), (0.5, 0.25))
    assert join([block("", "x", []), block("", "y", [])], [False, True]).links == ()  # nothing to link it to


def test_the_layer_is_the_one_requested() -> None:
    trace = {f"decoder.{i}.cross": torch.full((1, 2, 3, 4), float(i)) for i in range(3)}
    trace |= {"decoder.0.self": torch.full((1, 2, 3, 4), 9.0)}
    for layer, value in ((None, 1.0), (0, 0.0), (2, 2.0), (-1, 2.0), (-3, 0.0)):
        found = cross_attention(trace, layer)
        assert found.shape == (1, 3, 4)
        assert found.unique().tolist() == [value]
    with pytest.raises(ConfigError, match="layer: expected a decoder layer from 0 to 2, or from -1 backwards, got 3"):
        cross_attention(trace, 3)
    both = {f"member.{m}.decoder.0.cross": torch.full((1, 2, 3, 4), float(m)) for m in range(2)}
    assert cross_attention(both, None).unique().tolist() == [0.5]


def test_a_model_without_attention_is_refused_in_words() -> None:
    with pytest.raises(UserError, match=r"alignments: this model's decoder has no attention to the source"):
        cross_attention({"decoder.0.self": torch.ones(1, 1, 1, 1), "decoder.0.out": torch.ones(1, 1, 1)}, None)


# -- through the translator ------------------------------------------------------------------------------------------


class Backwards:
    """An engine that says the source's tokens again, and for each looks at the mirrored place of the source."""

    def search(self, sources: Sequence[Sequence[int]], search: Any, *rest: Any) -> list[list[Hypothesis]]:
        return [[Hypothesis(tuple(source), 0.0, 0.0, True, ()) for _ in range(2)] for source in sources]

    def score(self, sources: Any, targets: Any) -> list[list[float]]:
        raise NotImplementedError

    def attend(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], layer: int | None
    ) -> list[NDArray[np.float32]]:
        return [np.eye(len(t), len(s), dtype=np.float32)[:, ::-1] for s, t in zip(sources, targets, strict=True)]


def test_pairs_and_translations_are_aligned_alike(tokenizers: Tokenizers) -> None:
    translator = Translator(Backwards(), tokenizers, Greedy(), batch_tokens=30)
    texts = ["one two one", "six five", "", "one six five one"]
    pairs = translator.align(texts, texts)
    assert [one.pharaoh() for one in pairs] == ["0-2 1-1 2-0", "0-1 1-0", "", "0-3 1-2 2-1 3-0"]
    found = translator.translate(texts, align="words")
    assert [one.alignment for one in found] == pairs
    assert found[0].alternatives[0].alignment == pairs[0]
    assert translator.translate(texts)[0].alignment is None


def test_a_tag_is_no_word(tokenizers: Tokenizers) -> None:
    class Straight(Backwards):
        def attend(self, sources: Any, targets: Any, layer: int | None) -> list[NDArray[np.float32]]:
            return [np.eye(len(t), len(s), 1, dtype=np.float32) for s, t in zip(sources, targets, strict=True)]

    translator = Translator(Straight(), tokenizers, Greedy())
    (found,) = translator.align(["one two"], ["one two"], to="de")
    assert found.source == ("one", "two")
    assert found.pharaoh() == "0-0 1-1"


@pytest.mark.parametrize("text", ["one two three. four five, six. " * 8, "一二三。四五，六" * 9])
def test_long_texts_are_aligned_in_parts(tokenizers: Tokenizers, text: str) -> None:
    """Mirrored within each part, so that words stay within their part's words."""
    translator = Translator(Backwards(), tokenizers, Greedy(), longest=30)
    (found,) = translator.translate([text], align="words")
    assert found.parts > 2
    assert found.alignment is not None
    assert list(found.alignment.source) == text.split()
    assert list(found.alignment.target) == found.text.split()
    assert {target for _, target in found.alignment.links} == set(range(len(found.text.split())))
    (pieces,) = translator.translate([text], align="pieces")
    assert pieces.alignment is not None
    assert pieces.alignment.target == pieces.tokens


def test_as_many_of_each(tokenizers: Tokenizers) -> None:
    with pytest.raises(DataError, match="align: 2 sources and 1 targets were given; give as many of each"):
        Translator(Backwards(), tokenizers, Greedy()).align(["one", "two"], ["eins"])


# -- a real model ----------------------------------------------------------------------------------------------------


def test_weights_are_the_model_s_attention_whatever_the_batch(toy: Toy) -> None:
    sources, targets = ["five", "ninety-two, three", "sixty"], ["fünf", "zweiundneunzig, drei", ""]
    together = toy.translator.align(sources, targets, to="de", unit="pieces")
    tokenizers, model = toy.translator.tokenizers, toy.engine.model.eval()
    tag, eos, bos = tokenizers.source.token("<2de>"), tokenizers.source.symbols.eos, tokenizers.target.symbols.bos
    for source, target, found in zip(sources, targets, together, strict=True):
        read = torch.tensor([[tag, *tokenizers.source.encode([source])[0], eos]])
        written = torch.tensor([[bos, *tokenizers.target.encode([target])[0]]])
        trace: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            memory = model.encode(read, torch.ones_like(read, dtype=torch.bool))
            model.advance(written, model.start(memory), trace)
        expected = trace["decoder.0.cross"][0].mean(0)[:-1, 1:-1]  # without the end's row, tag and end columns
        np.testing.assert_allclose(np.array(found.weights).reshape(expected.shape), expected.numpy(), atol=1e-5)
        assert len(found.target) == len(expected)


def test_an_ensemble_is_aligned_too(toy: Toy) -> None:
    pair = ["ninety-two, three"], ["zweiundneunzig, drei"]
    (alone,) = toy.translator.align(*pair, to="de")
    engine = toy.engine
    twice = type(engine)(Ensemble([engine.model, engine.model]), engine.source, engine.target, engine.device)
    (found,) = Translator(twice, toy.translator.tokenizers, Greedy()).align(*pair, to="de")
    np.testing.assert_allclose(found.weights, alone.weights, atol=1e-6)


def test_an_engine_tells_how_many_layers_can_be_read(toy: Toy, native_toy: Path) -> None:
    for translator in (toy.translator, transduce.load(native_toy, engine="native")):
        layers = translator.engine.decoder_layers
        translator.align(["five"], ["fünf"], "de", layer=layers - 1)
        with pytest.raises(ConfigError, match=f"layer: expected a decoder layer from 0 to {layers - 1}"):
            translator.align(["five"], ["fünf"], "de", layer=layers)
