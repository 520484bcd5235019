"""Compare the native engine in int8 with torch in fp32, and sentences alone with those in batches.

    python benchmarks/quality.py RUN --source test.en.gz --target test.de.gz        # BLEU of fp32, and of int8
    python benchmarks/quality.py RUN --many train.en.gz --sentences 10000           # alone, in batches, in any order

RUN is the folder of a trained model, which is converted here. Exits with code 1 if int8 differs by more than 0.2 BLEU,
or if any sentence differs in a token or in the last bit of its log-probability.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import transduce
from transduce.data.formats.lines import read_lines
from transduce.exchange.convert import convert
from transduce.metrics.corpus import bleu
from transduce.search import Hypothesis
from transduce.search.constraints import UNCONSTRAINED
from transduce.search.settings import Beam, Greedy

BAR = 0.2  # maximum difference in BLEU of int8 from fp32
Tokens = list[int]


@dataclass(frozen=True)
class Compared:
    """Both engines on one text."""

    torch: float
    native: float
    same: float  # share of the texts that are the same to the letter

    @property
    def within(self) -> bool:
        return abs(self.native - self.torch) <= BAR


@dataclass(frozen=True)
class Invariance:
    """How many sentences differ from decoding alone, for each way of batching."""

    sentences: int
    differ: dict[str, int]


def read_text(path: str) -> list[str]:
    """Its lines, decompressed if necessary."""
    return [line.decode("utf-8") for line in read_lines(path)]


def compare(run: Path, native: Path, sources: Sequence[str], references: Sequence[str]) -> Compared:
    """Decode with the run's `[search]` in the torch engine in fp32, and in the native engine."""
    plain = transduce.load(run, "cpu", engine="torch")(list(sources))
    ours = transduce.load(native, engine="native")(list(sources))
    same = sum(one == other for one, other in zip(plain, ours, strict=True)) / len(sources)
    return Compared(bleu(plain, references).value, bleu(ours, references).value, same)


def invariance(native: Path, texts: Sequence[str], beam: int, seed: int = 1) -> Invariance:
    """Decode each sentence alone, in random order; then by 32 in the text's order, by 7 shuffled, by 1,000."""
    translator = transduce.load(native, engine="native")
    engine, search = translator.engine, Greedy() if beam == 1 else Beam(beam)
    sources = translator.tokenizers.source.encode(list(texts))

    def found(numbers: Sequence[int]) -> list[list[Hypothesis]]:
        return engine.search([sources[i] for i in numbers], search, [UNCONSTRAINED] * len(numbers), [0] * len(numbers))

    plain = list(range(len(sources)))
    shuffled = random.Random(seed).sample(plain, len(plain))
    alone = {number: found([number])[0] for number in shuffled}
    differ = {}
    for name, order, size in (("by 32", plain, 32), ("by 7, shuffled", shuffled, 7), ("by 1,000", plain, 1000)):
        batches = [order[begin : begin + size] for begin in range(0, len(order), size)]
        differ[name] = sum(
            own != alone[number] for batch in batches for number, own in zip(batch, found(batch), strict=True)
        )
    return Invariance(len(sources), differ)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a trained model")
    parser.add_argument("--source", help="lines to translate, plain or compressed")
    parser.add_argument("--target", help="their references")
    parser.add_argument("--many", help="lines for the batch invariance test; duplicates count once")
    parser.add_argument("--sentences", type=int, default=10_000)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    options = parser.parse_args()
    passed = True
    with tempfile.TemporaryDirectory() as folder:
        native = convert(options.run, Path(folder) / "int8")
        if options.source:
            sources, references = read_text(options.source), read_text(options.target)
            quality = compare(options.run, native, sources, references)
            passed &= quality.within
            print(
                f"BLEU of {len(sources):,} sentences: fp32 (torch) {quality.torch:.2f}, int8 (native)"
                f" {quality.native:.2f}, {quality.native - quality.torch:+.2f} (bar {BAR}); {quality.same:.1%} the same"
            )
        if options.many:
            texts = [text for text in dict.fromkeys(read_text(options.many)) if text.strip()][: options.sentences]
            for beam in options.beams:
                begun = time.process_time()
                result = invariance(native, texts, beam)
                passed &= not any(result.differ.values())
                differing = ", ".join(f"{count} {name}" for name, count in result.differ.items())
                print(
                    f"{'greedy' if beam == 1 else f'beam {beam}'}: of {result.sentences:,} sentences unlike alone:"
                    f" {differing} ({time.process_time() - begun:.0f} s of CPU time)"
                )
    sys.exit(not passed)


if __name__ == "__main__":
    main()
