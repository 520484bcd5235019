"""The reference engine: any model of ours, on any device torch knows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.batch import collate, pad_sources
from transduce.data.symbols import Symbols
from transduce.engines.rooms import Rooms
from transduce.errors import ConfigError, UserError
from transduce.model.contract import evaluating
from transduce.model.whole import EncoderDecoder
from transduce.search.ensemble import Ensemble
from transduce.search.hypothesis import Hypothesis
from transduce.search.wishes import Wishes


class TorchEngine:
    """Runs a model in evaluation mode; the model stays usable for training in between.

    With `graphs`, searches that can be are done in memory set aside once (rooms.py), on a GPU as recorded graphs.
    """

    def __init__(
        self,
        model: EncoderDecoder | Ensemble,
        source: Symbols,
        target: Symbols,
        device: torch.device,
        graphs: bool = False,
    ) -> None:
        self.model = model
        self.source = source
        self.target = target
        self.device = device
        holding = model.holding() if graphs else None
        self.rooms = None if holding is None else Rooms(holding, source, target, device)

    def search(
        self, sources: Sequence[Sequence[int]], search: Any, wishes: Sequence[Wishes], keys: Sequence[int]
    ) -> list[list[Hypothesis]]:
        with evaluating(self.model), torch.inference_mode():
            found = self.rooms.search(sources, search, wishes) if self.rooms else None
            if found is not None:
                return found
            tokens, mask = pad_sources(sources, self.source)
            memory = self.model.encode(tokens.to(self.device), mask.to(self.device))
            written: list[list[Hypothesis]] = search.build()(self.model, memory, self.target, list(wishes), list(keys))
            return written

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        batch = collate(sources, targets, self.source, self.target).to(self.device)
        with evaluating(self.model), torch.inference_mode():
            memory = self.model.encode(batch.source, batch.source_mask)
            log_probs = self.model.token_log_probs(memory, batch.target, batch.target_mask)
        return [row[: len(target) + 1] for row, target in zip(log_probs.tolist(), targets, strict=True)]

    def attend(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], layer: int | None
    ) -> list[NDArray[np.float32]]:
        batch = collate(sources, targets, self.source, self.target).to(self.device)
        trace: dict[str, Tensor] = {}
        with evaluating(self.model), torch.inference_mode():
            memory = self.model.encode(batch.source, batch.source_mask)
            self.model.token_log_probs(memory, batch.target, batch.target_mask, trace)
            weights = cross_attention(trace, layer).cpu().numpy()
        pairs = zip(weights, sources, targets, strict=True)
        return [matrix[: len(target), : len(source)] for matrix, source, target in pairs]


def cross_attention(trace: dict[str, Tensor], layer: int | None) -> Tensor:
    """Where each target position looks in the source, mean over heads and members of an ensemble: (B, T, S).

    `layer` is a decoder layer, from 0, or from -1 backwards; None takes the mean of all.
    """
    members: dict[str, list[Tensor]] = {}
    for name, weights in trace.items():  # (B, H, T, S), in the order of the layers
        if match := re.fullmatch(r"(.*?)decoder\.\d+\.cross", name):
            members.setdefault(match[1], []).append(weights.float().mean(1))
    if not members:
        raise UserError(
            "alignments: this model's decoder does not look at the source by attention (it traces no"
            " decoder.N.cross), so that there is nothing to read them from; use a model with attention"
        )
    fewest = min(map(len, members.values()))
    if layer is not None and not -fewest <= layer < fewest:
        raise ConfigError(f"layer: expected a decoder layer from 0 to {fewest - 1}, or from -1 backwards, got {layer}")
    chosen = [torch.stack(layers).mean(0) if layer is None else layers[layer] for layers in members.values()]
    return torch.stack(chosen).mean(0)


def pick_device(name: str) -> torch.device:
    """ "auto" is the GPU if there is one, else the CPU; anything else is torch's name of a device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device: '{name}' is not a device; use auto, cpu, cuda or cuda:0") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device: '{name}' was asked for, and torch finds no GPU here; use device=cpu or auto")
    return device
