"""Word alignments from a model's cross-attention: links, matrices, Pharaoh lines.

A model attends from pieces to pieces. Weights are summed over the pieces of a source word and averaged over those of a
target word, and every target word is linked to the source word of its largest weight.
Shapes: T target and S source pieces, or words once merged. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from transduce.text.segment import group_by_length
from transduce.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # numpy is slow to import, and only alignments need it
    import numpy as np
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float32]"
Unit = Literal["words", "pieces"]


@dataclass(frozen=True)
class Alignment:
    """Links between the units of a text and of its translation; units are white-space words, or pieces.

    `links` are (source, target), counted from 0, one for each target unit with any weight, and `strengths` the weight
    of each link. `weights[target][source]` is the full matrix: it exists for a text that the model read in one piece.
    A text that was split into parts has only links, since its matrix grows with the square of its length.
    """

    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    weights: tuple[tuple[float, ...], ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    strengths: tuple[float, ...] = ()

    @classmethod
    def read(cls, source: Sequence[str], target: Sequence[str], weights: Floats, dense: bool = True) -> Alignment:
        """Link each target unit to the first source unit of the largest weight; weights (T, S)."""
        matrix = tuple(map(tuple, weights.tolist())) if dense else ()
        return cls.linked(source, target, _strongest(weights), matrix)

    @classmethod
    def linked(
        cls,
        source: Sequence[str],
        target: Sequence[str],
        links: Iterable[tuple[int, int, float]],
        weights: tuple[tuple[float, ...], ...] = (),
    ) -> Alignment:
        """Build an alignment from links (source, target, weight) in any order."""
        ordered = sorted(links)
        pairs, strengths = tuple((s, t) for s, t, _ in ordered), tuple(weight for *_, weight in ordered)
        return cls(tuple(source), tuple(target), weights, pairs, strengths)

    @classmethod
    def chained(cls, parts: Sequence[Alignment]) -> Alignment:
        """The alignment of texts that follow each other, without a matrix; of one text, its own."""
        if len(parts) == 1:
            return parts[0]
        source: list[str] = []
        target: list[str] = []
        links: list[tuple[int, int, float]] = []
        for part in parts:
            rows = zip(part.links, part.strengths, strict=True)
            links += [(len(source) + s, len(target) + t, weight) for (s, t), weight in rows]
            source += part.source
            target += part.target
        return cls.linked(source, target, links)

    def with_units(self, of_source: Mapping[str, str], of_target: Mapping[str, str]) -> Alignment:
        """Write other words in the units, such as a URL for its mark; pieces that spell such a word become one unit.

        Where pieces are joined, the matrix is given up.
        """
        source, source_of = _rewritten(self.source, of_source)
        target, target_of = _rewritten(self.target, of_target)
        if len(source) == len(self.source) and len(target) == len(self.target):
            return replace(self, source=tuple(source), target=tuple(target))
        strongest: dict[tuple[int, int], float] = {}
        for (s, t), weight in zip(self.links, self.strengths, strict=True):
            link = source_of[s], target_of[t]
            strongest[link] = max(weight, strongest.get(link, 0.0))
        return Alignment.linked(source, target, [(s, t, weight) for (s, t), weight in strongest.items()])

    def pharaoh(self) -> str:
        """Format the links as `0-0 1-2`, source first."""
        return " ".join(f"{source}-{target}" for source, target in self.links)


def _rewritten(units: Sequence[str], replaced: Mapping[str, str]) -> tuple[list[str], list[int]]:
    """Replace words in units, joining the pieces that spell one; also returns the new number of each unit."""
    made: list[str] = []
    number_of: list[int] = []
    begin = 0
    while begin < len(units):
        unit, count = units[begin], 1
        for old, new in replaced.items():
            if old in unit:
                unit = unit.replace(old, new)
            elif spelt := _spelt(units, begin, old):
                unit, count = ("▁" if unit.startswith("▁") else "") + new, spelt
        made.append(unit)
        number_of += [len(made) - 1] * count
        begin += count
    return made, number_of


def _spelt(units: Sequence[str], begin: int, word: str) -> int:
    """The number of pieces from `begin` on that spell a word; 0 if they do not."""
    text = ""
    for count, unit in enumerate(units[begin : begin + len(word) + 1], 1):
        text += unit
        if text.removeprefix("▁") == word:
            return count
        if not word.startswith(text.removeprefix("▁")):
            return 0
    return 0


def _strongest(weights: Floats) -> Iterator[tuple[int, int, float]]:
    """Yield the link (source, target, weight) of each target unit with any weight; weights (T, S)."""
    if weights.size:
        for number, (best, weight) in enumerate(zip(weights.argmax(1).tolist(), weights.max(1).tolist(), strict=True)):
            if weight > 0:
                yield best, number, weight


@dataclass(frozen=True)
class Grouped:
    """A text's tokens, its units, and the unit of each token; `tokens` of a source file are frames, not a tuple."""

    tokens: Any
    units: tuple[str, ...]
    unit: tuple[int, ...]


def group_text(tokenizer: Tokenizer, text: str, unit: Unit, tokens: Sequence[int] | None = None) -> Grouped:
    """Tokenize a text as the model reads it, and map its tokens to units; `tokens` are its own, where known."""
    if tokens is None:
        (tokens,) = tokenizer.encode([text])
    if unit == "words":
        words = text.split()
        word_tokens = tokenizer.encode(words)
        if [*tokens] == [token for pieces in word_tokens for token in pieces]:
            unit_of = tuple(n for n, pieces in enumerate(word_tokens) for _ in pieces)
            return Grouped(tuple(tokens), tuple(words), unit_of)
    return group_tokens(tokenizer, tokens, text, unit)  # a user's tokenizer may join or split words


def group_tokens(tokenizer: Tokenizer, tokens: Sequence[int], text: str, unit: Unit) -> Grouped:
    """Map the given tokens of a text to units; a token belongs to the last word of the text decoded up to it."""
    if unit == "pieces":
        return Grouped(tuple(tokens), tuple(tokenizer.pieces(tokens)), tuple(range(len(tokens))))
    words = text.split()
    unit_of_token = []
    for end in range(1, len(tokens) + 1):
        prefix = tokenizer.decode(tokens[:end])
        number = len(prefix.split()) - (not prefix[-1:].isspace())  # after a space, the next word
        unit_of_token.append(min(max(number, 0), max(len(words) - 1, 0)))
    return Grouped(tuple(tokens), tuple(words), tuple(unit_of_token))


def merge(weights: Floats, source: Grouped, target: Grouped) -> Floats:
    """Turn attention between pieces (T, S) into attention between units."""
    import numpy as np

    if not (source.units and target.units):  # tokens may decode to no text
        return np.zeros((len(target.units), len(source.units)), dtype=np.float32)
    gathered = np.zeros((len(source.units), len(weights)), dtype=np.float32)
    np.add.at(gathered, list(source.unit), weights.T)
    merged = np.zeros((len(target.units), len(source.units)), dtype=np.float32)
    np.add.at(merged, list(target.unit), gathered.T)
    sizes = np.bincount(target.unit, minlength=len(target.units)).astype(np.float32)
    merged /= np.maximum(sizes, 1)[:, None]
    return merged


@dataclass(frozen=True)
class AlignedPart:
    """The units of one part of a text and of its translation, and the weights (T, S) between them."""

    source: Grouped
    target: Grouped
    weights: Floats


def join(blocks: Sequence[AlignedPart], joined: Sequence[bool] = (), dense: bool = True) -> Alignment:
    """Join the alignments of a text translated in parts; `joined` marks parts that continue the last word before them.

    The matrix is returned only for a text of one part and if `dense`; no unit is linked to another part.
    """
    if len(blocks) == 1:
        (block,) = blocks
        return Alignment.read(block.source.units, block.target.units, block.weights, dense)
    source: list[str] = []
    target: list[str] = []
    offsets = []
    cut: dict[int, dict[int, float]] = {}  # target words written by two or more parts: their summed weights
    for block, continues in zip(blocks, joined or [False] * len(blocks), strict=True):
        end = len(target)
        offsets.append((_append(source, block.source.units, continues), _append(target, block.target.units, continues)))
        if offsets[-1][1] < end:
            cut[offsets[-1][1]] = {}
    links: list[tuple[int, int, float]] = []
    for block, (left, top) in zip(blocks, offsets, strict=True):
        links += [(left + s, top + t, weight) for s, t, weight in _strongest(block.weights) if top + t not in cut]
        seams = cut.keys() & {top, top + len(block.weights) - 1} if block.weights.size else ()
        for number in seams:
            for position, weight in enumerate(block.weights[number - top].tolist(), left):
                cut[number][position] = cut[number].get(position, 0.0) + weight
    for number, weights in cut.items():
        best = max(weights, key=lambda position: (weights[position], -position), default=0)
        links += [(best, number, weights[best])] if weights.get(best, 0.0) > 0 else []
    return Alignment.linked(source, target, links)


def _append(units: list[str], new: Sequence[str], joined: bool) -> int:
    """Append `new` to `units`, merging its first with their last if joined; returns the index where it begins."""
    begin = len(units)
    if joined and units and new:
        begin -= 1
        units[-1] += new[0]
        new = new[1:]
    units.extend(new)
    return begin


class Attends(Protocol):
    """The engine method that alignments need; see `Engine` in engines/__init__.py."""

    def attend(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], layer: int | None
    ) -> list[Floats]: ...


def attend_all(
    engine: Attends,
    pairs: Sequence[tuple[Grouped, Grouped]],
    tags: Sequence[tuple[int, ...]],
    layer: int | None,
    batch_tokens: int,
) -> list[AlignedPart]:
    """Compute unit attention of every pair by forced decoding; tags and end symbols are cut from the weights."""
    lengths = [len(tag) + max(len(s.tokens), len(t.tokens)) + 1 for tag, (s, t) in zip(tags, pairs, strict=True)]
    parts: dict[int, AlignedPart] = {}
    for batch in group_by_length(lengths, batch_tokens):
        # Frames have no tags.
        sources = [tags[i] + pairs[i][0].tokens if tags[i] else pairs[i][0].tokens for i in batch]
        targets = [pairs[i][1].tokens for i in batch]
        for i, weights in zip(batch, engine.attend(sources, targets, layer), strict=True):
            parts[i] = AlignedPart(*pairs[i], merge(weights[:, len(tags[i]) :], *pairs[i]))
    return [parts[i] for i in range(len(pairs))]
