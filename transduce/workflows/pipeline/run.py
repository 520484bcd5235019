"""Run a pipeline: do what is not done yet, stage after stage; the same call resumes after a stop.

A stage is skipped when its stamp is unchanged; one that was killed resumes, by what its own command stores; one whose
settings, text or needs have changed is made anew, and its old output is moved aside, not deleted.

`stamps/NAME.json` in the pipeline's folder holds the settings of a stage as they are written, the SHA-256 of every file
from outside, that of what it read of other stages, and whether it is done. Files whose size and time are unchanged are
not read again (`stamps/files.json`).
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transduce.core.durable import disk_errors, lock_folder, remove, write_text
from transduce.core.errors import ConfigError, DataError, RunError
from transduce.core.progress import say, seconds_as_text
from transduce.data.corpus import file_digest
from transduce.workflows.pipeline.plan import PipelinePlan, PlannedStage, read_pipeline
from transduce.workflows.pipeline.stages import FINISHED

FOLDER = "stamps"


@dataclass(frozen=True)
class Identity:
    """The inputs of a stage: equal identities give equal results."""

    settings: dict[str, Any]
    files: list[str]
    needs: dict[str, str]

    def difference(self, before: Identity) -> str:
        """What differs from before, in words; "" if nothing does."""
        for key in sorted(self.settings.keys() | before.settings.keys()):
            old, new = before.settings.get(key), self.settings.get(key)
            if old != new:
                return f"{key} was {old!r}, and is {new!r}"
        if self.files != before.files:
            return "its text was changed"
        for name in sorted(self.needs.keys() | before.needs.keys()):
            if self.needs.get(name) != before.needs.get(name):
                return f"{name} was changed"
        return ""


@dataclass(frozen=True)
class StageStamp:
    """The state of a stage: begun with this identity, or done, and the seconds so far."""

    identity: Identity
    done: bool
    seconds: float = 0.0


class StageStamps:
    """The stamps of one pipeline, and the hashes of files."""

    def __init__(self, plan: PipelinePlan) -> None:
        self.plan, self.folder = plan, plan.folder / FOLDER
        self._known: dict[str, list[Any]] = _read(self.folder / "files.json")

    def read(self, name: str) -> StageStamp | None:
        """The stamp of a stage, if any."""
        found = _read(self.folder / f"{name}.json")
        with suppress(KeyError, TypeError):
            return StageStamp(Identity(**found["identity"]), found["done"], found["seconds"])
        return None

    def write(self, name: str, stamp: StageStamp) -> None:
        """Store a stamp, and all file hashes found so far."""
        write_text(self.folder / "files.json", json.dumps(self._known, indent=0) + "\n")
        write_text(self.folder / f"{name}.json", json.dumps(asdict(stamp), indent=1, ensure_ascii=False) + "\n")

    def identity(self, planned: PlannedStage) -> Identity:
        """The identity of a stage whose needs all exist."""
        stage = planned.stage
        settings = {k: v for k, v in _flat(planned.settings) if not k.startswith(stage.free or ("\0",))}
        facts = {f"config {key}": value for key, value in planned.written.facts().items()}
        if facts:  # they say all that these words come to
            settings = {k: v for k, v in settings.items() if not k.startswith(("config", "settings."))}
        plain = json.loads(json.dumps({**settings, **facts}))
        files = [self._digest(path) for path in stage.files()]
        return Identity(plain, files, {name: self.made(name, planned.name) for name in planned.needs})

    def made(self, name: str, reader: str) -> str:
        """One hash of all products of a stage."""
        found = self.products(name)
        if not found:
            raise RunError(
                f"stage '{reader}' needs what stage '{name}' makes, and {self.plan.output(name)} does not hold it; run"
                " the pipeline from there"
            )
        total = hashlib.sha256()
        for path in found:
            total.update(f"{path.relative_to(self.plan.output(name))} {self._digest(path)}\n".encode())
        return total.hexdigest()

    def products(self, name: str) -> list[Path]:
        """The files that a stage offers to others, none unless each pattern's exist."""
        output = self.plan.output(name)
        patterns = self.plan.stages[self.plan.find(name)].stage.products
        if not all((output / pattern).is_file() for pattern in patterns if "*" not in pattern):
            return []
        return sorted({path for pattern in patterns for path in output.glob(pattern) if path.is_file()})

    def _digest(self, path: Path) -> str:
        facts = os.stat(path)
        known = self._known.get(str(path.absolute()))
        if known is None or known[:2] != [facts.st_size, facts.st_mtime_ns]:
            known = [facts.st_size, facts.st_mtime_ns, file_digest(path)]
            self._known[str(path.absolute())] = known
        return str(known[2])


def _flat(tree: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return {}


@dataclass(frozen=True)
class PipelineResult:
    """The result of a call of `pipeline`: stages done now and found done, and the signal that stopped it, if any."""

    folder: Path
    done: tuple[str, ...]
    skipped: tuple[str, ...]
    signal: signal.Signals | None = None


@dataclass(frozen=True)
class StageState:
    """The state of a stage: "done", "begun" (killed or running), "stale" (and why), "left"."""

    name: str
    kind: str
    state: str
    why: str = ""
    seconds: float = 0.0


def pipeline(file: str | Path, overrides: Sequence[str] = (), start: str = "", until: str = "") -> PipelineResult:
    """Run the stages of a pipeline file that are not done, from `start` up to and with `until`; default all.

    The output of stages before `start` is taken as it is, whatever it was made of.
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
    """The state of each stage, without running any. A stage after one that is not done cannot be judged yet."""
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
        self.plan, self.stamps = plan, StageStamps(plan)

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
                say(f"{label}: done before, in {seconds_as_text(state.seconds)}")
                skipped.append(planned.name)
                continue
            what = {"left": planned.stage.kind, "begun": "resuming", "stale": f"again, for {state.why}"}[state.state]
            say(f"{label}: {what}")
            stopped = self._do(planned, label)
            if stopped:
                return PipelineResult(self.plan.folder, tuple(done), tuple(skipped), stopped)
            done.append(planned.name)
        return PipelineResult(self.plan.folder, tuple(done), tuple(skipped))

    def _check(self, planned: PlannedStage) -> None:
        """Raise, before any stage runs, for text or a device that does not exist here."""
        stamp = self.stamps.read(planned.name)
        try:
            planned.stage.files()
            if stamp is None or not stamp.done:
                planned.stage.check()
        except ConfigError as error:
            raise ConfigError(f"stage '{planned.name}': {error}") from None
        except DataError as error:
            raise DataError(f"stage '{planned.name}': {error}{self.plan.path_hints(planned.name)}") from None

    def state(self, planned: PlannedStage) -> StageState:
        """The state of a stage whose needs are all done."""
        kind, stamp = planned.stage.kind, self.stamps.read(planned.name)
        if stamp is None:
            return StageState(planned.name, kind, "left")
        why = self.stamps.identity(planned).difference(stamp.identity)
        if not why and stamp.done and not self.stamps.products(planned.name):
            return StageState(planned.name, kind, "begun", "what it made is not there any more")
        state = "stale" if why else "done" if stamp.done else "begun"
        return StageState(planned.name, kind, state, why, stamp.seconds)

    def state_as_far_as_seen(self, planned: PlannedStage) -> StageState:
        """The state of a stage whose text may be on another machine: then by its stamp alone."""
        try:
            return self.state(planned)
        except (DataError, RunError) as error:
            stamp = self.stamps.read(planned.name)
            done = stamp is not None and stamp.done and bool(self.stamps.products(planned.name))
            return StageState(planned.name, planned.stage.kind, "done" if done else "left", str(error))

    def _do(self, planned: PlannedStage, label: str) -> signal.Signals | None:
        """Run one stage; return the signal that stopped it, if any."""
        identity, output = self.stamps.identity(planned), self.plan.output(planned.name)
        before = self.stamps.read(planned.name)
        if not self._is_beginning(planned, identity, before):
            self._set_aside(output)
        earlier = before.seconds if before and not before.done else 0.0
        self.stamps.write(planned.name, StageStamp(identity, False, earlier))
        began = time.monotonic()
        reason = planned.stage.run(output)
        seconds = earlier + time.monotonic() - began
        self.stamps.write(planned.name, StageStamp(identity, reason == FINISHED, seconds))
        if reason != FINISHED:
            return signal.Signals[reason]
        say(f"{label}: took {seconds_as_text(seconds)}")
        return None

    def _is_beginning(self, planned: PlannedStage, identity: Identity, before: StageStamp | None) -> bool:
        """Whether the existing output is part of the requested one."""
        if before is None or not identity.difference(before.identity):
            return before is not None
        same_input = (identity.files, identity.needs) == (before.identity.files, before.identity.needs)
        return same_input and planned.stage.may_continue(self.plan.output(planned.name))

    def _set_aside(self, output: Path) -> None:
        """Move output of other settings aside, and delete its unfinished files."""
        for path in output.parent.glob(f".{output.name}.*"):
            remove(path)
        if not output.exists():
            return
        number = 1
        while (old := output.with_name(f"{output.name}.old-{number}")).exists():
            number += 1
        os.rename(output, old)
        say(f"{output}: what was there is now {old}; delete it when you do not need it")
