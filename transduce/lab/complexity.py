"""Table 1 of the paper, measured: operations, sequential steps, path lengths, time and memory of the real layers.

n is the length of a sequence, d the width of its vectors. Powers of n and d are slopes on logarithmic axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from transduce.core.errors import ConfigError
from transduce.engines.torch.engine import pick_device
from transduce.evaluation.plot import INK, colours, dress
from transduce.lab.layers import HEAD, Kind, input_of, kept_bytes, kinds, operations, path_length, waiting_steps
from transduce.lab.pace import Exponent, fitted, least_seconds
from transduce.lab.report import Claim, LabReport, LabTable, listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEAR = 0.3  # how far a measured power may be from the one of the table
_PATHS = (2, 5, 17, 33, 64)  # lengths for which paths are searched
_WAITS = (64, 128, 256)  # and chains of operations that wait for one another
_COUNTED = (64, 128, 256, 512)


@dataclass(frozen=True)
class Complexity:
    """Settings of the complexity measurements.

    Times and memory are those of a training pass, forward and back, of one sequence over `lengths` at width `width`,
    and of `batch` sequences of `length` over `widths`; () is what suits the device.
    """

    lengths: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()
    width: int = 64
    length: int = 64
    batch: int = 16  # with few, narrow layers spend their time on overhead
    window: int = 16  # positions seen on either side in restricted self-attention
    kernel: int = 3
    repeats: int = 5
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("lengths", "widths"):
            sizes = getattr(self, name)
            if sizes and (len(sizes) < 2 or sorted(set(sizes)) != list(sizes) or sizes[0] < 1):
                raise ConfigError(f"{name}: expected at least two numbers, growing, got {list(sizes)}")
        for width in (self.width, *self.widths):
            if width % HEAD and width > HEAD:
                raise ConfigError(f"widths: heads are {HEAD} wide; expected less, or a multiple of it, got {width}")
        if self.kernel < 3 or self.kernel % 2 == 0:
            raise ConfigError(f"kernel: expected an odd number of at least 3, got {self.kernel}")
        for name in ("window", "repeats", "batch", "length", "width"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: a laboratory needs at least 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class Layer:
    """The measurements of one kind of layer; each value belongs to a length or a width of the settings."""

    kind: Kind
    operations_over_length: tuple[int, ...]
    operations_over_width: tuple[int, ...]
    waits: tuple[int, ...]
    paths: tuple[int, ...]
    kept_over_length: tuple[int, ...]
    kept_over_width: tuple[int, ...]
    seconds_over_length: tuple[float, ...]
    seconds_over_width: tuple[float, ...]


@dataclass(frozen=True)
class ComplexityResult:
    """Table 1, measured on a device."""

    settings: Complexity
    lengths: tuple[int, ...]
    widths: tuple[int, ...]
    device: str
    layers: tuple[Layer, ...]

    def power(self, layer: Layer, what: str) -> Exponent:
        """The fitted power with which `what` (a field of Layer) grows."""
        sizes = {
            "operations_over_length": _COUNTED,
            "operations_over_width": _COUNTED,
            "kept_over_length": self.lengths,
            "kept_over_width": self.widths,
            "seconds_over_length": self.lengths,
            "seconds_over_width": self.widths,
        }[what]
        return fitted(sizes, getattr(layer, what))

    def crossing(self) -> float:
        """The length at which self-attention takes as long as recurrence, by the fitted lines."""
        attention, recurrent = (self.power(layer, "seconds_over_length") for layer in self.layers[:2])
        return float((recurrent.factor / attention.factor) ** (1 / (attention.value - recurrent.value)))

    def report(self) -> LabReport:
        settings = self.settings
        return LabReport(
            name="complexity",
            title="Complexity: Table 1, measured",
            question="What does a layer cost, how much of it must wait, and how far apart are two words in it?",
            setup=(
                f"On {self.device}. Time and memory of a training pass (forward and back), the least of"
                f" {settings.repeats} tries: over n = {self._range(self.lengths)} one sequence of width"
                f" {settings.width}, over d = {self._range(self.widths)} {settings.batch} sequences of"
                f" {settings.length}. Heads are {HEAD} wide. Operations are those of one forward pass."
            ),
            tables=(self._powers(), self._paths(), self._raw()),
            findings=tuple(findings(self)),
            draw=self._draw,
            size=(10.0, 4.6),
        )

    @staticmethod
    def _range(sizes: tuple[int, ...]) -> str:
        return f"{sizes[0]:,} to {sizes[-1]:,}"

    def _powers(self) -> LabTable:
        def row(layer: Layer) -> tuple[object, ...]:
            counted = (self.power(layer, f"operations_over_{side}") for side in ("length", "width"))
            took = (self.power(layer, f"seconds_over_{side}") for side in ("length", "width"))
            stored = (self.power(layer, f"kept_over_{side}") for side in ("length", "width"))
            return (
                layer.kind.name,
                layer.kind.cost,
                *(f"{power.value:.2f}" for power in counted),
                *map(str, (*took, *stored)),
            )

        headings = "layer", "the paper", "operations: n^", "d^", "time: n^", "d^", "memory: n^", "d^"
        return LabTable("complexity", "Powers of n and d", headings, tuple(map(row, self.layers)))

    def _paths(self) -> LabTable:
        headings = (
            "layer",
            *(f"waits, n = {n}" for n in _WAITS),
            *(f"path, n = {n}" for n in _PATHS),
            "by formula",
        )
        rows = tuple(
            (layer.kind.name, *layer.waits, *layer.paths, ", ".join(str(layer.kind.path(n)) for n in _PATHS))
            for layer in self.layers
        )
        return LabTable("paths", "Operations that wait for one another, and the longest path", headings, rows)

    def _raw(self) -> LabTable:
        rows: list[tuple[object, ...]] = []
        for layer in self.layers:
            over_length = zip(self.lengths, layer.seconds_over_length, layer.kept_over_length, strict=True)
            for n, seconds, stored in over_length:
                rows.append((layer.kind.name, n, self.settings.width, 1, 1000 * seconds, stored / 2**20))
            over_width = zip(self.widths, layer.seconds_over_width, layer.kept_over_width, strict=True)
            for d, seconds, stored in over_width:
                size = self.settings.length, d, self.settings.batch
                rows.append((layer.kind.name, *size, 1000 * seconds, stored / 2**20))
        headings = "layer", "n", "d", "sequences", "ms", "kept for the backward pass, MiB"
        return LabTable("times", "Every measurement", headings, tuple(rows))

    def _draw(self, figure: Figure) -> None:
        over_length, over_width = figure.subplots(1, 2)
        for layer, colour in zip(self.layers, colours(len(self.layers)), strict=True):
            for axes, sizes, what in (
                (over_length, self.lengths, "seconds_over_length"),
                (over_width, self.widths, "seconds_over_width"),
            ):
                power = self.power(layer, what)
                axes.plot(sizes, [1000 * s for s in getattr(layer, what)], "o", color=colour, markersize=5)
                line = [1000 * power.at(size) for size in sizes]
                axes.plot(sizes, line, color=colour, linewidth=1.4, label=f"{layer.kind.name}: {power}")
        for axes, sizes, letter in ((over_length, self.lengths, "n"), (over_width, self.widths, "d")):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            dress(axes, "ms a training pass")
            axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=8)
            axes.set_xlabel(f"{letter} (in the legend: power of {letter}, ± standard error)", color=INK)
            axes.legend(frameon=False, fontsize=7.5, labelcolor=INK)


def complexity(settings: Complexity | None = None) -> ComplexityResult:
    """Count operations, search paths and time every kind of layer."""
    settings = settings or Complexity()
    device = pick_device(settings.device)
    gpu = device.type == "cuda"
    lengths = settings.lengths or ((4096, 8192, 16384, 32768) if gpu else (1536, 2048, 3072, 4096, 6144))
    widths = settings.widths or ((1024, 2048, 4096, 8192) if gpu else (256, 384, 512, 768, 1024))
    rows = kinds(settings.window, settings.kernel)
    torch.manual_seed(1)
    by_length = [(n, settings.width, 1) for n in lengths]
    by_width = [(settings.length, d, settings.batch) for d in widths]
    over_length, over_width = (_timed(rows, sizes, settings.repeats, device) for sizes in (by_length, by_width))
    layers = tuple(
        Layer(
            kind=kind,
            operations_over_length=tuple(operations(kind.build(HEAD), n, HEAD) for n in _COUNTED),
            operations_over_width=tuple(operations(kind.build(d), HEAD, d) for d in _COUNTED),
            waits=tuple(waiting_steps(kind.build(8), n, 8) for n in _WAITS),
            paths=tuple(path_length(kind, n) for n in _PATHS),
            kept_over_length=tuple(_kept(kind, *size, device) for size in by_length),
            kept_over_width=tuple(_kept(kind, *size, device) for size in by_width),
            seconds_over_length=over_length[number],
            seconds_over_width=over_width[number],
        )
        for number, kind in enumerate(rows)
    )
    name = torch.cuda.get_device_name(device) if gpu else "one CPU core"
    return ComplexityResult(settings, tuple(lengths), tuple(widths), name, layers)


def _kept(kind: Kind, length: int, width: int, batch: int, device: torch.device) -> int:
    return kept_bytes(kind.build(width).to(device), input_of(length, width, batch, device))


def _timed(
    rows: tuple[Kind, ...], sizes: list[tuple[int, int, int]], repeats: int, device: torch.device
) -> list[tuple[float, ...]]:
    """The time of each kind at each size (n, d, B), measured in turns."""

    def task(kind: Kind, size: tuple[int, int, int]) -> Callable[[], None]:
        length, width, batch = size
        layer, x = kind.build(width).to(device), input_of(length, width, batch, device)

        def run() -> None:
            torch.autograd.backward(layer(x).sum())
            x.grad = None
            layer.zero_grad()

        return run

    tasks = {(kind.name, size): task(kind, size) for kind in rows for size in sizes}
    found = least_seconds(tasks, repeats, device)
    return [tuple(found[kind.name, size] for size in sizes) for kind in rows]


def findings(result: ComplexityResult) -> list[Claim]:
    """Compare the measurements with Table 1."""
    found = []
    for what, letter, field in (("over n", "n", "over_length"), ("over d", "d", "over_width")):
        off, powers = [], []
        for layer in result.layers:
            expected = getattr(layer.kind, field)
            if expected is None:
                continue
            power = result.power(layer, f"seconds_{field}")
            powers.append(f"{layer.kind.name} {power} (table: {expected})")
            if abs(power.value - expected) > NEAR:
                off.append(layer.kind.name)
        text = f"Time {what} grows with these powers of {letter}: {'; '.join(powers)}."
        found.append(Claim(text + (f" Off by more than {NEAR}: {listed(off)}." if off else ""), held=not off))
    wrong = [
        f"{layer.kind.name} at n = {n}: {path}, not {layer.kind.path(n)}"
        for layer in result.layers
        for n, path in zip(_PATHS, layer.paths, strict=True)
        if path != layer.kind.path(n)
    ]
    text = f"Wrong: {'; '.join(wrong)}." if wrong else "All are exactly what the formulas say."
    found.append(Claim(f"Path lengths by gradients, for n = {', '.join(map(str, _PATHS))}: {text}", held=not wrong))
    waiting = [layer.kind.name for layer in result.layers if layer.waits[-1] > 1.5 * layer.waits[0]]
    text = f"A longer sequence means a longer chain of operations that wait for one another in: {listed(waiting)}."
    found.append(Claim(text, held=waiting == ["recurrent"]))
    found += _crossings(result)
    return found


def _crossings(result: ComplexityResult) -> list[Claim]:
    attention, recurrent = result.layers[:2]
    at_head_width = _COUNTED.index(HEAD)
    same = attention.operations_over_length[at_head_width], recurrent.operations_over_length[at_head_width]
    counted = Claim(
        f"At n = d = {HEAD} self-attention takes {same[0]:,} operations and recurrence {same[1]:,}: by counting they"
        f" cross {'exactly at n = d' if same[0] == same[1] else 'elsewhere'}.",
        held=same[0] == same[1],
    )
    cross, width = result.crossing(), result.settings.width
    if not math.isfinite(cross):
        return [counted]
    inside = result.lengths[0] <= cross <= result.lengths[-1]
    timed = Claim(
        f"By the clock they cross at n = {cross:,.0f}, {cross / width:,.0f} times d = {width}"
        f"{'' if inside else ' (beyond what was measured: by the fitted lines)'}: waiting costs more than it counts.",
        held=cross > width,
    )
    return [counted, timed]
