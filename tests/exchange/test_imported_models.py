"""Imported models are looked into and served like our own, also one that has nothing to say."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
from cli_runner import Run
from starlette.testclient import TestClient

pytest.importorskip("transformers", reason="writes the Marian models: pip install transduce[test]")

import marian_models as marian

import transduce
from transduce.engines.native import library
from transduce.server import Served, application


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("imported")
    return transduce.import_model(marian.folder(path / "theirs", "usual"), path / "run")


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that ends every translation before its first word."""
    path = tmp_path_factory.mktemp("silent")
    folder = marian.folder(path / "theirs", "usual")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["final_logits_bias"][0, 0] += 1000
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    return transduce.import_model(folder, path / "run")


def test_it_is_looked_into(usual: Path, run: Run, tmp_path: Path) -> None:
    words = ("inspect", "abc def", "-m", usual, "--device", "cpu")
    assert "What the search finished" in run(*words, "--beam", "3").out.decode()
    seen = run(*words, "--target", "hij klm")
    assert seen.code == 0, seen.err
    assert "Where each word looks" in seen.out.decode()
    assert "no words to look from" not in seen.out.decode()
    for name in ("page.html", "picture.png", "all.json"):
        assert run(*words, "--target", "hij klm", "-o", tmp_path / name).code == 0
        assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_an_empty_translation_is_looked_into(silent: Path, run: Run, tmp_path: Path, engine: str) -> None:
    model = silent
    if engine == "native":
        if library.built() is None:
            pytest.skip("the core is not built: make native")
        model = transduce.convert(silent, tmp_path / "int8")
    assert transduce.load(model, engine=engine)("abc def", protect=False) == ""
    seen = run("inspect", "abc def", "-m", model)
    assert seen.code == 0, seen.err
    assert "(there are no words to look from, or none to look at)" in seen.out.decode()
    for name in ("page.html", "picture.png", "picture.svg", "all.json"):
        drawn = run("inspect", "abc def", "-m", model, "-o", tmp_path / name)
        assert drawn.code == 0, drawn.err
        assert (tmp_path / name).stat().st_size > 500


def test_it_is_served(usual: Path) -> None:
    translator = transduce.load(usual, "cpu")
    with TestClient(application([Served("opus", translator, (("en", "deu"),))]), "http://localhost") as client:
        asked = {"q": "abc def", "source": "en", "target": "deu"}
        told = client.post("/translate", json=asked)
        assert told.status_code == 200, told.text
        assert told.json()["translatedText"] == translator("abc def", to="deu")
