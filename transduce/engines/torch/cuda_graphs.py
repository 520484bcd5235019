"""A cache of CUDA graphs by name, for decoding steps and training steps at fixed addresses.

A step is some hundred small kernels, which a GPU finishes sooner than Python can launch them. A graph replays them all
in one launch. Recording takes a while, so work runs eagerly until it is known to be repeated: the first answer does not
wait.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable

import torch
from torch import Tensor


def _warn(message: str) -> None:
    warnings.warn(f"graphs: {message}", stacklevel=2)


class CudaGraphCache:
    """Records work on tensors at fixed addresses, the same under one name, and replays it.

    If work cannot be recorded, `say` reports it once, and everything runs eagerly from then on.
    """

    def __init__(self, device: torch.device, say: Callable[[str], None] = _warn) -> None:
        self.say = say
        self.able = device.type == "cuda"
        self.recording = False  # set when the same work is known to be repeated
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.inputs: dict[Hashable, tuple[Tensor, ...]] = {}  # by name: tensors a graph reads, which others might drop
        self.seen: set[Hashable] = set()
        self.pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def run(self, name: Hashable, work: Callable[[], None], inputs: tuple[Tensor, ...] = ()) -> None:
        """Run the work: eagerly, or as a graph from the second time on if `recording`."""
        if name not in self.graphs and name in self.seen and self.recording:
            self.record(name, work, inputs)
        if name in self.graphs:
            self.graphs[name].replay()
        else:
            self.seen.add(name)
            work()

    def record(self, name: Hashable, work: Callable[[], None], inputs: tuple[Tensor, ...] = ()) -> bool:
        """Record a graph of the work without running it; False if it cannot be recorded.

        `inputs` are kept as long as the graph: tensors that it reads and others might free, such as tables.
        """
        if not self.able:
            return False
        graph = torch.cuda.CUDAGraph()
        try:
            # thread_local: other threads may use the device meanwhile
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.able = False
            reason = str(error).split("\n")[0]
            self.say(f"this model's steps cannot be recorded ({reason}); running eagerly")
            return False
        self.graphs[name], self.inputs[name] = graph, inputs
        return True
