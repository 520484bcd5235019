"""As many tokens as fit: the search, what it tries, and that nothing of the trials stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import toys

from transduce.core.errors import ConfigError
from transduce.data.batch import Batch
from transduce.data.batching import Batches
from transduce.data.corpus import Corpus
from transduce.objectives import Loss, ObjectiveStep
from transduce.training import start
from transduce.training import start as fitting
from transduce.training.distributed import Group
from transduce.training.session import Session
from transduce.training.start import demanding, fit_tokens, largest
from transduce.training.step_runner import EagerRunner


@pytest.mark.parametrize("limit", [1, 2, 17, 100, 1023, 1024, 1025, 5000, 99_999, 100_000, 1_000_000])
@pytest.mark.parametrize("most", [100_000, 600])
def test_the_largest_that_fits_is_found_to_a_sixteenth(limit: int, most: int) -> None:
    tried: list[int] = []

    def fits(number: int) -> bool:
        tried.append(number)
        return number <= limit

    found, best = largest(fits, 1024, most), min(limit, most)
    assert best - max(1, best // 16) <= found <= best
    assert len(tried) < 30


def test_nothing_fits() -> None:
    assert largest(lambda number: False, 1024, 5000) == 0


class Limited(EagerRunner):
    """Memory for so many places."""

    def __init__(self, module: ObjectiveStep, places: int) -> None:
        super().__init__(module, torch.device("cpu"), bf16=False)
        self.places = places

    def run(self, batch: Batch, step: int, counted: bool = True) -> Loss:
        if batch.source.numel() + batch.gold.numel() > self.places:
            raise torch.OutOfMemoryError("out of memory")
        return super().run(batch, step, counted)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.corpus(tmp_path_factory.mktemp("toy"), toys.reversals(400))


@pytest.mark.parametrize("places", [200, 700])
def test_a_budget_fits_whose_largest_batches_do_and_nothing_stays(
    corpus: Path, places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "FIRST", 64)
    monkeypatch.setattr(fitting, "FEWEST_BATCHES", 2)
    config, opened = toys.config(corpus, "model.encoder.norm=batch_norm"), Corpus.open(corpus)
    size = opened.tokenizers.source.size
    session = Session(config, config.model.build(size, size, True), torch.device("cpu"))
    before = {name: tensor.clone() for name, tensor in session.model.weights().items()}

    def batches_of(tokens: int) -> Batches:
        return Batches(opened.split("train"), opened.tokenizers, tokens, 4, 1)

    found = fit_tokens(session, Limited(ObjectiveStep(session.model, config.objective.build()), places), batches_of)
    assert max(b.source.numel() + b.gold.numel() for b in demanding(batches_of(found))) <= places
    assert max(b.source.numel() + b.gold.numel() for b in demanding(batches_of(found + found // 8 + 8))) > places
    assert all(torch.equal(tensor, before[name]) for name, tensor in session.model.weights().items())
    assert not session.optimizer.state
    assert all(parameter.grad is None for parameter in session.model.parameters())


def test_a_run_keeps_what_was_found(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([96, 4096])
    monkeypatch.setattr(start, "_fitted", lambda *_: next(found))
    toys.run(corpus, tmp_path / "run", "data.tokens=0", "training.steps=3")
    assert toys.final(tmp_path / "run").state["tokens"] == 96
    toys.run(corpus, tmp_path / "run", "data.tokens=0", "training.steps=6")
    assert toys.final(tmp_path / "run").state["tokens"] == 96
    toys.run(corpus, tmp_path / "same", "data.tokens=96", "training.steps=6")
    curves = [[entry["loss"] for entry in toys.reports(tmp_path / name)] for name in ("run", "same")]
    assert curves[0] == curves[1]


def test_on_a_cpu_a_number_is_wanted(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.tokens: 0, as many as the GPU holds, .* on a CPU; give a number"):
        toys.run(corpus, tmp_path / "run", "data.tokens=0")


def test_a_gpu_too_small_for_any_pair_is_named(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "fit_tokens", lambda *_: 0)
    config, opened = toys.config(corpus), Corpus.open(corpus)
    size = opened.tokenizers.source.size
    session = Session(config, config.model.build(size, size, True), torch.device("cpu"))
    monkeypatch.setattr(session, "device", torch.device("cuda"))
    passes = EagerRunner(ObjectiveStep(session.model, config.objective.build()), torch.device("cpu"), bf16=False)
    with pytest.raises(ConfigError, match="not even one pair fits in the GPU's memory"):
        start._fitted(config, session, passes, lambda _: None, Group("cpu"), print)  # type: ignore[arg-type,return-value]
