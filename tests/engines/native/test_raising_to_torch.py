"""Weight files read back into torch: the same weights as far as they were not rounded, and always the same model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from both_engines import PICKS, SMALL
from model_variants import SYMBOLS, V, randomised, transformer

from transduce.core.errors import RunError
from transduce.engines.native.layout import entries
from transduce.engines.native.lowering import lower, raised, reasons_against
from transduce.engines.native.weight_file import WeightReader, floats, matrix, write
from transduce.engines.native.weight_format import padded
from transduce.engines.torch.engine import TorchEngine
from transduce.model.attention import Attention
from transduce.model.positions import RelativeBias, RelativeBiasPositions
from transduce.model.scores import Bilinear, BilinearScore, Cosine
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder

CONFIGS = [config for pick in PICKS if not reasons_against(config := transformer(pick))]
TEXTS, TARGETS = [[4, 5, 6, 7, 8, 9], [10], []], [[9, 4, 4, 5], [7, 6], [12]]


def through_a_file(config: Model, folder: Path, quantize: bool) -> tuple[Any, Any]:
    """A random model, and what came back of it."""
    model = randomised(config).float()
    write(folder / "model.native", lower(config, model, quantize))
    return model, raised(config, folder / "model.native", V, V, shared=True)


def scores(model: Any) -> list[list[float]]:
    return TorchEngine(model.eval(), SYMBOLS, SYMBOLS, torch.device("cpu")).score(TEXTS, TARGETS)


@pytest.mark.parametrize("config", CONFIGS)
def test_every_part_comes_back_and_says_the_same(config: Model, tmp_path: Path) -> None:
    model, back = through_a_file(config, tmp_path, quantize=False)
    for own, expected in zip(scores(back), scores(model), strict=True):
        assert own == pytest.approx(expected, abs=2e-4)


# Where these are in a name, the file has a product, a quotient or a logarithm of the weight; all else is as it was.
FOLDED = ("query", "log_scale", "shares", "running", "norm", "final", "around", "matrix", "positions.table")


@pytest.mark.parametrize("config", CONFIGS[::4])
def test_weights_that_were_not_folded_are_exactly_those(config: Model, tmp_path: Path) -> None:
    model, back = through_a_file(config, tmp_path, quantize=False)
    found, plain = back.state_dict(), 0
    for name, wanted in model.state_dict().items():
        assert found[name].shape == wanted.shape, name
        if not any(word in name for word in FOLDED):
            assert torch.equal(found[name], wanted), name
            plain += 1
    assert plain > 20


def test_the_paper_s_own_model_comes_back_bit_by_bit(tmp_path: Path) -> None:
    attention = Attention(1)  # of width 16, whose root is a whole number
    config = replace(SMALL, encoder=TransformerEncoder(2, attention, 24), decoder=TransformerDecoder(1, attention, 24))
    model, back = through_a_file(config, tmp_path, quantize=False)
    assert model.state_dict().keys() == back.state_dict().keys()
    for name, wanted in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], wanted), name


def test_rounded_weights_are_within_half_a_step(tmp_path: Path) -> None:
    """A step is the greatest of an output's weights / 127, in the file's own scale."""
    for quantize_heads in (1, 2):
        attention = Attention(quantize_heads)
        stacks = TransformerEncoder(2, attention, 100), TransformerDecoder(2, attention, 100)
        model, back = through_a_file(Model(48, 0.0, "none", *stacks, output_bias=True), tmp_path, quantize=True)
        found, rounded = back.state_dict(), 0
        for name, wanted in model.state_dict().items():
            if wanted.dim() < 2:
                assert found[name] == pytest.approx(wanted, rel=1e-6), name  # biases and norms keep their places
                continue
            step = wanted.abs().amax(1, keepdim=True) / 127
            assert ((found[name] - wanted).abs() <= 0.5001 * step).all(), name
            rounded += not torch.equal(found[name], wanted)
        assert rounded > 20
        for own, expected in zip(scores(back), scores(model), strict=True):
            assert own == pytest.approx(expected, abs=0.5)


def test_a_sharpness_that_has_no_logarithm_is_refused(tmp_path: Path) -> None:
    attention = Attention(1, score=Cosine())
    config = replace(SMALL, encoder=TransformerEncoder(2, attention, 24), decoder=TransformerDecoder(1, attention, 24))
    tensors = lower(config, randomised(config).float(), quantize=False)
    tensors["decoder.0.self.sharpness"] = floats(np.zeros(1))
    write(tmp_path / "model.native", tensors)
    with pytest.raises(RunError, match=r"'decoder.0.self.sharpness' is not above zero. Convert the model again"):
        raised(config, tmp_path / "model.native", V, V, shared=True)


def test_buckets_that_no_file_holds_are_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has a number for each distance, and nothing of how many share one."""

    def config(positions: RelativeBias) -> Model:
        stack = partial(TransformerEncoder, 1, Attention(2), 24, positions=positions)
        return replace(SMALL, encoder=stack(), decoder=TransformerDecoder(1, Attention(2), 24, positions=positions))

    through_a_file(config(RelativeBias()), tmp_path, quantize=False)
    monkeypatch.setattr(RelativeBiasPositions, "__init__", only_without_numbers(RelativeBiasPositions))
    told = r"describes another model than these weights are: it would have [\d,]+ bytes, and the file has"
    with pytest.raises(RunError, match=told):
        raised(config(RelativeBias(16_000_000, 16_000_000)), tmp_path / "model.native", V, V, shared=True)


def test_bilinear_matrices_that_no_file_holds_are_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are folded into the queries, and are much larger than these where heads are wider than the model."""
    attention = Attention(8, key_heads=1, key_width=512, score=Bilinear())
    config = replace(SMALL, encoder=TransformerEncoder(1, attention, 24), decoder=TransformerDecoder(1, attention, 24))
    write(tmp_path / "model.native", lower(config, randomised(config).float(), quantize=False))
    monkeypatch.setattr(BilinearScore, "__init__", only_without_numbers(BilinearScore))
    with pytest.raises(
        RunError, match=r"than these weights are: it would have [\d,]+ bytes, and the file has [\d,]+\. "
    ):
        raised(config, tmp_path / "model.native", V, V, shared=True)


def only_without_numbers(kind: type[torch.nn.Module]) -> Any:
    """The way a module is made, which fails where real memory would be taken."""
    make = kind.__init__

    def checked(self: torch.nn.Module, *settings: Any, **more: Any) -> None:
        assert torch.get_default_device().type == "meta"
        make(self, *settings, **more)

    return checked


@pytest.mark.parametrize("quantize", [False, True])
def test_a_matrix_of_any_size_is_unpacked(quantize: bool, tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    for shape in ((1, 1), (64, 64), (65, 3), (130, 200)):
        weight, bias = draw.normal(size=shape).astype(np.float32), draw.normal(size=shape[0]).astype(np.float32)
        write(tmp_path / "file", matrix("one", weight, bias, quantize))
        found, shift = WeightReader(tmp_path / "file").matrix("one", *shape)
        step = np.abs(weight).max(1, keepdims=True) / 127 if quantize else 0
        assert (np.abs(found - weight) <= 0.5001 * step).all()
        assert (shift == bias).all()


@pytest.mark.parametrize("config", [SMALL, *CONFIGS])
def test_the_layout_is_that_of_what_is_written(config: Model) -> None:
    """Files are compared with it before they are read."""
    written = lower(config, randomised(config).float(), quantize=False)
    whole = {name: np.frombuffer(tensor.data, "<i4").tolist() for name, tensor in written.items() if tensor.kind == 1}
    expected = list(entries(config, V, V, {name: numbers[13:] for name, numbers in whole.items()}))
    shapes = {entry.name: (entry.rows, entry.columns) for entry in expected}
    shapes |= {f"{entry.name}.bias": (1, padded(entry.rows)) for entry in expected if entry.is_matrix}
    assert {name: (t.rows, t.columns) for name, t in written.items() if t.kind != 1} == shapes
    assert len(shapes) == sum(2 if entry.is_matrix else 1 for entry in expected)
