"""Model folders from anywhere: each way in which benchmarks/hostile_damage.py damages them ends in words.

The harness also runs by itself with as many folders as one likes: benchmarks/hostile_folders.py.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import hostile_folders
from hostile_damage import Case, good_folders, shared_bytes

import transduce
from transduce.core.errors import RunError, UserError
from transduce.engines.native.library import built

needs_core = pytest.mark.skipif(built() is None, reason="the core is not built: make native")
pytestmark = needs_core


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    good_folders(folder, 32)
    return folder


@pytest.fixture(params=["int8", "float"])
def case(request: pytest.FixtureRequest, base: Path, tmp_path: Path) -> Case:
    """A converted folder, whole, to be damaged."""
    shutil.copytree(base / request.param, tmp_path / "model")
    return Case(0, tmp_path / "model", request.param)


def refusal(folder: Path | list[Path], engine: str = "torch", **options: object) -> str:
    with pytest.raises(UserError) as caught:
        transduce.load(folder, "cpu", engine=engine, **options).translate(["one"])  # type: ignore[arg-type]
    return str(caught.value)


def test_whole_folders_are_opened_by_both_engines(base: Path) -> None:
    for kind, engine in (
        ("int8", "native"),
        ("int8", "torch"),
        ("float", "native"),
        ("float", "torch"),
        ("run", "torch"),
    ):
        hostile_folders.use(base / kind, engine)


def test_a_flipped_bit_is_found_by_torch_too(case: Case, base: Path) -> None:
    """On every way that leads to the converted weights: alone, in 16 bits, in an ensemble, behind the native engine."""
    data = bytearray(case.weights.read_bytes())
    data[-40] ^= 1
    case.weights.write_bytes(data)
    told = "model.native: damaged, cut short, or no weight file: its content does not match its SHA-256"
    assert told in refusal(case.folder)
    assert told in refusal(case.folder, precision="bf16")
    assert told in refusal([base / "run", case.folder], engine="auto")
    assert told in refusal(case.folder, engine="auto")


@pytest.mark.parametrize(
    ("key", "number"), [("layers", 1_000_000), ("d_model", 10**9), ("d_ff", 10**12), ("longest", 10**15), ("heads", 4)]
)
def test_a_config_of_another_model_is_refused_before_it_is_built(case: Case, key: str, number: int) -> None:
    config = case.folder / "config.toml"
    config.write_text(re.sub(rf"(?m)^{key} = \d+$", f"{key} = {number}", config.read_text()))
    text = refusal(case.folder)
    assert "config.toml beside it describes another model than these weights are: " in text or "expected" in text
    assert f"{number:,}" in text or f"got {number}" in text


def test_layers_that_are_not_there_are_not_built(case: Case) -> None:
    """A thousand, or a million, in the config and in the weights' own numbers."""
    good, count = case.table()
    names = [bytes(good[64 + 64 * i : 104 + 64 * i]).rstrip(b"\0") for i in range(count)]
    config = case.folder / "config.toml"
    text = config.read_text()
    for layers, by_torch, natively in (
        (1000, "2,000 layers, and only", "lacks the tensor"),
        (1_000_000, "layers: expected at most 1,024, got 1000000", "is 1000000, and must be from 1 to 1024"),
    ):
        data = bytearray(good)
        for stack in (b"encoder", b"decoder"):
            offset = struct.unpack_from("<Q", data, 64 + 64 * names.index(stack) + 56)[0]
            struct.pack_into("<i", data, offset, layers)
        case.weights.write_bytes(data)
        case.reseal()
        config.write_text(text.replace("layers = 2", f"layers = {layers}"))
        assert by_torch in refusal(case.folder)
        assert natively in refusal(case.folder, "native")


class Last(random.Random):
    """Chooses the last of all."""

    def choice(self, seq: Any) -> Any:
        return seq[-1]


def test_positions_that_are_not_stored_are_no_reason_for_a_large_model(case: Case) -> None:
    """A table of zeros is left out of the file, so that nothing there tells how long it is."""
    data, count = case.table()
    names = [bytes(data[64 + 64 * i : 104 + 64 * i]).rstrip(b"\0") for i in range(count)]
    for stack in (b"encoder", b"decoder"):
        offset = struct.unpack_from("<Q", data, 64 + 64 * names.index(stack) + 56)[0]
        struct.pack_into("<i", data, offset + 4 * 6, 1 << 24)
        struct.pack_into("<i", data, offset + 4 * 13, 0)
    case.weights.write_bytes(data)
    case.reseal()
    config = case.folder / "config.toml"
    config.write_text(re.sub(r"(?m)^longest = 64$", f"longest = {1 << 24}", config.read_text()))
    assert "it would have 4,29" in refusal(case.folder)


def test_a_small_file_whose_layers_share_their_bytes_is_no_large_model(case: Case) -> None:
    assert shared_bytes(case, Last()) == "200"
    hostile_folders.use(case.folder, "native")  # which reads them where they are
    text = refusal(case.folder)
    assert re.search(r"another model than these weights are: it would have [\d,]+ bytes, and the file has", text)


def test_a_config_that_the_engine_has_never_run_is_no_model_of_these_weights(case: Case) -> None:
    config = case.folder / "config.toml"
    text = config.read_text()
    section = text.index("[model.encoder]")
    config.write_text(text[:section] + '[model.encoder]\nkind = "recurrent"\n' + text[text.index("[model.decoder]") :])
    assert "model.encoder is 'recurrent', and only 'transformer' is run" in refusal(case.folder)


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        ("output.bias", 1.0, r"has a tensor 'output\.bias' whose padding is not -infinity"),
        ("encoder.0.outer.bias", 1.0, r"has a tensor '[\w.]+\.bias' whose padding is not 0"),
    ],
)
def test_both_engines_refuse_padding_that_is_none(case: Case, place: str, value: float, told: str) -> None:
    data, count = case.table()
    names = [bytes(data[64 + 64 * i : 104 + 64 * i]).rstrip(b"\0").decode() for i in range(count)]
    rows = struct.unpack_from("<I", data, 64 + 64 * names.index(place.removesuffix(".bias")) + 44)[0]
    offset = struct.unpack_from("<Q", data, 64 + 64 * names.index(place) + 56)[0]
    struct.pack_into("<f", data, offset + 4 * rows, value)
    case.weights.write_bytes(data)
    case.reseal()
    for engine in ("native", "torch"):
        assert re.search(told, refusal(case.folder, engine))


def test_both_engines_say_the_same_of_damaged_tables(case: Case) -> None:
    good, count = case.table()
    place = 64 + 64 * (count // 2)
    changes = {
        "is no weight file of the native engine": (0, b"safetens"),
        "has format 7, and this program reads 1": (8, struct.pack("<I", 7)),
        "has impossible sizes, or leaves the file": (place + 40, struct.pack("<I", 9)),
        "occurs twice": (place, bytes(good[place + 64 : place + 104])),
        "lacks the tensor": (place, b"renamed\0"),
    }
    for told, (where, values) in changes.items():
        data = bytearray(good)
        data[where : where + len(values)] = values
        case.weights.write_bytes(data)
        case.reseal()
        for engine in ("native", "torch"):
            assert told in refusal(case.folder, engine), (told, engine)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("config.toml", "deep = " + "[" * 50_000 + "]" * 50_000, "config.toml: not TOML: nested too deeply"),
        ("config.toml", ".".join("a" * 50_000) + " = 1", "config.toml: not TOML: nested too deeply"),
        ("config.toml", '"=".' + ".".join("a" * 50_000) + " = 1", "config.toml: not TOML: nested too deeply"),
        ("config.toml", '"\\"=" . ' * 50_000 + "a = 1", "config.toml: not TOML: nested too deeply"),
        ("config.toml", "x = {" + " . ".join("a" * 50_000) + " = 1}", "config.toml: not TOML: nested too deeply"),
        ("config.toml", "seed = " + "9" * 5000, "config.toml: not TOML: "),
        ("config.toml", "seed = 0x" + "F" * 5000, "config.toml: not TOML: a number of more than 64 bits"),
        ("config.toml", "#" * (2 << 20), "config.toml: not TOML: larger than 1,048,576 bytes"),
        ("native.json", "[" * 50_000, r"native.json: cannot be read \(nested too deeply\)"),
        ("native.json", "9" * 5000, "native.json: cannot be read"),
        ("native.json", '{"a": 1, "a": 2}', r"native.json: cannot be read \(a name is given twice\)"),
    ],
    ids=[
        "deep",
        "dots",
        "dots quoted",
        "dots escaped",
        "dots inline",
        "digits",
        "hex",
        "large",
        "json deep",
        "json digits",
        "json twice",
    ],
)
def test_texts_that_python_s_own_readers_do_not_survive(case: Case, name: str, text: str, told: str) -> None:
    (case.folder / name).write_text(text)
    for engine in ("native", "torch"):
        assert re.search(told, refusal(case.folder, engine))


def test_pieces_that_are_no_text(case: Case) -> None:
    path = case.folder / "tokenizer" / "shared.model"
    data = bytearray(path.read_bytes())
    for word in ("▁one", "▁two", "▁three", "▁four", "▁five", "▁six", "▁seven", "▁eight", "▁nine", "▁ten"):
        place = data.find(word.encode())
        data[place : place + 3] = b"\xff\xfe\xfd"
    path.write_bytes(data)
    case.seal_tokenizer()
    for engine in ("native", "torch"):
        translator = transduce.load(case.folder, "cpu", engine=engine)
        with pytest.raises(UserError, match=r"shared\.model: has pieces that are no text"):
            translator.tokenizers.source.pieces(range(translator.tokenizers.source.size))
        with pytest.raises(UserError, match=r"shared\.model: has pieces that are no text"):
            translator.tokenizers.source.decode(range(translator.tokenizers.source.size))


def test_a_sparse_file_of_50_gigabytes_is_refused_without_being_read(base: Path, tmp_path: Path) -> None:
    for kind, name in (("run", "model.safetensors"), ("int8", "model.native")):
        folder = tmp_path / kind
        shutil.copytree(base / kind, folder)
        os.truncate(folder / name, 50 << 30)
        assert f"{name}: damaged" in refusal(folder)
    data = bytearray((base / "int8" / "model.native").read_bytes())
    data[16:24] = struct.pack("<Q", 50 << 30)
    (tmp_path / "int8" / "model.native").write_bytes(data)
    os.truncate(tmp_path / "int8" / "model.native", 50 << 30)
    for engine in ("native", "torch"):
        assert "model.native: damaged" in refusal(tmp_path / "int8", engine)


def test_the_longest_source_of_a_run_is_a_number(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base / "run", tmp_path / "run")
    case = Case(0, tmp_path / "run", "run")
    header = case.header()
    header["__metadata__"]["longest"] = "many"
    case.put_header(header)
    assert "model.safetensors: its longest source is 'many', expected a number" in refusal(tmp_path / "run")


@pytest.mark.slow
def test_damaged_folders_by_the_dozen(base: Path) -> None:
    """In a process of their own, as by the thousand."""
    tally = hostile_folders.run(base, 60, 1, first=10**6)
    assert tally.clean, hostile_folders.summary(tally)
    assert tally.folders == 60
    assert tally.refused["torch"] > 20


def test_the_harness_sees_crashes_and_tracebacks(base: Path, tmp_path: Path) -> None:
    """It would not tell us anything if it could not fail."""
    worker = hostile_folders.Worker.__new__(hostile_folders.Worker)
    worker.what, tally = "folder 3 (int8: flips)", hostile_folders.Tally()
    worker.process = SimpleNamespace(pid=os.getpid())  # type: ignore[assignment]
    worker.hear(b'{"end": 3, "results": {"torch": ["traceback", "KeyError"]}, "above": 99999999}', tally)
    assert not tally.clean
    assert (len(tally.tracebacks), len(tally.greedy), tally.folders) == (1, 1, 1)
    assert "KeyError" in hostile_folders.summary(tally)
    assert np.isfinite(tally.most)
    with pytest.raises(RunError):
        hostile_folders.use(tmp_path, "torch")
