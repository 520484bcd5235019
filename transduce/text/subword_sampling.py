"""Subword sampling that every process repeats: words cut into other pieces by a generator of our own.

Sentencepiece 0.2.2 salts its generator anew in each process, so that a seed fixes nothing beyond one, and a run could
not be resumed exactly. Here the tokens of a sentence are joined into words and each word is cut anew: unigram models
draw from all segmentations, sharper with larger alpha (Kudo, 2018); BPE models leave out merges with probability
alpha (Provilkov et al., 2020). Tags, a user's symbols, bytes and unknown tokens stay as they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from transduce.text.vocabulary import Processor

if TYPE_CHECKING:  # numpy is slow to import, and nothing here needs it to run
    import numpy as np
    from numpy.typing import NDArray

Tokens: TypeAlias = "Sequence[int] | NDArray[np.integer]"

CACHED = 30  # letters; longer words are seldom met twice
Edge = tuple[int, int, float]  # where a piece starts, its number, and its share of all ways to its end, cumulated


@dataclass
class Sampler:
    """Cuts words with the plain pieces of one model: `pieces` text -> number and score, `texts` number -> text."""

    pieces: dict[str, tuple[int, float]]
    texts: dict[int, str]
    longest: int
    merges: bool
    alpha: float
    _lattices: dict[str, list[list[Edge]]] = field(default_factory=dict)

    @classmethod
    def of(cls, processor: Processor, alpha: float) -> Sampler:
        found = {}
        for token in range(processor.get_piece_size()):
            score = processor.get_score(token)
            special = (processor.is_control, processor.is_unknown, processor.is_byte, processor.is_unused)
            given = score == 0 and math.copysign(1, score) > 0  # symbols of a user have no score
            if not given and not any(is_special(token) for is_special in special):
                found[processor.id_to_piece(token)] = token, score
        try:
            processor.nbest_encode("a", nbest_size=2)
            merges = False
        except RuntimeError:  # only unigram models have a second best
            merges = True
        texts = {token: text for text, (token, _) in found.items()}
        return cls(found, texts, max(map(len, found), default=0), merges, alpha)

    def sample(self, tokens: Tokens, generator: Random) -> list[int]:
        """The same sentence in other pieces."""
        cut = self._merge if self.merges else self._walk
        drawn: list[int] = []
        for word, pieces in self._words(tokens):
            drawn += (cut(word, generator) if word else []) or pieces
        return drawn

    def _words(self, tokens: Tokens) -> Iterator[tuple[str, list[int]]]:
        """The words as text and tokens; a token that stays as it is comes alone, without text."""
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
        """A way through the lattice of the word, drawn from its end to its start."""
        lattice = self._lattices.get(word)
        if lattice is None:
            lattice = self._lattice(word)
            if len(word) <= CACHED:
                self._lattices[word] = lattice
        drawn: list[int] = []
        place = len(word)
        while place:
            point = generator.random()
            place, token = next((start, token) for start, token, share in lattice[place] if point < share)
            drawn.append(token)
        return drawn[::-1]

    def _lattice(self, word: str) -> list[list[Edge]]:
        """For each place the pieces that end there, with the share of all ways to it that end so."""
        total = [0.0]  # the logarithm of the weight of all ways from the start to each place
        lattice: list[list[Edge]] = [[]]
        for end in range(1, len(word) + 1):
            ways: list[tuple[int, int, float]] = []
            for start in range(max(0, end - self.longest), end):
                found = self.pieces.get(word[start:end])
                if found and total[start] > -math.inf:
                    ways.append((start, found[0], total[start] + self.alpha * found[1]))
            highest = max((weight for *_, weight in ways), default=-math.inf)
            shares = list(itertools.accumulate(math.exp(weight - highest) for *_, weight in ways))
            total.append(highest + math.log(shares[-1]) if ways else -math.inf)
            lattice.append([(*way[:2], share / shares[-1]) for way, share in zip(ways, shares, strict=True)])
        return lattice

    def _merge(self, word: str, generator: Random) -> list[int]:
        """Join characters as BPE does, but forget a merge with probability alpha where two parts come to meet."""

        def meet(left: str, right: str) -> float:
            found = self.pieces.get(left + right)
            return found[1] if found and generator.random() >= self.alpha else -math.inf

        parts = list(word)
        joints = [meet(*pair) for pair in itertools.pairwise(parts)]
        while joints and (best := max(joints)) > -math.inf:
            place = joints.index(best)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
            del joints[place]
            if place > 0:
                joints[place - 1] = meet(parts[place - 1], parts[place])
            if place < len(joints):
                joints[place] = meet(parts[place], parts[place + 1])
        # A model made by others may lack the pieces of single characters: then the word stays as it was.
        return [self.pieces[part][0] for part in parts] if all(part in self.pieces for part in parts) else []
