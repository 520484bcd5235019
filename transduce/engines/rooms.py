"""Searches in memory set aside once: which ones, in which room, and that one caller at a time is in it.

What cannot be done so is left to the caller, who does it as search/ is written.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from transduce.data.symbols import Symbols
from transduce.engines.slots import Shape, Slots, jobs_of
from transduce.model.contract import Holding
from transduce.search.fixed import Plan
from transduce.search.hypothesis import Hypothesis
from transduce.search.wishes import Wishes

MOST_ROOMS = 8  # kept for those who come again
MOST_PLACES = 2048 * 128  # tokens that all paths of a room may write between them: 3 GB of a base model's bf16


class Rooms:
    """The rooms of one model, the last used kept."""

    def __init__(
        self,
        model: Holding,
        source: Symbols,
        target: Symbols,
        device: torch.device,
        places: int = MOST_PLACES,
        compiled: bool = False,
    ) -> None:
        """`compiled` has torch compile every step, which takes a minute a room before it is faster."""
        self.model, self.source, self.target, self.device = model, source, target, device
        self.places, self.compiled = places, compiled
        self.lock = threading.Lock()
        self.rooms: OrderedDict[Shape, Slots] = OrderedDict()

    def search(
        self, sources: Sequence[Sequence[int]], search: Any, wishes: Sequence[Wishes]
    ) -> list[list[Hypothesis]] | None:
        """Hypotheses of each source, best first; None for what cannot be done in a room."""
        plan = Plan.of(search, wishes, self.target, self.model.vocabulary)
        if plan is None or not sources:
            return None
        jobs = jobs_of(sources, plan, wishes)
        shape = Shape.of(jobs, plan, self.places)
        with self.lock:
            try:
                slots = self.rooms.get(shape) or Slots.of(self.model, self.source, shape, self.device, self.compiled)
                if slots is None:
                    return None
                self.rooms[shape] = slots
                self.rooms.move_to_end(shape)
                if len(self.rooms) > MOST_ROOMS:
                    self.rooms.popitem(last=False)
                return slots.run(jobs)
            except torch.OutOfMemoryError:
                self.rooms.clear()
                return None
