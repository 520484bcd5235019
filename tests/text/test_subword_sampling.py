"""Our subword sampling draws what sentencepiece's would: the same distribution, by another generator."""

from collections import Counter

import pytest

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
