"""Plot loss, learning rate and quality of one or several runs into one PNG, from each run's `metrics.jsonl`.

Quality is the `validation.metric` that all runs were judged by; BLEU where that is the loss, or they differ.
One panel a quantity, one colour a run, steps along the bottom. Needs matplotlib (`transduce[plot]`), which is used
through its `Figure` class alone, so that nothing global (backend, styles, open windows) is touched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transduce.core.durable import unwritable
from transduce.core.errors import DataError, RunError, UserError
from transduce.core.reports import METRICS_FILE, Report, read_reports
from transduce.core.untrusted import LARGEST_TOML, parse_toml, read_small
from transduce.metrics.corpus import MEASURES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONFIG_FILE = "config.toml"
# Okabe and Ito's colours, which colour-blind readers can tell apart; for more runs a rainbow serves.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
INK, FAINT = "#333333", "#e6e6e6"
LARGEST_METRICS = 64 << 20  # bytes, of hundreds of thousands of reports
TRAINING_ALPHA = 0.5  # the noisy line stays behind the validation points
LEGEND_CHARACTERS = 110  # that fit into the width of the figure


@dataclass(frozen=True)
class Curve:
    """One quantity over the steps of training, in order."""

    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class History:
    """The curves of one run, empty where it has no such reports; `quality` is by `metric`."""

    name: str
    training_loss: Curve
    validation_loss: Curve
    learning_rate: Curve
    quality: Curve
    metric: str = "bleu"


def plot(runs: Sequence[Path], output: Path) -> None:
    """Plot the runs' loss, learning rate and quality to a PNG file."""
    folders = list(dict.fromkeys(Path(run) for run in runs))
    if not folders:
        raise RunError("There is nothing to plot: no run folder was given. Name at least one.")
    names = [folder.resolve().name for folder in folders]
    labels = names if len(set(names)) == len(names) else [str(folder) for folder in folders]
    metrics = {_metric_of(folder) for folder in folders}
    metric = metrics.pop() if len(metrics) == 1 else "bleu"
    save(draw([read_history(folder, label, metric) for folder, label in zip(folders, labels, strict=True)]), output)


def _metric_of(run: Path) -> str:
    """The metric that judges a run's validations; BLEU where that is the loss, which is drawn anyway, or unknown."""
    try:
        metric = parse_toml(read_small(run / CONFIG_FILE, LARGEST_TOML).decode())["validation"]["metric"]
    except (OSError, ValueError, KeyError, TypeError):
        return "bleu"
    return metric if isinstance(metric, str) and metric in MEASURES and metric != "loss" else "bleu"


def save(figure: Figure, output: Path) -> None:
    """Write a figure as PNG."""
    try:
        figure.savefig(output, format="png")
    except OSError as error:
        raise RunError(f"{output}: the picture cannot be written: {unwritable(output, error)}") from error


def read_history(run: Path, name: str, metric: str = "bleu") -> History:
    """Read the curves in a run's `metrics.jsonl`; steps trained twice (after a resume) count as last reported."""
    path = run / METRICS_FILE
    if not (path.exists() or run.is_file()):
        what = "has no metrics.jsonl, so it is no run of transduce" if run.is_dir() else "does not exist"
        raise RunError(f"{run}: the run folder {what}. Give the folder that `transduce train` wrote.")
    reports = read_reports(path, LARGEST_METRICS)
    history = History(
        name,
        _curve(path, reports, "train", "loss"),
        _curve(path, reports, "valid", "loss"),
        _curve(path, reports, "train", "learning_rate"),
        _curve(path, reports, "valid", metric),
        metric,
    )
    if not (history.training_loss.steps or history.validation_loss.steps or history.quality.steps):
        raise RunError(f"{path}: holds no reports of training yet. Plot it when the run has reported its first steps.")
    return history


def _curve(path: Path, reports: list[Report], kind: str, key: str) -> Curve:
    points: dict[int, float] = {}
    for report in reports:
        number, values = report.number, report.values
        if values.get("kind") != kind or values.get(key) is None:
            continue
        step, value = values.get("step"), values[key]
        if not isinstance(step, int):
            raise DataError(f"{path}:{number}: 'step' is {step!r}; expected an integer. Correct or remove the line.")
        if not isinstance(value, int | float):
            raise DataError(f"{path}:{number}: {key!r} is {value!r}; expected a number. Correct or remove the line.")
        points[step] = float(value)
    steps = tuple(sorted(points))
    return Curve(steps, tuple(points[step] for step in steps))


def draw(histories: Sequence[History]) -> Figure:
    """Draw loss, quality and learning rate from top to bottom, over one step axis."""
    figure = new_figure(9, 9)
    loss, quality, rate = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2))
    chosen = colours(len(histories))
    for history, colour in zip(histories, chosen, strict=True):
        _line(loss, history.training_loss, colour, alpha=TRAINING_ALPHA)
        _marked_line(loss, history.validation_loss, colour)
        _marked_line(quality, history.quality, colour)
        _mark_best(quality, history, colour)
        _line(rate, history.learning_rate, colour)
    measure = MEASURES[histories[0].metric if histories else "bleu"]
    judged = f"{measure.label} on validation{' (lower is better)' if measure.lower else ''}"
    for axes, label in ((loss, "loss (nats per target token)"), (quality, judged), (rate, "learning rate")):
        dress(axes, label)
    _label_ticks(rate)
    _explain_styles(loss)
    _name_runs(figure, histories, chosen)
    figure.align_ylabels()
    return figure


def new_figure(width: float, height: float) -> Figure:
    """Make an empty white figure, sizes in inches."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise UserError(
            "Plotting needs the package matplotlib, which is not installed. "
            "Install it with: pip install 'transduce[plot]'"
        ) from error
    layout = ConstrainedLayoutEngine(h_pad=0.1, w_pad=0.12)
    return Figure(figsize=(width, height), dpi=150, layout=layout, facecolor="white")


def colours(count: int) -> list[str]:
    """Choose `count` distinguishable colours."""
    if count <= len(PALETTE):
        return list(PALETTE[:count])
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["turbo"](0.05 + 0.9 * n / (count - 1))) for n in range(count)]


def _line(axes: Axes, curve: Curve, colour: str, alpha: float = 1.0) -> None:
    marker = "o" if len(curve.steps) == 1 else ""  # a line through one point cannot be seen
    if curve.steps:
        axes.plot(curve.steps, curve.values, color=colour, linewidth=1.5, alpha=alpha, marker=marker)


def _marked_line(axes: Axes, curve: Curve, colour: str) -> None:
    if curve.steps:
        (line,) = axes.plot(curve.steps, curve.values, color=colour, linewidth=1.4, linestyle="--", marker="o")
        line.set(markersize=5, markeredgecolor="white", markeredgewidth=0.7)


def _best(history: History) -> tuple[int, float] | None:
    """Step and value of the best quality, the earliest of equals."""
    curve, sign = history.quality, -1 if MEASURES[history.metric].lower else 1
    points = [point for point in zip(curve.steps, curve.values, strict=True) if math.isfinite(point[1])]
    return max(points, key=lambda point: sign * point[1], default=None)


def _mark_best(axes: Axes, history: History, colour: str) -> None:
    from matplotlib.patheffects import withStroke

    best = _best(history)
    if best is not None:
        axes.plot(*best, color=colour, marker="*", markersize=15, markeredgecolor="white", zorder=3)
        text = axes.annotate(f"{best[1]:.1f}", best, xytext=(0, 9), textcoords="offset points", ha="center", zorder=3)
        text.set(color=colour, weight="bold", path_effects=[withStroke(linewidth=3, foreground="white")])
        axes.margins(y=0.13)  # space for the figure above the highest star


def dress(axes: Axes, label: str) -> None:
    """Style one panel: a faint grid, no frame, a note where there is nothing to see."""
    axes.set_ylabel(label, color=INK)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    for side in axes.spines:
        axes.spines[side].set_visible(False)
    if not axes.lines:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "nothing reported", transform=axes.transAxes, ha="center", va="center", color="#999999")


def _label_ticks(lowest: Axes) -> None:
    """Label integer steps from 0 under the lowest panel (the others share them), and rates as 7 x 10^-4."""
    from matplotlib.ticker import MaxNLocator

    lowest.set_xlabel("step", color=INK)
    lowest.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True, steps=[1, 2, 2.5, 5, 10]))
    lowest.xaxis.set_major_formatter("{x:,.0f}")
    lowest.set_xlim(left=0)
    lowest.ticklabel_format(axis="y", scilimits=(-2, 2), useMathText=True)
    lowest.set_ylim(bottom=0)


def _explain_styles(loss: Axes) -> None:
    from matplotlib.lines import Line2D

    training = Line2D([], [], color=INK, linewidth=1.5, alpha=TRAINING_ALPHA, label="training")
    validation = Line2D([], [], color=INK, linewidth=1.4, linestyle="--", marker="o", markersize=5, label="validation")
    loss.legend(handles=[training, validation], loc="upper right", frameon=False, labelcolor=INK)


def _name_runs(figure: Figure, histories: Sequence[History], colours: Sequence[str]) -> None:
    """List the runs, their colours and their best quality, above all panels."""
    from matplotlib.lines import Line2D

    names = []
    for history in histories:
        best, label = _best(history), MEASURES[history.metric].label
        names.append(history.name + (f": best {label} {best[1]:.1f} at step {best[0]:,}" if best else ""))
    handles = [Line2D([], [], color=colour, linewidth=3, label="run") for colour in colours]
    columns = max(1, LEGEND_CHARACTERS // (max(map(len, names)) + 6))
    legend = figure.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False, labelcolor=INK)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)  # as labels, a name with '_' in front would be hidden and '$' would start a formula
        text.set_text(name)
