"""Compare imported Marian models with Marian itself, on more sentences than the tests have.

    python3.11 -m venv marian-env && marian-env/bin/pip install pymarian==1.12.42
    python benchmarks/marian_peer.py ../shared/reference/marian --peer-python marian-env/bin/python

Marian runs in its own environment with one sentence a batch, since its limit on lengths is that of the batch's
longest source. The texts of whole n-best lists and the log-probabilities are compared, with torch and with the native
engine; also the results of a beam that does not shrink.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import transduce
from transduce.text.number_words import english

Found = tuple[str, float, float]  # text, log-probability, score
PEER = """
import json, sys, pymarian
asked = json.load(sys.stdin)
translator = pymarian.Translator(asked["options"])
for line in asked["lines"]:
    print(json.dumps(translator.translate([line])), flush=True)
"""


@dataclass(frozen=True)
class Case:
    """A weights file and its decoding settings."""

    folder: str
    weights: str
    size: int
    normalize: float = 0.6

    @property
    def name(self) -> str:
        return f"{self.folder}/{self.weights} beam {self.size}"


CASES = [
    Case("post", "model.npz", 1),
    Case("post", "model.npz", 4),
    Case("post", "model.npz", 12),
    Case("pre", "model.npz", 1),
    Case("pre", "model.npz", 4),
    Case("post", "model.intgemm8.bin", 1),
    Case("post", "model.intgemm8.bin", 4),
]


def theirs(python: Path, root: Path, case: Case, lines: Sequence[str]) -> list[list[Found]]:
    """Marian's n-best list for each line, best first."""
    vocabulary = root / case.folder / "vocab.spm"
    options = (
        f"-m {root / case.folder / case.weights} -v {vocabulary} {vocabulary} -b {case.size} --normalize"
        f" {case.normalize} --n-best --cpu-threads 1 --mini-batch 1 --maxi-batch 1 --quiet"
    )
    asked = json.dumps({"options": options, "lines": list(lines)})
    run = subprocess.run([python, "-c", PEER], input=asked, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"Marian failed: {run.stderr[-2000:]}")
    return [[_entry(one) for one in json.loads(line)] for line in run.stdout.splitlines() if line.startswith("[")]


def _entry(line: str) -> Found:
    _, text, feature, score = line.split(" ||| ")
    return text, float(feature.removeprefix("F0= ")), float(score)


def ours(translator: Any, case: Case, lines: Sequence[str], shrinking: bool = True) -> list[list[Found]]:
    changed = {"size": case.size, "n_best": case.size, "length_penalty": case.normalize, "shrinking": shrinking}
    found = translator.translate(lines, search=replace(translator.search, **changed))
    return [[(one.text, one.log_prob, one.score) for one in (best, *best.alternatives)] for best in found]


def compare(found: Sequence[Sequence[Found]], expected: Sequence[Sequence[Found]]) -> str:
    pairs = list(zip(found, expected, strict=True))
    best = sum(own[0][0] == wanted[0][0] for own, wanted in pairs)
    lists = sum([one[0] for one in own] == [one[0] for one in wanted] for own, wanted in pairs)
    same = [(a, b) for own, wanted in pairs for a, b in zip(own[:1], wanted[:1], strict=True) if a[0] == b[0]]
    apart = max((abs(a[1] - b[1]) for a, b in same), default=0.0)
    better = sum(own[0][2] > wanted[0][2] + 1e-3 for own, wanted in pairs)
    worse = sum(own[0][2] < wanted[0][2] - 1e-3 for own, wanted in pairs)
    return f"best {best:>6,}  lists {lists:>6,}  apart at most {apart:.1e}  better {better:,}  worse {worse:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", type=Path, help="the folder with post and pre")
    parser.add_argument("--peer-python", type=Path, required=True, help="Python of an environment with pymarian")
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    lines = [english(draw.randrange(100_000)) for _ in range(options.lines)]
    with tempfile.TemporaryDirectory() as work:
        for case in CASES:
            started = time.monotonic()
            expected = theirs(options.peer_python, options.models.resolve(), case, lines)
            weights = options.models / case.folder / case.weights
            run = Path(work) / case.name.replace("/", "-").replace(" ", "-")
            transduce.import_model(weights, run)
            quantize = "int8" if weights.suffix == ".bin" else "none"
            native = transduce.convert(run, Path(f"{run}-native"), quantize=quantize)
            engines = {"torch": transduce.load(run, "cpu", engine="torch"), "native": transduce.load(native)}
            print(f"{case.name}: {len(lines):,} lines")
            for name, translator in engines.items():
                print(f"  {name:<22}{compare(ours(translator, case, lines), expected)}")
            if case.size > 1:
                wide = ours(engines["native"], case, lines, shrinking=False)
                print(f"  {'native, not shrinking':<22}{compare(wide, expected)}")
            print(f"  {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
