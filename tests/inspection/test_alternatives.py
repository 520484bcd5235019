"""Other words at a place: they begin as requested, differ there, and the likeliest come first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from transduce.core.errors import UserError
from transduce.inspection.alternatives import WORST, _continued, _spaced_word, alternatives
from transduce.model.parallel import ParallelDecoder
from transduce.search import Hypothesis
from transduce.search.constraints import DecodingConstraints
from transduce.search.settings import Beam, Greedy
from transduce.text.tokenizer import Tokenizers
from transduce.translate.translator import Translator

if TYPE_CHECKING:
    from toy_model import Toy

TEXT = "sixty-two, eleven"


def test_they_begin_as_requested_and_differ_in_the_next_word(toy: Toy) -> None:
    for before in ("", "zwei, "):
        found = alternatives(toy.translator, TEXT, before, to="de", count=4)
        assert 1 < len(found) <= 4
        words = [one.word for one in found]
        assert len(set(words)) == len(words)
        for one in found:
            assert one.text.startswith(before.rstrip())
            assert one.text[len(before.rstrip()) :].split()[0].rstrip(",") == one.word
            assert one.log_prob >= found[0].log_prob - WORST


def test_the_first_that_is_tried_is_the_translation_itself(toy: Toy) -> None:
    greedy = Translator(toy.engine, toy.translator.tokenizers, Greedy())
    # A beginning lengthens what may be written: where the limit cuts it off, there is a token more.
    first, *_ = _continued(greedy, TEXT, "", "de", 20, None)
    assert first.startswith(greedy(TEXT, to="de", protect=False))


def test_each_is_the_model_s_own_search_from_its_token_on(toy: Toy) -> None:
    source, target = toy.translator.tokenizers.source, toy.translator.tokenizers.target
    tokens = (source.tag("de"), *source.encode([TEXT])[0])
    for one in alternatives(toy.translator, TEXT, "", to="de"):
        begun = target.encode([one.text])[0][:1]
        (found,) = toy.translator.find([tokens], toy.translator.search, [DecodingConstraints(prefix=tuple(begun))])
        if target.decode(found[0].tokens) == one.text:
            assert found[0].log_prob == pytest.approx(one.log_prob, abs=1e-4)


def test_there_are_none_for_nothing_or_for_words_written_all_at_once(toy: Toy) -> None:
    assert alternatives(toy.translator, "  ", "", to="de") == []
    parallel = Translator(toy.engine, toy.translator.tokenizers, Greedy(), decoder=ParallelDecoder())
    assert alternatives(parallel, TEXT, "") == []


# Words of a model that is given: a fake tokenizer and engine that know a few translations and their log-probabilities.

PIECES = """猫 咪 很 爱 喜欢 睡觉 。 明 今年 年 投 资 教育 增加 科学 家 多 宣布 将 对 的 非常 了"""


class Pieces:
    """A tokenizer: the longest known piece, else words and marks; its source tags are those of six languages."""

    def __init__(self) -> None:
        self.known = ["</s>"]
        pieces = "|".join(sorted(PIECES.split(), key=len, reverse=True))
        self.words = re.compile(rf"{pieces}| (?={pieces})| ?[\w'’-]+| ?[^\w\s]")

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self.token(piece) for piece in self.words.findall(" " + text)] for text in texts]

    def token(self, piece: str) -> int:
        if piece not in self.known:
            self.known.append(piece)
        return self.known.index(piece)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return [self.known[token].replace(" ", "▁") for token in tokens]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.known[token] for token in tokens).removeprefix(" ")

    def cut_tag(self, text: str) -> tuple[tuple[int, ...], str]:
        return (), text

    def has_tag(self, language: str) -> bool:
        return language in ("de", "en", "es", "fr", "pt", "zh")

    def tag(self, language: str) -> int:
        return self.token(f"<2{language}>")


class Written:
    """An engine that writes what it is given, the likeliest first, and looks at the source from left to right."""

    decoder_layers = 1

    def __init__(self, pieces: Pieces, texts: dict[str, float], attention: bool = True) -> None:
        ordered = sorted(texts.items(), key=lambda item: -item[1])
        self.texts = [(tuple(pieces.encode([text])[0]), log_prob) for text, log_prob in ordered]
        self.attention = attention

    def search(
        self, sources: Sequence[Any], search: Any, constraints: Sequence[DecodingConstraints], keys: Sequence[int]
    ) -> list[list[Hypothesis]]:
        return [self._found(search, limits.prefix) for limits in constraints]

    def _found(self, search: Any, prefix: tuple[int, ...]) -> list[Hypothesis]:
        fitting = [(tokens, log) for tokens, log in self.texts if tokens[: len(prefix)] == prefix]
        if isinstance(search, Beam) and search.limits.longest == 1:
            nexts = {tokens[: len(prefix) + 1]: log for tokens, log in reversed(fitting)}
            return [Hypothesis(tokens, log, log, True, ()) for tokens, log in reversed(nexts.items())]
        return [Hypothesis(tokens, log, log, True, ()) for tokens, log in fitting[:1]]

    def attend(self, sources: Sequence[Any], targets: Sequence[Any], layer: int | None) -> list[Any]:
        if not self.attention:
            raise UserError("no attention")
        return [self._diagonal(len(target), len(source)) for source, target in zip(sources, targets, strict=True)]

    def _diagonal(self, rows: int, columns: int) -> Any:
        weights = np.zeros((rows, columns), dtype=np.float32)
        for row in range(rows):
            weights[row, min(1 + row // 2, columns - 1)] = 1  # after the tag, two pieces a word
        return weights


def offered(
    texts: dict[str, float], before: str, to: str, current: str = "", attention: bool = True
) -> list[tuple[str, str]]:
    pieces = Pieces()
    translator = Translator(
        cast("Any", Written(pieces, texts, attention)), Tokenizers(cast("Any", pieces), cast("Any", pieces)), Beam()
    )
    found = alternatives(translator, "Cats like to sleep.", before, to, current=current)
    return [(one.word, one.text) for one in found]


CATS = {"猫喜欢睡觉。": -0.8, "猫爱睡觉。": -2.0, "猫咪喜欢睡觉。": -3.4, "猫非常喜欢睡觉。": -3.6}


@pytest.mark.parametrize("attention", [True, False])
def test_chinese_words_are_not_cut_inside(attention: bool) -> None:
    found = offered(CATS, "猫", "zh", attention=attention)
    assert [word for word, _ in found] == ["喜欢", "爱", "非常"]  # 咪 belongs to the cat
    assert "猫咪喜欢睡觉。" not in [text for _, text in found]


def test_chinese_words_of_several_pieces_end_where_the_translation_goes_on_as_it_stands() -> None:
    current = "了今年教育增加。"
    texts = {
        current: -1.0,
        "了明年教育增加。": -1.5,
        "了科学家教育增加。": -2.0,
        "了多年宣布将增加对教育的投资。": -2.5,
    }
    assert [word for word, _ in offered(texts, "了", "zh", current)] == ["明年", "科学家", "多年"]


def test_no_word_is_offered_in_another_language() -> None:
    texts = {"Les chats aiment dormir.": -0.6, "Les gatos aiment dormir.": -2.0, "Les chiens aiment dormir.": -3.0}
    assert [word for word, _ in offered(texts, "Les ", "fr")] == ["chats", "chiens"]
    changed = {**texts, "Les animales duermen mucho porque les gusta la noche y no el sol.": -1.0}
    assert [word for word, _ in offered(changed, "Les ", "fr")] == ["chats", "chiens"]
    assert [word for word, _ in offered(texts, "Les ", "")] == ["chats", "gatos", "chiens"]  # of an unknown language


def test_words_come_without_marks_and_once() -> None:
    texts = {"J'aime dormir.": -0.6, "J'aime Dormir.": -1.0, "J'aime « dormir ».": -1.5, "J'aime manger!": -2.0}
    assert offered(texts, "J'aime ", "fr") == [("dormir", "J'aime dormir."), ("manger", "J'aime manger!")]


def test_the_present_word_is_not_offered_and_its_final_mark_stays() -> None:
    texts = {"J'aime dormir.": -0.6, "J'aime Dormir.": -1.0, "J'aime manger!": -2.0, "J'aime lire": -2.5}
    found = offered(texts, "J'aime ", "fr", "J'aime dormir.")
    assert found == [("manger", "J'aime manger."), ("lire", "J'aime lire.")]


def test_unlikely_words_are_not_offered() -> None:
    texts = {"Les chats dorment.": -0.5, "Les chiens dorment.": -4.4, "Les enfants dorment.": -4.6}
    assert WORST == 4.0
    assert [word for word, _ in offered(texts, "Les ", "fr")] == ["chats", "chiens"]


@pytest.mark.parametrize(
    ("rest", "word"),
    [
        ("dormir.", "dormir"), ("l'homme rit", "l'homme"), ("3.5 km", "3.5"), ("fin… peut-être", "fin"),
        ("Haus, das", "Haus"), ("고양이를 좋아해", "고양이를"), ("की तरह", "की"), ("Python编程", "Python"),
        ("« oui", ""), ("U.S. and", "U.S"), ("—oui", ""), ("", ""),
    ],
)  # fmt: skip
def test_words_end_at_spaces_and_marks(rest: str, word: str) -> None:
    assert _spaced_word(rest) == word
