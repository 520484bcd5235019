"""Several processes that train together, as torchrun would start them, but forked from one that has torch loaded.

`train(3, corpus, folder, ...)` is `torchrun --nproc-per-node 3 -m transduce train ...`: here too the parent holds the
store where they meet. But it ends nobody: who has lost a peer must find that out alone.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import toys
from torch.distributed import TCPStore

from transduce.core import config as configs

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["torch._dynamo", "transduce.cli", "transduce.training.loop", "transduce.training.parallel"]
)
SECONDS = 300  # a group that takes longer hangs; a busy machine may need a minute to import torch


@dataclass(frozen=True)
class Ended:
    """What became of a group: exit codes and words (standard output and error), by rank."""

    codes: list[int | None]
    said: list[str]


def train(
    size: int, corpus: Path, folder: Path, *overrides: str, outputs: Sequence[Path] = (), path: str = ""
) -> Ended:
    """Train a tiny model; `outputs` are the run folders of the ranks, if they differ."""
    base = folder.with_name(f"{folder.name}.toml")  # settings of a file give way to another kind
    base.parent.mkdir(parents=True, exist_ok=True)
    base.write_text(configs.dump(toys.config(corpus)), encoding="utf-8")
    arguments = [str(base), *toys.latest(*overrides)]
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    logs = [folder.with_name(f"{folder.name}.{rank}.log") for rank in range(size)]
    started = []
    for rank, log in enumerate(logs):
        log.unlink(missing_ok=True)
        environment = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": store.port,
            "TORCHELASTIC_USE_AGENT_STORE": True,
        }
        words = [*arguments, "--output", str(outputs[rank] if outputs else folder)]
        process = _FORKS.Process(target=_live, args=({k: str(v) for k, v in environment.items()}, words, log, path))
        process.start()
        started.append(process)
    for process in started:
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
    return Ended([process.exitcode for process in started], [log.read_text() for log in logs])


def _live(environment: dict[str, str], words: list[str], log: Path, path: str) -> None:
    """One process: the command line with its words in a file, and `path` to import from."""
    from transduce.__main__ import main

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.environ.update(environment)
    if path:
        sys.path.insert(0, path)
    sys.argv = ["transduce", "train", *words]
    main()
