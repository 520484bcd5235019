"""Kernels of the beam step against static_search.py: ties in order, ends, limits, slots.

With a GPU, or TRITON_INTERPRET=1, the kernels themselves; without, only that choices go through them.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from transduce.kernels import dispatch
from transduce.model.contract import CacheShape
from transduce.search.constraints import UNCONSTRAINED, DecodingConstraints
from transduce.search.settings import Beam, Greedy, Limits, Sample
from transduce.search.static_search import (
    PrefillBatch,
    StaticSearchConfig,
    StaticSearchState,
    StaticSearchStep,
    StepConstants,
)
from transduce.text.vocabulary import Symbols

SYMBOLS = Symbols(pad=0, bos=2, eos=3, unk=1, never=(0, 1, 2))
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
KERNELS: Any = dispatch.decoding if INTERPRETED or torch.cuda.is_available() else None
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
ROOM = CacheShape(sentences=4, paths=0, source=4, length=8)


def stepper_of(search: Any, vocabulary: int, constraints: DecodingConstraints = UNCONSTRAINED) -> Any:
    plan = StaticSearchConfig.of(search, [constraints], SYMBOLS, vocabulary)
    assert plan
    phrases = (len(constraints.exclude), len(constraints.exclude[0])) if constraints.exclude else (0, 0)
    room = replace(ROOM, paths=plan.paths)
    state = StaticSearchState.of(room, plan.kept, len(constraints.prefix), phrases, DEVICE)
    nobody: Any = None
    return StaticSearchStep(nobody, nobody, state, plan, StepConstants.of(plan, state))


def come_in(stepper: StaticSearchStep, slots: list[int], longest: list[int]) -> None:
    plan, count = stepper.plan, len(slots)
    shortest = torch.full((count,), plan.limits.shortest)
    nothing = torch.zeros(count, 0, dtype=torch.int64)
    streams = torch.zeros(count, plan.paths, dtype=torch.int64)
    parts = (nothing, nothing, torch.tensor(slots), torch.tensor(longest), shortest, nothing)
    arrivals = PrefillBatch(*(part.to(DEVICE) for part in (*parts, nothing.view(count, 0, 0), streams)))
    stepper.state.admit(arrivals, SYMBOLS)


def tensors(state: StaticSearchState) -> dict[str, Tensor]:
    """What is on it and means something: where no hypothesis is, nothing is said of its end."""
    parts = {field.name: getattr(state, field.name).clone() for field in dataclasses.fields(state)}
    parts["finished"][parts["finished"][..., 0] == -torch.inf] = 0
    parts["chosen"][:, 0] = parts["token_log_probs"][:, 0] = 0
    parts["newest"][parts["done"]] = 0
    parts["ancestors"][parts["done"]] = 0
    return parts


@pytest.mark.skipif(KERNELS is None, reason="needs triton, and a GPU or TRITON_INTERPRET=1")
@pytest.mark.parametrize(
    ("vocabulary", "tile", "rounding"), [(20, 64, torch.float32), (200, 64, torch.bfloat16), (500, 512, torch.float32)]
)
@pytest.mark.parametrize(
    "search",
    [
        Greedy(),
        Greedy(Limits(shortest=2, forbid=(5, 6))),
        Beam(1),
        Beam(4),
        Beam(3, n_best=3, length_penalty=-1.0, limits=Limits(shortest=2)),
        Beam(5, n_best=2, length_penalty=0.0, limits=Limits(forbid=(7,))),
        Beam(3, n_best=2, length_penalty=1.0, length_normalization="power"),
    ],
    ids=str,
)
def test_the_same_is_written(
    search: Any, vocabulary: int, tile: int, rounding: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KERNELS, "_tile", lambda rows, vocabulary: tile)
    by_kernel, plainly = (stepper_of(search, vocabulary) for _ in range(2))
    chooser = torch.Generator().manual_seed(vocabulary)
    for step in range(9):
        for stepper in (by_kernel, plainly):
            if step in (0, 5):  # one slot stays empty, two are taken over
                come_in(stepper, [0, 1, 3] if step == 0 else [3, 0], [8, 3, 5][: 3 if step == 0 else 2])
        shape = 4, by_kernel.plan.paths, vocabulary
        logits = torch.randn(shape, generator=chooser)
        logits[..., SYMBOLS.eos] += 2.0
        if step % 2:  # many equals
            logits = (logits * 2).round() / 2
        logits = logits.to(DEVICE, rounding)
        constants = by_kernel.constants
        if by_kernel.plan.beam:
            KERNELS.expand(logits, by_kernel.state, constants.barred, constants.rules)
        else:
            KERNELS.greedy_step(logits, by_kernel.state, constants.barred, SYMBOLS.eos)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dispatch, "search_kernels", lambda *_: None)
            plainly.choose(logits)
        torch.testing.assert_close(tensors(by_kernel.state), tensors(plainly.state), rtol=1e-5, atol=1e-5)
    assert plainly.state.done.any()


@pytest.mark.parametrize(
    ("search", "constraints", "asked"),
    [
        (Greedy(), UNCONSTRAINED, "greedy_step"),
        (Beam(2), UNCONSTRAINED, "expand"),
        (Beam(2, shrinking=True), UNCONSTRAINED, ""),
        (Sample(), UNCONSTRAINED, ""),
        (Greedy(Limits(no_repeat=2)), UNCONSTRAINED, ""),
        (Beam(2), DecodingConstraints(prefix=(5,)), ""),
        (Beam(2), DecodingConstraints(exclude=((5,),)), ""),
    ],
    ids=str,
)
def test_one_token_steps_go_through_the_kernels(
    search: Any, constraints: DecodingConstraints, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    kernels = SimpleNamespace(
        greedy_step=lambda *_: seen.append("greedy_step"), expand=lambda *_: seen.append("expand")
    )
    monkeypatch.setattr(dispatch, "search_kernels", lambda logits, paths, vocabulary: kernels)
    stepper = stepper_of(search, 20, constraints)
    stepper.choose(torch.randn(4, stepper.plan.paths, 20, device=DEVICE))
    assert "".join(seen) == asked
