"""Sums, counts and gradients are the same over any split of a batch: into micro-batches, among processes, in halves.

Dropout is off: what is drawn is another matter (training/halving.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from term_models import SYMBOLS, V, aligned, build
from torch import Tensor

from transduce.data.batch import Batch
from transduce.data.stream import Portion, Share
from transduce.model.attention import Attention
from transduce.model.encoder_decoder import EncoderDecoder
from transduce.model.parallel import CutAtEnd, Length, LengthClassifier, ParallelDecoder, Upsampled
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerEncoder
from transduce.objectives import Loss, Objective, ObjectiveContext, ObjectiveStep
from transduce.objectives.cross_entropy import CrossEntropy, RDrop
from transduce.objectives.parallel import Everything, MaskedPrediction, ParallelCTC
from transduce.objectives.terms import CTC, GuidedAlignment, GuidedAttention, Term, ZLoss
from transduce.objectives.terms import Length as LengthTerm
from transduce.training.step_runner import EagerRunner, halves

TERMS: tuple[Term, ...] = (GuidedAttention(), GuidedAlignment(), CTC(weight=0.5), LengthTerm(), ZLoss(weight=0.1))
# Each with the model it is for; no length of a parallel decoder's canvas and no hidden place is drawn.
CASES: dict[str, tuple[Objective, Length | None]] = {
    "cross-entropy": (CrossEntropy(0.1).build(), None),
    "r-drop with terms": (RDrop(0.1, 2.0, terms=TERMS).build(ObjectiveContext(SYMBOLS)), None),
    "masked prediction": (MaskedPrediction(masking=Everything()).build(), LengthClassifier(reach=6)),
    "cut at the end": (MaskedPrediction(masking=Everything()).build(), CutAtEnd(1.3, 2)),
    "parallel CTC": (ParallelCTC().build(), Upsampled(2)),
}
Pair = tuple[list[int], list[int]]
SENTENCES = st.lists(st.integers(4, V - 1), max_size=6)


@dataclass
class Sums:
    """What is added up over all passes, as the training loop does."""

    total: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    count: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    metrics: dict[str, Tensor] = field(default_factory=dict)

    def add(self, loss: Loss) -> None:
        self.total, self.count = self.total + loss.total, self.count + loss.count
        for name, value in loss.metrics.items():
            self.metrics[name] = self.metrics.get(name, 0) + value


class Planned:
    """Stands for `Batches`: these micro-batches, and nothing after them."""

    def __init__(self, micro: Sequence[Batch]) -> None:
        self.micro = micro

    def places(self, epoch: int, position: int) -> Iterator[tuple[Any, int, int]]:
        return ((self, epoch, place) for place in range(position, len(self.micro)))

    def batch(self, place: int) -> range:
        return range(len(self.micro[place].source))

    def make(self, plan: Any, epoch: int, place: int, rows: slice = slice(None)) -> Batch:
        batch = self.micro[place]
        return batch.with_tensors(*(tensor[rows] for tensor in batch.tensors()))


def collated(pairs: Sequence[Pair], empty: int = 0) -> Batch:
    """The pairs, and so many rows without any."""
    sources, targets = zip(*pairs, strict=True)
    batch = aligned(sources, targets)
    if not empty:
        return batch
    padding = (SYMBOLS.pad, False, SYMBOLS.pad, False, 0.0)
    return batch.with_tensors(
        *(
            torch.cat((tensor, tensor.new_full((empty, *tensor.shape[1:]), value)))
            for tensor, value in zip(batch.tensors(), padding, strict=True)
        )
    )


def built(length: Length | None) -> EncoderDecoder:
    """A model without dropout, in float64 (some sums are made in float32 all the same)."""
    if length is None:
        return build(seed=3).double().train()
    torch.manual_seed(3)
    stacks = TransformerEncoder(2, Attention(2), 24), ParallelDecoder(2, Attention(2), 24, length=length)
    return Model(16, 0.0, "all", *stacks).build(V, V, True).double().train()


def gradients(model: EncoderDecoder) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def portions(micro: Sequence[Batch], processes: int, entire: bool) -> Iterator[Portion]:
    """Those of all processes, whose sums and gradients are added up."""
    for rank in range(processes):
        share = Share(rank, processes, len(micro), entire)
        yield from islice(share.portions(Planned(micro), 0, 0), len(micro))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
@given(
    rows=st.lists(st.tuples(SENTENCES, SENTENCES, st.integers(0, 3)), min_size=1, max_size=7),
    processes=st.integers(1, 4),
    entire=st.booleans(),
    halved=st.booleans(),
    empty=st.integers(0, 2),
)
@settings(deadline=None, max_examples=30, derandomize=True)
def test_any_split_has_the_sums_and_gradients_of_the_whole(
    name: str, rows: list[tuple[list[int], list[int], int]], processes: int, entire: bool, halved: bool, empty: int
) -> None:
    """`rows` are pairs with the number of the micro-batch that each goes to."""
    objective, length = CASES[name]
    model = built(length)
    passes = EagerRunner(ObjectiveStep(model, objective), torch.device("cpu"), bf16=False)
    whole, parts = Sums(), Sums()
    whole.add(passes(collated([(source, target) for source, target, _ in rows]), 0))
    expected = gradients(model)
    numbers = sorted({number for *_, number in rows})
    micro = [collated([(s, t) for s, t, number in rows if number == one], empty) for one in numbers]
    for portion in portions(micro, processes, entire):
        if portion.batch is not None:
            for part in halves(portion.batch) if halved and len(portion.batch.source) > 1 else (portion.batch,):
                parts.add(passes(part, 0, counted=portion.counted))
    found = gradients(model)
    assert parts.count == whole.count
    if length is None:
        assert whole.count == sum(len(target) + 1 for _, target, _ in rows)
    torch.testing.assert_close(parts.total, whole.total, rtol=1e-5, atol=1e-4)
    assert parts.metrics.keys() == whole.metrics.keys()
    for key, value in whole.metrics.items():
        torch.testing.assert_close(parts.metrics[key], value, rtol=1e-5, atol=1e-4, check_dtype=False, msg=key)
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-4, atol=1e-5, msg=key)
