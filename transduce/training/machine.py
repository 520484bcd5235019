"""The machine: whether a model fits in memory, peak memory, and on a CPU the allocator and the number of threads.

Neither the allocator nor the threads change a number beyond what torch does with other threads; a resumed run keeps the
threads it began with.
"""

from __future__ import annotations

import ctypes
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain

import torch

from transduce.core.errors import ConfigError, explaining_shortage
from transduce.core.processes import available_memory, usable_cores
from transduce.data.batching import Batches
from transduce.experiment import Config
from transduce.model.encoder_decoder import EncoderDecoder
from transduce.model.seq2seq import Model
from transduce.text.tokenizer import Tokenizers
from transduce.training.session import Session, TrainingProgress
from transduce.training.settings import Training
from transduce.training.step_runner import EagerRunner


def peak_memory(device: torch.device) -> int:
    """Peak bytes of this process: on a GPU memory allocated by tensors, on a CPU resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # macOS counts bytes, Linux KiB


def build_model(config: Model, tokenizers: Tokenizers, seed: int) -> EncoderDecoder:
    """Build a model with the random weights of a seed, if this machine has the memory for it.

    The system would kill a process that takes more than there is, without a word. So the model is built on the meta
    device first. Its weights are made in the machine's own memory, wherever they go then.
    """
    sizes = tokenizers.source.size, tokenizers.target.size, tokenizers.shared
    advice = "model: lower model.d_model, or d_ff and layers of model.encoder and model.decoder"
    with explaining_shortage(lambda: f"while making the {advice}"):
        with torch.device("meta"):
            shapes = config.build(*sizes)
        tensors = {id(tensor): tensor.nbytes for tensor in chain(shapes.parameters(), shapes.buffers())}
        needed, there = sum(tensors.values()), available_memory()
        if needed > there:
            raise ConfigError(
                f"{advice}: its weights would have {needed / 2**30:,.1f} GiB, and {there / 2**30:,.1f} GiB of memory"
                " are free"
            )
        torch.manual_seed(seed)
        return config.build(*sizes)


@contextmanager
def explained_shortage(config: Config, progress: TrainingProgress) -> Iterator[None]:
    """Turn an out-of-memory error into one that says which setting to lower."""

    def advice() -> str:
        tokens = config.data.tokens
        return (
            f"at step {progress.step + 1}: lower data.tokens (now {tokens}), for example data.tokens={tokens // 2}"
            f" training.accumulate={2 * config.training.accumulate}, which keeps the size of an update"
        )

    with explaining_shortage(advice):
        yield


WORTH = 200  # passes left, below which a trial does not pay
_TRIES = 2  # timed passes for each number of threads, after one to warm up
_CLEARLY = 0.95  # fewer threads win unless more take less than this share of the time
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of mallopt, from glibc's malloc.h


@contextmanager
def own_threads() -> Iterator[None]:
    """Restore torch's number of threads at the end of the block."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def tune_threads(
    training: Training, session: Session, passes: EagerRunner, batches: Batches, alone: bool, say: Callable[[str], None]
) -> None:
    """Choose the number of threads for the coming steps, and record it in the run.

    A process that is not `alone` keeps what it was started with: torchrun gives it one.
    """
    progress = session.progress
    threads = training.threads or (progress.threads if alone else 0)
    if session.device.type == "cpu":
        keep_freed_memory()
    if session.device.type == "cpu" and alone:
        passes_left = (training.steps - progress.step) * training.accumulate
        if not threads and torch.get_num_threads() > 1 and passes_left >= WORTH:
            threads = _fastest(session, passes, batches, say)
        progress.threads = threads = threads or torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)


def keep_freed_memory() -> None:
    """Let the allocator keep freed memory, as the next step needs as much again; glibc only.

    By itself it gives large blocks back to the system at once, and the system fills each page with zeros when it is
    next touched: measured at a fifth of a training step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def _fastest(session: Session, passes: EagerRunner, batches: Batches, say: Callable[[str], None]) -> int:
    """Try torch's own number of threads, then half as many and so on, for as long as that gets faster.

    Only forward and backward passes are made, on the first batch; gradients are dropped, and running statistics
    restored.
    """
    progress = session.progress
    _, _, batch = next(batches.stream(progress.epoch, progress.position))
    saved = {name: tensor.clone() for name, tensor in session.model.weights().items()}
    passes.module.train()
    cores = min(torch.get_num_threads(), usable_cores())

    def seconds(threads: int) -> float:
        torch.set_num_threads(threads)
        times = []
        for _ in range(1 + _TRIES):
            started = time.perf_counter()
            passes(batch, progress.step)
            session.optimizer.zero_grad()
            times.append(time.perf_counter() - started)
        return min(times[1:])

    tried = {cores: seconds(cores)}
    best = cores
    while best == min(tried) and best > 1:
        fewer = best // 2
        tried[fewer] = seconds(fewer)
        if tried[best] < _CLEARLY * tried[fewer]:
            break
        best = fewer
    session.model.load_weights(saved)
    timed = ", ".join(f"{number}: {1000 * tried[number]:.0f} ms" for number in sorted(tried))
    say(f"training.threads: {best} of {cores} (a pass on the first batch took with {timed})")
    return best
