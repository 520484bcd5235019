"""Describe each attention head in a few numbers one can sort by (after Voita et al. 2019 and Clark et al. 2019).

All are means over the rows of a map. Where rows and columns differ in number, as in cross-attention, position i of T
rows lies opposite position i * (S - 1) / (T - 1) of S columns. Shapes: H heads, T rows, S columns. Imports no torch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from transduce.inspection.record import Head, Map

CLEAR = 0.5  # a head that gives at least half of its weight to one kind of position is named after it
ROLES = {
    "diagonal": ("itself", "the place opposite"),
    "previous": ("the token before", "the place before"),
    "following": ("the token after", "the place after"),
    "ends": ("start or end", "start or end"),
}


def heads_of(layer_map: Map) -> list[Head]:
    """The statistics of each head of a map."""
    count, rows, columns = layer_map.weights.shape
    weights = layer_map.weights.astype(np.float64)
    opposite = np.zeros(rows) if rows == 1 else np.arange(rows) * (columns - 1) / (rows - 1)
    away = np.arange(columns)[None, :] - opposite[:, None]  # (T, S)
    facts = {
        "entropy": entropy(weights).mean(-1),
        "confidence": weights.max(-1).mean(-1),
        "distance": (weights * np.abs(away)).sum(-1).mean(-1),
        "diagonal": _mass(weights, np.abs(away) <= 0.5),
        "previous": _mass(weights, (away >= -1.5) & (away < -0.5)),
        "following": _mass(weights, (away > 0.5) & (away <= 1.5)),
        "ends": _mass(weights, _ends(layer_map, columns)),
    }
    return [
        Head(
            part=layer_map.part,
            layer=layer_map.layer,
            head=head,
            role=_role(layer_map, facts, head),
            member=layer_map.member,
            **{name: float(values[head]) for name, values in facts.items()},
        )
        for head in range(count)
    ]


def entropy(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The entropy of each row in bits: 0 where a head looks at one position, log2 S where at all alike."""
    safe = np.where(weights > 0, weights, 1.0)
    found: NDArray[np.float64] = -(weights * np.log2(safe)).sum(-1)
    return np.abs(found)  # not -0.0


def _mass(weights: NDArray[np.float64], where: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The share of the weight at the positions where a mask is True: (H,)."""
    found: NDArray[np.float64] = (weights * where).sum(-1).mean(-1)
    return found


def _ends(layer_map: Map, columns: int) -> NDArray[np.bool_]:
    """The end symbol of a source or the start symbol of a target, where heads rest that have nothing to look for."""
    end = 0 if layer_map.part == "decoder" else columns - 1
    found: NDArray[np.bool_] = np.arange(columns) == end
    return found


def _role(layer_map: Map, facts: dict[str, NDArray[np.float64]], head: int) -> str:
    kind = max(ROLES, key=lambda name: float(facts[name][head]))
    if facts[kind][head] >= CLEAR:
        return ROLES[kind][layer_map.part == "cross"]
    rows = layer_map.weights.shape[1]
    most = (
        np.log2(np.arange(1, rows + 1)).mean() if layer_map.part == "decoder" else np.log2(layer_map.weights.shape[2])
    )
    if facts["entropy"][head] >= 0.8 * most:
        return "everything alike"
    return "one place, which varies" if facts["confidence"][head] >= CLEAR else "several places"
