"""Measure one trained run, in a process of its own: quality on held-out text, speed of decoding, memory.

    python -m transduce.workflows.compare.measure RUN OUTPUT.json LANGUAGE

The run translates with its own search. Speed is that of the search alone, without tokenizing: the same sentences for
every run, sorted by length, one at a time and in batches of 32, in a second pass after one to warm up. Counted are
the tokens of the best hypothesis, without the end symbol.

Figures of training are read from a run's `metrics.jsonl`: speed, time, memory, and the curve of quality.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from transduce.core import config as configs
from transduce.core.durable import write_text
from transduce.core.reports import read_reports
from transduce.data.corpus import Corpus, Split, file_digest
from transduce.evaluation.report import LengthRow, by_length
from transduce.experiment import Config
from transduce.metrics.corpus import NamedTarget, bleu_of_targets, chrf, target_languages
from transduce.search.constraints import UNCONSTRAINED
from transduce.training.run_folder import read_config
from transduce.translate.model_folder import MODEL

if TYPE_CHECKING:
    from transduce.translate.translator import Translator


@dataclass(frozen=True)
class Point:
    """One validation; `seconds` of training before it."""

    step: int
    seconds: float
    bleu: float


@dataclass(frozen=True)
class TrainingRecord:
    """The training of one run, from its reports.

    `seconds` is time spent in updates, by the end of the run or its last report; `tokens_per_second` is without the
    first report, during which everything warms up; `best` holds the measures of the exported weights; `memory` is in
    bytes.
    """

    steps: int
    seconds: float
    tokens_per_second: float | None
    memory: int
    best: dict[str, float] = field(default_factory=dict)
    final: dict[str, float] = field(default_factory=dict)
    curve: tuple[Point, ...] = ()


def has_ended(path: Path) -> bool:
    """Whether the last report is the end of the run."""
    reports = read_reports(path)
    return bool(reports) and reports[-1].values["kind"] == "finished"


def read_history(path: Path) -> TrainingRecord:
    """Read the training record of a run."""
    lines = [report.values for report in read_reports(path)]
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


BATCHED = 32  # sentences in the larger batch
TIMED_SENTENCES = 64  # evenly from the whole text
_FORMAT = 2


@dataclass(frozen=True)
class DecodingSpeed:
    """The speed of decoding."""

    tokens_per_second: float
    sentences_per_second: float


@dataclass(frozen=True)
class Measured:
    """The measures of one run; `fingerprint` identifies weights, search and text, `memory` is the peak in bytes."""

    fingerprint: str
    sentences: int
    bleu: float
    bleu_signature: str
    chrf: float
    lengths: tuple[LengthRow, ...]
    parameters: int
    alone: DecodingSpeed
    batched: DecodingSpeed
    memory: int
    device: str


def held_out(config: Config) -> str:
    """The split that quality is measured on: the test split where the corpus has one."""
    return "test" if "test" in Corpus.open(config.data.folder).splits else config.data.valid


def fingerprint(run: Path, language: str) -> str:
    """A digest of everything that the measures depend on."""
    config = read_config(run)
    parts = [_FORMAT, language, file_digest(run / MODEL), Corpus.open(config.data.folder).digest, held_out(config)]
    relevant = ("search", "training.device", "training.threads")
    settings = {key: value for key, value in configs.flatten(config).items() if key.startswith(relevant)}
    return hashlib.sha256(json.dumps([parts, settings], sort_keys=True, default=str).encode()).hexdigest()


def read_measured(path: Path) -> Measured | None:
    """Read the measures that an earlier call wrote; None where there is nothing readable."""
    try:
        tree = json.loads(path.read_bytes())
        lengths = tuple(LengthRow(**row) for row in tree["lengths"])
        speeds = {name: DecodingSpeed(**tree[name]) for name in ("alone", "batched")}
        return Measured(**{**tree, "lengths": lengths, **speeds})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def measure(run: Path, output: Path, language: str = "") -> Measured:
    """Translate and time; write the measures as JSON and the translations beside it, a line each."""
    import torch

    from transduce.engines.torch.engine import pick_device
    from transduce.training.machine import peak_memory
    from transduce.translate.loading import load

    config = read_config(run)
    if config.training.threads:
        torch.set_num_threads(config.training.threads)
    device = pick_device(config.training.device)
    translator = load(run, str(device), trust=True, engine="torch")
    split = Corpus.open(config.data.folder, config.data.trust).split(held_out(config))
    sources, references = split.to_translate()
    tags = split.tags()
    texts = translator(sources, to=tags)
    targets = target_languages(references, tags, NamedTarget(language, "language"))
    quality = bleu_of_targets(texts, references, targets)
    chosen = _timed_sentences(split)

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    measured = Measured(
        fingerprint=fingerprint(run, language),
        sentences=len(texts),
        bleu=quality.mean,
        bleu_signature=quality.signature,
        chrf=chrf(texts, references).value,
        lengths=tuple(by_length(split.texts()[0], texts, references, targets=targets)),
        parameters=_parameters(translator),
        alone=_speed(translator, chosen, 1, wait),
        batched=_speed(translator, chosen, BATCHED, wait),
        memory=peak_memory(device),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
    )
    write_text(translations_file(output), "".join(f"{text}\n" for text in texts))
    write_text(output, json.dumps(asdict(measured), indent=1) + "\n")  # last: it says that all of it is there
    return measured


def translations_file(output: Path) -> Path:
    """The path `seed-1.translated.txt` beside `seed-1.measured.json`."""
    return output.with_name(output.name.removesuffix(".measured.json") + ".translated.txt")


def _timed_sentences(split: Split) -> list[Any]:
    """Sources from all over the split, the shortest first, equal for every run on this corpus."""
    every = max(1, len(split) // TIMED_SENTENCES)
    numbers = range(0, every * min(TIMED_SENTENCES, len(split)), every)
    return sorted((source if split.width else source.tolist() for source, _ in map(split.pair, numbers)), key=len)


def _parameters(translator: Translator) -> int:
    model: Any = translator.engine.model  # type: ignore[attr-defined]
    return sum(parameter.numel() for parameter in model.parameters())


def _speed(translator: Translator, sources: Sequence[Any], batch: int, wait: Callable[[], None]) -> DecodingSpeed:
    """Decode everything twice and time the second pass; `wait` returns when the device is idle."""
    groups = [sources[begin : begin + batch] for begin in range(0, len(sources), batch)]
    for _ in range(2):
        wait()
        started, tokens = time.perf_counter(), 0
        for group in groups:
            found = translator.engine.search(group, translator.search, [UNCONSTRAINED] * len(group), range(len(group)))
            tokens += sum(len(hypotheses[0].tokens) for hypotheses in found)
        wait()
        seconds = time.perf_counter() - started
    return DecodingSpeed(tokens / seconds, len(sources) / seconds)


if __name__ == "__main__":
    measure(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
