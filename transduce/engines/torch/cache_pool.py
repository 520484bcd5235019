"""Searches in memory set aside once: which ones, in which room, and that one caller at a time is in it.

What cannot be done so is left to the caller, who does it as search/ is written.
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

MOST_ROOMS = 32  # kept for those who come again,
ALL = 8  # with no more places between them than this many of the largest
SPARE = 16  # a room of up to so many times the places is as good as a new one, whose steps are yet to be recorded
MOST_PLACES = 2048 * 128  # tokens that all paths of a room may write between them: 3 GB of a base model's bf16
SHARE = 16  # of a GPU's memory, at most this part for a room


class CachePool:
    """The rooms of one model, the last used kept."""

    def __init__(
        self,
        model: SupportsStaticCache,
        source: Symbols,
        target: Symbols,
        device: torch.device,
        compiled: bool = False,
    ) -> None:
        """`compiled` has torch compile every step, which takes a minute a room before it is faster."""
        self.model, self.source, self.target, self.device = model, source, target, device
        self.places, self.compiled = most_places(model, device), compiled
        self.lock = ForkLock()
        self.process = self.lock.process
        self.rooms: OrderedDict[Shape, ContinuousBatcher] = OrderedDict()
        self.told: set[str] = set()

    def search(
        self,
        sources: Sequence[Sequence[int]],
        search: SearchConfig,
        constraints: Sequence[DecodingConstraints],
        keys: Sequence[int],
    ) -> list[list[Hypothesis]] | None:
        """Hypotheses of each source, best first; None for what cannot be done in a room."""
        plan = StaticSearchConfig.of(search, constraints, self.target, self.model.vocabulary)
        if plan is None:
            self._refused("this search, or what is wished of it")
        if plan is None or not sources:
            return None
        jobs = jobs_of(sources, plan, constraints, plan.streams(search, keys))
        shape = Shape.of(jobs, plan, self.places)
        with self.lock:
            if self.process != self.lock.process:  # forked: a thread of the parent may have left a room half done
                self.rooms.clear()
                self.process = self.lock.process
            try:
                slots = self._room(shape)
                if slots is None:
                    self._refused("this model")
                    return None
                return slots.run(jobs)
            except torch.OutOfMemoryError:
                self.rooms.clear()
                self._refused("so many sentences in the GPU's memory")
                return None

    def _room(self, shape: Shape) -> ContinuousBatcher | None:
        """The smallest that is there and will do, else a new one, which may cost the place of one long not used.

        A server's batches are of all sizes: with a room for each, they would be given up and recorded again all day.
        """
        fitting = [one for one in self.rooms if one.holds(shape) and one.places <= SPARE * shape.places]
        shape = min(fitting, key=lambda one: one.places, default=shape)
        slots = self.rooms.get(shape) or ContinuousBatcher.of(
            self.model, self.source, shape, self.device, self.compiled
        )
        if slots is None:
            return None
        self.rooms[shape] = slots
        self.rooms.move_to_end(shape)
        while len(self.rooms) > 1 and (
            len(self.rooms) > MOST_ROOMS or sum(one.places for one in self.rooms) > ALL * self.places
        ):
            self.rooms.popitem(last=False)
        return slots

    def _refused(self, what: str) -> None:
        """Say, once for each reason, that the plain searches take over."""
        if what not in self.told:
            self.told.add(what)
            say(f"graphs: there are none for {what}; searching as it is written")


def most_places(model: SupportsStaticCache, device: torch.device) -> int:
    """How many tokens a room has place for, by the memory of the GPU."""
    held = model.allocate_cache(CacheShape(1, 1, 1, 1))
    if device.type != "cuda" or held is None:
        return MOST_PLACES
    share = torch.cuda.get_device_properties(device).total_memory // SHARE
    return min(MOST_PLACES, share // bytes_of(held.cache))


def bytes_of(tree: Any) -> int:
    """Of all tensors in tuples and dataclasses."""
    if isinstance(tree, Tensor):
        return tree.nbytes
    if dataclasses.is_dataclass(tree):
        return sum(bytes_of(getattr(tree, field.name)) for field in dataclasses.fields(tree))
    return sum(map(bytes_of, tree))
