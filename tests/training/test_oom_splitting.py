"""Out of memory: the batch is halved, the update is what it would have been, and it is said once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import toys

from transduce.core.errors import RunError
from transduce.data.batch import Batch, collate
from transduce.data.stream import Portion
from transduce.objectives import Loss, ObjectiveStep
from transduce.text.vocabulary import Symbols
from transduce.training.step_runner import OomSplitter, halves

SYMBOLS = Symbols(pad=0, bos=2, eos=3, unk=1, never=(0, 1, 2))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.corpus(tmp_path_factory.mktemp("toy"), toys.reversals(100), toys.reversals(10, seed=2))


class Small:
    """Memory for so many pairs: a pass over more fails after its first gradients are there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.failures = 0
        forward = ObjectiveStep.forward

        def limited(step: ObjectiveStep, batch: Batch, number: int) -> Loss:
            loss = forward(step, batch, number)
            if len(batch.source) <= most:
                return loss
            return replace(loss, total=_Fails.apply(loss.total, self))  # type: ignore[no-untyped-call]

        monkeypatch.setattr(ObjectiveStep, "forward", limited)


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, total: torch.Tensor, small: Small) -> torch.Tensor:
        ctx.small = small
        return total.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.small.failures += 1
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


SETTINGS = ("model.dropout=0.0", "training.steps=6", "training.accumulate=2")


@pytest.mark.parametrize("more", [(), ("data.shapes=2",)], ids=["padded", "packed"])
def test_halved_the_updates_are_the_same(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
) -> None:
    toys.run(corpus, tmp_path / "whole", *SETTINGS, *more)
    capsys.readouterr()
    small = Small(monkeypatch, most=16)
    toys.run(corpus, tmp_path / "halved", *SETTINGS, *more)
    whole, halved = toys.final(tmp_path / "whole"), toys.final(tmp_path / "halved")
    for name, tensor in whole.tensors["model"].items():
        if name.endswith("key.bias"):  # softmax does not see it: its gradient is rounding, which Adam makes large
            continue
        torch.testing.assert_close(halved.tensors["model"][name], tensor, rtol=1e-3, atol=1e-5)
    curves = [[entry["loss"] for entry in toys.reports(tmp_path / name)] for name in ("whole", "halved")]
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)
    said = [line for line in capsys.readouterr().err.split("\n") if "out of memory" in line]
    assert 1 <= len(said) == small.failures <= 3  # once for each shape
    assert "step 1: out of memory on " in said[0]
    assert "(CUDA out of memory); such batches are halved from here on" in said[0]


@pytest.mark.parametrize(
    ("most", "more"), [(4, ()), (16, ("model.encoder.norm=batch_norm",))], ids=["halves are too large", "counting"]
)
def test_where_halves_do_not_help_the_setting_is_named(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, more: tuple[str, ...]
) -> None:
    Small(monkeypatch, most)
    with pytest.raises(RunError, match=r"out of memory at step 1: lower data\.tokens \(now 160\)"):
        toys.run(corpus, tmp_path / "run", *SETTINGS, *more)


def test_packed_halves_have_a_capacity_of_their_own() -> None:
    lines = [[5] * length for length in range(1, 8)]
    batch = replace(collate(lines, lines, SYMBOLS, SYMBOLS, 8, 8, rows=9), capacity=(400, 400))
    upper, lower = halves(batch)
    assert [len(half.source) for half in (upper, lower)] == [5, 4]
    assert torch.equal(torch.cat((upper.target, lower.target)), batch.target)
    assert upper.capacity == lower.capacity == (256, 256)
    assert halves(replace(batch, capacity=(0, 0)))[0].capacity == (0, 0)


def test_every_pass_of_a_step_draws_its_own_dropout() -> None:
    """Both halves of a halved micro-batch, its whole, and the other micro-batches of a step; and the same again."""
    lines = [[5, 6, 7]] * 4
    batch = collate(lines, lines, SYMBOLS, SYMBOLS)
    drawn: list[tuple[int, float]] = []

    class Drawing:
        drops_gradients = True

        def __init__(self, most: int) -> None:
            self.most = most

        def __call__(self, part: Batch, *_: object) -> Loss:
            drawn.append((len(part.source), torch.rand(1, dtype=torch.float64).item()))
            if len(part.source) > self.most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
            return Loss(torch.zeros(()), torch.ones(()), {})

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    session: Any = SimpleNamespace(optimizer=optimizer, device=torch.device("cpu"), progress=SimpleNamespace(step=7))
    held = [(Portion(0, number, number, 0, batch), batch) for number in range(2)]
    found: list[list[tuple[int, float]]] = []
    for most in (4, 2, 2):
        drawn.clear()
        OomSplitter(Drawing(most), session, 1, False, lambda _: None)(held)  # type: ignore[arg-type]
        found.append(list(drawn))
    whole, halved, again = found
    assert halved == again  # a step that is repeated draws the same
    assert [rows for rows, _ in whole] == [4, 4]
    assert [rows for rows, _ in halved] == [4, 2, 2, 2, 2]  # the first ran out of memory
    assert halved[0] == whole[0]
    draws = [number for _, number in halved[1:]]
    assert len(set(draws)) == 4
    assert draws[1::2] != [number for _, number in whole]
