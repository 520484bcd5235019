"""Run a comparison: train every run of a plan, measure them one at a time, and compare them.

Everything that was done is found again, so that the same call resumes where another was stopped, and only writes the
table anew where nothing is left to do.

Several child processes run side by side, each with a log of its own, all stopped gently by one signal. A child is in a
session of its own, so that Ctrl-C in a terminal reaches it once, through us.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from transduce.core import config as configs
from transduce.core.durable import disk_errors, write_text
from transduce.core.errors import ConfigError, DataError, RunError, UserError
from transduce.core.plugins import import_path
from transduce.core.processes import RunLock, StopRequest, usable_cores
from transduce.core.progress import Progress, seconds_as_text
from transduce.core.reports import METRICS_FILE, last_reported
from transduce.data.corpus import Corpus
from transduce.metrics.corpus import NamedTarget, target_languages
from transduce.training.run_folder import check_same, read_config
from transduce.translate.model_folder import CONFIG
from transduce.workflows.compare.measure import fingerprint, has_ended, held_out, read_measured
from transduce.workflows.compare.plan import ComparisonPlan, PlannedRun, label, output_of, read_plan
from transduce.workflows.compare.results import Results, compare_with_baseline, read_run, summarise
from transduce.workflows.compare.table import as_csv, as_markdown, draw_pictures

LOOK_SECONDS = 0.2  # polling interval of the children
# `python -m` would put the current folder first, whose `transduce.py` or `random.py` would run; this does not.
PROGRAM = (
    "import runpy, sys; sys.path[:] = {path!r}; del sys.argv[0]; runpy.run_module(sys.argv[0], None, '__main__', True)"
)


@dataclass(frozen=True)
class ChildTask:
    """A module to run as a program with arguments; it imports from where this process does.

    `done` returns how much of `total` it has done, for the progress line. It waits for the tasks labelled `after` that
    stand before it, and fails with them.
    """

    label: str
    words: tuple[str, ...]
    log: Path
    total: int
    done: Callable[[], int]
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskOutcome:
    """How tasks ended: `failures` by label, and the signal that stopped them all, if one did."""

    failures: dict[str, str]
    signal: signal.Signals | None = None


class _Child:
    """One running task."""

    def __init__(self, task: ChildTask, environment: dict[str, str]) -> None:
        self.task = task
        self.begun = time.monotonic()
        self.stopping = False
        with disk_errors(task.log.parent, f"writing {task.log.name}", needed=4096):
            task.log.parent.mkdir(parents=True, exist_ok=True)
            self._log = task.log.open("ab")
        self._from = self._log.tell()
        command = [sys.executable, "-P", "-c", PROGRAM.format(path=import_path()), *task.words]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

    def ended(self) -> bool:
        return self._process.poll() is not None

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def close(self) -> str:
        """Wait for the end; return why it failed, "" if it did not."""
        code = self._process.wait()
        self._log.close()
        if code == 0:
            return ""
        last = self._last_line()
        if code < 0:
            return f"killed by {signal.Signals(-code).name}" + (f", after: {last}" if last else "")
        return last or f"ended with code {code} and no word"

    def _last_line(self) -> str:
        """The last line of this attempt's log, which is an error's text; the log may hold earlier attempts."""
        with self.task.log.open("rb") as file:
            file.seek(self._from)
            lines = file.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def run_tasks(title: str, unit: str, tasks: Sequence[ChildTask], jobs: int, threads: int = 0) -> TaskOutcome:
    """Run tasks, `jobs` at a time, each with `threads` CPU threads (0: its own choice). A failure stops no other."""
    environment = dict(os.environ)
    if threads:
        environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    waiting, running, failures = list(tasks), list[_Child](), dict[str, str]()
    left = sum(task.total - task.done() for task in tasks)
    seen = {task.label: task.done() for task in tasks}
    with StopRequest() as stop, Progress(title, left, unit) as progress:
        try:
            while waiting or running:
                if stop.signal and waiting:
                    waiting.clear()
                _leave_out(waiting, failures, progress)
                while len(running) < jobs and (task := _next(waiting, running)):
                    waiting.remove(task)
                    running.append(_Child(task, environment))
                _look(running, failures, seen, progress, stop)
                time.sleep(LOOK_SECONDS)
        finally:  # an error here, or a second Ctrl-C: no child may outlive us
            for child in running:
                child.terminate()
                child.close()
    return TaskOutcome({} if stop.signal else failures, stop.signal)


def _next(waiting: Sequence[ChildTask], running: Sequence[_Child]) -> ChildTask | None:
    """The first task that has nothing to wait for."""
    unfinished = {child.task.label for child in running} | {task.label for task in waiting}
    return next((task for task in waiting if unfinished.isdisjoint(task.after)), None)


def _leave_out(waiting: list[ChildTask], failures: dict[str, str], progress: Progress) -> None:
    """Fail the tasks that wait for a failed one; in order, so that what waits for them fails too."""
    for task in list(waiting):
        needed = next((label for label in task.after if label in failures), None)
        if needed is not None:
            waiting.remove(task)
            progress.advance(task.total - task.done())
            failures[task.label] = f"not begun, for it needs {needed}, which failed"
            progress.say(f"{task.label}: {failures[task.label]}")


def _look(
    running: list[_Child], failures: dict[str, str], seen: dict[str, int], progress: Progress, stop: StopRequest
) -> None:
    """Update the progress of each child; those that ended leave `running`."""
    for child in list(running):
        ended, task = child.ended(), child.task
        done = task.total if ended else min(task.done(), task.total)
        progress.advance(max(0, done - seen[task.label]))
        seen[task.label] = max(done, seen[task.label])
        if ended:
            running.remove(child)
            failure = child.close()
            took = seconds_as_text(time.monotonic() - child.begun)
            if failure and not stop.signal:
                failures[task.label] = failure
                progress.say(f"{task.label}: failed after {took}: {failure}")
            elif not failure:
                progress.say(f"{task.label}: {progress.title.lower()} took {took}")
        elif stop.signal and not child.stopping:
            child.stopping = True
            child.terminate()


MOST_JOBS = 8  # on one GPU: beyond it, small runs only wait for one another


@dataclass(frozen=True)
class ComparisonOutcome:
    """The result of a comparison: results, unless a signal stopped it; `notes` are for the person watching."""

    results: Results | None
    signal: signal.Signals | None = None
    notes: tuple[str, ...] = ()


def compare(
    file: str | Path, overrides: Sequence[str] = (), output: str | Path | None = None, jobs: int = 0
) -> ComparisonOutcome:
    """Train and measure all runs of a comparison file that are not done yet, `jobs` trainings at a time.

    `overrides` are `key=value` words for all variants; `output` defaults to runs/compare/NAME; `jobs` 0 is what suits
    the machine.
    """
    folder = Path(output or output_of(file))
    return run_plan(read_plan(file, overrides, folder), folder, jobs)


def run_plan(plan: ComparisonPlan, output: Path, jobs: int = 0) -> ComparisonOutcome:
    """Do what is left of a plan in a folder."""
    parameters = check(plan, output)
    jobs = jobs or default_jobs(plan, parameters)
    with disk_errors(output, "making the folder of the comparison", needed=4096):
        output.mkdir(parents=True, exist_ok=True)
    with RunLock(output):
        trained = _train(plan, output, jobs)
        if trained.signal:
            return ComparisonOutcome(None, trained.signal)
        language = next((told.language for told in language_settings(plan) if told.language), "")
        measured = _measure([run for run in plan.runs if run.label not in trained.failures], output, language)
        if measured.signal:
            return ComparisonOutcome(None, measured.signal)
        results = _collect(plan, output, {**trained.failures, **measured.failures})
        write_text(output / "results.json", results.as_json())
        write_text(output / "results.csv", as_csv(results))
        write_text(output / "table.md", as_markdown(results))
        try:
            pictures = draw_pictures(results, output)
        except UserError as error:  # without matplotlib there is a table all the same
            return ComparisonOutcome(results, notes=(f"no pictures: {error}",))
    return ComparisonOutcome(results, notes=(f"{output}: results.json, results.csv, table.md, {_names(pictures)}",))


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(path.name for path in paths)


# -- before anything runs ----------------------------------------------------------------------------------------------


def check(plan: ComparisonPlan, output: Path) -> dict[str, int]:
    """Raise for what could only fail later: a model that does not build, a folder of another run, another test text.

    Returns the number of parameters of each variant.
    """
    import torch

    from transduce.experiment import check_source
    from transduce.training.loop import corpus_folder

    parameters: dict[str, int] = {}
    texts: dict[str, tuple[list[str], list[str]]] = {}
    for run in plan.runs:
        if (run.folder(output) / CONFIG).exists():
            check_same(run.folder(output), run.config)
            _check_budget(run, output)
        if run.variant in parameters:
            continue
        try:
            corpus = Corpus.open(corpus_folder(run.config), run.config.data.trust)
            tokenizers = corpus.tokenizers
            with torch.device("meta"):  # shapes without numbers
                check_source(run.config.model, corpus)
                model = run.config.model.build(tokenizers.source.size, tokenizers.target.size, tokenizers.shared)
        except (ConfigError, DataError) as error:
            raise type(error)(f"variant '{run.variant}': {error}") from None
        parameters[run.variant] = sum(parameter.numel() for parameter in model.parameters())
        texts[run.variant] = corpus.split(held_out(run.config)).texts()
        if texts[run.variant] != texts[plan.variants[0]]:
            raise DataError(
                f"variant '{run.variant}': data.folder: {corpus.folder} holds another text to measure on than that of"
                f" '{plan.variants[0]}'; quality can be compared on one text only"
            )
    return parameters


def _check_budget(run: PlannedRun, output: Path) -> None:
    """Raise RunError for less training than a run has had already: it is no run of that budget."""
    folder, requested = run.folder(output), run.config.training
    had = read_config(folder).training
    if (had.steps, had.minutes) == (requested.steps, requested.minutes):
        return
    total, unit = _budget(run)
    there = last_reported(folder / METRICS_FILE, "seconds" if unit == "seconds" else "step")
    if there > total:
        raise RunError(
            f"variant '{run.variant}': {folder} was trained for {there:,} {unit} already, and {total:,} are requested;"
            " request as many at least, or choose another folder with --output"
        )


def default_jobs(plan: ComparisonPlan, parameters: Mapping[str, int]) -> int:
    """One job on a CPU; on a GPU as many as its memory and the CPU cores behind it carry: small runs share one."""
    from torch import cuda

    from transduce.engines.torch.engine import pick_device

    devices = [pick_device(run.config.training.device) for run in plan.runs]
    if any(device.type != "cuda" for device in devices):
        return 1
    # Weights, gradients and Adam's moments; logits and what the loss makes of them; the context and all the rest.
    vocabulary = Corpus.open(plan.runs[0].config.data.folder).tokenizers.target.size
    each = max(
        16 * parameters[run.variant] + 24 * (run.config.data.tokens or 25_000) * vocabulary + (3 << 30)
        for run in plan.runs
    )
    memory = int(0.8 * cuda.get_device_properties(devices[0]).total_memory)
    return max(1, min(MOST_JOBS, usable_cores() // 2, memory // each))


# -- doing it ----------------------------------------------------------------------------------------------------------


def _train(plan: ComparisonPlan, output: Path, jobs: int) -> TaskOutcome:
    """Train the runs that are not trained yet."""
    left = [run for run in plan.runs if not _is_trained(run, output)]
    jobs = min(jobs, max(1, len(left)))
    for run in left:
        run.folder(output).parent.mkdir(parents=True, exist_ok=True)
        write_text(run.beside(output, "toml"), configs.dump(run.config))
        write_text(run.beside(output, "jobs.json"), json.dumps(max(jobs, _jobs(run, output))) + "\n")
    tasks = [_training(run, output) for run in left]
    # Threads of several trainings that wait for one another on the same cores slow all of them down.
    threads = max(1, usable_cores() // jobs) if jobs > 1 and "OMP_NUM_THREADS" not in os.environ else 0
    return run_tasks("Training", _budget(left[0])[1], tasks, jobs, threads) if tasks else TaskOutcome({})


def _training(run: PlannedRun, output: Path) -> ChildTask:
    folder = run.folder(output)
    words = ("transduce", "train", str(run.beside(output, "toml")), "--output", str(folder))
    total, unit = _budget(run)
    done = partial(last_reported, folder / METRICS_FILE, "seconds" if unit == "seconds" else "step")
    after = tuple(label(variant, run.seed) for variant in run.after)
    return ChildTask(run.label, words, run.beside(output, "log"), total, done, after)


def _budget(run: PlannedRun) -> tuple[int, str]:
    """The amount of training of a run and its unit: equal for all runs."""
    training = run.config.training
    return (round(60 * training.minutes), "seconds") if training.minutes else (training.steps, "steps")


def _is_trained(run: PlannedRun, output: Path) -> bool:
    """Whether this very run has ended; one that may continue, with more steps, is for `train` to judge."""
    folder = run.folder(output)
    if not (folder / CONFIG).exists() or not has_ended(folder / METRICS_FILE):
        return False
    return configs.flatten(read_config(folder)) == configs.flatten(run.config)


def _jobs(run: PlannedRun, output: Path) -> int:
    """The number of runs that were trained at once when this one was."""
    try:
        return int(json.loads(run.beside(output, "jobs.json").read_bytes()))
    except (OSError, ValueError):
        return 1


def _measure(runs: Sequence[PlannedRun], output: Path, language: str) -> TaskOutcome:
    """Measure the runs that are not measured yet, one at a time, so that no run disturbs another's timing."""
    tasks = []
    for run in runs:
        folder, result = run.folder(output), run.beside(output, "measured.json")
        found = read_measured(result)
        if found is None or found.fingerprint != fingerprint(folder, language):
            words = ("transduce.workflows.compare.measure", str(folder), str(result), language)
            tasks.append(ChildTask(run.label, words, run.beside(output, "log"), 1, lambda: 0))
    return run_tasks("Measuring", "runs", tasks, jobs=1) if tasks else TaskOutcome({})


def language_settings(plan: ComparisonPlan) -> tuple[NamedTarget, NamedTarget]:
    """Settings that may name the target language of a comparison, for all runs: its own, then its base's."""
    return NamedTarget(plan.language, "language"), NamedTarget(
        plan.runs[0].config.validation.language, "validation.language"
    )


def _collect(plan: ComparisonPlan, output: Path, failures: Mapping[str, str]) -> Results:
    first = plan.runs[0].config
    split = held_out(first)
    test = Corpus.open(first.data.folder, first.data.trust).split(split)
    _, references = test.texts()
    targets = target_languages(references, test.tags(), *language_settings(plan))
    runs = [read_run(run, output, failures.get(run.label, ""), _jobs(run, output)) for run in plan.runs]
    p_values = compare_with_baseline(plan, output, failures, references, targets) if plan.baseline else {}
    return summarise(plan, runs, split, p_values, targets)
