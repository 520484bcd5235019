"""What a CPU does in its own way while learning, against torch's: linear maps and attention, values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.kernels import dispatch, gradients
from transduce.kernels.gradients import attend_on_cpu, product, summed_products, to_autocast_dtype
from transduce.model.attention import attend
from transduce.model.layers import Linear

B, H, T, S, K, W = 3, 2, 5, 7, 4, 6


@pytest.fixture(autouse=True)
def worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little there is to multiply, and however good this processor is at it."""
    monkeypatch.setattr(dispatch, "WORTH", 0)
    monkeypatch.setattr(gradients, "IN_SINGLE", gradients.ONE_DNN)


def gradients_of(loss: Tensor, *inputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, inputs))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("entering", "leaving"), [(8, 8), (8, 24), (24, 8)])
def test_a_linear_map_is_that_of_torch(entering: int, leaving: int, relu: bool) -> None:
    torch.manual_seed(1)
    x, slope = torch.randn(B, T, entering, requires_grad=True), torch.randn(B, T, leaving)
    own = Linear(entering, leaving)
    plain = nn.Linear(entering, leaving)
    plain.load_state_dict(own.state_dict())
    expected = F.relu(plain(x)) if relu else plain(x)
    found = own(x, relu=relu)
    torch.testing.assert_close(found, expected)
    ours = gradients_of((found * slope).sum(), x, own.weight, own.bias)
    theirs = gradients_of((expected * slope).sum(), x, plain.weight, plain.bias)
    torch.testing.assert_close(ours, theirs)


def test_a_linear_map_under_autocast_is_that_of_torch_under_autocast() -> None:
    torch.manual_seed(1)
    x, own, plain = torch.randn(B, T, 16, requires_grad=True), Linear(16, 32), nn.Linear(16, 32)
    plain.load_state_dict(own.state_dict())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = own(x, relu=True), F.relu(plain(x))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.01, atol=0.01)
    ours = gradients_of(found.float().square().sum(), x, own.weight, own.bias)
    theirs = gradients_of(expected.float().square().sum(), x, plain.weight, plain.bias)
    assert all(gradient.dtype == torch.float32 for gradient in ours)
    torch.testing.assert_close(ours, theirs, rtol=0.03, atol=0.1)


def test_maps_that_pay_and_no_others_go_their_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "WORTH", 100)
    own, few, many = Linear(4, 5), torch.randn(4, 4), torch.randn(5, 4)
    assert "OnCpu" not in type(own(few).grad_fn).__name__
    assert "OnCpu" in type(own(many).grad_fn).__name__
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "OnCpu" not in type(own(many).grad_fn).__name__
        # Where the processor has no way to multiply bfloat16, neither has oneDNN.
        assert ("OnCpu" in type(own(many, relu=True).grad_fn).__name__) is gradients.IN_BFLOAT16
    with torch.no_grad():
        torch.testing.assert_close(own(many), F.linear(many, own.weight, own.bias))
    monkeypatch.setattr(gradients, "IN_SINGLE", False)  # a processor without AVX-512
    assert "OnCpu" not in type(own(many, relu=True).grad_fn).__name__


def test_what_needs_no_gradient_gets_none() -> None:
    own, x = Linear(4, 6), torch.randn(2, 3, 4)
    own(x).sum().backward()
    assert x.grad is None
    assert own.weight.grad is not None
    own.zero_grad()
    own.requires_grad_(False)
    own(x.requires_grad_()).sum().backward()
    assert x.grad is not None
    assert own.weight.grad is None


def test_turned_products_are_those_of_torch() -> None:
    torch.manual_seed(1)
    for kind in (torch.float64, torch.float32, torch.bfloat16):
        left, right = torch.randn(40, 8).to(kind), torch.randn(40, 24).to(kind)
        for one, other in ((left, right), (right, left), (left, left)):
            torch.testing.assert_close(summed_products(one, other), one.T @ other)
        torch.testing.assert_close(product(left.T, right.T), left.T @ right)


def test_only_autocast_narrows() -> None:
    x = torch.randn(2, 3)
    assert to_autocast_dtype(x) is x
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert to_autocast_dtype(x).dtype == torch.bfloat16


MASKS = {
    "none": None,
    "padding": torch.arange(S) < torch.tensor([7, 4, 1])[:, None, None, None],  # (B, 1, 1, S)
    "causal": torch.ones(T, S, dtype=torch.bool).tril(S - T),  # (T, S)
    "both": torch.ones(T, S, dtype=torch.bool).tril(S - T) & (torch.arange(S) != 2).expand(B, 1, 1, S),
    "by head": torch.rand(1, H, T, S, generator=torch.Generator().manual_seed(1)) < 0.9,
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_attention_is_that_of_torch(mask: Tensor | None) -> None:
    torch.manual_seed(1)
    sizes = ((B, H, T, K), (B, H, S, K), (B, H, S, W))
    heads = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    slope = torch.randn(B, H, T, W, dtype=torch.float64)
    expected = F.scaled_dot_product_attention(*heads, attn_mask=mask, scale=0.3)
    found = attend_on_cpu(*heads, mask, 0.3)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        gradients_of((found * slope).sum(), *heads), gradients_of((expected * slope).sum(), *heads)
    )


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_row_with_nothing_to_look_at_is_a_mean(kind: torch.dtype) -> None:
    heads = [(100 * torch.randn(1, 1, 3, 4)).to(kind).requires_grad_() for _ in range(3)]
    found = attend(*heads, mask=torch.zeros(1, 1, 1, 3, dtype=torch.bool))
    torch.testing.assert_close(found, heads[2].mean(2, keepdim=True).expand_as(found), rtol=0.02, atol=0.5)
    assert all(gradient.isfinite().all() for gradient in gradients_of(found.sum(), *heads))


def test_attention_follows_autocast() -> None:
    torch.manual_seed(1)
    heads = [torch.randn(B, H, T, K, requires_grad=True) for _ in range(3)]
    whole = attend(*heads, causal=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = attend(*heads, causal=True)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), whole, rtol=0.05, atol=0.05)
