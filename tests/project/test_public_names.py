"""What `import transduce` offers: the names, their words of explanation, and a session as in a notebook."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import transduce
from transduce.core import config as configs
from transduce.data.batch import Batch, collate, pad_sources
from transduce.experiment import Config
from transduce.model.attention import Attention
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.objectives.cross_entropy import CrossEntropy
from transduce.search.settings import Beam
from transduce.text.vocabulary import Symbols

if TYPE_CHECKING:
    from toy_model import Toy


NAMES = [
    "Batch",
    "Config",
    "ConfigError",
    "DecoderState",
    "Glossary",
    "Hypothesis",
    "Loss",
    "Memory",
    "Translation",
    "Translator",
    "UserError",
    "compare",
    "convert",
    "distill",
    "export",
    "import_model",
    "inspect",
    "load",
    "pipeline",
    "train",
]


def test_the_module_of_configs_is_there_without_asking_for_it() -> None:
    """In a process that has imported nothing else, as who reads docs/training.md begins."""
    program = "import transduce; print(transduce.config.load(transduce.Config, 'tiny', ['seed=7']).seed)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


def test_the_names_are_these() -> None:
    assert transduce.__all__ == NAMES
    for name in NAMES:
        assert getattr(transduce, name).__name__ == name
    assert transduce.__version__
    with pytest.raises(AttributeError, match="module 'transduce' has no attribute 'trian'"):
        transduce.trian  # noqa: B018


def test_the_laboratory_is_a_package_fetched_when_requested() -> None:
    assert transduce.lab.complexity.__name__ == "complexity"
    assert set(dir(transduce.lab)) >= set(transduce.lab.__all__)
    for name in transduce.lab.__all__:
        assert inspect.getdoc(getattr(transduce.lab, name)), name


def test_importing_is_quick_and_needs_no_torch() -> None:
    code = (
        "import sys, transduce, transduce.translate.translator; transduce.Translator; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_name_is_fetched_by_a_star() -> None:
    code = f"from transduce import *; print({', '.join(NAMES)})"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_public_names_are_documented_and_typed() -> None:
    """Each public function, class and public method has a docstring of its own; functions have annotations."""
    for name in NAMES:
        thing = getattr(transduce, name)
        assert inspect.getdoc(thing), name
        assert not (thing.__doc__ or "").startswith(f"{name}("), f"{name}: only the docstring that dataclasses make"
        functions = {name: thing} if inspect.isfunction(thing) else dict(vars(thing))
        for key, function in functions.items():
            if not inspect.isfunction(function) or (key.startswith("_") and key != "__call__"):
                continue
            assert function.__doc__ or key in ("tensors", "per_token"), f"{name}.{key}"
            signature = inspect.signature(function)
            assert signature.return_annotation is not inspect.Signature.empty, f"{name}.{key}"
            for parameter in list(signature.parameters.values())[1 if "." in function.__qualname__ else 0 :]:
                assert parameter.annotation is not inspect.Parameter.empty, f"{name}.{key}({parameter.name})"


def test_every_public_function_and_class_of_our_modules_has_a_docstring() -> None:
    """Of the modules that hold the public names, whatever has no underscore and is defined there."""
    for module in {sys.modules[getattr(transduce, name).__module__] for name in NAMES}:
        assert module.__doc__, module
        for key, thing in vars(module).items():
            own = getattr(thing, "__module__", None) == module.__name__
            if own and not key.startswith("_") and (inspect.isclass(thing) or inspect.isfunction(thing)):
                assert inspect.getdoc(thing), f"{module.__name__}.{key}"


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(transduce.__file__).parent / "py.typed").is_file()


def test_train_then_load_then_translate(toy: Toy, tmp_path: Path) -> None:
    import toy_model

    settings = [f"data.folder={toy.corpus}", "training.steps=4", "validation.every=4"]
    outcome = transduce.train(configs.load(Config, "tiny", settings, defaults=[toy_model.SETTINGS]), tmp_path / "run")
    assert (outcome.folder, outcome.step, outcome.reason) == (tmp_path / "run", 4, "finished")
    assert set(outcome.validation) >= {"loss", "bleu", "chrf"}
    translator = transduce.load(tmp_path / "run")
    assert isinstance(translator("five", to="de"), str)
    (translation,) = translator.translate(["five"], beam=4, to="de")
    assert isinstance(translation, transduce.Translation)
    assert isinstance(translation.score, float)


def test_a_config_written_in_python_trains_too(toy: Toy, tmp_path: Path) -> None:
    from transduce.experiment import Data
    from transduce.training.settings import Training

    config = transduce.Config(
        data=Data(folder=str(toy.corpus), tokens=512),
        model=Model(
            16, 0.0, encoder=TransformerEncoder(1, Attention(2), 16), decoder=TransformerDecoder(1, Attention(2), 16)
        ),
        training=Training(steps=2, device="cpu"),
    )
    assert transduce.train(config, tmp_path / "run").step == 2


def test_the_model_alone_as_in_a_notebook() -> None:
    """Tensors in, tensors out: no corpus, no tokenizer, no run folder."""
    torch.manual_seed(1)
    model = Model(
        d_model=16,
        dropout=0.0,
        encoder=TransformerEncoder(1, Attention(2), 32),
        decoder=TransformerDecoder(1, Attention(2), 32),
    ).build(source_vocabulary=10, target_vocabulary=10, shared=True)
    symbols = Symbols(pad=0, bos=1, eos=2, unk=3, never=(0, 1, 3))
    copies = [[4, 5], [6, 7, 8], [9], [5, 4, 9]]
    batch: Batch = collate(copies, copies, symbols, symbols)
    objective, optimizer = CrossEntropy(label_smoothing=0.0).build(), torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for step in range(60):
        loss = objective(model, batch, step)
        optimizer.zero_grad()
        torch.autograd.backward(loss.total / loss.count)
        optimizer.step()
        losses.append(loss.total.item() / loss.count.item())
    assert losses[-1] < 0.1 * losses[0]

    source, mask = pad_sources(copies, symbols)
    trace: dict[str, torch.Tensor] = {}
    memory = model.encode(source, mask, trace)
    assert memory.layers[-1].shape == (4, 4, 16)
    assert trace["encoder.0.self"].shape == (4, 2, 4, 4)
    logits, state = model.advance(torch.full((4, 1), symbols.bos), model.start(memory))
    assert (logits.shape, state.length) == ((4, 1, 10), 1)
    found = Beam(size=2).build()(model.eval(), memory, symbols)
    assert [list(hypotheses[0].tokens) for hypotheses in found] == copies
