"""Our subword sampling draws what sentencepiece's would: the same distribution, by another generator."""

from collections import Counter
from random import Random

import pytest

from transduce.text.subword_sampling import Sampler
from transduce.text.tokenizer import Tokenizer
from transduce.text.train_tokenizer import SentencePiece

LINES = [
    f"{a} {b} {c}" for a in ("the", "then", "other") for b in ("cat", "cats", "cut") for c in ("sat", "seat", "sets")
]


def tokenizer_of(model: str) -> Tokenizer:
    settings = SentencePiece(model, vocabulary=40, byte_fallback=False)  # type: ignore[arg-type]
    return settings.train(LINES, LINES).tokenizers.source


@pytest.mark.parametrize(("model", "alpha"), [("unigram", 0.3), ("bpe", 0.2)])
def test_frequencies_are_those_of_sentencepiece(model: str, alpha: float) -> None:
    tokenizer = tokenizer_of(model)
    text, draws = "other cats", 4000
    plain = tokenizer.encode([text])[0]
    ours = Counter(map(tuple, tokenizer.sample([plain] * draws, alpha, seed=3)))
    theirs, again = (library_draws(tokenizer, text, alpha, draws) for _ in range(2))
    assert len(ours) > 3
    assert distance(ours, theirs) < distance(again, theirs) + 0.03  # no further apart than two draws of theirs


def library_draws(tokenizer: Tokenizer, text: str, alpha: float, draws: int) -> Counter[tuple[int, ...]]:
    encode = tokenizer._processor.encode
    return Counter(tuple(encode(text, enable_sampling=True, alpha=alpha, nbest_size=-1)) for _ in range(draws))


def distance(one: Counter[tuple[int, ...]], two: Counter[tuple[int, ...]]) -> float:
    """Total variation."""
    return sum(abs(one[cut] - two[cut]) for cut in one | two) / (2 * one.total())


def test_no_dropout_gives_the_plain_cut() -> None:
    tokenizer = tokenizer_of("bpe")
    plain = tokenizer.encode(LINES)
    assert tokenizer.sample(plain, 0.0, seed=1) == plain


@pytest.mark.parametrize("model", ["unigram", "bpe"])
def test_the_draw_depends_on_the_words_alone_and_not_on_how_they_were_cut(model: str) -> None:
    tokenizer = tokenizer_of(model)
    text = "other cats cut the seat"
    plain = tokenizer.encode([text])
    cuts = [[tokenizer._processor.piece_to_id(letter) for letter in "▁" + text.replace(" ", "▁")]]
    assert tokenizer.sample(cuts * 20, 0.2, seed=5) == tokenizer.sample(plain * 20, 0.2, seed=5)


def test_a_word_is_cut_only_where_pieces_end() -> None:
    """A model made by others may lack the pieces of single characters."""
    sampler = Sampler({"▁abc": (5, -1.0), "▁a": (6, -1.0)}, {5: "▁abc", 6: "▁a"}, 4, merges=False, alpha=1.0)
    assert [sampler.sample([5, 6], Random(seed)) for seed in range(9)] == [[5, 6]] * 9
