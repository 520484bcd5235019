"""How many tokens a batch may have on a GPU, found by trying (as Marian's mini-batch-fit does)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from transduce.data.batch import Batch
from transduce.data.batching import Batches
from transduce.training.optimizer import update
from transduce.training.passes import EagerRunner
from transduce.training.session import Session
from transduce.training.trial import trial

FIRST = 1024  # tokens tried first
MARGIN = 0.9  # share of the free memory that tried batches may take
FEWEST_BATCHES = 100  # an epoch has at least so many, however much memory there is


def largest(fits: Callable[[int], bool], first: int, most: int) -> int:
    """The largest number up to `most` that fits, to a sixteenth; 0 if not even 1 does."""
    low, high = 0, min(first, most)
    while fits(high):
        if high == most:
            return most
        low, high = high, min(2 * high, most)
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def fit_tokens(session: Session, passes: EagerRunner, batches_of: Callable[[int], Batches]) -> int:
    """The largest budget whose most demanding batches, with their gradients and an update, leave memory to spare.

    `batches_of` gives the batches of a budget. Of the trials nothing stays; no step may have been made before.
    """
    split = batches_of(FIRST).split
    words = max(int(side.sum()) for side in (split.source_lengths, split.target_lengths)) + len(split)
    optimizer = session.optimizer

    def fits(tokens: int) -> bool:
        try:
            for batch in demanding(batches_of(tokens)):
                loss = passes(batch, 0)
                update(optimizer, 0.0, loss.count.float(), 0.0)  # for the moments it keeps
                optimizer.zero_grad()
        except torch.OutOfMemoryError:
            optimizer.zero_grad()
            return False
        return True

    with trial(session, passes.module), _spared(session.device):
        found = largest(fits, FIRST, max(FIRST, words // FEWEST_BATCHES))
    optimizer.zero_grad()
    optimizer.state.clear()
    return found


def demanding(batches: Batches) -> Iterator[Batch]:
    """The batch of an epoch with the most places, and the one with the most pairs of places."""
    plan = batches.plan(0)
    source, target = plan.shapes.T
    for places in (plan.rows * (source + target), plan.rows * source * target):
        yield batches.make(plan, 0, int(places.argmax()))


@contextmanager
def _spared(device: torch.device) -> Iterator[None]:
    """Memory runs out inside when all but a margin of what is free now has been taken."""
    if device.type != "cuda":
        yield
        return
    device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    share = (torch.cuda.memory_reserved(device) + MARGIN * free) / total
    torch.cuda.set_per_process_memory_fraction(min(share, 1.0), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        torch.cuda.empty_cache()
