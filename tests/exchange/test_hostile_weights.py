"""Weights from strangers: each ends in words, and nothing becomes larger than its file before its shape is known."""

from __future__ import annotations

import io
import json
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="the oracle for Marian models: pip install transduce[test]")
pytest.importorskip("yaml", reason="writes Marian's files: pip install transduce[test]")

import marian_folders
import marian_models as marian

import transduce
from transduce.core.errors import RunError

EMBEDDINGS = "model.shared.weight"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return marian.folder(tmp_path / "theirs", "usual")


@pytest.fixture
def tensors(theirs: Path) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in safetensors.torch.load_file(theirs / "model.safetensors").items()}


@pytest.fixture
def pickled(theirs: Path, tensors: dict[str, Tensor]) -> Path:  # read before their file goes
    (theirs / "model.safetensors").unlink()
    return theirs / "pytorch_model.bin"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    marian_folders.folder(tmp_path / "own", "post")
    return tmp_path / "own" / "model.npz"


def refusal(weights: Path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RunError) as caught:
            transduce.import_model(weights, weights.parent / "run")
    assert str(weights) in str(caught.value)
    return str(caught.value)


# -- Hugging Face's folders ------------------------------------------------------------------------------------------


def never(*_: object) -> Tensor:
    raise AssertionError("values were read before names and shapes were compared")


def test_no_value_is_read_of_another_model(
    pickled: Path, tensors: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.exchange.marian_import._read_finite", never)
    layer = "model.encoder.layers.0.fc1.bias"
    torch.save({EMBEDDINGS: torch.zeros(1, dtype=torch.half).expand(30_000, 50_000)}, pickled)
    assert "the file has 1 tensors and embeddings of 30,000" in refusal(pickled)
    torch.save({**tensors, layer: torch.zeros(49)}, pickled)
    assert "encoder.layers.0.feed_forward.inner.bias [49] instead of [48]" in refusal(pickled)
    torch.save({**tensors, EMBEDDINGS: torch.zeros(1).expand(tensors[EMBEDDINGS].shape[0], 10**12)}, pickled)
    assert "d_model is 32" in refusal(pickled)
    torch.save({**tensors, "final_logits_bias": torch.zeros(1).expand(10**6, 10**6)}, pickled)
    assert "output_bias [1000000000000] instead of" in refusal(pickled)


def test_shapes_without_values_are_refused(pickled: Path, tensors: dict[str, Tensor]) -> None:
    one = torch.zeros(1)
    torch.save({name: one.expand(tensor.shape) for name, tensor in tensors.items()}, pickled)
    assert "they share their values. Expected values for every tensor" in refusal(pickled)


@pytest.mark.parametrize("archive", [True, False], ids=["archive", "before 1.6"])
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_honest_pickles_come_in(
    archive: bool, kind: torch.dtype, pickled: Path, tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    found = {name: torch.nn.Parameter(tensor.to(kind)) for name, tensor in tensors.items()}
    torch.save(found, pickled, _use_new_zipfile_serialization=archive)
    assert transduce.import_model(pickled, tmp_path / "run").is_dir()


def test_a_compressed_archive_is_refused(pickled: Path, tensors: dict[str, Tensor]) -> None:
    plain = io.BytesIO()
    torch.save({**tensors, EMBEDDINGS: torch.zeros(1 << 20, dtype=torch.uint8)}, plain)
    with zipfile.ZipFile(plain) as found, zipfile.ZipFile(pickled, "w", zipfile.ZIP_DEFLATED) as packed:
        for entry in found.infolist():
            packed.writestr(entry.filename, found.read(entry))
    assert "(its archive is compressed, as torch never does)" in refusal(pickled)


def test_a_pickle_that_grows_is_refused(pickled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch would run this: each call of the encoder doubles the text."""
    doubled = b"c_codecs\nencode\n(C\x01aX\x03\x00\x00\x00hextR"
    with zipfile.ZipFile(pickled, "w") as packed:
        packed.writestr("a/data.pkl", b"\x80\x02" + doubled + b".")
    assert "(it asks for '_codecs encode')" in refusal(pickled)
    pickled.write_bytes(b"\x80\x02" + doubled + b"." + b"N." * 9)
    assert "(it asks for '_codecs encode')" in refusal(pickled)
    monkeypatch.setattr("transduce.exchange.foreign._LARGEST_INDEX", 100)
    with zipfile.ZipFile(pickled, "w") as packed:
        packed.writestr("a/data.pkl", b"\x80\x02" + b"]" * 200 + b".")
    assert "(203 bytes of names, 100 at most are read)" in refusal(pickled)


@pytest.mark.filterwarnings("ignore")  # torch's own, while such tensors are made
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: torch.quantize_per_tensor(torch.zeros(4, 8), 0.1, 0, torch.qint8), "_rebuild_qtensor"),
        (lambda: torch.zeros(4, 8, dtype=torch.complex64), "'model.shared.weight' holds complex64 values"),
        (lambda: torch.zeros(4, 8, dtype=torch.uint8), "holds uint8 values, torch.strided, on cpu; expected plain"),
        (lambda: torch.zeros(4, 8, device="meta"), "_rebuild_meta_tensor_no_storage"),
        (lambda: torch.zeros(4, 8).to_sparse(), "_rebuild_sparse_tensor"),
    ],
    ids=["quantized", "complex", "bytes", "meta", "sparse"],
)
def test_tensors_that_are_no_plain_floats(make: Callable[[], Tensor], told: str, pickled: Path) -> None:
    torch.save({EMBEDDINGS: make()}, pickled)
    assert told in refusal(pickled)


def test_names_are_words(pickled: Path) -> None:
    torch.save({1: torch.zeros(4, 8)}, pickled)
    assert "expected tensors by name" in refusal(pickled)


@pytest.mark.parametrize("kind", ["F4", "U8", "C64", "F8_E8M0", "X"])
def test_safetensors_of_other_kinds(kind: str, theirs: Path) -> None:
    path, width = theirs / "model.safetensors", {"F4": 0.5, "C64": 8}.get(kind, 1)
    end = int(4 * width)
    header = json.dumps({EMBEDDINGS: {"dtype": kind, "shape": [2, 2], "data_offsets": [0, end]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(end))
    told = refusal(path)
    assert "; expected plain floats of 16, 32 or 64 bits" in told or "not a safetensors file (" in told


def test_a_long_header_is_not_read(theirs: Path) -> None:
    path = theirs / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 2 << 20) + b"{}")
    assert "not a safetensors file (a header of 2,097,152 bytes, 1,048,576 at most are read)" in refusal(path)


@pytest.mark.parametrize("name", [EMBEDDINGS, "final_logits_bias"])
def test_values_that_are_no_numbers(
    name: str, theirs: Path, tensors: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are counted part by part, for torch makes copies of what it looks at."""
    path = theirs / "model.safetensors"
    monkeypatch.setattr("transduce.exchange.marian_import._AT_ONCE", 7)
    tensors[name][0, [0, 8, -1]] = torch.nan
    safetensors.torch.save_file(tensors, path)
    told = refusal(path)
    assert f"{name}: 3 of {tensors[name].numel():,} values are NaN or infinite; expected finite numbers: the" in told
    assert "the file is damaged, or the training diverged that it comes from. Get the model again" in told
    assert "preparing" not in told


def test_a_piece_that_is_no_text(theirs: Path) -> None:
    numbers = (theirs / "vocab.json").read_text()
    (theirs / "vocab.json").write_text(numbers.replace('"<unk>"', '"\\ud800": 2, "<unk>"', 1))
    with pytest.raises(RunError, match=r"vocab.json: '\\ud800' has half of a surrogate pair; expected Unicode text"):
        transduce.import_model(theirs, theirs / "run")


# -- Marian's archives -----------------------------------------------------------------------------------------------


def with_entry(path: Path, header: str, values: bytes = b"", **how: Any) -> None:
    text = header.encode() + b"\n"
    with zipfile.ZipFile(path, "a") as packed:
        packed.writestr("more.npy", b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text + values, **how)


def one(kind: str = "'<f4'", shape: str = "(1,)") -> str:
    return f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}"


@pytest.mark.parametrize(
    "header",
    [
        one(shape="((("),
        one(shape="'''"),
        "-" * 4000 + "1",
        "(" * 9000,
        one("','"),
        one("('a',)"),
        one("'|O'"),
        one("'<f3'"),
        "{[]: '<f4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 1: False, 'shape': (1,)}",
        one(shape="(-4,)"),
        "x" * 20_000,
    ],
)
def test_headers_that_python_would_choke_on(header: str, archive: Path) -> None:
    with_entry(archive, header, bytes(4))
    assert "cannot be read as arrays alone (ValueError: " in refusal(archive)


def test_a_shape_that_its_bytes_do_not_fill(archive: Path) -> None:
    with_entry(archive, one(shape="(1000000000000,)"), bytes(8))
    assert "expected 4,000,000,000,0" in refusal(archive)


@pytest.mark.parametrize(
    ("how", "told"),
    [(zipfile.ZIP_LZMA, "compressed in a way that numpy never does"), (zipfile.ZIP_BZIP2, "in a way that numpy never")],
)
def test_other_compressions(how: int, told: str, archive: Path) -> None:
    with_entry(archive, one(), bytes(4), compress_type=how)
    assert told in refusal(archive)


def test_an_encrypted_entry(archive: Path) -> None:
    data = bytearray(archive.read_bytes())
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    archive.write_bytes(data)
    assert "(RuntimeError: " in refusal(archive)


def test_an_archive_of_zeros(archive: Path) -> None:
    """An archive of 19 times its size was once read whole before its names were looked at."""
    with_entry(archive, one(shape="(1000000,)"), bytes(4_000_000), compress_type=zipfile.ZIP_DEFLATED)
    assert "bytes, more than weights can; it is no model" in refusal(archive)


def test_two_arrays_of_one_name(archive: Path) -> None:
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with_entry(archive, one(), bytes(4))
    assert "(ValueError: two arrays have one name)" in refusal(archive)


def test_only_the_settings_are_read_of_another_model(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_entry(archive, one(), bytes(4))
    read: list[str] = []
    whole = zipfile.ZipFile.read
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda self, entry: read.append(entry.filename) or whole(self, entry))
    assert "unknown more" in refusal(archive)
    assert read == ["special:model.yml.npy"]


def test_settings_that_are_no_settings(archive: Path) -> None:
    weights = marian_folders.arrays("post")
    np.savez(archive, **weights, **{"special:model.yml": np.zeros(1 << 21, np.int8)})
    assert "'special:model.yml' has 2,097,152 bytes, 1,048,576 at most are read" in refusal(archive)
    changed = marian_folders.settings("post", **{"transformer-ffn-activation": ["a"]})
    np.savez(archive, **weights, **{"special:model.yml": changed})
    assert "activation_function is \"['a']\", none of relu, gelu, swish, silu; no other can be" in refusal(archive)


def test_numbers_too_large_for_single_precision(archive: Path) -> None:
    weights: dict[str, Any] = marian_folders.arrays("post")
    weights["Wemb"] = weights["Wemb"].astype(np.float64) * 1e300
    np.savez(archive, **weights, **{"special:model.yml": marian_folders.settings("post")})
    assert "model.npz: Wemb: 1,920 of 1,9" in refusal(archive)


def test_fortran_order_and_compression_come_in(archive: Path, tmp_path: Path) -> None:
    expected = transduce.import_model(archive, tmp_path / "one")
    weights: dict[str, Any] = {name: np.asfortranarray(array) for name, array in marian_folders.arrays("post").items()}
    np.savez_compressed(archive, **weights, **{"special:model.yml": marian_folders.settings("post")})
    found = transduce.import_model(archive, tmp_path / "two")
    assert (found / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()
