"""Every file in configs/ loads, opens with its command and the result it gave, and every preset takes a step."""

from pathlib import Path

import pytest
import torch

from transduce import config
from transduce.data.batch import collate
from transduce.data.prepare import Prepare
from transduce.data.symbols import Symbols
from transduce.experiment import Config
from transduce.objectives.base import Step

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.toml"))
SYMBOLS = Symbols(pad=0, bos=2, eos=3, unk=1)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_opens_with_command_and_result(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").split("\n")
    head = [line for line in lines[:12] if line.startswith("#")]
    assert any(line.startswith("#   transduce ") for line in head)
    result = [line for line in head if line.startswith("# Result: ")]
    assert result
    assert any(character.isdigit() for character in result[0]), "the result must be a figure"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_loads(path: Path) -> None:
    if path.name.endswith(".prepare.toml"):
        assert config.load(Prepare, path).train
    else:
        assert config.load(Config, path).data.folder


@pytest.mark.parametrize("name", [*(p for p in config.presets() if p != "big"), *CONFIGS], ids=str)
def test_takes_a_step(name: str | Path) -> None:
    if str(name).endswith(".prepare.toml"):
        pytest.skip("prepares a corpus; test_loads covers it")
    chosen = config.load(Config, name)
    torch.manual_seed(1)
    model = chosen.model.build(50, 50, shared=True)
    batch = collate([[5, 6, 7], [8]], [[9, 10], [11, 12, 13]], SYMBOLS, SYMBOLS)
    loss = Step(model, chosen.objective.build())(batch, 0)
    loss.total.backward()
    assert loss.total.isfinite()
    assert all(parameter.grad is not None for parameter in model.parameters())
