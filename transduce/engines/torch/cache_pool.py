"""A pool of static caches with continuous batching, one caller at a time.

Requests that it does not support are left to the caller, who decodes eagerly.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from transduce.core.locks import ForkLock
from transduce.core.progress import say
from transduce.engines.torch.continuous_batching import ContinuousBatcher, Shape, jobs_of
from transduce.model.contract import CacheShape, SupportsStaticCache
from transduce.search.constraints import DecodingConstraints
from transduce.search.hypothesis import Hypothesis, SearchConfig
from transduce.search.static_search import StaticSearchConfig
from transduce.text.vocabulary import Symbols

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
        self,
        sources: Sequence[Sequence[int]],
        search: SearchConfig,
        constraints: Sequence[DecodingConstraints],
        keys: Sequence[int],
    ) -> list[list[Hypothesis]] | None:
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
