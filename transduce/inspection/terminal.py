"""Draw an inspection in the terminal: attention, the candidates of each step, the search tree, the heads.

`View` says which attention to show: a part, a layer and a head, or the mean of heads and layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree as TextTree

from transduce.core.errors import ConfigError
from transduce.inspection.record import PARTS, Inspection, Node, Part

NAMES = {"encoder": "The encoder's attention", "decoder": "The decoder's own attention", "cross": "Cross-attention"}


@dataclass(frozen=True, eq=False)
class MatrixToDraw:
    """A matrix to draw: weights (rows, columns), None where the model has none; names of rows and columns."""

    title: str
    weights: NDArray[np.float32] | None
    rows: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class View:
    """The attention to show: `layer` and `head` count from 0; None is the mean of all (cross-attention: of words)."""

    part: Part = "cross"
    layer: int | None = None
    head: int | None = None

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise ConfigError(f"part: expected encoder, decoder or cross, got {self.part!r}")
        if self.head is not None and self.layer is None:
            raise ConfigError(f"head: {self.head} was requested without a layer; heads differ from layer to layer")

    @property
    def words(self) -> bool:
        """Whether this view is the word alignment."""
        return self.part == "cross" and self.layer is None

    def of(self, seen: Inspection) -> MatrixToDraw:
        """The part of an inspection that this view shows."""
        if self.words and seen.alignment is not None:
            weights = np.array(seen.alignment.weights, dtype=np.float32)
            return MatrixToDraw(
                "Where each word looks, mean of all heads", weights, seen.alignment.target, seen.alignment.source
            )
        maps = [found for found in seen.maps if found.part == self.part]
        rows = {"encoder": seen.source, "decoder": seen.read, "cross": seen.written}[self.part]
        columns = seen.read if self.part == "decoder" else seen.source
        if not maps:
            return MatrixToDraw(f"{NAMES[self.part]}: none in this model", None, rows, columns)
        if self.layer is None:
            found: NDArray[np.float32] = np.mean([layer.weights.mean(0) for layer in maps], axis=0)
            return MatrixToDraw(f"{NAMES[self.part]}, mean of all heads", found, rows, columns)
        check("layer", self.layer, len(maps))
        weights = maps[self.layer].weights
        if self.head is None:
            return MatrixToDraw(
                f"{NAMES[self.part]}, layer {self.layer}, mean of its heads", weights.mean(0), rows, columns
            )
        check("head", self.head, len(weights))
        return MatrixToDraw(
            f"{NAMES[self.part]}, layer {self.layer}, head {self.head}", weights[self.head], rows, columns
        )


def check(name: str, number: int, count: int) -> None:
    """Raise ConfigError for a layer or a head that does not exist."""
    if not -count <= number < count:
        raise ConfigError(f"{name}: expected one of the {count} that this model has, 0 to {count - 1}, got {number}")


SHADES = " ░▒▓█"
WIDEST = 40  # columns of a matrix; more become a list
CANDIDATES = 4
MOST_STEPS = 60
MOST_ENDS = 12


def show(console: Console, seen: Inspection, view: View) -> None:
    """Print all of it, one part below the other."""
    console.print(_summary(seen))
    chosen = view.of(seen)
    console.print(f"\n[bold]{chosen.title}[/]")
    if chosen.weights is not None and not chosen.weights.size:
        console.print("(there are no words to look from, or none to look at)", style="dim")
    elif chosen.weights is not None:
        draw(console, chosen.weights, chosen.rows, chosen.columns)
    if seen.steps:
        console.print("\n[bold]Step by step[/]")
        console.print(_steps(seen))
    if seen.tree is not None:
        console.print("\n[bold]What the search finished[/] (✓ chosen; probabilities where below 50 %)")
        console.print(_tree(seen))
    if seen.heads:
        console.print("\n[bold]Heads[/], the most certain first")
        console.print(_heads(seen))


def draw(console: Console, weights: NDArray[np.float32], rows: Sequence[str], columns: Sequence[str]) -> None:
    """Print where each row looks (T, S): as a matrix where it fits, else as a list."""
    wide = max(map(cell_len, rows)) + 4 * len(columns) > console.width or len(columns) > WIDEST
    console.print(_list(weights, rows, columns) if wide else matrix(weights, rows, columns))


def _summary(seen: Inspection) -> RenderableType:
    facts = f"{seen.model}   search {seen.search}   score {seen.score:.2f}   log-probability {seen.log_prob:.2f}"
    lines = [Text(seen.text), Text(seen.translation, style="bold"), Text(facts.strip(), style="dim")]
    if not seen.finished:
        lines.append(Text("cut off by the length limit", style="yellow"))
    lines += [Text(note, style="yellow") for note in seen.notes]
    return Panel(Group(*lines), expand=False)


def matrix(weights: NDArray[np.float32], rows: Sequence[str], columns: Sequence[str]) -> RenderableType:
    """A matrix of rows that look at columns (T, S), at least one each; column names above, a line a letter if long."""
    left = max(map(cell_len, rows))
    names = [plain(name) for name in columns]
    lines = Text()
    for line in range(max(map(cell_len, names))):
        letters = "".join(set_cell_size(name[line : line + 1], 3) for name in names)
        lines.append(f"{'':{left + 1}}{letters}\n", style="dim")
    for name, row in zip(rows, weights, strict=True):
        lines.append(set_cell_size(plain(name), left) + " ")
        for weight in row.tolist():
            shade = SHADES[min(len(SHADES) - 1, math.ceil(weight * 4 - 0.2))] if weight > 0.05 else "·"
            lines.append(shade * 2 + " ", style="cyan" if weight < 0.5 else "bold cyan")
        lines.append("\n")
    lines.rstrip()
    return lines


def _list(weights: NDArray[np.float32], rows: Sequence[str], columns: Sequence[str]) -> RenderableType:
    """A list for long sentences: each row with what it looks at most."""
    table = Table("", "looks at", box=None, padding=(0, 2))
    for name, row in zip(rows, weights, strict=True):
        best = np.argsort(-row)[:CANDIDATES]
        table.add_row(plain(name), "  ".join(f"{plain(columns[i])} {row[i]:.0%}" for i in best if row[i] >= 0.05))
    return table


def _steps(seen: Inspection) -> RenderableType:
    table = Table("", "read", "wrote", "", "it could have said", box=None, padding=(0, 1))
    for number, step in enumerate(seen.steps[:MOST_STEPS], start=1):
        others = [other for other in step.candidates if other.token != step.token][:CANDIDATES]
        alternatives = "  ".join(f"{plain(other.piece)} {math.exp(other.log_prob):.1%}" for other in others)
        written = Text(plain(step.written), style="bold" if step.rank == 0 else "bold yellow")
        table.add_row(
            str(number), plain(step.read), written, f"{math.exp(step.log_prob):.0%}", Text(alternatives, style="dim")
        )
    if len(seen.steps) > MOST_STEPS:
        table.add_row("…", "", f"{len(seen.steps) - MOST_STEPS} more", "", "")
    return table


def _tree(seen: Inspection) -> RenderableType:
    """Paths that ended, and those they share a prefix with."""
    assert seen.tree is not None
    nodes, best = seen.tree.nodes, set(seen.tree.best)
    ends = sorted((n for n, node in enumerate(nodes) if node.fate == "finished"), key=lambda n: -(nodes[n].score or 0))
    wanted: set[int] = set(best)
    for end in ends[:MOST_ENDS]:
        while end >= 0:
            wanted.add(end)
            end = nodes[end].parent
    top = TextTree(plain(seen.read[0]) if seen.read else "")
    drawn = {-1: top}
    children = {n: [m for m in sorted(wanted) if nodes[m].parent == n] for n in wanted}
    for number in sorted(wanted):
        if nodes[number].parent not in drawn:
            continue
        branch = drawn[nodes[number].parent]
        # A token that nothing else branches off from stands on its parent's line.
        if branch is not top and len(children[nodes[number].parent]) == 1:
            assert isinstance(branch.label, Text)
            branch.label.append_text(_node(nodes[number], number in best))
            drawn[number] = branch
        else:
            drawn[number] = branch.add(_node(nodes[number], number in best))
    return top


def _node(node: Node, best: bool) -> Text:
    style = "bold green" if best else ""
    found = Text(f"{plain(node.piece)} ", style=style)
    if math.exp(node.log_prob) < 0.5:
        found.append(f"{math.exp(node.log_prob):.0%} ", style="dim")
    if node.score is not None:
        found.append(f" score {node.score:.2f}{' ✓' if best else ''}", style="green" if best else "dim")
    return found


def _heads(seen: Inspection) -> RenderableType:
    table = Table("part", "layer", "head", "entropy", "confidence", "distance", "looks at", box=None, padding=(0, 2))
    for head in sorted(seen.heads, key=lambda head: head.entropy)[:MOST_ENDS]:
        figures = (f"{head.entropy:.2f}", f"{head.confidence:.0%}", f"{head.distance:.1f}")
        table.add_row(head.part, str(head.layer), str(head.head), *figures, head.role)
    if len(seen.heads) > MOST_ENDS:
        table.add_row("…", "", "", "", "", "", f"{len(seen.heads) - MOST_ENDS} more in the page (--output page.html)")
    return table


def plain(piece: str) -> str:
    """A piece as one reads it: `·` begins a word."""
    return "␣" if piece == "▁" else piece.replace("▁", "·")
