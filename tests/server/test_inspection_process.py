"""Inspections in a child process: the same answers, refusals and missing libraries, and an end for every child."""

from __future__ import annotations

import importlib
import json
import os
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
from transduce.errors import RunError, UserError
from transduce.native.library import built
from transduce.search.wishes import Stop
from transduce.server import inspection_process
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
    found = json.loads(inspections.run(served, job, Stop()))
    assert inspections.pid not in (None, os.getpid())
    again = inspections.pid
    assert json.loads(inspections.run(served, job, Stop())) == found
    assert inspections.pid == again  # one child for all of them
    own = InspectionProcess()
    expected = json.loads(own.run(replace(served, reopen=None), job, Stop()))
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
    assert inspections.run(served, LOOK, Stop()) == as_json(LOOK.run(served.translator, None))
    assert inspections.pid is None


def test_refusals_and_missing_libraries_come_through(served: Served, inspections: InspectionProcess) -> None:
    with pytest.raises(UserError, match="prefix: expected tokens from 0 to"):
        inspections.run(served, replace(LOOK, prefix=(10**6,)), Stop())
    with pytest.raises(UserError, match="layer: this model has layers 0 to 0, and not 7"):
        inspections.run(served, Learn("five", "de", 7), Stop())
    child = inspections.pid
    missing: Any = partial(importlib.import_module, "no_such_library")
    with pytest.raises(ModuleNotFoundError) as caught:
        inspections.run(replace(served, name="other", reopen=missing), LOOK, Stop())
    assert caught.value.name == "no_such_library"
    assert inspections.pid == child  # which goes on
    assert inspections.run(served, LOOK, Stop())


def test_nobody_waits_and_the_child_ends(served: Served, inspections: InspectionProcess) -> None:
    endless: Any = partial(time.sleep, 600)
    stop, ended = Stop(), list[Exception]()

    def inspect() -> None:
        try:
            inspections.run(replace(served, reopen=endless), LOOK, stop)
        except RunError as error:
            ended.append(error)

    thread = threading.Thread(target=inspect)
    thread.start()
    until(lambda: inspections.pid is not None)
    child = inspections.pid
    stop.ask()
    thread.join(60)
    assert [str(one) for one in ended] == ["inspect: nobody waits for the answer any more; ask again"]
    assert inspections.pid is None
    assert not Path(f"/proc/{child}").exists()
    assert inspections.run(served, LOOK, Stop())  # in a new one


def test_a_child_that_is_killed_is_told_and_replaced(served: Served, inspections: InspectionProcess) -> None:
    killed: Any = partial(os._exit, 9)
    with pytest.raises(RunError, match="the process that looks into models ended early; ask again"):
        inspections.run(replace(served, reopen=killed), LOOK, Stop())
    assert inspections.run(served, LOOK, Stop())
    assert inspections.pid is not None
    os.kill(inspections.pid, 9)  # between two inspections
    with pytest.raises(RunError, match="ask again"):
        inspections.run(served, LOOK, Stop())
    assert inspections.run(served, LOOK, Stop())


def test_an_idle_child_ends(served: Served) -> None:
    inspections = InspectionProcess(idle_seconds=0.05)
    inspections.run(served, LOOK, Stop())
    until(lambda: inspections.pid is None)
    assert inspections.run(served, LOOK, Stop())
    until(lambda: inspections.pid is None)


def test_closing_ends_an_inspection_under_way(served: Served) -> None:
    inspections, ended = InspectionProcess(), list[Exception]()
    endless: Any = partial(time.sleep, 600)

    def inspect() -> None:
        try:
            inspections.run(replace(served, reopen=endless), LOOK, Stop())
        except RunError as error:
            ended.append(error)

    thread = threading.Thread(target=inspect)
    thread.start()
    until(lambda: inspections.pid is not None)
    inspections.close()
    thread.join(60)
    assert len(ended) == 1
    assert inspections.pid is None
