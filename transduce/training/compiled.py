"""A step compiled by torch.compile: few kernels instead of many, made once for all shapes of batches, and when it pays.

Random draws inside compiled code follow the seed of the micro-batch as they do outside, but are other draws. What was
compiled is kept in a folder between runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from transduce.data.batch import Batch, collate
from transduce.data.batching import Batches
from transduce.errors import RunError
from transduce.experiment import Config
from transduce.model.sources import Tokens
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.objectives.base import Loss, ObjectiveStep
from transduce.objectives.cross_entropy import CrossEntropy, Smoothed
from transduce.training.passes import EagerRunner, GraphedRunner
from transduce.training.session import Session
from transduce.training.trial import trial

SHAPES = 6  # of batches, where compiled code decides their number
# What compiling is guessed to save and to cost before it is tried. On an H200 `base` makes 571,000 target tokens/s
# as it is written, with graphs, and 1,002,000 compiled; to make its code took about a minute.
SAVED, SECONDS = 0.4, 60.0
# The kernels of varlen_attention.py, residual.py and losses.py by their names in torch.
KERNELS = ("attended", "attended_back", "normed_sum", "normed_sum_back", "losses_and_slopes")
_CACHE = "TORCHINDUCTOR_CACHE_DIR"


class CompiledStep(ObjectiveStep):
    """A step whose forward and backward pass are compiled; rows and widths of a batch may vary, its room may not.

    Nearly all work is on packed tokens, so that code for any width is as fast as code for one. For steady objectives:
    to compiled code every step is the first.
    """

    def __init__(self, step: ObjectiveStep, backend: str = "inductor") -> None:
        super().__init__(step.model, step.objective)
        self.compiled = torch.compile(self._parts, backend=backend)

    def forward(self, batch: Batch, step: int) -> Loss:
        tensors = batch.tensors()
        for tensor in tensors:
            torch._dynamo.maybe_mark_dynamic(tensor, (0, 1))
        return Loss(*self.compiled(tensors, batch.room))

    def _parts(self, tensors: tuple[Tensor, ...], room: tuple[int, int]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        source, source_mask, target, target_mask, *alignment = tensors
        batch = Batch(source, source_mask, target, target_mask, alignment[0] if alignment else None, room)
        loss = self.objective(self.model, batch, 0)
        return loss.total, loss.count, loss.metrics


def packs(config: Config) -> bool:
    """Whether model and objective can do without padding (kernels/packing.py)."""
    stacks = isinstance(config.model.encoder, TransformerEncoder), isinstance(config.model.decoder, TransformerDecoder)
    if isinstance(config.model.decoder, TransformerDecoder) and config.model.decoder.unnormed_past:
        return False  # first places are not told from others in a packed batch
    text = isinstance(config.model.source, Tokens)  # packed by its tokens, of which the encoder has as many places
    return text and all(stacks) and isinstance(config.objective, CrossEntropy) and config.objective.steady


def hindrance(config: Config, device: torch.device, processes: int) -> str:
    """Why a step is not compiled, before anything is measured; empty where it may be."""
    if config.training.compile is False:
        return "not asked for"
    if config.training.activation_checkpointing:
        return "training.activation_checkpointing is on"
    if processes > 1:
        return "several processes train as it is written"
    if config.training.compile is True:
        return ""
    if device.type != "cuda":
        return "on a CPU it does not pay"
    if config.data.sampling > 0:
        return "subword sampling gives each batch a shape of its own"
    steady = isinstance(config.objective, Smoothed) and config.objective.steady
    return "" if steady and packs(config) else "for Transformers and plain cross-entropy only; set it to true to try"


def pays(config: Config, session: Session, passes: EagerRunner, batch: Batch, say: Callable[[str], None]) -> bool:
    """Whether the steps left are likely to save more time than compiling takes; says so where not."""
    if config.training.compile is True:
        return True
    place, training = session.place, config.training
    try:
        with trial(session, passes.module):
            seconds = min(_timed(passes, batch, place.step, session.device) for _ in range(3))
    except torch.OutOfMemoryError:
        say("training.compile: not compiled: a batch does not fit in the GPU's memory as it is written")
        return False
    left = (training.steps - place.step) * training.accumulate * seconds
    if SAVED * left > SECONDS:
        return True
    say(
        f"training.compile: as it is written, the rest takes about {left:,.0f} s; compiling would take some"
        f" {SECONDS:,.0f} to save {SAVED * left:,.0f}"
    )
    return False


def warm_up(session: Session, passes: EagerRunner, batches: Batches, say: Callable[[str], None]) -> None:
    """Compile every shape there will be, on batches of nothing, before the first step; says what it took."""
    started = time.monotonic()
    shapes = batches.few
    with trial(session, passes.module):
        for rows, width in zip(shapes.rows.tolist(), shapes.widths.tolist(), strict=True):
            batch = nothing(batches, rows, width)
            for _ in range(2 if isinstance(passes, GraphedRunner) else 1):  # the second is recorded
                _timed(passes, batch, session.place.step, session.device)
    say(
        f"training.compile: {len(shapes)} shapes in {time.monotonic() - started:,.0f} s,"
        f" kept in {os.environ.get(_CACHE, 'a temporary folder')}"
    )


def nothing(batches: Batches, rows: int, width: int) -> Batch:
    """A batch of a shape without pairs."""
    symbols, room = batches.tokenizers, batches.few.room if batches.packed else (0, 0)
    empty = collate([], [], symbols.source.symbols, symbols.target.symbols, width, width, rows)
    alignment = torch.zeros(rows, width, width) if batches.split.aligned else None
    return replace(empty, alignment=alignment, room=room)


def _timed(passes: EagerRunner, batch: Batch, step: int, device: torch.device) -> float:
    started = time.perf_counter()
    passes(batch, step)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def compiled_step(step: ObjectiveStep) -> CompiledStep:
    """The step, compiled, with what is made kept between runs."""
    keep_compiled()
    introduce_kernels()
    return CompiledStep(step)


def introduce_kernels() -> None:
    """Have the compiler take our kernels as they are.

    Before 2.13 torch writes down, for a log that nobody reads, where the arguments of a kernel it was not told of come
    from, by every way that leads to them: with six layers it does not end.
    """
    from torch._inductor.lowering import FALLBACK_ALLOW_LIST  # slow to import

    FALLBACK_ALLOW_LIST.update(f"transduce::{name}" for name in KERNELS)


def keep_compiled() -> None:
    """Have torch keep what it compiles where the user's other caches are, unless it is told where."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault(_CACHE, str(caches / "transduce" / "compiled"))


def failed(error: RuntimeError, asked: bool, say: Callable[[str], None]) -> None:
    """Compiling went wrong: raise, where it was asked for; else say so."""
    reason = " ".join(line for line in str(error).split("\n")[:2] if line)
    if asked:
        raise RunError(f"training.compile: torch.compile failed ({reason}); set training.compile=false") from error
    say(f"training.compile: torch.compile failed ({reason}); going on as it is written")
