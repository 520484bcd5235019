"""Work at fixed addresses, done as it is written or replayed as a CUDA graph.

A decoding step is some hundred small kernels, and a GPU is done with them sooner than Python can ask for them. A graph
holds them all and costs one launch. Recording takes a while, so that work is run as it is written until it is known to
come again: the first answer does not wait.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable

import torch
from torch import Tensor


class CudaGraphCache:
    """Runs functions that read and write tensors where they are, and always the same ones under the same name."""

    def __init__(self, device: torch.device, kept: tuple[Tensor, ...] = ()) -> None:
        """`kept` are tensors that the work reads and others might drop."""
        self.device = device
        self.kept = kept
        self.able = device.type == "cuda"
        self.recording = False  # to be set when the same work is known to come again
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.seen: set[Hashable] = set()
        self.pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def run(self, name: Hashable, work: Callable[[], None]) -> None:
        """As it is written; from the second time on, once `recording`, as a graph."""
        if name not in self.graphs and name in self.seen and self.recording and self.able:
            self._record(name, work)
        if name in self.graphs:
            self.graphs[name].replay()
        else:
            self.seen.add(name)
            work()

    def _record(self, name: Hashable, work: Callable[[], None]) -> None:
        """Nothing is done while it is recorded; where that cannot be, say so once and go on without."""
        graph = torch.cuda.CUDAGraph()
        try:
            # thread_local: other threads may meanwhile use the device
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.able = False
            reason = str(error).split("\n")[0]
            warnings.warn(f"graphs: this model's steps cannot be recorded ({reason}); going on without", stacklevel=2)
            return
        self.graphs[name] = graph
