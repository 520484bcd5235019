"""Ensembles, minimum Bayes risk and alignments as users meet them: `transduce.load` and the command line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
import toy_model
import toys
from cli_runner import Run, refused

import transduce
from transduce.core import config as configs
from transduce.core.errors import ConfigError
from transduce.experiment import Config
from transduce.model.sources import Tokens
from transduce.search.settings import Beam, Greedy, MinimumBayesRisk, Samples
from transduce.training.loop import train

if TYPE_CHECKING:
    from toy_model import Toy

TEXTS = ["five", "ninety-two, three", "", "sixty-one"]
PAIRS = (["five", "ninety-two, three"], ["fünf", "zweiundneunzig, drei"])


@pytest.fixture(scope="module")
def other(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wider, deeper model on the same corpus."""
    folder = tmp_path_factory.mktemp("other") / "model"
    changes = ["model.d_model=48", "model.decoder.layers=2", "training.steps=40", "validation.every=40", "seed=5"]
    train(configs.load(Config, "tiny", [f"data.folder={toy.corpus}", *changes], defaults=[toy_model.SETTINGS]), folder)
    return folder


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with another tokenizer."""
    folder = tmp_path_factory.mktemp("stranger")
    toys.run(toys.corpus(folder, toys.copies(20), toys.copies(4)), folder / "model", "training.steps=2")
    return folder / "model"


# -- transduce.load --------------------------------------------------------------------------------------------------


def test_an_ensemble_of_a_model_with_itself_is_that_model(toy: Toy) -> None:
    both = transduce.load([toy.model, str(toy.model)], "cpu")
    for search in ({}, {"beam": 4, "n_best": 2}):
        for one, alone in zip(
            both.translate(TEXTS, to="de", **search),  # type: ignore[arg-type]
            toy.translator.translate(TEXTS, to="de", **search),  # type: ignore[arg-type]
            strict=True,
        ):
            assert one.text == alone.text
            assert one.log_prob == pytest.approx(alone.log_prob, abs=1e-4)
    assert transduce.load([toy.model], "cpu").translate(TEXTS, to="de") == toy.translator.translate(TEXTS, to="de")


@pytest.mark.parametrize("weights", [(), (3.0, 1.0)])
def test_the_score_of_an_ensemble_is_the_mean_at_every_token(toy: Toy, other: Path, weights: tuple[float, ...]) -> None:
    ensemble = transduce.load([toy.model, other], "cpu", weights=weights)
    members = [toy.translator, transduce.load(other, "cpu")]
    tag = toy.translator.tokenizers.source.token("<2de>")
    sources = [[tag, *tokens] for tokens in toy.translator.tokenizers.source.encode(PAIRS[0])]
    targets = toy.translator.tokenizers.target.encode(PAIRS[1])
    each = [member.engine.score(sources, targets) for member in members]
    first, second = (weight / sum(weights) for weight in weights) if weights else (0.5, 0.5)
    for number, scored in enumerate(ensemble.score(*PAIRS, to="de")):
        log_probs = [
            math.log(first * math.exp(a) + second * math.exp(b))
            for a, b in zip(each[0][number], each[1][number], strict=True)
        ]
        assert scored.log_prob == pytest.approx(sum(log_probs), abs=1e-4)
    found = ensemble.translate(PAIRS[0], to="de", beam=3)
    assert all(one.finished for one in found)
    written = [[ensemble.tokenizers.target.token(piece) for piece in one.tokens] for one in found]
    log_probs = [sum(each) for each in ensemble.engine.score(sources, written)]
    assert [one.log_prob for one in found] == pytest.approx(log_probs, abs=1e-4)


def test_the_beam_s_other_ways_work_on_ensembles_and_candidates(toy: Toy, other: Path) -> None:
    both, twice = transduce.load([toy.model, other], "cpu"), transduce.load([toy.model] * 2, "cpu")
    covered = Beam(size=4, n_best=2, groups=2, coverage=0.2)
    for one, alone in zip(
        twice.translate(PAIRS[0], to="de", search=covered),
        toy.translator.translate(PAIRS[0], to="de", search=covered),
        strict=True,
    ):
        assert (one.text, one.score) == (alone.text, pytest.approx(alone.score, abs=1e-4))
    (found,) = both.translate(["five"], to="de", include=["drei"], search=MinimumBayesRisk(Beam(size=6, n_best=4)))
    assert "drei" in found.text or not found.finished
    assert 0 <= found.score <= 100


def test_what_load_refuses(toy: Toy, other: Path, stranger: Path) -> None:
    with pytest.raises(ConfigError, match="load: no folder was given; expected a run folder, or a list"):
        transduce.load([])
    with pytest.raises(ConfigError, match=r"model: has another tokenizer than .*model, and models of an ensemble"):
        transduce.load([toy.model, stranger], "cpu")
    with pytest.raises(ConfigError, match="weights: expected one for each of 2 models, got 1"):
        transduce.load([toy.model, other], "cpu", weights=[1.0])


def test_members_write_token_by_token(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(name).mkdir()
        Path(name, "config.toml").touch()

    def opened(folder: Path, trust: bool, unfinished: bool = False) -> object:
        offers = "parallel" if folder == Path("b") else "stepwise"
        model = SimpleNamespace(decoder=SimpleNamespace(offers=offers), source=Tokens())
        config = SimpleNamespace(model=model, search=Greedy())
        return config, toy.translator.tokenizers, torch.nn.Module(), 9

    monkeypatch.setattr("transduce.training.run_folder.open_model", opened)
    for folders in (["a", "b"], ["b", "a"]):
        with pytest.raises(ConfigError, match=r"^b: does not write token by token, as every model of an ensemble must"):
            transduce.load(folders, "cpu")
    assert transduce.load(["b"], "cpu").longest == 9


# -- the command line ------------------------------------------------------------------------------------------------


def test_translate_score_and_evaluate_take_an_ensemble(run: Run, toy: Toy, other: Path, tmp_path: Path) -> None:
    ensemble = transduce.load([toy.model, other], "cpu")
    more = ("--to", "de", "--ensemble", other, "--device", "cpu")
    ran = run("translate", toy.model, *TEXTS, *more)
    assert ran.lines == ensemble(TEXTS, to="de")
    for name, lines in zip(("source", "target"), PAIRS, strict=True):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    ran = run("score", toy.model, tmp_path / "source", tmp_path / "target", *more)
    assert ran.lines == [f"{one.log_prob:.4f}\t{one.per_token:.4f}" for one in ensemble.score(*PAIRS, to="de")]
    kept = tmp_path / "kept"
    ran = run("evaluate", tmp_path / "target", toy.model, "--source", tmp_path / "source", "-o", kept, "--json", *more)
    assert json.loads(ran.out)["sentences"] == 2
    assert kept.read_text(encoding="utf-8").split("\n")[:-1] == ensemble(PAIRS[0], to="de")


def test_members_with_other_tokenizers_are_refused(run: Run, toy: Toy, stranger: Path) -> None:
    assert "use models trained on one prepared corpus" in refused(
        run("translate", toy.model, "five", "--ensemble", stranger)
    )


def test_minimum_bayes_risk_by_name(run: Run, toy: Toy) -> None:
    ran = run(
        "translate", toy.model, "five", "--to", "de", "--search", "kind=mbr,n_best=2,candidates.samples=8", "--json"
    )
    found = json.loads(ran.out)
    search = MinimumBayesRisk(Samples(samples=8), n_best=2)
    (expected,) = toy.translator.translate(["five"], to="de", search=search)
    assert (found["text"], found["score"]) == (expected.text, pytest.approx(expected.score))
    assert [one["text"] for one in found["alternatives"]] == [one.text for one in expected.alternatives]
    assert 0 < found["score"] <= 100
    assert found["log_prob"] < 0


def test_alignments_are_a_line_a_text(run: Run, toy: Toy, tmp_path: Path) -> None:
    links = tmp_path / "links"
    ran = run("translate", toy.model, *TEXTS, "--to", "de", "--alignments", links)
    expected = toy.translator.translate(TEXTS, to="de", align="words")
    assert ran.lines == [one.text for one in expected]
    lines = links.read_text(encoding="utf-8").split("\n")
    assert lines == [*(one.alignment.pharaoh() for one in expected if one.alignment), ""]
    assert len(lines) == 5
    assert lines[2] == ""
    run("translate", toy.model, *TEXTS, "--to", "de", "--alignments", links, "--pieces")
    pieces = links.read_text(encoding="utf-8").split("\n")
    assert [len(line.split()) for line in pieces[:-1]] == [len(one.tokens) for one in expected]


def test_json_holds_score_log_prob_and_alignment_of_every_hypothesis(run: Run, toy: Toy, tmp_path: Path) -> None:
    ran = run(
        *("translate", toy.model, "ninety-two, three", "--to", "de", "--json", "--n-best", "3"),
        *("--alignments", tmp_path / "links"),
    )
    found = json.loads(ran.out)
    assert len(found["alternatives"]) == 2
    for one in (found, *found["alternatives"]):
        assert one["log_prob"] <= one["score"] <= 0
        assert one["alignment"]["source"] == ["ninety-two,", "three"]
        assert one["alignment"]["target"] == one["text"].split()
        assert [target for _, target in sorted(one["alignment"]["links"], key=lambda link: link[1])] == list(
            range(len(one["text"].split()))
        )


def test_given_pairs_are_aligned(run: Run, toy: Toy, tmp_path: Path) -> None:
    for name, lines in zip(("source", "target"), PAIRS, strict=True):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    words = ("align", toy.model, tmp_path / "source", tmp_path / "target", "--to", "de")
    assert run(*words).lines == [one.pharaoh() for one in toy.translator.align(*PAIRS, to="de")]
    pieces = toy.translator.align(*PAIRS, to="de", unit="pieces", layer=-1)
    assert run(*words, "--pieces", "--layer", "-1").lines == [one.pharaoh() for one in pieces]
    assert refused(run(*words, "--layer", "7")) == (
        "layer: expected a decoder layer from 0 to 0, or from -1 backwards, got 7"
    )
    (tmp_path / "target").write_text("fünf\n", encoding="utf-8")
    assert "expected as many in each" in refused(run(*words))
