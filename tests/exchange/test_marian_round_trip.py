"""Out to Marian's format and in again: the same weights to the bit, tokens and search; needs no other system."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import random_runs
import safetensors.torch
import torch

import transduce
from transduce.core.errors import UserError
from transduce.exchange.marian_config import sines_first, take_turns
from transduce.model.positions import sinusoids
from transduce.model.seq2seq import Model
from transduce.text.tokenizer import Tokenizers
from transduce.training.run_folder import open_model

MODELS: dict[str, tuple[Model, Tokenizers | None]] = {
    "paper": (random_runs.transformer(), None),
    "target": (random_runs.transformer(tie="target", activation="gelu", output_bias=True), None),
    "untied": (random_runs.transformer(tie="none", activation="silu"), None),
    "odd": (random_runs.transformer(15, 3), None),
}


@pytest.mark.parametrize("d_model", [1, 2, 7, 16])
def test_positions_in_halves_are_the_waves_in_turns(d_model: int) -> None:
    """As their code makes them: sines of even places, then cosines of odd ones."""
    places = torch.arange(d_model)
    angle = torch.arange(50, dtype=torch.float64)[:, None] / 10000.0 ** (2 * (places // 2) / d_model)
    halves = torch.cat((angle[:, 0::2].sin(), angle[:, 1::2].cos()), dim=1).float()
    torch.testing.assert_close(halves[:, take_turns(d_model)], sinusoids(50, d_model))
    assert torch.equal(take_turns(d_model)[sines_first(d_model)], places)


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_everything_comes_back(name: str, pickled: bool, tmp_path: Path) -> None:
    run = random_runs.run(tmp_path / "run", *MODELS[name])
    folder = transduce.export(run, tmp_path / "theirs", "marian")
    if pickled:
        torch.save(safetensors.torch.load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    again = transduce.import_model(folder, tmp_path / "again")
    config, tokenizers, model, _ = open_model(run, trust=False)
    its_config, its_tokenizers, its_model, _ = open_model(again, trust=False)
    before, after = model.weights(), its_model.weights()
    bias = after.pop("output_bias")
    assert torch.equal(bias, before.pop("output_bias", torch.zeros_like(bias)))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert (its_config.model.encoder, its_config.model.decoder) == (config.model.encoder, config.model.decoder)
    assert its_tokenizers.shared == tokenizers.shared
    assert its_tokenizers.target.symbols == tokenizers.target.symbols
    texts = [*random_runs.SOURCE[:20], "☃"]
    assert its_tokenizers.source.encode(texts) == tokenizers.source.encode(texts)
    translators = [transduce.load(one, "cpu") for one in (run, again)]
    ours, theirs = (one.translate(texts, search=config.search, to="de", protect=False) for one in translators)
    assert ours == theirs


@pytest.mark.slow
def test_settings_of_every_wrong_kind_are_reported_in_words(tmp_path: Path) -> None:
    """Whatever stands in config.json: a model or a user's error, never another one."""
    folder = transduce.export(random_runs.run(tmp_path / "run", random_runs.transformer()), tmp_path / "it", "marian")
    told = 0
    for name in ("config.json", "generation_config.json"):
        facts = json.loads((folder / name).read_text())
        for key in facts:
            for number, value in enumerate((None, -1, "x", [], {}, 10**30)):
                (folder / name).write_text(json.dumps({**facts, key: value}))
                try:
                    transduce.import_model(folder, tmp_path / f"{name}-{key}-{number}")
                except UserError:
                    told += 1
        (folder / name).write_text(json.dumps(facts))
    assert told > 60


def test_weights_cut_anywhere_are_reported_in_words(tmp_path: Path) -> None:
    folder = transduce.export(random_runs.run(tmp_path / "run", random_runs.transformer()), tmp_path / "it", "marian")
    data = (folder / "model.safetensors").read_bytes()
    pickled = tmp_path / "whole.bin"
    torch.save(safetensors.torch.load_file(folder / "model.safetensors"), pickled)
    for name, whole in (("model.safetensors", data), ("pytorch_model.bin", pickled.read_bytes())):
        for part in range(20):
            (folder / name).write_bytes(whole[: part * len(whole) // 20])
            with pytest.raises(UserError):
                transduce.import_model(folder, tmp_path / "out")
        (folder / name).unlink()
