"""Work at fixed addresses, done as it is written or replayed as a CUDA graph.

A decoding step is some hundred small kernels, and a GPU is done with them sooner than Python can ask for them. A graph
holds them all and costs one launch. Recording takes a while, so that work is run as it is written until it is known to
come again: the first answer does not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor


class Recorder:
    """Runs functions that read and write tensors where they are, and always the same ones under the same name."""

    def __init__(self, device: torch.device, kept: tuple[Tensor, ...] = ()) -> None:
        """`kept` are tensors that the work reads and others might drop."""
        self.device = device
        self.kept = kept
        self.recording = False  # to be set when the same work is known to come again
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.seen: set[Hashable] = set()
        self.pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def run(self, name: Hashable, work: Callable[[], None]) -> None:
        """As it is written; from the second time on, once `recording`, as a graph."""
        graph = self.graphs.get(name)
        if graph is None and self.recording and name in self.seen and self.device.type == "cuda":
            graph = self._record(work)
            self.graphs[name] = graph
        if graph is not None:
            graph.replay()
        else:
            self.seen.add(name)
            work()

    def _record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # thread_local: other threads may meanwhile use the device
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            work()
        return graph
