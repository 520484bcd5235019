"""Results of the GPU benchmark: rows appended to a file, timings of calls, and tables."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

MADE_UP, TRAINED = "random weights, 30 tokens", "trained, natural ends"
PEER = "hugging face"


class Book:
    """Results so far, in a file, and whether time is left."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.path, self.end = folder, folder / "gpu_decoding.json", time.monotonic() + seconds
        folder.mkdir(parents=True, exist_ok=True)
        self.rows: list[dict[str, Any]] = []

    def put(self, **row: Any) -> None:
        self.rows.append(row)
        self.path.write_text(json.dumps(self.rows, indent=1), encoding="utf-8")
        print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)

    @property
    def over(self) -> bool:
        return time.monotonic() > self.end


@dataclass(frozen=True)
class Timing:
    """Seconds of a call."""

    p50: float
    p95: float
    least: float

    def row(self, tokens: float) -> dict[str, Any]:
        """A row for the file, for calls that write so many tokens."""
        return {
            "tokens_per_s": round(tokens / self.p50),
            "best": round(tokens / self.least),
            "p50_ms": round(1000 * self.p50, 2),
            "p95_ms": round(1000 * self.p95, 2),
        }


def timing_of(taken: list[float]) -> Timing:
    ordered = sorted(taken)
    return Timing(statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], ordered[0])


def timed(work: Callable[[int], object], times: int, longest: float = 8.0) -> Timing:
    """Time calls of `work(number)`, which synchronises with the device; stop after so many seconds."""
    taken: list[float] = []
    while len(taken) < times and sum(taken) < longest:
        begun = time.perf_counter()
        work(len(taken))
        taken.append(time.perf_counter() - begun)
    return timing_of(taken)


def peak_megabytes(device: torch.device) -> int | None:
    """Peak memory of tensors on the GPU since `forget_peak`."""
    return round(torch.cuda.max_memory_allocated(device) / 1e6) if device.type == "cuda" else None


def forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def tables(book: Book) -> str:
    """Tokens a second and the ratio to Hugging Face; then single sentences, memory, start and BLEU."""
    parts = []
    for model in (MADE_UP, TRAINED):
        rows = [row for row in book.rows if row["what"] == "speed" and row["model"] == model]
        if rows:
            parts += [_speeds(model, rows), _rest(rows)]
    return "\n\n".join(parts)


def _speeds(model: str, rows: list[dict[str, Any]]) -> str:
    speeds = {(row["who"], row["search"], row["batch"]): row["tokens_per_s"] for row in rows}
    cells = list(dict.fromkeys((search, batch) for _, search, batch in speeds))
    lines = [
        f"| {model}, tokens/s | " + " | ".join(f"{search} {batch}" for search, batch in cells) + " |",
        "|---" * (len(cells) + 1) + "|",
    ]
    for who in dict.fromkeys(who for who, *_ in speeds):
        shown = []
        for cell in cells:
            speed, peer = speeds.get((who, *cell)), speeds.get((PEER, *cell))
            times = f" ({speed / peer:.1f}x)" if speed and peer else ""
            shown.append(f"{speed}{times}" if speed else "")
        lines.append(f"| {who} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _rest(rows: list[dict[str, Any]]) -> str:
    lines = ["| | one sentence, ms p50 / p95: greedy | beam 4 | peak MB on the GPU | start s | BLEU: greedy | beam 4 |"]
    lines.append("|---" * 7 + "|")
    for who in dict.fromkeys(row["who"] for row in rows):
        own = [row for row in rows if row["who"] == who]
        alone = {row["search"]: f"{row['p50_ms']} / {row['p95_ms']}" for row in own if row["batch"] == 1}
        bleu = {row["search"]: f"{row['bleu']}" for row in own if row.get("bleu") is not None}
        memory = max((row["memory_mb"] for row in own if row["memory_mb"] is not None), default="")
        names = "Greedy", "Beam"
        shown = [*(alone.get(name, "") for name in names), memory]
        shown += [own[0]["start_s"], *(bleu.get(name, "") for name in names)]
        lines.append(f"| {who} | " + " | ".join(map(str, shown)) + " |")
    return "\n".join(lines)
