"""The reference engine: any model of ours, on any device torch knows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transduce.core.errors import ConfigError, UserError, explaining_shortage
from transduce.data.batch import collate, pad_any
from transduce.engines.base import Source
from transduce.engines.torch.cache_pool import CachePool
from transduce.model.contract import evaluating
from transduce.model.encoder_decoder import EncoderDecoder
from transduce.search.constraints import DecodingConstraints
from transduce.search.ensemble import Ensemble
from transduce.search.hypothesis import Hypothesis
from transduce.text.segment import group_by_length
from transduce.text.vocabulary import Symbols

T = TypeVar("T", bound=nn.Module)


ROOM_TOKENS = 65536  # of sources given at once to rooms, which let them in by and by
PLAIN_TOKENS = 4096  # and in one batch, where no room can do it


class TorchEngine:
    """Runs a model in evaluation mode; the model stays usable for training in between.

    With `graphs` "on", searches that can be are done in a static cache (cache_pool.py), on a GPU as recorded
    graphs; with "compiled" torch compiles their steps besides.
    """

    def __init__(
        self,
        model: EncoderDecoder | Ensemble,
        source: Symbols,
        target: Symbols,
        device: torch.device,
        graphs: str = "off",
    ) -> None:
        self.model = model
        self.source = source
        self.target = target
        self.device = device
        holding = None if graphs == "off" else model.static_cache_model()
        self.rooms: CachePool | None = None
        if holding is not None:
            self.rooms = CachePool(holding, source, target, device, compiled=graphs == "compiled")

    def search(
        self, sources: Sequence[Source], search: Any, constraints: Sequence[DecodingConstraints], keys: Sequence[int]
    ) -> list[list[Hypothesis]]:
        with self._working(sources, search):
            if self.rooms is None:
                return self._search(sources, search, constraints, keys)
            found = self.rooms.search(sources, search, constraints, keys)
            if found is not None:
                return found
            found = [[] for _ in sources]
            for batch in group_by_length([len(source) + 1 for source in sources], PLAIN_TOKENS):
                own = self._search(
                    [sources[i] for i in batch], search, [constraints[i] for i in batch], [keys[i] for i in batch]
                )
                for i, hypotheses in zip(batch, own, strict=True):
                    found[i] = hypotheses
            return found

    @contextmanager
    def _working(self, sources: Sequence[Source], search: Any = None) -> Iterator[None]:
        """The model, used and not trained; says what to lower where memory runs out."""

        def advice() -> str:
            size = getattr(search, "size", getattr(search, "samples", 1))
            kept = f", {size:,} hypotheses for each: lower the beam or the number of samples, or" if size > 1 else ":"
            return (
                f"with {len(sources):,} texts at once, the longest of {max(map(len, sources)):,} tokens{kept} give the"
                " translator fewer batch_tokens, or shorter texts"
            )

        with explaining_shortage(advice), evaluating(self.model), torch.inference_mode():
            yield

    @property
    def search_tokens(self) -> int:
        """Tokens of sources that a translator may give to search at once; 0: no more than in any batch."""
        return ROOM_TOKENS if self.rooms else 0

    def _search(
        self, sources: Sequence[Source], search: Any, constraints: Sequence[DecodingConstraints], keys: Sequence[int]
    ) -> list[list[Hypothesis]]:
        """As search/ is written, all sources in one batch."""
        tokens, mask = pad_any(sources, self.source)
        memory = self.model.encode(tokens.to(self.device), mask.to(self.device))
        found: list[list[Hypothesis]] = search.build()(self.model, memory, self.target, list(constraints), list(keys))
        return found

    def score(self, sources: Sequence[Source], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        batch = collate(sources, targets, self.source, self.target).to(self.device)
        with self._working(sources):
            memory = self.model.encode(batch.source, batch.source_mask)
            log_probs = self.model.token_log_probs(memory, batch.target, batch.target_mask)
        return [row[: len(target) + 1] for row, target in zip(log_probs.tolist(), targets, strict=True)]

    def attend(
        self, sources: Sequence[Source], targets: Sequence[Sequence[int]], layer: int | None
    ) -> list[NDArray[np.float32]]:
        batch = collate(sources, targets, self.source, self.target).to(self.device)
        trace: dict[str, Tensor] = {}
        with self._working(sources):
            memory = self.model.encode(batch.source, batch.source_mask)
            self.model.token_log_probs(memory, batch.target, batch.target_mask, trace)
            weights = cross_attention(trace, layer).cpu().numpy()
        # Without the end symbol; where sources are frames, the memory has none, and fewer places than there are frames.
        ends = 1 if batch.source.dim() == 2 else 0
        pairs = zip(weights, (memory.mask.sum(1) - ends).tolist(), targets, strict=True)
        return [matrix[: len(target), :places] for matrix, places, target in pairs]


def with_precision(model: T, precision: str) -> T:
    """The same model with its weights rounded to 16 bits, if so wanted; tables of positions and statistics stay."""
    if precision == "bf16":
        for parameter in model.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
    return model


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
