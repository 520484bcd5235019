"""Distillation: nothing to learn from oneself, the analytic gradient from another, the divergence by hand."""

from __future__ import annotations

import math

import pytest
import torch
from term_models import SYMBOLS, Said, V, aligned, build
from torch import Tensor

from transduce.data.batch import Batch, collate
from transduce.objectives import NO_CONTEXT, ObjectiveContext, ObjectiveStep, forward
from transduce.objectives.cross_entropy import CrossEntropy
from transduce.objectives.terms import Added, Distillation


def batch() -> Batch:
    return collate([[4, 5], [6]], [[7, 8, 9], [10]], SYMBOLS, SYMBOLS, target_length=6)


def logits(seed: int) -> Tensor:
    return 2 * torch.randn(2, 6, V, generator=torch.Generator().manual_seed(seed))


def term(teacher: Tensor, temperature: float) -> Added:
    asked: list[str] = []

    def open_teacher(folder: str) -> Said:
        asked.append(folder)
        return Said(teacher)

    built = Distillation(teacher="runs/t", temperature=temperature).build(ObjectiveContext(teacher=open_teacher))
    assert asked == ["runs/t"]
    return built


@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.5])
def test_nothing_is_learned_from_oneself(temperature: float) -> None:
    own = logits(1).requires_grad_()
    loss = term(logits(1), temperature)(forward(Said(own), batch()))
    assert loss.item() == pytest.approx(0.0, abs=1e-5)
    assert torch.autograd.grad(loss, own)[0].abs().max() < 1e-5


@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.5])
def test_the_gradient_is_the_difference_of_the_softened_softmaxes(temperature: float) -> None:
    """The gradient of t^2 KL(p || q) by the logits is t (q - p); nothing at padding."""
    own = logits(1).requires_grad_()
    (found,) = torch.autograd.grad(term(logits(2), temperature)(forward(Said(own), batch())), own)
    student, teacher = ((values.detach().double() / temperature).softmax(-1) for values in (own, logits(2)))
    expected = temperature * (student - teacher) * batch().target_mask[..., None]
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-5)


def test_the_value_by_hand() -> None:
    expected = 0.0
    for row, place in batch().target_mask.nonzero().tolist():
        p, q = ((logits(seed)[row, place].double() / 3).softmax(-1).tolist() for seed in (2, 1))
        expected += 9 * sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    assert term(logits(2), 3.0)(forward(Said(logits(1)), batch())).item() == pytest.approx(expected, rel=1e-5)


def test_the_teacher_is_not_trained_and_not_part_of_the_step() -> None:
    teacher, student = build(seed=5).requires_grad_(False).eval(), build()
    before = {name: tensor.clone() for name, tensor in teacher.weights().items()}
    terms = (Distillation(teacher="runs/t"),)
    module = ObjectiveStep(student, CrossEntropy(terms=terms).build(ObjectiveContext(teacher=lambda folder: teacher)))
    assert len(list(module.parameters())) == len(list(student.parameters()))
    assert not [name for name in module.state_dict() if not name.startswith("model.")]
    module.train()
    assert not teacher.training
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    module(aligned([[4, 5]], [[6]]), 0).total.backward()
    optimizer.step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.weights().items())


def test_a_student_comes_to_agree_with_its_teacher() -> None:
    """Its answers are the teacher's, though the gold answers are other ones: cross-entropy has no weight."""
    teacher, student, pairs = build(seed=5).eval(), build(), aligned([[4, 5], [6, 7, 8]], [[9, 10], [11]])
    for_teacher = ObjectiveContext(teacher=lambda folder: teacher.requires_grad_(False))
    objective = CrossEntropy(weight=0.0, terms=(Distillation(teacher="runs/t"),)).build(for_teacher)
    optimizer = torch.optim.Adam(student.parameters(), 3e-3)
    apart = []
    for step in range(60):
        optimizer.zero_grad()
        loss = objective(student, pairs, step)
        (loss.total / loss.count).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        apart.append((loss.metrics["distillation"] / loss.count).item())
    assert apart[-1] < 0.1 * apart[0]


def test_it_is_built_with_tools() -> None:
    with pytest.raises(ValueError, match="built with ObjectiveContext"):
        Distillation(teacher="runs/t").build(NO_CONTEXT)
