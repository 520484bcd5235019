"""recipes/numbers.toml from raw text to the folder to give away: once without a stop, and killed in every stage."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import transduce
from transduce.core.errors import DataError, RunError
from transduce.engines.native.library import built
from transduce.translate.confidence import ConfidenceModel
from transduce.workflows.demo import write_text
from transduce.workflows.pipeline.evaluate import Measuring, Scores, Shipping
from transduce.workflows.pipeline.plan import read_pipeline
from transduce.workflows.pipeline.run import pipeline, pipeline_states

RECIPE = Path(__file__).parents[3] / "recipes" / "numbers.toml"
FEWER = ["teacher.settings.training.steps=20", "student.settings.training.steps=20"]
if built() is None:  # the scores of 8 bits are then those of the student by torch, and the rest is as it is
    FEWER += ["int8_scores.model={student}", "int8_scores.engine=torch"]
# Forked from a process that has torch loaded: a pipeline that is killed ten times starts eleven times.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["transduce.cli", "transduce.training.loop", "transduce.workflows.pipeline.evaluate"])


@dataclass(frozen=True)
class Made:
    """Where a pipeline was run, and the words that say so."""

    folder: Path
    words: list[str]

    @property
    def products(self) -> dict[str, str]:
        """A hash of what every stage made, by stage."""
        from transduce.workflows.pipeline.run import StageStamps

        plan = read_pipeline(RECIPE, self.words)
        return {stage.name: StageStamps(plan).made(stage.name, "test") for stage in plan.stages}


def words(place: Path, folder: Path) -> list[str]:
    return [f"paths.data={place / 'text'}", f"folder={folder}", *FEWER]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The whole pipeline, without a stop."""
    place = tmp_path_factory.mktemp("numbers")
    write_text(place / "text", 150)
    asked = words(place, place / "out")
    done = pipeline(RECIPE, asked)
    assert (len(done.done), done.signal) == (10, None)
    return Made(place / "out", asked)


@pytest.mark.slow
def test_the_folder_to_give_away_translates_and_says_what_it_is(made: Made) -> None:
    folder = made.folder / "model"
    card = (folder / "README.md").read_text(encoding="utf-8")
    for text in (
        "# Number words",
        "| direction | sentences | teacher: BLEU | chrF | student: BLEU | chrF | ",
        "| en-de | ",
        "tok:zh|",  # of en-zh
        "search `greedy`",
        "| student, odd: word | 120 |",  # 40 words into three languages
        "| german | en, de | ",
        "Anything at all.",
        "## Licence\n\nCC0",
    ):
        assert text in card, text
    scores = json.loads((folder / "scores.json").read_bytes())
    student = Scores.read(made.folder / "student_scores")
    assert scores["student"]["directions"][0]["bleu"] == student.directions[0].bleu
    assert [score.direction for score in student.directions] == ["en-de", "de-en", "en-zh", "zh-en"]
    assert sum(health.lines for health in student.odd.values()) == 600
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["README.md", "config.toml", "model.native", "native.json", "scores.json", "tokenizer"]
    )


@pytest.mark.slow
def test_a_model_given_away_says_how_sure_it_is(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.workflows.pipeline.confidence.FEWEST", 20)
    student, text = str(made.folder / "student"), str(made.folder / "text")
    Measuring(student, text, 40, device="cpu", confidence=40).write(tmp_path / "scores", odd=False)
    Shipping(student, text, (str(tmp_path / "scores"),), "x", "", "", "", "").write(tmp_path / "out")
    fitted = ConfidenceModel.of(tmp_path / "out")
    assert fitted is not None
    assert fitted == ConfidenceModel.of(tmp_path / "scores")
    assert set(fitted.bounds) <= {"en-de", "de-en", "en-zh", "zh-en"}
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"## Confidence\n\nOf {fitted.figures.sentences} translations that were left out in turn: AUROC" in card
    (found,) = transduce.load(tmp_path / "out", "cpu").translate(["twenty"], to="de", protect=False)
    assert found.confidence is not None
    assert 0 < found.confidence < 1
    assert transduce.load(student, "cpu").translate(["twenty"], to="de", protect=False)[0].confidence is None


@pytest.mark.slow
def test_the_scores_are_those_of_sacrebleu(made: Made) -> None:
    import sacrebleu

    scores = Scores.read(made.folder / "teacher_scores")
    target = (made.folder / "text" / "test" / "en-zh.zh").read_text(encoding="utf-8").split("\n")[:-1]
    hypotheses = (made.folder / "teacher_scores" / "en-zh.txt").read_text(encoding="utf-8").split("\n")[:-1]
    assert len(hypotheses) == len(target) < 40
    (score,) = (one for one in scores.directions if one.direction == "en-zh")
    assert score.bleu == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [target], tokenize="zh").score)
    assert score.chrf == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [target]).score)
    assert scores.bleu == pytest.approx(sum(one.bleu for one in scores.directions) / 4)


# In each stage a file that it is killed at, about to be written when others of it are there: what is done must be kept,
# and what is half done made again.
MOMENTS = {
    "text": "examined/000001",
    "corpus": ".preparing/manifest.json",
    "teacher": "checkpoints/step-00000020",
    "distilled": ".preparing/train.source.tokens",
    "student": "model.safetensors",
    "teacher_scores": "zh-en.json",
    "student_scores": "odd.json",
    "int8": "model.native",
    "int8_scores": "en-zh.txt",
    "model": "README.md",
}


def _live(name: str, asked: list[str], folder: Path, log: Path) -> None:
    """One process: the command, with its words in a file, until it opens the stage's file for writing."""
    from transduce.__main__ import main

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    places = [f"{folder}/{name}/", f"{folder}/.{name}."]  # what a stage has made, and is making

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, Path)) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            path = str(arguments[0])
            if path.startswith(tuple(places)) and MOMENTS[name] in path.removeprefix(str(folder)):
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)  # it is asked before the file is opened, and never leaves this process
    sys.argv = ["transduce", "pipeline", str(RECIPE), *asked]
    main()


def _kill_in(name: str, asked: list[str], folder: Path, log: Path) -> bool:
    """Whether the pipeline was killed, and this stage begun and not done."""
    process = _FORKS.Process(target=_live, args=(name, asked, folder, log))
    process.start()
    process.join(100)
    stamp = folder / "stamps" / f"{name}.json"
    assert stamp.exists(), log.read_text()
    return process.exitcode == -signal.SIGKILL and not json.loads(stamp.read_bytes())["done"]


@pytest.mark.slow
def test_killed_in_every_stage_it_ends_the_same(made: Made, tmp_path: Path) -> None:
    folder, log = tmp_path / "out", tmp_path / "log"
    asked = words(made.folder.parent, folder)
    hit = [name for name in made.products if _kill_in(name, asked, folder, log)]
    assert hit == list(made.products) == list(MOMENTS), log.read_text()
    done = pipeline(RECIPE, asked)
    assert len(done.done) + len(done.skipped) == 10
    assert log.read_text().count(": resuming\n") >= len(hit) - 1
    assert {one.state for one in pipeline_states(RECIPE, asked)} == {"done"}
    mine, theirs = Made(folder, asked).products, made.products
    for name in ("text", "corpus", "teacher_scores", "student_scores", "int8_scores"):
        assert mine[name] == theirs[name], name
    weights = ("teacher/model.safetensors", "student/model.safetensors", "int8/model.native", "model/model.native")
    for name in weights:  # the configs beside them name folders, which differ
        assert (folder / name).read_bytes() == (made.folder / name).read_bytes(), name


@pytest.mark.slow
def test_an_evaluation_resumes_with_the_next_direction(made: Made, tmp_path: Path) -> None:
    kept = tmp_path / "scores"
    shutil.copytree(made.folder / "teacher_scores", kept)
    for name in ("results.json", "zh-en.json"):
        (kept / name).unlink()
    table = json.loads((kept / "en-de.json").read_bytes())
    (kept / "en-de.json").write_text(json.dumps({**table, "bleu": 99.0}))
    again = Measuring(str(made.folder / "teacher"), str(made.folder / "text"), 40, device="cpu").write(kept, odd=False)
    before = Scores.read(made.folder / "teacher_scores")
    assert again.directions[0].bleu == 99.0  # not measured again
    assert again.directions[3] == before.directions[3]  # measured again, to the same


@pytest.mark.slow
def test_the_student_in_eight_bits_is_measured_by_the_native_engine(made: Made) -> None:
    if built() is None:
        pytest.skip("the core is not built: make native")
    eight, whole = Scores.read(made.folder / "int8_scores"), Scores.read(made.folder / "student_scores")
    assert eight.size == (made.folder / "model" / "model.native").stat().st_size
    assert abs(eight.chrf - whole.chrf) < 5
    card = (made.folder / "model" / "README.md").read_text(encoding="utf-8")
    assert f"| int8, tests | {eight.health.lines} |" in card
    assert isinstance(transduce.load(made.folder / "model", engine="native")("twenty", to="de"), str)


@pytest.mark.slow
def test_what_cannot_be_given_away_is_refused(made: Made, tmp_path: Path) -> None:
    shipping = Shipping(str(made.folder / "student"), "", (), "x", "", "", "", "")
    with pytest.raises(RunError, match=r"the model would take 0\.\d MiB, and at most 0\.01 are allowed"):
        shipping.write(tmp_path / "out", 0.01)
    assert not (tmp_path / "out").exists()
    shipping.write(tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "Not measured." in card
    assert "Not fitted: translations have none." in card
    assert "Not stated; mind the licences of the data." in card


def test_folders_of_something_else_are_reported(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"no results\.json in it; expected a folder that an evaluate stage has written"
    ):
        Scores.read(tmp_path)
    (tmp_path / "gathered.json").write_text('{"pivot": "en", "texts": [], "sources": [], "settings": ""}')
    with pytest.raises(
        DataError, match="holds no test text; give the gather stage corpora to test on, or a test_share"
    ):
        Measuring("model", str(tmp_path)).write(tmp_path / "out")
