"""Run one contender in a process of its own: it reads commands line by line and prints a line of JSON for each.

    python worker.py CONTENDER JOB.json

It builds its model, prints that it is ready (or why it cannot be), and then makes a pass over its batches for each line
`THREADS PRECISION`: one update on each batch, timed until the last one has finished. An empty line ends it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from workload import PAD, Sizes, load_batches

Update = Callable[[Any, bool], None]  # one update on a batch, in bf16 or not


@dataclass(frozen=True)
class Job:
    """The input of all contenders; `batches` are padded as each kind of contender needs them."""

    sizes: Sizes
    device: str
    batches: str
    settings: tuple[str, ...] = ()  # overrides of our config
    capacity: tuple[int, int] = (0, 0)  # of our batches, packed; 0 = padded

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        tree = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            Sizes(**tree["sizes"]), tree["device"], tree["batches"], tuple(tree["settings"]), tuple(tree["capacity"])
        )


def peer(name: str, job: Job) -> tuple[Update, list[Any]]:
    """A peer's model in a plain loop."""
    from peers import PEERS

    device = torch.device(job.device)
    torch.manual_seed(1)
    model, loss_of = PEERS[name](job.sizes)
    model.to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def update(batch: tuple[Tensor, Tensor], bf16: bool) -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            loss = loss_of(*batch)
        loss.backward()
        optimizer.step()

    return update, [(_on(batch.source, device), _on(batch.target, device)) for batch in load_batches(Path(job.batches))]


def ours(job: Job) -> tuple[Update, list[Any]]:
    """Our step as in the training loop: passes, then the update that normalises, checks and steps."""
    from transduce.core import config as configs
    from transduce.data.batch import Batch
    from transduce.experiment import Config
    from transduce.objectives import ObjectiveStep
    from transduce.training.machine import keep_freed_memory
    from transduce.training.optimizer import update as step_optimizer
    from transduce.training.start import compiled_step
    from transduce.training.step_runner import EagerRunner, GraphedRunner

    keep_freed_memory()
    config = configs.load(Config, "base", job.settings)
    device = torch.device(job.device)
    torch.manual_seed(1)
    model = config.model.build(job.sizes.vocabulary, job.sizes.vocabulary, shared=True).to(device)
    optimizer = config.training.optimizer.build(model.parameters(), model.tables())
    module = ObjectiveStep(model, config.objective.build()).train()
    if config.training.compile is True:
        module = compiled_step(module).train()
    graphs = device.type == "cuda" and config.training.graphs
    passes = {
        bf16: GraphedRunner(module, device, bf16, print) if graphs else EagerRunner(module, device, bf16)
        for bf16 in (True, False)
    }

    def update(batch: Batch, bf16: bool) -> None:
        optimizer.zero_grad(set_to_none=passes[bf16].drops_gradients)
        loss = passes[bf16](batch, 0)
        step_optimizer(optimizer, 1e-4, loss.count.float(), config.training.clip)

    batches = []
    for padded in load_batches(Path(job.batches)):
        source, target = _on(padded.source, device), _on(padded.target, device)
        batch = Batch(source, source != PAD, target, target[:, 1:] != PAD, capacity=job.capacity)
        real = (int(mask.sum()) for mask in (batch.source_mask, batch.target_mask))
        batches.append(batch.packed(*real) if device.type == "cpu" else batch)
    return update, batches


def _on(array: Any, device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)


def timed_pass(update: Update, batches: Sequence[Any], device: torch.device, bf16: bool) -> float:
    """Seconds for one update on each batch."""
    wait(device)
    started = time.perf_counter()
    for batch in batches:
        update(batch, bf16)
    wait(device)
    return time.perf_counter() - started


def wait(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory(device: torch.device) -> int:
    """Peak bytes so far: of tensors on a GPU, resident on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def ceiling(device: torch.device, bf16: bool, size: int, seconds: float = 0.3) -> float:
    """FLOP/s of the best of several square matrix products: the ceiling of any model."""
    kind = torch.bfloat16 if bf16 else torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    best, began = float("inf"), time.perf_counter()
    left @ right
    while time.perf_counter() - began < seconds or best == float("inf"):
        wait(device)
        started = time.perf_counter()
        left @ right
        wait(device)
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")  # other output must not mix with the results
    os.dup2(2, 1)

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers, flush=True)

    name, job = sys.argv[1], Job.read(Path(sys.argv[2]))
    device = torch.device(job.device)
    try:
        update, batches = ours(job) if name == "transduce" else (None, []) if name == "ceiling" else peer(name, job)
    except ImportError as error:
        answer(missing=f"{error}")
        return
    answer(ready=True, torch=torch.__version__)
    while line := sys.stdin.readline().strip():
        threads, precision = line.split()
        torch.set_num_threads(int(threads))
        bf16 = precision == "bf16"
        if update is None:
            answer(ceiling=ceiling(device, bf16, 8192 if device.type == "cuda" else 2048))
        else:
            cpu = time.process_time()
            seconds = timed_pass(update, batches, device, bf16)
            answer(seconds=seconds, cpu=time.process_time() - cpu, memory=memory(device))


if __name__ == "__main__":
    main()
