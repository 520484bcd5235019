"""The mean of several checkpoints' weights, often a little better than the last ones (section 6.1), and which to offer.

A run with a moving average offers the raw weights or their average, whichever validate better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from transduce.core.errors import RunError, counted
from transduce.core.processes import RunLock
from transduce.core.progress import Progress
from transduce.training.checkpoint import newest_good, read_state, read_tensors, step_folders
from transduce.training.run_folder import read_config, replace_weights
from transduce.training.session import Session, TrainingProgress
from transduce.training.validate import ValidationResult
from transduce.training.weights import check_shapes
from transduce.translate.model_folder import MODEL


def average(paths: Sequence[Path], stem: str = "model") -> dict[str, Tensor]:
    """Average one file's tensors over checkpoint folders, summed in float64, in the type they are stored in.

    Integer tensors have no mean: they must be equal everywhere.
    """
    if not paths:
        raise RunError("no checkpoints to average; name at least one folder such as RUN/checkpoints/step-00001000")
    with Progress("Averaging", total=len(paths), unit="checkpoints") as progress:
        first = read_tensors(paths[0], stem)
        sums = {name: tensor.double() for name, tensor in first.items() if tensor.is_floating_point()}
        progress.advance()
        for path in paths[1:]:
            tensors = read_tensors(path, stem)
            check_shapes(tensors, {name: tuple(tensor.shape) for name, tensor in first.items()}, path)
            for name, tensor in tensors.items():
                if tensor.dtype != first[name].dtype:
                    raise RunError(f"{path}: {name} is {tensor.dtype}, but {first[name].dtype} in {paths[0]}")
                if name in sums:
                    sums[name] += tensor
                elif not torch.equal(tensor, first[name]):
                    raise RunError(f"{path}: {name} holds integers that differ from those in {paths[0]}")
            progress.advance()
    return {
        name: (sums[name] / len(paths)).to(tensor.dtype) if name in sums else tensor for name, tensor in first.items()
    }


def average_run(folder: Path, last: int, best: int) -> str:
    """Average the last or the best checkpoints of a run, and make the result the model the folder offers."""
    if (last > 0) == (best > 0):
        raise RunError(f"{folder}: say how many checkpoints to average, either --last N or --best N")
    config = read_config(folder)
    with RunLock(folder):
        found = newest_good(folder)
        if found is None:
            raise RunError(f"{folder}: there are no checkpoints to average; expected {folder}/checkpoints/step-...")
        progress = TrainingProgress.of_state(read_state(found.path), found.path)
        saved = step_folders(folder)
        steps = sorted(saved)[-last:] if last else [step for step in progress.best_steps(best) if step in saved]
        if len(steps) < max(last, best):
            raise RunError(
                f"{folder}: {max(last, best)} checkpoints were requested and {len(steps)} are kept; request fewer, or"
                f" train with training.keep_{'last' if last else 'best'}={max(last, best)}"
            )
        stem = progress.stem(config.training.ema)
        weights = average([saved[step] for step in steps], stem)
        listed = ", ".join(f"{step:,}" for step in sorted(steps))
        name = f"{average_of(len(steps))} ({'step' if len(steps) == 1 else 'steps'} {listed})"
        name += which(config.training.ema, raw=stem == "model")
        replace_weights(folder, weights, name, progress.longest)
    return f"{folder / MODEL}: {name}"


def average_of(count: int) -> str:
    """The name of an average on a model card."""
    return f"average of {counted(count, 'checkpoint')}"


Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Offered:
    """Weights, their validation result, and whether they are `raw` though the run has a moving average."""

    weights: Weights
    measured: ValidationResult
    raw: bool = False


def better(
    session: Session, measure: Callable[[Weights], ValidationResult], loss: Callable[[Weights], float]
) -> Offered:
    """Validate the weights of a run; with a moving average return the better of both by the validation metric.

    The raw ones are measured by their loss on the same text and, if that is the lower one, by all measures like the
    average. With several processes all must call it.
    """
    weights = session.averaged_weights()
    offered = Offered(weights, measure(weights))
    if session.average is None:
        return offered
    raw, averaged = session.raw_weights(), offered.measured.values
    losses = {"raw_loss": loss(raw), "ema_loss": averaged["loss"]}
    if losses["raw_loss"] < losses["ema_loss"]:
        measured, rank = measure(raw), session.config.validation.rank
        if rank(measured.values) < rank(averaged):
            offered = Offered(raw, measured, raw=True)
    return replace(offered, measured=replace(offered.measured, values=offered.measured.values | losses))


def which(ema: float, raw: bool) -> str:
    """A suffix for the name of weights, raw or averaged; "" for a run without a moving average."""
    if not ema:
        return ""
    return ", raw weights" if raw else f", moving average of weights (decay {ema})"
