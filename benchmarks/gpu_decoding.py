"""Compare decoding on a GPU in one run: static KV cache with graphs, eager decoding, Hugging Face's generate.

    python benchmarks/gpu_decoding.py --output results
    python benchmarks/gpu_decoding.py --output results --run runs/mine --input test.en --references test.de

A base-sized model with random weights in bf16, the same for all, as sources are, exactly 30 tokens out, greedy and beam
4, batches of 1, 64 and 512; with --run also a trained one, with natural ends and BLEU. First graphs must find
what eager decoding finds; then come the most important figures. Each is written to the output folder at once
(table.md too), failures are recorded, and parts after the deadline are skipped.
`--size tiny --device cpu` tries the script itself.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from gpu_book import MADE_UP, Book, forget_peak, peak_megabytes, tables, timed

from transduce.engines.torch.engine import TorchEngine, with_precision
from transduce.kernels import dispatch
from transduce.model.attention import Attention
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.search.constraints import UNCONSTRAINED
from transduce.search.settings import Beam, Greedy, Limits
from transduce.text.vocabulary import Symbols

SYMBOLS = Symbols(pad=0, bos=2, eos=3, unk=1, never=(0, 1, 2))
OUT = 30  # tokens


@dataclass(frozen=True)
class Size:
    """A model, and the batches to time."""

    d_model: int
    layers: int
    heads: int
    d_ff: int
    vocabulary: int
    batches: tuple[int, ...]
    file: int  # sentences of the test with a whole file
    checked: int  # sentences whose hypotheses are compared

    @property
    def config(self) -> Model:
        sizes: dict[str, Any] = {"layers": self.layers, "attention": Attention(self.heads), "d_ff": self.d_ff}
        return Model(self.d_model, 0.1, "all", TransformerEncoder(**sizes), TransformerDecoder(**sizes))

    def build(self, seed: int = 1) -> Any:
        torch.manual_seed(seed)
        return self.config.build(self.vocabulary, self.vocabulary, shared=True).requires_grad_(False).eval()

    def sources(self, count: int, seed: int) -> list[list[int]]:
        """Sources of 5 to 40 tokens, one of them of 40, so that every set has the same shape."""
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(5, 40, (count,), generator=generator).tolist()
        lengths[0] = 30 if count == 1 else 39
        return [torch.randint(4, self.vocabulary, (length,), generator=generator).tolist() for length in lengths]


SIZES = {
    "base": Size(512, 6, 8, 2048, 32000, (1, 64, 512), 8192, 100),
    "tiny": Size(32, 2, 2, 64, 200, (1, 4), 20, 12),
}


# -- the same hypotheses ---------------------------------------------------------------------------------------------


def check(book: Book, device: torch.device, count: int) -> None:
    """Compare graphs with eager decoding: small and exact, with ragged ends and reused rows."""
    small = Size(64, 2, 4, 128, 500, (), 0, 0)
    model = small.build().to(device)
    with torch.no_grad():
        model.output_embedding.weight[SYMBOLS.eos] *= 1.5
    plain, static = engines(model, device)
    static.cache_pool.places = 4 * 48 * 4
    searches = (
        Greedy(Limits(longest=40)),
        Beam(4, n_best=3, limits=Limits(longest=40)),
        Greedy(Limits(longest=40, no_repeat=2)),
        Beam(4, n_best=3, limits=Limits(longest=40, no_repeat=2)),
        Beam(4, n_best=2, limits=Limits(longest=40, shortest=3), length_penalty=-0.5),
    )
    for search in (*searches, searches[0]):  # and the first recording, after other caches were made
        same = total = 0
        worst = 0.0
        for seed in range(4):  # eager, recorded, replayed
            sources = small.sources(count, seed)
            found, expected = (find(engine, search, sources) for engine in (static, plain))
            for own, other in zip(found, expected, strict=True):
                alike = [one.tokens for one in own] == [one.tokens for one in other]
                same, total = same + alike, total + 1
                if alike:
                    worst = max(worst, *(abs(a.score - b.score) for a, b in zip(own, other, strict=True)))
        graphs = sum(len(slots.recorder.graphs) for slots in static.cache_pool.batchers.values())
        book.put(
            what="check fp32", search=type(search).__name__, same=same, of=total, worst=round(worst, 6), graphs=graphs
        )


def check_rounded(book: Book, size: Size, device: torch.device, model: Any) -> None:
    """Compare in bf16, where ties are frequent: rescored in fp32, the results must be as good."""
    exact = TorchEngine(size.build().to(device), SYMBOLS, SYMBOLS, device)
    plain, static = engines(model, device)
    sources = size.sources(size.batches[-1], 7)[:64]
    for search in searches():
        scores = {}
        for name, engine in (("plain", plain), ("static", static), ("static again", static), ("recorded", static)):
            found = find(engine, search, sources)
            log_probs = exact.score(sources, [own[0].tokens for own in found])
            scores[name] = round(sum(map(sum, log_probs)) / len(sources), 3)
        book.put(what="check bf16", search=type(search).__name__, mean_log_prob=scores)


# -- who is timed ----------------------------------------------------------------------------------------------------


def searches() -> tuple[Any, ...]:
    limits = Limits(longest=OUT, shortest=OUT - 1)
    return Greedy(limits), Beam(4, limits=limits)


def engines(model: Any, device: torch.device) -> tuple[TorchEngine, Any]:
    return tuple(TorchEngine(model, SYMBOLS, SYMBOLS, device, graphs) for graphs in ("off", "on"))


def find(engine: TorchEngine, search: Any, sources: list[list[int]]) -> Any:
    return engine.search(sources, search, [UNCONSTRAINED] * len(sources), [0] * len(sources))


def time_ours(book: Book, who: str, size: Size, device: torch.device, graphs: str, times: int) -> None:
    """Time our engine: `start_s` from weights in memory to the first sentence, `first_s` the first call a kind."""
    built = size.build()
    begun = time.perf_counter()
    engine = TorchEngine(with_precision(built.to(device), "bf16"), SYMBOLS, SYMBOLS, device, graphs)
    find(engine, searches()[0], size.sources(1, 0))
    start = round(time.perf_counter() - begun, 2)
    for search in searches():
        for batch in size.batches:
            if book.over:
                return
            sets = [size.sources(batch, seed) for seed in range(3)]
            forget_peak(device)
            begun = time.perf_counter()
            find(engine, search, sets[0])
            first = time.perf_counter() - begun
            for sources in sets:  # recorded meanwhile
                find(engine, search, sources)
            often = 5 * times if batch == 1 and device.type == "cuda" else times  # single ones have a p95
            found = timed(lambda number: find(engine, search, sets[number % 3]), often)  # noqa: B023
            row = {**found.row(batch * OUT), "memory_mb": peak_megabytes(device), "start_s": start}
            step = {"step_ms": step_time(engine, search)} if engine.cache_pool else {}
            name = type(search).__name__
            row |= {"first_s": round(first, 2), **step}
            book.put(what="speed", model=MADE_UP, who=who, search=name, batch=batch, **row)


def changed(work: Callable[[], None], *changes: tuple[Any, str, Any]) -> Callable[[], None]:
    """Run `work` with other values of module attributes, to measure their effect."""

    def run() -> None:
        with ExitStack() as stack:
            for module, name, value in changes:
                stack.enter_context(mock.patch.object(module, name, value))
            work()

    return run


def step_time(engine: Any, search: Any) -> float | None:
    """Milliseconds of one replayed step alone, of the cache last used."""
    slots = next(reversed(engine.cache_pool.batchers.values()))
    graph = next((graph for (kind, *_), graph in slots.recorder.graphs.items() if kind == "step"), None)
    if graph is None:
        return None
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(50):
        graph.replay()
    end.record()
    end.synchronize()
    return round(float(start.elapsed_time(end)) / 50, 4)


def time_hugging_face(book: Book, size: Size, device: torch.device) -> None:
    """Time Hugging Face's class with the same weights."""
    from gpu_peer import time_peer
    from huggingface_model import write_huggingface

    sets = {batch: [size.sources(batch, seed) for seed in range(3)] for batch in size.batches}
    with tempfile.TemporaryDirectory() as folder:
        write_huggingface(size.config, size.build(), Path(folder))
        time_peer(book, sets, Path(folder), device, OUT)


# -- what a step is made of, and many sentences -----------------------------------------------------------------------


def profile(book: Book, size: Size, model: Any, device: torch.device, folder: Path) -> None:
    """Profile the kernels of a step, for the smallest and the largest batch."""
    _, static = engines(model, device)
    texts = []
    for search in searches():
        for batch in (size.batches[0], size.batches[-1]):
            for seed in range(3):
                find(static, search, size.sources(batch, seed))
            slots = next(reversed(static.cache_pool.batchers.values()))
            activity = torch.profiler.ProfilerActivity
            with torch.inference_mode(), torch.profiler.profile(activities=[activity.CPU, activity.CUDA]) as seen:
                for _ in range(5):
                    slots.stepper(32)
                if device.type == "cuda":
                    torch.cuda.synchronize()
            table = seen.key_averages().table(sort_by="self_cuda_time_total", row_limit=45, max_name_column_width=70)
            texts.append(f"## {type(search).__name__}, batch {batch}, 5 eager steps\n{table}")
            (folder / "profile.txt").write_text("\n\n".join(texts), encoding="utf-8")
    book.put(what="profile", written=len(texts))


def whole_file(book: Book, size: Size, model: Any, device: torch.device) -> None:
    """Decode many sentences that end at different lengths (each at its limit): rows are reused all the time."""
    plain, static = engines(model, device)
    sources = size.sources(size.file, 5)
    limits = Limits(longest_ratio=1.0, longest_extra=5, shortest=0, forbid=())
    total = sum(len(source) + 6 for source in sources)
    for search in (Greedy(limits), Beam(4, limits=limits)):
        for who, engine in (("graphs", static), ("plain", plain)):
            if book.over:
                return
            budget = 65536 if who == "graphs" else 4096

            def work(number: int, engine: Any = engine, search: Any = search, budget: int = budget) -> int:
                ordered = sorted(sources, key=len, reverse=True)
                written = 0
                while ordered:
                    count = max(1, budget // (len(ordered[0]) + 1))
                    found = find(engine, search, ordered[:count])
                    written += sum(len(own[0].token_log_probs) for own in found)
                    ordered = ordered[count:]
                return written

            written = work(0)
            speed = round(written / timed(work, 2, longest=20).p50)
            row = {"sentences": len(sources), "written": written, "most": total, "tokens_per_s": speed}
            book.put(what="file", who=who, search=type(search).__name__, **row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("results"))
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=420, help="parts that have not begun by then are skipped")
    parser.add_argument(
        "--without",
        nargs="*",
        default=[],
        help="parts: check graphs peer trained profile rounded products without plain file",
    )
    parser.add_argument("--run", type=Path, help="also time a run folder, with natural ends")
    parser.add_argument("--input", type=Path, help="lines to translate with it")
    parser.add_argument("--references", type=Path, help="their translations, for sacreBLEU")
    options = parser.parse_args()
    if bool(options.run) != bool(options.input) or (options.references and not options.run):
        parser.error("--run and --input go together, and --references with them")
    book, size, device = Book(options.output, options.seconds), SIZES[options.size], torch.device(options.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    book.put(what="machine", name=name, torch=torch.__version__)

    def model() -> Any:
        return with_precision(size.build().to(device), "bf16")

    def ours(who: str, graphs: str, times: int = 12) -> Callable[[], None]:
        return lambda: time_ours(book, who, size, device, graphs, times)

    def trained() -> None:
        from gpu_trained import time_trained

        time_trained(book, options.run, options.input, options.references, size.batches, device)

    kernels: Any = dispatch.decoding  # None without triton
    no_products = [(kernels, "FEW", 0)] if kernels else []
    no_kernels = [(dispatch, "decoding", None)]
    parts: list[tuple[str, Callable[[], None]]] = [
        ("check", lambda: check(book, device, size.checked)),
        ("graphs", ours("graphs", "on")),
        ("peer", lambda: time_hugging_face(book, size, device)),
        *([("trained", trained)] if options.run else []),
        ("profile", lambda: profile(book, size, model(), device, options.output)),
        ("rounded", lambda: check_rounded(book, size, device, model())),
        ("products", changed(ours("graphs, products by torch", "on", 4), *no_products)),
        ("without", changed(ours("graphs, all by torch", "on", 4), *no_kernels)),
        ("plain", ours("plain", "off", times=3)),
        ("file", lambda: whole_file(book, size, model(), device)),
    ]
    begun = time.monotonic()
    for part, work in parts:
        if part not in options.without and not book.over:
            try:
                work()
            except (Exception, SystemExit):
                book.put(what="failed", part=part, error=traceback.format_exc())
            book.put(what="done", part=part, seconds=round(time.monotonic() - begun, 1))
            (options.output / "table.md").write_text(tables(book) + "\n", encoding="utf-8")
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
    print(tables(book))


if __name__ == "__main__":
    main()
