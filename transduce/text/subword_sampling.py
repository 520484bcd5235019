"""Reproducible subword sampling: words are re-segmented with a generator of our own.

Sentencepiece 0.2.2 reseeds its generator in each process, so a seed is not reproducible across processes, and a run
could not be resumed exactly. Here the tokens of a sentence are joined into words and each word is re-segmented: unigram
models draw from all segmentations, sharper with larger alpha (Kudo, 2018); BPE models drop merges with probability
alpha (Provilkov et al., 2020). Tags, user symbols, bytes and unknown tokens stay as they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from transduce.text.vocabulary import Processor

if TYPE_CHECKING:  # numpy is slow to import, and only annotations need it
    import numpy as np
    from numpy.typing import NDArray

Tokens: TypeAlias = "Sequence[int] | NDArray[np.integer]"

CACHED = 30  # letters; longer words are seldom seen twice
Edge = tuple[int, int, float]  # where a piece starts, its token, and its cumulated share of all paths to its end


@dataclass
class Sampler:
    """Segments words with a model's normal pieces: `pieces` text -> token and score, `texts` token -> text."""

    pieces: dict[str, tuple[int, float]]
    texts: dict[int, str]
    longest: int
    merges: bool
    alpha: float
    _lattices: dict[str, list[list[Edge]]] = field(default_factory=dict)

    @classmethod
    def of(cls, processor: Processor, alpha: float) -> Sampler:
        pieces = {}
        for token in range(processor.get_piece_size()):
            score = processor.get_score(token)
            special = (processor.is_control, processor.is_unknown, processor.is_byte, processor.is_unused)
            user_defined = score == 0 and math.copysign(1, score) > 0  # user-defined symbols have no score
            if not user_defined and not any(is_special(token) for is_special in special):
                pieces[processor.id_to_piece(token)] = token, score
        try:
            processor.nbest_encode("a", nbest_size=2)
            merges = False
        except RuntimeError:  # only unigram models have an n-best list
            merges = True
        texts = {token: text for text, (token, _) in pieces.items()}
        return cls(pieces, texts, max(map(len, pieces), default=0), merges, alpha)

    def sample(self, tokens: Tokens, generator: Random) -> list[int]:
        """Sample another segmentation of a sentence."""
        cut = self._merge if self.merges else self._walk
        drawn: list[int] = []
        for word, pieces in self._words(tokens):
            drawn += (cut(word, generator) if word else []) or pieces
        return drawn

    def _words(self, tokens: Tokens) -> Iterator[tuple[str, list[int]]]:
        """Yield words as text and tokens; a token that stays as it is comes alone, without text."""
        word, pieces = "", list[int]()
        for token in map(int, tokens):
            text = self.texts.get(token, "")
            if pieces and (not text or not word or text[0] == "▁"):
                yield word, pieces
                word, pieces = "", []
            word += text
            pieces.append(token)
        if pieces:
            yield word, pieces

    def _walk(self, word: str, generator: Random) -> list[int]:
        """Sample a path through the lattice of the word, from its end to its start."""
        lattice = self._lattices.get(word)
        if lattice is None:
            lattice = self._lattice(word)
            if len(word) <= CACHED:
                self._lattices[word] = lattice
        drawn: list[int] = []
        end = len(word)
        while end:
            point = generator.random()
            end, token = next((start, token) for start, token, share in lattice[end] if point < share)
            drawn.append(token)
        return drawn[::-1]

    def _lattice(self, word: str) -> list[list[Edge]]:
        """For each position, the pieces that end there, with their cumulated share of all paths to it."""
        total = [0.0]  # log weight of all paths from the start to each position
        lattice: list[list[Edge]] = [[]]
        for end in range(1, len(word) + 1):
            ways: list[tuple[int, int, float]] = []
            for start in range(max(0, end - self.longest), end):
                piece = self.pieces.get(word[start:end])
                if piece and total[start] > -math.inf:
                    ways.append((start, piece[0], total[start] + self.alpha * piece[1]))
            highest = max((weight for *_, weight in ways), default=-math.inf)
            shares = list(itertools.accumulate(math.exp(weight - highest) for *_, weight in ways))
            total.append(highest + math.log(shares[-1]) if ways else -math.inf)
            lattice.append([(*way[:2], share / shares[-1]) for way, share in zip(ways, shares, strict=True)])
        return lattice

    def _merge(self, word: str, generator: Random) -> list[int]:
        """Merge characters as BPE does, dropping a merge with probability alpha when two parts become adjacent."""

        def merge_score(left: str, right: str) -> float:
            piece = self.pieces.get(left + right)
            return piece[1] if piece and generator.random() >= self.alpha else -math.inf

        parts = list(word)
        joints = [merge_score(*pair) for pair in itertools.pairwise(parts)]
        while joints and (best := max(joints)) > -math.inf:
            position = joints.index(best)
            parts[position : position + 2] = [parts[position] + parts[position + 1]]
            del joints[position]
            if position > 0:
                joints[position - 1] = merge_score(parts[position - 1], parts[position])
            if position < len(joints):
                joints[position] = merge_score(parts[position], parts[position + 1])
        # A third-party model may lack pieces for single characters: then the word stays as it was.
        return [self.pieces[part][0] for part in parts] if all(part in self.pieces for part in parts) else []
