"""A training step never waits for the device: on a GPU each value read would drain the queue.

What the loss asks on a CPU alone, where the answer is at hand, is passed over.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import toys
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from transduce.data.stream import Portion
from transduce.objectives import cross_entropy
from transduce.objectives.cross_entropy import _ProjectedLosses
from transduce.training.loop import _Run

ASKING = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default, torch.ops.aten.nonzero.default}
METHODS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__")


class Unasked(TorchDispatchMode):
    """Reading any value is an error."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in ASKING:
            raise AssertionError(f"a step waits for the device: {function}")
        return function(*args, **(kwargs or {}))


def as_on_a_gpu(
    states: Tensor, weight: Tensor, gold: Tensor, mask: Tensor, smoothing: float, bias: Tensor | None = None
) -> Tensor:
    if torch.is_autocast_enabled("cpu"):
        states = states.to(torch.bfloat16)
    sums: Tensor = _ProjectedLosses.apply(states, weight, bias, gold, mask, smoothing)  # type: ignore[no-untyped-call]
    return sums


def refuse(tensor: torch.Tensor, *_: Any) -> NoReturn:
    raise AssertionError("a step waits for the device")


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the updates that were made under watch."""
    updates: list[int] = []
    monkeypatch.setattr(cross_entropy, "projected_losses", as_on_a_gpu)
    written = _Run._update

    def update(run: _Run, portions: list[Portion]) -> None:
        with monkeypatch.context() as inside, Unasked():
            for name in METHODS:
                inside.setattr(torch.Tensor, name, refuse)
            written(run, portions)
        updates.append(run.session.progress.step)

    monkeypatch.setattr(_Run, "_update", update)
    return updates


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.corpus(tmp_path_factory.mktemp("toy"), toys.reversals(60))


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("data.shapes=2", "training.clip=1", "training.ema=0.9"),
        ("objective=r_drop", "training.precision=bf16", "training.accumulate=2"),
        ("training.optimizer=adam_w", "model.encoder.norm=batch_norm", "model.encoder.positions=rotary"),
    ],
    ids=["plain", "packed", "r_drop", "batch_norm"],
)
def test_a_step_asks_for_no_number(
    corpus: Path, tmp_path: Path, watched: list[int], overrides: tuple[str, ...]
) -> None:
    toys.run(corpus, tmp_path / "run", "training.steps=4", "training.report_every=4", *overrides)
    assert len(watched) == 4


def test_the_watch_sees_what_it_should() -> None:
    with pytest.raises(AssertionError), Unasked():
        float(torch.ones(()))
