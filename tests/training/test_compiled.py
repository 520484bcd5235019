"""Compiled steps: the numbers of the step as it is written, made once a shape, and only where that pays."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from torch._dynamo.testing import CompileCounterWithBackend

from transduce.core.errors import ConfigError, RunError
from transduce.data.batch import Batch, collate
from transduce.experiment import Config
from transduce.model.attention import Attention
from transduce.model.seq2seq import Model, Seq2Seq
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.objectives import ObjectiveStep
from transduce.objectives.cross_entropy import CrossEntropy
from transduce.text.vocabulary import Symbols
from transduce.training import start
from transduce.training import start as compiled
from transduce.training.optimizer import Adam, update
from transduce.training.start import CompiledStep, hindrance, keep_compiled
from transduce.training.step_runner import EagerRunner

SYMBOLS = Symbols(pad=0, bos=2, eos=3, unk=1, never=(0, 1, 2))
V, CPU = 19, torch.device("cpu")


@pytest.fixture(autouse=True)
def forget() -> None:
    torch.compiler.reset()


def build(dropout: float) -> Seq2Seq:
    torch.manual_seed(3)
    stacks = {"attention": Attention(2), "d_ff": 24}
    encoder, decoder = TransformerEncoder(1, **stacks), TransformerDecoder(1, **stacks)  # type: ignore[arg-type]
    return Model(16, dropout, "all", encoder, decoder).build(V, V, shared=True).train()


def batches(count: int, shapes: int = 2, packed: bool = True) -> list[Batch]:
    """Of so many shapes in turn, each with an empty row."""
    made = []
    for number in range(count):
        generator = torch.Generator().manual_seed(number)
        lengths = torch.randint(1, 8, (5,), generator=generator).tolist()
        lines = [torch.randint(4, V, (length,), generator=generator).tolist() for length in lengths]
        width = 8 * (1 + number % shapes)
        batch = collate(lines, [line[::-1] for line in lines], SYMBOLS, SYMBOLS, width, width, rows=6)
        made.append(replace(batch, capacity=(48, 48)) if packed else batch)
    return made


def curve(step: ObjectiveStep, made: list[Batch], bf16: bool = False) -> list[float]:
    """Losses a token of one update after another."""
    optimizer, passes, losses = Adam().build(step.model.parameters()), EagerRunner(step, CPU, bf16), []
    for number, batch in enumerate(made):
        optimizer.zero_grad()
        torch.manual_seed(number)
        loss = passes(batch, number)
        update(optimizer, 3e-3, loss.count, clip=1.0)
        losses.append((loss.total / loss.count).item())
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(("dropout", "bf16"), [(0.2, False), (0.0, True)])
def test_traced_and_differentiated_ahead_the_curve_is_the_same(dropout: float, bf16: bool) -> None:
    """All that torch.compile does but make kernels: these draw as eager ones do, in the same order."""
    made = batches(20, shapes=1, packed=not bf16)
    written = curve(ObjectiveStep(build(dropout), CrossEntropy(0.1).build()), made, bf16)
    step = CompiledStep(ObjectiveStep(build(dropout), CrossEntropy(0.1).build()), backend="aot_eager")
    assert written[-1] < written[0]
    assert curve(step, made, bf16) == pytest.approx(written, rel=2e-2 if bf16 else 1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "g++")), reason="kernels for a CPU need a C++ compiler")
def test_with_kernels_of_its_own_the_curve_is_the_same() -> None:
    made = batches(20, shapes=1)
    written = curve(ObjectiveStep(build(0.0), CrossEntropy(0.1).build()), made)
    found = curve(CompiledStep(ObjectiveStep(build(0.0), CrossEntropy(0.1).build())), made)
    assert found == pytest.approx(written, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [True, False])
def test_code_is_made_once_for_all_shapes(packed: bool) -> None:
    counter = CompileCounterWithBackend("eager")
    step = CompiledStep(ObjectiveStep(build(0.0), CrossEntropy(0.1).build()), counter)  # type: ignore[arg-type]
    curve(step, batches(8, 4, packed))
    assert counter.frame_count == 1


# -- in a run ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.corpus(tmp_path_factory.mktemp("toy"), toys.reversals(150, longest=20), toys.reversals(20, seed=2))


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compiled but for the kernels, which take long to make on a CPU."""
    monkeypatch.setattr(start, "compiled_step", lambda step: CompiledStep(step, backend="aot_eager"))


def losses(folder: Path) -> list[float]:
    return [entry["loss"] for entry in toys.reports(folder)]


@pytest.mark.slow
@pytest.mark.usefixtures("no_kernels")
def test_a_run_is_the_same_compiled_and_written(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("data.shapes=1", "training.steps=20", "training.accumulate=2", "model.dropout=0.0")
    for name in ("true", "false"):
        toys.run(corpus, tmp_path / name, *settings, f"training.compile={name}")
    assert losses(tmp_path / "true") == pytest.approx(losses(tmp_path / "false"), rel=1e-4)
    said = [line for line in capsys.readouterr().err.split("\n") if line.startswith("training.compile")]
    assert len(said) == 1
    assert said[0].startswith("training.compile: 1 shapes in ")


@pytest.mark.slow
def test_a_compiled_run_resumes_at_the_same_batches(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced alone, for this is about batches: what the gradients are is held above."""
    monkeypatch.setattr(start, "compiled_step", lambda step: CompiledStep(step, backend="eager"))
    monkeypatch.setattr(start, "SHAPES", 1)
    toys.run(corpus, tmp_path / "whole", "training.compile=false", "training.steps=12", "data.shapes=1")
    toys.run(corpus, tmp_path / "parts", "training.compile=true", "training.steps=5")
    toys.run(corpus, tmp_path / "parts", "training.compile=false", "training.steps=12")  # the shapes stay
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)
    assert toys.final(tmp_path / "parts").state["shapes"] == 1


def test_a_compiler_that_fails_is_named_where_it_was_requested(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no such compiler")

    monkeypatch.setattr(start, "compiled_step", lambda step: CompiledStep(step, backend=broken))  # type: ignore[arg-type]
    with pytest.raises(RunError, match=r"torch\.compile failed \(.*no such compiler.*set training\.compile=false"):
        toys.run(corpus, tmp_path / "asked", "training.compile=true")
    monkeypatch.setattr(start, "hindrance", lambda *_: "")
    monkeypatch.setattr(compiled, "SECONDS", 0.0)
    toys.run(corpus, tmp_path / "auto", "training.steps=2")
    assert "torch.compile failed" in capsys.readouterr().err
    assert len(losses(tmp_path / "auto")) == 2


def test_a_short_run_says_why_it_is_not_compiled(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start, "hindrance", lambda *_: "")
    toys.run(corpus, tmp_path / "run", "training.steps=2", "data.shapes=3")
    said = capsys.readouterr().err
    assert "training.compile: uncompiled, the rest takes about 0 s; compiling would take some 60 to save 0" in said


def test_where_memory_ends_before_the_first_step_it_is_reported_and_not_compiled(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def short(*_: object) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(start, "warm_up", short)
    with pytest.raises(RunError, match=r"^out of memory at step 1: lower data\.tokens \(now 160\)"):
        toys.run(corpus, tmp_path / "asked", "training.compile=true", "data.shapes=1")
    monkeypatch.setattr(start, "hindrance", lambda *_: "")
    monkeypatch.setattr(compiled, "SECONDS", 0.0)
    toys.run(corpus, tmp_path / "auto", "training.steps=2", "data.shapes=1")
    assert "compiled, batches do not fit in the GPU's memory; continuing uncompiled" in capsys.readouterr().err
    monkeypatch.setattr(compiled, "_timed", short)
    toys.run(corpus, tmp_path / "large", "training.steps=2", "data.shapes=1")
    assert "not compiled: a batch does not fit in the GPU's memory uncompiled" in capsys.readouterr().err
    assert len(losses(tmp_path / "auto")) == len(losses(tmp_path / "large")) == 2


def test_compiling_requested_in_vain_is_reported(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start, "hindrance", lambda *_: "several processes train uncompiled")
    toys.run(corpus, tmp_path / "asked", "training.steps=2", "training.compile=true")
    assert "training.compile: not compiled: several processes train uncompiled" in capsys.readouterr().err
    toys.run(corpus, tmp_path / "auto", "training.steps=2")  # on a CPU nobody expects it
    assert "training.compile" not in capsys.readouterr().err


def test_tokens_that_were_found_leave_memory_for_compiled_code(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start, "_fitted", lambda *_: 200)
    monkeypatch.setattr(start, "_compiled", lambda *_: None)
    toys.run(corpus, tmp_path / "run", "training.steps=2", "training.compile=true", "data.tokens=0", "data.shapes=2")
    assert "data.tokens: 150 of them, for compiled code takes more memory" in capsys.readouterr().err
    assert toys.final(tmp_path / "run").state["tokens"] == 150


@pytest.mark.parametrize(
    ("overrides", "device", "processes", "reason"),
    [
        ((), "cpu", 1, "on a CPU"),
        ((), "cuda", 1, ""),
        (("training.compile=true",), "cpu", 1, ""),
        (("training.compile=false",), "cuda", 1, "not requested"),
        (("training.compile=true",), "cuda", 2, "several processes"),
        (("data.sampling=0.1",), "cuda", 1, "subword sampling"),
        (("objective=r_drop",), "cuda", 1, "for Transformers"),
        (("model.decoder=recurrent",), "cuda", 1, "for Transformers"),
    ],
)
def test_what_is_compiled_by_itself(
    corpus: Path, overrides: tuple[str, ...], device: str, processes: int, reason: str
) -> None:
    found = hindrance(toys.config(corpus, *overrides), torch.device(device), processes)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


def test_what_no_compiler_can_do_is_refused(corpus: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.compile: the objective does not do the same at every step"):
        toys.config(corpus, "training.compile=true", "objective.inputs=scheduled_sampling")
    with pytest.raises(ConfigError, match=r"data\.shapes: 3 shapes are chosen by the lengths"):
        toys.config(corpus, "data.shapes=3", "data.sampling=0.1")


def test_what_is_compiled_is_kept_unless_it_is_said_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    keep_compiled()
    import os

    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "elsewhere"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    keep_compiled()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "transduce" / "compiled")


def test_the_default_is_auto() -> None:
    assert Config().training.compile == "auto"


def test_the_compiler_knows_every_kernel_of_training() -> None:
    package = Path(compiled.__file__).parents[1]
    texts = [path.read_text(encoding="utf-8") for path in (package / "kernels").glob("*.py")]
    named = [name for text in texts for name in re.findall(r'custom_op\("transduce::(\w+)"', text)]
    assert sorted(named) == sorted(compiled.KERNELS)
    compiled.introduce_kernels()
    from torch._inductor.lowering import FALLBACK_ALLOW_LIST

    assert {f"transduce::{name}" for name in named} <= set(FALLBACK_ALLOW_LIST)
