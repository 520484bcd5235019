"""Workload of the training benchmarks: model sizes, random sentence pairs, and their FLOP.

Pairs are drawn once and written as plain text, so that our own path from text to batches is included; peers get the
same pairs sorted by length and padded to the longest. Needs only numpy: peers run in environments of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PAD, UNK, BOS, EOS, SPECIALS = 0, 1, 2, 3, 4  # as our trained tokenizers number them
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sizes:
    """A Transformer with one embedding for source, target and output."""

    d_model: int
    d_ff: int
    heads: int
    layers: int  # on each side
    vocabulary: int
    dropout: float = 0.1
    smoothing: float = 0.1

    def flops(self, source: float, target: float, source_square: float, cross: float, target_square: float) -> float:
        """Multiplications and additions of one training step on so many tokens, matrix products only.

        The last three are sums over sentences of S * S, T * S and T * T: attention's products, full squares although
        half of the decoder's self-attention is masked. Backward has two products for each one forward.
        """
        square, wide = self.d_model**2, self.d_model * self.d_ff
        encoder = source * (4 * square + 2 * wide) + 2 * source_square * self.d_model
        decoder = target * (6 * square + 2 * wide) + source * 2 * square  # the keys and values of the source
        decoder += 2 * (target_square + cross) * self.d_model
        output = target * self.d_model * self.vocabulary
        return 3 * 2 * (self.layers * (encoder + decoder) + output)


SIZES = {
    "base": Sizes(d_model=512, d_ff=2048, heads=8, layers=6, vocabulary=32000),
    "small": Sizes(d_model=256, d_ff=1024, heads=4, layers=6, vocabulary=8000),
    "tiny": Sizes(d_model=32, d_ff=64, heads=2, layers=1, vocabulary=200),
}


@dataclass(frozen=True)
class Pairs:
    """Random sentence pairs: tokens of each sentence, without start and end."""

    sources: list[Integers]
    targets: list[Integers]

    @classmethod
    def draw(cls, count: int, vocabulary: int, mean: float, seed: int, spread: float = 0.45) -> Pairs:
        """Draw log-normal lengths around `mean` (with the end symbol), targets a little longer or shorter than sources.

        `spread` 0 makes all sentences the same length.
        """
        generator = np.random.default_rng(seed)
        source = np.exp(generator.normal(np.log(mean), spread, count))
        target = source * np.exp(generator.normal(0, spread / 3, count))
        lengths = np.clip(np.stack((source, target)).round().astype(np.int64), 3, max(100, round(mean))) - 1
        sides = [[generator.integers(SPECIALS, vocabulary, length) for length in side] for side in lengths]
        return cls(*sides)

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def target_tokens(self) -> int:
        """End symbols counted, start symbols not."""
        return sum(len(tokens) + 1 for tokens in self.targets)

    def flops(self, sizes: Sizes) -> float:
        """FLOP of one training step on all of them, without padding."""
        source = np.array([len(tokens) + 1 for tokens in self.sources])
        target = np.array([len(tokens) + 1 for tokens in self.targets])
        sums = source.sum(), target.sum(), (source**2).sum(), (source * target).sum(), (target**2).sum()
        return sizes.flops(*map(float, sums))

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write them as text, a word a token; `words` are the vocabulary of a tokenizer that restores the tokens."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = folder / "train.source", folder / "train.target"
        for path, sentences in zip(paths, (self.sources, self.targets), strict=True):
            path.write_text("".join(" ".join(map(word, tokens)) + "\n" for tokens in sentences), encoding="utf-8")
        return paths

    def by_length(self, tokens: int) -> Iterator[PaddedBatch]:
        """Batches sorted by length, each side with at most `tokens` including padding, as a careful loop has them."""
        order = sorted(range(len(self)), key=lambda i: (len(self.targets[i]), len(self.sources[i])))
        begin, longest = 0, 0
        for end, pair in enumerate(order):
            length = max(len(self.sources[pair]), len(self.targets[pair])) + 1
            if end > begin and (end - begin + 1) * max(longest, length) > tokens:
                yield self.padded(order[begin:end])
                begin, longest = end, 0
            longest = max(longest, length)
        yield self.padded(order[begin:])

    def padded(self, members: Sequence[int]) -> PaddedBatch:
        return PaddedBatch(
            _pad([[*self.sources[i], EOS] for i in members]), _pad([[BOS, *self.targets[i], EOS] for i in members])
        )


def word(token: int) -> str:
    """A unique word for a token; without digits, which tokenizers split."""
    letters = ""
    for _ in range(4):
        token, digit = divmod(int(token), 26)
        letters += chr(ord("a") + digit)
    return letters


@dataclass(frozen=True)
class PaddedBatch:
    """source (B, S) with end symbols, target (B, T + 1) with start and end symbols; PAD elsewhere."""

    source: Integers
    target: Integers

    @property
    def target_tokens(self) -> int:
        return int((self.target[:, 1:] != PAD).sum())


def fullness(batches: Sequence[PaddedBatch], room: tuple[int, int] = (0, 0)) -> float:
    """The share of positions, both sides together, that hold a token; packed, each side has capacity `room`."""
    real = sum(int((batch.source != PAD).sum()) + batch.target_tokens for batch in batches)
    return real / sum(sum(room) or batch.source.size + batch.target[:, 1:].size for batch in batches)


def save_batches(path: Path, batches: Sequence[PaddedBatch]) -> None:
    arrays: dict[str, Any] = {}
    for number, batch in enumerate(batches):
        arrays |= {f"{number}.source": batch.source, f"{number}.target": batch.target}
    np.savez(path, **arrays)


def load_batches(path: Path) -> list[PaddedBatch]:
    with np.load(path) as arrays:
        return [PaddedBatch(arrays[f"{n}.source"], arrays[f"{n}.target"]) for n in range(len(arrays.files) // 2)]


def _pad(sentences: Sequence[Sequence[int]]) -> Integers:
    padded = np.full((len(sentences), max(map(len, sentences))), PAD, dtype=np.int64)
    for row, tokens in enumerate(sentences):
        padded[row, : len(tokens)] = tokens
    return padded
