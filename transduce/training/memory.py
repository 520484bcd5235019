"""Memory: whether a model fits at all, the most a run has held, and what to do when there is not enough."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import torch

from transduce.data.tokenizer import Tokenizers
from transduce.errors import ConfigError, explaining_shortage
from transduce.experiment import Config
from transduce.model.seq2seq import Model
from transduce.model.whole import EncoderDecoder
from transduce.training.session import TrainingProgress


def peak_memory(device: torch.device) -> int:
    """Bytes since the process began: on a GPU what tensors took there, on a CPU all that was resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # macOS counts bytes, Linux KiB


def available_memory() -> int:
    """Bytes that the system can still give, of a container those that it is allowed; 0 where nobody says."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path, pattern, unit in (
        ("/proc/meminfo", r"MemAvailable:\s+(\d+) kB", 1024),
        ("/sys/fs/cgroup/memory.max", r"(\d+)", 1),
    ):
        try:
            match = re.search(pattern, Path(path).read_text())
        except OSError:
            continue
        if match:
            found.append(unit * int(match[1]))
    return min(found)


def build_model(config: Model, tokenizers: Tokenizers, seed: int) -> EncoderDecoder:
    """A new model with the random weights of a seed, if this machine has the memory for it.

    The system would end a process that takes more than there is, without a word. So the model is built without
    numbers first. Its weights are made in the machine's own memory, wherever they go then.
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
def explained_shortage(config: Config, place: TrainingProgress) -> Iterator[None]:
    """Say which setting to lower when memory runs out."""

    def advice() -> str:
        tokens = config.data.tokens
        return (
            f"at step {place.step + 1}: lower data.tokens (now {tokens}), for example data.tokens={tokens // 2}"
            f" training.accumulate={2 * config.training.accumulate}, which keeps the size of an update"
        )

    with explaining_shortage(advice):
        yield
