"""Activation checkpointing: the same gradients to the bit, dropout and all; refused where it does not apply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from snapshots import same

from transduce.core import config as configs
from transduce.core.errors import ConfigError
from transduce.experiment import Config
from transduce.model.transformer import DecoderLayer, EncoderLayer

ON = "training.activation_checkpointing=true"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pairs = toys.reversals(70)
    return toys.corpus(tmp_path_factory.mktemp("toy"), pairs[:60], pairs[60:], "bpe", 30)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often blocks worked for gradients."""
    counts = {"encoder": 0, "decoder": 0}
    for name, block in (("encoder", EncoderLayer), ("decoder", DecoderLayer)):

        def counted(self: Any, *inputs: Any, name: str = name, forward: Any = block.forward) -> Any:
            counts[name] += self.training and torch.is_grad_enabled()
            return forward(self, *inputs)

        monkeypatch.setattr(block, "forward", counted)
    return counts


@pytest.mark.parametrize(
    "settings",
    [
        ("model.encoder.layers=2", "model.decoder.layers=3"),
        ("model.encoder.residual=pre_norm", "model.decoder.residual=pre_norm", "training.accumulate=2"),
        ("model.encoder.positions=relative_bias", "model.decoder.positions=rotary", "model.decoder.activation=swiglu"),
        ("objective=r_drop", "model.encoder.activation_dropout=0.2"),
        ("objective.inputs=scheduled_sampling",),
        ("objective.terms=[{kind='guided_attention'}]",),
        ("model.decoder.kind=parallel", "objective=masked_prediction", "search=mask_predict", "training.clip=1"),
        ("training.precision=bf16",),
    ],
    ids=["paper", "pre-norm", "positions", "r-drop", "sampling", "traced", "parallel", "bf16"],
)
def test_gradients_are_the_same_to_the_bit(
    corpus: Path, tmp_path: Path, passes: dict[str, int], settings: tuple[str, ...]
) -> None:
    """After six updates weights, moments and sums of losses are equal, with dropout on."""
    settings = ("training.steps=6", "model.dropout=0.3", "data.valid=none", "training.threads=1", *settings)
    if "model.decoder.kind=parallel" in settings:
        settings = (*settings, "validation.search=mask_predict", "model.decoder.layers=1", "model.decoder.d_ff=32")
    toys.run(corpus, tmp_path / "plain", *settings)
    once = dict(passes)
    toys.run(corpus, tmp_path / "recomputed", *settings, ON)
    assert passes == {name: 3 * count for name, count in once.items()}  # once, and then twice
    assert same(toys.final(tmp_path / "recomputed"), toys.final(tmp_path / "plain"))
    assert [line["loss"] for line in toys.reports(tmp_path / "recomputed")] == [
        line["loss"] for line in toys.reports(tmp_path / "plain")
    ]


def test_it_may_be_switched_on_when_a_run_resumes(corpus: Path, tmp_path: Path) -> None:
    toys.run(corpus, tmp_path / "whole")
    toys.run(corpus, tmp_path / "parts", "training.steps=10")
    toys.run(corpus, tmp_path / "parts", ON)
    assert same(toys.final(tmp_path / "parts"), toys.final(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ("model.encoder.kind=recurrent",),
            "training.activation_checkpointing: is for layers of Transformers, and model.encoder is RecurrentEncoder;"
            " set training.activation_checkpointing=false, and lower data.tokens to save memory",
        ),
        (
            ("model.decoder.norm=batch_norm",),
            "training.activation_checkpointing: model.decoder.norm = batch_norm keeps statistics of its batches, and"
            " working a layer out twice would count each batch twice; set model.decoder.norm=layer_norm, or"
            " training.activation_checkpointing=false",
        ),
        (
            ("training.compile=true",),
            "training.activation_checkpointing: is not for compiled steps, where the compiler decides what is kept; set"
            " training.compile=false, or training.activation_checkpointing=false",
        ),
    ],
    ids=["recurrent", "batch norm", "compiled"],
)
def test_where_it_does_not_apply_it_is_refused(tmp_path: Path, settings: tuple[str, ...], message: str) -> None:
    kept = [word for word in toys.TINY if not (settings[0].endswith("recurrent") and word.startswith("model.encoder"))]
    with pytest.raises(ConfigError) as caught:
        configs.load(Config, "tiny", [*kept, f"data.folder={tmp_path}", ON, *settings])
    assert message in str(caught.value)
