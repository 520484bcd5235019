"""Random sentences, and the same with errors, for tests of significance."""

from __future__ import annotations

import random

WORDS = ["the", "a", "cat", "dog", "man", "house", "sees", "likes", "red", "blue", "old", "small", "quickly", "today"]


def sentences(count: int, seed: int) -> list[str]:
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS, k=chosen.randint(5, 12))) for _ in range(count)]


def with_errors(texts: list[str], share: float, seed: int) -> list[str]:
    chosen = random.Random(seed)
    return [" ".join("wrong" if chosen.random() < share else word for word in text.split()) for text in texts]
