"""Norms on the worked example, against torch.nn, and BatchNorm's promise: padding counts nowhere."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from transduce.kernels import dispatch
from transduce.model.norms import BatchNorm, BatchNormOverTokens, LayerNorm, RMSNorm

EXAMPLE = torch.tensor([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]])  # one sentence, three tokens


def test_the_worked_example() -> None:
    """BatchNorm normalises columns, LayerNorm rows."""
    step = 1.5**0.5  # (3 - 2) / sqrt(2 / 3): the outer numbers of three in a row
    rows = torch.tensor([-step, 0.0, step]).expand(1, 3, 3)
    torch.testing.assert_close(LayerNorm().build(3)(EXAMPLE), rows, atol=1e-4, rtol=0)
    columns = rows.transpose(1, 2)
    torch.testing.assert_close(BatchNorm().build(3).train()(EXAMPLE), columns, atol=1e-4, rtol=0)
    sizes = EXAMPLE.square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(RMSNorm().build(3)(EXAMPLE), EXAMPLE / sizes, atol=1e-5, rtol=0)


def batch() -> tuple[Tensor, Tensor]:
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1)) * 3 + 1
    mask = torch.arange(4) < torch.tensor([4, 2, 1])[:, None]
    return x, mask


def test_batch_norm_is_torch_s_on_the_real_tokens_alone() -> None:
    x, mask = batch()
    ours, theirs = BatchNorm().build(5).train(), nn.BatchNorm1d(5)
    assert isinstance(ours, BatchNormOverTokens)
    for _ in range(3):
        x = x + 0.5
        found, expected = ours(x, mask), theirs(x[mask])
        torch.testing.assert_close(found[mask], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_variance, theirs.running_var)
    ours.eval()
    theirs.eval()
    torch.testing.assert_close(ours(x, mask)[mask], theirs(x[mask]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours(x[:1, :1]), theirs(x[:1, 0]).unsqueeze(1), atol=1e-5, rtol=1e-5)  # one token


def test_what_lies_under_the_mask_moves_no_statistic() -> None:
    x, mask = batch()
    one, other = BatchNorm().build(5).train(), BatchNorm().build(5).train()
    garbage = x.where(mask.unsqueeze(-1), torch.full_like(x, 1e4))
    assert torch.equal(one(x, mask)[mask], other(garbage, mask)[mask])
    assert torch.equal(one.running_mean, other.running_mean)  # type: ignore[arg-type]
    assert torch.equal(one.running_variance, other.running_variance)  # type: ignore[arg-type]


def test_a_batch_of_one_token_gives_no_nan() -> None:
    norm = BatchNorm().build(3).train()
    found = norm(torch.ones(1, 1, 3))
    assert found.isfinite().all()
    assert all(buffer.isfinite().all() for buffer in norm.buffers())


def test_half_precision_goes_through_and_comes_back() -> None:
    x, mask = batch()
    for config in (LayerNorm(), RMSNorm(), BatchNorm()):
        module = config.build(5).train()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = module(x.bfloat16(), mask)
        torch.testing.assert_close(found.float(), module(x, mask), atol=0.06, rtol=0.06)


def test_the_kernel_of_a_gpu_is_for_what_it_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu = SimpleNamespace(is_cuda=True, dtype=torch.bfloat16, size=lambda axis: 512)
    monkeypatch.setattr(dispatch, "training", SimpleNamespace(WIDEST=512))
    assert dispatch.residual_kernels(on_gpu) is dispatch.training  # type: ignore[arg-type]
    for other in ({"is_cuda": False}, {"dtype": torch.float64}, {"size": lambda axis: 513}):
        assert dispatch.residual_kernels(SimpleNamespace(**{**vars(on_gpu), **other})) is None  # type: ignore[arg-type]
    monkeypatch.setattr(dispatch, "training", None)
    assert dispatch.residual_kernels(on_gpu) is None  # type: ignore[arg-type]
