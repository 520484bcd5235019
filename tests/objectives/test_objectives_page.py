"""The TOML of docs/objectives.md loads as printed and takes a step."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from term_models import V, aligned

from transduce.core import config as configs
from transduce.experiment import Config
from transduce.objectives import ObjectiveContext, ObjectiveStep
from transduce.objectives.terms import Term

PAGE = (Path(__file__).parent.parent.parent / "docs" / "objectives.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```toml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_every_term_has_an_example() -> None:
    named = set(re.findall(r'kind = "(\w+)"', PAGE))
    assert {term.kind for term in Term.__args__} <= named


@pytest.mark.parametrize("text", BLOCKS, ids=range(len(BLOCKS)))
def test_an_example_loads_and_takes_a_step(text: str, tmp_path: Path) -> None:
    file = tmp_path / "documented.toml"
    file.write_text(f'extends = "tiny"\n{text}', encoding="utf-8")
    config = configs.load(Config, file)
    assert config != configs.load(Config, "tiny")
    torch.manual_seed(1)
    model = config.model.build(V, V, shared=True)
    teacher = replace(config.model, heads=())
    context = ObjectiveContext(
        vocabulary=V, teacher=lambda folder: teacher.build(V, V, True).requires_grad_(False).eval()
    )
    loss = ObjectiveStep(model, config.objective.build(context))(aligned([[5, 6, 7], [8]], [[9, 10], [11, 12, 13]]), 0)
    loss.total.backward()
    assert loss.total.isfinite()
    assert all(p.grad is not None for p in model.parameters())
