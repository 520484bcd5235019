"""Muon against torch's own one matrix at a time, what gets it, and holding still when a gradient is not finite."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from transduce.errors import ConfigError
from transduce.training.muon import orthogonal
from transduce.training.optimizer import Muon, update


def weights(seed: int = 1) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(6, 4), (4, 6), (6, 4), (5,), (9, 4)]
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def give_gradients(parameters: list[nn.Parameter], seed: int, times: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = times * torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 5, 9), (2, 9, 5)])
def test_singular_values_become_about_one_and_vectors_stay(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    found = orthogonal(matrices)
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    inside = left.mT @ found @ right.mT  # diagonal if the singular vectors are the same
    diagonal = inside.diagonal(dim1=-2, dim2=-1)
    assert (inside - torch.diag_embed(diagonal)).abs().max() < 1e-4
    well_conditioned = values > 0.05 * values.amax(-1, keepdim=True)
    assert (diagonal[well_conditioned] > 0.5).all()
    assert (diagonal < 1.3).all()


def test_matrices_move_as_with_torch_and_the_rest_as_with_adamw() -> None:
    """In float32 here and bfloat16 there: close, not equal."""
    ours, theirs = weights(), weights()
    table = ours[4]
    optimizer = Muon(weight_decay=0.1).build(ours, [table])
    muon = torch.optim.Muon(theirs[:3], lr=0.0, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(theirs[3:], lr=0.0, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0)
    for step in range(4):
        give_gradients(ours, seed=step, times=7.0)
        give_gradients(theirs, seed=step)
        update(optimizer, 0.02, torch.tensor(7.0), clip=0.0)
        for other in (muon, adam):
            other.param_groups[0]["lr"] = 0.02
            other.step()
    for mine, other in zip(ours[:3], theirs[:3], strict=True):
        torch.testing.assert_close(mine, other, atol=2e-3, rtol=2e-2)
    for mine, other in zip(ours[3:], theirs[3:], strict=True):
        torch.testing.assert_close(mine, other, atol=1e-6, rtol=1e-5)


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    parameters = weights()
    optimizer = Muon().build(parameters, [parameters[4]])
    give_gradients(parameters, seed=1)
    update(optimizer, 0.1, torch.tensor(1.0), clip=0.0)
    before = [p.detach().clone() for p in parameters]
    momentum: list[Tensor] = [optimizer.state[p]["momentum"].clone() for p in parameters[:3]]
    give_gradients(parameters, seed=2)
    assert parameters[1].grad is not None
    parameters[1].grad[0, 0] = torch.inf
    _, skipped = update(optimizer, 0.1, torch.tensor(1.0), clip=0.0)
    assert skipped == 1
    assert all(torch.equal(p, old) for p, old in zip(parameters, before, strict=True))
    for parameter, old in zip(parameters[:3], momentum, strict=True):
        assert torch.equal(optimizer.state[parameter]["momentum"], old)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"momentum": 1.0}, "momentum: expected a number from 0 up to 1, got 1.0"),
        ({"weight_decay": -1.0}, "weight_decay: expected 0 or more, got -1.0"),
        ({"epsilon": 0.0}, "epsilon: expected a number above 0, got 0.0"),
        ({"beta1": 1.0}, "beta1: expected a number from 0 up to 1, got 1.0"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, float], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        Muon(**settings)
    assert str(error.value) == text
