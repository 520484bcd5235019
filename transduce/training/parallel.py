"""Distributed steps: replicas of the model (DDP) or sharded blocks (FSDP2, `fully_shard`).

What is wrapped is `ObjectiveStep`, so that every gradient is seen, whatever an objective calls on the model. Gradients
are summed, not averaged: losses are sums, and the loop divides once by the count of all.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from torch import distributed as processes
from torch._C._distributed_c10d import GradBucket
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel

from transduce.data.batch import Batch
from transduce.model.encoder_decoder import EncoderDecoder
from transduce.objectives import Loss, ObjectiveStep
from transduce.training.step_runner import EagerRunner

_Parts = tuple[Tensor, Tensor, dict[str, Tensor]]


class Copies(EagerRunner):
    """DDP: each process holds the whole model; gradients are summed while the backward pass runs."""

    def __init__(self, step: ObjectiveStep, device: torch.device, bf16: bool, sparing: bool) -> None:
        """`sparing`: some weights may get no gradient in a step; otherwise torch need not look for them."""
        super().__init__(step, device, bf16)
        # Older torch lacks the new option.
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
        self.wrapped = DistributedDataParallel(
            _Flat(step), find_unused_parameters=sparing, broadcast_buffers=False, gradient_as_bucket_view=True
        )
        # torch's own hook divides by the number of processes.
        hook = _sum_bucket if device.type == "cuda" else _sum_each
        self.wrapped.register_comm_hook(None, lambda _, bucket: hook(bucket))

    def __call__(self, batch: Batch, step: int, last: bool = True, counted: bool = True) -> Loss:
        """Run a micro-batch; gradients of all micro-batches are summed with the last."""
        with nullcontext() if last else self.wrapped.no_sync():
            return super().__call__(batch, step, last, counted)

    def loss(self, batch: Batch, step: int) -> Loss:
        return Loss(*self.wrapped(batch, step))


class Pieces(EagerRunner):
    """FSDP2: each process holds a shard of every tensor; a block is gathered while it is used.

    Gradients are summed after every micro-batch, into the process's shard: more traffic, and no whole gradient is kept.
    With `bf16` whole weights are gathered in 16 bits, half the traffic and memory; shards stay in 32 bits, and
    gradients are summed in 32.
    """

    def __init__(self, step: ObjectiveStep, model: EncoderDecoder, device: torch.device, bf16: bool) -> None:
        super().__init__(step, device, bf16)
        # Keys and values of the source are views; nothing changes them in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        mesh = init_device_mesh(device.type, (processes.get_world_size(),))
        full = MixedPrecisionPolicy()
        # Inputs are left to autocast, which knows what must stay in 32 bits.
        narrow = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False) if bf16 else full
        for block in model.blocks():
            fully_shard(block, mesh=mesh, mp_policy=narrow)
            for name in block.entrances:
                register_fsdp_forward_method(block, name)
        self.wrapped = _Flat(step)
        # Cells of recurrences work in the precision of their weights, and errors add up along a sentence.
        recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
        fully_shard(self.wrapped, mesh=mesh, mp_policy=full if recurrent else narrow)
        for module in self.wrapped.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo has no other way not to divide

    def loss(self, batch: Batch, step: int) -> Loss:
        return Loss(*self.wrapped(batch, step))


class _Flat(nn.Module):
    """A step whose loss is a plain tuple: wrappers look for tensors in tuples and dicts."""

    def __init__(self, step: ObjectiveStep) -> None:
        super().__init__()
        self.step = step

    def forward(self, batch: Batch, number: int) -> _Parts:
        loss: Loss = self.step(batch, number)
        return loss.total, loss.count, loss.metrics


def _sum_bucket(bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Sum many gradients at once over all processes, asynchronously."""
    work = processes.all_reduce(bucket.buffer(), async_op=True)
    return cast("torch.futures.Future[Tensor]", work.get_future().then(lambda done: done.value()[0]))


def _sum_each(bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Sum gradients one at a time over all processes, so that a resumed run is bit-identical on CPUs.

    In which order three or more numbers are added depends on their position in what is sent, and DDP rearranges its
    buckets after the first step: that of a resumed run would be summed in another order than in a run never stopped.
    """
    works = [processes.all_reduce(gradient, async_op=True).get_future() for gradient in bucket.gradients()]
    return cast("torch.futures.Future[Tensor]", torch.futures.collect_all(works).then(lambda done: bucket.buffer()))
