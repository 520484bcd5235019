"""Marks of Chinese and Japanese come out as wide as they are printed; those of other languages never change."""

from __future__ import annotations

import pytest

from transduce.text.tokenizer import Tokenizer, widened
from transduce.text.train_tokenizer import SentencePiece
from transduce.text.vocabulary import VocabularyMap

WRITTEN = [
    "你好，世界！",
    "他7:30来，好吗？！",
    "他说：“好！”，走了；真的？",
    "「何ですか？」、と彼は言った。",
    "这本书（很好）",
    "“Fire!”, he cried; then: nothing?",
    "Où est-il ? Là !",
    "한국어, 좋아?",
    "1,000 and 20:15",
]


def tokenizer(normalization: str) -> Tokenizer:
    return SentencePiece(vocabulary=450, normalization=normalization).train(WRITTEN, WRITTEN).tokenizers.target


@pytest.mark.parametrize("text", WRITTEN)
def test_text_comes_back_as_it_was_printed(text: str) -> None:
    ours = tokenizer("nmt_nfkc")
    tokens = ours.encode([text])[0]
    assert ours.decode(tokens) == text.replace("（", "(").replace("）", ")"), "only , ? ! : ; are put back"


def test_marks_are_narrow_inside() -> None:
    pieces = tokenizer("nmt_nfkc").pieces(tokenizer("nmt_nfkc").encode(["你好，世界！"])[0])
    assert "".join(pieces).endswith("你好,世界!")


def test_a_beginning_stays_as_it_is_while_text_grows() -> None:
    for text in map(str, WRITTEN):
        narrow = text.translate(str.maketrans("，？！：；", ",?!:;"))
        for end in range(len(narrow)):
            assert widened(narrow).startswith(widened(narrow[:end]))


def test_where_nothing_is_narrowed_nothing_is_widened() -> None:
    ours = tokenizer("identity")
    assert ours.decode(ours.encode(["你好,世界!"])[0]) == "你好,世界!"


def test_models_of_others_write_as_their_makers_do() -> None:
    """Marian's come with a table; what they write is compared with theirs letter by letter."""
    own = tokenizer("nmt_nfkc")
    table = VocabularyMap(tuple(own.pieces(range(own.size))), own.symbols)
    theirs = Tokenizer(own.model, table=table)
    assert theirs.decode(theirs.encode(["你好，世界！"])[0]) == "你好,世界!"
