"""Open thousands of damaged model folders: each must give a translation or an error message, never a crash.

    python benchmarks/hostile_folders.py --folders 20000 --workers 2

Folders of a converted model (int8 and float) and of a run are damaged in one of the ways of hostile_damage.py, most
of them with corrected hashes, opened by the native engine and by torch, and used to translate. Many are
tried in one worker process. A worker that dies or hangs is replaced, and its folder is counted. Memory is the peak of a
folder above the worker's memory before it, after the undamaged folder has been opened by both engines.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

from hostile_damage import DAMAGES, Case, good_folders

import transduce
from transduce.core.errors import UserError

SPARE = 16 << 20  # bytes above twice the file that a case may take: pages that an allocator keeps
TEXTS = ["one two", ""]
HANGS = 100.0  # processor seconds without output from a worker: others may use the machine too


@dataclass
class Tally:
    """Results by folder."""

    folders: int = 0
    opened: Counter[str] = field(default_factory=Counter)  # that translated nevertheless, by engine
    refused: Counter[str] = field(default_factory=Counter)
    tracebacks: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    greedy: list[str] = field(default_factory=list)  # that used more memory than twice their files
    most: float = 0.0  # bytes above the memory before, beyond twice the file

    @property
    def clean(self) -> bool:
        return not (self.tracebacks or self.crashes or self.greedy)


def memory(name: str) -> int:
    """VmRSS or VmHWM of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    return 0


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def size_of(folder: Path) -> int:
    """Disk space of a folder's files: almost none for a sparse one."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def use(folder: Path, engine: str) -> None:
    """Open and translate, as the command line does."""
    translator = transduce.load(folder, "cpu", engine=engine)
    for translation in translator.translate(TEXTS):
        assert isinstance(translation.text, str)


def attempt(folder: Path, engine: str) -> tuple[str, str]:
    """Result of a folder: opened, refused or a traceback, and its text."""
    try:
        use(folder, engine)
    except UserError as error:
        return "refused", str(error)[:300]
    except Exception:
        return "traceback", traceback.format_exc()[-2000:]
    return "opened", ""


def work(base: Path, first: int, last: int) -> None:
    """Try cases `first` to `last`, with a line of JSON before and after each."""
    warnings.simplefilter("ignore")
    place = base / f"worker-{os.getpid()}"
    for kind in ("int8", "float", "run"):
        for engine in ("native", "torch") if kind != "run" else ("torch",):
            use(base / kind, engine)
    for number in range(first, last):
        case = Case.drawn(number, base, place)
        print(json.dumps({"begin": number, "what": case.what}), flush=True)
        size, results, before = size_of(case.folder), {}, memory("VmRSS")
        forget_peak()
        for engine in case.engines:
            results[engine] = attempt(case.folder, engine)
        above = memory("VmHWM") - before - 2 * size
        print(json.dumps({"end": number, "results": results, "above": above}), flush=True)
        shutil.rmtree(place)


class Worker:
    """A process that tries folders; after a crash it is restarted with the next folder."""

    def __init__(self, base: Path, first: int, last: int) -> None:
        self.base, self.next, self.last = base, first, last
        self.start()

    def start(self) -> None:
        words = [sys.executable, __file__, "--work", str(self.base), str(self.next), str(self.last)]
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=self.errors)
        self.what, self.heard = "", 0.0

    def used(self) -> float:
        """Seconds of processor time of the process so far."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return self.heard
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def note(self, kind: list[str], text: str) -> None:
        """Count a failure, and print it at once."""
        kind.append(text)
        print(text, file=sys.stderr, flush=True)

    def hear(self, line: bytes, tally: Tally) -> None:
        record: dict[str, Any] = json.loads(line)
        self.heard = self.used()
        if "begin" in record:
            self.what = f"folder {record['begin']} ({record['what']})"
            return
        self.next = record["end"] + 1
        tally.folders += 1
        tally.most = max(tally.most, record["above"])
        if record["above"] > SPARE:
            self.note(tally.greedy, f"{self.what}: {record['above'] >> 20} MB above twice its files")
        for engine, (outcome, text) in record["results"].items():
            if outcome == "traceback":
                self.note(tally.tracebacks, f"{self.what}, {engine}:\n{text}")
            else:
                getattr(tally, outcome)[engine] += 1
        self.what = ""

    def died(self, tally: Tally) -> bool:
        """Record why a process ended early; return whether another continues."""
        code = self.process.wait()
        if self.next >= self.last:
            return False
        self.errors.seek(0)
        self.note(tally.crashes, f"{self.what or 'between folders'}: exit {code}; {self.errors.read()[-500:]!r}")
        tally.folders += 1
        self.next = max(self.next, int(self.what.split()[1])) + 1 if self.what else self.next + 1
        if self.next < self.last:
            self.start()
            return True
        return False


def run(base: Path, folders: int, workers: int, first: int = 0) -> Tally:
    """Try so many folders, in several processes."""
    tally, chooser = Tally(), selectors.DefaultSelector()
    bounds = [first + folders * i // workers for i in range(workers + 1)]
    for begin, end in pairwise(bounds):
        worker = Worker(base, begin, end)
        chooser.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
    last_print = time.monotonic()
    while chooser.get_map():
        for key, _ in chooser.select(timeout=1.0):
            worker = key.data
            line = key.fileobj.readline()  # type: ignore[union-attr]
            if line:
                worker.hear(line, tally)
                continue
            chooser.unregister(key.fileobj)
            if worker.died(tally):
                chooser.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
        for key in list(chooser.get_map().values()):
            if key.data.used() - key.data.heard > HANGS:
                key.data.process.send_signal(signal.SIGKILL)
        if time.monotonic() - last_print > 60:
            last_print = time.monotonic()
            print(summary(tally).splitlines()[0], file=sys.stderr, flush=True)
    return tally


def summary(tally: Tally) -> str:
    first = (
        f"{tally.folders:,} folders: opened {dict(tally.opened)}, refused {dict(tally.refused)};"
        f" {len(tally.tracebacks)} tracebacks, {len(tally.crashes)} crashes or hangs, {len(tally.greedy)} took more"
        f" than twice their files + {SPARE >> 20} MB (most: twice the files {tally.most / 2**20:+.1f} MB)"
    )
    shown = [*tally.crashes[:5], *tally.greedy[:5], *tally.tracebacks[:10]]
    return "\n".join([first, *shown])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="number of the first case: each is drawn from its number")
    parser.add_argument("--width", type=int, default=32, help="d_model of the model that is damaged")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(Path(given.work[0]), int(given.work[1]), int(given.work[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        good_folders(base, given.width)
        sizes = ", ".join(f"{kind} {size_of(base / kind) >> 10:,} KiB" for kind in ("int8", "float", "run"))
        began = time.monotonic()
        tally = run(base, given.folders, given.workers, given.first)
        used = time.monotonic() - began
    counts = Counter(random.Random(number).choice(DAMAGES).__name__ for number in range(given.folders))
    print(f"model folders of {sizes}; {len(counts)} kinds of damage; {used:.0f} s")
    print(summary(tally))
    sys.exit(not tally.clean)


if __name__ == "__main__":
    main()
