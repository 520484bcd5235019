"""`transduce convert`: a folder that translates like the run it was made of, without torch."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from cli_runner import Run, refused

import transduce
from transduce.core import durable
from transduce.core.errors import ConfigError, RunError
from transduce.engines.native.library import built
from transduce.engines.native.lowering import lower
from transduce.exchange.convert import convert
from transduce.model.attention import Attention
from transduce.model.recurrent import RecurrentEncoder
from transduce.model.scores import Additive
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.text.train_tokenizer import SentencePiece
from transduce.training.weights import load_weights, save_weights
from transduce.translate.model_folder import Converted

if TYPE_CHECKING:
    from toy_model import Toy

needs_core = pytest.mark.skipif(built() is None, reason="the core is not built: make native")
TEXTS = ["five", "sixty-two", "", "ninety-nine", "eleven thousand"]


@needs_core
@pytest.mark.parametrize("quantize", ["int8", "none"])
def test_a_converted_model_translates_as_the_run_does(toy: Toy, tmp_path: Path, quantize: str, run: Run) -> None:
    said = run("convert", toy.model, tmp_path / "native", "--quantize", quantize)
    assert f"MB of weights ({quantize})" in said.lines[0]
    names = sorted(path.name for path in (tmp_path / "native").iterdir())
    assert names == ["README.md", "config.toml", "model.native", "native.json", "tokenizer"]
    assert "## Converted" in (tmp_path / "native" / "README.md").read_text()
    ours, theirs = transduce.load(tmp_path / "native"), transduce.load(toy.model)
    found = ours.translate(TEXTS, beam=4, n_best=2, to="de")
    expected = theirs.translate(TEXTS, beam=4, n_best=2, to="de")
    if quantize == "none":
        assert [one.text for one in found] == [one.text for one in expected]
        assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-4)
    else:
        assert sum(one.text == other.text for one, other in zip(found, expected, strict=True)) >= 4
    scores = ours.score(["five"], ["fünf"], to="de")[0].log_prob
    assert scores == pytest.approx(theirs.score(["five"], ["fünf"], to="de")[0].log_prob, abs=0.3)
    assert ours.translate(["five"], to="de", align="words")[0].alignment is not None


@needs_core
def test_translating_a_converted_model_imports_no_torch(toy: Toy, tmp_path: Path) -> None:
    convert(toy.model, tmp_path / "native")
    code = f"""
import sys, transduce
print(transduce.load({str(tmp_path / "native")!r})("five", to="de"))
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.PIPE).returncode == 0


@needs_core
def test_a_tokenizer_of_another_size_is_refused_when_the_folder_is_opened(toy: Toy, tmp_path: Path, run: Run) -> None:
    """With a native.json that vouches for it: then tokens would name rows that are not there."""
    folder, known = convert(toy.model, tmp_path / "native"), toy.translator.tokenizers.source.size
    words = "".join(f"{letter}{other} " for letter in "abcdefgh" for other in "ijklmnopqrstuvwxyz")
    trained = SentencePiece(vocabulary=known + 30, byte_fallback=False).train([words] * 9, [words] * 9).tokenizers
    shutil.rmtree(folder / "tokenizer")
    trained.save(folder / "tokenizer")
    replace(Converted.read(folder), tokenizer=trained.digest()).write(folder)
    said = refused(run("translate", folder, "five"))
    assert f"model.native: its weights have {known:,} source pieces, and the source tokenizer beside them has" in said


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_not_converted(
    toy: Toy, tmp_path: Path, value: float, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(toy.model, folder)
    weights, metadata = load_weights(folder / "model.safetensors")
    name = min(name for name in weights if name.startswith("encoder.layers"))
    weights[name].view(-1)[0] = value
    monkeypatch.setattr("transduce.training.weights._refuse_non_finite", lambda *given: None)  # as others write them
    save_weights(folder / "model.safetensors", weights, metadata)
    said = refused(run("convert", folder, tmp_path / "native"))
    assert f"model.safetensors: 1 tensors hold values that are no numbers (NaN or infinite): {name}. Use" in said
    assert not (tmp_path / "native").exists()


def test_in_its_own_folder_a_run_has_weights_for_both(toy: Toy, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(toy.model, folder)
    card = (folder / "README.md").read_bytes()
    assert convert(folder, folder) == folder
    assert (folder / "model.native").is_file()
    assert (folder / "model.safetensors").is_file()
    assert (folder / "README.md").read_bytes() == card


def test_a_folder_is_converted_again_and_no_other_overwritten(toy: Toy, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "native"
    convert(toy.model, folder)
    first = (folder / "model.native").read_bytes()
    convert(toy.model, folder)
    assert (folder / "model.native").read_bytes() == first
    assert (folder / "README.md").read_text().count("## Converted") == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not lose")
    with pytest.raises(RunError, match="is there already and is no converted model"):
        convert(toy.model, tmp_path / "mine")
    assert "quantize: expected int8 or none, got 'int4'" in refused(
        run("convert", toy.model, tmp_path / "other", "--quantize", "int4")
    )


def test_all_reasons_are_given_at_once() -> None:
    attention = Attention(2, score=Additive())
    model = Model(16, encoder=RecurrentEncoder(1), decoder=TransformerDecoder(1, attention, 16))
    with pytest.raises(ConfigError) as caught:
        lower(model, model.build(10, 10, shared=True), quantize=True)
    assert "model.encoder is 'recurrent', and only 'transformer' is run" in str(caught.value)
    known = "'scaled_dot', 'dot', 'bilinear', 'cosine'"
    assert f"model.decoder.attention.score is 'additive', and only {known} are run" in str(caught.value)


def test_no_weight_is_left_out_in_silence() -> None:
    model = Model(16, encoder=TransformerEncoder(1, Attention(2), 16), decoder=TransformerDecoder(1, Attention(2), 16))
    built_model = model.build(10, 10, shared=True)
    built_model.register_parameter("temperature", torch.nn.Parameter(torch.ones(1)))
    with pytest.raises(ConfigError, match="the native engine does not know these weights of the model: temperature"):
        lower(model, built_model, quantize=True)


def test_a_full_disk_is_reported_in_its_own_words(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    def full(path: Path, *parts: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(durable, "write_synced", full)
    said = refused(run("convert", toy.model, tmp_path / "native"))
    assert f"{tmp_path / 'native'}: the disk is full (writing config.toml): " in said
    assert "What was there before is untouched. Free some space there, then run the same command again." in said
    assert "checkpoint" not in said
