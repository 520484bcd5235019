"""Shared by all tests: one torch thread, and the fixtures.

Two threads on a shared machine made toy models 25 times slower. The fixtures are `toy` (a small trained model,
toy_model.py), `run` (the command line in this process, cli_runner.py), `warm` (a Python that has torch loaded, warm.py)
and `native_toy`, `client` (the toy converted, and served in this process, toy_server.py).
"""

import gc
import os
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("transduce", deadline=None)  # how long an example takes is the machine's affair
hypothesis.settings.load_profile("transduce")

pytest_plugins = ["toy_model", "cli_runner", "warm", "toy_server", "browsing"]

TRACED = 24  # of the cases of a test, spread over all of them
# Files whose tests take longest, in that order: who begins with them has short ones left to share at the end.
LONGEST = """test_demo test_readme test_compiled test_distributed test_kill test_learning test_annotated test_torchrun
    test_exposure_bias test_non_autoregressive_learning test_distill test_benchmarks""".split()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests come first. Coverage is traced in the quick ones alone, and in some of the cases of each.

    Tracing takes half as much time again.
    """
    if config.getoption("cov_source", None):
        cases = Counter(item.nodeid.partition("[")[0] for item in items)
        seen: Counter[str] = Counter()
        for item in items:
            name = item.nodeid.partition("[")[0]
            if item.get_closest_marker("slow") or seen[name] % max(1, cases[name] // TRACED):
                item.add_marker("no_cover")
            seen[name] += 1
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        items[:] = dealt(items, workers)


def dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Files with slow tests dealt out to the workers, each of which then gets its share of the others.

    `--dist worksteal` gives each worker one part of the list, all of a size; who is done takes half of what another
    has left, from the end. Files stay whole, for their fixtures.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    slow = [path for path, found in files.items() if any(item.get_closest_marker("slow") for item in found)]
    slow.sort(key=lambda path: LONGEST.index(path.stem) if path.stem in LONGEST else len(LONGEST))
    others = [item for path, found in files.items() if path not in slow for item in found]
    parts: list[pytest.Item] = []
    for worker in range(workers):
        parts += [item for path in slow[worker::workers] for item in files[path]]
        room = len(items) * (worker + 1) // workers - len(parts) if worker < workers - 1 else len(others)
        parts += others[: max(0, room)]
        del others[: max(0, room)]
    return parts


def pytest_collection_finish() -> None:
    """What is loaded by now stays: the collector need not look through torch and thousands of tests again."""
    gc.collect()
    gc.freeze()
