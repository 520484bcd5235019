"""Optimizers of one's own: divided by the count, clipped and guarded before `step`, whatever they know of it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import toys
from parameter_states import equal, give_gradients, moments, values
from snapshots import same_tensors
from torch import nn

from transduce.core.errors import ConfigError, RunError
from transduce.training.checkpoint import Snapshot, read_tensors, step_folders
from transduce.training.optimizer import Adam, AdamW, Muon, obeys, update
from transduce.training.session import Session

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
RATE = 0.02
FOREIGN: dict[str, Make] = {
    "SGD": lambda owners: torch.optim.SGD(owners, lr=1.0, momentum=0.9),
    "Adagrad": torch.optim.Adagrad,
    "Adafactor": torch.optim.Adafactor,
    "RMSprop": torch.optim.RMSprop,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Adamax": torch.optim.Adamax,
    "Adadelta": torch.optim.Adadelta,
    "ASGD": torch.optim.ASGD,
    "Muon": torch.optim.Muon,
}
PLUG = """
from dataclasses import dataclass
import torch

@dataclass(frozen=True)
class Own:
    name: str = "SGD"

    def build(self, parameters, tables=()):
        parameters = list(parameters)
        if self.name == "Muon":  # torch's takes matrices alone
            parameters = [p for p in parameters if p.dim() == 2]
        return Counting(parameters, {}) if self.name == "Counting" else getattr(torch.optim, self.name)(parameters)

@dataclass(frozen=True)
class Five:
    def build(self, parameters, tables=()):
        return 5

@dataclass(frozen=True)
class Raising:
    def build(self, parameters, tables=()):
        raise RuntimeError("no luck")

@dataclass(frozen=True)
class Argumentless:
    def build(self):
        return torch.optim.SGD([])

class Counting(torch.optim.Optimizer):  # keeps numbers beside tensors, as many do
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            assert type(state.get("steps", 0)) is int and type(state.get("share", 0.0)) is float
            state["steps"], state["share"], state["none"] = state.get("steps", 0) + 1, state.get("share", 1.0) / 3, None
            parameter.data.sub_(parameter.grad, alpha=1e-3 * state["share"] * state["steps"])
"""


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((5, 7), (4, 3), (6, 6))]


def reference_step(optimizer: torch.optim.Optimizer, owners: list[nn.Parameter], count: float, clip: float) -> None:
    """What an update is, by hand: the mean gradient, scaled down to a norm of `clip`, and a step of torch's."""
    means = [parameter.grad / count for parameter in owners if parameter.grad is not None]
    norm = math.sqrt(sum(mean.double().square().sum().item() for mean in means))
    for parameter, mean in zip(owners, means, strict=True):
        parameter.grad = mean * min(1.0, clip / norm) if clip else mean
    for group in optimizer.param_groups:
        group["lr"] = RATE
    optimizer.step()


@pytest.mark.parametrize("clip", [0.0, 0.5, 1e6], ids=["off", "binds", "does-not-bind"])
@pytest.mark.parametrize("name", FOREIGN)
def test_gradients_are_divided_and_clipped_before_the_step(name: str, clip: float) -> None:
    ours, theirs = parameters(), parameters()
    optimizer, reference = FOREIGN[name](ours), FOREIGN[name](theirs)
    for step in range(4):
        count = 1000.0 + step
        give_gradients(ours, seed=step, scale=count)
        give_gradients(theirs, seed=step, scale=count)
        norm, skipped = update(optimizer, RATE, torch.tensor(count), clip)
        assert norm == pytest.approx(math.sqrt(sum(p.grad.square().sum().item() for p in theirs)) / count)  # type: ignore[union-attr]
        reference_step(reference, theirs, count, clip)
        assert skipped == 0
        for mine, other in zip(values(ours), values(theirs), strict=True):
            # Muon's own step is in bfloat16, where a last bit of its input is a thousandth of its output.
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=2e-4 if name == "Muon" else 1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 3e38], ids=str)
@pytest.mark.parametrize("when", [0, 2])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_gradient_that_is_not_finite_leaves_no_trace(name: str, when: int, bad: float) -> None:
    found = []
    for steps in ([*range(when), None, *range(when, 4)], list(range(4))):
        owners = parameters()
        optimizer = FOREIGN[name](owners)
        for step in steps:
            before = values(owners)
            give_gradients(owners, seed=step or 0)
            if step is None:
                assert owners[1].grad is not None
                owners[1].grad[2, 1] = bad
            norm, skipped = update(optimizer, RATE, torch.tensor(5.0), clip=1.0)
            assert skipped == (step is None)
            assert norm.isfinite() == (step is not None)
            assert equal(values(owners), before) == (step is None)
        found.append((values(owners), moments(optimizer, owners)))
    assert equal(found[0][0], found[1][0])
    assert equal(found[0][1], found[1][1])


def test_what_no_checkpoint_can_hold_is_said(corpus: Path, tmp_path: Path) -> None:
    config = toys.config(corpus)
    session = Session(config, config.model.build(30, 30, True), torch.device("cpu"))
    first = next(iter(session.model.parameters()))
    session.optimizer.state[first]["history"] = [1, 2]
    with pytest.raises(RunError, match=r"the optimizer keeps a list as 'history' of .*, which no checkpoint can hold"):
        session.snapshot()


def test_who_says_that_it_obeys() -> None:
    """PyTorch's fused optimizers and ours do as they are told by `grad_scale`; nobody else is trusted to."""
    for config in (Adam(), AdamW(), Muon()):
        assert obeys(config.build([*parameters(), nn.Parameter(torch.ones(3))]))
    assert obeys(torch.optim.SGD(parameters(), lr=0.1, fused=True))
    for make in FOREIGN.values():
        assert not obeys(make(parameters()))
    assert not obeys(torch.optim.AdamW(parameters()))


# -- in a run ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pairs = toys.reversals(70)
    return toys.corpus(tmp_path_factory.mktemp("toy"), pairs[:60], pairs[60:])


@pytest.fixture
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "plug.py").write_text(PLUG)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "plug", raising=False)
    return "training.optimizer.kind=plug:Own"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Five", "gave 5, which has no param_groups, state, step, zero_grad; expected build"),
        ("Raising", "raised RuntimeError: no luck (FILE:23); expected build"),
    ],
)
def test_a_build_that_fails_is_reported(corpus: Path, tmp_path: Path, plugged: str, name: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        toys.run(corpus, tmp_path / "run", plugged.replace("Own", name))
    told = told.replace("FILE", str(tmp_path / "plug.py"))
    assert str(caught.value).startswith(f"training.optimizer: build of 'plug:{name}' {told}")
    assert "docs/training.md shows (Optimizers)" in str(caught.value)


def test_a_build_without_arguments_is_refused_before_it_is_called(corpus: Path, plugged: str) -> None:
    with pytest.raises(
        ConfigError, match=r"plug:Argumentless' has 'build\(self\)' in place of 'build\(self, parameters"
    ):
        toys.config(corpus, plugged.replace("Own", "Argumentless"))


EVERY_STEP = ("training.save_every=1", "training.keep_last=100")
QUIET = ("training.steps=6", "training.learning_rate.rate=1e-3", "model.dropout=0.0", "validation.every=100")


def test_micro_batches_are_divided_once_by_the_count_of_all(corpus: Path, tmp_path: Path, plugged: str) -> None:
    """SGD moves by the gradient itself, so that the length of a move is the rate times the norm that is reported."""
    run, own = tmp_path / "run", (plugged, "training.accumulate=3", "training.clip=2.4", *EVERY_STEP)
    toys.run(corpus, run, *own, *QUIET)
    norms = [report["gradient_norm"] for report in toys.reports(run)]
    assert min(norms) < 2.4 < max(norms)  # some are clipped
    kept = {step: read_tensors(folder, "model") for step, folder in step_folders(run).items()}
    for step in range(2, 7):
        moves = [(kept[step][name] - kept[step - 1][name]).double() for name in kept[step]]
        length = math.sqrt(sum(move.square().sum().item() for move in moves))
        assert length == pytest.approx(1e-3 * min(2.4, norms[step - 1]), rel=1e-2)


@pytest.mark.parametrize("name", [*FOREIGN, "Counting"])
def test_a_run_resumes_bit_identically(corpus: Path, tmp_path: Path, plugged: str, name: str) -> None:
    own = (plugged, f"training.optimizer.name={name}", *QUIET)
    toys.run(corpus, tmp_path / "whole", *own)
    toys.run(corpus, tmp_path / "parts", *own, "training.steps=3")
    toys.run(corpus, tmp_path / "parts", *own)
    parts, whole = toys.final(tmp_path / "parts").tensors, toys.final(tmp_path / "whole").tensors
    assert parts.keys() == whole.keys()
    assert all(same_tensors(parts[stem], whole[stem]) for stem in whole)
    losses = [report["loss"] for report in toys.reports(tmp_path / "whole")]
    assert max(losses) < losses[0] * 1.2  # not divided by the count, the first moves were 1,000 times too large


def test_a_checkpoint_without_the_tensors_of_a_run_is_refused(corpus: Path) -> None:
    config = toys.config(corpus)
    session = Session(config, config.model.build(30, 30, True), torch.device("cpu"))
    tensors = session.snapshot().tensors
    for stem in ("model", "optimizer"):
        others = {name: own for name, own in tensors.items() if name != stem}
        with pytest.raises(RunError, match=f"here: has no tensors of the {stem}. This checkpoint cannot be used"):
            session.restore(Snapshot(0, others, {}), "here")
