"""The results of an inspection as plain frozen dataclasses, each with a JSON form. Imports no torch.

Shapes: H heads, T positions of the decoder, S source tokens; a map's weights are (H, rows, columns). In JSON they are
bytes in base64, of the square root, so that small weights keep their order: round(255 sqrt(w)). A sentence of 100
tokens in 6 layers of 8 heads has 1.4 million of them.
"""

from __future__ import annotations

import base64
import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from transduce.text.alignment import Alignment

Part = Literal["encoder", "decoder", "cross"]
Fate = Literal["kept", "finished", "pruned", "open"]
PARTS: tuple[Part, ...] = ("encoder", "decoder", "cross")


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """The attention weights of one layer (H, rows, columns), each row a distribution.

    `part` is the encoder's or decoder's attention to itself, or "cross": the decoder's to the source. `member` numbers
    the models of an ensemble. `name` is that of the trace: `decoder.3.cross`.
    """

    name: str
    part: Part
    layer: int
    weights: NDArray[np.float32]
    member: int = 0

    def as_json(self) -> dict[str, Any]:
        """Sizes, and the square roots of the weights as bytes in base64."""
        heads, rows, columns = self.weights.shape
        return {
            "name": self.name,
            "part": self.part,
            "layer": self.layer,
            "member": self.member,
            "heads": heads,
            "rows": rows,
            "columns": columns,
            "weights": packed(np.sqrt(self.weights)),
        }


def packed(values: NDArray[np.float32]) -> str:
    """Encode numbers from 0 to 1 as bytes, 255 for 1, in base64."""
    return base64.b64encode(np.round(np.clip(values, 0, 1) * 255).astype(np.uint8).tobytes()).decode()


@dataclass(frozen=True)
class Head:
    """Statistics of one head, means over the rows of its map (`heads_of` in inspect.py defines them)."""

    part: Part
    layer: int
    head: int
    entropy: float
    confidence: float
    distance: float
    diagonal: float
    previous: float
    following: float
    ends: float
    role: str
    member: int = 0


@dataclass(frozen=True)
class Candidate:
    """A token that could be written, and its log-probability."""

    token: int
    piece: str
    log_prob: float


@dataclass(frozen=True)
class DecodingStep:
    """One position of the decoder: the token it read last, the token written, and the candidates.

    `candidates` are the most probable tokens, best first; empty where they are unknown. `rank` is the rank of the
    written token among all, from 0; `entropy` that of the distribution, in bits. Of an engine that offers no more than
    candidates the entropy is NaN, and a token that is not among them ranks right after them.
    """

    read: str
    token: int
    written: str
    log_prob: float
    rank: int = 0
    entropy: float = math.nan
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class Branch:
    """A what-if continuation: another token at a step, and the translation that follows from there."""

    step: int
    token: int
    piece: str
    log_prob: float
    text: str
    total: float


@dataclass(frozen=True)
class Node:
    """A token that a search considered after the path to its parent, number -1 for the beginning.

    `log_prob` is the token's own, `total` that of the path. Its fate: "kept" and continued; "finished", an end symbol
    that counted, with its `score`; "pruned"; or "open", on a path that was live when the search ended.
    """

    parent: int
    step: int
    token: int
    piece: str
    log_prob: float
    total: float
    fate: Fate
    score: float | None = None


@dataclass(frozen=True)
class Tree:
    """The tree of a search: nodes, parents before children, and the numbers of those on the chosen path."""

    nodes: tuple[Node, ...]
    best: tuple[int, ...]


@dataclass(frozen=True)
class LensLayer:
    """The logit lens of one decoder layer at every position: best candidates, and the rank of the written token."""

    layer: int
    places: tuple[tuple[Candidate, ...], ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class SourcePicture:
    """A recording or picture as people look at it: values (height, width) from 0 to 1.

    `boxes` say where in it each position of the memory is: left, top, width, height, in columns and rows of the values.
    """

    values: NDArray[np.float32]
    boxes: tuple[tuple[float, float, float, float], ...]

    def as_json(self) -> dict[str, Any]:
        """Sizes, boxes, and the values as bytes in base64."""
        height, width = self.values.shape
        return {"height": height, "width": width, "boxes": _plain(self.boxes), "values": packed(self.values)}


@dataclass(frozen=True, eq=False)
class Inspection:
    """The inspection of one sentence in one model.

    `source` are the pieces read, with tag and end symbol; `read` what the decoder reads at each position, the start
    symbol first, and `written` what it writes there, the end symbol last; `source_tokens` and `tokens` are the numbers
    of what is read and written. Rows of cross-attention stand for `written`, rows and columns of the decoder's own
    attention for `read`. `notes` say what could not be seen, and why. Of a recording or picture `source` names the
    positions of the memory, and `sight` is what it looks like.
    """

    model: str
    text: str
    to: str
    translation: str
    score: float
    log_prob: float
    finished: bool
    search: str
    source: tuple[str, ...]
    read: tuple[str, ...]
    written: tuple[str, ...]
    tokens: tuple[int, ...]
    source_tokens: tuple[int, ...] = ()
    forced: int = 0
    maps: tuple[AttentionMap, ...] = ()
    heads: tuple[Head, ...] = ()
    alignment: Alignment | None = None
    steps: tuple[DecodingStep, ...] = ()
    branches: tuple[Branch, ...] = ()
    tree: Tree | None = None
    lens: tuple[LensLayer, ...] = ()
    alternatives: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    sight: SourcePicture | None = None

    def map(self, part: Part, layer: int, member: int = 0) -> AttentionMap:
        """The attention of one layer."""
        return next(m for m in self.maps if (m.part, m.layer, m.member) == (part, layer, member))

    def as_json(self) -> dict[str, Any]:
        """All of it as dicts, lists, numbers and strings, for `json.dumps`."""
        apart = ("maps", "sight")
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in apart}
        sight = {} if self.sight is None else {"sight": self.sight.as_json()}
        return {**_plain(plain), "maps": [found.as_json() for found in self.maps], **sight}


def _plain(value: Any) -> Any:
    """Convert dataclasses and tuples to dicts and lists, and infinite log-probabilities to null, which JSON has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return round(value, 5) if np.isfinite(value) else None
    return value
