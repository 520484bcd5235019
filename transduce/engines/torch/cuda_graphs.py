"""CUDA graphs of work at fixed addresses, by name: of decoding steps and of training passes.

A step is some hundred small kernels, and a GPU is done with them sooner than Python can ask for them. A graph holds
them all and costs one launch. Recording takes a while, so work runs eagerly until it is known to come again: the first
answer does not wait.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable

import torch
from torch import Tensor


def _warn(message: str) -> None:
    warnings.warn(f"graphs: {message}", stacklevel=2)


class CudaGraphCache:
    """Records work that reads and writes tensors where they are, always the same ones under the same name; replays it.

    Work that cannot be recorded is reported once by `say`; from then on everything runs eagerly.
    """

    def __init__(self, device: torch.device, say: Callable[[str], None] = _warn) -> None:
        self.say = say
        self.able = device.type == "cuda"
        self.recording = False  # to be set when the same work is known to come again
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.inputs: dict[Hashable, tuple[Tensor, ...]] = {}  # by name: tensors a graph reads, which others might drop
        self.seen: set[Hashable] = set()
        self.pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def run(self, name: Hashable, work: Callable[[], None], inputs: tuple[Tensor, ...] = ()) -> None:
        """Do the work: eagerly; from the second time on, once `recording`, as a graph."""
        if name not in self.graphs and name in self.seen and self.recording:
            self.record(name, work, inputs)
        if name in self.graphs:
            self.graphs[name].replay()
        else:
            self.seen.add(name)
            work()

    def record(self, name: Hashable, work: Callable[[], None], inputs: tuple[Tensor, ...] = ()) -> bool:
        """Make a graph of the work, which is not done meanwhile; False where it cannot be recorded.

        `inputs` are kept as long as the graph: tensors that it reads and that others might drop, such as tables.
        """
        if not self.able:
            return False
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
            self.say(f"this model's steps cannot be recorded ({reason}); going on without")
            return False
        self.graphs[name], self.inputs[name] = graph, inputs
        return True
