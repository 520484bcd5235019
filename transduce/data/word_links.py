"""Word alignments in Pharaoh format ("0-0 1-2 ...": source word - target word, from 0), from text to piece weights.

Words are separated by spaces and tabs in the given text; among tokens a word begins at each piece that starts with
SentencePiece's marker, so that subword sampling may segment words freely. A sentence whose pieces form another number
of words than its text (normalisation split or joined some) loses its links, and is counted.
Shapes: T target pieces with the end symbol, S source pieces with the end symbol.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from transduce.core.errors import DataError
from transduce.data.corpus import LINKS_DTYPE
from transduce.data.formats.lines import BYTE_ORDER_MARK, LINE_BYTES
from transduce.text.subword_sampling import Tokens
from transduce.text.tokenizer import Tokenizer, Tokenizers

Links = npt.NDArray[np.unsignedinteger[Any]]  # (links, 2): source word, target word
MOST_WORDS = np.iinfo(LINKS_DTYPE).max + 1
MOST_BYTES = LINE_BYTES // 2  # a line of the scratch folder holds the same links and two counts
_LINK = re.compile(rb"\d{1,9}-\d{1,9}")
_LINKS = re.compile(rb"\s*(?:\d{1,9}-\d{1,9}(?:\s+|$))*")


@dataclass(frozen=True)
class SentenceLinks:
    """The links of one pair, sorted and unique, and the number of words of each text."""

    source_words: int
    target_words: int
    links: tuple[tuple[int, int], ...]

    def as_line(self) -> bytes:
        """Serialize to a line of the scratch folder; empty without links."""
        pairs = ((self.source_words, self.target_words), *self.links)
        return " ".join(f"{left}-{right}" for left, right in pairs).encode() if self.links else b""

    @classmethod
    def from_line(cls, line: bytes) -> SentenceLinks:
        """Parse a line that `as_line` wrote."""
        (source_words, target_words), *links = _pairs(line) or [(0, 0)]
        return cls(source_words, target_words, tuple(links))


def parse_links(line: bytes, location: str) -> list[tuple[int, int]]:
    """Parse the links on a line; `location` is the file:line that errors name."""
    if len(line) > MOST_BYTES:
        raise DataError(f"{location}: over {MOST_BYTES:,} bytes of links; expected those of one sentence")
    line = line.removeprefix(BYTE_ORDER_MARK)
    if not _LINKS.fullmatch(line):
        wrong = next(word for word in line.split() if not _LINK.fullmatch(word))
        raise DataError(
            f"{location}: {wrong.decode(errors='replace')!r:.40} is not a link; expected Pharaoh format: source and "
            "target word numbers from 0 such as '0-0 1-2', and an empty line where there are none"
        )
    return _pairs(line)


def _pairs(line: bytes) -> list[tuple[int, int]]:
    numbers = [*map(int, line.replace(b"-", b" ").split())]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def check_links(links: Sequence[tuple[int, int]], source: bytes, target: bytes, location: str) -> SentenceLinks:
    """Check the links of a pair of texts, given as raw bytes: an error if a word does not exist."""
    counts = len(source.split()), len(target.split())
    for source_word, target_word in links:
        if source_word >= counts[0] or target_word >= counts[1]:
            side = int(source_word < counts[0])
            raise DataError(
                f"{location}: the link {source_word}-{target_word} points at {('source', 'target')[side]} word "
                f"{(source_word, target_word)[side]}, but that text has {counts[side]} words, counted from 0 and "
                "separated by spaces or tabs; align exactly these texts, source word first"
            )
    return SentenceLinks(*counts, tuple(sorted(set(links))))


@dataclass(frozen=True)
class PlacedLinks:
    """The links of consecutive pairs end to end, the number of each, and the pairs whose links were dropped."""

    links: bytes
    lengths: npt.NDArray[np.uint64]
    unplaced: list[int]


def place_links(
    lines: Sequence[bytes], pairs: Sequence[tuple[Tokens, Tokens]], tagged: bool, tokenizers: Tokenizers
) -> PlacedLinks:
    """Keep the links of each pair whose pieces form as many words as its text has."""
    placed: list[tuple[int, int]] = []
    lengths, unplaced = np.zeros(len(pairs), np.uint64), []
    for index, (line, (source, target)) in enumerate(zip(lines, pairs, strict=True)):
        sentence_links = SentenceLinks.from_line(line)
        if not sentence_links.links:
            continue
        counts = sentence_links.source_words, sentence_links.target_words
        words = _count(source[tagged:], tokenizers.source), _count(target, tokenizers.target)
        if words == counts and max(counts) <= MOST_WORDS:
            placed += sentence_links.links
            lengths[index] = len(sentence_links.links)
        else:
            unplaced.append(index)
    return PlacedLinks(np.array(placed, LINKS_DTYPE).tobytes(), lengths, unplaced)


def _count(tokens: Tokens, tokenizer: Tokenizer) -> int:
    words = word_numbers(tokens, tokenizer)
    return int(words[-1]) + 1 if len(words) else 0


def word_numbers(tokens: Tokens, tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """The word index of each token, from 0; the first token begins a word even without the marker."""
    starts = tokenizer.starts_word[np.asarray(tokens, np.int64)]
    starts[:1] = True
    return np.cumsum(starts) - 1


def piece_weights(
    links: Sequence[Links],
    pairs: Sequence[tuple[Tokens, Tokens]],
    tagged: Sequence[bool],
    tokenizers: Tokenizers,
    shape: tuple[int, int],
) -> npt.NDArray[np.float32]:
    """Attention targets (B, T, S), `shape` = (T, S): each piece of a linked word attends evenly to the linked pieces.

    Rows sum to 1, or are zero: unlinked words, the end symbol, padding. A tag is a source piece without a word.
    """
    weights = np.zeros((len(pairs), *shape), np.float32)
    for row, (pair_links, (source, target), tag) in enumerate(zip(links, pairs, tagged, strict=True)):
        if len(pair_links) == 0:
            continue
        source_words = word_numbers(source[int(tag) :], tokenizers.source)
        target_words = word_numbers(target, tokenizers.target)
        counts = [int(words[-1]) + 1 if len(words) else 0 for words in (source_words, target_words)]
        if (pair_links.max(0) >= counts).any():
            raise DataError(
                f"a pair of {counts[0]} and {counts[1]} words has a link {tuple(pair_links.max(0).tolist())} beyond"
                " them: the corpus is damaged; prepare the corpus again"
            )
        linked = np.zeros((counts[1], counts[0]), np.float32)
        linked[pair_links[:, 1], pair_links[:, 0]] = 1
        pieces = linked[target_words][:, source_words]
        sums = pieces.sum(1, keepdims=True)
        weights[row, : len(target), int(tag) : len(source)] = pieces / np.maximum(sums, 1)
    return weights
