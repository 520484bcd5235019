"""Schedules by their formulas (equation 3 first), optimizers by their settings, and the one update to the bit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from parameter_states import equal, give_gradients, moments, values
from torch import nn

from transduce.core.errors import ConfigError, RunError
from transduce.training.optimizer import Adam, AdamW, Constant, Cosine, InverseRoot, Muon, Optimizer, Paper, update
from transduce.training.start import failed

# ---- schedules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d_model", "warmup", "factor"), [(512, 4000, 1.0), (1024, 4000, 1.0), (128, 7, 2.5)])
def test_equation_3(d_model: int, warmup: int, factor: float) -> None:
    rate = Paper(warmup, factor).build(d_model, steps=100_000)
    for step in (1, 2, warmup - 1, warmup, warmup + 1, 100_000):
        assert rate(step) == factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
    assert rate(warmup) == pytest.approx(factor / math.sqrt(d_model * warmup), rel=1e-12)
    assert max(range(1, 4 * warmup), key=rate) in (warmup, warmup + 1)  # the two arms meet at the peak
    assert rate(2 * warmup) == pytest.approx(rate(warmup) / math.sqrt(2), rel=1e-12)
    assert rate(1) == pytest.approx(rate(warmup) / warmup, rel=1e-12)


def test_equation_3_for_base_has_the_peak_that_is_often_quoted() -> None:
    assert Paper().build(512, 100_000)(4000) == pytest.approx(6.9877e-4, rel=1e-4)
    assert Paper().build(512, 100_000)(1) == pytest.approx(1.7469e-7, rel=1e-4)


def test_inverse_root_is_equation_3_with_its_height_named() -> None:
    paper = Paper(warmup=50).build(256, 1000)
    named = InverseRoot(peak=paper(50), warmup=50).build(1, 1)
    assert [named(step) for step in range(1, 500)] == pytest.approx([paper(step) for step in range(1, 500)], rel=1e-12)
    assert InverseRoot(peak=3e-4, warmup=50).build(1, 1)(50) == 3e-4


def test_cosine() -> None:
    rate = Cosine(peak=1.0, warmup=10, floor=0.2).build(512, steps=110)
    assert [rate(step) for step in (1, 5, 10)] == [0.1, 0.5, 1.0]
    assert rate(60) == pytest.approx(0.6)  # half way down
    assert rate(35) == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2)
    assert rate(110) == pytest.approx(0.2)
    assert rate(1000) == pytest.approx(0.2)
    falling = [rate(step) for step in range(10, 111)]
    assert all(later < sooner for sooner, later in itertools.pairwise(falling))
    short = Cosine(peak=1.0, warmup=10).build(512, steps=5)  # a run that ends while the rate still rises
    assert [short(step) for step in (5, 10)] == [0.5, 1.0]
    assert short(11) == pytest.approx(0.0)


def test_constant() -> None:
    rate = Constant(3e-4).build(512, 100)
    assert {rate(step) for step in range(1, 200)} == {3e-4}


# ---- optimizers ------------------------------------------------------------------------------------------------------


def parameters(seed: int = 1) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(*shape, generator=generator)) for shape in ((5, 7), (7,), (3, 2, 2))]


def test_adam_has_the_papers_settings() -> None:
    """Section 5.3: beta1 = 0.9, beta2 = 0.98, epsilon = 1e-9; three steps by hand in float64."""
    owners = parameters()
    expected = [parameter.detach().double() for parameter in owners]
    first, second = ([torch.zeros_like(x) for x in expected] for _ in range(2))
    optimizer = Adam().build(owners)
    for step in (1, 2, 3):
        give_gradients(owners, seed=step, scale=6.0)
        for number, parameter in enumerate(owners):
            assert parameter.grad is not None
            mean = parameter.grad.double() / 6
            first[number] = 0.9 * first[number] + 0.1 * mean
            second[number] = 0.98 * second[number] + 0.02 * mean**2
            unbiased = second[number] / (1 - 0.98**step)
            expected[number] -= 0.01 * first[number] / (1 - 0.9**step) / (unbiased.sqrt() + 1e-9)
        assert update(optimizer, 0.01, torch.tensor(6.0), clip=0.0)[1] == 0
    for parameter, value in zip(owners, expected, strict=True):
        torch.testing.assert_close(parameter.detach().double(), value, rtol=1e-5, atol=1e-6)


def test_weight_decay_shrinks_matrices_and_nothing_else() -> None:
    owners, plain = parameters(), parameters()
    for optimizer, mine in ((AdamW(weight_decay=0.5).build(owners), owners), (Adam().build(plain), plain)):
        before = values(mine)
        give_gradients(mine, seed=1)
        update(optimizer, 0.1, torch.tensor(1.0), clip=0.0)
    for start, decayed, free in zip(before, owners, plain, strict=True):
        expected = free.detach() - (0.1 * 0.5 * start if start.dim() >= 2 else 0)
        torch.testing.assert_close(decayed.detach(), expected)


# ---- the update ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [Adam(), AdamW()], ids=["adam", "adamw"])
@pytest.mark.parametrize("clip", [0.0, 0.5, 1e6], ids=["off", "binds", "does-not-bind"])
def test_an_update_is_division_then_clipping_then_the_step_to_the_bit(config: Optimizer, clip: float) -> None:
    ours, theirs = parameters(), parameters()
    optimizer, reference = config.build(ours), config.build(theirs)
    for step in range(4):
        count = torch.tensor(37.0 + step)
        give_gradients(ours, seed=step, scale=50.0)
        give_gradients(theirs, seed=step, scale=50.0)
        total = torch.nn.utils.get_total_norm([p.grad for p in theirs if p.grad is not None]) / count
        factor = (total / clip).clamp(min=1.0) if clip else torch.tensor(1.0)
        for parameter in theirs:
            assert parameter.grad is not None
            parameter.grad /= count * factor
        for group in reference.param_groups:
            group["lr"] = 0.02
        reference.step()
        norm, skipped = update(optimizer, 0.02, count, clip)
        assert norm == total  # the norm before clipping is what is reported
        assert (factor > 1) == (clip == 0.5)
        assert skipped == 0
        assert equal(values(ours), values(theirs))
        assert equal(moments(optimizer, ours), moments(reference, theirs))


def test_clipping_keeps_the_direction_and_bounds_the_norm() -> None:
    owners = parameters()
    optimizer = torch.optim.SGD(owners, lr=0.0, fused=True)  # what SGD moves by is the gradient itself
    before = torch.cat([value.flatten() for value in values(owners)])
    give_gradients(owners, seed=3, scale=100.0)
    whole = torch.cat([p.grad.flatten().clone() for p in owners if p.grad is not None])
    norm, _ = update(optimizer, 1.0, torch.tensor(10.0), clip=0.25)
    moved = before - torch.cat([value.flatten() for value in values(owners)])
    assert norm == pytest.approx(whole.norm().item() / 10)
    assert moved.norm() == pytest.approx(0.25, rel=1e-5)
    torch.testing.assert_close(moved / moved.norm(), whole / whole.norm(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("config", [Adam(), AdamW()], ids=["adam", "adamw"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38], ids=str)
@pytest.mark.parametrize("when", [0, 3])
def test_a_step_that_is_not_finite_leaves_no_trace(config: Optimizer, bad: float, when: int) -> None:
    """Weights, moments and step counts are as if the bad step had never been; 3e38 overflows the norm."""
    found = []
    for steps in ([*range(when), None, *range(when, 5)], list(range(5))):
        owners = parameters()
        optimizer = config.build(owners)
        for step in steps:
            before = values(owners), moments(optimizer, owners)
            give_gradients(owners, seed=step or 0)
            if step is None:
                assert owners[1].grad is not None
                owners[1].grad[2] = bad
            norm, skipped = update(optimizer, 0.01, torch.tensor(5.0), clip=1.0)
            assert skipped == (step is None)
            assert norm.isfinite() == (step is not None)
            if step is None:
                assert equal(values(owners), before[0])
                assert when == 0 or equal(moments(optimizer, owners), before[1])
        found.append((values(owners), moments(optimizer, owners)))
    assert equal(found[0][0], found[1][0])
    assert equal(found[0][1], found[1][1])


def test_a_step_without_target_tokens_is_skipped() -> None:
    owners = parameters()
    before = values(owners)
    for parameter in owners:
        parameter.grad = torch.zeros_like(parameter)
    _, skipped = update(Adam().build(owners), 0.01, torch.tensor(0.0), clip=0.0)
    assert skipped == 1
    assert equal(values(owners), before)


def test_parameters_without_a_gradient_stay() -> None:
    owners = parameters()
    before = values(owners)
    optimizer = Adam().build(owners)
    owners[0].grad = torch.ones_like(owners[0])
    norm, _ = update(optimizer, 0.01, torch.tensor(2.0), clip=0.0)
    assert norm == pytest.approx(math.sqrt(35) / 2)
    assert not torch.equal(owners[0], before[0])
    assert equal(values(owners[1:]), before[1:])


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Adam(beta1=1.0), "beta1: expected at least 0 and below 1, got 1.0"),
        (lambda: Adam(beta2=-0.1), "beta2: expected at least 0 and below 1, got -0.1"),
        (lambda: Adam(epsilon=0.0), "epsilon: expected a number above 0, got 0.0"),
        (lambda: AdamW(beta1=math.nan), "beta1: expected at least 0 and below 1, got nan"),
        (lambda: AdamW(beta2=1.5), "beta2: expected at least 0 and below 1, got 1.5"),
        (lambda: AdamW(epsilon=-1e-9), "epsilon: expected a number above 0, got -1e-09"),
        (lambda: AdamW(weight_decay=-0.01), "weight_decay: expected 0 or more, got -0.01"),
        (lambda: AdamW(weight_decay=math.nan), "weight_decay: expected 0 or more, got nan"),
        (lambda: Paper(warmup=0), "warmup: expected a number above 0, got 0"),
        (lambda: Paper(factor=-1.0), "factor: expected a number above 0, got -1.0"),
        (lambda: InverseRoot(peak=0.0), "peak: expected a number above 0, got 0.0"),
        (lambda: InverseRoot(peak=math.nan), "peak: expected a number above 0, got nan"),
        (lambda: InverseRoot(warmup=0), "warmup: expected a number above 0, got 0"),
        (lambda: Cosine(peak=math.inf), "peak: expected a number above 0, got inf"),
        (lambda: Cosine(warmup=-3), "warmup: expected a number above 0, got -3"),
        (lambda: Cosine(peak=1e-3, floor=2e-3), "floor: expected a number from 0 to peak = 0.001, got 0.002"),
        (lambda: Cosine(floor=-1e-9), "floor: expected a number from 0 to peak = 0.0005, got -1e-09"),
        (lambda: Constant(rate=0.0), "rate: expected a number above 0, got 0.0"),
    ],
)
def test_settings_that_cannot_be(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert str(error.value) == text


def test_adam_is_that_of_the_paper_by_default() -> None:
    """Section 5.3 of "Attention is all you need"."""
    for kind in (Adam(), Muon()):  # Muon has Adam for what is no matrix
        assert (kind.beta1, kind.beta2) == (0.9, 0.98)


def test_what_the_compiler_said_is_told_in_two_lines() -> None:
    error = RuntimeError("first\nsecond\nthird")
    with pytest.raises(RunError, match=r"torch.compile failed \(first second\); set training.compile=false"):
        failed(error, True, print)
