"""Training reports: `metrics.jsonl` always, a live line on a terminal, plain lines elsewhere; and the sums behind them.

A line of metrics.jsonl is of one kind: "train" (a report), "valid" (a validation), or "finished" (the end, with the
measures of what the folder offers and the seconds of training). Each has a step.

Between two reports losses, counts and metrics are accumulated as sums on the device. Each process sums its own;
reports and checkpoints get the sums over all.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from torch import Tensor

from transduce.core.durable import RESUME, disk_errors, write_text
from transduce.core.errors import UserError
from transduce.core.progress import seconds_as_text
from transduce.core.reports import METRICS_FILE, Report, read_reports
from transduce.metrics import MetricConfig
from transduce.metrics.corpus import MEASURES, Measure, key_of
from transduce.training.distributed import Group
from transduce.training.session import TrainingProgress

_COMMON = frozenset(("norm", "steps", "skipped", "in_a_row", "since"))  # the same in every process


class Sums:
    """Sums accumulated on the device between two reports; no host sync until a report or a save reads them."""

    def __init__(self, progress: TrainingProgress, group: Group) -> None:
        self.progress, self.device, self.group = progress, group.device, group
        self.tensors = {
            name: torch.tensor(
                value if group.first or name in _COMMON else 0.0, dtype=torch.float64, device=self.device
            )
            for name, value in progress.sums.items()
        }

    def add(self, name: str, value: Tensor) -> None:
        value = value.double()
        value = value.where(value.isfinite(), torch.zeros_like(value))
        self.tensors[name] = self.tensors[name] + value if name in self.tensors else value

    def skip(self, skipped: Tensor) -> None:
        self.add("skipped", skipped)
        before = self.tensors.get("in_a_row", torch.zeros((), dtype=torch.float64, device=self.device))
        self.tensors["in_a_row"] = (before + 1) * skipped.double()

    def store(self) -> None:
        """Write the sums into the training progress, for a checkpoint."""
        summed = [name for name in self.tensors if name not in _COMMON]
        total = dict(self.tensors)
        if summed:
            total |= zip(summed, self.group.sum(torch.stack([self.tensors[name] for name in summed])), strict=True)
        self.progress.sums = {name: tensor.item() for name, tensor in total.items()}

    def take(self) -> dict[str, float]:
        """Return the sums so far and reset them; `since` is the training time when they were begun."""
        started = time.monotonic()
        self.store()
        self.progress.seconds += time.monotonic() - started  # a GPU was still running queued steps
        taken = {"since": 0.0, **self.progress.sums}
        self.tensors = {name: self.tensors[name] for name in ("in_a_row",) if name in self.tensors}
        self.tensors["since"] = torch.tensor(self.progress.seconds, dtype=torch.float64, device=self.device)
        return taken


class RunLog:
    """Reports of one run; opening it for a resumed run drops lines written after the step resumed from.

    `finished` says that the run ended at that step, with nothing left to do.
    """

    def __init__(
        self,
        folder: Path,
        steps: int,
        step: int,
        tensorboard: bool = False,
        metric: str | MetricConfig = "bleu",
        minutes: float = 0.0,
    ) -> None:
        self.console = Console(stderr=True)
        self.path = folder / METRICS_FILE
        self.steps, self._minutes = steps, minutes
        self._first = step
        self._started = time.monotonic()
        self._metric, self._measures = key_of(metric), {**MEASURES, key_of(metric): Measure.of(metric)}
        self._quality = ""
        kept = [report for report in read_reports(self.path, skip_damaged=True) if _is_until(report, step)]
        self.finished = any(end.values.get("kind") == "finished" and end.values["step"] == step for end in kept)
        write_text(self.path, "".join(f"{report.line}\n" for report in kept))
        self._board = board_writer()(str(folder / "tensorboard"), purge_step=step + 1) if tensorboard else None
        self._live: Progress | None = None
        if self.console.is_terminal:
            columns = (BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._live = Progress(*columns, console=self.console)
            self._task = self._live.add_task("", total=steps, completed=step)

    def __enter__(self) -> RunLog:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if self._board is not None:
            self._board.close()

    def say(self, text: str) -> None:
        """Print one line for the person watching."""
        self.console.print(escape(text), highlight=False, soft_wrap=True)

    def record(self, kind: str, step: int, values: dict[str, float]) -> None:
        """Append one line to metrics.jsonl, on disk before this returns."""
        line = json.dumps({"kind": kind, "step": step, **values}).encode() + b"\n"
        with (
            disk_errors(self.path.parent, f"writing {self.path.name}", len(line), advice=RESUME),
            self.path.open("ab") as file,
        ):
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def train(self, step: int, values: dict[str, float]) -> None:
        """Write a training report to the file, and as the live line or a plain one."""
        self.record("train", step, values)
        left = self._time_left(step, values.get("seconds", 0.0))
        line = (
            f"loss {values['loss']:.3f}  {values['tokens_per_second']:,.0f} tokens/s"
            f"  rate {values['learning_rate']:.2e}  {left} left{self._quality}"
        )
        if self._live is not None:
            self._live.update(self._task, completed=step, description=line)
        else:
            self.say(f"step {step:,} of {self.steps:,}  {line}")

    def advance(self, step: int) -> None:
        """Move the live bar between reports."""
        if self._live is not None:
            self._live.update(self._task, completed=step)

    def valid(self, step: int, values: dict[str, float], best: bool, raw: bool = False) -> None:
        """Report a validation, and with a moving average whether the `raw` weights were better and count."""
        self.record("valid", step, values)
        shown = {key: f"{measure.label} {values[key]:.2f}" for key, measure in self._measures.items() if key in values}
        quality = "  ".join(text for key, text in shown.items() if key != "loss")
        self._quality = f"  {shown[self._metric]}" if self._metric in shown else ""
        self.say(f"step {step:,}  validation: loss {values['loss']:.3f}  {quality}{'  (best so far)' if best else ''}")
        if "ema_loss" in values:
            losses = (
                f"loss of the raw weights {values['raw_loss']:.3f}, of their moving average {values['ema_loss']:.3f}"
            )
            # Raw weights of a higher loss are measured by nothing else (averages.py).
            by_loss = self._metric == "loss" or values["raw_loss"] >= values["ema_loss"]
            judge = "loss" if by_loss else self._measures[self._metric].label
            self.say(f"    {losses}; the {'raw weights count' if raw else 'average counts'}, by {judge}")

    def _time_left(self, step: int, trained: float) -> str:
        """Time until the last step, or until training.minutes are over; `trained` is in seconds."""
        done = max(1, step - self._first)
        left = (time.monotonic() - self._started) / done * (self.steps - step)
        return seconds_as_text(min(left, max(0.0, 60 * self._minutes - trained)) if self._minutes else left)


class SilentLog(RunLog):
    """A log that writes nothing, for processes other than rank 0."""

    def __init__(self) -> None:
        self.finished = False
        self._live = self._board = None

    def say(self, text: str) -> None:
        pass

    def record(self, kind: str, step: int, values: dict[str, float]) -> None:
        pass

    def train(self, step: int, values: dict[str, float]) -> None:
        pass

    def valid(self, step: int, values: dict[str, float], best: bool, raw: bool = False) -> None:
        pass


def _is_until(report: Report, step: int) -> bool:
    """Whether a report of an earlier log is of `step` or one before it."""
    reported = report.values.get("step")
    return isinstance(reported, int | float) and reported <= step


def board_writer() -> Any:
    """TensorBoard's SummaryWriter; raise UserError if it is not installed, before anything is written."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "training.tensorboard: TensorBoard is not installed; pip install 'transduce[tensorboard]',"
            " or leave training.tensorboard=false"
        ) from None
    return SummaryWriter
