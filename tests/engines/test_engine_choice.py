"""`engine = auto | torch | native`: which engine opens which folder, and what happens when it refuses something."""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import no_torch
import pytest
from cli_runner import Run, refused

import transduce
from transduce.core.errors import ConfigError, DataError, EngineRefusal, RunError, UserError
from transduce.engines import Fallback
from transduce.engines.native import library
from transduce.engines.torch.engine import TorchEngine
from transduce.exchange import convert
from transduce.search.settings import MaskPredict
from transduce.training.weights import load_weights, save_weights
from transduce.translate.model_folder import Converted

if TYPE_CHECKING:
    from toy_model import Toy


@pytest.fixture
def both(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder that was converted in place: weights for torch, and for the stand-in."""
    folder = no_torch.convert(toy.model, tmp_path / "both")
    shutil.copy(toy.model / "model.safetensors", folder)
    monkeypatch.setitem(sys.modules, "transduce.engines.native.engine", no_torch)  # type: ignore[arg-type]
    return folder


@pytest.fixture
def converted(both: Path) -> Path:
    """A converted folder without weights for torch."""
    (both / "model.safetensors").unlink()
    return both


def refusal(kind: type[UserError], folder: Path | list[Path], **options: object) -> str:
    with pytest.raises(kind) as caught:
        transduce.load(folder, **options)  # type: ignore[arg-type]
    return str(caught.value)


def test_auto_is_native_where_it_can_be(both: Path, toy: Toy) -> None:
    assert isinstance(transduce.load(toy.model).engine, TorchEngine)
    assert isinstance(transduce.load([both, toy.model]).engine, TorchEngine)
    assert isinstance(transduce.load(both, engine="torch").engine, TorchEngine)
    assert isinstance(transduce.load(both, engine="native").engine, no_torch.NativeEngine)
    engine = transduce.load(both).engine
    assert isinstance(engine, Fallback)
    assert isinstance(engine.first, no_torch.NativeEngine)


def test_torch_takes_over_what_is_refused_and_says_so_once(
    both: Path, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    translator = transduce.load(both, "cpu")
    own = translator("five", to="de")
    assert capsys.readouterr().err == ""
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(translator("five", to="de", beam=9))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [toy.translator("five", to="de", beam=9)] * 4
    assert own != found[0]
    assert capsys.readouterr().err == "native engine: it has no beam of 9 (torch does it this time)\n"
    translator("five", to="de", beam=10)
    assert capsys.readouterr().err == "native engine: it has no beam of 10 (torch does it this time)\n"
    assert translator("five", to="de") == own


def test_what_auto_gives_to_torch_from_the_start_is_reported_too(
    both: Path, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    transduce.load([both, toy.model], "cpu")
    transduce.load(both, "cpu", precision="bf16")
    ensemble, precision = capsys.readouterr().err.splitlines()
    assert ensemble.startswith("engine: native runs one model, and an ensemble was requested")
    assert precision.startswith("engine: native has the precision it was converted with, and bf16 was requested")
    assert ensemble.endswith("(torch does it this time)")
    transduce.load(both, "cpu", graphs="on")
    assert capsys.readouterr().err == "graphs: the native engine, which runs on the CPU, has none; decoding without\n"
    transduce.load(toy.model, "cpu")  # which was never converted
    transduce.load(both, "cpu", engine="torch", precision="bf16")  # nobody expects another engine
    assert not capsys.readouterr().err


def test_the_fallback_is_opened_with_the_same_options(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def open_torch(folders: object, device: str, trust: bool, *rest: object) -> transduce.Translator:
        asked.append((device, trust, *rest))
        return transduce.load(both, "cpu", engine="native")

    translator = transduce.load(both, "cpu", trust=True, graphs="off")
    monkeypatch.setattr("transduce.translate.loading._open_torch", open_torch)
    with pytest.raises(EngineRefusal, match="it has no beam of 9"):
        translator("five", to="de", beam=9)
    assert asked == [("cpu", True, (), "fp32", "off")]


def test_an_engine_that_was_not_built(both: Path, toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    (both / "model.native").write_bytes(b"not built")
    translator = transduce.load(both, "cpu")
    assert translator("five", to="de") == toy.translator("five", to="de")
    told = "native engine: it was not built when transduce was installed"
    assert capsys.readouterr().err == f"{told} (torch does it this time)\n"
    assert refusal(EngineRefusal, both, engine="native") == told


def test_converted_weights_are_enough_for_torch(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the core was not built, for what it refuses, and where torch is requested."""
    monkeypatch.setattr(library, "built", lambda: None)
    monkeypatch.setattr(library, "library", library.library.__wrapped__)  # it may be opened already
    whole = convert.convert(toy.model, tmp_path / "whole", quantize="none")
    rounded = convert.convert(toy.model, tmp_path / "rounded")
    texts = ["five", "four hundred and twenty-one", "seventy-two"]
    expected = toy.translator.translate(texts, to="de")
    found = transduce.load(whole, "cpu").translate(texts, to="de")
    assert [one.text for one in found] == [one.text for one in expected]
    assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-4)
    assert "its C++ core was not built" in capsys.readouterr().err
    for options in ({"engine": "torch"}, {"weights": [1.0]}):
        translator = transduce.load(whole, "cpu", **options)  # type: ignore[arg-type]
        assert isinstance(translator.engine, TorchEngine)
        assert translator("five", to="de") == expected[0].text
    assert len(transduce.load(rounded, "cpu").translate(["five"], to="de", beam=20, n_best=12)[0].alternatives) == 11
    mixed = transduce.load([whole, toy.model], "cpu")
    assert mixed(texts, to="de") == [one.text for one in expected]


def test_weights_that_were_trained_further_are_not_translated_with_the_old_ones(
    both: Path, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, metadata = load_weights(both / "model.safetensors")
    save_weights(both / "model.safetensors", weights, {**metadata, "weights": "step 151"})
    told = f"{both}: model.native was converted from other weights than model.safetensors holds now; convert it again"
    assert refusal(EngineRefusal, both, engine="native") == told
    assert transduce.load(both, "cpu")("five", to="de") == toy.translator("five", to="de")
    assert capsys.readouterr().err == f"{told} (torch does it this time)\n"
    (both / "model.safetensors").write_bytes(b"no weights")
    assert refusal(EngineRefusal, both, engine="native") == told


def test_native_alone_refuses_in_its_own_words(both: Path) -> None:
    with pytest.raises(EngineRefusal, match=r"^native engine: it has no beam of 9$"):
        transduce.load(both, engine="native")("five", beam=9)


def test_what_no_engine_can_open(toy: Toy, converted: Path) -> None:
    assert refusal(RunError, toy.model, engine="native") == (
        f"{toy.model}: is not converted, as models of the native engine are; run `transduce convert {toy.model} FOLDER`"
        " and give that folder, or use engine=torch"
    )
    assert refusal(ConfigError, toy.model, engine="onnx") == "engine: expected auto, torch or native, got 'onnx'"
    assert refusal(ConfigError, [converted, converted], engine="native") == (
        "engine: native runs one model, and an ensemble was requested; use engine=torch"
    )
    assert refusal(ConfigError, converted, engine="native", device="cuda") == (
        "engine: native runs on the CPU, and device=cuda was requested; use engine=torch"
    )
    assert refusal(ConfigError, converted, engine="native", precision="bf16") == (
        "engine: native has the precision it was converted with, and bf16 was requested; use engine=torch"
    )


def test_damage_to_a_converted_folder(converted: Path) -> None:
    config = (converted / "config.toml").read_text(encoding="utf-8")
    (converted / "config.toml").write_text(config.replace('kind = "greedy"', 'kind = "greddy"'), encoding="utf-8")
    assert refusal(ConfigError, converted).startswith(
        f"{converted / 'config.toml'}: search.kind: 'greddy' is not one of beam, greedy"
    )
    (converted / "config.toml").write_text(config, encoding="utf-8")
    facts = converted / "native.json"
    Converted("of another", "", 20, "int8").write(converted)
    assert refusal(RunError, converted) == (
        f"{converted}: model.native was converted with another tokenizer than tokenizer/ holds; convert it again"
    )
    for longest in ('"many"', "0", "true"):
        facts.write_text(f'{{"tokenizer": "", "weights": "", "longest": {longest}, "quantize": ""}}', encoding="utf-8")
        assert refusal(RunError, converted).startswith(f"{facts}: these are no facts about a model (Converted(")
    for text in ("{", "[]", '{"longest": 3}'):
        facts.write_text(text, encoding="utf-8")
        assert refusal(RunError, converted).startswith(f"{facts}: cannot be read (")
    shutil.rmtree(converted / "tokenizer")
    assert "no tokenizer here" in refusal(DataError, converted)


def test_searches_for_other_decoders_are_refused(converted: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs a decoder that is non-autoregressive; .* 'converted_decoder'"):
        transduce.load(converted).translate(["five"], search=MaskPredict())


def test_the_command_line_chooses(both: Path, toy: Toy, run: Run) -> None:
    words = ("translate", both, "five", "--to", "de", "--device", "cpu", "--engine")
    assert run(*words, "torch").lines == [toy.translator("five", to="de")]
    assert run(*words, "native").lines == run(*words, "auto").lines != [toy.translator("five", to="de")]
    assert refused(run(*words, "quick")) == "engine: expected auto, torch or native, got 'quick'"
    assert "is not converted" in refused(run("score", toy.model, "a", "b", "--engine", "native"))
