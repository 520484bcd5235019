"""Test crash safety of runs: SIGKILL at random moments, and single damaged bits in checkpoints.

    python benchmarks/crashes.py --kills 20 --flips 1000 --seed 1

Each session is `transduce train` in a process of its own, forked from one that has torch loaded. Every other
kill comes at a uniformly random moment; the others wait from there for the next save and happen during it. A killed
run is restarted until it ends, and its result is compared with that of an uninterrupted run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # for the children: more threads only make models this small slower
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import toys

from transduce.core.durable import is_temporary
from transduce.core.progress import Progress, seconds_as_text
from transduce.training.checkpoint import newest_good, step_folders

SETTINGS = (
    "training.steps=40 training.report_every=3 training.ema=0.9 training.keep_last=3 training.threads=1"
    " training.keep_best=2 training.average=2 training.average_of=best validation.every=8 validation.metric=chrf"
).split()
SAVE_EVERY = (1, 3)  # the end is the same whatever it is
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["transduce.cli", "transduce.training.loop", "torch._dynamo"])  # all a life imports


@dataclass
class Kills:
    """Results of the kills: those `inside` a save left a partly written file."""

    kills: int = 0
    inside: int = 0
    runs: int = 0
    unusable: int = 0
    identical: int = 0


@dataclass
class Damages:
    """Results of the damages: each must be detected, and the checkpoint before it used."""

    flips: int = 0
    truncations: int = 0
    detected: int = 0
    fallbacks: int = 0
    resumed: int = 0
    identical: int = 0


def make_corpus(folder: Path) -> Path:
    """A corpus of three or four batches an epoch."""
    pairs = toys.reversals(70)
    return toys.corpus(folder, pairs[:60], pairs[60:], "bpe", 30)


class Trainer:
    """Start sessions of runs on one corpus, and know the result of an uninterrupted one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.corpus = make_corpus(folder)
        self.reference = folder / "reference"
        self.live(self.reference, save_every=1)  # the first session also warms the disk cache
        self.end = ending(self.reference)
        started = time.monotonic()
        self.live(folder / "timed", save_every=1)
        self.seconds = time.monotonic() - started

    def start(self, folder: Path, save_every: int) -> BaseProcess:
        """Start one session of the run in `folder`."""
        own = (f"data.folder={self.corpus}", f"training.save_every={save_every}")
        arguments = ["tiny", *toys.latest(*toys.TINY, *SETTINGS, *own), "--output", str(folder)]
        process = _FORKS.Process(target=_train, args=(arguments, f"{folder}.log"))
        process.start()
        return process

    def live(self, folder: Path, save_every: int) -> int | None:
        """Run one uninterrupted session; return its exit code."""
        process = self.start(folder, save_every)
        process.join()
        return process.exitcode


def _train(arguments: list[str], log: str) -> None:
    """Run `transduce train`; append its output to a file."""
    from transduce.__main__ import main

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    sys.argv = ["transduce", "train", *arguments]
    main()


def ending(folder: Path) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """What two equal runs share: the bytes of every tensor, and the logged metrics."""
    kept = step_folders(folder)
    files = [folder / "model.safetensors", *sorted(kept[max(kept)].glob("*.safetensors"))]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}, toys.untimed(folder)


def kill_runs(trainer: Trainer, kills: int, seed: int) -> Kills:
    """Kill runs, `kills` times in all, restart each until it ends, and compare the results."""
    chance = random.Random(seed)
    tally = Kills()
    with Progress("Killing", kills, "kills") as progress:
        while tally.kills < kills:
            tally.runs += 1
            folder = trainer.folder / f"killed-{tally.runs}"
            save_every = SAVE_EVERY[tally.runs % len(SAVE_EVERY)]
            code: int | None = None
            while code is None and tally.kills < kills:
                process = trainer.start(folder, save_every)
                code = _strike(process, folder, chance.uniform(0, trainer.seconds), aimed=tally.kills % 2 == 0)
                if code is None:
                    tally.kills += 1
                    tally.inside += any(is_temporary(path) for path in folder.rglob("*"))
                    progress.advance()
            if code is None:
                code = trainer.live(folder, save_every)
            tally.unusable += code != 0
            tally.identical += code == 0 and ending(folder) == trainer.end
    return tally


def _strike(process: BaseProcess, folder: Path, wait: float, aimed: bool) -> int | None:
    """SIGKILL the process after so many seconds, or inside its next save after that; its exit code if it was faster."""
    process.join(wait)
    while aimed and process.is_alive() and not any(map(is_temporary, (folder / "checkpoints").glob("step-*"))):
        time.sleep(0.0005)
    process.kill()
    process.join()
    return None if process.exitcode == -9 else process.exitcode


def damage_checkpoints(trainer: Trainer, count: int, seed: int, resumes: int = 5) -> Damages:
    """Flip a bit of, or truncate, files of the newest checkpoint, one at a time; sometimes resume training."""
    chance = random.Random(seed)
    tally = Damages()
    folder = trainer.folder / "damaged"
    shutil.copytree(trainer.reference, folder)
    kept = step_folders(folder)
    before, newest = sorted(kept)[-2:]
    files = sorted(kept[newest].iterdir())
    with Progress("Damaging", count, "files") as progress:
        for number in range(count):
            file = files[number % len(files)]
            content = bytearray(file.read_bytes())
            if number % 4:
                tally.flips += 1
                content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            else:
                tally.truncations += 1
                content = content[: chance.randrange(len(content))]
            good = file.read_bytes()
            file.write_bytes(content)
            found = newest_good(folder)
            assert found is not None, "the checkpoint before is intact"
            tally.detected += found.step != newest
            tally.fallbacks += found.step == before and found.notes[0].startswith(f"{kept[newest].name}: {file.name}")
            if number < resumes:
                tally.resumed += 1
                tally.identical += trainer.live(folder, save_every=1) == 0 and ending(folder) == trainer.end
            file.write_bytes(good)
            progress.advance()
    return tally


def main() -> None:
    """Run both tests and print the results."""
    parser = argparse.ArgumentParser(description="Kill training runs and damage their checkpoints; count survivors.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--flips", type=int, default=1000, help="damages in all, a quarter of them truncations")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="transduce-crashes-") as folder:
        trainer = Trainer(Path(folder))
        kills = kill_runs(trainer, options.kills, options.seed)
        damages = damage_checkpoints(trainer, options.flips, options.seed)
    print(
        f"kills: {kills.kills} in {kills.runs} runs, {kills.inside} of them inside a save;"
        f" unusable runs: {kills.unusable}; runs that ended bit-identical: {kills.identical} of {kills.runs}\n"
        f"damages: {damages.flips} bits flipped, {damages.truncations} files cut; detected: {damages.detected},"
        f" fell back to the checkpoint before: {damages.fallbacks};"
        f" resumed bit-identical: {damages.identical} of {damages.resumed}\n"
        f"seed {options.seed}, {seconds_as_text(time.monotonic() - started)}"
    )


if __name__ == "__main__":
    main()
