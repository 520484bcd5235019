"""Inspections in a child process: the same answers, refusals and missing libraries, and an end for every child."""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="pip install transduce[serve]")

import transduce
from transduce.core.errors import RunError, UserError
from transduce.engines.native.library import built
from transduce.search.constraints import CancelToken
from transduce.server import inspection_process
from transduce.server.answers import Refused
from transduce.server.inspection_process import Inspect, InspectionProcess, Job, Learn, as_json
from transduce.server.models import Served, open_models

pytestmark = [pytest.mark.skipif(built() is None, reason="the core is not built: make native"), pytest.mark.slow]
LOOK = Inspect("sixty-two", "de", 2, (), "toy")


@pytest.fixture
def served(native_toy: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """A converted model in a server that has not imported torch."""
    monkeypatch.setattr(inspection_process, "_runs_torch", lambda: False)
    return open_models([f"en-de={native_toy}"], transduce.load)[0]


@pytest.fixture
def inspections() -> Iterator[InspectionProcess]:
    found = InspectionProcess()
    yield found
    found.close()
    assert found.pid is None


def until(holds: Callable[[], bool]) -> None:
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < 60
        time.sleep(0.01)


@pytest.mark.parametrize("job", [LOOK, Learn("sixty-two", "de", 0)], ids=["inspect", "learn"])
def test_answers_are_those_of_this_process(job: Job, served: Served, inspections: InspectionProcess) -> None:
    found = json.loads(inspections.run(served, job, CancelToken()))
    assert inspections.pid not in (None, os.getpid())
    again = inspections.pid
    assert json.loads(inspections.run(served, job, CancelToken())) == found
    assert inspections.pid == again  # one child for all of them
    own = InspectionProcess()
    expected = json.loads(own.run(replace(served, reopen=None), job, CancelToken()))
    assert own.pid is None
    assert rounded(found) == rounded(expected)


def rounded(tree: Any) -> Any:
    """Another number of threads may sum in another order."""
    if isinstance(tree, dict):
        return {name: rounded(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [rounded(one) for one in tree]
    return round(tree, 3) + 0.0 if isinstance(tree, float) else tree


def test_a_server_that_runs_torch_itself_needs_no_child(
    served: Served, inspections: InspectionProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection_process, "_runs_torch", lambda: True)
    assert inspections.run(served, LOOK, CancelToken()) == as_json(LOOK.run(served.translator, None))
    assert inspections.pid is None


def test_refusals_and_missing_libraries_come_through(served: Served, inspections: InspectionProcess) -> None:
    with pytest.raises(UserError, match="prefix: expected tokens from 0 to"):
        inspections.run(served, replace(LOOK, prefix=(10**6,)), CancelToken())
    with pytest.raises(UserError, match="layer: this model has layers 0 to 0, and not 7"):
        inspections.run(served, Learn("five", "de", 7), CancelToken())
    child = inspections.pid
    missing: Any = partial(importlib.import_module, "no_such_library")
    with pytest.raises(ModuleNotFoundError) as caught:
        inspections.run(replace(served, name="other", reopen=missing), LOOK, CancelToken())
    assert caught.value.name == "no_such_library"
    assert inspections.pid == child  # which goes on
    assert inspections.run(served, LOOK, CancelToken())


class Abandoning(threading.Thread):
    """An inspection in a thread, for which nobody waits any more once its child is there; and how it ended."""

    def __init__(self, inspections: InspectionProcess, served: Served) -> None:
        super().__init__()
        self.inspections, self.served, self.stop, self.errors = inspections, served, CancelToken(), list[str]()

    def run(self) -> None:
        try:
            self.inspections.run(self.served, LOOK, self.stop)
        except RunError as error:
            self.errors.append(str(error))


def begun(inspections: InspectionProcess, served: Served) -> Abandoning:
    """Begin an inspection that never ends, and return once its child is there."""
    endless: Any = partial(time.sleep, 600)
    thread = Abandoning(inspections, replace(served, reopen=endless))
    thread.start()
    until(lambda: inspections.pid is not None)
    return thread


def test_nobody_waits_and_the_child_ends(served: Served) -> None:
    inspections = InspectionProcess(grace_seconds=0.05)
    thread = begun(inspections, served)
    child = inspections.pid
    thread.stop.cancel()
    thread.join(60)
    assert thread.errors == ["inspect: cancelled before the answer was ready; try again"]
    assert inspections.pid is None
    assert not Path(f"/proc/{child}").exists()
    assert inspections.run(served, LOOK, CancelToken())  # in a new one
    inspections.close()


def test_an_answer_that_nobody_waits_for_is_thrown_away(served: Served) -> None:
    inspections = InspectionProcess(grace_seconds=600)
    thread = Abandoning(inspections, served)
    thread.start()
    until(lambda: inspections.pid is not None)
    child = inspections.pid
    thread.stop.cancel()
    thread.join(60)
    assert thread.errors == ["inspect: cancelled before the answer was ready; try again"]
    other = Learn("five", "de", 0)
    assert "blocks" in json.loads(inspections.run(served, other, CancelToken()))  # and not the answer to `LOOK`
    assert inspections.pid == child  # torch is loaded once
    inspections.close()


def test_what_nobody_waits_for_before_it_begins_starts_no_child(served: Served, inspections: InspectionProcess) -> None:
    stop = CancelToken()
    stop.cancel()
    with pytest.raises(RunError, match="cancelled before the answer was ready"):
        inspections.run(served, LOOK, stop)
    assert inspections.pid is None


def test_a_child_that_is_killed_is_reported_and_replaced(served: Served, inspections: InspectionProcess) -> None:
    killed: Any = partial(os._exit, 9)
    with pytest.raises(Refused, match="the inspection process ended early; try again") as caught:
        inspections.run(replace(served, reopen=killed), LOOK, CancelToken())
    assert (caught.value.status, caught.value.retry_after) == (503, 1)  # no fault of whoever asked
    assert inspections.run(served, LOOK, CancelToken())
    assert inspections.pid is not None


def test_a_child_that_died_while_idle_costs_nobody_an_answer(
    served: Served, inspections: InspectionProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert inspections.run(served, LOOK, CancelToken())
    first = inspections.pid
    assert first is not None
    os.kill(first, 9)
    assert inspections.run(served, LOOK, CancelToken())
    assert inspections.pid != first
    assert inspections._child is not None
    process = inspections._child.process
    process.kill()
    process.wait()
    monkeypatch.setattr(process, "poll", lambda: None)  # as if it had died only after that look
    assert inspections.run(served, LOOK, CancelToken())


def test_a_fault_of_ours_leaves_the_child_alive(
    served: Served, inspections: InspectionProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong: Any = partial(int, "five")
    with pytest.raises(RuntimeError, match="failed in its process: ValueError: invalid literal for int"):
        inspections.run(replace(served, name="other", reopen=wrong), LOOK, CancelToken())
    child = inspections.pid
    assert "Traceback" in capfd.readouterr().err
    assert inspections.run(served, LOOK, CancelToken())
    assert inspections.pid == child
    assert capfd.readouterr().err == ""


def test_the_folder_that_the_server_was_started_in_is_nothing_to_the_child(
    served: Served, inspections: InspectionProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sentencepiece.py").write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [one for one in sys.path if one])
    assert inspections.run(served, LOOK, CancelToken())


def test_an_idle_child_ends(served: Served) -> None:
    inspections = InspectionProcess(idle_seconds=0.05)
    inspections.run(served, LOOK, CancelToken())
    until(lambda: inspections.pid is None)
    assert inspections.run(served, LOOK, CancelToken())
    until(lambda: inspections.pid is None)


def test_closing_ends_an_inspection_under_way(served: Served) -> None:
    inspections = InspectionProcess(grace_seconds=600)
    thread = begun(inspections, served)
    inspections.close()
    thread.join(60)
    assert len(thread.errors) == 1
    assert inspections.pid is None


def test_closing_ends_an_inspection_that_is_about_to_begin(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    inspections, starting, closing = InspectionProcess(grace_seconds=600), threading.Event(), threading.Event()
    start = inspection_process._InspectionChild

    def late() -> Any:
        starting.set()
        assert closing.wait(60)
        return start()

    monkeypatch.setattr(inspection_process, "_InspectionChild", late)
    endless: Any = partial(time.sleep, 600)
    thread = Abandoning(inspections, replace(served, reopen=endless))
    thread.start()
    assert starting.wait(60)
    closer = threading.Thread(target=inspections.close)
    closer.start()
    until(lambda: inspections._closed.cancelled)
    closing.set()
    closer.join(60)
    thread.join(60)
    assert not closer.is_alive()
    assert len(thread.errors) == 1
    assert inspections.pid is None
    with pytest.raises(RunError, match="cancelled before the answer was ready"):
        inspections.run(served, LOOK, CancelToken())
