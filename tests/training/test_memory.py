"""Memory: a model that no machine holds is refused before it is built, in words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import toys

from transduce.core.errors import ConfigError, RunError, explaining_shortage
from transduce.data.corpus import Corpus
from transduce.training import machine


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.corpus(tmp_path_factory.mktemp("toy"), toys.reversals(60))


@pytest.mark.parametrize("setting", ["model.d_model=1048576", "model.encoder.d_ff=1048576 model.d_model=524288"])
def test_a_model_that_memory_does_not_hold_is_not_built(corpus: Path, tmp_path: Path, setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        toys.run(corpus, tmp_path / "run", *setting.split())
    assert str(caught.value).startswith(
        "model: lower model.d_model, or d_ff and layers of model.encoder and model.decoder: its weights would have "
    )
    assert str(caught.value).endswith(" GiB of memory are free")
    assert not (tmp_path / "run" / "config.toml").exists()


def test_what_is_there_is_compared_with_what_is_needed(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, tokenizers = toys.config(corpus).model, Corpus.open(corpus).tokenizers
    built = machine.build_model(config, tokenizers, seed=1)
    torch.manual_seed(1)
    alike = config.build(tokenizers.source.size, tokenizers.target.size, tokenizers.shared)
    for name, tensor in built.weights().items():
        assert torch.equal(tensor, alike.weights()[name])
    tensors = {id(tensor): tensor.nbytes for tensor in (*built.parameters(), *built.buffers())}
    monkeypatch.setattr(machine, "available_memory", lambda: sum(tensors.values()))
    machine.build_model(config, tokenizers, seed=1)
    monkeypatch.setattr(machine, "available_memory", lambda: sum(tensors.values()) - 1)
    with pytest.raises(ConfigError, match=r"its weights would have 0\.0 GiB, and 0\.0 GiB of memory are free"):
        machine.build_model(config, tokenizers, seed=1)


def test_the_memory_of_this_machine() -> None:
    assert 1 << 20 < machine.available_memory() < 1 << 50


def test_sizes_that_torch_cannot_count_are_a_shortage() -> None:
    for make in (lambda: torch.empty(1 << 40, 1 << 40), lambda: torch.empty(1 << 62, dtype=torch.float64)):
        with pytest.raises(RunError, match="out of memory while trying"), explaining_shortage(lambda: "while trying"):
            make()
