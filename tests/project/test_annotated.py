"""examples/annotated.py stands alone and is the same model: the same logits from the same weights, and it learns."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from transduce.core import config
from transduce.data.batch import collate
from transduce.experiment import Config
from transduce.model.attention import Attention
from transduce.model.positions import sinusoids
from transduce.model.seq2seq import Model, Seq2Seq
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.objectives import teacher_force
from transduce.objectives.cross_entropy import CrossEntropy
from transduce.search.settings import Greedy, Limits
from transduce.text.vocabulary import Symbols
from transduce.training.optimizer import Paper
from transduce.training.weights import save_weights

PATH = Path(__file__).parents[2] / "examples" / "annotated.py"
V = 23
SIZES = {"small": (16, 1, 1, 24), "middle": (32, 2, 4, 64), "deep": (24, 5, 3, 40), "base": (512, 6, 8, 2048)}


@pytest.fixture(scope="module")
def annotated() -> ModuleType:
    spec = importlib.util.spec_from_file_location("annotated", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def model_config(name: str) -> Model:
    d_model, layers, heads, d_ff = SIZES[name]
    return Model(
        d_model,
        0.1,
        "all",
        TransformerEncoder(layers, Attention(heads), d_ff),
        TransformerDecoder(layers, Attention(heads), d_ff),
    )


def build(name: str) -> Seq2Seq:
    """Every weight random: fresh biases are 0, which would hide a wrong name."""
    torch.manual_seed(1)
    model = model_config(name).build(V, V, shared=True).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) / 4)
    return model


def symbols(annotated: ModuleType) -> Symbols:
    return Symbols(annotated.PAD, annotated.START, annotated.END, annotated.UNKNOWN)


def sentences(seed: int = 2) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, V, (length,), generator=generator).tolist() for length in (7, 1, 4, 12)]


def test_it_imports_nothing_of_the_package() -> None:
    imported = set()
    for node in ast.walk(ast.parse(PATH.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or ".").split(".")[0])
    assert imported - sys.stdlib_module_names == {"torch", "safetensors"}
    assert len(PATH.read_bytes().split(b"\n")) < 400


@torch.no_grad()
@pytest.mark.parametrize("size", SIZES)
def test_the_same_logits_from_the_same_weights(annotated: ModuleType, size: str) -> None:
    model = build(size)
    theirs = annotated.Transformer(V, *SIZES[size]).eval()
    theirs.load_state_dict(model.weights())  # strict: the names are the same
    batch = collate(sentences(), sentences(seed=3)[::-1], symbols(annotated), symbols(annotated), 15, 14)
    found = theirs(batch.source, batch.source_mask, batch.inputs)
    assert (found - teacher_force(model, batch)).abs().max() < 1e-5


def run_folder(folder: Path, model: Seq2Seq, settings: Model) -> Path:
    (folder / "config.toml").write_bytes(config.dump(Config(model=settings)).encode())
    save_weights(folder / "model.safetensors", model.weights(), {})
    return folder


@torch.no_grad()
def test_a_run_folder_is_loaded(annotated: ModuleType, tmp_path: Path) -> None:
    model = build("middle")
    theirs = annotated.load(run_folder(tmp_path, model, model_config("middle")))
    assert not theirs.training
    batch = collate(sentences(), sentences(seed=3), symbols(annotated), symbols(annotated))
    found = theirs(batch.source, batch.source_mask, batch.inputs)
    assert (found - teacher_force(model, batch)).abs().max() < 1e-5


def test_a_variant_is_refused(annotated: ModuleType, tmp_path: Path) -> None:
    middle = model_config("middle")
    for changed in (
        replace(middle, decoder=replace(middle.decoder, layers=1)),
        replace(
            middle,
            encoder=replace(middle.encoder, activation="gelu"),
            decoder=replace(middle.decoder, activation="gelu"),
        ),
        replace(middle, tie="none"),
    ):
        with pytest.raises(ValueError) as error:
            annotated.load(run_folder(tmp_path, changed.build(V, V, shared=True), changed))
        assert str(error.value) == f"{tmp_path}: a variant of the model; this file has only the paper's"


def test_greedy_search_finds_the_same(annotated: ModuleType) -> None:
    model = build("middle")
    theirs = annotated.Transformer(V, *SIZES["middle"])
    theirs.load_state_dict(model.weights())
    batch = collate(sentences(), sentences(), symbols(annotated), symbols(annotated))
    with torch.no_grad():
        memory = model.encode(batch.source, batch.source_mask)
    search = Greedy(Limits(longest_ratio=0, longest_extra=9)).build()
    expected = [list(found[0].tokens) for found in search(model, memory, symbols(annotated))]
    assert annotated.greedy(theirs, batch.source, batch.source_mask, longest=9) == expected


def test_its_formulas_are_those_of_the_package(annotated: ModuleType) -> None:
    torch.testing.assert_close(annotated.positional_encoding(50, 24).float(), sinusoids(50, 24))
    rate = Paper(warmup=30).build(64, 100)
    for step in (1, 29, 30, 31, 100):
        assert annotated.learning_rate(step, 64, 30) == pytest.approx(rate(step), rel=1e-12)
    model = build("small")
    batch = collate(sentences(), sentences(seed=4), symbols(annotated), symbols(annotated))
    loss = CrossEntropy(0.1).build()(model, batch, 0)
    found = annotated.smoothed_loss(teacher_force(model, batch), batch.gold, batch.target_mask)
    torch.testing.assert_close(found, loss.total / loss.count)


def test_the_copy_task_is_made_as_described(annotated: ModuleType) -> None:
    source, mask, target = annotated.copy_task(200, 15, 6)
    assert source.shape == mask.shape == (200, 7)
    assert target.shape == (200, 8)
    for tokens, kept, copied in zip(source, mask, target.tolist(), strict=True):
        real = tokens[kept].tolist()
        assert 2 <= len(real) <= 7
        assert real[-1] == annotated.END
        assert all(3 < token < 15 for token in real[:-1])
        assert set(tokens[~kept].tolist()) <= {annotated.PAD}
        assert copied == [annotated.START, *tokens.tolist()]


def test_a_few_steps_of_it(annotated: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    annotated.main(steps=20, vocabulary=8, longest=3)
    output = capsys.readouterr().out
    losses = [float(found) for found in re.findall(r"loss (\d+\.\d+)", output)]
    assert len(losses) == 10
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_it_learns_to_copy(warm: str) -> None:
    finished = subprocess.run([warm, PATH], capture_output=True, text=True, timeout=240, check=True)
    found = re.search(r"(\d+) of 200 new sentences copied without a fault", finished.stdout)
    assert found is not None, finished.stdout
    assert int(found[1]) >= 190
