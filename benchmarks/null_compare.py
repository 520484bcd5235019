"""Measure how often `compare` claims a difference between equal groups: one config, many seeds, against itself.

    python benchmarks/null_compare.py --work runs/null          # trains ten seeds of one small model, then tests splits
    python benchmarks/null_compare.py --simulate 2000           # the same test on simulated scores, in seconds

The model translates German number words into English and is trained with `transduce compare`; a second call reuses the
runs. The seeds are split into two groups of equal size in all ways (at most --splits of them, drawn at random),
and each split is tested like two variants, with the functions of `compare` itself.
For reference there is the bootstrap over sentences alone, the earlier test. Exits with code 1 if more than 7 % of the
splits of a size are marked.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transduce.data.corpus import Corpus
from transduce.data.formats.parallel import ParallelText
from transduce.data.prepare.run import Prepare, prepare
from transduce.evaluation.significance import SeedScores, against_baseline
from transduce.metrics.corpus import target_languages
from transduce.text.number_words import english, german
from transduce.text.train_tokenizer import SentencePiece
from transduce.workflows.compare.plan import ComparisonPlan, read_plan
from transduce.workflows.compare.results import CLAIM, score_variants, summarise
from transduce.workflows.compare.run import compare, language_settings

BAR = 0.07
PAIR = ComparisonPlan("null", ("first", "second"), "first", "", ())
COMPARISON = """
base = "tiny"
seeds = {seeds}
settings.data = {{ folder = "{folder}/corpus", tokens = 1024, bucket = 4 }}
settings.model = {{ dropout = 0.0, encoder = {side}, decoder = {side} }}
settings.objective.label_smoothing = 0.0
settings.search = "greedy"
settings.training = {{ steps = {steps}, report_every = 50, device = "cpu", learning_rate = {rate} }}
settings.validation = {{ every = {steps}, samples = 0 }}
[[variant]]
name = "same"
"""
SIDE = '{ layers = 2, residual = "pre_norm" }'
RATE = '{ kind = "cosine", peak = 3e-3, warmup = 50 }'


@dataclass(frozen=True)
class Claims:
    """How many of `tests` splits of one size were marked as different, by each of the two tests."""

    size: int
    tests: int
    both: int  # over seeds and sentences
    sentences: int  # over sentences alone

    def line(self) -> str:
        new, old = (f"{count:,} ({count / self.tests:.1%})" for count in (self.both, self.sentences))
        return f"{self.size} against {self.size}\t{self.tests:,}\t{new}\t{old}"


def sentences_p_value(first: SeedScores, second: SeedScores) -> float:
    """The p-value of a bootstrap over sentences alone."""
    seen = second.whole.mean() - first.whole.mean()
    drawn = second.redrawn.mean(1) - first.redrawn.mean(1)
    return float((np.sum(np.abs(drawn - drawn.mean()) >= abs(seen)) + 1) / (len(drawn) + 1))


def marked(first: SeedScores, second: SeedScores) -> bool:
    """Whether the table of `compare` marks the difference of two variants."""
    p_values = against_baseline({"first": first, "second": second}, PAIR.baseline)
    _, row = summarise(PAIR, [], "test", p_values).rows
    assert row.adjusted is not None
    return row.claimed


def splits(count: int, size: int, most: int, seed: int = 1) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Two groups of `size` out of `count`, each unordered pair once: all, or `most` drawn at random."""
    found = [
        (one, other)
        for one in itertools.combinations(range(count), size)
        for other in itertools.combinations(sorted(set(range(count)) - set(one)), size)
        if one < other
    ]
    return found if len(found) <= most else random.Random(seed).sample(found, most)


def claims(pairs: Iterator[tuple[SeedScores, SeedScores]], size: int) -> Claims:
    """Run both tests on each pair of groups of seeds."""
    tests = both = alone = 0
    for first, second in pairs:
        tests, both = tests + 1, both + marked(first, second)
        alone += sentences_p_value(first, second) < CLAIM
    return Claims(size, tests, both, alone)


def real(scores: SeedScores, size: int, most: int) -> Claims:
    """Split the seeds of one config and compare the groups."""

    def part(numbers: Sequence[int]) -> SeedScores:
        chosen = list(numbers)
        return SeedScores(scores.whole[chosen], scores.redrawn[:, chosen], scores.sentences)

    return claims(((part(one), part(other)) for one, other in splits(len(scores.whole), size, most)), size)


@dataclass(frozen=True)
class World:
    """Sentence scores as sums of normal variables, by their standard deviations, over N sentences.

    `seeds` is the noise of training, `sentence` the difficulty that all seeds share, `variant` what a variant does to a
    sentence with every seed (with mean zero: no difference), `both` the noise of one seed on one sentence.
    """

    seeds: float
    sentence: float
    variant: float
    both: float
    count: int = 200

    def draw(self, generator: np.random.Generator, size: int, weights: np.ndarray) -> tuple[SeedScores, SeedScores]:
        """Simulate two variants of equal quality; weights (D, N) are the bootstrap samples of sentences."""
        difficulty = generator.normal(0, self.sentence, (self.count, 1))
        made = []
        for _ in range(2):
            scores = difficulty + generator.normal(0, self.variant, (self.count, 1))
            scores = scores + generator.normal(0, self.seeds, (1, size))
            scores = scores + generator.normal(0, self.both, (self.count, size))
            made.append(SeedScores(scores.mean(0), weights @ scores / self.count, self.count))
        return made[0], made[1]


WORLDS = {
    "training noise alone": World(1.0, 0.0, 0.0, 0.0),
    "training noise, sentences of unequal difficulty": World(1.0, 20.0, 0.0, 5.0),
    "noise of single sentences": World(0.0, 20.0, 0.0, 15.0),
    "both, equal": World(1.0, 20.0, 0.0, 14.0),
    "sentences that suit one variant": World(0.3, 20.0, 10.0, 3.0),
    "no training noise, sentences that suit one variant": World(0.0, 20.0, 10.0, 0.0),
}


def simulate(world: World, size: int, trials: int, samples: int = 200, seed: int = 1) -> Claims:
    """Simulate many pairs of variants without a difference."""
    generator = np.random.default_rng(seed)
    drawn = generator.integers(world.count, size=(samples, world.count))
    weights = np.stack([np.bincount(row, minlength=world.count) for row in drawn]).astype(np.float64)
    return claims((world.draw(generator, size, weights) for _ in range(trials)), size)


def train(folder: Path, seeds: int, steps: int) -> SeedScores:
    """Train and measure what is missing; return the scores of all seeds on 400 held-out sentences."""
    if not (folder / "corpus" / "manifest.json").exists():
        _prepare(folder)
    words = COMPARISON.format(seeds=list(range(1, seeds + 1)), folder=folder, steps=steps, side=SIDE, rate=RATE)
    (folder / "null.toml").write_text(words, encoding="utf-8")
    compared = compare(folder / "null.toml", output=folder / "out")
    if compared.results is None or compared.results.failed:
        sys.exit("the runs are not complete; the same command resumes them")
    plan, split = read_plan(folder / "null.toml"), Corpus.open(folder / "corpus").split("test")
    _, references = split.texts()
    targets = target_languages(references, split.tags(), *language_settings(plan))
    return score_variants(plan, folder / "out", {}, references, targets)["same"]


def _prepare(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    chooser = random.Random(1)
    numbers = list(dict.fromkeys(chooser.randrange(10 ** chooser.randint(3, 6)) for _ in range(6000)))
    texts = {}
    for name, some in (("valid", numbers[:100]), ("test", numbers[100:500]), ("train", numbers[500:])):
        for language, words in (("de", german), ("en", english)):
            lines = "".join(f"{words(number)}\n" for number in some)
            (folder / f"{name}.{language}").write_text(lines, encoding="utf-8")
        texts[name] = (ParallelText(source=f"{folder}/{name}.de", target=f"{folder}/{name}.en"),)
    tokenizer = SentencePiece(model="bpe", vocabulary=110, byte_fallback=False)
    prepare(Prepare(output=f"{folder}/corpus", **texts, tokenizer=tokenizer, workers=1))


def main() -> None:
    """Print a line for each group size: the splits, and how many were marked as different."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--work", type=Path, default=Path("runs/null"), help="folder of corpus and runs")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 3, 4, 5], help="seeds in a group")
    parser.add_argument("--splits", type=int, default=5000, help="at most so many splits of a size")
    parser.add_argument("--simulate", type=int, default=0, metavar="TRIALS", help="simulated scores instead of runs")
    arguments = parser.parse_args()
    worlds: dict[str, list[Claims]] = {}
    if arguments.simulate:
        for name, world in WORLDS.items():
            worlds[name] = [simulate(world, size, arguments.simulate) for size in arguments.sizes]
    else:
        scores = train(arguments.work, arguments.seeds, arguments.steps)
        print(f"BLEU {scores.whole.mean():.2f}, standard deviation over seeds {scores.whole.std(ddof=1):.2f}")
        worlds["number words"] = [real(scores, size, arguments.splits) for size in arguments.sizes]
    print("seeds\tsplits\tp < 0.05, seeds and sentences\tp < 0.05, sentences alone")
    for name, found in worlds.items():
        print(name)
        for one in found:
            print(one.line())
    if any(one.both > BAR * one.tests for found in worlds.values() for one in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
