"""Shared by all tests: one torch thread (two on a shared machine made toy models 25 times slower), and the fixtures
`toy` (a small trained model, toy_model.py), `run` (the command line in this process, cli_runner.py), `warm` (a
Python that has torch loaded, warm.py) and `native_toy`, `client` (the toy converted, and served in this process,
toy_server.py).
"""

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("transduce", deadline=None)  # how long an example takes is the machine's affair
hypothesis.settings.load_profile("transduce")

pytest_plugins = ["toy_model", "cli_runner", "warm", "toy_server", "browsing"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Coverage is traced in the quick tests alone: tracing takes half as much time again."""
    if config.getoption("cov_source", None):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker("no_cover")


def pytest_collection_finish() -> None:
    """What is loaded by now stays: the collector need not look through torch and thousands of tests again."""
    gc.collect()
    gc.freeze()
