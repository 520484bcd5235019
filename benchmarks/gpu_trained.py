"""Time a trained model on the GPU with natural ends, our graphs and Hugging Face's generate: tokens/s and BLEU.

Its tokenizer needs sentencepiece and BLEU sacrebleu; without the latter only translations are written.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gpu_book import PEER, TRAINED, Book, forget_peak, peak_megabytes, timing_of
from gpu_peer import Peer
from huggingface_model import write_huggingface

from transduce.engines.torch.engine import TorchEngine, with_precision
from transduce.search.constraints import UNCONSTRAINED
from transduce.search.settings import Beam, Greedy, Limits

ALONE = 100  # sentences that are translated one by one
LIMITS = Limits(longest=256, longest_extra=256)  # as the peer has them
SEARCHES = {"Greedy": Greedy(LIMITS), "Beam": Beam(4, limits=LIMITS)}
Tokens = list[int]
Writer = Callable[[list[Tokens], str], list[Tokens]]


@dataclass(frozen=True)
class Lines:
    """The input: tokens of the lines that have any, and their references if given."""

    sources: list[Tokens]
    references: list[str]
    decode: Callable[[Sequence[int]], str]

    @classmethod
    def read(cls, tokenizers: Any, longest: int, text: Path, references: Path | None) -> Lines:
        lines = text.read_text(encoding="utf-8").split("\n")[:-1]
        correct = references.read_text(encoding="utf-8").split("\n")[:-1] if references else [""] * len(lines)
        if len(lines) != len(correct):
            raise SystemExit(f"{references}: has {len(correct)} lines, and {text} has {len(lines)}")
        pairs = zip(tokenizers.source.encode(lines), correct, strict=True)
        kept = sorted(((tokens[:longest], line) for tokens, line in pairs if tokens), key=lambda pair: len(pair[0]))
        return cls([pair[0] for pair in kept], [pair[1] for pair in kept if references], tokenizers.target.decode)


def time_trained(
    book: Book, run: Path, text: Path, references: Path | None, batches: Sequence[int], device: torch.device
) -> None:
    """Time both on all lines in batches of similar lengths, and on some of them one by one."""
    from transduce.training.run_folder import open_model

    begun = time.perf_counter()
    config, tokenizers, model, longest = open_model(run, trust=False)
    symbols = tokenizers.source.symbols, tokenizers.target.symbols
    engine = TorchEngine(with_precision(model.to(device), "bf16"), *symbols, device, "on")

    def ours(sources: list[Tokens], search: str) -> list[Tokens]:
        found = engine.search(sources, SEARCHES[search], [UNCONSTRAINED] * len(sources), [0] * len(sources))
        return [list(own[0].tokens) for own in found]

    lines = Lines.read(tokenizers, longest, text, references)
    ours(lines.sources[:1], "Greedy")
    measure(book, "graphs", ours, lines, batches, device, time.perf_counter() - begun)
    with tempfile.TemporaryDirectory() as folder:
        write_huggingface(config.model, open_model(run, trust=False)[2], Path(folder))
        begun = time.perf_counter()
        peer = Peer(Path(folder)).to(device)
        peer.write(lines.sources[:1], 1)
        start = time.perf_counter() - begun
    beams = {"Greedy": 1, "Beam": 4}
    measure(book, PEER, lambda some, search: peer.write(some, beams[search]), lines, batches, device, start)


def measure(
    book: Book, who: str, write: Writer, lines: Lines, batches: Sequence[int], device: torch.device, start: float
) -> None:
    """Make a row for each decoding method and batch size; BLEU is that of the largest."""
    for search in SEARCHES:
        for batch in batches:
            if book.over:
                return
            sources = lines.sources[:: max(1, len(lines.sources) // ALONE)] if batch == 1 else lines.sources
            shares = [sources[i : i + batch] for i in range(0, len(sources), batch)]
            forget_peak(device)
            for share in shares[-3:]:  # warm-up: graphs are recorded meanwhile
                write(share, search)
            taken, written = [], []
            for share in shares:
                begun = time.perf_counter()
                written += write(share, search)
                taken.append(time.perf_counter() - begun)
            timing, tokens = timing_of(taken), sum(len(row) + 1 for row in written)
            row = {**timing.row(1), "tokens_per_s": round(tokens / sum(taken)), "memory_mb": peak_megabytes(device)}
            del row["best"]
            bleu = score(book, f"{who}.{search}", written, lines) if batch == max(batches) else None
            row |= {"start_s": round(start, 2), "bleu": bleu}
            book.put(what="speed", model=TRAINED, who=who, search=search, batch=batch, **row)


def score(book: Book, name: str, written: list[Tokens], lines: Lines) -> float | None:
    texts = [lines.decode(tokens) for tokens in written]
    (book.folder / f"{name.replace(' ', '_')}.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    if not lines.references or importlib.util.find_spec("sacrebleu") is None:
        return None
    import sacrebleu

    return round(sacrebleu.corpus_bleu(texts, [lines.references]).score, 2)
