"""Compare the speed of two checkouts of this project on the same work, in turns.

    git worktree add --detach ../before COMMIT && (cd ../before && python setup.py -q build_ext --inplace)
    python benchmarks/before_after.py --before ../before
    python benchmarks/before_after.py --before ../before --work native serve --rounds 9 --input test.en

| work | one pass |
| --- | --- |
| native | the shipped model translates the lines with the native engine and its own beam |
| greedy | one line at a time, greedily, with the native engine |
| torch | the shipped model in torch, fp32, on an eighth of the lines |
| train | `transduce.train` on names of digits: prepared corpus to run folder, without validation |
| serve | 16 clients request the lines from a server of the shipped model, one a request |

Each checkout runs in a process of its own, selected by PYTHONPATH. Only public names are used, so that distant
commits can be compared. A round is a pass of each, in alternating order; the first round warms up and is not
counted. The ratio is old time divided by new, 1 or more if the new one is as fast: its median over the rounds, by
wall time and by processor time, which is more reliable on a shared machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORK = ("native", "greedy", "torch", "train", "serve")
DIGITS = {
    "en": "zero one two three four five six seven eight nine",
    "de": "null eins zwei drei vier fünf sechs sieben acht neun",
}
TRAINING = (
    "data.tokens=1024 training.steps=60 training.threads=1 training.save_every=1000 validation.every=1000"
    " training.learning_rate.kind=constant model.encoder.layers=2 model.decoder.layers=2"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="the older checkout, its native core built")
    parser.add_argument("--after", type=Path, default=ROOT, help="the newer one; default: this one")
    parser.add_argument("--work", nargs="+", choices=WORK, default=list(WORK))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--lines", type=int, default=160)
    parser.add_argument("--input", type=Path, help="text to translate, a sentence a line; default: names of digits")
    parser.add_argument("--pass", dest="work_of_process", choices=WORK, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work_of_process:
        answer_requests(options.work_of_process, lines_of(options))
        return
    for work in options.work:
        compare(options, work)


def lines_of(options: argparse.Namespace) -> list[str]:
    if options.input:
        return options.input.read_text(encoding="utf-8").split("\n")[: options.lines]
    return [f"My number is {digits(7919 * number % 1_000_000, 'en')}." for number in range(1, options.lines + 1)]


def digits(number: int, language: str) -> str:
    return " ".join(DIGITS[language].split()[int(digit)] for digit in str(number))


def compare(options: argparse.Namespace, work: str) -> None:
    sides = {"before": options.before.resolve(), "after": options.after.resolve()}
    processes = {name: start(options, work, checkout) for name, checkout in sides.items()}
    clock: list[float] = []
    processor: list[float] = []
    for number in range(options.rounds + 1):
        order = list(processes) if number % 2 else list(reversed(processes))
        figures = {name: request(processes[name]) for name in order}
        if number:
            clock.append(figures["before"]["clock"] / figures["after"]["clock"])
            processor.append(figures["before"]["processor"] / figures["after"]["processor"])
    for process in processes.values():
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)
    for name, ratios in (("clock", clock), ("processor", processor)):
        low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
        print(f"{work:7} {name:9} old/new {middle:.3f} (of {len(ratios)} rounds; {low:.3f} to {high:.3f})", flush=True)


def start(options: argparse.Namespace, work: str, checkout: Path) -> subprocess.Popen[str]:
    if not (checkout / "transduce").is_dir():
        raise SystemExit(f"{checkout}: no checkout of transduce")
    command = [sys.executable, __file__, "--before", str(checkout), "--pass", work, "--lines", str(options.lines)]
    command += ["--input", str(options.input.resolve())] if options.input else []
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=checkout
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    if not said or Path(json.loads(said)["package"]).parent.parent != checkout:
        raise SystemExit(f"{checkout}: {work} did not start, or ran another checkout: {said!r}")
    return process


def request(process: subprocess.Popen[str]) -> dict[str, float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("pass\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())  # type: ignore[no-any-return]


def answer_requests(work: str, lines: Sequence[str]) -> None:
    """Serve one checkout: run a pass for each line of standard input and print its times as a line of JSON."""
    import transduce

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the package prints goes to standard error
    with tempfile.TemporaryDirectory() as folder:
        make = {"native": native, "greedy": greedy, "torch": in_torch, "train": training, "serve": serving}[work]
        for one_pass, used in make(lines, Path(folder)):
            print(json.dumps({"package": transduce.__file__}), file=answers, flush=True)
            for _ in sys.stdin:
                clock, processor = time.perf_counter(), used()
                one_pass()
                figures = {"clock": time.perf_counter() - clock, "processor": used() - processor}
                print(json.dumps(figures), file=answers, flush=True)


Passes = Iterator[tuple[Callable[[], Any], Callable[[], float]]]


def own_time() -> float:
    """Processor seconds of this process and of its finished children."""
    both = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


def native(lines: Sequence[str], folder: Path) -> Passes:
    import transduce

    translator = transduce.load(engine="native")
    yield lambda: translator(list(lines), to="de"), own_time


def greedy(lines: Sequence[str], folder: Path) -> Passes:
    import transduce

    translator = transduce.load(engine="native")
    yield lambda: [translator(line, to="de", beam=1) for line in lines], own_time


def in_torch(lines: Sequence[str], folder: Path) -> Passes:
    import transduce

    translator = transduce.load(engine="torch")
    yield lambda: translator(list(lines[: max(1, len(lines) // 8)]), to="de"), own_time


def training(lines: Sequence[str], folder: Path) -> Passes:
    import transduce

    for split, numbers in (("train", range(100_000, 900_000, 289)), ("valid", range(100_017, 900_000, 9973))):
        for language in DIGITS:
            text = "".join(f"{digits(number, language)}\n" for number in numbers)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    sides = (("source", "en"), ("target", "de"))
    files = [f"{split}.{side}={folder}/{split}.{code}" for split in ("train", "valid") for side, code in sides]
    prepare = [sys.executable, "-m", "transduce", "prepare", f"output={folder}/corpus", *files]
    subprocess.run([*prepare, "tokenizer.vocabulary=320"], check=True, stdout=sys.stderr)
    config = transduce.config.load(transduce.Config, "tiny", [f"data.folder={folder}/corpus", *TRAINING.split()])
    number = iter(range(10**9))
    yield lambda: transduce.train(config, folder / f"run{next(number)}"), own_time


def serving(lines: Sequence[str], folder: Path) -> Passes:
    from http_load import Answers, closed_loop
    from http_load import serving as started

    work = [("/v1/translate", {"text": line, "source": "en", "target": "de"}) for line in lines]
    with started([]) as server:

        def one_pass() -> None:
            answers = asyncio.run(closed_loop(server, 16, iter(work), lambda *_: True, Answers()))
            assert answers.statuses == {200: len(work)}, answers.statuses

        yield one_pass, lambda: server.processor


if __name__ == "__main__":
    main()
