"""Smoothed cross-entropy against torch's own, with its gradient; masks; sums and counts. Shapes: B, T, V as ever."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from term_models import SYMBOLS, Said
from torch import Tensor
from torch.nn import functional as F

from transduce.core.errors import ConfigError
from transduce.data.batch import Batch, collate
from transduce.model.contract import DecoderState, Memory
from transduce.objectives import ObjectiveStep, teacher_force
from transduce.objectives.cross_entropy import CrossEntropy

V = 11


class Fixed(Said, torch.nn.Module):
    """A model that says the same logits (B, T, V) whatever it reads, and remembers what it was given to read."""

    def __init__(self, logits: Tensor) -> None:
        torch.nn.Module.__init__(self)
        super().__init__(torch.nn.Parameter(logits))
        self.read: list[Tensor] = []

    def encode(self, source: Tensor, mask: Tensor, trace: dict[str, Tensor] | None = None) -> Memory:
        self.read += [source, mask]
        return super().encode(source, mask, trace)

    def states(self, tokens: Tensor, *rest: Any, **named: Any) -> tuple[Tensor, DecoderState]:
        self.read.append(tokens)
        return super().states(tokens, *rest, **named)


def batch() -> Batch:
    return collate([[4, 5], [6]], [[7, 8, 9], [10]], SYMBOLS, SYMBOLS, target_length=6)


def logits(scale: float = 3.0, seed: int = 1) -> Tensor:
    return scale * torch.randn(2, 6, V, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("scale", [0.1, 3.0, 40.0])
def test_the_sum_and_its_gradient_are_those_of_torch(smoothing: float, scale: float) -> None:
    model = Fixed(logits(scale))
    loss = CrossEntropy(smoothing).build()(model, batch(), 0)
    loss.total.backward()  # type: ignore[no-untyped-call]
    free = logits(scale).requires_grad_()
    gold = batch().gold.masked_fill(~batch().target_mask, -100)
    expected = F.cross_entropy(free.flatten(0, 1), gold.flatten(), reduction="sum", label_smoothing=smoothing)
    expected.backward()  # type: ignore[no-untyped-call]
    assert model.logits.grad is not None
    assert free.grad is not None
    torch.testing.assert_close(loss.total, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(model.logits.grad, free.grad, rtol=1e-6, atol=1e-6)


def test_the_formula_by_hand() -> None:
    """The gold token weighs 1 - e + e / V and every other e / V: section 5.4."""
    log_probs = logits()[0, 0].log_softmax(-1)
    one = collate([[4]], [[]], SYMBOLS, SYMBOLS)  # the only target token is the end symbol
    weights = torch.full((V,), 0.1 / V)
    weights[SYMBOLS.eos] += 1 - 0.1
    loss = CrossEntropy(0.1).build()(Fixed(logits()[:1, :1]), one, 0)
    assert loss.total.item() == pytest.approx(-(weights * log_probs).sum().item(), rel=1e-6)
    assert loss.count.item() == 1


def test_counts_and_metrics_are_sums_over_real_tokens() -> None:
    loss = CrossEntropy(0.1).build()(Fixed(logits()), batch(), 0)
    assert loss.count.item() == 3 + 1 + 1 + 1  # both end symbols count
    assert set(loss.metrics) == {"nll"}
    plain = CrossEntropy(0.0).build()(Fixed(logits()), batch(), 0)
    torch.testing.assert_close(loss.metrics["nll"], plain.total.detach())
    assert not loss.metrics["nll"].requires_grad
    assert not loss.count.requires_grad


def test_padding_is_in_no_sum_and_no_gradient_however_wild_its_logits() -> None:
    mask = batch().target_mask
    wild = logits().masked_fill(~mask[..., None], 1e30)
    model = Fixed(wild)
    loss = CrossEntropy(0.1).build()(model, batch(), 0)
    tame = CrossEntropy(0.1).build()(Fixed(logits()), batch(), 0)
    assert torch.equal(loss.total, tame.total)
    loss.total.backward()  # type: ignore[no-untyped-call]
    assert model.logits.grad is not None
    assert not model.logits.grad[~mask].any()
    assert model.logits.grad[mask].any(-1).all()


def test_half_precision_logits_are_summed_in_single_precision() -> None:
    half = logits().to(torch.bfloat16)
    loss = CrossEntropy(0.1).build()(Fixed(half), batch(), 0)
    assert loss.total.dtype == torch.float32
    assert torch.equal(loss.total, CrossEntropy(0.1).build()(Fixed(half.float()), batch(), 0).total)


def test_the_decoder_reads_the_answer_shifted_by_one() -> None:
    model, pairs = Fixed(logits()), batch()
    assert torch.equal(teacher_force(model, pairs), model.logits)
    source, mask, inputs = model.read
    assert torch.equal(source, pairs.source)
    assert torch.equal(mask, pairs.source_mask)
    assert inputs.tolist() == [[2, 7, 8, 9, 3, 0], [2, 10, 3, 0, 0, 0]]
    assert pairs.gold.tolist() == [[7, 8, 9, 3, 0, 0], [10, 3, 0, 0, 0, 0]]


def test_a_step_is_the_objective_on_the_model() -> None:
    model = Fixed(logits())
    steps: list[int] = []

    def objective(given: object, pairs: Batch, step: int) -> object:
        assert given is model
        steps.append(step)
        return CrossEntropy().build()(model, pairs, step)

    module = ObjectiveStep(model, objective)  # type: ignore[arg-type]
    loss = module(batch(), 17)
    assert steps == [17]
    assert torch.equal(loss.total, CrossEntropy().build()(model, batch(), 0).total)
    assert [name for name, _ in module.named_parameters()] == ["model.logits"]  # an objective has no weights


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_smoothing_that_cannot_be(value: float) -> None:
    with pytest.raises(ConfigError) as error:
        CrossEntropy(label_smoothing=value)
    assert str(error.value) == f"label_smoothing: expected at least 0 and below 1, got {value}"
