"""The self-verifying file: what goes in comes out, every changed bit is found, pickle is never opened."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch
from snapshots import same_tensors
from torch import nn

from transduce.core.errors import RunError
from transduce.training.weights import check_shapes, load_weights, save_weights

METADATA = {"model": "tiny", "note": 'Grüße "quoted"\nline', "a": "1", "b": "2"}


def tiny() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {
        "b": torch.randn(3, 2),
        "a": torch.randn(4).bfloat16(),
        "half": torch.randn(2).half(),
        "whole": torch.tensor([1, -2]),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "mask": torch.tensor([True, False]),
    }


def saved(folder: Path) -> Path:
    path = folder / "model.safetensors"
    save_weights(path, tiny(), METADATA)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(RunError) as caught:
        load_weights(path)
    return str(caught.value)


def test_round_trip_keeps_every_bit_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = saved(tmp_path)
    tensors, metadata = load_weights(path)
    assert same_tensors(tensors, tiny())
    assert metadata == METADATA
    assert list(tmp_path.iterdir()) == [path]
    assert same_tensors(safetensors.torch.load_file(path), tiny()), "other programs can read it too"


def test_equal_weights_make_equal_files(tmp_path: Path) -> None:
    contents = set()
    for _ in range(20):
        contents.add(saved(tmp_path).read_bytes())
    assert len(contents) == 1


def test_parameters_and_transposed_views_are_stored_as_they_look(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.arange(6.0).reshape(2, 3))
    save_weights(tmp_path / "m.safetensors", {"turned": parameter.t(), "one": torch.zeros(4, 4)[:, 1]}, {})
    tensors, metadata = load_weights(tmp_path / "m.safetensors")
    assert torch.equal(tensors["turned"], parameter.detach().t())
    assert metadata == {}
    assert not tensors["turned"].requires_grad


def test_the_file_may_be_moved_and_empty(tmp_path: Path) -> None:
    save_weights(tmp_path / "m.safetensors", {}, {"only": "metadata"})
    (tmp_path / "m.safetensors").rename(tmp_path / "elsewhere")
    assert load_weights(tmp_path / "elsewhere") == ({}, {"only": "metadata"})


def test_any_length_of_header_loads(tmp_path: Path) -> None:
    """Headers of 640 bytes begin like a pickle of protocol 2; they must not be taken for one."""
    path, starts = tmp_path / "m.safetensors", set()
    for length in range(0, 1400, 8):
        save_weights(path, {"a": torch.ones(1)}, {"filler": "x" * length})
        starts.add(path.read_bytes()[:2])
        assert load_weights(path)[1]["filler"] == "x" * length
    assert starts >= {b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"}


def test_every_single_bit_flip_is_found(tmp_path: Path) -> None:
    """Not a sample: all bits of the file, header, seal, padding and numbers."""
    path = saved(tmp_path)
    good = path.read_bytes()
    for bit in range(len(good) * 8):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        refusal(path)
    path.write_bytes(good)
    load_weights(path)


def test_every_truncation_and_extension_is_found(tmp_path: Path) -> None:
    path = saved(tmp_path)
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        refusal(path)
    path.write_bytes(good[: len(good) - 1])
    assert f"cut short: {len(good) - 1:,} bytes, its header promises {len(good):,}. Copy it again" in refusal(path)
    path.write_bytes(good[:100])
    assert "cut short within its header, at 100 bytes" in refusal(path)
    path.write_bytes(b"")
    assert "cut short within its header, at 0 bytes" in refusal(path)
    path.write_bytes(good + b"x")
    assert f"damaged: longer than its header promises, {len(good) + 1:,} bytes, not {len(good):,}." in refusal(path)


def test_a_header_that_is_too_long_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)
    length = int.from_bytes(path.read_bytes()[:8], "little")
    monkeypatch.setattr("transduce.training.weights.LARGEST_HEADER", 100)
    assert f": its header would have {length:,} bytes, 100 at most are read. " in refusal(path)


def test_damaged_numbers_are_named_so(tmp_path: Path) -> None:
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    assert f"{path}: damaged: its content does not match the SHA-256 in its header. Copy it again" in refusal(path)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    assert "none.safetensors: no such file; expected weights" in refusal(tmp_path / "none.safetensors")
    assert "cannot be read: Is a directory" in refusal(tmp_path)


class Canary:
    """Unpickling an instance creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("name", ["model.pt", "model.bin", "model.pkl", "model.ckpt", "MODEL.PTH", "model.safetensors"])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_pickle_is_refused_by_name_and_by_content(tmp_path: Path, name: str, protocol: int) -> None:
    path, canary = tmp_path / name, tmp_path / "canary"
    path.write_bytes(pickle.dumps(Canary(canary), protocol=protocol))
    assert f"{path}: looks like a pickle" in refusal(path)
    assert "Expected a model.safetensors" in refusal(path)
    assert not canary.exists()


def test_a_torch_archive_under_our_name_is_refused(tmp_path: Path) -> None:
    torch.save(tiny(), tmp_path / "model.safetensors")
    assert "looks like a pickle" in refusal(tmp_path / "model.safetensors")


def test_a_strangers_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file(tiny(), path)
    assert "not written by transduce: expected one sha256 in its header, found 0" in refusal(path)
    path.write_bytes(b"just some text, long enough")
    assert "not a safetensors file: its header does not begin with '{'" in refusal(path)
    for header in (b'{"a": 5}', b'{"a": [1, 2]}', b'{"a": {"dtype": "F32", "shape": 5, "data_offsets": 7}}', b"{}}"):
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        assert "not a valid safetensors file" in refusal(path)
    path.write_bytes((1).to_bytes(8, "little") + b"{")
    assert "cut short within its header, at 9 bytes" in refusal(path)
    path.write_bytes(b"\xff" * 8 + b"{" + b"x" * 50)
    assert "cut short within its header" in refusal(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_non_finite_weights_are_never_written(tmp_path: Path, value: float, dtype: torch.dtype) -> None:
    path = saved(tmp_path)
    before = path.read_bytes()
    with pytest.raises(RunError) as caught:
        save_weights(path, {"good": torch.ones(2), "decoder.1.bias": torch.tensor([1.0, value], dtype=dtype)}, {})
    assert f"{path}: decoder.1.bias: 1 of 2 values are NaN or infinite; not saved." in str(caught.value)
    assert path.read_bytes() == before


def test_the_seals_own_key_is_not_for_callers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sha256"):
        save_weights(tmp_path / "m.safetensors", {}, {"sha256": "x"})


def test_shapes_that_do_not_fit_are_listed() -> None:
    tensors = {"good": torch.zeros(2), "long": torch.zeros(3, 1), **{f"new{n}": torch.zeros(1) for n in range(7)}}
    with pytest.raises(RunError) as caught:
        check_shapes(tensors, {"good": (2,), "long": (4, 1), "gone": (1,)}, "runs/x/model.safetensors")
    assert str(caught.value) == (
        "runs/x/model.safetensors: the tensors do not fit the model: 1 missing: gone; "
        "7 unexpected: new0, new1, new2, new3, new4, ...; 1 of the wrong shape: long [3, 1] instead of [4, 1]. "
        "Use the configuration these weights were trained with."
    )
    check_shapes(tensors, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, "runs/x")
