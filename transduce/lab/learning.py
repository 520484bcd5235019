"""Experiments that train: small models through the real loop, on a generated task or any prepared corpus.

All runs of an experiment have the same data, steps and seed; what differs is set by a few `key=value` words. The
budget is steps, not seconds, so that a busy machine gives the same models as an idle one.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from transduce.core import config as configs
from transduce.core.errors import ConfigError, RunError
from transduce.core.progress import say
from transduce.core.reports import METRICS_FILE, read_reports
from transduce.data.corpus import Corpus
from transduce.engines.torch.engine import pick_device
from transduce.experiment import Config
from transduce.lab.tasks import LabTask, quiet
from transduce.search.constraints import UNCONSTRAINED
from transduce.training.loop import train
from transduce.translate.loading import load
from transduce.translate.translator import Translator
from transduce.workflows.compare.measure import TrainingRecord, read_history

BASE = (
    "data.tokens=1024 data.bucket=4 model.d_model=64 model.dropout=0.0 objective.label_smoothing=0.0"
    " training.threads=1 training.report_every=20 training.save_every=100000 training.keep_last=1"
    " training.learning_rate.kind=cosine training.learning_rate.peak=3e-3 training.learning_rate.warmup=50"
    " validation.metric=loss validation.sentences=100 validation.samples=0 search=greedy"
).split()


def stack(side: str, layers: int = 2) -> list[str]:
    """Config words for one side of a small Transformer."""
    where = f"model.{side}"
    return [f"{where}.layers={layers}", f"{where}.attention.heads=4", f"{where}.d_ff=256", f"{where}.residual=pre_norm"]


TRANSFORMER = [*stack("encoder"), *stack("decoder")]
RECURRENT = (
    "model.encoder.kind=recurrent model.encoder.layers=2 model.encoder.cell=gru"
    " model.decoder.kind=recurrent model.decoder.layers=2 model.decoder.cell=gru"
).split()
FIXED_VECTOR = [*RECURRENT, "model.decoder.attention=fixed_vector"]
BAHDANAU = [*RECURRENT, "model.decoder.attention=bahdanau"]
CONVOLUTIONAL = (
    "model.encoder.kind=convolutional model.encoder.layers=3 model.decoder.kind=convolutional model.decoder.layers=3"
).split()


@dataclass(frozen=True)
class TrainingExperiment:
    """Settings of all experiments that train.

    `corpus` is a prepared corpus to use instead of the generated task, `overrides` are further settings for every run,
    as `key=value`; with a `work` folder runs are stored, and a second call resumes them.
    """

    steps: int = 400
    seed: int = 1
    corpus: str = ""
    overrides: tuple[str, ...] = ()
    work: str = ""
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"steps: expected at least 1, got {self.steps}")

    @contextlib.contextmanager
    def bench(self, task: LabTask) -> Iterator[Bench]:
        """Prepare the corpus and the folders for training."""
        with contextlib.ExitStack() as stack:
            folder = Path(self.work or stack.enter_context(tempfile.TemporaryDirectory(prefix="transduce-lab-")))
            corpus = Path(self.corpus) if self.corpus else task.prepare(folder)
            yield Bench(self, task, folder, corpus, pick_device(self.device))


@dataclass(frozen=True)
class Bench:
    """A corpus, a folder for runs, and their common settings."""

    settings: TrainingExperiment
    task: LabTask
    folder: Path
    corpus: Path
    device: torch.device

    @property
    def place(self) -> str:
        """The corpus, the budget and the device, in words."""
        device = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "one CPU core"
        data = f"Corpus {self.corpus.name}" if self.settings.corpus else f"{self.task.name}, generated"
        return f"{data}, {self.settings.steps:,} steps a model, on {device}"

    def held_out(self) -> tuple[list[str], list[str]]:
        """Sources and references that nothing is trained on."""
        return Corpus.open(self.corpus).split("valid").texts()

    def train(self, name: str, *words: str, steps: int = 0, validations: int = 1) -> LabRun:
        """Train one run, with so many validations on the way; found again where it was done before."""
        steps = steps or self.settings.steps
        layer = [
            *words,
            f"seed={self.settings.seed}",
            f"data.folder={self.corpus}",
            f"training.steps={steps}",
            f"training.device={self.device}",
            f"validation.every={max(1, steps // validations)}",
        ]
        config = configs.load(Config, "tiny", self.settings.overrides, defaults=[BASE, layer])
        folder = self.folder / "runs" / name.replace(" ", "-").replace("/", "-")
        say(f"training: {name}, {config.training.steps:,} steps")
        with quiet(folder.parent / f"{folder.name}.log"):
            outcome = train(config, folder)
        if outcome.reason in signal.Signals.__members__:
            raise RunError(
                f"lab: {outcome.reason} while training {name}; with work=FOLDER what is trained is kept, and the same"
                " command resumes"
            )
        return LabRun(name, folder, config, read_history(folder / METRICS_FILE), self.device)


@dataclass(frozen=True)
class LabRun:
    """A trained model."""

    name: str
    folder: Path
    config: Config
    history: TrainingRecord
    device: torch.device

    def open(self) -> Translator:
        """Load the model to translate."""
        return load(self.folder, str(self.device), engine="torch")

    def curve(self, measure: str) -> list[tuple[int, float, float]]:
        """(step, seconds of training, measure) of every validation."""
        lines = self._lines()
        clock: Mapping[int, float] = {line["step"]: line["seconds"] for line in lines if line["kind"] == "train"}
        rate = self.history.seconds / max(1, self.history.steps)
        return [
            (line["step"], clock.get(line["step"], rate * line["step"]), float(line[measure]))
            for line in lines
            if line["kind"] == "valid"
        ]

    def _lines(self) -> list[dict[str, Any]]:
        return [report.values for report in read_reports(self.folder / METRICS_FILE)]

    def reports(self) -> list[dict[str, Any]]:
        """The loop's training reports; `stretch` is the seconds between one report and the one before."""
        lines = [line for line in self._lines() if line["kind"] == "train"]
        before = [0.0, *(line["seconds"] for line in lines)]
        return [{**line, "stretch": line["seconds"] - start} for line, start in zip(lines, before, strict=False)]


def network(translator: Translator) -> Any:
    """The torch model of a translator."""
    return translator.engine.model  # type: ignore[attr-defined]


def parameters(translator: Translator) -> int:
    """The number of parameters of a translator's model."""
    return sum(parameter.numel() for parameter in network(translator).parameters())


def translate_whole(translator: Translator, texts: Sequence[str]) -> list[str]:
    """Translate each text in one piece, however long: a translator would cut one longer than any in training."""
    sources = translator.tokenizers.source.encode(list(texts))
    found = translator.engine.search(sources, translator.search, [UNCONSTRAINED] * len(sources), range(len(sources)))
    return [translator.tokenizers.target.decode(list(hypotheses[0].tokens)) for hypotheses in found]


def exact(translations: list[str], references: list[str]) -> float:
    """The share of texts that match exactly."""
    pairs = zip(translations, references, strict=True)
    return sum(text == reference for text, reference in pairs) / max(1, len(references))
