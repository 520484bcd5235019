"""Work is recorded where it can be, and done as it is written where it cannot."""

from __future__ import annotations

import pytest
import torch
from static_and_eager import CPU

from transduce.engines.torch.cuda_graphs import CudaGraphCache


def test_work_on_a_cpu_is_never_recorded() -> None:
    recorder, done = CudaGraphCache(CPU), []
    recorder.recording = True
    for number in range(3):
        recorder.run("work", lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == [0, 1, 2]
    assert not recorder.graphs


class Unrecordable:
    """What torch.cuda.graph raises on entering, as if the work could not be recorded."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, *parts: object, **options: object) -> Unrecordable:
        return self

    def __enter__(self) -> None:
        raise self.error

    def __exit__(self, *error: object) -> None: ...


def test_what_cannot_be_recorded_is_done_as_written_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, done = CudaGraphCache(CPU), []
    recorder.able = recorder.recording = True
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", Unrecordable(RuntimeError("a wait in it\nand more")))
    recorder.run("work", lambda: done.append(1))
    with pytest.warns(match=r"graphs: this model's steps cannot be recorded \(a wait in it\); running eagerly"):
        recorder.run("work", lambda: done.append(2))
    recorder.run("work", lambda: done.append(3))
    assert done == [1, 2, 3]
    recorder.able = True
    monkeypatch.setattr(torch.cuda, "graph", Unrecordable(torch.OutOfMemoryError("full")))
    with pytest.raises(torch.OutOfMemoryError):
        recorder.run("work", lambda: done.append(4))
