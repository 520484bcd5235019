"""Weight files from anywhere: damage is found by the hash, and wrong numbers with a right hash are refused too."""

from __future__ import annotations

import hashlib
import os
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from both_engines import SMALL, needs_core, opened, search, sources
from model_variants import SYMBOLS, V

from transduce.core.errors import RunError
from transduce.engines.native import weight_format
from transduce.engines.native.engine import NativeEngine
from transduce.engines.native.library import Core, CoreError
from transduce.engines.native.weight_file import floats, integers, matrix, write
from transduce.engines.native.weight_format import read_table, verify
from transduce.search.settings import Beam, Greedy, Limits, Sample

pytestmark = needs_core


@pytest.fixture(scope="module", params=[False, True], ids=["float", "int8"])
def good(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return opened(SMALL, tmp_path_factory.mktemp("model"), request.param).path.read_bytes()


def sealed(data: bytearray) -> bytes:
    """With the hash that its bytes have: what somebody who means harm would write."""
    data[24:56] = bytes(32)
    data[24:56] = hashlib.sha256(data).digest()
    return bytes(data)


def test_every_change_is_found(good: bytes, tmp_path: Path) -> None:
    path, draw = tmp_path / "model.native", random.Random(1)
    for _ in range(100):
        damaged = bytearray(good)
        damaged[draw.randrange(len(good))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(RunError, match="damaged, cut short, or no weight file"):
            NativeEngine(path, SYMBOLS, SYMBOLS)
    for _ in range(30):
        path.write_bytes(good[: draw.randrange(1, len(good))])
        with pytest.raises(RunError, match="damaged, cut short, or no weight file"):
            verify(path)
    path.write_bytes(b"")
    with pytest.raises(RunError, match="the weight file cannot be read"):
        verify(path)
    with pytest.raises(RunError, match="no such file; `transduce convert` writes it"):
        verify(tmp_path / "nowhere")


@pytest.mark.slow
def test_hostile_files_are_refused_or_harmless(good: bytes, tmp_path: Path) -> None:
    """Five hundred of each kind with right hashes and wrong bytes, most where sizes stand: no crash, no hang."""
    path, draw = tmp_path / "model.native", random.Random(2)
    count = struct.unpack_from("<I", good, 12)[0]
    table = 64 + 64 * count
    opened_anyway = 0
    for turn in range(500):
        damaged = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            where = draw.randrange(table + 300 if turn % 4 else len(good))
            damaged[where] = draw.choice([damaged[where] ^ (1 << draw.randrange(8)), 0, 255, draw.randrange(256)])
        if turn % 10 == 0:
            damaged = damaged[: draw.randrange(64, len(good))]
            damaged[16:24] = struct.pack("<Q", len(damaged))
        path.write_bytes(sealed(damaged))
        try:
            engine = NativeEngine(path, SYMBOLS, SYMBOLS, 2)
        except RunError:
            continue
        opened_anyway += 1
        limits = Limits(longest=4)
        for how in (Greedy(limits), Beam(size=3, limits=limits), Sample(top_k=3, top_p=0.5, limits=limits)):
            try:
                search(engine, [[5, 6], [7]], how)
            except (ValueError, RunError):
                break
    assert opened_anyway > 10


def refused(path: Path) -> str:
    with pytest.raises(CoreError) as caught:
        Core(path, 1)
    return str(caught.value)


def test_reasons_are_given(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.native"

    def changed(where: int, values: bytes) -> str:
        damaged = bytearray(good)
        damaged[where : where + len(values)] = values
        path.write_bytes(damaged)
        return refused(path)

    assert "is no weight file of the native engine" in changed(0, b"safetens")
    assert "has format 7, and this program reads 1" in changed(8, struct.pack("<I", 7))
    assert "its table leaves the file" in changed(12, struct.pack("<I", 60000))
    assert "its header says otherwise: cut short, or damaged" in changed(16, struct.pack("<Q", 1 << 60))
    assert "tensor 'sizes' has impossible sizes, or leaves the file" in changed(64 + 44, struct.pack("<I", 1 << 31))
    assert "tensor 'sizes' has impossible sizes" in changed(64 + 56, struct.pack("<Q", (1 << 64) - 64))
    assert "lacks the tensor 'sizes'" in changed(64, b"other")
    path.write_bytes(b"TRDNATIV")
    assert "is no weight file, or cut short within its header" in refused(path)
    assert "cannot be opened: No such file" in refused(tmp_path / "nowhere")
    assert "is no weight file" in refused(tmp_path)


def entries(data: bytes) -> dict[str, tuple[int, int]]:
    """Of each tensor its kind, and where its bytes begin."""
    found = {}
    for at in range(64, 64 + 64 * struct.unpack_from("<I", data, 12)[0], 64):
        kind, _, _, _, offset = struct.unpack_from("<4IQ", data, at + 40)
        found[data[at : at + 40].rstrip(b"\0").decode()] = kind, offset
    return found


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_refused_with_a_right_hash(good: bytes, tmp_path: Path, value: float) -> None:
    path, places = tmp_path / "model.native", entries(good)
    names = [name for name, (kind, _) in places.items() if kind in (0, 3)]  # floats, and panels of floats
    assert len(names) > 30
    for name in names:
        damaged = bytearray(good)
        struct.pack_into("<f", damaged, places[name][1], value)
        path.write_bytes(sealed(damaged))
        with pytest.raises(RunError, match=r"tensor '[\w.]+' with values that are no numbers \(NaN or infinite\)"):
            NativeEngine(path, SYMBOLS, SYMBOLS)


def test_only_outputs_that_pad_may_be_minus_infinity(good: bytes, tmp_path: Path) -> None:
    path, begin = tmp_path / "model.native", entries(good)["output.bias"][1]
    assert struct.unpack_from("<f", good, begin + 4 * V)[0] == float("-inf")  # as it is written
    none, padding = "with values that are no numbers", "whose padding is not -infinity"
    cases = [(V - 1, float("-inf"), none), *((V, value, padding) for value in (float("inf"), float("nan"), 0.0, 1e30))]
    for place, value, told in cases:
        damaged = bytearray(good)
        struct.pack_into("<f", damaged, begin + 4 * place, value)
        path.write_bytes(sealed(damaged))
        with pytest.raises(RunError, match=f"'output.bias' {told}"):
            NativeEngine(path, SYMBOLS, SYMBOLS)


def test_what_pads_other_biases_is_zero(good: bytes, tmp_path: Path) -> None:
    path, begin = tmp_path / "model.native", entries(good)["encoder.0.outer.bias"][1]
    for value in (1.0, float("-inf")):
        damaged = bytearray(good)
        struct.pack_into("<f", damaged, begin + 4 * 16, value)  # the first after d_model
        path.write_bytes(sealed(damaged))
        with pytest.raises(RunError, match=r"'[\w.]+\.bias' (whose padding is not 0|with values that are no numbers)"):
            NativeEngine(path, SYMBOLS, SYMBOLS)


@pytest.mark.parametrize("value", [1e38, -3e38])
def test_huge_numbers_are_no_harm(good: bytes, tmp_path: Path, value: float) -> None:
    """They are finite, so that the file is opened; what follows from them is not, and must not be undefined."""
    path, places, draw = tmp_path / "model.native", entries(good), random.Random(3)
    names = [name for name, (kind, _) in places.items() if kind in (0, 3)]
    limits = Limits(longest=4)
    for name in draw.sample(names, 25):
        damaged = bytearray(good)
        struct.pack_into("<f", damaged, places[name][1], value)
        path.write_bytes(sealed(damaged))
        engine = NativeEngine(path, SYMBOLS, SYMBOLS, 1)
        for how in (Greedy(limits), Beam(size=3, limits=limits), Sample(top_k=3, top_p=0.5, limits=limits)):
            for own in search(engine, [[5, 6], [7]], how):
                assert all(0 <= token < V for hypothesis in own for token in hypothesis.tokens)


def test_sizes_that_ask_for_the_world_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "model.native"
    write(path, {"sizes": integers([1 << 30, 10, 10, 0])})
    assert "d_model is 1073741824, and must be from 1 to 16384" in refused(path)
    write(path, {"sizes": integers([16384, 1 << 22, 10, 0]), "embedding_scale": floats(np.ones(1))})
    assert "lacks the tensor 'source'" in refused(path)


def test_equal_bytes_are_stored_once_and_equal_tensors_make_equal_files(tmp_path: Path) -> None:
    numbers = floats(np.arange(1000))
    write(tmp_path / "one", {"a": numbers})
    write(tmp_path / "two", {"a": numbers, "b": numbers})
    assert (tmp_path / "two").stat().st_size == (tmp_path / "one").stat().st_size + 64
    write(tmp_path / "again", {"a": numbers, "b": numbers})
    assert (tmp_path / "two").read_bytes() == (tmp_path / "again").read_bytes()
    with pytest.raises(ValueError, match="a tensor's name has at most 40 characters"):
        write(tmp_path / "long", {"n" * 41: numbers})


def test_what_was_written_is_opened(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.native"
    path.write_bytes(good)
    core = NativeEngine(path, SYMBOLS, SYMBOLS, 1).core
    assert (core.d_model, core.source_vocabulary, core.target_vocabulary, core.layers, core.heads) == (16, V, V, 2, 2)
    assert len(search(NativeEngine(path, SYMBOLS, SYMBOLS), sources(3, V), Greedy())) == 3


def test_only_one_module_of_ours_knows_the_format() -> None:
    """Where a number stands in the file, what it begins with, and where its hash is."""
    words = ("import struct", "TRDNATIV", "unpack_from", "[24:56]", "slice(24")
    files = Path(weight_format.__file__).parent.rglob("*.py")
    assert [path.name for path in files if any(word in path.read_text() for word in words)] == ["weight_format.py"]


def test_the_table_is_that_of_what_was_written(tmp_path: Path) -> None:
    tensors = {"one": floats(np.arange(6).reshape(2, 3)), "two": integers([4, 5, 6])}
    tensors |= matrix("three", np.ones((65, 3), np.float32), None, quantize=True)
    write(tmp_path / "file", tensors)
    data, found = read_table(tmp_path / "file")
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        stored = found[name]
        assert (stored.kind, stored.rows, stored.columns) == (tensor.kind, tensor.rows, tensor.columns)
        assert data[stored.offset : stored.end] == tensor.data
    assert max(stored.end for stored in found.values()) == len(data)


@pytest.mark.parametrize(
    ("where", "values", "told"),
    [
        (0, b"safetens", "is no weight file of the native engine"),
        (8, struct.pack("<I", 7), "has format 7, and this program reads 1"),
        (64 + 40, struct.pack("<I", 4), "tensor 'one' has impossible sizes, or leaves the file"),
        (64 + 44, struct.pack("<I", 0), "tensor 'one' has impossible sizes, or leaves the file"),
        (128, b"one", "tensor 'one' occurs twice"),
        (12, struct.pack("<I", 60000), "its content does not match its SHA-256"),  # the table leaves the file
        (12, struct.pack("<I", 1), "its content does not match its SHA-256"),  # bytes that are no tensor's
        (16, struct.pack("<Q", 1 << 60), "its content does not match its SHA-256"),
    ],
)
def test_python_refuses_with_the_reason_too(where: int, values: bytes, told: str, tmp_path: Path) -> None:
    """The hash is right, so that only what it says is wrong."""
    path = tmp_path / "file"
    write(path, {"one": floats(np.ones(16)), "two": floats(np.zeros(16))})
    damaged = bytearray(path.read_bytes())
    damaged[where : where + len(values)] = values
    path.write_bytes(sealed(damaged))
    with pytest.raises(RunError, match=told):
        read_table(path)


def test_a_table_of_too_many_tensors_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """It lies within the file, which takes no room on the disk, and to walk through it would take minutes."""
    path = tmp_path / "file"
    size = 64 + 64 * (1 << 28)
    path.write_bytes(struct.pack("<8s2IQ40x", b"TRDNATIV", 1, 1 << 28, size))
    os.truncate(path, size)
    with pytest.raises(RunError, match="its content does not match its SHA-256"):
        verify(path)
