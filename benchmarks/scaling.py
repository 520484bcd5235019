"""Measure how the cost of a training step grows with sentence length, width, depth and number of processes.

    python benchmarks/scaling.py --size base --device cuda --tokens 25000 --largest 1024 --output results
    python benchmarks/scaling.py --points results/scaling.json --output results     # draws an earlier measurement
    python benchmarks/scaling.py --axes length,width --repeats 3

Along each axis all else stays as in `--size`. The exponent is the slope of a line through logarithms: 1 is linear
growth. By the count of operations (workload.py) a batch of so many tokens costs a + b n at length n, c d + e d^2 at
width d, f + g l at l layers. Draws scaling.png (if matplotlib is installed) and prints a table. Processes are
torchrun's, on gloo or NCCL. On a CPU a step's seconds are processor seconds of its threads, which other work on the
machine affects least; those of several processes are wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from own import ROOT, prepare_corpus, settings_of
from worker import Job, ours, timed_pass
from workload import SIZES, Pairs, Sizes, save_batches

LENGTHS, WIDTHS, LAYERS = (16, 32, 64, 128, 256), (64, 128, 256, 512, 1024), (1, 2, 4, 8)
ROWS = (16, 32, 64, 128, 256, 512, 1024, 2048)  # of 32 tokens; at most four batches of `--tokens`


@dataclass(frozen=True)
class Point:
    """One step at one point of an axis: seconds (median), and FLOP by the formula."""

    value: int
    seconds: float
    flops: float


def exponent(points: Sequence[Point], of: Callable[[Point], float]) -> float:
    """The slope of the logarithm of a quantity over the logarithm of the axis."""
    slope, _ = np.polyfit(np.log([point.value for point in points]), np.log([of(point) for point in points]), 1)
    return float(slope)


def step_cost(sizes: Sizes, length: int, rows: int, options: argparse.Namespace) -> tuple[float, float]:
    """Seconds of our step on `rows` pairs of `length` tokens, and its FLOP."""
    pairs = Pairs.draw(rows, sizes.vocabulary, length, seed=1, spread=0.0)
    device, bf16 = torch.device(options.device), options.precision == "bf16"
    with tempfile.TemporaryDirectory(prefix="transduce-scaling-") as folder:
        path = Path(folder) / "batches.npz"
        save_batches(path, [pairs.padded(range(rows))])
        update, batches = ours(Job(sizes, options.device, str(path), tuple(settings_of(sizes, rows * length, 8))))
    for _ in range(3 if device.type == "cuda" else 1):  # graphs are recorded at the second batch of a shape
        timed_pass(update, batches, device, bf16)
    clock = time.process_time if device.type == "cpu" else time.perf_counter

    def seconds() -> float:
        started = clock()
        timed_pass(update, batches, device, bf16)  # synchronises with the device
        return clock() - started

    return statistics.median(seconds() for _ in range(options.repeats)), pairs.flops(sizes)


def along(axis: str, options: argparse.Namespace) -> list[Point]:
    """The points of one axis; length and rows change together for `length`, so that tokens stay the same."""
    sizes, points = SIZES[options.size], []
    rows = max(1, options.tokens // 32)
    for value in {"length": LENGTHS, "rows": ROWS, "width": WIDTHS, "layers": LAYERS}[axis]:
        if 32 * value > 4 * options.tokens if axis == "rows" else value > options.largest:
            continue
        if axis == "length":
            cost = step_cost(sizes, value, max(1, options.tokens // value), options)
        elif axis == "rows":
            cost = step_cost(sizes, 32, value, options)
        elif axis == "width":
            wide = replace(sizes, d_model=value, d_ff=4 * value, heads=max(1, value // 64))
            cost = step_cost(wide, 32, rows, options)
        else:
            cost = step_cost(replace(sizes, layers=value), 32, rows, options)
        points.append(Point(value, *cost))
        print(f"{axis} {value}: {1000 * cost[0]:.1f} ms", file=sys.stderr, flush=True)
    return points


def processes(options: argparse.Namespace) -> list[Point]:
    """Seconds a step of the same global batch, by 1, 2, 4 ... processes of torchrun."""
    sizes, points = SIZES[options.size], []
    pairs = Pairs.draw(8 * options.tokens // 32, sizes.vocabulary, 32, seed=1, spread=0.0)
    with tempfile.TemporaryDirectory(prefix="transduce-scaling-") as folder:
        corpus = prepare_corpus(pairs, sizes, Path(folder))
        for count in [number for number in (1, 2, 4, 8) if number <= options.processes]:
            run = Path(folder) / f"run-{count}"
            settings = [
                *settings_of(sizes, options.tokens, 8),
                f"data.folder={corpus}",
                f"training.device={options.device}",
                f"training.precision={options.precision}",
                "training.accumulate=4",
                "training.steps=6",
                "training.report_every=2",
                "training.save_every=1000000",
                "training.average=0",
                "training.threads=1",
            ]
            launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
            command = [sys.executable, *launcher, "-m", "transduce", "train", "base", *settings, "--output", str(run)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{count} processes: left out ({done.stderr.strip()[-300:]})", file=sys.stderr)
                continue
            lines = (run / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
            reports = [line for line in map(json.loads, lines) if line["kind"] == "train"]
            points.append(
                Point(count, (reports[-1]["seconds"] - reports[0]["seconds"]) / 4, 4 * pairs.flops(sizes) / 8)
            )
            print(f"{count} processes: {1000 * points[-1].seconds:.1f} ms a step", file=sys.stderr, flush=True)
    return points


def table(measured: dict[str, list[Point]]) -> str:
    """Markdown: milliseconds at each point, the fitted exponent, and that of the formula."""
    lines = ["| axis | at: milliseconds a step | exponent | of the formula |", "| --- | --- | --- | --- |"]
    for axis, points in measured.items():
        places = ", ".join(f"{point.value}: {1000 * point.seconds:.1f}" for point in points)
        slopes = ["-", "-"]
        if len(points) > 1:
            slopes = [f"{exponent(points, of):.2f}" for of in (lambda p: p.seconds, lambda p: p.flops)]
        lines.append(f"| {axis} | {places} | {slopes[0]} | {'-' if axis == 'processes' else slopes[1]} |")
    return "\n".join(lines)


def draw(measured: dict[str, list[Point]], path: Path) -> None:
    """Draw a panel for each axis, both scales logarithmic; nothing if matplotlib is not installed."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print(f"no {path.name}: matplotlib is not installed; --points draws it elsewhere", file=sys.stderr)
        return
    figure, panels = plt.subplots(1, len(measured), figsize=(4 * len(measured), 3.5), squeeze=False)
    for panel, (axis, points) in zip(panels[0], measured.items(), strict=True):
        values = [point.value for point in points]
        panel.loglog(values, [1000 * point.seconds for point in points], "o-", label="measured")
        if len(points) > 1 and axis != "processes":
            scale = 1000 * points[-1].seconds / points[-1].flops
            panel.loglog(values, [scale * point.flops for point in points], "--", label="by the count of operations")
        panel.set(xlabel=axis, ylabel="milliseconds a step")
        panel.set_xticks(values, [str(value) for value in values])
        times = sorted(1000 * point.seconds for point in points)
        panel.set_ylim(times[0] / 2, times[-1] * 2)
        panel.set_yticks([times[0], times[-1]], [f"{times[0]:,.0f}", f"{times[-1]:,.0f}"])
        panel.minorticks_off()
        panel.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Cost of a step along length, rows, width, layers, processes.")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--tokens", type=int, default=2048, help="a side of a batch")
    parser.add_argument("--axes", default="length,rows,width,layers,processes")
    parser.add_argument("--largest", type=int, default=512, help="skip points of an axis beyond this")
    parser.add_argument("--processes", type=int, default=2, help="maximum; as many GPUs, or cores")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument("--points", type=Path, help="scaling.json of an earlier run: shown and drawn, not measured")
    parser.add_argument("--output", type=Path, help="folder for scaling.json, scaling.png and scaling.md")
    return parser.parse_args(words)


def measure(options: argparse.Namespace) -> dict[str, list[Point]]:
    """The points of all axes."""
    if options.points:
        found = json.loads(options.points.read_text(encoding="utf-8"))
        return {axis: [Point(**point) for point in points] for axis, points in found.items()}
    torch.set_num_threads(options.threads)
    axes = options.axes.split(",")
    measured = {axis: processes(options) if axis == "processes" else along(axis, options) for axis in axes}
    return {axis: points for axis, points in measured.items() if points}


def main() -> None:
    options = arguments()
    measured = measure(options)
    shown = table(measured)
    print(shown)
    if not options.points:
        print(f"\nload: {os.getloadavg()[0]:.1f}; {options.size}, {options.device}, {options.precision}")
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        found = {axis: [asdict(point) for point in points] for axis, points in measured.items()}
        (options.output / "scaling.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
        (options.output / "scaling.md").write_text(f"{shown}\n", encoding="utf-8")
        draw(measured, options.output / "scaling.png")


if __name__ == "__main__":
    main()
