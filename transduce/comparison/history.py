"""What a run's `metrics.jsonl` says of its training: speed, time, memory, and how quality rose."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Point:
    """One validation; `seconds` of training before it."""

    step: int
    seconds: float
    bleu: float


@dataclass(frozen=True)
class TrainingRecord:
    """One run's training. `seconds` is time spent in updates, by the end of the run or its last report;
    `tokens_per_second` is without the first report, during which everything warms up; `best` holds the measures of the
    weights that were kept; `memory` is in bytes."""

    steps: int
    seconds: float
    tokens_per_second: float | None
    memory: int
    best: dict[str, float] = field(default_factory=dict)
    final: dict[str, float] = field(default_factory=dict)
    curve: tuple[Point, ...] = ()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The reports so far; a line that is being written just now is left out."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    for line in content.split(b"\n")[:-1]:
        yield json.loads(line)


def last_reported(path: Path, key: str) -> int:
    """The last `step` or whole `seconds` reported, 0 if none; from the end of the file alone, for it is asked often."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            return int(json.loads(line)[key])
        except (ValueError, KeyError):
            continue
    return 0


def has_ended(path: Path) -> bool:
    """Whether the last thing reported is the end."""
    lines = list(read_lines(path))
    return bool(lines) and lines[-1]["kind"] == "finished"


def read_history(path: Path) -> TrainingRecord:
    """All that is known of a run's training."""
    lines = list(read_lines(path))
    reports = [line for line in lines if line["kind"] == "train"]
    validations = [line for line in lines if line["kind"] == "valid"]
    ends = [line for line in lines if line["kind"] == "finished"]
    timed = [line for line in lines if "seconds" in line]  # reports, and the end of runs that have it there
    steps, seconds = [0, *(line["step"] for line in timed)], [0.0, *(line["seconds"] for line in timed)]
    curve = tuple(
        Point(line["step"], float(np.interp(line["step"], steps, seconds)), line["bleu"]) for line in validations
    )
    return TrainingRecord(
        steps=lines[-1]["step"] if lines else 0,
        seconds=seconds[-1],
        tokens_per_second=_rate(reports),
        memory=max((int(line.get("memory", 0)) for line in lines), default=0),
        best={name: ends[-1][name] for name in ("loss", "bleu", "chrf") if ends and name in ends[-1]},
        final={name: validations[-1][name] for name in ("loss", "bleu", "chrf")} if validations else {},
        curve=curve,
    )


def _rate(reports: list[dict[str, Any]]) -> float | None:
    """Target tokens a second over all reports but the first; with only one report, its own."""
    if len(reports) < 2:
        return reports[0]["tokens_per_second"] if reports else None
    tokens = seconds = 0.0
    for before, report in pairwise(reports):
        took = report["seconds"] - before["seconds"]
        seconds += took
        tokens += took * report["tokens_per_second"]
    return tokens / seconds if seconds > 0 else None
