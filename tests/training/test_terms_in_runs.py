"""Terms in real runs: heads saved with the model, sums reported, exact resuming, a teacher that stays outside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toys
from snapshots import same

from transduce.core.errors import RunError
from transduce.training.checkpoint import step_folders
from transduce.training.run_folder import open_model

TERMS = (
    "model.heads=['ctc', {kind='length', longest=12}]",
    "objective.terms=[{kind='ctc'}, {kind='length'}, {kind='z_loss'}, {kind='guided_attention', until=12}]",
)


def searching(kind: str) -> tuple[str, str]:
    return f"search.kind={kind}", f"validation.search.kind={kind}"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pairs = toys.reversals(70)
    return toys.corpus(tmp_path_factory.mktemp("toy"), pairs[:60], pairs[60:])


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "terms"
    toys.run(corpus, folder, *TERMS)
    return folder


def test_each_term_is_reported_while_it_lasts(trained: Path) -> None:
    reports = toys.reports(trained)
    for report in reports:
        assert {"nll", "ctc", "length", "z_loss"} <= report.keys()
        assert ("guided_attention" in report) == (report["step"] <= 12)
    for name in ("ctc", "length"):  # an epoch is four batches
        assert sum(report[name] for report in reports[-4:]) < sum(report[name] for report in reports[:4]), name


def test_heads_are_saved_with_the_model_and_come_back(trained: Path) -> None:
    weights = toys.final(trained).tensors["model"]
    assert {"heads.ctc.split.weight", "heads.ctc.output.weight", "heads.length.output.bias"} <= weights.keys()
    config, _, model, _ = open_model(trained, trust=False)
    assert [head.kind for head in config.model.heads] == ["ctc", "length"]
    best = toys.final(trained).state["best_step"]
    kept = toys.read_checkpoint(step_folders(trained)[best]).tensors["model"]
    for name, tensor in model.weights().items():
        assert torch.equal(tensor, kept[name]), name


def test_a_run_with_terms_resumes_bit_identically(corpus: Path, trained: Path, tmp_path: Path) -> None:
    toys.run(corpus, tmp_path / "parts", *TERMS, "training.steps=7")
    toys.run(corpus, tmp_path / "parts", *TERMS)
    assert toys.reports(tmp_path / "parts")[-1]["loss"] == toys.reports(trained)[-1]["loss"]
    whole, parts = toys.final(trained), toys.final(tmp_path / "parts")
    assert same(replace(parts, state={}), replace(whole, state={}))


def test_a_student_of_another_shape_learns_from_a_run(corpus: Path, trained: Path, tmp_path: Path) -> None:
    terms = f"objective.terms=[{{kind='distillation', teacher='{trained}', temperature=2.0}}]"
    before = (trained / "model.safetensors").read_bytes()
    toys.run(corpus, tmp_path / "student", terms, "model.d_model=8", "model.decoder.layers=2", "model.decoder.d_ff=8")
    found = toys.reports(tmp_path / "student")
    assert found[-1]["distillation"] < found[0]["distillation"]
    assert (trained / "model.safetensors").read_bytes() == before
    config = toys.config(corpus, "model.d_model=8", "model.decoder.layers=2", "model.decoder.d_ff=8")
    _, tokenizers, student, _ = open_model(tmp_path / "student", trust=False)
    bare = config.model.build(tokenizers.source.size, tokenizers.target.size, tokenizers.shared)
    assert student.weights().keys() == bare.weights().keys() == toys.final(tmp_path / "student").tensors["model"].keys()


def test_a_teacher_with_another_tokenizer_is_refused(trained: Path, tmp_path: Path) -> None:
    pairs = toys.copies(60)
    other = toys.corpus(tmp_path / "other", pairs, (), "bpe", 20)
    with pytest.raises(RunError) as caught:
        toys.run(other, tmp_path / "student", f"objective.terms=[{{kind='distillation', teacher='{trained}'}}]")
    assert str(caught.value) == (
        f"{trained}: the teacher has another tokenizer than the corpus of this run, and to it the same numbers are"
        " other words; train it on this corpus, or choose another teacher"
    )


def test_a_teacher_that_is_not_there_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"not a trained model \(no such folder\)"):
        toys.run(corpus, tmp_path / "s", f"objective.terms=[{{kind='distillation', teacher='{tmp_path}/nothing'}}]")


@pytest.mark.parametrize(
    "settings",
    [
        TERMS,
        ("model.decoder.kind=parallel", "objective.kind=masked_prediction", *searching("mask_predict")),
        (
            "model.decoder.kind=parallel",
            "model.decoder.length.kind=upsampled",
            "objective.kind=parallel_ctc",
            *searching("ctc"),
        ),
    ],
    ids=["terms", "masked prediction", "parallel CTC"],
)
def test_batches_of_few_shapes_have_rows_without_a_pair(
    corpus: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    outcome = toys.run(corpus, tmp_path / "run", *settings, "data.shapes=2", "training.steps=4")
    assert outcome.reason == "finished"
    assert [report["skipped"] for report in toys.reports(tmp_path / "run")] == [0] * 4
