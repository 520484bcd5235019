"""The projected loss against plain log-softmax: sums, gradients, chunks of any size, masks, half precision."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from transduce.kernels import dispatch
from transduce.objectives import cross_entropy
from transduce.objectives.cross_entropy import projected_losses, smoothed_loss

N, D, V = 23, 8, 31


def drawn(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(N, D, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(V, D, generator=generator, dtype=dtype).requires_grad_()
    gold = torch.randint(V, (N,), generator=generator)
    return states, weight, gold, torch.rand(N, generator=generator) < 0.7


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("rows", [1, 5, 23, 1000])
def test_sums_and_gradients_are_those_of_log_softmax(
    rows: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy, "CACHED", rows * V)
    monkeypatch.setattr(cross_entropy, "CHUNK_ON_CPU", 2 * rows * V)  # the rows of a matrix product, in two parts
    states, weight, gold, mask = drawn()
    sums = projected_losses(states, weight, gold, mask, smoothing)
    found = torch.autograd.grad(3 * sums[0], (states, weight))
    loss = smoothed_loss((states @ weight.T).log_softmax(-1), gold, mask, smoothing)
    expected = torch.autograd.grad(3 * loss.total, (states, weight))
    torch.testing.assert_close(sums[0], loss.total)
    torch.testing.assert_close(sums[1], loss.metrics["nll"])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_bias_of_the_logits_has_its_gradient_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "CACHED", 2 * V)
    monkeypatch.setattr(cross_entropy, "CHUNK_ON_CPU", 4 * V)
    states, weight, gold, mask = drawn()
    bias = torch.randn(V, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    sums = projected_losses(states, weight, gold, mask, 0.1, bias)
    found = torch.autograd.grad(3 * sums[0], (states, weight, bias))
    loss = smoothed_loss((states @ weight.T + bias).log_softmax(-1), gold, mask, 0.1)
    expected = torch.autograd.grad(3 * loss.total, (states, weight, bias))
    torch.testing.assert_close(sums[0], loss.total)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_nothing_masked_out_leaves_a_trace() -> None:
    states, weight, gold, mask = drawn()
    (gradient,) = torch.autograd.grad(projected_losses(states, weight, gold, mask, 0.1)[0], states)
    assert not gradient[~mask].any()
    assert gradient[mask].any(-1).all()


def test_without_gradients_none_are_made() -> None:
    states, weight, gold, mask = drawn()
    with torch.no_grad():
        sums = projected_losses(states, weight, gold, mask, 0.1)
    assert not sums.requires_grad
    torch.testing.assert_close(sums, projected_losses(states, weight, gold, mask, 0.1).detach())


def test_half_precision_sums_in_single() -> None:
    states, weight, gold, mask = drawn(torch.float32)
    whole = projected_losses(states, weight, gold, mask, 0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = projected_losses(states, weight, gold, mask, 0.1)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, whole, rtol=0.02, atol=0)
    for one, other in zip(
        torch.autograd.grad(half[0], (states, weight)), torch.autograd.grad(whole[0], (states, weight)), strict=True
    ):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0.1, atol=0.05)


def test_padding_is_never_projected_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    states, weight, gold, mask = drawn()
    seen = []
    monkeypatch.setattr(dispatch, "product", lambda rows, matrix, bias=None: seen.append(len(rows)) or rows @ matrix.T)
    projected_losses(states.detach(), weight, gold, mask, 0.1)
    projected_losses(states.detach(), weight, gold, torch.zeros_like(mask), 0.1)  # a batch of nothing
    assert seen[0] == int(mask.sum()) < N


@pytest.mark.parametrize("words", [50, 9000])
def test_the_kernel_finds_the_same_losses_and_slopes(words: int) -> None:
    """Run it without a GPU: TRITON_INTERPRET=1 python -m pytest tests/objectives/test_projected_loss.py."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if dispatch.training is None or not (interpreted or torch.cuda.is_available()):
        pytest.skip("needs triton, and a GPU or TRITON_INTERPRET=1")
    device = "cpu" if interpreted else "cuda"
    torch.manual_seed(1)
    logits, gold = 3 * torch.randn(7, words, device=device), torch.randint(words, (7,), device=device)
    given = logits, gold, torch.tensor([1, 1, 0, 1, 1, 1, 0], dtype=torch.bool, device=device), 0.1
    found, expected = dispatch.training.losses_and_slopes(*given), cross_entropy._losses_compiled(*given)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
