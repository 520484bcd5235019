"""Decisions before the first step: tokens a batch, shapes of batches, and whether the step is compiled.

Tokens and shapes are stored with the run: a position in the data counts certain batches. How many tokens a batch may
have on a GPU is found by trials (as Marian's mini-batch-fit does).

A step compiled by torch.compile runs few kernels instead of many, made once for all shapes of batches. Random draws
inside compiled code follow the seed of the micro-batch as they do outside, but are other draws. Compiled code is cached
in a folder between runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from transduce.core.errors import ConfigError, RunError
from transduce.data.batch import Batch, collate
from transduce.data.batching import Batches
from transduce.data.corpus import Corpus
from transduce.experiment import Config
from transduce.model.sources import Tokens
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.objectives import Loss, ObjectiveStep
from transduce.objectives.cross_entropy import CrossEntropy, Smoothed
from transduce.training.distributed import Group
from transduce.training.optimizer import update
from transduce.training.session import Session
from transduce.training.step_runner import EagerRunner, GraphedRunner, make_runner, trial

SHAPES = 6  # of batches, where compiled code decides their number
# Estimated gain and cost of compiling. On an H200 `base` trains 571,000 target tokens/s uncompiled, with graphs, and
# 1,002,000 compiled; compiling took about a minute.
SAVED, SECONDS = 0.4, 60.0
# The kernels of transduce/kernels, by their names in torch.
KERNELS = ("attended", "attended_back", "normed_sum", "normed_sum_back", "losses_and_slopes")
_CACHE = "TORCHINDUCTOR_CACHE_DIR"


class CompiledStep(ObjectiveStep):
    """A step with compiled forward and backward passes; rows and widths of a batch may vary, its capacity may not.

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
        return Loss(*self.compiled(tensors, batch.capacity))

    def _parts(
        self, tensors: tuple[Tensor, ...], capacity: tuple[int, int]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        source, source_mask, target, target_mask, *alignment = tensors
        batch = Batch(source, source_mask, target, target_mask, alignment[0] if alignment else None, capacity)
        loss = self.objective(self.model, batch, 0)
        return loss.total, loss.count, loss.metrics


def packs(config: Config) -> bool:
    """Whether model and objective can run without padding (kernels/packing.py)."""
    stacks = isinstance(config.model.encoder, TransformerEncoder), isinstance(config.model.decoder, TransformerDecoder)
    if isinstance(config.model.decoder, TransformerDecoder) and config.model.decoder.unnormed_past:
        return False  # a packed batch does not mark first positions
    text = isinstance(config.model.source, Tokens)  # packed by tokens: the encoder has one position for each
    return text and all(stacks) and isinstance(config.objective, CrossEntropy) and config.objective.steady


def hindrance(config: Config, device: torch.device, processes: int) -> str:
    """Why a step is not compiled, before anything is measured; "" where it may be."""
    if config.training.compile is False:
        return "not requested"
    if config.training.activation_checkpointing:
        return "training.activation_checkpointing is on"
    if processes > 1:
        return "several processes train uncompiled"
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
    progress, training = session.progress, config.training
    try:
        with trial(session, passes.module):
            seconds = min(_timed(passes, batch, progress.step, session.device) for _ in range(3))
    except torch.OutOfMemoryError:
        say("training.compile: not compiled: a batch does not fit in the GPU's memory uncompiled")
        return False
    left = (training.steps - progress.step) * training.accumulate * seconds
    if SAVED * left > SECONDS:
        return True
    say(
        f"training.compile: uncompiled, the rest takes about {left:,.0f} s; compiling would take some"
        f" {SECONDS:,.0f} to save {SAVED * left:,.0f}"
    )
    return False


def warm_up(session: Session, passes: EagerRunner, batches: Batches, say: Callable[[str], None]) -> None:
    """Compile every shape there will be, on empty batches, before the first step; says how long it took."""
    started = time.monotonic()
    shapes = batches.few
    with trial(session, passes.module):
        for rows, width in zip(shapes.rows.tolist(), shapes.widths.tolist(), strict=True):
            batch = nothing(batches, rows, width)
            for _ in range(2 if isinstance(passes, GraphedRunner) else 1):  # the second is recorded
                _timed(passes, batch, session.progress.step, session.device)
    say(
        f"training.compile: {len(shapes)} shapes in {time.monotonic() - started:,.0f} s,"
        f" kept in {os.environ.get(_CACHE, 'a temporary folder')}"
    )


def nothing(batches: Batches, rows: int, width: int) -> Batch:
    """An empty batch of a given shape."""
    symbols, capacity = batches.tokenizers, batches.few.capacity if batches.packed else (0, 0)
    empty = collate([], [], symbols.source.symbols, symbols.target.symbols, width, width, rows)
    alignment = torch.zeros(rows, width, width) if batches.split.aligned else None
    return replace(empty, alignment=alignment, capacity=capacity)


def _timed(passes: EagerRunner, batch: Batch, step: int, device: torch.device) -> float:
    started = time.perf_counter()
    passes(batch, step)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def compiled_step(step: ObjectiveStep) -> CompiledStep:
    """Compile a step; compiled code is cached between runs."""
    keep_compiled()
    introduce_kernels()
    return CompiledStep(step)


def introduce_kernels() -> None:
    """Register our kernels with the compiler as opaque calls.

    Before 2.13 torch traces, for a log that nobody reads, where the arguments of an unregistered kernel come from, by
    every path that leads to them: with six layers it does not end.
    """
    from torch._inductor.lowering import FALLBACK_ALLOW_LIST  # slow to import

    FALLBACK_ALLOW_LIST.update(f"transduce::{name}" for name in KERNELS)


def keep_compiled() -> None:
    """Make torch cache compiled code among the user's other caches, unless configured otherwise."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault(_CACHE, str(caches / "transduce" / "compiled"))


def failed(error: RuntimeError, requested: bool, say: Callable[[str], None]) -> None:
    """Handle a failure of the compiler: raise where compiling was requested, else say so."""
    reason = " ".join(line for line in str(error).split("\n")[:2] if line)
    if requested:
        raise RunError(f"training.compile: torch.compile failed ({reason}); set training.compile=false") from error
    say(f"training.compile: torch.compile failed ({reason}); continuing uncompiled")


FIRST = 1024  # tokens tried first
MARGIN = 0.9  # share of the free memory that tried batches may take
FEWEST_BATCHES = 100  # an epoch has at least so many, however much memory there is


def largest(fits: Callable[[int], bool], first: int, most: int) -> int:
    """The largest number up to `most` that fits, to a sixteenth; 0 if not even 1 does."""
    low, high = 0, min(first, most)
    while fits(high):
        if high == most:
            return most
        low, high = high, min(2 * high, most)
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def fit_tokens(session: Session, passes: EagerRunner, batches_of: Callable[[int], Batches]) -> int:
    """The largest token budget whose most demanding batches, with gradients and an update, leave memory to spare.

    `batches_of` gives the batches of a budget. The trials leave no trace; no step may have been made before.
    """
    split = batches_of(FIRST).split
    words = max(int(side.sum()) for side in (split.source_lengths, split.target_lengths)) + len(split)
    optimizer = session.optimizer

    def fits(tokens: int) -> bool:
        try:
            for batch in demanding(batches_of(tokens)):
                loss = passes(batch, 0)
                update(optimizer, 0.0, loss.count.float(), 0.0)  # for the moments it keeps
                optimizer.zero_grad()
        except torch.OutOfMemoryError:
            optimizer.zero_grad()
            return False
        return True

    with trial(session, passes.module), _spared(session.device):
        found = largest(fits, FIRST, max(FIRST, words // FEWEST_BATCHES))
    optimizer.zero_grad()
    optimizer.state.clear()
    return found


def demanding(batches: Batches) -> Iterator[Batch]:
    """The batch of an epoch with the most positions, and the one with the most pairs of positions."""
    plan = batches.plan(0)
    source, target = plan.shapes.T
    for places in (plan.rows * (source + target), plan.rows * source * target):
        yield batches.make(plan, 0, int(places.argmax()))


@contextmanager
def _spared(device: torch.device) -> Iterator[None]:
    """Limit GPU memory inside the block to what is in use plus all but a margin of what is free."""
    if device.type != "cuda":
        yield
        return
    device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    share = (torch.cuda.memory_reserved(device) + MARGIN * free) / total
    torch.cuda.set_per_process_memory_fraction(min(share, 1.0), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        torch.cuda.empty_cache()


Say = Callable[[str], None]
COMPILED = 0.75  # of the tokens that fit uncompiled: compiled, `base` takes 14.0 GB for 10.6 on an H200


@dataclass(frozen=True)
class Start:
    """The resolved setup of a run; `config` has the number of tokens that was found."""

    config: Config
    batches: Batches
    passes: EagerRunner


def resolve_batching(
    config: Config, session: Session, passes: EagerRunner, corpus: Corpus, group: Group, say: Say
) -> Start:
    """Resolve batching for a run where it stands: what was settled before a resume stays.

    `passes` are not compiled.
    """
    progress, data, module = session.progress, config.data, passes.module
    split, tokenizers = corpus.split(data.train), corpus.tokenizers
    plain = EagerRunner(module, session.device, config.training.narrow(session.device.type))

    def batches_of(tokens: int, shapes: int, compiling: bool = True) -> Batches:
        # A capacity of one size is for whole batches; a CPU that runs uncompiled steps takes any.
        roomy = group.size == 1 if shapes > 0 else session.device.type == "cpu" and not compiling
        packed = roomy and packs(config)
        return Batches(split, tokenizers, tokens, data.bucket, config.seed, data.sampling, shapes, packed)

    if progress.step == 0:
        progress.shapes = data.shapes
        progress.tokens = data.tokens or _fitted(
            config, session, plain, lambda n: batches_of(n, data.shapes), group, say
        )
    tokens = progress.tokens or data.tokens
    compiling = _may_compile(config, session, group, say)
    if compiling:
        _, _, batch = next(batches_of(tokens, progress.shapes).stream(progress.epoch, progress.position))
        compiling = pays(config, session, plain, batch, say)
    if compiling and progress.step == 0:
        if packs(config) and not data.sampling:
            progress.shapes = progress.shapes or SHAPES
        if not data.tokens:
            tokens = progress.tokens = int(COMPILED * tokens)
            say(f"data.tokens: {tokens:,} of them, for compiled code takes more memory than the step that was tried")
    batches = batches_of(tokens, progress.shapes, compiling)
    compiled = _compiled(config, session, module, batches, group, say) if compiling else None
    return Start(replace(config, data=replace(data, tokens=tokens)), batches, compiled or passes)


def _may_compile(config: Config, session: Session, group: Group, say: Say) -> bool:
    """Whether steps can be compiled; reports what prevents it where compiling is requested."""
    why_not = hindrance(config, session.device, group.size)
    if why_not and (config.training.compile is True or (config.training.compile and session.device.type == "cuda")):
        say(f"training.compile: not compiled: {why_not}")
    return not why_not


def introduction(config: Config, session: Session, batches: Batches, group: Group, validates: bool) -> str:
    """Describe a new run in one line: its size, its batches, and where it runs."""
    count = sum(parameter.numel() for parameter in session.model.parameters())
    plan = batches.plan(0)
    return (
        f"{count:,} parameters, {len(batches.split):,} pairs, {len(plan):,} batches an epoch"
        f" in {len(set(map(tuple, plan.shapes.tolist())))} shapes, on {session.device}"
        + (f", {group.size} processes ({config.training.parallel})" if group.size > 1 else "")
        + ("" if validates else f"; not validated, for the corpus has no split '{config.data.valid}'")
    )


def _compiled(
    config: Config, session: Session, module: ObjectiveStep, batches: Batches, group: Group, say: Say
) -> EagerRunner | None:
    """A runner compiled for all shapes; None where the compiler fails, or the code takes too much memory."""
    passes, requested = (
        make_runner(compiled_step(module), session.model, config, group, say),
        config.training.compile is True,
    )
    try:
        if batches.shapes:
            warm_up(session, passes, batches, say)
    except torch.OutOfMemoryError:
        if requested:
            raise
        say("training.compile: compiled, batches do not fit in the GPU's memory; continuing uncompiled")
        return None
    except RuntimeError as error:
        failed(error, requested, say)
        return None
    return passes


def _fitted(
    config: Config, session: Session, passes: EagerRunner, batches_of: Callable[[int], Batches], group: Group, say: Say
) -> int:
    if session.device.type != "cuda" or group.size > 1:
        where = "a CPU" if session.device.type != "cuda" else f"{group.size} processes"
        raise ConfigError(
            "data.tokens: 0, as many as the GPU holds, is found by one process on a GPU, and this runs on"
            f" {where}; give a number, such as data.tokens=4096"
        )
    tokens = fit_tokens(session, passes, batches_of)
    if tokens == 0:
        raise ConfigError("data.tokens: not even one pair fits in the GPU's memory; choose a smaller model")
    say(f"data.tokens: {tokens:,}, as many as fit; the run keeps that number")
    return tokens
