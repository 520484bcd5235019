"""Measure the cost of a million pairs before training: counting, doctor, tokenizing, writing, opening, planning.

    python benchmarks/preparing.py --millions 1 2 4 --output preparing.json

Synthetic text (pseudo-words by Zipf's law, about 14 a sentence, no two pairs alike), each size in a process of its own
so that its memory can be measured. If the cost is linear, the figures per million pairs stay the same at all sizes;
the last column divides that of the largest size by that of the smallest. On a shared machine, use processor seconds.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from transduce.data.corpus import Corpus, Span
from transduce.data.doctor.checks import Doctor
from transduce.data.doctor.examine import examine_stretches, join, open_examined, open_joined
from transduce.data.formats.inventory import cut, index_splits
from transduce.data.formats.parallel import ParallelText
from transduce.data.prepare.run import assemble, draw_lines, final_report
from transduce.data.prepare.tokenize import Tokenizing
from transduce.data.prepare.work_folder import WorkFolder
from transduce.text.train_tokenizer import SentencePiece

Result = TypeVar("Result")
STEPS = {  # what each figure is, and whether it grows with the corpus
    "counting": "lines counted, files hashed",
    "doctor": "single pairs checked",
    "joining": "duplicates and overlap found",
    "drawing": "lines to train the tokenizer on",
    "tokenizer": "seconds in all, on 100,000 lines",
    "tokenizing": "",
    "writing": "corpus assembled, hashed",
    "opening": "manifest, lengths",
    "planning": "an epoch of 4,096-token batches",
}
FIXED = ("tokenizer",)


def cpu_seconds() -> float:
    """Of this process and of the workers that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


class Stopwatch:
    """Seconds, seconds of all processors together, and peak memory of each step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self.peak: dict[str, float] = {}

    def time(self, step: str, work: Callable[[], Result]) -> Result:
        began, cpu = time.perf_counter(), cpu_seconds()
        result = work()
        self.seconds[step] = time.perf_counter() - began
        self.cpu[step] = cpu_seconds() - cpu
        self.peak[step] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MiB, of this process alone
        return result


def write_text(folder: Path, pairs: int) -> ParallelText:
    """Write both sides of so many synthetic pairs; the target maps the source word by word."""
    random = np.random.default_rng(1)
    letters = np.array([*"abcdefghijklmnopqrstuvwxyz"])
    words = [["".join(random.choice(letters, random.integers(2, 9))) for _ in range(20_000)] for _ in range(2)]
    paths = folder / "text.source", folder / "text.target"
    with open(paths[0], "w", encoding="utf-8") as source, open(paths[1], "w", encoding="utf-8") as target:
        for first in range(0, pairs, 50_000):
            count = min(50_000, pairs - first)
            lengths = np.clip(random.lognormal(2.5, 0.5, count), 2, 60).astype(np.int64)
            drawn = (np.minimum(random.pareto(1.0, lengths.sum()), 19_999.0)).astype(np.int64).tolist()
            end = 0
            for number, length in enumerate(lengths.tolist(), first):
                sentence, end = drawn[end : end + length], end + length
                source.write(" ".join([*(words[0][word] for word in sentence), f"{number}\n"]))
                target.write(" ".join([*(words[1][word] for word in sentence), f"{number}\n"]))
    return ParallelText(str(paths[0]), str(paths[1]))


def measure(pairs: int, workers: int, folder: Path) -> dict[str, dict[str, float]]:
    """Time the steps of `prepare`, then those of a run's start, one by one."""
    watch, work = Stopwatch(), WorkFolder(folder / "work")
    text = write_text(folder, pairs)
    corpora = watch.time("counting", lambda: index_splits({"train": (text,)}))
    stretches = cut(corpora, 1)
    watch.time("doctor", lambda: examine_stretches(work, corpora, stretches, Doctor(), workers))
    examination = open_examined(work, corpora, stretches, Doctor())
    watch.time("joining", lambda: join(work, examination))
    examination = open_joined(work, examination)
    settings = SentencePiece(sentences=100_000)
    drawn = watch.time("drawing", lambda: draw_lines(examination, settings))
    trained = watch.time("tokenizer", lambda: settings.train(drawn["source"], drawn["target"]))
    trained.tokenizers.save(folder / "tokenizer")
    tokenizing = Tokenizing(work, trained.tokenizers, folder / "tokenizer", 256, workers)
    everything = {stretch.number for stretch in stretches}
    watch.time("tokenizing", lambda: tokenizing.write_parts(examination, everything))
    (folder / "corpus").mkdir()
    report = final_report(work, examination, trained)
    watch.time("writing", lambda: assemble(folder / "corpus", work, examination, trained.tokenizers, report))
    start_up(folder / "corpus", watch)
    return {"seconds": watch.seconds, "cpu": watch.cpu, "peak": watch.peak}


def start_up(folder: Path, watch: Stopwatch) -> None:
    """Plan in this process, whose memory has grown by then: `planning_alone` measures the memory of a plan."""
    from transduce.data.batching import plan_epoch

    def lengths() -> tuple[list[Span], np.ndarray, np.ndarray]:
        split = Corpus.open(folder).split("train")
        return split.spans, split.source_lengths, split.target_lengths

    spans, source, target = watch.time("opening", lengths)
    watch.time("planning", lambda: plan_epoch(source, target, spans, 4096, 8, seed=1, epoch=0))


def planning_alone(pairs: int) -> dict[str, float]:
    """Plan any size over random lengths: seconds, and MiB beyond those of the lengths."""
    from transduce.data.batching import plan_epoch

    random = np.random.default_rng(0)
    source, target = (np.clip(random.lognormal(3.0, 0.6, pairs), 1, 256).astype(np.int32) for _ in range(2))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, cpu = time.perf_counter(), cpu_seconds()
    plan = plan_epoch(source, target, [Span("drawn", 0, pairs, 1.0, "")], 4096, 8, seed=1, epoch=0)
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"seconds": seconds, "cpu": cpu, "MiB": grown, "batches": len(plan)}


def in_new_process(*words: str) -> dict[str, dict[str, float]]:
    program = [sys.executable, str(Path(__file__).resolve()), *words]
    found: dict[str, dict[str, float]] = json.loads(subprocess.run(program, check=True, stdout=subprocess.PIPE).stdout)
    return found


def table(results: dict[float, dict[str, dict[str, float]]]) -> str:
    """Seconds per million pairs, a column a size: wall time, and in brackets processor time."""
    sizes = [*results]
    lines = [
        "| seconds (processor seconds) per million pairs | "
        + " | ".join(f"{size:g} M" for size in sizes)
        + " | last / first |",
        "| --- |" + " ---: |" * (len(sizes) + 1),
    ]
    for step, what in STEPS.items():
        kinds = ("seconds", "cpu")
        per = [[results[size][kind][step] / (1 if step in FIXED else size) for kind in kinds] for size in sizes]
        name = f"{step} ({what})" if what else step
        ratio = f"{per[-1][0] / per[0][0]:.2f} ({per[-1][1] / per[0][1]:.2f})"
        lines.append(f"| {name} | " + " | ".join(f"{wall:.3g} ({cpu:.3g})" for wall, cpu in per) + f" | {ratio} |")
    for what, step in (("prepared", "writing"), ("planned", "planning")):
        peaks = " | ".join(f"{results[size]['peak'][step]:.0f}" for size in sizes)
        lines.append(f"| peak memory of the parent until all is {what}, MiB | {peaks} | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 2, 4])
    parser.add_argument("--plan", type=float, nargs="+", default=[1, 10], help="millions of pairs to plan alone")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--output", type=Path, help="JSON file for all figures")
    parser.add_argument("--pairs", type=int, help=argparse.SUPPRESS)  # one size, in a process of its own
    parser.add_argument("--plan-pairs", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pairs:
        with tempfile.TemporaryDirectory(prefix="preparing-") as folder:
            print(json.dumps(measure(options.pairs, options.workers, Path(folder))))
        return
    if options.plan_pairs:
        print(json.dumps(planning_alone(options.plan_pairs)))
        return
    results = {}
    for size in options.millions:
        results[size] = in_new_process("--pairs", str(int(size * 1e6)), "--workers", str(options.workers))
        print(f"{size:g} million: {sum(results[size]['seconds'].values()):.0f} s", file=sys.stderr, flush=True)
    print(table(results))
    plans = {size: in_new_process("--plan-pairs", str(int(size * 1e6))) for size in options.plan}
    for size, plan in plans.items():
        facts = f"{plan['seconds']:.2f} s ({plan['cpu']:.2f}), {plan['MiB']:.0f} MiB, {plan['batches']:,} batches"
        print(f"planning {size:g} M pairs alone: {facts}")
    if options.output:
        options.output.write_text(json.dumps({"prepare": results, "plan": plans}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
