"""Every file in configs/ loads, and opens with its command and the result it gave.

Every preset and every variant of every comparison takes a step.
"""

from pathlib import Path
from typing import cast, get_args

import numpy as np
import pytest
import torch

from transduce.core import config
from transduce.data.batch import collate
from transduce.data.prepare.run import Prepare
from transduce.experiment import Config, ObjectiveChoice
from transduce.metrics.sentence import SentenceMetric
from transduce.model.contract import Autoregressive
from transduce.objectives import ObjectiveContext, ObjectiveStep
from transduce.objectives.cross_entropy import CrossEntropy, Smoothed
from transduce.objectives.inputs import InputsChoice
from transduce.objectives.sequence_level import Reinforce, SequenceLevel
from transduce.objectives.terms import GuidedAlignment, Term
from transduce.text.vocabulary import Symbols
from transduce.workflows.compare.plan import read_plan

FOLDER = Path(__file__).parents[2] / "configs"
CONFIGS = sorted(path for pattern in ("*.toml", "speech/*.toml", "images/*.toml") for path in FOLDER.glob(pattern))
COMPARISONS = sorted((Path(__file__).parents[2] / "configs" / "compare").glob("*.toml"))
# Small enough to build in no time; widths and heads that every variant can halve and double.
SMALL = (
    "base=tiny seeds=[1] model.d_model=32 model.encoder.layers=3 model.decoder.layers=3"
    " model.encoder.d_ff=32 model.decoder.d_ff=32"
).split()
TEACHER = config.load(Config, "tiny").model
SYMBOLS = Symbols(pad=0, bos=2, eos=3, unk=1)


@pytest.mark.parametrize("path", [*CONFIGS, *COMPARISONS], ids=lambda path: path.name)
def test_opens_with_command_and_result(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").split("\n")
    head = [line for line in lines[:12] if line.startswith("#")]
    assert any(line.startswith("#   transduce ") for line in head)
    result = [line for line in head if line.startswith("# Result: ")]
    assert result
    assert any(character.isdigit() for character in result[0]), "the result must be a figure"
    assert "to be measured" not in " ".join(head), "the result must have been measured"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_loads(path: Path) -> None:
    if path.name.endswith(".prepare.toml"):
        assert config.load(Prepare, path).train
    else:
        assert config.load(Config, path).data.folder


@pytest.mark.parametrize("name", [*(p for p in config.presets() if p != "big"), *CONFIGS], ids=str)
def test_takes_a_step(name: str | Path) -> None:
    if str(name).endswith(".prepare.toml"):
        pytest.skip("prepares a corpus; test_loads covers it")
    take_a_step(config.load(Config, name))


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.name)
def test_every_variant_takes_a_step(path: Path) -> None:
    full, small = read_plan(path), read_plan(path, SMALL)
    assert full.variants == small.variants
    assert full.baseline in full.variants
    assert len(full.runs) == 3 * len(full.variants)
    told_apart = {config.dump(run.config) for run in small.runs}
    assert len(told_apart) == len(small.variants), "two variants are the same"
    for run in small.runs:
        take_a_step(run.config)


def test_the_comparison_of_objectives_is_whole() -> None:
    """Every objective, term, decoder input and reward that there is, but for what needs a corpus with alignments."""
    objectives = [run.config.objective for run in read_plan(FOLDER / "compare" / "objectives.toml").runs]
    assert {type(objective) for objective in objectives} == set(get_args(ObjectiveChoice))
    terms = {type(term) for objective in objectives if isinstance(objective, Smoothed) for term in objective.terms}
    assert terms == set(get_args(Term)) - {GuidedAlignment}
    inputs = {type(objective.inputs) for objective in objectives if isinstance(objective, CrossEntropy)}
    assert inputs == set(get_args(InputsChoice))
    rewards = {objective.reward for objective in objectives if isinstance(objective, SequenceLevel)}
    assert rewards == set(get_args(SentenceMetric))
    baselines = {objective.baseline for objective in objectives if isinstance(objective, Reinforce)}
    assert baselines == {"others", "greedy"}


def take_a_step(chosen: Config) -> None:
    torch.manual_seed(1)
    model = chosen.model.build(50, 50, shared=True)
    width, generator = chosen.model.source.width, np.random.default_rng(1)
    read = [generator.normal(size=(n, width)) for n in (20, 12)] if width else [[5, 6, 7], [8]]
    batch = collate(read, [[9, 10], [11, 12, 13]], SYMBOLS, SYMBOLS)
    teacher = cast("Autoregressive", TEACHER.build(50, 50, shared=True).requires_grad_(False))
    context = ObjectiveContext(SYMBOLS, teacher=lambda folder: teacher, vocabulary=50)
    loss = ObjectiveStep(model, chosen.objective.build(context))(batch, 0)
    loss.total.backward()
    assert loss.total.isfinite()
    assert all(parameter.grad is not None for parameter in model.parameters())
