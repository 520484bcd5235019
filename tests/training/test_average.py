"""Averaging checkpoints: the exact mean, and a refusal of what has none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from transduce.core.errors import RunError
from transduce.training.averages import average
from transduce.training.checkpoint import Snapshot, save_checkpoint


def saved(run: Path, *models: dict[str, Tensor]) -> list[Path]:
    return [save_checkpoint(run, Snapshot(step, {"model": model}, {})) for step, model in enumerate(models)]


def test_the_mean_is_exact_and_keeps_types(tmp_path: Path) -> None:
    models = [{"w": torch.randn(5), "h": torch.randn(3).bfloat16(), "n": torch.tensor([4])} for _ in range(5)]
    mean = average(saved(tmp_path, *models))
    assert torch.equal(mean["w"], torch.stack([model["w"].double() for model in models]).sum(0).div(5).float())
    assert torch.equal(mean["h"], torch.stack([model["h"].double() for model in models]).sum(0).div(5).bfloat16())
    assert torch.equal(mean["n"], torch.tensor([4]))
    assert mean["w"].dtype == torch.float32


def test_float32_sums_would_lose_what_float64_keeps(tmp_path: Path) -> None:
    models = [{"w": torch.tensor([value])} for value in (1e8, 1.0, -1e8)]
    assert average(saved(tmp_path, *models))["w"].item() == pytest.approx(1 / 3, rel=1e-6)


def test_one_checkpoint_is_its_own_mean(tmp_path: Path) -> None:
    model = {"w": torch.randn(100), "h": torch.randn(100).half()}
    mean = average(saved(tmp_path, model))
    assert all(torch.equal(mean[name], model[name]) for name in model)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"w": torch.ones(3)}, r"step-00000001: the tensors do not fit the model: 1 missing: n"),
        ({"w": torch.ones(2), "n": torch.tensor(1)}, r"1 of the wrong shape: w \[2\] instead of \[3\]"),
        (
            {"w": torch.ones(3).half(), "n": torch.tensor(1)},
            r"step-00000001: w is torch.float16, but torch.float32 in ",
        ),
        (
            {"w": torch.ones(3), "n": torch.tensor(2)},
            r"step-00000001: n holds integers that differ from those in ",
        ),
    ],
)
def test_what_cannot_be_averaged_is_refused(tmp_path: Path, second: dict[str, Tensor], message: str) -> None:
    paths = saved(tmp_path, {"w": torch.ones(3), "n": torch.tensor(1)}, second)
    with pytest.raises(RunError, match=message) as caught:
        average(paths)
    if "from those in" in message:
        assert str(caught.value).endswith(str(paths[0]))


def test_nothing_and_damage_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no checkpoints to average; name at least one folder"):
        average([])
    paths = saved(tmp_path, {"w": torch.ones(3)})
    (paths[0] / "model.safetensors").write_bytes(b"ruined")
    with pytest.raises(RunError, match=r"step-00000000: model.safetensors: 6 bytes, expected"):
        average(paths)
