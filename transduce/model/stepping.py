"""Which steps of decoding are done by kernels of ours (decoding_on_gpu.py), and what these know of a step.

Shapes: B sentences, K paths, H heads, W the width of a head.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import Tensor

from transduce.model.contract import StaticDecoderState
from transduce.model.packing import PaddedLayout

try:
    from transduce.model import decoding_on_gpu
except ImportError:  # torch for CPUs comes without triton
    decoding_on_gpu = None  # type: ignore[assignment]


_thread = threading.local()


@contextmanager
def in_a_room() -> Iterator[None]:
    """What this thread does inside may use the kernels. Plain searches and validation are outside, and torch's own."""
    _thread.in_a_room = True
    try:
        yield
    finally:
        _thread.in_a_room = False


def kernels_for(x: Tensor) -> ModuleType | None:
    """The kernels, in a room, if nobody wants a gradient and torch does not compile, for which it has its own.

    x must be on the GPU in use: triton asks no tensor where it is.
    """
    if not getattr(_thread, "in_a_room", False):
        return None
    plain = torch.is_grad_enabled() or torch.is_autocast_enabled("cuda") or torch.compiler.is_compiling()
    return decoding_on_gpu if x.is_cuda and not plain and x.get_device() == torch.cuda.current_device() else None


class Stepping(PaddedLayout):
    """One token of each path, which looks at memory set aside where it lies."""

    direct = True

    def __init__(self, held: StaticDecoderState, kernels: ModuleType) -> None:
        self.held, self.kernels = held, kernels

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None
    ) -> Tensor:
        """To the source: query (B, H, K, W), mask as attention.hidden makes it."""
        found: Tensor = self.kernels.attend_source(query, key, value, mask, _scale(query, scale))
        return found

    def attend_held(
        self, query: Tensor, newest: tuple[Tensor, Tensor], memory: tuple[Tensor, Tensor], scale: float | None
    ) -> Tensor:
        """To what each path has written, `newest` keys and values included, which are put into memory."""
        place, ancestors = self.held.position, self.held.ancestors
        found: Tensor = self.kernels.attend_held(query, newest, memory, place, ancestors, _scale(query, scale))
        return found


def _scale(query: Tensor, scale: float | None) -> float:
    return query.size(-1) ** -0.5 if scale is None else scale
