"""Time from raw text to 39.5 BLEU on Multi30k English to German (test_2016_flickr, lower-cased Moses tokens).

    python benchmarks/speedrun.py --data ../shared/data/multi30k
    python benchmarks/speedrun.py --data FOLDER --stop 39.8 training.steps=3000 training.optimizer.kind=muon

All time counts: preparing text, starting Python, compiling, validating, translating the test set. Training stops at the
first validation on val that reaches `--stop` (greedy BLEU), or at its planned end. Only then
is test translated and scored, once. Prints a row for the board in docs/results/quality.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
GOAL = 39.5


@dataclass(frozen=True)
class Result:
    """Seconds of each part, and the scores."""

    prepare: float
    train: float
    evaluate: float
    steps: int
    validation: float
    bleu: float

    @property
    def total(self) -> float:
        return self.prepare + self.train + self.evaluate

    def row(self, hardware: str, words: Sequence[str]) -> str:
        """A row of the board."""
        reached = "reached" if self.bleu >= GOAL else "missed"
        parts = f"{self.prepare:.0f} + {self.train:.0f} + {self.evaluate:.0f} s"
        return (
            f"| {date.today()} | {hardware} | **{self.total / 60:.2f}** ({parts}) | {self.bleu:.2f}, {reached}"
            f" | {self.validation:.2f} | {self.steps:,} | {' '.join(words) or 'defaults'} |"
        )


def transduce(*words: str, output: int | None = None) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen([sys.executable, "-m", "transduce", *words], env=environment, stdout=output)


def done(*words: str) -> str:
    """Run a command and return its output; exit on failure."""
    process = transduce(*words, output=subprocess.PIPE)
    printed, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"transduce {words[0]} failed with code {process.returncode}")
    return printed.decode()


def prepare(data: Path, folder: Path, words: Sequence[str]) -> Path:
    """Prepare the corpus from the compressed files, with the settings of configs/multi30k-en-de.prepare.toml."""
    corpus = folder / "corpus"
    lines = [f'output = "{corpus}"', '[tokenizer]\nmodel = "bpe"\nvocabulary = 10000']
    for split, stem in (("train", "train"), ("valid", "val")):
        paths = [data / f"{stem}.{language}.gz" for language in ("en", "de")]
        lines.append(f'[[{split}]]\nsource = "{paths[0].resolve()}"\ntarget = "{paths[1].resolve()}"')
    (folder / "prepare.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    done("prepare", str(folder / "prepare.toml"), *words)
    return corpus


def validations(run: Path) -> list[tuple[int, float]]:
    """(step, BLEU on val) so far; a partly written line is skipped."""
    found = []
    path = run / "metrics.jsonl"
    for line in path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []:
        record = json.loads(line)
        if record["kind"] == "valid":
            found.append((record["step"], record["bleu"]))
    return found


def train(corpus: Path, run: Path, config: str, stop: float, words: Sequence[str]) -> tuple[int, float]:
    """Train until val reaches `--stop`; return (step, BLEU) of the best validation."""
    process = transduce("train", config, f"data.folder={corpus}", *words, "--output", str(run))
    asked = False
    while process.poll() is None:
        if not asked and any(bleu >= stop for _, bleu in validations(run)):
            process.send_signal(signal.SIGTERM)
            asked = True
        time.sleep(0.05)
    if process.returncode not in (0, 128 + signal.SIGTERM):
        raise SystemExit(f"transduce train failed with code {process.returncode}")
    return max(validations(run), key=lambda validation: validation[1])


def score(data: Path, run: Path, folder: Path) -> float:
    """BLEU of the test set by the published convention."""
    for language in ("en", "de"):
        text = gzip.decompress((data / f"test_2016_flickr.{language}.gz").read_bytes())
        (folder / f"test.{language}").write_bytes(text)
    found = json.loads(
        done(
            "evaluate",
            str(folder / "test.de"),
            str(run),
            "--source",
            str(folder / "test.en"),
            *("--language", "de", "--moses", "--json"),
        )
    )
    return published(found)


def published(report: dict[str, Any]) -> float:
    """The figure of lower-cased Moses tokens in what `evaluate --moses --json` prints."""
    return float(next(quality["value"] for quality in report["qualities"] if "Moses" in quality["name"]))


def hardware() -> str:
    """The GPU's name, or the number of cores."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{os.cpu_count()} cores, {platform.machine()}"


def run_all(options: argparse.Namespace, folder: Path) -> Result:
    times = [time.monotonic()]
    corpus = prepare(options.data, folder, options.prepare)
    times.append(time.monotonic())
    step, validation = train(corpus, folder / "run", options.config, options.stop, options.override)
    times.append(time.monotonic())
    bleu = score(options.data, folder / "run", folder)
    times.append(time.monotonic())
    parts = [end - begin for begin, end in pairwise(times)]
    return Result(*parts, step, validation, bleu)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Minutes from raw text to 39.5 BLEU on Multi30k en-de.")
    parser.add_argument("--data", type=Path, required=True, help="folder with train.en.gz and the like")
    parser.add_argument("--config", default=str(ROOT / "configs" / "multi30k-en-de.toml"))
    parser.add_argument("--stop", type=float, default=39.8, help="greedy BLEU on val at which training ends")
    parser.add_argument("--prepare", nargs="*", default=[], help="settings for `transduce prepare`")
    parser.add_argument("override", nargs="*", help="settings for `transduce train`")
    return parser.parse_args(words)


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="transduce-speedrun-") as folder:
        result = run_all(options, Path(folder))
    print(result.row(hardware(), [f"--stop {options.stop}", *options.prepare, *options.override]))


if __name__ == "__main__":
    main()
