"""A group of one does nothing; settings that several processes cannot have are refused in words."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
import toys

from transduce.core.errors import ConfigError
from transduce.core.processes import Launch, StopRequest
from transduce.model.norms import over_processes
from transduce.training.checkpoint import Snapshot
from transduce.training.distributed import Group, _own_device, full_tensor, shard_like


def test_a_group_of_one_does_nothing() -> None:
    with Group("cpu") as group:
        assert not torch.distributed.is_initialized()
        assert (group.rank, group.size, group.first, group.device.type) == (0, 1, True, "cpu")
        tensor, snapshot = torch.ones(3), Snapshot(1, {}, {})
        assert group.sum(tensor) is tensor
        assert group.highest(2.5) == 2.5
        assert group.any_signal(None) is None
        assert group.any_signal(signal.SIGINT) is signal.SIGINT
        assert group.broadcast(snapshot) is snapshot
        assert group.snapshot(snapshot) is snapshot
        assert over_processes(tensor) is tensor
        assert full_tensor(tensor) is tensor
        assert shard_like(tensor, torch.zeros(3)) is tensor


def test_matrices_in_pieces_and_muon(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        toys.config(tmp_path, "training.parallel=fsdp", "training.optimizer.kind=muon")
    assert str(caught.value) == (
        "command line: training.parallel: with fsdp each process holds a part of every matrix, and Muon needs whole"
        " ones; set training.parallel=ddp, or training.optimizer=adam_w"
    )


@pytest.mark.parametrize("objective", ["reinforce", "minimum_risk"])
def test_blocks_in_pieces_and_translations_that_are_drawn(tmp_path: Path, objective: str) -> None:
    with pytest.raises(ConfigError) as caught:
        toys.config(tmp_path, "training.parallel=fsdp", f"objective={objective}")
    assert (
        "training.parallel: with fsdp all processes use each block as often, and translations that are drawn differ in"
        " length; set training.parallel=ddp"
    ) in str(caught.value)


def test_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    two, three = Launch(3, 4, 1, 2), Launch(3, 6, 1, 3)
    assert _own_device("auto", two) == torch.device("cuda", 1)
    assert _own_device("cuda", two) == torch.device("cuda", 1)
    assert _own_device("cpu", three) == torch.device("cpu")
    assert _own_device("cuda:1", Launch()) == torch.device("cuda", 1)
    with pytest.raises(ConfigError) as caught:
        _own_device("cuda:0", two)
    assert str(caught.value) == (
        "training.device: 'cuda:0' is one GPU, and each of the 4 processes takes its own; set training.device=cuda or"
        " auto"
    )
    with pytest.raises(ConfigError) as caught:
        _own_device("auto", three)
    assert str(caught.value) == (
        "training.device: 3 processes on this machine, and it has 2 GPUs; start as many with --nproc-per-node, or set"
        " training.device=cpu"
    )


def test_in_a_group_a_second_signal_changes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with StopRequest(aborts=False) as stop:
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        assert stop.signal is signal.SIGTERM
    assert capfd.readouterr().err == "\nSIGTERM: saving after this step\n"
    with StopRequest(speaks=False, aborts=False) as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.signal is signal.SIGINT
    assert capfd.readouterr().err == ""
