"""How long each experiment took, kept in `times.csv` beside its page: one line an experiment, that of its last run.

`seconds` are those on the clock from start to written page; on a busy machine they are more.
`worked` are those that cores worked for it, its processes among them: what it would take on one core of its own.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from transduce.durable import write_text
from transduce.lab.report import LabTable, as_csv

FILE = "times.csv"
HEADINGS = ("experiment", "seconds", "worked", "cores", "settings")


@dataclass(frozen=True)
class Took:
    """`cores` are those the process may use; `settings` are the words it was given, none for its defaults."""

    experiment: str
    seconds: float
    worked: float
    cores: int
    settings: str

    def __str__(self) -> str:
        return f"{self.experiment}: {self.seconds:.1f} seconds on {self.cores} cores, which worked {self.worked:.1f}"


class Clock:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self.started, self.worked = time.perf_counter(), _worked()

    def took(self, experiment: str, words: Sequence[str] = ()) -> Took:
        """What an experiment that ends now is written down as."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        seconds, worked = time.perf_counter() - self.started, _worked() - self.worked
        return Took(experiment, round(seconds, 1), round(worked, 1), cores, " ".join(words))


def _worked() -> float:
    """Seconds of this process and of those that it started and that have ended."""
    return sum(os.times()[:4])


def record(folder: Path, one: Took) -> Path:
    """Write it into the folder's file, in place of an earlier run of the same experiment."""
    kept = {**read_times(folder), one.experiment: one}
    table = LabTable("times", "", HEADINGS, tuple(astuple(kept[name]) for name in sorted(kept)))
    path = folder / FILE
    write_text(path, as_csv(table))
    return path


def read_times(folder: Path) -> dict[str, Took]:
    """By experiment; none where the file is not there."""
    path = folder / FILE
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = [Took(row[0], float(row[1]), float(row[2]), int(row[3]), row[4]) for row in list(csv.reader(file))[1:]]
    return {row.experiment: row for row in rows}
