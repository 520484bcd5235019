"""Hugging Face's MarianMTModel on the GPU with our weights, in bf16: output and speed of `generate`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from gpu_book import MADE_UP, PEER, Book, forget_peak, peak_megabytes, timed
from workload import EOS, PAD

SEARCHES = {"Greedy": 1, "Beam": 4}


class Peer:
    """Opened from a folder of `write_huggingface`."""

    def __init__(self, folder: Path) -> None:
        from transformers import MarianMTModel

        self.model: Any = MarianMTModel.from_pretrained(folder).eval()
        self.device = torch.device("cpu")

    def to(self, device: torch.device) -> Peer:
        self.model, self.device = self.model.to(device, torch.bfloat16), device
        return self

    def write(self, sources: list[list[int]], beams: int, forced: int = 0) -> list[list[int]]:
        """Target tokens of each source: exactly `forced`, or up to the end symbol."""
        width = max(map(len, sources)) + 1
        rows = torch.tensor([[*tokens, EOS] + [PAD] * (width - 1 - len(tokens)) for tokens in sources])
        mask = (rows != PAD).long().to(self.device)
        options: dict[str, Any] = {"max_new_tokens": 256}
        if forced:  # forbidden tokens cost it time, and do not matter here
            options = {"min_new_tokens": forced, "max_new_tokens": forced, "bad_words_ids": None}
        options |= {"num_beams": beams, "do_sample": False, "length_penalty": 0.6}
        with torch.inference_mode():
            found = self.model.generate(rows.to(self.device), attention_mask=mask, **options)
        written: list[list[int]] = found[:, 1:].tolist()
        return written if forced else [row[: row.index(EOS)] if EOS in row else row for row in written]


def time_peer(book: Book, sets: dict[int, list[list[list[int]]]], folder: Path, device: torch.device, out: int) -> None:
    """Time exactly `out` tokens for each set of sources of each batch size."""
    peer = Peer(folder)
    begun = time.perf_counter()
    peer.to(device).write(sets[1][0], 1, out)
    start = round(time.perf_counter() - begun, 2)
    for search, beams in SEARCHES.items():
        for batch, sources in sets.items():
            if book.over:
                return
            forget_peak(device)
            written = peer.write(sources[0], beams, out)
            assert {len(row) for row in written} == {out}
            found = timed(lambda number: peer.write(sources[number % 3], beams, out), 20 if batch == 1 else 5, 4.0)  # noqa: B023
            row = {**found.row(batch * out), "memory_mb": peak_megabytes(device), "start_s": start}
            book.put(what="speed", model=MADE_UP, who=PEER, search=search, batch=batch, **row)
