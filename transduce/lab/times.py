"""How long each experiment took, kept in `times.csv` beside its page: one line an experiment, that of its last run.

The seconds are those on the clock from start to written page, on a machine that may have done other things too.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from transduce.durable import write_text
from transduce.lab.report import Table, as_csv

FILE = "times.csv"
HEADINGS = ("experiment", "seconds", "cores", "settings")


@dataclass(frozen=True)
class Took:
    """`cores` are those the process may use; `settings` are the words it was given, none for its defaults."""

    experiment: str
    seconds: float
    cores: int
    settings: str


def took(experiment: str, seconds: float, words: Sequence[str] = ()) -> Took:
    """What a run on this machine is written down as."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Took(experiment, round(seconds, 1), cores, " ".join(words))


def record(folder: Path, one: Took) -> Path:
    """Write it into the folder's file, in place of an earlier run of the same experiment."""
    kept = {**read_times(folder), one.experiment: one}
    table = Table("times", "", HEADINGS, tuple(astuple(kept[name]) for name in sorted(kept)))
    path = folder / FILE
    write_text(path, as_csv(table))
    return path


def read_times(folder: Path) -> dict[str, Took]:
    """By experiment; none where the file is not there."""
    path = folder / FILE
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = [Took(row[0], float(row[1]), int(row[2]), row[3]) for row in list(csv.reader(file))[1:]]
    return {row.experiment: row for row in rows}
