"""The torch engine, the reference: any model, on any device that torch supports; on a GPU in a pool of static caches.

Requests that the pool does not support are decoded eagerly.
"""

from __future__ import annotations

import dataclasses
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transduce.core.errors import ConfigError, UserError, explaining_shortage
from transduce.core.processes import ForkLock
from transduce.core.progress import say
from transduce.data.batch import collate, pad_any
from transduce.engines import Source
from transduce.engines.torch.continuous_batching import ContinuousBatcher, Shape, jobs_of
from transduce.model.contract import CacheShape, SupportsStaticCache, evaluating
from transduce.model.encoder_decoder import EncoderDecoder
from transduce.search import Hypothesis, SearchConfig
from transduce.search.constraints import DecodingConstraints
from transduce.search.ensemble import Ensemble
from transduce.search.static_search import StaticSearchConfig
from transduce.text.segment import group_by_length
from transduce.text.vocabulary import Symbols

T = TypeVar("T", bound=nn.Module)


POOL_TOKENS = 65536  # source tokens given to the cache pool at once, which admits them one after another
PLAIN_TOKENS = 4096  # and in one eager batch


class TorchEngine:
    """Runs a model in evaluation mode; the model can still be trained in between.

    With `graphs` "on", searches that support it run in static caches (`CachePool`), on a GPU as CUDA graphs;
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
        self, sources: Sequence[Source], search: SearchConfig,
        constraints: Sequence[DecodingConstraints], keys: Sequence[int],
    ) -> list[list[Hypothesis]]:  # fmt: skip
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
        self, sources: Sequence[Source], search: SearchConfig,
        constraints: Sequence[DecodingConstraints], keys: Sequence[int],
    ) -> list[list[Hypothesis]]:  # fmt: skip
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


MOST_BATCHERS = 32  # batchers kept for later requests,
ALL = 8  # with at most this many times the largest capacity in total
SPARE = 16  # a batcher of up to so many times the capacity is reused rather than a new one recorded
MOST_PLACES = 2048 * 128  # tokens of all paths of a batcher: 3 GB of a base model's bf16
SHARE = 16  # at most this fraction of a GPU's memory for a batcher


class CachePool:
    """The continuous batchers of one model, by shape, least recently used first."""

    def __init__(
        self,
        model: SupportsStaticCache,
        source: Symbols,
        target: Symbols,
        device: torch.device,
        compiled: bool = False,
    ) -> None:
        """Create an empty pool; `compiled` uses torch.compile for every step, which takes a minute per shape."""
        self.model, self.source, self.target, self.device = model, source, target, device
        self.places, self.compiled = most_places(model, device), compiled
        self.lock = ForkLock()
        self.process = self.lock.process
        self.batchers: OrderedDict[Shape, ContinuousBatcher] = OrderedDict()
        self.reported: set[str] = set()

    def search(
        self, sources: Sequence[Sequence[int]], search: SearchConfig,
        constraints: Sequence[DecodingConstraints], keys: Sequence[int],
    ) -> list[list[Hypothesis]] | None:  # fmt: skip
        """Hypotheses of each source, best first; None if the pool does not support the request."""
        plan = StaticSearchConfig.of(search, constraints, self.target, self.model.vocabulary)
        if plan is None:
            self._refused("this search, or its constraints")
        if plan is None or not sources:
            return None
        jobs = jobs_of(sources, plan, constraints, plan.streams(search, keys))
        shape = Shape.of(jobs, plan, self.places)
        with self.lock:
            if self.process != self.lock.process:  # forked: a thread of the parent may have left work half done
                self.batchers.clear()
                self.process = self.lock.process
            try:
                batcher = self._batcher(shape)
                if batcher is None:
                    self._refused("this model")
                    return None
                return batcher.run(jobs)
            except torch.OutOfMemoryError:
                self.batchers.clear()
                self._refused("so many sentences in the GPU's memory")
                return None

    def _batcher(self, shape: Shape) -> ContinuousBatcher | None:
        """Return the smallest suitable batcher, else a new one, which may evict one that was not used for long.

        A server's batches have all sizes: with a batcher for each, graphs would be evicted and recorded again
        constantly.
        """
        fitting = [
            candidate
            for candidate in self.batchers
            if candidate.fits(shape) and candidate.places <= SPARE * shape.places
        ]
        shape = min(fitting, key=lambda candidate: candidate.places, default=shape)
        batcher = self.batchers.get(shape) or ContinuousBatcher.of(
            self.model, self.source, shape, self.device, self.compiled
        )
        if batcher is None:
            return None
        self.batchers[shape] = batcher
        self.batchers.move_to_end(shape)
        while len(self.batchers) > 1 and (
            len(self.batchers) > MOST_BATCHERS or sum(kept.places for kept in self.batchers) > ALL * self.places
        ):
            self.batchers.popitem(last=False)
        return batcher

    def _refused(self, what: str) -> None:
        """Report, once per reason, that eager decoding takes over."""
        if what not in self.reported:
            self.reported.add(what)
            say(f"graphs: none for {what}; decoding eagerly")


def most_places(model: SupportsStaticCache, device: torch.device) -> int:
    """The capacity of a batcher, in tokens of all paths, by the memory of the GPU."""
    state = model.allocate_cache(CacheShape(1, 1, 1, 1))
    if device.type != "cuda" or state is None:
        return MOST_PLACES
    share = torch.cuda.get_device_properties(device).total_memory // SHARE
    return min(MOST_PLACES, share // bytes_of(state.cache))


def bytes_of(tree: Any) -> int:
    """Size in bytes of all tensors in a tree of tuples and dataclasses."""
    if isinstance(tree, Tensor):
        return tree.nbytes
    if dataclasses.is_dataclass(tree):
        return sum(bytes_of(getattr(tree, field.name)) for field in dataclasses.fields(tree))
    return sum(map(bytes_of, tree))
