"""`n_best` gets several translations from the model's own search: every kind of search, both engines, the server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sacrebleu
import toys
from cli_runner import Run, refused

import transduce
from transduce.core.errors import ConfigError
from transduce.engines.native.library import built
from transduce.search.settings import (
    Beam,
    CTCCollapse,
    Greedy,
    Joint,
    Limits,
    MaskPredict,
    MinimumBayesRisk,
    Sample,
    Samples,
)
from transduce.translate.translator import Translator

if TYPE_CHECKING:
    from toy_model import Toy

PARALLEL = "model.decoder.kind=parallel"
KINDS = {
    "mask_predict": [
        PARALLEL,
        "objective=masked_prediction",
        "search={kind='mask_predict',iterations=2,length_candidates=2}",
        "validation.search={kind='mask_predict',iterations=1}",
    ],
    "ctc": [
        PARALLEL,
        "model.decoder.length=upsampled",
        "objective=parallel_ctc",
        "search=ctc",
        "validation.search=ctc",
    ],
    "joint": ["model.heads=ctc", "objective.terms=ctc", "search={kind='joint',size=2,limits.longest=5}"],
}
SHORT = Limits(longest=7)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.corpus(tmp_path_factory.mktemp("copies"), toys.copies(40), toys.copies(4, seed=9))


@pytest.fixture(scope="module", params=KINDS)
def folder(corpus: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A model that has barely learned: its translations differ."""
    path = tmp_path_factory.mktemp(request.param) / request.param
    toys.run(corpus, path, *KINDS[request.param], "training.steps=4", "validation.every=4")
    return path


def texts(found: transduce.Translation) -> list[str]:
    return [found.text, *(one.text for one in found.alternatives)]


@pytest.mark.parametrize(
    ("own", "count", "expected"),
    [
        (Beam(5, 0.1, limits=SHORT), 3, Beam(5, 0.1, 3, SHORT)),
        (Beam(4, groups=4), 6, Beam(8, n_best=6, groups=4)),
        (Sample(top_p=0.9, samples=5, seed=3), 2, Sample(top_p=0.9, samples=2, seed=3)),
        (MaskPredict(3, 2), 4, MaskPredict(3, 4, 4)),
        (MaskPredict(3, 5), 4, MaskPredict(3, 5, 4)),
        (CTCCollapse(), 2, CTCCollapse(2, 2)),
        (CTCCollapse(8), 2, CTCCollapse(8, 2)),
        (Joint(3, 0.2, limits=SHORT), 6, Joint(6, 0.2, 6, SHORT)),
        (MinimumBayesRisk(), 3, MinimumBayesRisk(n_best=3)),
        (MinimumBayesRisk(Samples(samples=4)), 6, MinimumBayesRisk(Samples(samples=6), n_best=6)),
        (MinimumBayesRisk(CTCCollapse(4, 3)), 6, MinimumBayesRisk(CTCCollapse(6, 6), n_best=6)),
        (Greedy(SHORT), 2, Beam(4, n_best=2, limits=SHORT)),  # which finds one, whoever asks
    ],
    ids=str,
)
def test_the_models_own_search_is_run_with_n_best(own: Any, count: int, expected: Any) -> None:
    nothing: Any = None
    translator = Translator(nothing, nothing, own)
    assert translator.choose_search(n_best=count) == expected
    assert translator.choose_search() == own
    assert isinstance(translator.choose_search(beam=4, n_best=2), Beam)


def test_none_at_all_is_refused() -> None:
    nothing: Any = None
    for own in (Beam(), MaskPredict(), CTCCollapse(), Joint(), MinimumBayesRisk(), Greedy()):
        with pytest.raises(ConfigError, match="n_best: expected an integer from 1"):
            Translator(nothing, nothing, own).choose_search(n_best=0)
    with pytest.raises(ConfigError, match="samples: expected an integer of at least 1, got 0"):
        Translator(nothing, nothing, Sample()).choose_search(n_best=0)


def test_the_command_line_writes_what_the_own_search_finds(folder: Path, run: Run) -> None:
    translator = transduce.load(folder, "cpu")
    (found,) = translator.translate(["abcd"], search=translator.search.with_n_best(3))
    assert len(texts(found)) == 3
    scores = [found.score, *(one.score for one in found.alternatives)]
    assert scores == sorted(scores, reverse=True)
    ran = run("translate", folder, "abcd", "--n-best", "3", "--device", "cpu")
    assert ran.lines == [f"1\t{score:.4f}\t{text}" for score, text in zip(scores, texts(found), strict=True)]
    if folder.name != "joint":
        assert "search.kind: 'beam' needs a decoder that decodes token by token" in refused(
            run("translate", folder, "abcd", "--beam", "3", "--device", "cpu")
        )


def test_several_requested_by_a_search_are_written_as_by_n_best(toy: Toy, run: Run) -> None:
    asked = ("translate", toy.model, "--to", "de", "--device", "cpu", "five", "ninety-two")
    listed = run(*asked, "--beam", "6", "--n-best", "6").lines
    assert len(listed) == 12
    assert run(*asked, "--search", "kind=beam,size=6,n_best=6").lines == listed
    drawn = run(*asked, "--search", "kind=sample,samples=3").lines
    assert [line.split("\t")[0] for line in drawn] == ["1", "1", "1", "2", "2", "2"]
    assert len(run(*asked, "--search", "kind=mbr,candidates={kind='beam',size=6,n_best=6}").lines) == 2


def test_minimum_bayes_risk_chooses_among_what_the_own_search_finds(folder: Path, run: Run) -> None:
    translator = transduce.load(folder, "cpu")
    candidates = translator.search.with_n_best(5)
    (listed,) = translator.translate(["abcdef"], search=candidates)
    (chosen,) = translator.translate(["abcdef"], search=MinimumBayesRisk(candidates))
    every = texts(listed)
    assert len(every) > 2
    utilities = [
        sum(sacrebleu.sentence_chrf(one, [other]).score for j, other in enumerate(every) if j != i) / (len(every) - 1)
        for i, one in enumerate(every)
    ]
    assert chosen.score == pytest.approx(max(utilities), abs=1e-6)
    assert chosen.text == every[utilities.index(max(utilities))]
    wide = {"mask_predict": "iterations=2,length_candidates", "ctc": "size", "joint": "limits.longest=5,size"}
    named = f"kind=mbr,candidates={{kind='{folder.name}',{wide[folder.name]}=5,n_best=5}}"
    assert run("translate", folder, "abcdef", "--search", named, "--device", "cpu").lines == [chosen.text]


def test_a_server_gives_as_many(folder: Path) -> None:
    testing = pytest.importorskip("starlette.testclient", reason="pip install transduce[serve]")
    from transduce.server import Served, application

    translator = transduce.load(folder, "cpu")
    with testing.TestClient(application([Served("own", translator, (("en", "de"),))]), "http://localhost") as client:
        asked = {"text": "abcd", "source": "en", "target": "de", "n_best": 3}
        answer = client.post("/v1/translate", json=asked)
    assert answer.status_code == 200, answer.text
    (one,) = answer.json()["translations"]
    (expected,) = translator.translate(["abcd"], n_best=3)
    written = [one["text"], *(other["text"] for other in one["alternatives"])]
    assert written == list(dict.fromkeys(texts(expected)))


@pytest.mark.skipif(built() is None, reason="the core is not built: make native")
@pytest.mark.parametrize("own", [Beam(4), Sample(samples=5, seed=3), MinimumBayesRisk(Samples(samples=3))], ids=str)
def test_both_engines_give_the_same(toy: Toy, native_toy: Path, own: Any) -> None:
    found = []
    for engine, folder in (("torch", toy.model), ("native", native_toy)):
        translator = transduce.load(folder, "cpu", engine=engine)
        translator.search = own
        found.append([texts(one) for one in translator.translate(["five", "ninety-two"], to="de", n_best=4)])
    assert found[0] == found[1]
    assert all(1 < len(one) <= 4 for one in found[0])
