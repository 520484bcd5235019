"""The kernels that a GPU learns by against what they stand for, on a GPU or in Triton's interpreter.

TRITON_INTERPRET=1 python -m pytest tests/kernels/test_training_kernels.py
"""

from __future__ import annotations

import os

import pytest
import torch
from test_packing import row_by_row
from torch import Tensor

pytest.importorskip("triton", reason="the kernel is written in triton, which comes with torch for GPUs")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

from transduce.kernels import training as residual_on_gpu  # noqa: E402
from transduce.kernels.training import normed_sum  # noqa: E402
from transduce.kernels.varlen_attention import attend_rows  # noqa: E402

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")


def starts(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("width", "value_width"), [(16, 16), (64, 32)])
@pytest.mark.parametrize("longest", [17, 70])
def test_rows_attend_to_themselves_there_and_back(causal: bool, width: int, value_width: int, longest: int) -> None:
    torch.manual_seed(1)
    rows = [3, longest, 1, 0, 9], [3, longest, 1, 0, 9] if causal else [5, 2, longest, 0, 1]
    places = [starts(lengths) for lengths in rows]
    many = [sum(lengths) + 40 for lengths in rows]  # more than a tile beyond the last row
    joined = torch.randn(many[1], 3, 2, value_width, device=DEVICE)  # as one projection leaves keys and values
    given = (torch.randn(many[0], 2, width, device=DEVICE), torch.randn(many[1], 2, width, device=DEVICE), joined[:, 1])
    there_and_back(given, (places[0], places[1]), causal, longest)
    if width == value_width:
        there_and_back((given[0], joined[:, 1:]), (places[0], places[1]), causal, longest)
        there_and_back((joined,), (places[1], places[1]), causal, longest)


def there_and_back(given: tuple[Tensor, ...], places: tuple[Tensor, Tensor], causal: bool, longest: int) -> None:
    ways = []
    for way in (attend_rows, row_by_row):
        parts = [x.detach().requires_grad_() for x in given]
        out = way(parts, places, 0.3, causal, longest)
        torch.manual_seed(2)
        ways.append([out, *torch.autograd.grad(out, parts, torch.randn_like(out))])
    torch.testing.assert_close(*ways, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(INTERPRETED, reason="for a GPU")
def test_in_bfloat16_and_compiled_it_is_the_same() -> None:
    torch.manual_seed(1)
    places = starts([20, 7, 30])
    joined = torch.randn(64, 3, 4, 64, device=DEVICE, dtype=torch.bfloat16)
    plain = row_by_row([joined.float()], (places, places), 0.125, True, 32)
    for way in (attend_rows, torch.compile(attend_rows)):
        found = way([joined], (places, places), 0.125, True, 32)
        torch.testing.assert_close(found.float(), plain, rtol=2e-2, atol=2e-2)


def drawn_sum(rows: int, width: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(1)
    sides = [torch.randn(1, rows, width, device=DEVICE, dtype=dtype) for _ in range(2)]
    settings = [torch.randn(width, device=DEVICE), torch.randn(width, device=DEVICE)]
    return [x.requires_grad_() for x in (*sides, *settings)]


def plain_sum(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, kept: Tensor, epsilon: float) -> Tensor:
    return torch.nn.functional.layer_norm(x + y * kept, weight.shape, weight, bias, epsilon)


def with_gradients(found: Tensor, given: list[Tensor]) -> list[Tensor]:
    torch.manual_seed(2)
    return [found, *torch.autograd.grad(found, given, torch.randn_like(found))]


def kept_of(shape: tuple[int, int], dropped: float) -> Tensor:
    """By what each number of y is multiplied with the seeds that come next: seen by the gradient of a sum, y's."""
    x, y, weight, bias = drawn_sum(*shape)
    torch.manual_seed(7)
    found = normed_sum(x, y, weight, bias, dropped, 1e-5)
    to_x, to_y = torch.autograd.grad(found.square().sum(), (x, y))
    return to_y / to_x


@pytest.mark.parametrize("dropped", [0.0, 0.3])
@pytest.mark.parametrize(("rows", "width"), [(5, 16), (7, 40), (3, 3000)])
def test_sum_and_norm_are_those_of_torch_there_and_back(
    rows: int, width: int, dropped: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residual_on_gpu, "PROGRAMS", 2)  # each then has several tokens
    monkeypatch.setattr(residual_on_gpu, "TILE", 32)
    given = drawn_sum(rows, width)
    kept = kept_of((rows, width), dropped)
    torch.testing.assert_close(kept, torch.where(kept > 0.5, 1 / (1 - dropped), 0.0), rtol=1e-3, atol=1e-3)
    kept = torch.where(kept > 0.5, 1 / (1 - dropped), 0.0)
    torch.manual_seed(7)
    found = with_gradients(normed_sum(*given, dropped, 1e-5), given)
    expected = with_gradients(plain_sum(*given, kept, 1e-5), given)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_what_is_dropped_is_even_and_knows_no_neighbours() -> None:
    rows, width = (100, 512) if INTERPRETED else (1000, 512)
    masks = []
    for seed in (1, 2):
        x = torch.zeros(rows, width, device=DEVICE)
        weight, bias = torch.ones(width, device=DEVICE), torch.zeros(width, device=DEVICE)
        torch.manual_seed(seed)
        seeds = (torch.rand(2, device=DEVICE) * 2.0**31).to(torch.int32)
        summed = residual_on_gpu._normed(x, torch.ones_like(x), weight, bias, seeds, 0.1, 1e-5)[1]
        assert summed.unique().tolist() == pytest.approx([0.0, 1 / 0.9])
        masks.append((summed == 0).float())
    far = 5 / (rows * width) ** 0.5  # five deviations of so many draws
    for mask in masks:
        assert mask.mean().item() == pytest.approx(0.1, abs=0.3 * far)
        for axis in (0, 1):
            assert mask.mean(axis).std().item() == pytest.approx((0.09 / mask.size(axis)) ** 0.5, rel=0.15)
            assert (mask * mask.roll(1, axis)).mean().item() == pytest.approx(0.01, abs=0.1 * far)
    assert (masks[0] * masks[1]).mean().item() == pytest.approx(0.01, abs=0.1 * far)


@pytest.mark.skipif(INTERPRETED, reason="for a GPU")
def test_in_bfloat16_and_compiled_sums_are_the_same() -> None:
    narrow = drawn_sum(3000, 512, torch.bfloat16)
    wide = [x.detach().float().requires_grad_() for x in narrow]
    expected = with_gradients(plain_sum(*wide, torch.ones_like(wide[1]), 1e-5), wide)
    for way in (normed_sum, torch.compile(normed_sum)):
        found = with_gradients(way(*narrow, 0.0, 1e-5), narrow)
        assert [x.dtype for x in found] == [torch.bfloat16] * 3 + [torch.float32] * 2
        for one, other in zip(found, expected, strict=True):
            assert ((one.float() - other).norm() / other.norm()).item() < 0.01
