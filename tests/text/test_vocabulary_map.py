"""Tokenizers with the numbers of a table: two models, one table; against pieces looked up one by one."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from transduce.core.errors import ConfigError, DataError
from transduce.search.constraints import constraints_of_words
from transduce.text.tokenizer import Tokenizer, Tokenizers
from transduce.text.train_tokenizer import GivenTokenizer, SentencePiece
from transduce.text.vocabulary import Symbols, VocabularyMap

TAGS = (">>fra<<", ">>deu<<")


def text(letters: str, seed: int, lines: int = 400) -> list[str]:
    chooser = random.Random(seed)
    return [
        " ".join("".join(chooser.choices(letters, k=chooser.randint(1, 6))) for _ in range(chooser.randint(1, 6)))
        for _ in range(lines)
    ]


SOURCE, TARGET = text("abcdefgh", 1), text("fghijklmß", 2)


def models() -> Tokenizers:
    return SentencePiece(vocabulary=60, shared=False, byte_fallback=False).train(SOURCE, TARGET).tokenizers


def table(tokenizers: Tokenizers, left_out: str = "") -> VocabularyMap:
    """As Marian has it: the end first, then the unknown, the pieces of both sides as they come, padding last."""
    both = [piece for one in (tokenizers.source, tokenizers.target) for piece in one.pieces(range(one.size))]
    plain = [p for p in dict.fromkeys(both) if p not in ("<pad>", "<unk>", "<s>", "</s>", left_out)]
    pieces = ("</s>", "<unk>", *plain, *TAGS, "<pad>")
    pad = len(pieces) - 1
    return VocabularyMap(pieces, Symbols(pad=pad, bos=pad, eos=0, unk=1, never=(pad,)))


@pytest.fixture(scope="module")
def pair() -> Tokenizers:
    own = models()
    shared = table(own)
    return Tokenizers(*(Tokenizer(one.model, one.origin, shared) for one in (own.source, own.target)))


def test_pieces_have_the_numbers_of_the_table(pair: Tokenizers) -> None:
    own = models()
    assert pair.source.table is not None
    numbers = pair.source.table.numbers
    for tokenizer, plain, lines in ((pair.source, own.source, SOURCE), (pair.target, own.target, TARGET)):
        for line, tokens in zip(lines, tokenizer.encode(lines), strict=True):
            pieces = plain.pieces(plain.encode([line])[0])
            assert tokens == [numbers[piece] for piece in pieces]
            assert tokenizer.pieces(tokens) == pieces
            assert tokenizer.decode(tokens) == line
    assert pair.source.size == pair.target.size == len(numbers)
    assert pair.source.symbols == Symbols(len(numbers) - 1, len(numbers) - 1, 0, 1, (len(numbers) - 1,))
    assert pair.shared


def test_a_table_takes_no_symbols(pair: Tokenizers) -> None:
    with pytest.raises(DataError, match="its pieces are numbered by a table, which cannot take symbols"):
        pair.source.with_symbols({"<x>": "a"})


def test_what_the_table_lacks_is_unknown_and_what_only_the_other_side_knows_is_not(pair: Tokenizers) -> None:
    own = models()
    piece = own.source.pieces(own.source.encode(["abcdefgh"])[0])[0]
    less = Tokenizer(own.source.model, table=table(own, left_out=piece))
    assert less.encode(["abcdefgh"])[0][0] == 1
    assert pair.source.encode(["☃"])[0][-1] == 1
    assert pair.source.unknown("a☃b") == ["☃"]
    sharp = pair.source.encode(["ß"])[0]  # the source's model has no such letter, the table has it from the target
    assert pair.target.pieces(sharp) == ["▁", "ß"]


def test_tags_at_the_start_are_one_token_and_a_language_finds_its_own(pair: Tokenizers) -> None:
    fra = pair.source.token(">>fra<<")
    assert pair.source.encode([">>fra<< abc"])[0] == [fra, *pair.source.encode(["abc"])[0]]
    assert fra not in pair.source.encode(["abc >>fra<<"])[0]
    assert pair.source.encode([">>xyz<< abc"])[0][0] != fra
    assert pair.source.tag("fra") == pair.source.tag(">>fra<<") == fra
    with pytest.raises(DataError, match="no piece '<2ita>'"):
        pair.source.tag("ita")
    with pytest.raises(DataError, match="no piece '>>ita<<'"):
        pair.source.tag(">>ita<<")


def test_special_symbols_are_no_text_and_pieces_of_the_other_side_are(pair: Tokenizers) -> None:
    pad = pair.target.symbols.pad
    word = pair.target.encode(["fgh"])[0]
    assert pair.target.decode([pad, *word, 0, pad]) == "fgh"
    marked = next(n for n, piece in enumerate(pair.source.pieces(range(pair.source.size))) if piece == "▁a")
    assert pair.target.decode([*word, marked]) == "fgh a"
    assert pair.target.starts_word[marked]
    assert pair.target.decode([]) == ""


def test_sampling_and_words_to_include_use_the_numbers_too(pair: Tokenizers) -> None:
    tokens = [pair.source.tag("deu"), *pair.source.encode(["abcdefgh"])[0]]
    drawn = [pair.source.sample([np.array(tokens)], 0.1, seed)[0] for seed in range(20)]
    assert {pair.source.decode(one[1:]) for one in drawn} == {"abcdefgh"}
    assert {one[0] for one in drawn} == {tokens[0]}
    assert len({tuple(one) for one in drawn}) > 1
    constraints = constraints_of_words(pair.target, ["fgh"], ["klm"])
    assert pair.target.decode(constraints.include[0][0]) == "fgh"
    assert {pair.target.decode(phrase) for phrase in constraints.exclude} == {"klm"}


def test_they_come_back_from_a_folder(pair: Tokenizers, tmp_path: Path) -> None:
    pair.save(tmp_path / "pair")
    assert sorted(path.name for path in (tmp_path / "pair").iterdir()) == [
        "shared.json",
        "source.model",
        "target.model",
    ]
    again = GivenTokenizer(folder=str(tmp_path / "pair")).load()
    assert again.shared
    assert again.digest() == pair.digest()
    assert again.source.encode(SOURCE) == pair.source.encode(SOURCE)
    one = Tokenizers(pair.source, pair.source)
    one.save(tmp_path / "one")
    assert Tokenizers.load(tmp_path / "one").digest() == one.digest() != pair.digest()
    own = models()
    two = Tokenizers(Tokenizer(own.source.model, table=table(own)), Tokenizer(own.target.model, table=table(own)))
    two.save(tmp_path / "two")
    assert not Tokenizers.load(tmp_path / "two").shared
    assert Tokenizers.load(tmp_path / "two").target.encode(TARGET) == pair.target.encode(TARGET)
    with pytest.raises(ConfigError, match="or of two as source and target, or a tokenizer folder"):
        GivenTokenizer(folder="x", shared="y")


def test_tables_that_cannot_be(pair: Tokenizers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="expected numbers below that of the pieces, 2"):
        VocabularyMap(("a", "b"), Symbols(0, 0, 1, 2))
    with pytest.raises(DataError, match="1 pieces are there twice; expected each once"):
        VocabularyMap(("a", "b", "a"), Symbols(0, 0, 1, 2))
    pair.save(tmp_path)
    path = tmp_path / "shared.json"
    good = json.loads(path.read_bytes())
    for bad in ("{", "[]", "{}", json.dumps({**good, "pieces": 5}), json.dumps({**good, "pieces": [1, 2]})):
        path.write_text(bad)
        with pytest.raises(DataError, match=r"shared\.json: not a table of pieces \("):
            Tokenizers.load(tmp_path)
    path.write_text(json.dumps({**good, "symbols": {**good["symbols"], "never": [10**6]}}))
    with pytest.raises(DataError, match="expected numbers below that of the pieces"):
        Tokenizers.load(tmp_path)
    monkeypatch.setattr("transduce.text.vocabulary.LARGEST_TABLE_BYTES", 10)
    with pytest.raises(DataError, match=r"shared\.json: too large; a table of pieces has at most 10 bytes"):
        Tokenizers.load(tmp_path)
    with pytest.raises(DataError, match="the table of pieces cannot be read: No such file"):
        VocabularyMap.load(tmp_path / "none.json")
