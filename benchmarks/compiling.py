"""Compare ways of running our training step on a GPU, and peers, on the same pairs in one run of minutes.

    python benchmarks/compiling.py --device cuda --output results --seconds 570
    python benchmarks/compiling.py --variants "compiled;hashed+narrow" --peers "" --bare --pairs 60000 --output results
    python benchmarks/compiling.py --device cpu --size tiny --tokens 512 --pairs 300 --rounds 1 --output /tmp/rehearsal

Each variant is a process with its model. All make their first pass, which compiles, at the same time (so its
seconds include contention); then they take turns, each a pass over all pairs. At the end `transduce train` runs on
the same pairs, reuses the compiled code from the cache, and its own report is compared with the bare step. Results are
appended to variants.jsonl at once; a variant that is not ready in time is skipped and reported.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from own import prepare_corpus, run_loop, settings_of
from worker import Job, ceiling, memory, wait
from workload import SIZES, Pairs, Sizes, save_batches

HERE = Path(__file__).parent
LEARNING_RATE = 1e-4
PROFILED = 12  # steps


@dataclass(frozen=True)
class Variant:
    """`kernel`: our attention kernel for packed tokens; `residual`: our kernels for sums and norms between sublayers.

    `light`: cublasLt selects the matrix products; `combined`: the compiler fuses small kernels. A name of fields
    joined by + is the variant that has them.
    """

    name: str
    compiled: bool = True
    graphs: bool = True
    kernel: bool = True
    residual: bool = True
    packed: bool = True
    light: bool = False
    combined: bool = False

    @classmethod
    def named(cls, name: str) -> Variant:
        known = {variant.name: variant for variant in VARIANTS}
        return known[name] if name in known else cls(name, **dict.fromkeys(name.split("+"), True))


VARIANTS = (
    Variant("compiled"),
    Variant("compiled, no kernel", kernel=False),
    Variant("compiled, residuals by the compiler", residual=False),
    Variant("compiled, no graphs", graphs=False),
    Variant("as written", compiled=False),
    Variant("as written, padded, no graphs", compiled=False, packed=False, graphs=False),
)
PEERS = ("torch", "marian", "torch-compiled")


# -- a variant in its process -----------------------------------------------------------------------------------------


def made(variant: Variant, module: Any) -> Any:
    """Build the step of the variant."""
    import torch
    import torch._inductor.config

    from transduce.kernels import dispatch
    from transduce.training.start import compiled_step

    if not variant.kernel:
        dispatch.LONGEST_ROW = 0
    if not variant.residual:
        dispatch.residual = None  # type: ignore[assignment]
    if variant.light:
        torch.backends.cuda.preferred_blas_library("cublaslt")
    torch._inductor.config.combo_kernels = variant.combined
    return compiled_step(module) if variant.compiled else module


class Ours:
    """Model, batches and one pass over them, with the steps of the training loop."""

    def __init__(self, variant: Variant, job: Job, corpus: str, tokens: int, shapes: int) -> None:
        import torch

        from transduce.core import config as configs
        from transduce.data.batching import Batches
        from transduce.data.corpus import Corpus
        from transduce.experiment import Config
        from transduce.objectives import ObjectiveStep
        from transduce.training.step_runner import EagerRunner, GraphedRunner

        self.device = torch.device(job.device)
        self.config = configs.load(Config, "base", job.settings)
        opened = Corpus.open(corpus)
        torch.manual_seed(1)
        model = self.config.model.build(job.sizes.vocabulary, job.sizes.vocabulary, shared=True).to(self.device)
        self.optimizer = self.config.training.optimizer.build(model.parameters(), model.tables())
        module = made(variant, ObjectiveStep(model, self.config.objective.build())).train()
        graphs = variant.graphs and self.device.type == "cuda"
        self.passes: EagerRunner = (
            GraphedRunner(module, self.device, True, lambda text: print(text, file=sys.stderr))
            if graphs
            else EagerRunner(module, self.device, True)
        )
        stream = Batches(opened.split("train"), opened.tokenizers, tokens, 8, 1, shapes=shapes, packed=variant.packed)
        plan = stream.plan(0)
        self.batches = [stream.make(plan, 0, number).to(self.device) for number in range(len(plan))]
        split = stream.split
        self.full = split.source_lengths.sum() + split.target_lengths.sum() + 2 * len(split)
        self.capacity = len(plan) * sum(stream.few.capacity)

    def make_pass(self, most: int = 1 << 30) -> float:
        """Make one update on each batch, or on so many of them; return the mean loss a token."""
        import torch

        from transduce.training.optimizer import update

        total, count = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        for number, batch in enumerate(self.batches[:most]):
            torch.manual_seed(number)
            self.optimizer.zero_grad(set_to_none=self.passes.drops_gradients)
            loss = self.passes(batch, 0)
            total, count = total + loss.total, count + loss.count
            update(self.optimizer, LEARNING_RATE, loss.count.float(), 0.0)
        return float(total / count)

    def profile(self, path: Path) -> None:
        """Profile a few steps, with and without graphs."""
        import kernels

        from transduce.training.step_runner import EagerRunner

        steps = min(PROFILED, len(self.batches))
        graphed, passes = kernels.traced(lambda: self.make_pass(steps)), self.passes
        self.passes = EagerRunner(passes.module, self.device, True)
        plain = kernels.traced(lambda: self.make_pass(steps), shapes=True)
        self.passes = passes
        path.write_text(kernels.report(steps, graphed, plain), encoding="utf-8")


def serve(words: Sequence[str]) -> None:
    """VARIANT.json JOB.json CORPUS TOKENS SHAPES: run a pass for each line of input, print its result as JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    variant = Variant(**json.loads(Path(words[0]).read_text(encoding="utf-8")))
    started = time.perf_counter()
    ours = Ours(variant, Job.read(Path(words[1])), words[2], int(words[3]), int(words[4]))
    while line := sys.stdin.readline().strip():
        if line.startswith("profile "):
            ours.profile(Path(line.removeprefix("profile ")))
            print(json.dumps({}), file=answers, flush=True)
            continue
        wait(ours.device)
        began = time.perf_counter()
        loss = ours.make_pass()
        wait(ours.device)
        from torch._dynamo.utils import counters

        answer = {
            "seconds": time.perf_counter() - began,
            "since": time.perf_counter() - started,
            "loss": loss,
            "memory": memory(ours.device),
            "batches": len(ours.batches),
            "full": float(ours.full / ours.capacity),
            "breaks": sum(counters["graph_break"].values()),
            "graphs": counters["stats"].get("unique_graphs", 0),
        }
        print(json.dumps(answer), file=answers, flush=True)


# -- taking turns -----------------------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """The environment of our processes: this package and everything else that this process finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}


class Contender:
    """A process and its output."""

    def __init__(self, name: str, command: Sequence[str], log: Path, line: str) -> None:
        self.name, self.line, self.log = name, line, log
        with log.open("wb") as errors:
            self.process: subprocess.Popen[str] | None = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment(),
            )
        self.first: dict[str, Any] = {}
        self.rounds: list[dict[str, Any]] = []
        self.missing = ""

    def tell(self, line: str) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self, deadline: float) -> dict[str, Any]:
        """Its result; a process that is late or has ended is skipped from then on."""
        assert self.process is not None
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.process.stdout, selectors.EVENT_READ)
            if not waiting.select(max(0.0, deadline - time.monotonic())):
                return self.lose(f"not ready after {self.seconds_since_start(deadline)} s")
        line = self.process.stdout.readline()
        if not line:
            return self.lose(f"ended: {self.log.read_text(errors='replace')[-300:]!r}")
        answer: dict[str, Any] = json.loads(line)
        return self.lose(answer["missing"]) if "missing" in answer else answer

    def seconds_since_start(self, deadline: float) -> str:
        return f"{deadline - BEGAN:.0f}"

    def lose(self, why: str) -> dict[str, Any]:
        self.missing = why
        self.end()
        return {}

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


BEGAN = time.monotonic()


@dataclass(frozen=True)
class ResultLog:
    """Write each result to a file and to the screen at once."""

    path: Path | None

    def __call__(self, **values: Any) -> None:
        line = json.dumps({"at": round(time.monotonic() - BEGAN, 1), **values})
        print(line, flush=True)
        if self.path:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")


def started(options: argparse.Namespace, folder: Path, job: Path, peers_job: Path) -> list[Contender]:
    """All requested variants and peers."""
    found = []
    variants = [Variant.named(name) for name in options.variants] or VARIANTS
    for number, variant in enumerate(variants):
        path = folder / f"variant {number}.json"
        path.write_text(json.dumps(asdict(variant)), encoding="utf-8")
        words = [str(path), str(job), str(folder / "corpus"), str(options.tokens), str(options.shapes)]
        found.append(
            Contender(variant.name, [str(HERE / "compiling.py"), "--serve", *words], folder / f"log {number}", "pass")
        )
    for name in options.peers:
        command = [str(HERE / "worker.py"), name, str(peers_job)]
        found.append(Contender(name, command, folder / f"log {name}", "1 bf16"))
    return found


def measure(options: argparse.Namespace, folder: Path, log: ResultLog) -> tuple[dict[str, float], int]:
    """Return tokens a second of the bare step, by variant, and the number of our batches."""
    sizes, deadline = SIZES[options.size], BEGAN + options.seconds
    pairs = Pairs.draw(options.pairs, sizes.vocabulary, 25.0, seed=1)
    corpus = prepare_corpus(pairs, sizes, folder)
    job, peers_job = write_jobs(options, sizes, pairs, folder)
    device = options.device
    import torch

    best = ceiling(torch.device(device), True, 8192 if device == "cuda" else 1024)
    log(corpus=str(corpus.name), pairs=len(pairs), target_tokens=pairs.target_tokens, ceiling_tera=best / 1e12)
    same = subprocess.Popen(
        [sys.executable, str(HERE / "same.py"), device], stdout=subprocess.PIPE, text=True, env=environment()
    )
    contenders = started(options, folder, job, peers_job)
    for contender in contenders:
        if contender.name in PEERS:
            contender.hear(deadline)  # that it is ready
    for contender in contenders:
        if contender.process:
            contender.tell(contender.line)
    ready_by = min(deadline, BEGAN + options.compile_seconds)
    for contender in contenders:
        if contender.process:
            contender.first = contender.hear(ready_by)
        log(name=contender.name, missing=contender.missing, first=contender.first)
    try:
        log(same=same.communicate(timeout=max(1.0, ready_by - time.monotonic()))[0])
    except subprocess.TimeoutExpired:
        same.kill()
        log(same="not ready in time")
    speeds: dict[str, float] = {}

    def speed(seconds: float) -> dict[str, float]:
        work = pairs.flops(sizes) / seconds
        return {"tokens_per_second": pairs.target_tokens / seconds, "tera": work / 1e12, "share": work / best}

    for round_number in range(options.rounds):
        for contender in contenders:
            if contender.process and time.monotonic() < deadline - 10:
                contender.tell(contender.line)
                answer = contender.hear(deadline)
                if answer:
                    contender.rounds.append(answer)
                    log(name=contender.name, round=round_number, **speed(answer["seconds"]), **answer)
    for contender in contenders:
        if contender.rounds:
            seconds = statistics.median(answer["seconds"] for answer in contender.rounds)
            speeds[contender.name] = pairs.target_tokens / seconds
            log(summary=contender.name, **speed(seconds), memory=contender.rounds[-1]["memory"])
    profile(contenders, speeds, options, deadline, log)
    for contender in contenders:
        contender.end()
    return speeds, max([contender.first.get("batches", 0) for contender in contenders], default=0)


def profile(
    contenders: Sequence[Contender],
    speeds: dict[str, float],
    options: argparse.Namespace,
    deadline: float,
    log: ResultLog,
) -> None:
    """Profile the kernels of our first and our fastest variant, to a file each."""
    own = [contender for contender in contenders if contender.name in speeds and contender.name not in PEERS]
    fastest = sorted(own, key=lambda contender: -speeds[contender.name])[:1]
    for contender in {each.name: each for each in (*own[:1], *fastest)}.values():
        if options.output and time.monotonic() < deadline - 15:
            path = options.output / f"profile-{'-'.join(contender.name.replace(',', '').split())}.txt"
            contender.tell(f"profile {path}")
            contender.hear(deadline)
            log(profiled=contender.name, missing=contender.missing)
            print("\n".join(path.read_text(encoding="utf-8").split("\n")[:45]) if path.exists() else "", flush=True)


def write_jobs(options: argparse.Namespace, sizes: Sizes, pairs: Pairs, folder: Path) -> tuple[Path, Path]:
    save_batches(folder / "peers.npz", [*pairs.by_length(options.tokens)])
    settings = tuple(settings_of(sizes, options.tokens, 8))
    for name in ("ours", "peers"):
        Job(sizes, options.device, str(folder / "peers.npz"), settings).write(folder / f"{name}.json")
    return folder / "ours.json", folder / "peers.json"


def real_loop(options: argparse.Namespace, folder: Path, bare: float, steps: int, log: ResultLog) -> None:
    """Run `transduce train`, which finds the variant "compiled" in the cache of compiled code."""
    job = Job.read(folder / "ours.json")
    settings = (*job.settings, "training.compile=true", f"data.shapes={options.shapes}")
    run = folder / "run"
    began = time.monotonic()
    speed = run_loop(folder / "corpus", run, Job(job.sizes, job.device, job.batches, settings), steps, "1", "bf16")
    log(loop_tokens_per_second=speed, of_the_bare_step=speed / bare, seconds_in_all=time.monotonic() - began)


def fitted(options: argparse.Namespace, folder: Path, log: ResultLog) -> None:
    """The batch size that `data.tokens=0` finds here."""
    job = Job.read(folder / "ours.json")
    settings = [*job.settings, "data.tokens=0", f"data.folder={folder / 'corpus'}", "training.steps=3"]
    settings += ["training.precision=bf16", "training.compile=false", "training.average=0", "training.device=cuda"]
    command = [sys.executable, "-m", "transduce", "train", "base", *settings, "--output", str(folder / "fitted")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=120)
    lines = [line for line in done.stderr.split("\n") if line.startswith("data.tokens")]
    log(fitted=lines or done.stderr[-600:], code=done.returncode)


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Ways of compiling our training step, side by side on a GPU.")
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=25000)
    parser.add_argument("--pairs", type=int, default=30000)
    parser.add_argument("--shapes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=570, help="time limit for everything")
    parser.add_argument("--compile-seconds", type=float, default=330, help="time limit for all first passes")
    parser.add_argument("--variants", default="", help="names, separated by semicolons; default all")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--bare", action="store_true", help="skip `transduce train` at the end")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(words)
    options.variants = [name for name in options.variants.split(";") if name]
    options.peers = [name for name in options.peers.split(",") if name]
    return options


def attempt(what: Callable[[], None], log: ResultLog, name: str) -> None:
    try:
        what()
    except (SystemExit, OSError, ValueError, subprocess.SubprocessError, KeyError) as error:
        log(failed=name, reason=str(error)[-1500:])


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2:])
        return
    options = arguments(sys.argv[1:])
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
    log = ResultLog(options.output / "variants.jsonl" if options.output else None)
    with tempfile.TemporaryDirectory(prefix="transduce-benchmark-") as temporary:
        folder = Path(temporary)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "compiled"))
        speeds, steps = measure(options, folder, log)
        bare = speeds.get("compiled", float("nan"))
        if steps and not options.bare and time.monotonic() < BEGAN + options.seconds - 60:
            attempt(lambda: real_loop(options, folder, bare, steps, log), log, "loop")
        if options.device == "cuda" and not options.bare and time.monotonic() < BEGAN + options.seconds - 40:
            attempt(lambda: fitted(options, folder, log), log, "fitted")
    for name, speed in sorted(speeds.items(), key=lambda item: -item[1]):
        print(f"{name:30} {speed:12,.0f} target tokens/s")


if __name__ == "__main__":
    main()
