"""Attention as a picture, PNG or SVG, by matplotlib (`transduce[plot]`), through its `Figure` class alone.

One head, or the requested mean, is a matrix with its tokens; without a layer all heads of a part are drawn beside it,
a row a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from transduce.core.durable import unwritable
from transduce.core.errors import RunError, UserError
from transduce.inspection.record import Inspection, SourcePicture
from transduce.inspection.terminal import MatrixToDraw, View, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FONTS = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Micro Hei", "PingFang SC", "Microsoft YaHei")
CELL = 0.3  # inches


def save(seen: Sequence[Inspection], view: View, output: Path) -> None:
    """Draw inspections side by side into a .png or .svg file."""
    figure = draw(seen, view)
    try:
        figure.savefig(output, format=output.suffix[1:])
    except OSError as error:
        raise RunError(f"{output}: the picture cannot be saved: {unwritable(output, error)}") from error


def draw(seen: Sequence[Inspection], view: View) -> Figure:
    """Draw the figure, a column an inspection."""
    try:
        from matplotlib import font_manager, rc_context
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UserError("drawing attention needs matplotlib: pip install 'transduce[plot]'") from None
    known = {font.name for font in font_manager.fontManager.ttflist}
    with rc_context({"font.family": [name for name in FONTS if name in known] or ["sans-serif"]}):
        sizes = [_size(inspection, view) for inspection in seen]
        tall = max(height for _, height in sizes)
        figure = Figure((sum(width for width, _ in sizes), tall), dpi=120, layout="constrained")
        shares = [width for width, _ in sizes]
        parts = figure.subfigures(1, len(seen), width_ratios=shares, squeeze=False)
        for part, inspection in zip(parts[0], seen, strict=True):
            part.suptitle(f"{inspection.text}\n{inspection.translation}", fontsize=11)
            if (sight := _sight(inspection, view)) is not None:
                _over_sight(part, view.of(inspection), sight)
            elif any(_grid(inspection, view)):
                left, right = part.subfigures(1, 2, width_ratios=_halves(inspection, view))
                _matrix(left.add_subplot(), inspection, view)
                _overview(right, inspection, view)
            else:
                _matrix(part.add_subplot(), inspection, view)
    return figure


def _grid(seen: Inspection, view: View) -> tuple[int, int]:
    """Layers and heads that are drawn small beside the mean; (0, 0) where a layer was requested."""
    maps = [layer for layer in seen.maps if layer.part == view.part]
    heads = max((len(layer.weights) for layer in maps), default=0)
    return (len(maps), heads) if heads > 1 and view.layer is None else (0, 0)


def _halves(seen: Inspection, view: View) -> tuple[float, float]:
    """Width in inches of the matrix, and of all heads beside it."""
    heads = _grid(seen, view)[1]
    return min(14.0, 2.2 + CELL * len(view.of(seen).columns)), max(2.0, 0.9 * heads) if heads else 0.0


def _size(seen: Inspection, view: View) -> tuple[float, float]:
    """Width and height in inches; long sentences get smaller cells instead of larger pictures."""
    if (sight := _sight(seen, view)) is not None:
        return 7.0, 1.2 + 1.1 * -(-len(view.of(seen).rows) // _abreast(sight))
    height = max(1.2 + 0.9 * _grid(seen, view)[0], 2.2 + CELL * len(view.of(seen).rows))
    return sum(_halves(seen, view)), min(14.0, height)


def _abreast(sight: SourcePicture) -> int:
    """The number of panels side by side: one spectrogram, or several small pictures."""
    height, width = sight.values.shape
    return 1 if width > 2 * height else 4


def _sight(seen: Inspection, view: View) -> SourcePicture | None:
    """The recording or picture, where attention to it is to be drawn."""
    weights = view.of(seen).weights
    return seen.sight if view.part == "cross" and weights is not None and weights.size else None


def _over_sight(figure: Any, chosen: MatrixToDraw, sight: SourcePicture) -> None:
    """Draw the recording or picture once for each written word, red where it looks."""
    columns = _abreast(sight)
    panels = figure.subplots(-(-len(chosen.rows) // columns), columns, squeeze=False).ravel()
    for axes in panels:
        axes.axis("off")
    weights = np.zeros((0, 0), np.float32) if chosen.weights is None else chosen.weights
    for axes, piece, row in zip(panels, chosen.rows, weights, strict=False):
        heat = np.zeros_like(sight.values)
        for (left, top, width, height), weight in zip(sight.boxes, row, strict=False):
            heat[int(top) : int(top + height), int(left) : int(left + width)] = weight
        axes.imshow(sight.values, cmap="gray", vmin=0, vmax=1, aspect="auto" if columns == 1 else "equal")
        axes.imshow(heat, cmap="Reds", alpha=heat / max(float(row.max()), 1e-6) * 0.7, aspect="auto")
        axes.set_title(plain(piece), fontsize=9, loc="left", pad=2)


def _matrix(axes: Axes, seen: Inspection, view: View) -> None:
    chosen = view.of(seen)
    weights, rows, columns = chosen.weights, chosen.rows, chosen.columns
    axes.set_title(chosen.title, fontsize=10)
    if weights is None or not weights.size:  # an empty translation has no words that look
        axes.axis("off")
        return
    axes.imshow(weights, cmap="Blues", vmin=0, vmax=max(0.5, float(weights.max())), aspect="auto")
    small = 9 if max(len(rows), len(columns)) <= 40 else 5
    axes.set_xticks(range(len(columns)), [plain(name) for name in columns], rotation=60, ha="right", fontsize=small)
    axes.set_yticks(range(len(rows)), [plain(name) for name in rows], fontsize=small)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def _overview(figure: object, seen: Inspection, view: View) -> None:
    """Draw every head small, a row a layer."""
    layers, heads = _grid(seen, view)
    every = figure.subplots(layers, heads, squeeze=False)  # type: ignore[attr-defined]
    maps = [layer_map for layer_map in seen.maps if layer_map.part == view.part]
    for layer_map, line in zip(maps, every, strict=True):
        for number, axes in enumerate(line):
            axes.set_xticks([])
            axes.set_yticks([])
            if number < len(layer_map.weights):
                axes.imshow(layer_map.weights[number], cmap="Blues", vmin=0, vmax=1, aspect="auto")
                axes.set_title(f"{layer_map.layer}.{number}", fontsize=7, pad=2)
