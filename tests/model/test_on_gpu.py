"""The attention kernel for packed sentences against equation 1, on a GPU or in Triton's interpreter.

TRITON_INTERPRET=1 python -m pytest tests/model/test_on_gpu.py
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

from transduce.model.attention_on_gpu import attend_rows  # noqa: E402

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
    ways = []
    for way in (attend_rows, row_by_row):
        query, key, value = (x.detach().requires_grad_() for x in given)
        out = way(query, key, value, (places[0], places[1]), 0.3, causal, longest)
        torch.manual_seed(2)
        ways.append([out, *torch.autograd.grad(out, (query, key, value), torch.randn_like(out))])
    torch.testing.assert_close(*ways, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(INTERPRETED, reason="for a GPU")
def test_in_bfloat16_and_compiled_it_is_the_same() -> None:
    torch.manual_seed(1)
    places = starts([20, 7, 30])
    query, key, value = torch.randn(3, 64, 4, 64, device=DEVICE, dtype=torch.bfloat16).unbind(0)
    plain = row_by_row(query.float(), key.float(), value.float(), (places, places), 0.125, True, 32)
    for way in (attend_rows, torch.compile(attend_rows)):
        found = way(query, key, value, (places, places), 0.125, True, 32)
        torch.testing.assert_close(found.float(), plain, rtol=2e-2, atol=2e-2)
