"""One gradient however a batch is cut: sums over micro-batches, one division by the sum of counts.

Hugging Face, Lightning and others took the mean of the micro-batches' means, which is another number where they are
ragged; the last test shows how far off that is here.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from term_models import SYMBOLS, TERMS, V, aligned, build
from torch import Tensor

from transduce.data.batch import Batch
from transduce.model.seq2seq import Seq2Seq
from transduce.objectives import Objective, ObjectiveContext, ObjectiveStep
from transduce.objectives.cross_entropy import CrossEntropy, RDrop
from transduce.objectives.inputs import Constant, InputNoise, ScheduledSampling
from transduce.objectives.sequence_level import MinimumRisk, Reinforce
from transduce.training.optimizer import Adam, update

TOOLS = ObjectiveContext(SYMBOLS, teacher=lambda folder: build(seed=9).requires_grad_(False).eval())
# Where something is drawn, draws are made the same for every cut: by a probability of 1, or as `accumulate` does it.
OBJECTIVES = {
    "cross-entropy": CrossEntropy(0.1).build(),
    "scheduled sampling": CrossEntropy(0.1, ScheduledSampling(Constant(1.0))).build(TOOLS),
    "input noise": CrossEntropy(0.1, InputNoise(replace=0.0, drop=1.0)).build(TOOLS),
    "r-drop": RDrop(0.1, 2.0).build(),
    **{term.kind: CrossEntropy(0.1, weight=0.1, terms=(term,)).build(TOOLS) for term in TERMS.values()},
    "r-drop with all terms": RDrop(0.1, 2.0, terms=tuple(TERMS.values())).build(TOOLS),
    "reinforce": Reinforce(samples=3, baseline="greedy", longest_extra=2).build(TOOLS),
    "minimum risk": MinimumRisk(samples=3, sharpness=0.5, longest_extra=2).build(TOOLS),
}
# Pairs in each micro-batch: the first holds the short sentences, so that counts of tokens differ widely.
CUTS = {1: [24], 2: [16, 8], 4: [11, 7, 5, 1]}


def pairs() -> list[tuple[list[int], list[int]]]:
    generator = torch.Generator().manual_seed(1)

    def sentence(length: int) -> list[int]:
        return torch.randint(4, V, (length,), generator=generator).tolist()

    return [(sentence(1 + n // 2), sentence(n)) for n in range(24)]


def micro_batches(sizes: Sequence[int]) -> list[Batch]:
    rest, batches = pairs(), []
    for size in sizes:
        sources, targets = zip(*rest[:size], strict=True)
        batches.append(aligned(sources, targets))
        rest = rest[size:]
    assert not rest
    return batches


def accumulate(model: Seq2Seq, objective: Objective, batches: Sequence[Batch]) -> Tensor:
    """Leave the gradient of the sum on the model; gives the count, as the training loop does."""
    module, count = ObjectiveStep(model, objective), torch.zeros(())
    torch.manual_seed(6)  # each sentence has one key for its samples: the same ones in whatever batches they stand
    for batch in batches:
        loss = module(batch, 0)
        loss.total.backward()
        count += loss.count
    return count


def gradient(model: Seq2Seq) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def weights(model: Seq2Seq) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("parts", [2, 4])
def test_micro_batches_give_the_gradient_of_the_whole(parts: int, name: str) -> None:
    found = []
    for cut in (1, parts):
        model = build()
        count = accumulate(model, OBJECTIVES[name], micro_batches(CUTS[cut]))
        assert count == sum(len(target) + 1 for _, target in pairs())
        found.append(gradient(model) / count)
    assert found[0].abs().max() > 0.01
    assert (found[1] - found[0]).abs().max() < 1e-6


@pytest.mark.parametrize("clip", [0.0, 0.05, 1e3])
@pytest.mark.parametrize("parts", [2, 4])
def test_micro_batches_give_the_same_weights_after_several_updates(parts: int, clip: float) -> None:
    found = []
    for cut in (1, parts):
        model = build()
        # A bias on keys changes no softmax, so its gradient is pure rounding, which Adam would scale up to a full step
        # in a random direction; a larger epsilon keeps it still.
        optimizer = Adam(epsilon=1e-3).build(model.parameters())
        norms = []
        for _ in range(4):
            optimizer.zero_grad()
            count = accumulate(model, OBJECTIVES["cross-entropy"], micro_batches(CUTS[cut]))
            norm, skipped = update(optimizer, 1e-3, count, clip)
            assert not skipped
            norms.append(norm)
        found.append((weights(model), torch.stack(norms)))
    assert (found[0][0] - weights(build())).abs().max() > 1e-3
    assert (found[1][0] - found[0][0]).abs().max() < 1e-6
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-5, atol=0)


def test_the_order_of_micro_batches_does_not_matter() -> None:
    found = []
    for order in (1, -1):
        model = build()
        accumulate(model, OBJECTIVES["cross-entropy"], micro_batches(CUTS[4])[::order])
        found.append(gradient(model))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)


def test_a_mean_of_means_would_be_far_off() -> None:
    model = build()
    right = gradient_of_means(model, CUTS[1])
    wrong = gradient_of_means(model, CUTS[4])
    model.zero_grad()
    count = accumulate(model, OBJECTIVES["cross-entropy"], micro_batches(CUTS[4]))
    ours = gradient(model) / count
    assert (ours - right).norm() / right.norm() < 1e-5
    assert (wrong - right).norm() / right.norm() > 0.01


def gradient_of_means(model: Seq2Seq, sizes: Sequence[int]) -> Tensor:
    """Each micro-batch divided by its own count, then the average of these."""
    model.zero_grad()
    for batch in micro_batches(sizes):
        loss = OBJECTIVES["cross-entropy"](model, batch, 0)
        (loss.total / loss.count / len(sizes)).backward()  # type: ignore[no-untyped-call]
    return gradient(model)
