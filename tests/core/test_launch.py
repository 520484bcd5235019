"""What torchrun tells its children, and which of them speaks."""

from __future__ import annotations

import pytest
from torch.distributed import TCPStore

from transduce.core.processes import Launch, first_to_tell, leave

TOLD = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def test_a_single_process_unless_every_variable_is_set() -> None:
    assert Launch.of({}) == Launch(0, 1, 0, 1)
    assert Launch.of(TOLD) == Launch(5, 8, 1, 4)
    for name in TOLD:  # a cluster may set some of these for purposes of its own
        assert Launch.of({key: value for key, value in TOLD.items() if key != name}) == Launch()


def test_the_first_to_tell_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_to_tell()
    assert first_to_tell()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for name, value in TOLD.items():
        monkeypatch.setenv(name, value)
    assert first_to_tell()  # nobody else holds a store: each for itself
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    assert first_to_tell()
    assert not first_to_tell()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert first_to_tell()


def test_one_process_ends_as_python_does() -> None:
    leave(3)
