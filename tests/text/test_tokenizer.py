"""Tokenizers: round trips, sampling, special symbols, files, and what training says when a setting cannot be met."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transduce.core.errors import ConfigError, DataError
from transduce.text.tokenizer import LARGEST_MODEL_BYTES, Tokenizer, Tokenizers
from transduce.text.train_tokenizer import GivenTokenizer, SentencePiece


def make_lines(seed: int, letters: str = "abcdefghijklmnop") -> list[str]:
    draw = random.Random(seed)
    words = ["".join(draw.choices(letters, k=draw.randint(2, 8))) for _ in range(200)]
    return [" ".join(draw.choices(words, k=8)) for _ in range(500)]


SOURCE, TARGET = make_lines(0), make_lines(1, "klmnopqrstuvwxyzäöü")
MODELS = ("unigram", "bpe", "char")


def train(model: str = "unigram", **settings: object) -> Tokenizers:
    kind = SentencePiece(model=model, **{"vocabulary": 400, **settings})  # type: ignore[arg-type]
    return kind.train(SOURCE, TARGET).tokenizers


EXACT = {model: train(model, normalization="identity").source for model in MODELS}


def raw_model(**settings: object) -> bytes:
    model = io.BytesIO()
    options = {"vocab_size": 100, "model_type": "bpe", "minloglevel": 2, **settings}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(SOURCE), model_writer=model, **options)
    return model.getvalue()


# U+2581 is sentencepiece's own mark for a space: the one character that does not come back.
@given(
    st.lists(st.text(st.characters(exclude_characters="\n\u2581", exclude_categories=["Cs"]))), st.sampled_from(MODELS)
)
@settings(max_examples=50, deadline=None)
def test_every_text_comes_back(texts: list[str], model: str) -> None:
    tokenizer = EXACT[model]
    encoded = tokenizer.encode(texts)
    assert [tokenizer.decode(tokens) for tokens in encoded] == texts
    assert tokenizer.symbols.unk not in {token for tokens in encoded for token in tokens}


@given(
    st.lists(st.text(st.characters(exclude_characters="\u2581", exclude_categories=["Cs"]))),
    st.sampled_from(["unigram", "bpe"]),
)
@settings(max_examples=50, deadline=None)
def test_every_sampled_text_comes_back(texts: list[str], model: str) -> None:
    assert [
        EXACT[model].decode(tokens) for tokens in EXACT[model].sample(EXACT[model].encode(texts), 0.3, seed=1)
    ] == texts


@pytest.mark.parametrize(("model", "alpha"), [("unigram", 0.02), ("bpe", 0.3)])
def test_sampling_is_a_function_of_the_seed(model: str, alpha: float) -> None:
    tokenizer = EXACT[model]
    plain = tokenizer.encode(SOURCE[:50])
    first, again, other = (tokenizer.sample(plain, alpha, seed) for seed in (5, 5, 6))
    assert first == again
    assert first != other
    assert first != plain
    assert tokenizer.sample([plain[0]] * 20, alpha, 7) != [tokenizer.sample([plain[0]], alpha, 7)[0]] * 20


def test_sampling_in_several_threads_at_once() -> None:
    tokenizer = EXACT["bpe"]
    expected = [tokenizer.sample(tokenizer.encode(SOURCE[:20]), 0.3, seed) for seed in range(8)]
    found: dict[int, list[list[int]]] = {}

    def work(seed: int) -> None:
        found[seed] = tokenizer.sample(tokenizer.encode(SOURCE[:20]), 0.3, seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[seed] for seed in range(8)] == expected


def test_special_symbols() -> None:
    symbols = EXACT["unigram"].symbols
    assert (symbols.pad, symbols.unk, symbols.bos, symbols.eos, symbols.never) == (0, 1, 2, 3, (0, 1, 2))
    assert EXACT["unigram"].pieces([0, 1, 2, 3]) == ["<pad>", "<unk>", "<s>", "</s>"]
    tokens = EXACT["unigram"].encode(["abc"])[0]
    assert EXACT["unigram"].decode([2, *tokens, 3, 0, 0, 1]) == "abc"
    assert EXACT["unigram"].encode(["<s> </s>"])[0][0] not in (2, 3)  # text is never mistaken for a symbol


def test_a_given_model_may_lack_padding_and_start() -> None:
    symbols = Tokenizer(raw_model(bos_id=-1, pad_id=-1)).symbols
    assert symbols.pad == symbols.bos == symbols.eos
    assert symbols.never == (symbols.unk,)
    with pytest.raises(DataError, match="this model has no end symbol </s>"):
        Tokenizer(raw_model(eos_id=-1))


def test_a_model_whose_unknown_token_is_no_piece_is_refused() -> None:
    """It had number -1, which no engine can forbid."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(raw_model())
    proto.trainer_spec.unk_piece = proto.pieces[-1].piece
    with pytest.raises(DataError, match="the unknown token or another special symbol lies outside the 100 pieces"):
        Tokenizer(proto.SerializeToString())


def test_symbols_of_the_user_stay_whole() -> None:
    tokenizer = train(symbols=("<2de>", "<a,b>")).source
    token = tokenizer.token("<2de>")
    assert tokenizer.encode(["<2de> abc"])[0].count(token) == 1
    assert tokenizer.decode([token]) == "<2de>"
    assert tokenizer.pieces([tokenizer.token("<a,b>")]) == ["<a,b>"]
    with pytest.raises(DataError, match=r"no piece '<2fr>'; was the tokenizer trained with symbols=\['<2fr>'\]\?"):
        tokenizer.token("<2fr>")
    assert tokenizer.token("<unk>") == 1


def test_unknown_characters() -> None:
    for byte_fallback in (True, False):
        tokenizer = train(byte_fallback=byte_fallback, vocabulary=360).source
        assert tokenizer.byte_fallback is byte_fallback
        assert tokenizer.unknown("ab漢 ä漢😀") == ["漢", "漢", "😀"]
        assert tokenizer.unknown_of(set("ab漢😀 ")) == {"漢", "😀"}
        assert (1 in tokenizer.encode(["漢"])[0]) is not byte_fallback


def test_odd_text_does_not_crash() -> None:
    tokenizer = train().source
    odd = [
        "",
        " ",
        "\0",
        "a\0b",
        "x" * 200_000,
        "\ud800a",
        "\u2028",
        "\n",
        "e\u0301",
        "👩\u200d👩\u200d👧",
        "\u202eabc",
    ]
    assert len(tokenizer.encode(odd)) == len(odd)
    assert EXACT["bpe"].decode(EXACT["bpe"].encode(["?\ud800?"])[0]) == "?\ufffd?"
    odd_lines = [*SOURCE, "a\0b", "x" * 100_000, "", "\u2028"]
    assert SentencePiece(vocabulary=400).train(odd_lines, TARGET).tokenizers.source.size == 400


@pytest.mark.parametrize("model", MODELS)
def test_texts_are_given_one_by_one_and_have_the_tokens_of_a_list(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a list sentencepiece starts a thread, which a server waits for with every text."""
    tokenizer = train(model).source
    texts = [*SOURCE[:50], "", " ", " ab  cd\te ", "klm\nop", "漢字" * 50]
    processor: Any = tokenizer._processor
    real, asked = processor.encode, []

    def encode(text: object) -> object:
        asked.append(text)
        return real(text)

    monkeypatch.setattr(processor, "encode", encode)
    assert tokenizer.encode(texts) == real(texts, num_threads=1)
    assert asked == texts


def test_separate_vocabularies_and_files(tmp_path: Path) -> None:
    shared, separate = train(), train(shared=False)
    assert shared.shared
    assert not separate.shared
    assert shared.digest() != separate.digest()
    for number, tokenizers in enumerate((shared, separate)):
        folder = tmp_path / str(number)
        tokenizers.save(folder)
        loaded = Tokenizers.load(folder)
        assert (loaded.shared, loaded.digest()) == (tokenizers.shared, tokenizers.digest())
        assert loaded.target.encode(TARGET[:5]) == tokenizers.target.encode(TARGET[:5])
    assert sorted(path.name for path in (tmp_path / "1").iterdir()) == ["source.model", "target.model"]
    given = GivenTokenizer(source=str(tmp_path / "1/source.model"), target=str(tmp_path / "1/target.model")).load()
    assert given.digest() == separate.digest()
    assert GivenTokenizer(shared=str(tmp_path / "0/shared.model")).load().shared


def test_training_is_repeatable() -> None:
    assert train().digest() == train().digest()


@pytest.mark.parametrize("model", MODELS)
def test_a_vocabulary_too_large_is_lowered_and_said(model: str) -> None:
    trained = SentencePiece(model=model, vocabulary=30_000).train(SOURCE, TARGET)  # type: ignore[arg-type]
    size = trained.tokenizers.source.size
    assert size < 30_000
    assert trained.notes == (f"tokenizer of both sides: the text yields {size:,} pieces, not the 30,000 requested",)


@pytest.mark.parametrize("model", MODELS)
def test_a_vocabulary_too_small_names_the_smallest(model: str) -> None:
    with pytest.raises(DataError, match=r"256 bytes \(byte_fallback\) need at least") as caught:
        SentencePiece(model=model, vocabulary=50).train(SOURCE, TARGET)  # type: ignore[arg-type]
    least = int(str(caught.value).split("at least ")[1].split(".")[0])
    assert SentencePiece(model=model, vocabulary=least).train(SOURCE, TARGET).tokenizers.source.size == least  # type: ignore[arg-type]


def test_training_without_text() -> None:
    with pytest.raises(DataError, match="both sides has no text to train on"):
        SentencePiece().train([""], [" "])
    with pytest.raises(DataError, match="the target side has no line of at most 16,384 bytes"):
        SentencePiece(vocabulary=280, shared=False).train(SOURCE, ["x" * 20_000])


def test_broken_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "shared.model"
    whole = train().source.model
    for content in (b"", b"rubbish", whole[: len(whole) // 2], b"\0" * 1000):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"shared\.model: not a sentencepiece model"):
            Tokenizers.load(tmp_path)
    with open(path, "wb") as file:
        file.truncate(LARGEST_MODEL_BYTES + 1)
    with pytest.raises(DataError, match="larger than 67,108,864 bytes, which no sentencepiece model is"):
        Tokenizers.load(tmp_path)
    with pytest.raises(
        DataError, match=r"no tokenizer here; expected shared\.model, or source\.model and target\.model"
    ):
        Tokenizers.load(tmp_path / "nowhere")
    with pytest.raises(DataError, match="the tokenizer cannot be read: No such file"):
        Tokenizer.load(tmp_path / "gone.model")


@pytest.mark.slow
def test_damaged_bytes_never_crash(tmp_path: Path) -> None:
    """Single damaged bytes either load or are refused; in a process of its own, for the library is C++."""
    (tmp_path / "whole.model").write_bytes(train(vocabulary=300).source.model)
    code = f"""
import random
from pathlib import Path
from transduce.text.tokenizer import Tokenizer
from transduce.core.errors import DataError
whole = Path({str(tmp_path / "whole.model")!r}).read_bytes()
draw = random.Random(0)
for _ in range(300):
    damaged = bytearray(whole)
    damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    try:
        tokenizer = Tokenizer(bytes(damaged))
    except DataError:
        continue
    tokenizer.decode(tokenizer.encode(["a bad day"])[0])
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"normalization": "nfc"}, "normalization='nfc': expected one of nmt_nfkc, nfkc"),
        ({"character_coverage": 1.5}, r"character_coverage=1\.5: expected from 0 \(automatic\) to 1"),
        ({"vocabulary": 0}, "vocabulary=0, sentences=1000000: expected at least 1"),
        ({"symbols": ("<s>",)}, "symbols: '<s>': expected text without spaces, other than <pad>"),
        ({"symbols": ("a", "a")}, "one of them is given twice"),
    ],
)
def test_training_settings_messages(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SentencePiece(**settings)  # type: ignore[arg-type]


def test_given_settings_messages() -> None:
    for paths in ({}, {"shared": "a", "source": "b", "target": "c"}, {"source": "a"}):
        with pytest.raises(ConfigError, match="expected the path of one model as shared, or of two"):
            GivenTokenizer(**paths)


def test_training_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    train(vocabulary=300)
    assert capfd.readouterr() == ("", "")


def test_every_letter_of_a_small_alphabet_has_a_piece_by_default() -> None:
    lines = ["abcdefgh ijklmnop"] * 400 + ["ö"]
    lines = [f"{line} {chr(97 + number % 26)}" for number, line in enumerate(lines)]
    automatic = SentencePiece(vocabulary=600).train(lines, lines).tokenizers.source
    assert automatic.unknown("ö") == []
    rare_in_bytes = SentencePiece(vocabulary=600, character_coverage=0.99).train(lines, lines).tokenizers.source
    assert rare_in_bytes.unknown("ö") == ["ö"]


@given(st.lists(st.text(st.characters()), max_size=3), st.sampled_from(MODELS))
@example(["\udce9t\udce9", "\ud83d", "\ude00\ud83d", "a\x00b\x1b[0m\u2028\u200b\ufeff"], "bpe")
@example(["x" * 20000, " " * 3000, "\t\v\f\x85"], "unigram")
@settings(max_examples=100, deadline=None)
def test_any_string_can_be_encoded(texts: list[str], model: str) -> None:
    """Lone surrogates become U+FFFD, sentencepiece's mark a space; of all else every character comes back."""
    tokenizer = EXACT[model]
    encoded = tokenizer.encode(texts)
    for text, tokens in zip(texts, encoded, strict=True):
        expected = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\u2581", " ")
        assert tokenizer.decode(tokens) == expected
        assert [tokenizer.token(piece) for piece in tokenizer.pieces(tokens)] == tokens
        assert tokenizer.unknown(text) == [c for c in text if tokenizer.unknown_of({c})]


def test_symbols_take_the_places_of_pieces(tmp_path: Path) -> None:
    old = train(symbols=("<2de>",)).source
    old_pieces = old.pieces(range(old.size))
    longest = sorted(old_pieces, key=len)[-2:]
    places = {"⟦0⟧": longest[0], "⟦1⟧": longest[1]}
    (tmp_path / "old.model").write_bytes(old.model)
    given = GivenTokenizer(
        shared=str(tmp_path / "old.model"), symbols=tuple(places), instead_of=tuple(places.values())
    ).load()
    assert given.shared
    new = given.source
    back = {piece: symbol for symbol, piece in places.items()}
    assert new.pieces(range(new.size)) == [back.get(piece, piece) for piece in old_pieces]
    text = "abc ⟦1⟧⟦0⟧ ⟦0⟧."
    assert [piece for piece in new.pieces(new.encode([text])[0]) if piece in places] == ["⟦1⟧", "⟦0⟧", "⟦0⟧"]
    assert new.decode(new.encode([text])[0]) == text
    drawn = new.sample(new.encode([text]), 0.1, 1)[0]
    assert new.decode(drawn) == text
    assert new.tag("de") == old.tag("de")
    assert given.continues(Tokenizers(old, old))
    assert not Tokenizers(old, old).continues(given)
    assert not given.continues(train())


def test_only_symbols_in_the_places_of_pieces_continue_a_tokenizer() -> None:
    """Tags and the first merge of a BPE model have the score of symbols too, and mean something else."""
    german, french = train(symbols=("<2de>",)), train(symbols=("<2fr>",))
    assert not german.continues(french)
    assert not french.continues(german)
    first, second = (raw_model(user_defined_symbols=[word]) for word in ("abc", "xyz"))
    assert not Tokenizer(first).continues(Tokenizer(second))
    pair = train("bpe").source
    merge = next(piece for piece in pair.pieces(range(pair.size)) if len(piece) == 2 and piece.isascii())
    assert not Tokenizer(pair.model.replace(merge.encode(), b"qj")).continues(pair)


def test_symbols_that_cannot_take_a_place(tmp_path: Path) -> None:
    tokenizer = train(symbols=("<2de>",)).source
    path = tmp_path / "old.model"
    path.write_bytes(tokenizer.model)
    with pytest.raises(DataError, match=r"old.model: 'nowhere' is not a piece that '<x>' could replace; name another"):
        GivenTokenizer(shared=str(path), symbols=("<x>",), instead_of=("nowhere",)).load()
    with pytest.raises(DataError, match="'▁' is not a piece that"):  # without it spaces become bytes
        GivenTokenizer(shared=str(path), symbols=("<x>",), instead_of=("▁",)).load()
    with pytest.raises(DataError, match="'<2de>' is not a piece that"):
        GivenTokenizer(shared=str(path), symbols=("<x>",), instead_of=("<2de>",)).load()
    last = tokenizer.pieces([tokenizer.size - 2])[0]
    with pytest.raises(DataError, match="'<2de>' is already a piece; leave it out"):
        GivenTokenizer(shared=str(path), symbols=("<2de>",), instead_of=(last,)).load()
    with pytest.raises(ConfigError, match=r"instead_of: expected 2 different pieces, .* symbols, got \['a'\]"):
        GivenTokenizer(shared=str(path), symbols=("<x>", "<y>"), instead_of=("a",))
    with pytest.raises(ConfigError, match="symbols: expected none where each side has a model of its own"):
        GivenTokenizer(source=str(path), target=str(path), symbols=("<x>",), instead_of=("a",)).load()
