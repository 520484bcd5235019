"""Opening a run folder: what works, and in which words everything else is refused."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import transduce
from transduce.core.errors import ConfigError, DataError, RunError, UserError
from transduce.engines.torch.engine import TorchEngine
from transduce.model.layers import Dropout
from transduce.text.tokenizer import Tokenizers

if TYPE_CHECKING:
    from toy_model import Toy


@pytest.fixture
def folder(toy: Toy, tmp_path: Path) -> Path:
    """A copy of the three things that make a translator, to be damaged."""
    (tmp_path / "model").mkdir()
    shutil.copytree(toy.model / "tokenizer", tmp_path / "model" / "tokenizer")
    for name in ("config.toml", "model.safetensors"):
        shutil.copy(toy.model / name, tmp_path / "model" / name)
    return tmp_path / "model"


def refused(folder: Path, kind: type[UserError] = RunError) -> str:
    with pytest.raises(kind) as caught:
        transduce.load(folder)
    return str(caught.value)


def test_config_tokenizer_and_weights_are_a_translator(toy: Toy, folder: Path) -> None:
    again = transduce.load(str(folder), device="cpu")
    texts = ["five", "twenty-one, three"]
    assert again(texts, to="de") == toy.translator(texts, to="de")
    assert again.longest == toy.translator.longest
    assert again.search == toy.translator.search


@pytest.mark.parametrize("members", [1, 2])
def test_dropout_is_off_for_all_who_call_at_once(members: int, folder: Path) -> None:
    """Were it off for the length of a call alone, one that ends would switch it on for the others."""
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace("dropout = 0.0", "dropout = 0.9", 1))
    translator = transduce.load([folder] * members, "cpu")
    assert isinstance(translator.engine, TorchEngine)
    assert any(isinstance(part, Dropout) and part.probability == 0.9 for part in translator.engine.model.modules())
    expected = translator("five", to="de")
    assert not any(part.training for part in translator.engine.model.modules())
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda _: translator("five", to="de"), range(12))) == {expected}


def test_folders_that_are_no_model(tmp_path: Path) -> None:
    assert f"{tmp_path / 'none'}: not a trained model (no such folder); expected a run folder" in refused(
        tmp_path / "none"
    )
    assert "not a trained model (no config.toml in it)" in refused(tmp_path)


def test_parts_that_are_missing(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "elsewhere")
    assert "has no model.safetensors yet, nor a checkpoint: training ended before it wrote the first" in refused(folder)
    (folder / "elsewhere").rename(folder / "model.safetensors")
    shutil.rmtree(folder / "tokenizer")
    assert "tokenizer: no tokenizer here; expected shared.model" in refused(folder, DataError)


def test_damage_is_found(folder: Path) -> None:
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-100] ^= 1
    weights.write_bytes(data)
    assert "model.safetensors: damaged: its content does not match the SHA-256" in refused(folder)
    weights.write_bytes(data[: len(data) // 2])
    assert "model.safetensors: cut short" in refused(folder)
    weights.write_bytes(b"")
    assert "cut short within its header" in refused(folder)


def test_a_file_that_proves_itself_and_is_still_no_safetensors(folder: Path) -> None:
    tensor = {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}  # two numbers in the space of one
    header = json.dumps({"__metadata__": {"sha256": "0" * 64}, "a": tensor}, separators=(",", ":")).encode()
    body = bytes(4)
    start = len(header).to_bytes(8, "little")
    digest = hashlib.sha256(start + header + body).hexdigest().encode()
    (folder / "model.safetensors").write_bytes(start + header.replace(b"0" * 64, digest) + body)
    assert "model.safetensors: not a valid safetensors file:" in refused(folder)


def test_a_pickle_is_refused_and_not_opened(folder: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (print, ("opened!",))

    (folder / "model.safetensors").write_bytes(pickle.dumps(Trap()))
    assert "looks like a pickle (PyTorch .pt, .bin), which can run code when it is opened" in refused(folder)
    torch.save({"a": torch.ones(2)}, folder / "model.safetensors")
    assert "looks like a pickle" in refused(folder)


def test_another_tokenizer_is_noticed(toy: Toy, folder: Path) -> None:
    from transduce.text.train_tokenizer import SentencePiece

    other = SentencePiece(vocabulary=300).train(["one two"], ["eins zwei"]).tokenizers
    other.save(folder / "tokenizer")
    text = refused(folder)
    assert "model.safetensors was trained with another tokenizer than tokenizer/ holds; restore the right one" in text
    assert Tokenizers.load(toy.model / "tokenizer").digest() != other.digest()


def test_a_config_of_another_size_is_noticed(folder: Path) -> None:
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("d_ff = 64", "d_ff = 128"))
    text = refused(folder)
    assert "the tensors do not fit the model" in text
    assert "Use the configuration these weights were trained with" in text


def test_a_damaged_config_is_reported_with_its_key(folder: Path) -> None:
    config = folder / "config.toml"
    text = config.read_text()
    config.write_text(text.replace("d_model", "d_modle"))
    assert "model.d_modle: no such setting; did you mean 'd_model'?" in refused(folder, ConfigError)
    config.write_text(text[: len(text) // 2] + '\n"')  # no TOML, wherever the cut falls
    assert "config.toml: not TOML:" in refused(folder, ConfigError)


def test_code_is_imported_only_from_folders_that_are_trusted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil_search.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = folder / "config.toml"
    text = config.read_text()
    assert 'kind = "greedy"' in text
    config.write_text(text.replace('kind = "greedy"', 'kind = "evil_search:Search"'))
    assert "would import code; if you trust where this folder came from" in refused(folder, ConfigError)
    with pytest.raises(ConfigError, match="SystemExit: imported"):  # only code that was run says so
        transduce.load(folder, trust=True)


def test_devices(folder: Path) -> None:
    with pytest.raises(ConfigError, match="device: 'nowhere' is not a device"):
        transduce.load(folder, device="nowhere")
    engine: Any = transduce.load(folder, device="cpu").engine
    assert engine.device == torch.device("cpu")


def test_precision_and_graphs_in_words(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    rounded = transduce.load(toy.model, "cpu", precision="bf16", graphs="compiled")
    assert {parameter.dtype for parameter in rounded.engine.model.parameters()} == {torch.bfloat16}  # type: ignore[attr-defined]
    assert rounded.engine.cache_pool is None  # type: ignore[attr-defined]
    assert rounded("five", to="de")
    assert capsys.readouterr().err == "graphs: a CPU has none; decoding without\n"
    transduce.load(toy.model, "cpu")  # nobody asked for any
    assert not capsys.readouterr().err
    with pytest.raises(ConfigError, match="precision: expected fp32 or bf16, got 'fp16'"):
        transduce.load(toy.model, "cpu", precision="fp16")
    with pytest.raises(ConfigError, match="graphs: expected auto, on, off or compiled, got 'yes'"):
        transduce.load(toy.model, "cpu", graphs="yes")


def test_on_a_gpu_decoding_uses_static_caches(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the meaning of "cuda" changed, for want of one."""
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, place: module)
    monkeypatch.setattr("transduce.engines.torch.engine.pick_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr("transduce.engines.torch.engine.CachePool", lambda *parts, compiled: ("rooms", compiled))
    settings: dict[str, Any] = {
        "auto": ("rooms", False),
        "on": ("rooms", False),
        "compiled": ("rooms", True),
        "off": None,
    }
    assert transduce.load(toy.model, "cuda").engine.cache_pool == settings["auto"]  # type: ignore[attr-defined]
    for graphs, wanted in settings.items():
        translator = transduce.load(toy.model, "cuda", graphs=graphs)
        assert translator.engine.cache_pool == wanted  # type: ignore[attr-defined]
        assert bool(translator.search_tokens) == bool(wanted)
