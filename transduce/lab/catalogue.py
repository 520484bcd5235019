"""Every experiment by name: what it is told, what it does, and one line of what it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transduce import config as configs
from transduce.errors import ConfigError
from transduce.lab.complexity import Complexity, complexity
from transduce.lab.decoding import Decoding, decoding
from transduce.lab.exposure import Exposure, exposure
from transduce.lab.length import Length, length
from transduce.lab.norms import Norms, norms
from transduce.lab.positions import Positions, positions
from transduce.lab.report import LabReport, Result
from transduce.lab.scaling_factor import ScalingFactor, scaling_factor
from transduce.lab.speed import Speed, speed
from transduce.lab.table3 import Table3, table3
from transduce.lab.teacher_forcing import TeacherForcing, teacher_forcing


@dataclass(frozen=True)
class Experiment:
    """`settings` is its config, `run` what makes a result of one."""

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
    Experiment("norms", "BatchNorm against LayerNorm, in changing company", Norms, norms),
    Experiment("positions", "the sinusoids, and every scheme beyond the trained length", Positions, positions),
    Experiment("length", "quality by sentence length: one vector, attention, Transformer", Length, length),
    Experiment("exposure", "what reading its own or wrong words does to a decoder", Exposure, exposure),
    Experiment(
        "teacher-forcing", "what reading right answers wins, in time and learning", TeacherForcing, teacher_forcing
    ),
    Experiment("decoding", "one word after another against all at once", Decoding, decoding),
    Experiment("table3", "the paper's ablations on any corpus", Table3, table3),
)
NAMES = [experiment.name for experiment in EXPERIMENTS]


def find(name: str) -> Experiment:
    """The experiment of a name; a name there is none of is refused."""
    for experiment in EXPERIMENTS:
        if experiment.name == name.replace("_", "-"):
            return experiment
    raise ConfigError(f"lab: no experiment is called {name!r}; there are {', '.join(NAMES)}, and all")


def perform(name: str, overrides: Sequence[str] = ()) -> LabReport:
    """One experiment with its settings changed by `key=value` words; gives its report."""
    experiment = find(name)
    return experiment.run(configs.load(experiment.settings, None, overrides)).report()
