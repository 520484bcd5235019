"""Processes side by side: in order, failures reported with their last line, signals passed on."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from transduce.core.plugins import import_path, own_class
from transduce.objectives import ObjectiveConfig
from transduce.workflows.compare.run import ChildTask, TaskOutcome, run_tasks

MODULE = """
import os, signal, sys, time
name, what = sys.argv[1:]
open("order", "a").write(f"+{name}\\n")
print("words of", name, os.environ.get("OMP_NUM_THREADS"), flush=True)
if what == "fail":
    print("Traceback\\n  ...\\nValueError: it broke\\n", file=sys.stderr)
    sys.exit(3)
if what == "silent":
    sys.stdout = None
    os._exit(4)
if what == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "stop":
    def leave(number, frame):
        open("order", "a").write(f"saved {name}\\n")
        sys.exit(143)
    signal.signal(signal.SIGTERM, leave)
    open(f"ready.{name}", "w").close()
    time.sleep(30)
time.sleep(float(what) if what[0].isdigit() else 0)
open("order", "a").write(f"-{name}\\n")
"""
OWN = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Mine:
    def build(self, context):
        return None
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleeper.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def task(name: str, what: str, after: str = "") -> ChildTask:
    return ChildTask(name, ("sleeper", name, what), Path("logs") / f"{name}.log", 10, lambda: 0, tuple(after))


def order() -> list[str]:
    return Path("order").read_text(encoding="utf-8").split()


def test_one_after_the_other() -> None:
    assert run_tasks("Working", "steps", [task("a", "0"), task("b", "0")], jobs=1) == TaskOutcome({})
    assert order() == ["+a", "-a", "+b", "-b"]


def test_the_current_folder_is_nothing_to_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It imports what this process does; `python -m` would take what lies here first."""
    (tmp_path / "here").mkdir()
    for name in ("sleeper", "random", "runpy"):
        (tmp_path / "here" / f"{name}.py").write_text("open('ran', 'w')", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("sys.path", [one for one in sys.path if one])
    assert run_tasks("Working", "steps", [task("a", "0")], jobs=1) == TaskOutcome({})
    assert not Path("ran").exists()


def test_what_was_added_for_own_classes_a_child_adds_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine_alone.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("sys.path", [one for one in sys.path if one])
    monkeypatch.setattr("transduce.core.plugins._added", [])
    before = list(sys.path)
    assert own_class("mine_alone:Mine", "objective", ObjectiveConfig, trust=True).__name__ == "Mine"
    assert sys.path == [str(tmp_path / "here"), *before]
    assert import_path() == before


def test_two_at_a_time_with_few_threads() -> None:
    assert run_tasks("Working", "steps", [task(name, "0.6") for name in "abc"], jobs=2, threads=3) == TaskOutcome({})
    assert set(order()[:2]) == {"+a", "+b"}
    assert order().index("+c") > min(order().index("-a"), order().index("-b"))
    assert Path("logs/a.log").read_text(encoding="utf-8") == "words of a 3\n"


def test_one_that_needs_another_waits_for_it_and_the_next_goes_first() -> None:
    tasks = [task("a", "0.4"), task("b", "0", after="a"), task("c", "0")]
    assert run_tasks("Working", "steps", tasks, jobs=2) == TaskOutcome({})
    assert order().index("+b") > order().index("-a")
    assert order().index("+c") < order().index("-a")


def test_one_that_needs_what_failed_is_not_begun(capsys: pytest.CaptureFixture[str]) -> None:
    """What another call has done is no task any more, and nothing waits for it."""
    tasks = [task("a", "fail"), task("b", "0", after="a"), task("c", "0", after="b"), task("d", "0", after="x")]
    assert run_tasks("Working", "steps", tasks, jobs=1) == TaskOutcome(
        {
            "a": "ValueError: it broke",
            "b": "not begun, for it needs a, which failed",
            "c": "not begun, for it needs b, which failed",
        }
    )
    assert order() == ["+a", "+d", "-d"]
    assert "b: not begun, for it needs a, which failed" in capsys.readouterr().err


def test_a_failure_stops_no_other_and_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    Path("logs").mkdir()
    Path("logs/a.log").write_text("an earlier attempt\n", encoding="utf-8")
    ended = run_tasks("Working", "steps", [task("a", "fail"), task("b", "die"), task("c", "0")], jobs=1)
    assert ended == TaskOutcome({"a": "ValueError: it broke", "b": "killed by SIGKILL, after: words of b 1"})
    assert order()[-1] == "-c"
    said = capsys.readouterr().err
    assert "a: failed after 0 s: ValueError: it broke" in said
    assert "c: working took" in said


def test_a_child_without_words(monkeypatch: pytest.MonkeyPatch) -> None:
    (Path("sleeper.py")).write_text("import os; os._exit(4)", encoding="utf-8")
    assert run_tasks("Working", "steps", [task("a", "")], 1).failures == {"a": "ended with code 4 and no word"}


def test_a_signal_reaches_every_child_once_and_starts_no_other() -> None:
    def ask() -> None:
        while not (Path("ready.a").exists() and Path("ready.b").exists()):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=ask).start()
    ended = run_tasks("Working", "steps", [task(name, "stop") for name in "abc"], jobs=2)
    assert ended == TaskOutcome({}, signal.SIGTERM)
    assert sorted(line for line in order() if line != "saved") == ["+a", "+b", "a", "b"]


def test_nothing_goes_on_when_we_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(seconds: float) -> None:
        while not Path("ready.a").exists():
            threading.Event().wait(0.05)
        raise RuntimeError("ours")

    monkeypatch.setattr("transduce.workflows.compare.run.time.sleep", fail)
    with pytest.raises(RuntimeError, match="ours"):
        run_tasks("Working", "steps", [task("a", "stop")], jobs=1)
    assert order()[-2:] == ["saved", "a"]


def test_progress_counts_what_children_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six of ten steps were done before: four are left, and the end counts as all of them."""
    monkeypatch.setattr("transduce.core.progress.QUIET_SECONDS", 0.0)
    begun = ChildTask("a", ("sleeper", "a", "0"), Path("a.log"), 10, lambda: 6)
    run_tasks("Working", "steps", [begun], jobs=1)
    assert "Working: 4 of 4 (100%) steps" in capsys.readouterr().err
