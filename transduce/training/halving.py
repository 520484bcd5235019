"""The micro-batches of a step, those that proved too large for the device's memory in two halves.

Losses are sums with counts, so that halves add up to the whole; only random draws (dropout) are others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from transduce.data.batch import Batch
from transduce.data.share import Portion
from transduce.objectives.base import Loss
from transduce.training.passes import EagerRunner, Shape, shape_of
from transduce.training.session import Session

Held = tuple[Portion, Batch]
_SECOND = 1 << 20  # added to the number of a piece for the draws of a second half
_ROUND = 256  # packed halves have room in multiples of it, so that few shapes occur


class OomSplitter:
    """Back-propagates the sums of a step's micro-batches.

    When memory runs out the step is begun again with the micro-batch in question cut in two by rows, once for each
    shape; all of that shape are cut from then on. Not where `whole`: a model that keeps statistics of its batches
    needs them as they are, and several processes must do the same.
    """

    def __init__(
        self, passes: EagerRunner, session: Session, seed: int, whole: bool, say: Callable[[str], None]
    ) -> None:
        self.passes, self.session, self.seed, self.whole, self.say = passes, session, seed, whole, say
        self.halved: set[Shape] = set()

    def __call__(self, held: Sequence[Held]) -> list[Loss]:
        """The losses, detached, of all micro-batches; their gradients are those of the optimizer's parameters."""
        while True:
            self.session.optimizer.zero_grad(set_to_none=self.passes.drops_gradients)
            done: list[Loss] = []
            shortage = self._run(held, done)
            if shortage is None:
                return done
            batch = held[self._reached][1]
            shape = _places(batch)
            if self.whole or shape in self.halved or len(batch.source) < 2:
                raise shortage
            # Only the words: the error itself holds on to what was in memory when it was raised.
            reason = str(shortage).split(". ")[0]
            shortage = None
            self.halved.add(shape)
            if self.session.device.type == "cuda":
                torch.cuda.empty_cache()
            rows, source, target = len(batch.source), batch.source.size(1), batch.gold.size(1)
            self.say(
                f"step {self.session.place.step + 1:,}: out of memory on {rows} pairs of {source} and {target} places"
                f" ({reason}); such batches are halved from here on"
            )

    def _run(self, held: Sequence[Held], done: list[Loss]) -> torch.OutOfMemoryError | None:
        """Make all passes; gives what was raised when memory ran out."""
        step = self.session.place.step
        for self._reached, (portion, batch) in enumerate(held):
            last = self._reached == len(held) - 1
            try:
                if _places(batch) not in self.halved:
                    seed_pass(self.seed, step, portion.number, portion.piece)
                    done.append(_kept(self.passes(batch, step, last, portion.counted)))
                    continue
                for half, part in enumerate(halves(batch)):
                    seed_pass(self.seed, step, portion.number, portion.piece + half * _SECOND)
                    done.append(_kept(self.passes(part, step, last and half == 1, portion.counted)))
            except torch.OutOfMemoryError as error:
                return error.with_traceback(None)
        return None


def seed_pass(seed: int, step: int, micro: int, piece: int) -> None:
    """Dropout and the like of one piece of a micro-batch follow from these four numbers alone."""
    torch.manual_seed((((seed * 1_000_003 + step) * 1_009 + micro) + piece * 0x9E3779B97F4A7C15) % (1 << 63))


def _places(batch: Batch) -> Shape:
    """The shape without the room for its tokens, which on a CPU is another for each batch."""
    return shape_of(batch)[:-1]


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """The upper rows and the lower ones; packed, each with room for its own tokens."""
    middle = -(-len(batch.source) // 2)
    upper, lower = (
        batch.with_tensors(*(tensor[rows] for tensor in batch.tensors()))
        for rows in (slice(middle), slice(middle, None))
    )
    return _fitted(upper), _fitted(lower)


def _fitted(batch: Batch) -> Batch:
    if batch.room == (0, 0):
        return batch
    # On a batch that is still on the host: nothing waits for the device.
    most = max(int(batch.source_mask.sum()), int(batch.target_mask.sum()), 1)
    room = -(-most // _ROUND) * _ROUND
    return replace(batch, room=(min(room, batch.room[0]), min(room, batch.room[1])))


def _kept(loss: Loss) -> Loss:
    """A copy: recorded launches leave every loss of a shape in the same place."""
    return Loss(loss.total.clone(), loss.count.clone(), {name: value.clone() for name, value in loss.metrics.items()})
