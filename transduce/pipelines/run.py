"""`pipeline`: do what is not done yet, stage after stage; the same call goes on after a stop, and does what is left.

A stage is skipped when its stamp is that of now; one that was killed goes on, by what its own command keeps; one whose
settings, text or needs have changed is made anew, and what it had made before is set aside, not deleted.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transduce.data.folders import lock_folder
from transduce.durable import disk_errors, remove
from transduce.errors import ConfigError, DataError, RunError
from transduce.pipelines.plan import PipelinePlan, PlannedStage, read_pipeline
from transduce.pipelines.stages import FINISHED
from transduce.pipelines.stamps import FOLDER, Identity, Stamp, Stamps
from transduce.progress import seconds_as_text


@dataclass(frozen=True)
class PipelineResult:
    """How a call of `pipeline` ended: stages done now and found done, and the signal that stopped it, if one did."""

    folder: Path
    done: tuple[str, ...]
    skipped: tuple[str, ...]
    signal: signal.Signals | None = None


@dataclass(frozen=True)
class StageState:
    """Where a stage stands: "done", "begun" (killed or running), "stale" (and why), "left"."""

    name: str
    kind: str
    state: str
    why: str = ""
    seconds: float = 0.0


def pipeline(file: str | Path, overrides: Sequence[str] = (), start: str = "", until: str = "") -> PipelineResult:
    """Run the stages of a pipeline file that are not done, from `start` up to and with `until`, all if not said.

    What lies in the folders of stages before `start` is taken as it is, whatever it was made of.
    """
    plan = read_pipeline(file, overrides)
    first = plan.find(start) if start else 0
    last = plan.find(until) if until else len(plan.stages) - 1
    if first > last:
        raise ConfigError(f"from: stage '{start}' comes after '{until}', where the pipeline is to end")
    with disk_errors(plan.folder, "making the folder of the pipeline", needed=4096):
        plan.folder.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(plan.folder / FOLDER)
    try:
        return _PipelineRun(plan).go(first, last)
    finally:
        os.close(lock)


def pipeline_states(file: str | Path, overrides: Sequence[str] = ()) -> list[StageState]:
    """Where each stage stands, without doing anything. A stage after one that is not done cannot be judged yet."""
    plan = read_pipeline(file, overrides)
    run, found = _PipelineRun(plan), list[StageState]()
    open_stages: set[str] = set()
    for planned in plan.stages:
        kind, waits = planned.stage.kind, [name for name in planned.needs if name in open_stages]
        if waits:
            stamp = run.stamps.read(planned.name)
            word = "left" if stamp is None else "stale" if stamp.done else "begun"
            state = StageState(planned.name, kind, word, f"waits for {', '.join(waits)}")
        else:
            state = run.state_as_far_as_seen(planned)
        if state.state != "done":
            open_stages.add(planned.name)
        found.append(state)
    return found


class _PipelineRun:
    def __init__(self, plan: PipelinePlan) -> None:
        self.plan, self.stamps = plan, Stamps(plan)

    def go(self, first: int, last: int) -> PipelineResult:
        done, skipped = list[str](), list[str]()
        for planned in self.plan.stages[first : last + 1]:
            self._check(planned)
        for number, planned in enumerate(self.plan.stages[: last + 1]):
            if number < first:
                continue
            label = f"[{number + 1}/{len(self.plan.stages)}] {planned.name}"
            state = self.state(planned)
            if state.state == "done":
                _say(f"{label}: done before, in {seconds_as_text(state.seconds)}")
                skipped.append(planned.name)
                continue
            told = {"left": planned.stage.kind, "begun": "going on", "stale": f"again, for {state.why}"}[state.state]
            _say(f"{label}: {told}")
            stopped = self._do(planned, label)
            if stopped:
                return PipelineResult(self.plan.folder, tuple(done), tuple(skipped), stopped)
            done.append(planned.name)
        return PipelineResult(self.plan.folder, tuple(done), tuple(skipped))

    def _check(self, planned: PlannedStage) -> None:
        """Refuse, before any stage runs, text that is not there and a device that this machine does not have."""
        stamp = self.stamps.read(planned.name)
        try:
            planned.stage.files()
            if stamp is None or not stamp.done:
                planned.stage.check()
        except ConfigError as error:
            raise ConfigError(f"stage '{planned.name}': {error}") from None
        except DataError as error:
            raise DataError(f"stage '{planned.name}': {error}{self.plan.told_paths(planned.name)}") from None

    def state(self, planned: PlannedStage) -> StageState:
        """Where a stage stands whose needs are all done."""
        kind, stamp = planned.stage.kind, self.stamps.read(planned.name)
        if stamp is None:
            return StageState(planned.name, kind, "left")
        why = self.stamps.identity(planned).difference(stamp.identity)
        if not why and stamp.done and not self.stamps.products(planned.name):
            return StageState(planned.name, kind, "begun", "what it made is not there any more")
        state = "stale" if why else "done" if stamp.done else "begun"
        return StageState(planned.name, kind, state, why, stamp.seconds)

    def state_as_far_as_seen(self, planned: PlannedStage) -> StageState:
        """The same where the text of a stage may be on another machine: then by its stamp alone."""
        try:
            return self.state(planned)
        except (DataError, RunError) as error:
            stamp = self.stamps.read(planned.name)
            done = stamp is not None and stamp.done and bool(self.stamps.products(planned.name))
            return StageState(planned.name, planned.stage.kind, "done" if done else "left", str(error))

    def _do(self, planned: PlannedStage, label: str) -> signal.Signals | None:
        """Run one stage; gives the signal that stopped it, if one did."""
        identity, output = self.stamps.identity(planned), self.plan.output(planned.name)
        before = self.stamps.read(planned.name)
        if not self._is_beginning(planned, identity, before):
            self._set_aside(output)
        earlier = before.seconds if before and not before.done else 0.0
        self.stamps.write(planned.name, Stamp(identity, False, earlier))
        began = time.monotonic()
        reason = planned.stage.run(output)
        seconds = earlier + time.monotonic() - began
        self.stamps.write(planned.name, Stamp(identity, reason == FINISHED, seconds))
        if reason != FINISHED:
            return signal.Signals[reason]
        _say(f"{label}: took {seconds_as_text(seconds)}")
        return None

    def _is_beginning(self, planned: PlannedStage, identity: Identity, before: Stamp | None) -> bool:
        """Whether what lies there already is part of what is asked for."""
        if before is None or not identity.difference(before.identity):
            return before is not None
        same_input = (identity.files, identity.needs) == (before.identity.files, before.identity.needs)
        return same_input and planned.stage.goes_on(self.plan.output(planned.name))

    def _set_aside(self, output: Path) -> None:
        """Give what was made of something else another name; what is unfinished of it goes."""
        for path in output.parent.glob(f".{output.name}.*"):
            remove(path)
        if not output.exists():
            return
        number = 1
        while (old := output.with_name(f"{output.name}.old-{number}")).exists():
            number += 1
        os.rename(output, old)
        _say(f"{output}: what was there is now {old}; delete it when you do not need it")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
