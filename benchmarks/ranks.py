"""Test that training groups survive SIGKILL of a rank: torchrun with gloo, killed again and again.

    python benchmarks/ranks.py --kills 10 --sizes 2 4 --seed 1
    python benchmarks/ranks.py --kills 10 --sizes 2 4 --seed 1 --all

Each group is `torchrun --max-restarts ... -m transduce train`. A random rank, or with `--all` every one, is killed,
half of the times at a random moment of the session, half as soon as it trains; torchrun restarts the group,
which resumes from the last checkpoint. The result is compared with that of an uninterrupted group. Finds processes in
/proc: Linux only.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parent))

import toys
from crashes import ending, make_corpus

from transduce.core.progress import Progress, seconds_as_text

ROOT = Path(__file__).parents[1]
SETTINGS = (
    "training.steps=150 training.report_every=1 training.save_every=7 training.ema=0.9 training.keep_last=3"
    " training.threads=1 validation.every=50 training.average=2"
).split()
LONGEST = 600  # seconds that a group may take from one kill to the next, or to its end


@dataclass
class Survival:
    """Results of the groups of one size; `training`: kills of a rank that had made steps in this session."""

    size: int
    kills: int = 0
    training: int = 0
    groups: int = 0
    ended: int = 0
    identical: int = 0
    restarts: float = 0.0  # seconds from a kill to the next step, summed over kills in training


class TorchGroup:
    """One run of torchrun with `size` ranks."""

    def __init__(self, size: int, corpus: Path, folder: Path, restarts: int, *overrides: str) -> None:
        self.size, self.folder = size, folder
        self.mark = f"{folder}-{os.getpid()}"
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={size}", f"--max-restarts={restarts}"]
        settings = [*toys.latest(*toys.TINY, *SETTINGS, *overrides, f"data.folder={corpus}"), "--output", str(folder)]
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TRANSDUCE_GROUP": self.mark}
        with Path(f"{folder}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *launcher, "-m", "transduce", "train", "tiny", *settings],
                env=environment,
                stdout=log,
                stderr=log,
            )

    def ranks(self) -> dict[int, int]:
        """Process ids of the running ranks, by rank."""
        found: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                variables = dict(part.split(b"=", 1) for part in path.read_bytes().split(b"\0") if b"=" in part)
            except OSError:
                continue  # it has ended, or is another user's
            if variables.get(b"TRANSDUCE_GROUP") == self.mark.encode() and b"RANK" in variables:
                found[int(variables[b"RANK"])] = int(path.parent.name)
        return found

    def step(self) -> int:
        """The last step in the log."""
        try:
            return max((line["step"] for line in toys.reports(self.folder)), default=0)
        except (OSError, ValueError):
            return 0

    def alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> int:
        return self.process.wait(LONGEST)


def strike(
    group: TorchGroup, chance: random.Random, before: dict[int, int], every: bool
) -> tuple[dict[int, int], bool] | None:
    """Kill in the group's next session; return the ranks and whether they trained, or None if the group has ended."""
    started, aimed, wait = time.monotonic(), chance.random() < 0.5, chance.uniform(0, 8)
    alive, first = group.ranks(), -1
    while group.alive():
        if time.monotonic() - started > LONGEST:
            raise TimeoutError(f"the group does not restart; see {group.folder}.log")
        alive = group.ranks()
        if len(alive) == group.size and not set(alive.values()) & set(before.values()):
            first = group.step() if first < 0 else first
            trained = group.step() > first
            if trained if aimed else time.monotonic() - started > wait:
                for rank in alive if every else [chance.randrange(group.size)]:
                    os.kill(alive[rank], signal.SIGKILL)
                return alive, trained
        time.sleep(0.01)
    return None


def kill_ranks(folder: Path, size: int, kills: int, seed: int, every: bool = False) -> Survival:
    """Kill one rank, or every one, of groups of one size, `kills` times in all, and compare the results."""
    chance, tally = random.Random(seed + size), Survival(size)
    folder.mkdir(parents=True)
    corpus = make_corpus(folder)
    calm = TorchGroup(size, corpus, folder / "calm", restarts=0)
    if calm.end():
        raise RuntimeError(Path(f"{calm.folder}.log").read_text())
    wanted = ending(calm.folder)
    with Progress(f"Killing {'all' if every else 'one'} of {size}", kills, "kills") as progress:
        while tally.kills < kills:
            tally.groups += 1
            group = TorchGroup(size, corpus, folder / f"killed-{tally.groups}", restarts=kills)
            before: dict[int, int] = {}
            while tally.kills < kills and (struck := strike(group, chance, before, every)):
                before, trained = struck
                tally.kills += 1
                tally.training += trained
                if trained:
                    tally.restarts += back(group)
                progress.advance()
            code = group.end()
            tally.ended += code == 0
            tally.identical += code == 0 and ending(group.folder) == wanted
    return tally


def back(group: TorchGroup) -> float:
    """Seconds until the group has made another step, or ended."""
    started, now = time.monotonic(), (group.folder / "metrics.jsonl").stat().st_mtime_ns
    while group.alive() and time.monotonic() - started < LONGEST:
        if (group.folder / "metrics.jsonl").stat().st_mtime_ns != now and group.step():
            break
        time.sleep(0.02)
    return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill ranks of training groups; count the groups that recover.")
    parser.add_argument("--kills", type=int, default=10, help="for each size")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="kill every rank at once instead of one")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="transduce-ranks-") as folder:
        for size in options.sizes:
            tally = kill_ranks(Path(folder) / str(size), size, options.kills, options.seed, options.all)
            print(
                f"{size} ranks: {'all' if options.all else 'one'} killed {tally.kills} times in {tally.groups} groups,"
                f" {tally.training} of them while they trained; groups that finished: {tally.ended},"
                f" bit-identical to an uninterrupted one: {tally.identical} of {tally.groups};"
                f" {tally.restarts / max(1, tally.training):.1f} s from a kill to the next step"
            )
    print(f"seed {options.seed}, {seconds_as_text(time.monotonic() - started)}")


if __name__ == "__main__":
    main()
