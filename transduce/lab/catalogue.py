"""All experiments by name, the times they took, and the index page of their reports.

Times are stored in `times.csv` beside the pages: one line an experiment, that of its last run. `seconds` are those on
the clock from start to written page; on a busy machine they are more. `worked` is CPU time, that of child processes
included: what it would take on one core of its own. The index page is made from the pages in its folder.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from transduce.core import config as configs
from transduce.core.durable import write_text
from transduce.core.errors import ConfigError
from transduce.core.processes import usable_cores
from transduce.lab.complexity import Complexity, complexity
from transduce.lab.decoding import Decoding, decoding
from transduce.lab.exposure import Exposure, exposure
from transduce.lab.length import Length, length
from transduce.lab.norms import Norms, norms
from transduce.lab.positions import Positions, positions
from transduce.lab.report import Claim, LabReport, LabTable, Result, as_csv, shown
from transduce.lab.scaling_factor import ScalingFactor, scaling_factor
from transduce.lab.speed import Speed, speed
from transduce.lab.table3 import Table3, table3
from transduce.lab.teacher_forcing import TeacherForcing, teacher_forcing


@dataclass(frozen=True)
class Experiment:
    """An experiment: `settings` is its config, `run` maps a config to a result."""

    name: str
    shows: str
    settings: type[Any]
    run: Callable[[Any], Result]


EXPERIMENTS = (
    Experiment("complexity", "Table 1: operations, waiting, paths, time and memory of layers", Complexity, complexity),
    Experiment("speed", "Transformer against RNN and CNN: training, time to a quality, decoding", Speed, speed),
    Experiment(
        "scaling-factor", "softmax and its gradient with and without 1/sqrt(d_k)", ScalingFactor, scaling_factor
    ),
    Experiment("norms", "BatchNorm against LayerNorm, in different batches", Norms, norms),
    Experiment("positions", "the sinusoids, and every scheme beyond the trained length", Positions, positions),
    Experiment("length", "quality by sentence length: one vector, attention, Transformer", Length, length),
    Experiment("exposure", "what reading its own or wrong words does to a decoder", Exposure, exposure),
    Experiment(
        "teacher-forcing", "what reading right answers wins, in time and learning", TeacherForcing, teacher_forcing
    ),
    Experiment("decoding", "autoregressive against non-autoregressive decoding", Decoding, decoding),
    Experiment("table3", "the paper's ablations on any corpus", Table3, table3),
)
NAMES = [experiment.name for experiment in EXPERIMENTS]


def find(name: str) -> Experiment:
    """The experiment of a name; raise ConfigError for an unknown one."""
    for experiment in EXPERIMENTS:
        if experiment.name == name.replace("_", "-"):
            return experiment
    raise ConfigError(f"lab: no experiment is called {name!r}; there are {', '.join(NAMES)}, and all")


def perform(name: str, overrides: Sequence[str] = ()) -> LabReport:
    """Run an experiment with settings changed by `key=value` words; return its report."""
    experiment = find(name)
    return experiment.run(configs.load(experiment.settings, None, overrides)).report()


FILE = "times.csv"
HEADINGS = ("experiment", "seconds", "worked", "cores", "settings")


@dataclass(frozen=True)
class ExperimentTime:
    """The time an experiment took; `cores` are those the process may use, `settings` the words it was given."""

    experiment: str
    seconds: float
    worked: float
    cores: int
    settings: str

    def __str__(self) -> str:
        return f"{self.experiment}: {self.seconds:.1f} seconds on {self.cores} cores, which worked {self.worked:.1f}"


class Clock:
    """A clock that starts when it is made."""

    def __init__(self) -> None:
        self.started, self.worked = time.perf_counter(), _worked()

    def took(self, experiment: str, words: Sequence[str] = ()) -> ExperimentTime:
        """The time record of an experiment that ends now."""
        cores = usable_cores()
        seconds, worked = time.perf_counter() - self.started, _worked() - self.worked
        return ExperimentTime(experiment, round(seconds, 1), round(worked, 1), cores, " ".join(words))


def _worked() -> float:
    """CPU seconds of this process and of its ended children."""
    return sum(os.times()[:4])


def record(folder: Path, took: ExperimentTime) -> Path:
    """Write a time into the folder's file, replacing that of an earlier run of the experiment."""
    times = {**read_times(folder), took.experiment: took}
    table = LabTable("times", "", HEADINGS, tuple(astuple(times[name]) for name in sorted(times)))
    path = folder / FILE
    write_text(path, as_csv(table))
    return path


def read_times(folder: Path) -> dict[str, ExperimentTime]:
    """The times by experiment; {} without a file."""
    path = folder / FILE
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = [
            ExperimentTime(row[0], float(row[1]), float(row[2]), int(row[3]), row[4])
            for row in list(csv.reader(file))[1:]
        ]
    return {row.experiment: row for row in rows}


OPENING = """# The laboratory

Experiments on the arguments of "Attention Is All You Need". Each page has one experiment: a picture, tables, findings
computed from the numbers (with a mark if they were not as expected), and how to read them beside the paper. One
command makes one page:

    transduce lab complexity --output runs/lab

`transduce lab all --output docs/lab` (or `make lab`) makes all of them. Models are small and data is generated, so that
each takes a minute or two on a CPU. Times differ between machines; exponents, paths and qualities should not.
`transduce lab` lists the experiments; `transduce lab --help` says how to use a corpus of your own or a GPU. From
Python:

    import transduce
    result = transduce.lab.scaling_factor(transduce.lab.ScalingFactor(keys=64))
    [finding.text for finding in result.report().findings]
"""


def index(folder: Path, names: Sequence[str]) -> Path:
    """Write README.md: every experiment that has a page, its question, how many of its expectations held, its time."""
    rows = ["| experiment | question | as expected | seconds |", "| --- | --- | --- | --: |"]
    missed: list[str] = []
    times = read_times(folder)
    for name in names:
        page = folder / f"{name}.md"
        if not page.exists():
            continue
        lines = page.read_text(encoding="utf-8").split("\n")
        as_expected, failed = _findings(lines, as_expected=True), _findings(lines, as_expected=False)
        title, seconds = lines[0].removeprefix("# "), shown(times[name].seconds) if name in times else ""
        expected = f"{len(as_expected)} of {len(as_expected) + len(failed)}"
        rows.append(f"| [{title}]({page.name}) | {lines[2]} | {expected} | {seconds} |")
        missed += [f"- {name}: {text}" for text in failed]
    parts = [OPENING, "\n".join(rows)]
    if times:
        parts.append(f"\nSeconds are wall time; `{FILE}` also has processor time and the settings of the run.")
    if missed:
        parts += ["\n## Not as expected\n", "\n".join(missed)]
    path = folder / "README.md"
    write_text(path, "\n".join(parts) + "\n")
    return path


def _findings(lines: Sequence[str], as_expected: bool) -> list[str]:
    """The findings of a page that held, or did not."""
    mark = f"- **{Claim('', as_expected).mark}**: "
    return [line.removeprefix(mark) for line in lines if line.startswith(mark)]
