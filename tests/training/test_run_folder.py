"""A run folder as others meet it: loaded anywhere, refused in plain words where something is missing or hostile."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import toys

import transduce
from transduce.core.errors import ConfigError, DataError, RunError, UserError
from transduce.text.tokenizer import Tokenizers
from transduce.training.run_folder import changed_settings, open_model, read_config, take_weights
from transduce.training.weights import load_weights, save_weights

OBJECTIVE = """
from dataclasses import dataclass
from transduce.objectives.cross_entropy import CrossEntropy

print("code of the user's own was run")

@dataclass(frozen=True)
class Own(CrossEntropy):
    weight: float = 1.0
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    pairs = toys.copies(70)
    toys.run(toys.corpus(folder, pairs[:60], pairs[60:]), folder / "run", "training.steps=3")
    return folder / "run"


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "run")


def change_config(run: Path, old: str, new: str) -> None:
    text = (run / "config.toml").read_text()
    assert old in text
    (run / "config.toml").write_text(text.replace(old, new, 1))


def refusal(run: Path, trust: bool = False) -> str:
    """What `load` says; nothing but an error for users may come out of it, and soon."""
    started = time.monotonic()
    with pytest.raises(UserError) as caught:
        transduce.load(run, "cpu", trust)
    assert time.monotonic() - started < 5
    return str(caught.value)


def test_three_things_are_a_translator(run: Path, tmp_path: Path) -> None:
    """Config, tokenizer and model, copied elsewhere, without corpus or checkpoints."""
    (tmp_path / "bare").mkdir()
    for name in ("config.toml", "model.safetensors"):
        shutil.copy(run / name, tmp_path / "bare" / name)
    shutil.copytree(run / "tokenizer", tmp_path / "bare" / "tokenizer")
    texts = ["abc", "", "hgf"]
    assert transduce.load(tmp_path / "bare", "cpu")(texts) == transduce.load(run, "cpu")(texts)


def test_what_the_folder_holds(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    expected = {"config.toml", "tokenizer", "model.safetensors", "metrics.jsonl", "README.md", "checkpoints", ".lock"}
    assert names == expected
    metadata = load_weights(run / "model.safetensors")[1]
    assert set(metadata) == {"tokenizer", "longest", "weights"}
    assert open_model(run, trust=False)[3] == int(metadata["longest"]) == 8 + 1 + 1  # letters, the space piece, the end
    assert read_config(run).training.steps == 3


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    expected = "expected a run folder written by `transduce train`, or a folder written by `transduce convert`"
    assert refusal(nowhere) == f"{nowhere}: not a trained model (no such folder); {expected}"
    nowhere.mkdir()
    assert refusal(nowhere) == f"{nowhere}: not a trained model (no config.toml in it); {expected}"


def test_a_folder_without_a_model(run: Path) -> None:
    (run / "model.safetensors").unlink()
    with pytest.raises(RunError) as caught:
        open_model(run, trust=False)
    assert str(caught.value) == (
        f"{run}: has no model.safetensors yet; training writes it at the first validation, when it is stopped and at"
        " the end. Resume training with the same command, or make one of checkpoints:"
        f" `transduce average {run} --last 1`"
    )
    assert open_model(run, trust=False, unfinished=True)[3] == 8 + 1 + 1  # of the newest checkpoint
    shutil.rmtree(run / "checkpoints")
    assert refusal(run) == (
        f"{run}: has no model.safetensors yet, nor a checkpoint: training ended before it wrote the first. It does so"
        " every 10 steps (training.save_every, validation.every) and when it is stopped by Ctrl-C. Resume training with"
        " the same command"
    )


def test_a_folder_without_a_tokenizer(run: Path) -> None:
    shutil.rmtree(run / "tokenizer")
    assert refusal(run) == (
        f"{run / 'tokenizer'}: no tokenizer here; expected shared.model, or source.model and target.model"
    )


def test_a_folder_with_another_tokenizer(run: Path, tmp_path: Path) -> None:
    other = toys.corpus(tmp_path, toys.reversals(60, seed=9), model="bpe", vocabulary=25)
    shutil.copy(other / "tokenizer" / "shared.model", run / "tokenizer" / "shared.model")
    assert refusal(run) == (
        f"{run}: model.safetensors was trained with another tokenizer than tokenizer/ holds; restore the right one"
    )


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_model(run: Path, damage: str) -> None:
    data = bytearray((run / "model.safetensors").read_bytes())
    data[len(data) // 2] ^= 4
    (run / "model.safetensors").write_bytes(data if damage == "flip" else data[:-5])
    assert refusal(run).startswith(f"{run / 'model.safetensors'}: {'damaged' if damage == 'flip' else 'cut short'}: ")


def test_a_model_of_another_shape(run: Path) -> None:
    weights, metadata = load_weights(run / "model.safetensors")
    missing = min(weights)
    del weights[missing]
    save_weights(run / "model.safetensors", weights, metadata)
    assert f"{run / 'model.safetensors'}: the tensors do not fit the model: 1 missing: {missing}. " in refusal(run)


# -- classes of the user's own -----------------------------------------------------------------------------------------


@pytest.fixture
def own(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run trained with an objective from a file of the user's own."""
    (tmp_path / "own_objective.py").write_text(OBJECTIVE)
    monkeypatch.syspath_prepend(tmp_path)
    corpus = original.parent / "corpus"
    toys.run(corpus, tmp_path / "run", "training.steps=1", "objective=own_objective:Own", "objective.weight=0.5")
    return tmp_path / "run"


def test_code_is_imported_only_if_trusted(own: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert 'kind = "own_objective:Own"\n' in (own / "config.toml").read_text()
    del sys.modules["own_objective"]
    capfd.readouterr()
    assert refusal(own) == (
        f"{own / 'config.toml'}: objective.kind: 'own_objective:Own' would import code; if you trust where this folder"
        " came from, pass trust=True (--trust)"
    )
    assert "own_objective" not in sys.modules
    assert transduce.load(own, "cpu", trust=True)("abc") is not None
    assert read_config(own).objective.weight == 0.5  # type: ignore[union-attr]
    assert "code of the user's own was run" in capfd.readouterr().out


def test_a_run_that_starts_from_another_imports_none_of_its_code(own: Path) -> None:
    model, tokenizers = open_model(own, trust=True)[2], Tokenizers.load(own / "tokenizer")
    del sys.modules["own_objective"]
    with pytest.raises(UserError, match=r"objective.kind: 'own_objective:Own' would import code"):
        take_weights(model, own, tokenizers, entire=True)
    assert "own_objective" not in sys.modules


def test_changed_settings_are_told_with_what_they_were(original: Path) -> None:
    old = read_config(original)
    (told,) = changed_settings(original, old, replace(old, license="MIT"))
    assert "that this command changes: license = 'MIT' (was '');" in told
    assert changed_settings(original, old, old) == []


def test_trusted_code_that_is_gone(own: Path, tmp_path: Path) -> None:
    (tmp_path / "own_objective.py").unlink()
    del sys.modules["own_objective"]
    assert (
        "objective.kind: cannot import 'own_objective:Own': ModuleNotFoundError: No module named 'own_objective'"
        in refusal(own, True)
    )


# -- hostile configs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "cross_entropy"', 'kind = "os:system"', "objective.kind: 'os:system' would import code"),
        ('kind = "greedy"', 'kind = "subprocess:Popen"', "search.kind: 'subprocess:Popen' would import code"),
        ("d_model = 16", "d_model = 16000000000000", "model.d_model: expected at most 1,048,576, got 16000000000000"),
        ("d_model = 16", "d_model = 1000000", "config.toml describes another model than model.safetensors"),
        ("d_model = 16", "d_model = 1000000", "d_model is 1,000,000, and tensors have 32 rows"),
        ("d_model = 16", "d_model = 32", "the tensors do not fit the model"),
        ("layers = 1\n", "layers = 1000000000\n", "layers: expected at most 1,024, got 1000000000"),
        ("layers = 1\n", "layers = 1000\n", "describes another model than model.safetensors holds: 1,001 layers"),
        ("d_model = 16", "d_model = -16", "model.d_model: expected at least 1, got -16"),
        ("d_model = 16", "d_model = 16.0", "model.d_model: expected an integer, got 16.0 (a number)"),
        ("dropout = 0.1", "dropout = nan", "model.dropout: expected a finite number, got nan"),
        ("seed = 1", 'seed = 1\nextends = "/dev/zero"', "/dev/zero: no such file"),
        ("seed = 1", "seed = [", "config.toml: not TOML"),
        ("seed = 1", "seed = 1\nsneed = 2", "sneed: no such setting; did you mean 'seed'?"),
        ("seed = 1", "seed = \x00", "config.toml: not TOML"),
    ],
)
def test_a_hostile_config_is_refused_in_words(run: Path, old: str, new: str, message: str) -> None:
    change_config(run, old, new)
    assert message in refusal(run)


def test_a_config_that_is_no_text(run: Path) -> None:
    (run / "config.toml").write_bytes(b"\xff\xfe" * 100)
    assert f"{run / 'config.toml'}: not UTF-8 at byte 0; save the file as UTF-8" in refusal(run)


def test_a_device_that_is_not_there(run: Path) -> None:
    with pytest.raises(ConfigError, match="device: 'gpu' is not a device; use auto, cpu, cuda or cuda:0"):
        transduce.load(run, "gpu")


def test_training_in_a_folder_of_something_else(original: Path, tmp_path: Path) -> None:
    """A folder with a config.toml that is no run's is neither used nor changed."""
    (tmp_path / "config.toml").write_text("[tool]\nname = 'x'\n")
    with pytest.raises(ConfigError, match="tool: no such setting"):
        toys.run(original.parent / "corpus", tmp_path)
    assert (tmp_path / "config.toml").read_text() == "[tool]\nname = 'x'\n"


def test_a_corpus_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: not a prepared corpus .*; make one with `transduce prepare`"):
        toys.run(tmp_path / "nowhere", tmp_path / "run")
    assert not (tmp_path / "run").exists()
