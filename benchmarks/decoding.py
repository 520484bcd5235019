"""Compare decoding on a CPU: native engine, CTranslate2 (int8), Hugging Face (fp32); same weights and sentences.

    python benchmarks/decoding.py --peers ctranslate2 huggingface --peer-python ENVIRONMENT/bin/python
    python benchmarks/decoding.py --run runs/mine --input test.en --references test.de --peers ctranslate2 huggingface

The first command uses random base and small models, the second a trained one with natural sentence ends and BLEU. Each
system runs in a process of its own. Random weights never end a sentence, so random models write exactly 30 tokens.
Peers run with several thread settings and the best is taken. Compare wall time on an idle machine, and tokens per
second of processor time, one thread each, on a shared one. The table has both; every ratio is within one run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workload import BOS, EOS, PAD, SIZES, UNK

FORCED = 30
Tokens = list[int]


@dataclass(frozen=True)
class Setting:
    """Beam and batch size: a beam of 1 is greedy decoding; a batch of 0 is the whole file in one call."""

    beam: int
    batch: int

    @property
    def name(self) -> str:
        return (
            f"{'greedy' if self.beam == 1 else f'beam {self.beam}'}, {f'batch {self.batch}' if self.batch else 'file'}"
        )


@dataclass(frozen=True)
class Job:
    """The work of a child process."""

    system: str  # native, ctranslate2 or huggingface
    model: str
    sources: str  # a JSON file of token lists
    setting: Setting
    threads: tuple[int, int]  # batches at a time, threads for each; native takes their product
    forced: int  # tokens to write, or 0 for natural ends
    repeats: int


@dataclass(frozen=True)
class Outcome:
    """Its result. Speeds are target tokens a second, of the best repeat."""

    wall: float
    processor: float
    p50: float  # milliseconds a call
    p95: float
    start: float  # seconds until the first sentence is translated
    megabytes: float  # at the peak
    written: list[Tokens]


# -- children ---------------------------------------------------------------------------------------------------------


def translate_native(job: Job) -> Callable[[Sequence[Tokens]], list[Tokens]]:
    from transduce.engines.native.engine import NativeEngine
    from transduce.search.constraints import UNCONSTRAINED
    from transduce.search.settings import Beam, Greedy, Limits
    from transduce.text.vocabulary import Symbols

    symbols = Symbols(PAD, BOS, EOS, UNK, (PAD, UNK, BOS))
    engine = NativeEngine(Path(job.model), symbols, symbols, job.threads[0] * job.threads[1])
    limits = Limits(longest=256, longest_extra=256)  # as peers get them
    if job.forced:
        limits = Limits(longest=job.forced, longest_extra=job.forced, shortest=job.forced - 1, forbid=(EOS,))
    search = Greedy(limits) if job.setting.beam == 1 else Beam(job.setting.beam, limits=limits)

    def run(batch: Sequence[Tokens]) -> list[Tokens]:
        found = engine.search(batch, search, [UNCONSTRAINED] * len(batch), [0] * len(batch))
        return [list(own[0].tokens) for own in found]

    return run


def translate_ctranslate2(job: Job) -> Callable[[Sequence[Tokens]], list[Tokens]]:
    import ctranslate2  # type: ignore[import-not-found]

    inter, intra = job.threads
    translator = ctranslate2.Translator(job.model, inter_threads=inter, intra_threads=intra, compute_type="int8")
    share = 32 if not job.setting.batch else max(1, job.setting.batch // inter)
    lengths = {"max_decoding_length": job.forced or 256, "min_decoding_length": job.forced or 1}

    def run(batch: Sequence[Tokens]) -> list[Tokens]:
        texts = [[f"t{token}" for token in tokens] for tokens in batch]
        found = translator.translate_batch(
            texts, beam_size=job.setting.beam, max_batch_size=share, length_penalty=0.6, disable_unk=True, **lengths
        )
        return [[int(word[1:]) for word in one.hypotheses[0] if word.startswith("t")] for one in found]

    return run


def translate_huggingface(job: Job) -> Callable[[Sequence[Tokens]], list[Tokens]]:
    import torch
    from transformers import MarianMTModel

    torch.set_num_threads(job.threads[1])
    model: Any = MarianMTModel.from_pretrained(job.model).eval()
    lengths = {"min_new_tokens": job.forced, "max_new_tokens": job.forced or 256}

    def generate(batch: Sequence[Tokens]) -> Iterator[Tokens]:
        width = max(map(len, batch)) + 1
        rows = torch.tensor([[*tokens, EOS] + [PAD] * (width - 1 - len(tokens)) for tokens in batch])
        found = model.generate(
            rows,
            attention_mask=(rows != PAD).long(),
            num_beams=job.setting.beam,
            do_sample=False,
            length_penalty=0.6,
            **lengths,
        )
        for row in found[:, 1:].tolist():
            yield row[: row.index(EOS)] if EOS in row else row

    def run(batch: Sequence[Tokens]) -> list[Tokens]:
        order = sorted(range(len(batch)), key=lambda number: len(batch[number]))
        shares = [order[i : i + 32] for i in range(0, len(order), 32)]
        written: dict[int, Tokens] = {}
        with torch.inference_mode():
            for share in shares:
                written |= zip(share, generate([batch[number] for number in share]), strict=True)
        return [written[number] for number in range(len(batch))]

    return run


SYSTEMS = {"native": translate_native, "ctranslate2": translate_ctranslate2, "huggingface": translate_huggingface}
PEERS = {"ctranslate2": "CTranslate2", "huggingface": "Hugging Face"}


def peak_megabytes() -> float:
    """Peak memory of this process alone: getrusage starts with the parent's."""
    lines = Path("/proc/self/status").read_text().split("\n")
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def child(job: Job) -> Outcome:
    begun = time.perf_counter()
    run = SYSTEMS[job.system](job)
    sources: list[Tokens] = json.loads(Path(job.sources).read_text())
    run(sources[:1])
    start = time.perf_counter() - begun
    size = job.setting.batch or len(sources)
    ordered = sorted(sources, key=len) if job.setting.batch else sources
    batches = [ordered[i : i + size] for i in range(0, len(ordered), size)]
    walls, processors, calls, written = [], [], [], []
    for _ in range(job.repeats):
        before, written = (time.perf_counter(), time.process_time()), []
        for batch in batches:
            one = time.perf_counter()
            written += run(batch)
            calls.append(1000 * (time.perf_counter() - one))
        walls.append(time.perf_counter() - before[0])
        processors.append(time.process_time() - before[1])
    tokens = sum(len(tokens) + (0 if job.forced else 1) for tokens in written)
    calls.sort()
    p95 = calls[min(len(calls) - 1, int(0.95 * len(calls)))]
    return Outcome(
        tokens / min(walls), tokens / min(processors), statistics.median(calls), p95, start, peak_megabytes(), written
    )


# -- the parent -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contest:
    """One model for each system, the file of sources, and for BLEU references and a detokenizer."""

    models: dict[str, Path]
    sources: Path
    references: tuple[str, ...] = ()
    detokenize: Callable[[Tokens], str] = str

    def megabytes(self, system: str) -> float:
        """Size of its weights and settings on disk."""
        path = self.models[system]
        files = path.rglob("*") if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files if file.is_file()) / 1e6

    def bleu(self, written: list[Tokens], batch: int) -> str:
        """Score a child's output with sacreBLEU: with batches, in the order of its sources' lengths."""
        if not self.references:
            return ""
        import sacrebleu

        lengths = [len(tokens) for tokens in json.loads(self.sources.read_text())]
        order = sorted(range(len(lengths)), key=lambda number: lengths[number]) if batch else range(len(lengths))
        texts = [self.detokenize(tokens) for tokens in written]
        return f"{sacrebleu.corpus_bleu(texts, [[self.references[number] for number in order]]).score:.2f}"


def write_models(config: Any, model: Any, stem: Path, peers: Sequence[str]) -> dict[str, Path]:
    """Write the weights of one model in each system's format."""
    from transduce.engines.native.lowering import lower
    from transduce.engines.native.weight_file import write

    models = {system: stem.with_name(f"{stem.name}.{system}") for system in ("native", *peers)}
    write(models["native"], lower(config, model, quantize=True))
    if "ctranslate2" in peers:
        from ctranslate2_model import write_ctranslate2

        write_ctranslate2(config, model, models["ctranslate2"], "int8")
    if "huggingface" in peers:
        from huggingface_model import write_huggingface

        write_huggingface(config, model, models["huggingface"])
    return models


def made_up(name: str, folder: Path, sentences: int, peers: Sequence[str] = ()) -> Contest:
    """Make a model with random weights, and sources of 5 to 40 tokens."""
    import torch

    from transduce.model.attention import Attention
    from transduce.model.seq2seq import Model
    from transduce.model.transformer import TransformerDecoder, TransformerEncoder

    sizes = SIZES[name]
    torch.manual_seed(1)
    stack: dict[str, Any] = {"layers": sizes.layers, "attention": Attention(sizes.heads), "d_ff": sizes.d_ff}
    config = Model(sizes.d_model, 0.0, encoder=TransformerEncoder(**stack), decoder=TransformerDecoder(**stack))
    model = config.build(sizes.vocabulary, sizes.vocabulary, shared=True).eval()
    models = write_models(config, model, folder / name, peers)
    draw = random.Random(1)
    texts = [[draw.randrange(4, sizes.vocabulary) for _ in range(draw.randint(5, 40))] for _ in range(sentences)]
    (folder / f"{name}.json").write_text(json.dumps(texts))
    return Contest(models, folder / f"{name}.json")


def trained(run: Path, text: Path, references: Path | None, folder: Path, peers: Sequence[str]) -> Contest:
    """Load a run folder and lines of text, split by the run's own tokenizer."""
    from transduce.training.run_folder import open_model

    config, tokenizers, model, longest = open_model(run, trust=False)
    models = write_models(config.model, model, folder / "run", peers)
    texts = tokenizers.source.encode(read_lines(text))
    correct = read_lines(references) if references else [""] * len(texts)
    if len(correct) != len(texts):
        raise SystemExit(f"{references}: has {len(correct)} lines, and {text} has {len(texts)}")
    kept = [(tokens[:longest], line) for tokens, line in zip(texts, correct, strict=True) if tokens]
    (folder / "run.json").write_text(json.dumps([tokens for tokens, _ in kept]))
    correct_texts = tuple(line for _, line in kept) if references else ()
    return Contest(models, folder / "run.json", correct_texts, tokenizers.target.decode)


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def spawn(job: Job, python: str) -> Outcome:
    """Run the job in a process of its own."""
    command = [python, __file__, "--child", json.dumps(asdict(job))]
    root = str(Path(__file__).parents[1])
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}, check=False)
    if done.returncode:
        raise SystemExit(f"{job.system} {job.setting.name}: {done.stderr}")
    return Outcome(**json.loads(done.stdout.split("\n")[-2]))


def lines(
    contest: Contest, settings: Sequence[Setting], threads: Sequence[tuple[int, int]], arguments: Any
) -> Iterator[str]:
    """Print a table row for each setting and peer: ours, the peer's best, and the ratios."""
    forced = 0 if arguments.run else FORCED
    for setting in settings:

        def outcome(system: str, threads: tuple[int, int], setting: Setting = setting) -> Outcome:
            model = str(contest.models[system])
            job = Job(system, model, str(contest.sources), setting, threads, forced, arguments.repeats)
            return spawn(job, sys.executable if system == "native" else arguments.peer_python)

        cores = max(inter * intra for inter, intra in threads)
        ours, alone = outcome("native", (1, cores)), outcome("native", (1, 1))
        for peer in arguments.peers:
            own_threads = [own for own in threads if peer == "ctranslate2" or own[0] == 1]
            theirs = {own: outcome(peer, own) for own in own_threads}
            best = max(theirs, key=lambda own: theirs[own].wall)
            best_alone = theirs.get((1, 1), theirs[best])
            same = sum(a == b for a, b in zip(ours.written, theirs[best].written, strict=True)) / len(ours.written)
            yield (
                f"| {setting.name} | {ours.wall:,.0f} | {PEERS[peer]} | {theirs[best].wall:,.0f} ({best[0]}x{best[1]})"
                f" | **{ours.wall / theirs[best].wall:.2f}** | {alone.processor / best_alone.processor:.2f}"
                f" | {ours.p50:.1f} / {ours.p95:.1f} | {theirs[best].p50:.1f} / {theirs[best].p95:.1f}"
                f" | {ours.megabytes:.0f} / {theirs[best].megabytes:.0f}"
                f" | {ours.start:.2f} / {theirs[best].start:.2f}"
                f" | {contest.megabytes('native'):.1f} / {contest.megabytes(peer):.1f}"
                f" | {contest.bleu(ours.written, setting.batch)} / {contest.bleu(theirs[best].written, setting.batch)}"
                f" | {100 * same:.0f} % |"
            )


HEADER = """
| {name} | native, tokens/s | peer | its | ratio | of CPU time, 1 thread | ms p50/p95 | peer's | memory MB | start s | size MB | BLEU | same |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""  # noqa: E501


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--models", nargs="+", default=["base", "small"], choices=list(SIZES))
    parser.add_argument("--run", type=Path, help="a run folder instead of random models")
    parser.add_argument("--input", type=Path, help="lines to translate with it")
    parser.add_argument("--references", type=Path, help="their translations, for sacreBLEU")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--peer-python", default=sys.executable, help="a Python interpreter with the peers")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 0])
    parser.add_argument("--threads", nargs="+", default=["1x1", "2x1", "1x2"], help="threads of peers: inter x intra")
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.child:
        given = json.loads(arguments.child)
        job = Job(**{**given, "setting": Setting(**given["setting"]), "threads": tuple(given["threads"])})
        print(json.dumps(asdict(child(job))))
        return
    if bool(arguments.run) != bool(arguments.input):
        parser.error("--run and --input go together: a trained model, and the lines it translates")
    if arguments.references and not arguments.run:
        parser.error("--references are for a trained model: give --run and --input too")
    settings = [Setting(beam, batch) for batch in arguments.batches for beam in arguments.beams]
    threads = [(int(a), int(b)) for a, b in (word.split("x") for word in arguments.threads)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for which in ["run"] if arguments.run else arguments.models:
            contest = (
                trained(arguments.run, arguments.input, arguments.references, folder, arguments.peers)
                if arguments.run
                else made_up(which, folder, arguments.sentences, arguments.peers)
            )
            print(HEADER.format(name=which), flush=True)
            for line in lines(contest, settings, threads, arguments):
                print(line, flush=True)


if __name__ == "__main__":
    main()
