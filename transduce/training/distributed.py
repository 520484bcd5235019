"""Several processes that train one model together: rendezvous, sums over all, and rank 0, which alone writes.

torchrun starts them; gloo carries what lies on CPUs, NCCL what lies on GPUs. Rank 0 alone touches the run folder and
the console, and broadcasts what it reads or decides. For a group of one all of this does nothing.

torchrun keeps one store for all restarts of a group, and its count of restarts differs from machine to machine; so
torch may read the address of a process that has died, and a restarted group now and then could not connect. Here each
process signs in with a fresh random token, and a generation is identified by the tokens that all live processes see.

`full_tensor` and `shard_like` gather and shard weights under FSDP. `hollow` copies a model without weights before it is
sharded; `filled` puts gathered weights into the copy for a while, to validate as an unsharded model does.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import secrets
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Protocol, TypeVar, cast

import torch
from torch import Tensor, nn
from torch import distributed as processes

from transduce.core.errors import ConfigError, RunError
from transduce.core.processes import LIFE, Launch
from transduce.engines.torch.engine import pick_device
from transduce.training.checkpoint import Snapshot

POLL = 0.02  # seconds


class Store(Protocol):
    """The methods needed of torch's stores."""

    def set(self, key: str, value: str, /) -> None: ...

    def check(self, keys: list[str], /) -> bool: ...

    def multi_get(self, keys: list[str], /) -> list[bytes]: ...


def meet(store: Store, rank: int, size: int, patience: timedelta) -> str:
    """Wait until all processes have signed in and each has seen the same tokens; return the name of this generation."""
    everyone = range(size)
    store.set(f"transduce/here/{rank}", secrets.token_hex(16))
    limit = time.monotonic() + patience.total_seconds()
    seen = ""
    while time.monotonic() < limit:
        if store.check([f"transduce/here/{other}" for other in everyone]):
            words = store.multi_get([f"transduce/here/{other}" for other in everyone])
            life = hashlib.sha256(b" ".join(words)).hexdigest()[:16]
            if life != seen:  # tokens of dead processes give a generation that nobody confirms
                store.set(f"transduce/seen/{life}/{rank}", "yes")
                seen = life
            if store.check([f"transduce/seen/{life}/{other}" for other in everyone]):
                return life
        time.sleep(POLL)
    missing = [other for other in everyone if not store.check([f"transduce/here/{other}"])]
    raise RunError(
        f"waited {patience} for the {size} processes of the group to meet; missing: ranks {missing or 'unknown'}."
        " Start torchrun on every machine with the same --nnodes and --rdzv-endpoint, or look there for why they ended"
    )


def wait_until_connected(store: Store, life: str, rank: int, size: int, patience: timedelta) -> None:
    """Wait at a barrier in the store until every process has its connections to all others.

    Gloo connects each pair on its own, and a process that has its connections may end, by an error say, while another
    is still accepting them: that one would wait for it until the timeout of the group, which is hours.
    """
    keys = {other: f"transduce/connected/{life}/{other}" for other in range(size)}
    store.set(keys[rank], "yes")
    limit = time.monotonic() + patience.total_seconds()
    while not store.check(list(keys.values())):
        if time.monotonic() >= limit:
            missing = [other for other, key in keys.items() if not store.check([key])]
            raise RunError(
                f"waited {patience} for the {size} processes of the group to connect to each other; missing: ranks"
                f" {missing or 'unknown'}. Look there for why they ended, or name the network with GLOO_SOCKET_IFNAME"
            )
        time.sleep(POLL)


T = TypeVar("T")
# How long the others wait for rank 0 to validate, average or save. A process that dies is noticed at once, not by this.
PATIENCE = timedelta(hours=12)
JOINING = timedelta(minutes=30)
# The transport's error when another process has died, in the words of gloo, NCCL or the store.
_LOST = re.compile(r"gloo|NCCL|Connection (closed|reset|refused)|[Bb]roken pipe|TCPStore|timed out|ProcessGroup")


class Group:
    """A group of processes, this one's rank and device in it: `with Group(device_name) as group:`.

    torchrun starts several processes; without it the group has one.
    """

    def __init__(self, device: str) -> None:
        self.launch = Launch.of(os.environ)
        self.rank, self.size = self.launch.rank, self.launch.size
        self.first = self.rank == 0  # the one that reads, writes and logs
        self.device = _own_device(device, self.launch)

    def __enter__(self) -> Group:
        if self.size > 1:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)
            backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
            with _explained_loss():
                self.store, _, _ = next(processes.rendezvous("env://", timeout=JOINING))  # type: ignore[attr-defined]
                life = meet(self.store, self.rank, self.size, JOINING)
                os.environ[LIFE] = life
                store = processes.PrefixStore(life, self.store)  # type: ignore[attr-defined]
                processes.init_process_group(
                    backend, store=store, rank=self.rank, world_size=self.size, timeout=PATIENCE
                )
                wait_until_connected(self.store, life, self.rank, self.size, JOINING)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.size == 1:
            return
        if error is None:
            with _explained_loss():
                self.broadcast(None)  # leave together: a process that left first might still be needed
            processes.destroy_process_group()
        elif isinstance(error, RuntimeError) and _LOST.search(str(error)):
            raise _lost() from error

    # -- collectives -----------------------------------------------------------------------------------------------

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, on the device."""
        if self.size == 1:
            return tensor
        total = tensor.clone()
        processes.all_reduce(total)
        return total

    def highest(self, number: float) -> float:
        """The maximum of all processes' numbers; hosts wait for each other, devices for none."""
        if self.size == 1:
            return number
        found = torch.tensor(number, dtype=torch.float64)
        processes.all_reduce(found, processes.ReduceOp.MAX)
        return found.item()

    def any_signal(self, found: signal.Signals | None) -> signal.Signals | None:
        """The signal that this or any other process has received: a request to stop one is a request to stop all."""
        number = int(self.highest(found or 0))
        return signal.Signals(number) if number else None

    def broadcast(self, value: T, source: int = 0) -> T:
        """Broadcast the plain JSON value of rank `source`; the others pass anything of the kind."""
        if self.size == 1:
            return value
        sends = self.rank == source
        written = json.dumps(value).encode() if sends else b""
        length = torch.tensor(len(written))
        processes.broadcast(length, source)
        text = torch.frombuffer(bytearray(written or bytes(int(length))), dtype=torch.uint8)
        processes.broadcast(text, source)
        return value if sends else json.loads(bytes(text.numpy()))

    def gathered(self, values: Sequence[T]) -> list[T]:
        """Gather items dealt out as `items[rank::size]`, in their original order; plain JSON."""
        shares = [self.broadcast(list(values), source) for source in range(self.size)]
        return [share[turn] for turn in range(max(map(len, shares))) for share in shares if turn < len(share)]

    def spread(self, tensors: Iterable[Tensor]) -> None:
        """Broadcast these tensors from rank 0, in place."""
        if self.size > 1:
            for tensor in tensors:
                processes.broadcast(tensor, 0)

    def snapshot(self, read: Snapshot | None) -> Snapshot:
        """Broadcast the checkpoint that rank 0 has read: the others need not see the run folder."""
        if self.size == 1:
            return cast("Snapshot", read)
        tensors = read.tensors if read is not None else {}
        shapes = [
            (stem, name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
            for stem, group in tensors.items()
            for name, tensor in group.items()
        ]
        step, state = self.broadcast((read.step, read.state) if read is not None else (0, {}))
        copied: dict[str, dict[str, Tensor]] = {}
        for stem, name, kind, shape in self.broadcast(shapes):
            tensor = tensors[stem][name].contiguous() if read else torch.empty(shape, dtype=getattr(torch, kind))
            processes.broadcast(tensor, 0)
            copied.setdefault(stem, {})[name] = tensor
        return Snapshot(step, copied, state)


def _own_device(name: str, launch: Launch) -> torch.device:
    """The device of this process among several on a machine: each gets a GPU of its own."""
    device = pick_device(name)
    if launch.size == 1 or device.type != "cuda":
        return device
    if ":" in name:
        raise ConfigError(
            f"training.device: '{name}' is one GPU, and each of the {launch.size} processes takes its own;"
            " set training.device=cuda or auto"
        )
    if launch.local_size > torch.cuda.device_count():
        raise ConfigError(
            f"training.device: {launch.local_size} processes on this machine, and it has {torch.cuda.device_count()}"
            " GPUs; start as many with --nproc-per-node, or set training.device=cpu"
        )
    return torch.device("cuda", launch.local_rank)


@contextmanager
def _explained_loss() -> Iterator[None]:
    """Turn the transport's error for a lost process into a RunError."""
    try:
        yield
    except RuntimeError as error:
        if not _LOST.search(str(error)):
            raise
        raise _lost() from error


def _lost() -> RunError:
    return RunError(
        "another process of the group has ended or cannot be reached, and none can continue without it. The last"
        " checkpoint is sound: the same command resumes from it, as does torchrun itself with --max-restarts"
    )


M = TypeVar("M", bound=nn.Module)
_PLAIN = (Tensor, nn.Parameter)


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather the full tensor from all shards; every process must call it. A plain tensor is returned as it is."""
    return tensor if type(tensor) in _PLAIN else cast("Tensor", tensor.full_tensor())  # type: ignore[attr-defined]


def shard_like(tensor: Tensor, model: Tensor) -> Tensor:
    """Shard a full tensor like `model`, on its device: each process keeps its own shard."""
    tensor = tensor.to(model.device)
    if type(model) in _PLAIN or tensor.dim() == 0:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor  # slow to import

    cut = cast("DTensor", model)
    return distribute_tensor(tensor, cut.device_mesh, cut.placements, src_data_rank=None)


def hollow(model: M) -> M:
    """Copy a model without its weights: the same modules, with parameters and saved buffers on the meta device."""
    tensors = model.state_dict(keep_vars=True).values()
    empty = {id(tensor): _of_kind(tensor, torch.empty_like(tensor, device="meta")) for tensor in tensors}
    return copy.deepcopy(model, empty)


def filled(model: M, weights: Mapping[str, Tensor]) -> M:
    """Copy a hollow model with these weights in place, which are not copied; the hollow one stays as it is."""
    hollows = model.state_dict(keep_vars=True)
    given = {id(hollows[name]): _of_kind(hollows[name], tensor) for name, tensor in weights.items()}
    return copy.deepcopy(model, given)


def _of_kind(tensor: Tensor, numbers: Tensor) -> Tensor:
    """`numbers` as a parameter, if `tensor` is one."""
    return nn.Parameter(numbers, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else numbers
