"""Pairs of raw lines to clean ones: one spelling of each text, and no pair that is no translation.

Every function here looks at one pair alone, so that workers share the pairs in any way they like.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from transduce.data.text import Chunk
from transduce.gathering.chinese import HAN, close_up, simplify
from transduce.gathering.settings import Gather, RawText

FREE_LETTERS = 15  # of either side that no ratio counts: short texts differ in length by chance
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_LETTERS = re.compile(r"[^\W_]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
BLOCK = 64  # lines that are in a sample together, so that neighbours stay neighbours
PIVOT_COMMON, OTHER_COMMON = 1, 2  # bits of a pair's flags


@dataclass(frozen=True)
class ChunkToClean:
    """Raw lines of one stretch, the corpus they belong to, and their labels if it has any."""

    stretch: int
    corpus: RawText
    chunk: Chunk
    labels: list[bytes]


@dataclass
class Cleaned:
    """The pairs that stay, the pivot's side first, with what dividing them needs; and what the others were left for.

    Hashes are of a text's letters alone: two sentences that differ in case or punctuation are the same sentence.
    """

    read: int
    texts: tuple[list[str], list[str]]
    hashes: tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]  # of the sentence of the pivot; of the other one
    pairs: npt.NDArray[np.uint64]  # of both texts as they are
    flags: npt.NDArray[np.uint8]
    dropped: Counter[str]


def normalise(text: str) -> str:
    """Unicode NFC, no invisible characters, single spaces."""
    text = _CONTROL.sub(" ", _INVISIBLE.sub("", unicodedata.normalize("NFC", text)))
    return " ".join(text.split())


def letters(text: str) -> str:
    """What makes two sentences the same: letters and digits, without case, accents kept."""
    return "".join(_LETTERS.findall(unicodedata.normalize("NFKC", text).casefold()))


def length(text: str) -> int:
    """Letters of a text; a Chinese character says as much as three."""
    return len(text) if text.isascii() else len(text) + 2 * len(HAN.findall(text))


def hash_words(*words: str) -> int:
    """64 bits of some words; the space between them is no letter."""
    return int.from_bytes(blake2b("\0".join(words).encode(), digest_size=8).digest(), "little")


def clean_chunk(task: ChunkToClean, config: Gather) -> tuple[int, Cleaned]:
    """What a worker does."""
    raw = task.chunk.pairs()
    swapped = task.corpus.languages[0] != config.pivot
    found: tuple[list[str], list[str]] = ([], [])
    numbers: list[tuple[int, int, int, int]] = []
    dropped: Counter[str] = Counter()
    cleaner = Cleaner(config, task.corpus)
    for index, lines in enumerate(zip(raw.source, raw.target, strict=True)):
        if not cleaner.draws(task.chunk.first_line + index):
            dropped["not_sampled"] += 1
            continue
        labels = task.labels[index].decode("utf-8", "replace").split("\t") if task.labels else []
        texts, reason = cleaner.clean(lines, labels)
        if reason:
            dropped[reason] += 1
            continue
        pivot, other = reversed(texts) if swapped else texts
        found[0].append(pivot)
        found[1].append(other)
        numbers.append(cleaner.numbers(pivot, other))
    table = np.array(numbers, np.uint64).reshape(-1, 4)
    hashes = (table[:, 0].copy(), table[:, 1].copy())
    return task.stretch, Cleaned(
        len(raw.source), found, hashes, table[:, 2].copy(), table[:, 3].astype(np.uint8), dropped
    )


class Cleaner:
    """The rules for one corpus."""

    def __init__(self, config: Gather, corpus: RawText) -> None:
        self.config, self.corpus = config, corpus
        self.other = config.other(corpus)
        self.drop = re.compile(corpus.drop) if corpus.drop else None

    def draws(self, line: int) -> bool:
        """Whether the block of lines that this one is in belongs to the sample."""
        if self.corpus.sample == 1:
            return True
        return hash_words(self.corpus.name, str(line // BLOCK)) < self.corpus.sample * 2**64

    def clean(self, lines: tuple[bytes, bytes], labels: list[str]) -> tuple[tuple[str, str], str]:
        """Both texts, or why the pair is left out."""
        nothing = ("", "")
        if self.corpus.keep and not set(self.corpus.keep) & set(labels):
            return nothing, "other_language"
        try:
            texts = lines[0].decode(), lines[1].decode()
        except UnicodeDecodeError:
            return nothing, "invalid_utf8"
        texts = self._written(texts[0], 0), self._written(texts[1], 1)
        return texts, self._reason(texts)

    def _written(self, text: str, side: int) -> str:
        text = normalise(text)
        if self.corpus.languages[side] in self.config.simplified:
            text = close_up(simplify(text))
        return text

    def _reason(self, texts: tuple[str, str]) -> str:
        if not all(_LETTERS.search(text) for text in texts):
            return "empty"
        if self.drop and any(self.drop.search(text) for text in texts):
            return "markup"
        if texts[0] == texts[1]:
            return "copied"
        if not all(_fits(text, language) for text, language in zip(texts, self.corpus.languages, strict=True)):
            return "other_script"
        lengths = sorted(length(text) for text in texts)
        if lengths[1] > self.config.longest:
            return "too_long"
        if lengths[1] - FREE_LETTERS > self.config.largest_ratio * lengths[0]:
            return "mismatched"
        return ""

    def numbers(self, pivot: str, other: str) -> tuple[int, int, int, int]:
        """Hashes of the sentence of the pivot, of the other one, of the pair, and flags."""
        keys = letters(pivot), letters(other)
        short = [length(key) <= self.config.common for key in keys]
        flags = PIVOT_COMMON * short[0] + OTHER_COMMON * short[1]
        pair = hash_words(self.other, pivot, other)
        return hash_words(keys[0]), hash_words(self.other, keys[1]), pair, flags


@cache
def _is_chinese(language: str) -> bool:
    return language.lower() in ("zh", "cmn", "yue", "wuu", "lzh")


def _fits(text: str, language: str) -> bool:
    """Whether a text is in the script of its language, as far as Chinese is concerned: others have no Han, it has."""
    return _is_chinese(language) == bool(HAN.search(text)) or language.lower() in ("ja", "ko")
