"""Which source word each target word came from, read from a model's attention: links, matrices, Pharaoh lines.

A model attends from pieces to pieces; what reaches the pieces of a source word is added up, what leaves the pieces of a
target word averaged, and every target word is linked to the source word that it looks at most.
Shapes: T target and S source pieces, or words once they are merged. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from transduce.text.segment import group_by_length
from transduce.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # numpy is slow to import, and who asks for no alignment needs none
    import numpy as np
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float32]"
Unit = Literal["words", "pieces"]


@dataclass(frozen=True)
class Alignment:
    """Links between the units of a text and of its translation. Units are words between white space, or pieces.

    `links` are (source, target), counted from 0, one for each target unit that looks at any source unit, and
    `strengths` the weight of each link. `weights[target][source]` is the whole matrix: it exists for a text that the
    model read at once. A text that was cut into parts has links alone, since its matrix grows with the square of its
    length.
    """

    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    weights: tuple[tuple[float, ...], ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    strengths: tuple[float, ...] = ()

    @classmethod
    def read(cls, source: Sequence[str], target: Sequence[str], weights: Floats, dense: bool = True) -> Alignment:
        """Link each target unit to the first source unit of the greatest weight; weights (T, S)."""
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
        """From links (source, target, weight) in any order."""
        found = sorted(links)
        pairs, strengths = tuple((s, t) for s, t, _ in found), tuple(weight for *_, weight in found)
        return cls(tuple(source), tuple(target), weights, pairs, strengths)

    def pharaoh(self) -> str:
        """The links as `0-0 1-2`, source first."""
        return " ".join(f"{source}-{target}" for source, target in self.links)


def _strongest(weights: Floats) -> Iterator[tuple[int, int, float]]:
    """The link (source, target, weight) of each target unit that looks at anything; weights (T, S)."""
    if weights.size:
        for number, (place, weight) in enumerate(zip(weights.argmax(1).tolist(), weights.max(1).tolist(), strict=True)):
            if weight > 0:
                yield place, number, weight


@dataclass(frozen=True)
class Grouped:
    """Tokens of a text, its units, and the unit that each token belongs to; frames of a file are no tuple."""

    tokens: Any
    units: tuple[str, ...]
    unit: tuple[int, ...]


def group_text(tokenizer: Tokenizer, text: str, unit: Unit, tokens: Sequence[int] | None = None) -> Grouped:
    """A text as the model reads it, in units; `tokens` are its own, where they are known."""
    if tokens is None:
        (tokens,) = tokenizer.encode([text])
    if unit == "words":
        words = text.split()
        apart = tokenizer.encode(words)
        if [*tokens] == [token for one in apart for token in one]:
            return Grouped(tuple(tokens), tuple(words), tuple(n for n, one in enumerate(apart) for _ in one))
    return group_tokens(tokenizer, tokens, text, unit)  # a tokenizer of one's own may join or split words


def group_tokens(tokenizer: Tokenizer, tokens: Sequence[int], text: str, unit: Unit) -> Grouped:
    """Tokens whose text this is, in units; a token belongs to the word that the tokens up to it end with."""
    if unit == "pieces":
        return Grouped(tuple(tokens), tuple(tokenizer.pieces(tokens)), tuple(range(len(tokens))))
    words = text.split()
    found = []
    for end in range(1, len(tokens) + 1):
        begun = tokenizer.decode(tokens[:end])
        number = len(begun.split()) - (not begun[-1:].isspace())  # after a space, the word to come
        found.append(min(max(number, 0), max(len(words) - 1, 0)))
    return Grouped(tuple(tokens), tuple(words), tuple(found))


def merge(weights: Floats, source: Grouped, target: Grouped) -> Floats:
    """Attention between pieces (T, S) as attention between units."""
    import numpy as np

    if not (source.units and target.units):  # tokens may have no text at all
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
    """One alignment of a text translated in parts. `joined` says where a part goes on with a word of the one before.

    The matrix is kept for a text of one part, where it is asked for as `dense`; no part is linked to another.
    """
    if len(blocks) == 1:
        (block,) = blocks
        return Alignment.read(block.source.units, block.target.units, block.weights, dense)
    source: list[str] = []
    target: list[str] = []
    places = []
    cut: dict[int, dict[int, float]] = {}  # target words that two parts or more write: all of their weights
    for block, goes_on in zip(blocks, joined or [False] * len(blocks), strict=True):
        end = len(target)
        places.append((_append(source, block.source.units, goes_on), _append(target, block.target.units, goes_on)))
        if places[-1][1] < end:
            cut[places[-1][1]] = {}
    links: list[tuple[int, int, float]] = []
    for block, (left, top) in zip(blocks, places, strict=True):
        links += [(left + s, top + t, weight) for s, t, weight in _strongest(block.weights) if top + t not in cut]
        seams = cut.keys() & {top, top + len(block.weights) - 1} if block.weights.size else ()
        for number in seams:
            for place, weight in enumerate(block.weights[number - top].tolist(), left):
                cut[number][place] = cut[number].get(place, 0.0) + weight
    for number, weights in cut.items():
        best = max(weights, key=lambda place: (weights[place], -place), default=0)
        links += [(best, number, weights[best])] if weights.get(best, 0.0) > 0 else []
    return Alignment.linked(source, target, links)


def _append(units: list[str], new: Sequence[str], joined: bool) -> int:
    """Put `new` behind `units`, its first to their last if joined; the place where it begins."""
    begin = len(units)
    if joined and units and new:
        begin -= 1
        units[-1] += new[0]
        new = new[1:]
    units.extend(new)
    return begin


class Attends(Protocol):
    """What runs the model: see `Engine` in translator.py."""

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
    """Every pair read by the model with the target given. Tags and end symbols are no part of the weights."""
    lengths = [len(tag) + max(len(s.tokens), len(t.tokens)) + 1 for tag, (s, t) in zip(tags, pairs, strict=True)]
    found: dict[int, AlignedPart] = {}
    for batch in group_by_length(lengths, batch_tokens):
        sources = [tags[i] + pairs[i][0].tokens if tags[i] else pairs[i][0].tokens for i in batch]  # frames have none
        targets = [pairs[i][1].tokens for i in batch]
        for i, weights in zip(batch, engine.attend(sources, targets, layer), strict=True):
            found[i] = AlignedPart(*pairs[i], merge(weights[:, len(tags[i]) :], *pairs[i]))
    return [found[i] for i in range(len(pairs))]
