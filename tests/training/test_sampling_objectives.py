"""Objectives that draw, through the real loop: chosen by a word in the config, and resumed bit-identically.

Also begun with the weights of another run.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import toys
from snapshots import same, same_tensors

import transduce
from transduce.core.errors import RunError
from transduce.data.prepare.run import Prepare, prepare
from transduce.engines.native.library import built
from transduce.exchange.convert import convert
from transduce.text.train_tokenizer import GivenTokenizer
from transduce.training import run_folder

OBJECTIVES = {
    "scheduled sampling": (
        "objective.inputs.kind=scheduled_sampling",
        "objective.inputs.schedule={kind='inverse_sigmoid',end=0.9,steps=6}",
        "objective.inputs.temperature=1",
    ),
    "noise": ("objective.inputs={kind='input_noise',replace=0.3,drop=0.1}",),
    "reinforce": ("objective={kind='reinforce',samples=3}", "objective.cross_entropy.inputs=input_noise"),
    "self-critical": ("objective={kind='reinforce',samples=1,baseline='greedy',mixing=0}",),
    "minimum risk": ("objective={kind='minimum_risk',samples=3,longest_extra=2}",),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.corpus(tmp_path_factory.mktemp("copies"), toys.copies(60))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_resumed_run_draws_the_same(corpus: Path, tmp_path: Path, name: str) -> None:
    settings = (*OBJECTIVES[name], "training.accumulate=2", "training.save_every=3")
    toys.run(corpus, tmp_path / "whole", *settings, "training.steps=6")
    toys.run(corpus, tmp_path / "parts", *settings, "training.steps=3")
    toys.run(corpus, tmp_path / "parts", *settings, "training.steps=6")
    lines = [toys.reports(tmp_path / folder) for folder in ("whole", "parts")]
    assert [line["loss"] for line in lines[0]] == [line["loss"] for line in lines[1]]
    assert same(toys.final(tmp_path / "whole"), toys.final(tmp_path / "parts"))
    if not name.startswith(("scheduled", "noise")):
        assert all(0 <= line["reward"] <= 1 for line in lines[0])
        assert len({line["reward"] for line in lines[0]}) > 1


def test_a_run_may_start_from_the_weights_of_another(corpus: Path, tmp_path: Path) -> None:
    toys.run(corpus, tmp_path / "first", "training.steps=3")
    settings = (f"training.start_from={tmp_path / 'first'}", "objective.kind=minimum_risk", "training.ema=0.5")
    still = ("training.learning_rate.rate=1e-30", "training.steps=2", "training.save_every=1")
    toys.run(corpus, tmp_path / "second", *settings, *still)
    first, second = toys.final(tmp_path / "first"), toys.final(tmp_path / "second")
    assert same_tensors(first.tensors["model"], second.tensors["model"])
    assert same_tensors(first.tensors["model"], second.tensors["average"])
    (tmp_path / "first" / "model.safetensors").unlink()  # a checkpoint needs it no more
    toys.run(corpus, tmp_path / "second", *settings, *still, "training.steps=3")
    assert toys.final(tmp_path / "second").step == 3


@pytest.mark.skipif(built() is None, reason="the core is not built: make native")
def test_a_run_may_start_from_converted_weights(corpus: Path, tmp_path: Path) -> None:
    toys.run(corpus, tmp_path / "first", "training.steps=3")
    convert(tmp_path / "first", tmp_path / "converted", quantize="none")
    still = ("training.learning_rate.rate=1e-30", "training.steps=1")
    toys.run(corpus, tmp_path / "second", f"training.start_from={tmp_path / 'converted'}", *still)
    first, second = (toys.final(tmp_path / folder).tensors["model"] for folder in ("first", "second"))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, rtol=1e-5, atol=1e-7)


@pytest.mark.skipif(built() is None, reason="the core is not built: make native")
def test_8_bit_weights_continue_with_symbols_in_the_places_of_pieces(tmp_path: Path) -> None:
    old = toys.corpus(tmp_path / "old", toys.copies(60), (), "bpe", 24)
    toys.run(old, tmp_path / "first", "training.steps=3")
    convert(tmp_path / "first", tmp_path / "converted", quantize="int8")
    pieces = transduce.load(tmp_path / "first", engine="torch").tokenizers.source
    place = next(piece for piece in pieces.pieces(range(pieces.size)) if len(piece) > 1 and "<" not in piece)
    given = GivenTokenizer(folder=str(tmp_path / "converted" / "tokenizer"), symbols=("⟦0⟧",), instead_of=(place,))
    text = toys.text(tmp_path / "new" / "train", toys.copies(60))
    corpus = prepare(Prepare(output=str(tmp_path / "new" / "corpus"), train=(text,), tokenizer=given, workers=1)).folder
    still = ("training.learning_rate.rate=1e-30", "training.steps=1")
    toys.run(corpus, tmp_path / "second", f"training.start_from={tmp_path / 'converted'}", *still)
    first, second = (toys.final(tmp_path / folder).tensors["model"] for folder in ("first", "second"))
    assert first.keys() == second.keys()
    largest = max(float(tensor.abs().max()) for tensor in first.values())
    for name, tensor in first.items():  # rounded to 255 steps
        torch.testing.assert_close(second[name], tensor, rtol=0, atol=largest / 100)
    taught = f"objective.terms=[{{kind='distillation',teacher='{tmp_path / 'first'}'}}]"
    with pytest.raises(RunError, match="first: the teacher has another tokenizer than the corpus of this run"):
        toys.run(corpus, tmp_path / "third", taught, *still)
    own = f"objective.terms=[{{kind='distillation',teacher='{tmp_path / 'converted'}'}}]"
    toys.run(old, tmp_path / "fourth", own, *still)  # a converted model may teach


@pytest.mark.skipif(built() is None, reason="the core is not built: make native")
def test_weights_that_do_not_fit_are_reported_with_the_file_they_are_in(corpus: Path, tmp_path: Path) -> None:
    toys.run(corpus, tmp_path / "first", "training.steps=1")
    convert(tmp_path / "first", tmp_path / "converted", quantize="none")
    start = f"training.start_from={tmp_path / 'converted'}"
    with pytest.raises(RunError, match=r"converted/model.native: the tensors do not fit the model: .* missing"):
        toys.run(corpus, tmp_path / "second", start, "model.decoder.layers=2")


def test_what_a_run_cannot_start_from(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toys.run(corpus, tmp_path / "first", "training.steps=1")
    start = f"training.start_from={tmp_path / 'first'}"
    with pytest.raises(RunError, match=r"first/model.safetensors: the tensors do not fit the model: .* missing"):
        toys.run(corpus, tmp_path / "second", start, "model.decoder.layers=2")
    other = toys.corpus(tmp_path / "other", toys.copies(60), (), "bpe", 20)
    taught = f"objective.terms=[{{kind='distillation',teacher='{tmp_path / 'first'}'}}]"
    with monkeypatch.context() as patch:
        patch.delattr(run_folder, "open_weights")  # tokenizers are compared before a model is built
        with pytest.raises(RunError, match="first: the model to start from has another tokenizer than the corpus of"):
            toys.run(other, tmp_path / "second", start)
        with pytest.raises(RunError, match="first: the teacher has another tokenizer than the corpus of this run"):
            toys.run(other, tmp_path / "third", taught)
    toys.run(corpus, tmp_path / "second", start, "training.steps=1")  # what was refused has left nothing behind


def test_a_parallel_decoder_may_begin_as_one_that_writes_token_by_token(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toys.run(corpus, tmp_path / "first", "training.steps=3")
    parallel = (
        'model.decoder={kind="parallel",layers=1,attention={heads=2},d_ff=32,length={kind="upsampled",factor=2}}',
        "objective.kind=parallel_ctc",
        "search.kind=ctc",
        "validation.search.kind=ctc",
    )
    settings = (f"training.start_from={tmp_path / 'first'}", "training.start_with=what_fits", *parallel)
    capsys.readouterr()
    toys.run(corpus, tmp_path / "second", *settings, "training.learning_rate.rate=1e-30", "training.steps=1")
    first, second = (toys.final(tmp_path / folder).tensors["model"] for folder in ("first", "second"))
    shared = first.keys() & second.keys()
    assert {name.split(".")[0] for name in shared} >= {"encoder", "decoder"}
    assert {name.split(".")[0] for name in second.keys() - shared} == {"split", "blank"}
    assert all(torch.equal(first[name], second[name]) for name in shared)
    said = f"training.start_from: {len(shared)} tensors of {len(second)} begin as those of {tmp_path / 'first'}"
    assert said in capsys.readouterr().err


def test_a_run_cannot_start_where_nothing_fits(corpus: Path, tmp_path: Path) -> None:
    toys.run(corpus, tmp_path / "first", "training.steps=1")
    start = (f"training.start_from={tmp_path / 'first'}", "training.start_with=what_fits", "model.d_model=24")
    recurrent = ('model.encoder={kind="recurrent",layers=1}', 'model.decoder={kind="recurrent",layers=1}')
    with pytest.raises(RunError, match="first: none of its tensors has the name and the shape of one of the new"):
        toys.run(corpus, tmp_path / "second", *start, *recurrent)
