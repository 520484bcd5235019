"""What a pipeline does again and what it does not: stages without torch, run for real, on number words."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import toys
from cli_runner import Run, refused

import transduce
from transduce.core.durable import lock_folder
from transduce.core.errors import RunError
from transduce.text.number_words import english, german
from transduce.workflows.gather.settings import Gathered
from transduce.workflows.pipeline.run import pipeline, pipeline_states
from transduce.workflows.pipeline.stages import PrepareStage

if TYPE_CHECKING:
    from toy_model import Toy

PLAN = """
folder = "runs"
paths.data = "raw"
[[stage]]
kind = "gather"
name = "text"
[stage.settings]
simplified = []
valid_share = 0.1
workers = 1
[[stage.settings.corpora]]
name = "numbers"
languages = ["en", "de"]
source = "{data}/a.en"
target = "{data}/a.de"
[[stage]]
kind = "prepare"
name = "corpus"
text = "{text}"
settings = { workers = 1, tokenizer = { vocabulary = 60, model = "bpe", byte_fallback = false } }
[[stage]]
kind = "prepare"
name = "other"
[stage.settings]
workers = 1
train = { source = "{data}/b.en", target = "{data}/b.de" }
tokenizer = { vocabulary = 60, model = "bpe", byte_fallback = false }
"""
ALL = ("text", "corpus", "other")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with a pipeline file and its text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    write("a", 0, 150)
    write("b", 0, 100)
    (tmp_path / "plan.toml").write_text(PLAN, encoding="utf-8")
    return tmp_path


def write(name: str, first: int, last: int) -> None:
    for language, words in (("en", english), ("de", german)):
        text = "".join(f"{words(number)}\n" for number in range(first, last))
        Path(f"raw/{name}.{language}").write_text(text, encoding="utf-8")


def states(*words: str) -> dict[str, str]:
    return {one.name: one.state for one in pipeline_states("plan.toml", words)}


def test_what_is_done_is_not_done_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert states() == {"text": "left", "corpus": "left", "other": "left"}
    assert not Path("runs").exists()
    first = transduce.pipeline("plan.toml")
    assert (first.done, first.skipped, first.signal) == (ALL, (), None)
    assert "[2/3] corpus: prepare" in capsys.readouterr().err
    assert states() == {"text": "done", "corpus": "done", "other": "done"}
    second = pipeline("plan.toml")
    assert (second.done, second.skipped) == ((), ALL)
    assert "[1/3] text: done before, in " in capsys.readouterr().err


def test_changed_text_is_read_again_by_all_that_depend_on_it() -> None:
    pipeline("plan.toml")
    write("a", 0, 140)
    found = pipeline_states("plan.toml")
    assert [(one.state, one.why) for one in found] == [
        ("stale", "its text was changed"),
        ("stale", "waits for text"),
        ("done", ""),
    ]
    again = pipeline("plan.toml")
    assert (again.done, again.skipped) == (("text", "corpus"), ("other",))
    assert sum(text.pairs for text in Gathered.open("runs/text").texts) == 140
    assert Path("runs/text.old-1/gathered.json").exists()
    assert Path("runs/corpus.old-1/manifest.json").exists()


def test_what_only_looks_changed_is_left_alone(place: Path) -> None:
    pipeline("plan.toml")
    for path in Path("raw").iterdir():
        os.utime(path, (1, 1))
    os.rename("raw", "moved")
    os.rename("runs", "elsewhere")
    words = ["paths.data=moved", "folder=elsewhere", "text.settings.workers=2"]
    assert set(states(*words).values()) == {"done"}
    assert pipeline("plan.toml", words).skipped == ALL


def test_changed_settings_are_reported_and_what_was_made_is_set_aside(capsys: pytest.CaptureFixture[str]) -> None:
    pipeline("plan.toml")
    words = ["corpus.settings.tokenizer.vocabulary=70"]
    assert "settings.tokenizer.vocabulary was 60, and is 70" in [one.why for one in pipeline_states("plan.toml", words)]
    assert pipeline("plan.toml", words).done == ("corpus",)
    told = capsys.readouterr().err
    assert "[2/3] corpus: again, for settings.tokenizer.vocabulary was 60, and is 70" in told
    assert "runs/corpus: what was there is now runs/corpus.old-1; delete it when you do not need it" in told
    assert pipeline("plan.toml").done == ("corpus",)
    assert Path("runs/corpus.old-2").exists()


def test_from_and_until() -> None:
    assert pipeline("plan.toml", until="text").done == ("text",)
    assert states() == {"text": "done", "corpus": "left", "other": "left"}
    write("a", 0, 100)  # and the text is taken as it is all the same
    assert pipeline("plan.toml", start="corpus", until="corpus").done == ("corpus",)
    assert Path("runs/corpus").exists()
    assert states()["text"] == "stale"


def test_a_stage_whose_needs_are_missing_is_refused() -> None:
    with pytest.raises(RunError, match="stage 'corpus' needs what stage 'text' makes, and runs/text does not hold it"):
        pipeline("plan.toml", start="corpus")


def test_a_machine_without_the_text_shows_what_is_done_and_resumes_from_there() -> None:
    pipeline("plan.toml", until="text")
    os.rename("raw", "far-away")
    assert states() == {"text": "done", "corpus": "left", "other": "left"}
    assert pipeline_states("plan.toml")[0].why.startswith("settings.corpora 'numbers'.source: raw/a.en: no such")
    assert pipeline("plan.toml", start="corpus", until="corpus").done == ("corpus",)


def test_what_was_deleted_is_made_again() -> None:
    pipeline("plan.toml", until="text")
    os.unlink("runs/text/gathered.json")
    (one, *_) = pipeline_states("plan.toml")
    assert (one.state, one.why) == ("begun", "what it made is not there any more")


def test_a_killed_stage_resumes_and_a_changed_one_begins_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transduce.data.prepare import run as preparing

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "final_report", die)
        with pytest.raises(KeyboardInterrupt):
            pipeline("plan.toml")
    assert states() == {"text": "done", "corpus": "begun", "other": "left"}
    capsys.readouterr()
    pipeline("plan.toml", until="corpus")
    told = capsys.readouterr().err
    assert "[2/3] corpus: resuming" in told
    assert "parts are tokenized" in told
    with monkeypatch.context() as patch:
        patch.setattr(preparing, "final_report", die)
        with pytest.raises(KeyboardInterrupt):
            pipeline("plan.toml", ["other.settings.longest=50"])
    assert Path("runs/.other.parts").exists()
    capsys.readouterr()
    pipeline("plan.toml")
    assert "resuming" not in capsys.readouterr().err
    assert set(states().values()) == {"done"}


def test_killed_between_the_work_and_its_stamp() -> None:
    pipeline("plan.toml")
    for name in ALL:
        path = Path(f"runs/stamps/{name}.json")
        path.write_text(path.read_text().replace('"done": true', '"done": false'))
    assert set(states().values()) == {"begun"}
    assert pipeline("plan.toml").done == ALL
    assert set(states().values()) == {"done"}


def test_a_signal_ends_the_pipeline_with_its_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrepareStage, "run", lambda *_: "SIGTERM")
    ran = run("pipeline", "plan.toml")
    assert ran.code == 128 + signal.SIGTERM
    assert "SIGTERM: stopped; the same command resumes from there" in ran.err
    assert states()["corpus"] == "begun"


def test_the_command(run: Run) -> None:
    assert run("pipeline", "plan.toml", "--until", "corpus").lines == ["runs: 2 stages done now, 0 done before"]
    rows = [line.split("\t") for line in run("pipeline", "plan.toml", "--list").lines]
    assert [row[:3] for row in rows] == [
        ["text", "gather", "done"],
        ["corpus", "prepare", "done"],
        ["other", "prepare", "left"],
    ]
    held = lock_folder(Path("runs/stamps"))
    assert "runs/stamps: another process is using this folder" in refused(run("pipeline", "plan.toml"))
    os.close(held)


@pytest.mark.slow
def test_training_resumes_with_more_steps_and_is_set_aside_for_another_model(toy: Toy) -> None:
    import toy_model

    def words(*own: str) -> list[str]:
        return toys.latest(*(f"model.settings.{word}" for word in (*toy_model.SETTINGS, *own)))

    Path("train.toml").write_text(
        f'folder = "runs"\n[[stage]]\nkind = "train"\nname = "model"\nconfig = "tiny"\n'
        f'settings.data.folder = "{toy.corpus}"\n',
        encoding="utf-8",
    )
    assert pipeline("train.toml", words("training.steps=4")).done == ("model",)
    assert pipeline("train.toml", words("training.steps=4", "training.report_every=2")).done == ()
    (one,) = pipeline_states("train.toml", words("training.steps=8"))
    assert one.why == "config training.steps was 4, and is 8"
    assert pipeline("train.toml", words("training.steps=8")).done == ("model",)
    assert not Path("runs/model.old-1").exists()
    assert '"step": 4' in Path("runs/model/metrics.jsonl").read_text()
    assert pipeline("train.toml", words("training.steps=8", "model.d_model=16")).done == ("model",)
    assert Path("runs/model.old-1/model.safetensors").exists()
