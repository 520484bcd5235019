"""The torch engine, the reference: any model, on any device that torch supports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar

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
from transduce.search.hypothesis import Hypothesis, SearchConfig
from transduce.text.segment import group_by_length
from transduce.text.vocabulary import Symbols

T = TypeVar("T", bound=nn.Module)


POOL_TOKENS = 65536  # source tokens given to the cache pool at once, which admits them one after another
PLAIN_TOKENS = 4096  # and in one eager batch


class TorchEngine:
    """Runs a model in evaluation mode; the model can still be trained in between.

    With `graphs` "on", searches that support it run in static caches (cache_pool.py), on a GPU as CUDA graphs;
    "compiled" also uses torch.compile for their steps.
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
        static_model = None if graphs == "off" else model.static_cache_model()
        self.cache_pool: CachePool | None = None
        if static_model is not None:
            self.cache_pool = CachePool(static_model, source, target, device, compiled=graphs == "compiled")

    def search(
        self,
        sources: Sequence[Source],
        search: SearchConfig,
        constraints: Sequence[DecodingConstraints],
        keys: Sequence[int],
    ) -> list[list[Hypothesis]]:
        with self._working(sources, search):
            if self.cache_pool is None:
                return self._search(sources, search, constraints, keys)
            hypotheses = self.cache_pool.search(sources, search, constraints, keys)
            if hypotheses is not None:
                return hypotheses
            hypotheses = [[] for _ in sources]
            for batch in group_by_length([len(source) + 1 for source in sources], PLAIN_TOKENS):
                of_batch = self._search(
                    [sources[i] for i in batch], search, [constraints[i] for i in batch], [keys[i] for i in batch]
                )
                for i, of_sentence in zip(batch, of_batch, strict=True):
                    hypotheses[i] = of_sentence
            return hypotheses

    @contextmanager
    def _working(self, sources: Sequence[Source], search: SearchConfig | None = None) -> Iterator[None]:
        """Evaluation mode without gradients; an out-of-memory error says what to lower."""

        def advice() -> str:
            size = getattr(search, "size", getattr(search, "samples", 1))
            beam = f", {size:,} hypotheses for each: lower the beam or the number of samples, or" if size > 1 else ":"
            return (
                f"with {len(sources):,} texts at once, the longest of {max(map(len, sources)):,} tokens{beam} give the"
                " translator fewer batch_tokens, or shorter texts"
            )

        with explaining_shortage(advice), evaluating(self.model), torch.inference_mode():
            yield

    @property
    def search_tokens(self) -> int:
        """Source tokens that a translator may give to search at once; 0: no more than in any batch."""
        return POOL_TOKENS if self.cache_pool else 0

    def _search(
        self,
        sources: Sequence[Source],
        search: SearchConfig,
        constraints: Sequence[DecodingConstraints],
        keys: Sequence[int],
    ) -> list[list[Hypothesis]]:
        """Search eagerly, all sources in one batch."""
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

    @cached_property
    def decoder_layers(self) -> int:
        """How many decoder layers `attend` can read one by one, as the trace of a short text shows."""
        batch = collate([[self.source.eos]], [[self.target.eos]], self.source, self.target).to(self.device)
        trace: dict[str, Tensor] = {}
        with self._working([[self.source.eos]]):
            memory = self.model.encode(batch.source, batch.source_mask)
            self.model.token_log_probs(memory, batch.target, batch.target_mask, trace)
        return min(map(len, _cross_attention(trace)), default=0)

    def attend(
        self, sources: Sequence[Source], targets: Sequence[Sequence[int]], layer: int | None
    ) -> list[NDArray[np.float32]]:
        batch = collate(sources, targets, self.source, self.target).to(self.device)
        trace: dict[str, Tensor] = {}
        with self._working(sources):
            memory = self.model.encode(batch.source, batch.source_mask)
            self.model.token_log_probs(memory, batch.target, batch.target_mask, trace)
            weights = cross_attention(trace, layer).cpu().numpy()
        # Without the end symbol; frames have none in the memory, and fewer positions than frames.
        ends = 1 if batch.source.dim() == 2 else 0
        pairs = zip(weights, (memory.mask.sum(1) - ends).tolist(), targets, strict=True)
        return [matrix[: len(target), :length] for matrix, length, target in pairs]


def with_precision(model: T, precision: str) -> T:
    """Round a model's weights to 16 bits in place if requested; position tables and statistics stay."""
    if precision == "bf16":
        for parameter in model.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
    return model


def cross_attention(trace: dict[str, Tensor], layer: int | None) -> Tensor:
    """Cross-attention of each target position, averaged over heads and ensemble members: (B, T, S).

    `layer` is a decoder layer, from 0, or from -1 backwards; None averages all.
    """
    members = _cross_attention(trace)
    if not members:
        raise UserError(
            "alignments: this model's decoder has no attention to the source (it traces no decoder.N.cross), so"
            " there is nothing to read them from; use a model with attention"
        )
    fewest = min(map(len, members))
    if layer is not None and not -fewest <= layer < fewest:
        raise ConfigError(f"layer: expected a decoder layer from 0 to {fewest - 1}, or from -1 backwards, got {layer}")
    chosen = [torch.stack(layers).mean(0) if layer is None else layers[layer] for layers in members]
    return torch.stack(chosen).mean(0)


def _cross_attention(trace: dict[str, Tensor]) -> list[list[Tensor]]:
    """The cross-attention of each layer, mean over heads, of each member of an ensemble."""
    members: dict[str, list[Tensor]] = {}
    for name, weights in trace.items():  # (B, H, T, S), in the order of the layers
        if match := re.fullmatch(r"(.*?)decoder\.\d+\.cross", name):
            members.setdefault(match[1], []).append(weights.float().mean(1))
    return list(members.values())


def pick_device(name: str) -> torch.device:
    """Parse a device: "auto" is the GPU if there is one, else the CPU; anything else is torch's name of a device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device: '{name}' is not a device; use auto, cpu, cuda or cuda:0") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device: '{name}' was requested, and torch finds no GPU here; use device=cpu or auto")
    return device
