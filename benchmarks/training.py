"""Compare our training speed with other toolkits, on the same sentence pairs, in one run.

    python benchmarks/training.py --size base --device cuda --tokens 25000 --output results
    python benchmarks/training.py --size small --device cpu --equal 32 --tokens 2048 --peers-env ENVIRONMENT

Every contender is a process with its model. They take turns, each a pass over all pairs, so that other load on the
machine affects all alike. The first pass of each (compiling, choosing kernels) is reported separately; on a GPU all
make it at once, since compiling uses the cores. Then `transduce train` itself runs on the same pairs, and its own
report of tokens a second is compared with the bare step's. Achieved FLOP/s count useful work (workload.py), never
padding. A peer that is not installed, or not ready in time, is skipped and reported.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from own import our_batches, prepare_corpus, run_loop, settings_of
from peers import PEERS, TITLES
from worker import Job
from workload import SIZES, PaddedBatch, Pairs, fullness, save_batches

HERE = Path(__file__).parent


@dataclass
class Contender:
    """A process with its results, or the reason why it is missing. `seconds` by setting, e.g. "2 bf16"."""

    name: str
    process: subprocess.Popen[str] | None
    missing: str = ""
    log: Path = Path()
    patience: float = 600.0  # seconds for a result
    torch: str = ""
    first: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)  # seconds of all threads together
    memory: int = 0

    def ask(self, line: str) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return _answer(self.process, self.patience, self.log)

    def make_pass(self, setting: str) -> None:
        answer = self.ask(setting)
        if "missing" in answer:  # it has died
            self.missing, self.process = answer["missing"], None
            say(self.said())
            return
        say(f"{TITLES[self.name]}, {setting}: {answer['seconds']:.2f} s")
        self.memory = answer["memory"]
        if setting in self.first:
            self.seconds.setdefault(setting, []).append(answer["seconds"])
            self.cpu.setdefault(setting, []).append(answer["cpu"])
        else:
            self.first[setting] = answer["seconds"]

    def said(self) -> str:
        return f"{TITLES[self.name]}: left out ({self.missing})"

    def end(self) -> None:
        if self.process is not None:
            self.process.communicate("\n")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _answer(process: subprocess.Popen[str], patience: float, log: Path) -> dict[str, Any]:
    assert process.stdout is not None
    overdue = threading.Event()

    def give_up() -> None:
        overdue.set()
        process.kill()

    late = threading.Timer(patience, give_up)
    late.start()
    line = process.stdout.readline()
    late.cancel()
    if line:
        return dict(json.loads(line))
    code, last = process.wait(), [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-6:]
    if overdue.is_set():
        return {"missing": f"no answer in {patience:.0f} s"}
    return {"missing": f"it ended with code {code}: {' / '.join(last)[-500:]}"}


def start(name: str, job: Path, interpreters: Sequence[str], log: Path, patience: float) -> Contender:
    """Start the contender in the first environment that has its packages."""
    missing = ""
    for interpreter in interpreters:
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [interpreter, str(HERE / "worker.py"), name, str(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])},
            )
        answer = _answer(process, patience, log)
        if "ready" in answer:
            return Contender(name, process, log=log, patience=patience, torch=answer["torch"])
        missing = answer["missing"]
        process.wait()
    return Contender(name, None, missing)


# -- the run and what it shows ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One contender at its best setting. `ratio` is the median, over rounds, of its speed against the best peer's.

    `cpu_tokens_per_second` is per second of processor time, which other load affects less, and
    `cpu_ratio` is its ratio to the best peer's: use it on a machine that is not idle.
    """

    name: str
    setting: str
    tokens_per_second: float
    best_tokens_per_second: float
    cpu_tokens_per_second: float
    tera: float
    share: float
    first_tokens_per_second: float
    memory: int
    ratio: float
    cpu_ratio: float
    full: float
    torch: str


def rows_of(contenders: Sequence[Contender], precision: str, facts: Facts) -> list[Row]:
    """A row for each contender in one precision, at its best number of threads; ratios by round."""
    best: dict[str, tuple[str, list[float]]] = {}
    for contender in contenders:
        settings = {key: seconds for key, seconds in contender.seconds.items() if key.endswith(precision)}
        if settings:
            setting = min(settings, key=lambda key: statistics.median(settings[key]))
            best[contender.name] = setting, settings[setting]
    peers = {name: seconds for name, (_, seconds) in best.items() if name != "transduce"}
    fastest = min(peers, key=lambda name: statistics.median(peers[name])) if peers else "transduce"
    cpu = {c.name: statistics.median(c.cpu[best[c.name][0]]) for c in contenders if c.name in best}
    least = min((cpu[name] for name in peers), default=cpu.get("transduce", 0.0))
    rows = []
    for contender in contenders:
        if contender.name not in best:
            continue
        setting, seconds = best[contender.name]
        middle = statistics.median(seconds)
        work = facts.flops / middle
        pairs = zip(best[fastest][1], seconds, strict=True)
        rows.append(
            Row(
                name=contender.name,
                setting=setting,
                tokens_per_second=facts.target_tokens / middle,
                best_tokens_per_second=facts.target_tokens / min(seconds),
                cpu_tokens_per_second=facts.target_tokens / cpu[contender.name],
                tera=work / 1e12,
                share=work / facts.ceilings[setting],
                first_tokens_per_second=facts.target_tokens / contender.first[setting],
                memory=contender.memory,
                ratio=statistics.median(theirs / own for theirs, own in pairs),
                cpu_ratio=least / cpu[contender.name],
                full=facts.full["transduce" if contender.name == "transduce" else "peers"],
                torch=contender.torch,
            )
        )
    return rows


@dataclass(frozen=True)
class Facts:
    """The constants of the measurements."""

    target_tokens: int
    flops: float
    ceilings: dict[str, float]  # FLOP/s by setting
    full: dict[str, float]


def table(rows: Sequence[Row], loop: dict[str, tuple[str, float]]) -> str:
    """Markdown."""
    lines = [
        "| | threads, precision | target tokens/s (median; best) | a second of CPU time | TFLOP/s | share of ceiling"
        " | first pass, tokens/s | peak GB | places full | against the best peer: clock, CPU time |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = (
            TITLES[row.name],
            row.setting.replace(" ", ", "),
            f"{row.tokens_per_second:,.0f}; {row.best_tokens_per_second:,.0f}",
            f"{row.cpu_tokens_per_second:,.0f}",
            f"{row.tera:.3g}",
            f"{row.share:.0%}",
            f"{row.first_tokens_per_second:,.0f}",
            f"{row.memory / 1e9:.1f}",
            f"{row.full:.1%}",
            f"{row.ratio:.2f}, {row.cpu_ratio:.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    for precision, (setting, speed) in loop.items():
        alike = [row for row in rows if row.setting.endswith(precision)]
        bare = next(row.tokens_per_second for row in alike if row.name == "transduce")
        peers = [row.tokens_per_second for row in alike if row.name != "transduce"]
        against = f"{speed / max(peers):.2f}; " if peers else ""
        lines.append(
            f"| `transduce train` | {setting.replace(' ', ', ')} | {speed:,.0f} | | | | | | |"
            f" {against}{speed / bare:.2f} of the bare step |"
        )
    return "\n".join(lines)


def make_jobs(options: argparse.Namespace, pairs: Pairs, folder: Path) -> dict[str, list[PaddedBatch]]:
    """Our batches and the peers', and a file for the processes of each."""
    sizes = SIZES[options.size]
    corpus = prepare_corpus(pairs, sizes, folder)
    ours, room = our_batches(corpus, options.tokens, options.bucket, options.shapes)
    batches = {"transduce": ours, "peers": [*pairs.by_length(options.tokens)]}
    tokens = {name: sum(batch.target_tokens for batch in made) for name, made in batches.items()}
    assert set(tokens.values()) == {pairs.target_tokens}, f"not the same content: {tokens}, {pairs.target_tokens}"
    settings = settings_of(sizes, options.tokens, options.bucket)
    settings += [f"data.shapes={options.shapes}", "training.compile=true"] if options.shapes else []
    settings += options.override
    for name, made in batches.items():
        save_batches(folder / f"{name}.npz", made)
        job = Job(sizes, options.device, str(folder / f"{name}.npz"), tuple(settings), room)
        job.write(folder / f"{name}.json")
    return batches


def take_turns(options: argparse.Namespace, folder: Path) -> tuple[list[Contender], dict[str, float]]:
    """Run all passes of all contenders; also the matmul ceiling in FLOP/s by setting, the best of all rounds."""
    interpreters = [sys.executable, *([str(Path(options.peers_env) / "bin/python")] if options.peers_env else [])]
    jobs = {name: folder / f"{'transduce' if name == 'transduce' else 'peers'}.json" for name in TITLES}
    grid = [f"{threads} {precision}" for precision in options.precision for threads in options.threads]
    ceilings = dict.fromkeys(grid, 0.0)
    one_by_one = ThreadPoolExecutor(1)
    at_once = one_by_one if options.device == "cpu" else ThreadPoolExecutor(len(TITLES) + 1)

    def begin(name: str) -> Contender:
        job = jobs.get(name, jobs["marian"])
        return start(name, job, interpreters, folder / f"log {name}", options.patience)

    scale, *contenders = at_once.map(begin, ("ceiling", "transduce", *options.peers))
    try:
        for round_number in range(options.rounds + 1):
            for setting in grid:
                present = [contender for contender in contenders if not contender.missing]
                turns = present if round_number % 2 else present[::-1]
                passes = one_by_one if round_number else at_once
                list(passes.map(Contender.make_pass, turns, [setting] * len(turns)))
                ceilings[setting] = max(ceilings[setting], scale.ask(setting)["ceiling"])
    finally:
        for contender in (*contenders, scale):
            contender.end()
    return contenders, ceilings


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run everything; return the results for JSON."""
    sizes, mean = SIZES[options.size], options.equal or options.mean
    pairs = Pairs.draw(options.pairs, sizes.vocabulary, mean, seed=1, spread=0.0 if options.equal else 0.45)
    batches, load = make_jobs(options, pairs, folder), os.getloadavg()[0]
    contenders, ceilings = take_turns(options, folder)
    present = [contender for contender in contenders if not contender.missing]
    room = Job.read(folder / "transduce.json").room
    full = {name: fullness(made, room if name == "transduce" else (0, 0)) for name, made in batches.items()}
    facts = Facts(pairs.target_tokens, pairs.flops(sizes), ceilings, full)
    rows = [row for precision in options.precision for row in rows_of(present, precision, facts)]
    say(table(rows, {}))
    loop = {}
    for row in rows if options.loop else ():
        if row.name == "transduce":
            job, steps = Job.read(folder / "transduce.json"), len(batches["transduce"])
            speed = run_loop(folder / "corpus", folder / f"run {row.setting}", job, steps, *row.setting.split())
            loop[row.setting.split()[1]] = row.setting, speed
    return {
        "date": str(date.today()),
        "command": " ".join(["python", "benchmarks/training.py", *sys.argv[1:]]),
        "sizes": asdict(sizes),
        "load": [load, os.getloadavg()[0]],
        "facts": asdict(facts),
        "rows": [asdict(row) for row in rows],
        "rounds": {contender.name: contender.seconds for contender in present},
        "cpu": {contender.name: contender.cpu for contender in present},
        "first": {contender.name: contender.first for contender in present},
        "left_out": [contender.said() for contender in contenders if contender.missing],
        "loop": loop,
        "batches": {name: len(made) for name, made in batches.items()},
    }


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Training speed beside other toolkits, on the same pairs, in one run.")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=2048, help="maximum tokens a side of a batch, padding included")
    parser.add_argument("--pairs", type=int, default=256)
    parser.add_argument("--mean", type=float, default=25.0, help="around which lengths are log-normal")
    parser.add_argument("--equal", type=int, default=0, help="all sentences of this length instead")
    parser.add_argument("--bucket", type=int, default=8, help="data.bucket")
    parser.add_argument("--shapes", type=int, default=-1, help="data.shapes, compiled; 0 = not; else 6 on a GPU")
    parser.add_argument("--rounds", type=int, default=5, help="timed passes of each, taken in turns")
    parser.add_argument("--threads", default="1,2", help="CPU threads to try")
    parser.add_argument("--precision", default="bf16,fp32")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--peers-env", default="", help="a virtual environment with further peers")
    parser.add_argument(
        "--patience", type=float, default=600.0, help="time limit of a pass; slower contenders are skipped"
    )
    parser.add_argument("--no-loop", dest="loop", action="store_false", help="skip `transduce train`")
    parser.add_argument("--output", type=Path, help="folder for training.json and training.md")
    parser.add_argument("override", nargs="*", help="settings of our config, such as training.graphs=false")
    options = parser.parse_args(words)
    for name in ("threads", "precision", "peers"):
        setattr(options, name, [part for part in getattr(options, name).split(",") if part])
    if options.device != "cpu":
        options.threads = ["1"]
    if options.shapes < 0:
        options.shapes = 0 if options.device == "cpu" else 6
    return options


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="transduce-benchmark-") as folder:
        results = measure(options, Path(folder))
    shown = table([Row(**row) for row in results["rows"]], results["loop"])
    print(shown, *results["left_out"], sep="\n")
    ceilings = ", ".join(f"{setting}: {speed / 1e12:.3g}" for setting, speed in results["facts"]["ceilings"].items())
    print(f"\nmatmul ceiling, TFLOP/s: {ceilings}; load before and after: {results['load']}; {results['date']}")
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "training.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
        (options.output / "training.md").write_text(f"{shown}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
