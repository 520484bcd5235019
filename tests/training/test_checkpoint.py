"""Checkpoints that nothing interrupts: exact round trips, damage found and stepped over, old ones deleted."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from snapshots import make_snapshot, same

from transduce.core.errors import RunError
from transduce.training.checkpoint import (
    FileEntry,
    Manifest,
    Snapshot,
    clean_leftovers,
    describe,
    manifest_bytes,
    newest_good,
    prune,
    read_checkpoint,
    read_manifest,
    read_state,
    read_tensors,
    save_checkpoint,
)
from transduce.training.session import TrainingProgress
from transduce.training.weights import load_weights

FILES = {"model.safetensors", "ema.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with the checkpoints of steps 100 and 200."""
    for step in (100, 200):
        save_checkpoint(tmp_path, make_snapshot(step))
    return tmp_path


def newest_step(run: Path) -> int | None:
    found = newest_good(run)
    return found.step if found else None


def names(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").iterdir()}


def test_round_trip(run: Path) -> None:
    found = newest_good(run)
    assert found is not None
    assert (found.path, found.step, found.notes) == (run / "checkpoints" / "step-00000200", 200, ())
    assert same(read_checkpoint(found.path), make_snapshot(200))
    assert {path.name for path in found.path.iterdir()} == FILES
    assert (run / "checkpoints" / "latest").read_bytes() == b"step-00000200\n"
    assert names(run) == {"latest", "step-00000100", "step-00000200"}


def test_one_file_can_be_read_alone_or_taken_away(run: Path) -> None:
    path = run / "checkpoints" / "step-00000100"
    assert torch.equal(read_tensors(path, "ema")["half"], make_snapshot(100).tensors["ema"]["half"])
    assert load_weights(path / "model.safetensors")[0].keys() == {"embedding", "half", "count"}
    with pytest.raises(
        RunError, match=r"step-00000100: teacher.safetensors: not part of this checkpoint, which holds ema"
    ):
        read_tensors(path, "teacher")


def test_floats_of_the_state_return_to_the_bit(tmp_path: Path) -> None:
    generator = random.Random(7)
    numbers = [generator.uniform(-1, 1) * 10.0 ** generator.randint(-300, 300) for _ in range(1000)] + [5e-324, -0.0]
    path = save_checkpoint(tmp_path, Snapshot(1, {}, {"numbers": numbers}))
    assert [number.hex() for number in read_checkpoint(path).state["numbers"]] == [number.hex() for number in numbers]


@pytest.mark.parametrize("state", [{"pair": (1, 2)}, {"table": {1: 2}}])
def test_a_state_that_json_would_change_is_a_fault_of_ours(tmp_path: Path, state: dict[str, object]) -> None:
    with pytest.raises(TypeError, match="plain JSON"):
        save_checkpoint(tmp_path, Snapshot(1, {}, state))
    assert names(tmp_path) == set()


def test_numbers_that_are_not_finite_are_refused_and_leave_nothing(run: Path) -> None:
    bad = Snapshot(300, {"model": {"weight": torch.tensor([float("nan")])}}, {})
    with pytest.raises(RunError, match=r"step-00000300/model.safetensors: weight: 1 of 1 values are NaN or infinite"):
        save_checkpoint(run, bad)
    with pytest.raises(RunError, match=r"step-00000300/state.json: NaN or infinite number in the training state"):
        save_checkpoint(run, Snapshot(300, {}, {"loss": float("inf")}))
    assert names(run) == {"latest", "step-00000100", "step-00000200"}


def test_no_checkpoints_yet(tmp_path: Path) -> None:
    assert newest_good(tmp_path) is None
    (tmp_path / "checkpoints" / "step-00000100.tmp-99").mkdir(parents=True)
    assert newest_good(tmp_path) is None


def test_the_same_step_again_is_left_alone(run: Path) -> None:
    path = run / "checkpoints" / "step-00000200"
    before = {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in path.iterdir()}
    (run / "checkpoints" / "latest").write_text("step-00000100\n")
    assert save_checkpoint(run, make_snapshot(200)) == path
    assert {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in path.iterdir()} == before
    assert (run / "checkpoints" / "latest").read_text() == "step-00000200\n"


def test_the_same_step_damaged_is_replaced(run: Path) -> None:
    path = run / "checkpoints" / "step-00000200"
    (path / "model.safetensors").write_bytes(b"ruined")
    save_checkpoint(run, make_snapshot(200))
    assert same(read_checkpoint(path), make_snapshot(200))
    shutil.rmtree(path)
    path.write_text("a file where the folder should be")
    save_checkpoint(run, make_snapshot(200))
    assert same(read_checkpoint(path), make_snapshot(200))
    assert names(run) == {"latest", "step-00000100", "step-00000200"}


def expect_fall_back(run: Path, reason: str) -> None:
    """Step 200 must be refused by both readers and step 100 chosen, with a note that says why."""
    with pytest.raises(RunError):
        read_checkpoint(run / "checkpoints" / "step-00000200")
    found = newest_good(run)
    assert found is not None
    assert found.step == 100
    assert len(found.notes) == 1
    assert found.notes[0].startswith(f"step-00000200: {reason}")
    assert found.notes[0].endswith("; falling back to step-00000100")


def test_a_thousand_single_bit_flips_are_all_found(run: Path) -> None:
    files = sorted((run / "checkpoints" / "step-00000200").iterdir())
    contents = {file: file.read_bytes() for file in files}
    bits = [(file, bit) for file in files for bit in range(len(contents[file]) * 8)]
    flips = random.Random(20240817).sample(bits, 1000)
    assert {file.name for file, _ in flips} == FILES
    for file, bit in flips:
        damaged = bytearray(contents[file])
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        expect_fall_back(run, f"{file.name}: " + ("damaged" if file.name == "manifest.json" else "SHA-256 differs"))
        file.write_bytes(contents[file])
    assert newest_step(run) == 200


def test_truncations_are_all_found(run: Path) -> None:
    files = sorted((run / "checkpoints" / "step-00000200").iterdir())
    contents = {file: file.read_bytes() for file in files}
    cuts = [(file, length) for file in files for length in range(len(contents[file]))]
    chosen = random.Random(3).sample(cuts, 100) + [(file, 0) for file in files]
    for file, length in chosen:
        file.write_bytes(contents[file][:length])
        expect_fall_back(run, f"{file.name}: " + ("damaged" if file.name == "manifest.json" else f"{length:,} bytes, "))
        file.write_bytes(contents[file])


def test_missing_files_are_found(run: Path) -> None:
    for file in sorted((run / "checkpoints" / "step-00000200").iterdir()):
        content = file.read_bytes()
        file.unlink()
        expect_fall_back(run, f"{file.name}: missing")
        file.write_bytes(content)


def test_swapped_files_and_folders_are_found(run: Path) -> None:
    path = run / "checkpoints" / "step-00000200"
    model, ema, spare = path / "model.safetensors", path / "ema.safetensors", path / "spare"
    model.rename(spare), ema.rename(model), spare.rename(ema)
    expect_fall_back(run, "ema.safetensors: SHA-256 differs")
    ema.rename(spare), model.rename(ema), spare.rename(model)
    shutil.copy(run / "checkpoints" / "step-00000100" / "model.safetensors", model)
    expect_fall_back(run, "model.safetensors: SHA-256 differs")
    shutil.rmtree(path)
    shutil.copytree(run / "checkpoints" / "step-00000100", path)
    found = newest_good(run)
    assert found is not None
    assert found.notes == ("step-00000200: manifest.json: belongs to step 100; falling back to step-00000100",)


def test_a_manifest_of_another_format_or_with_paths_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = run / "checkpoints" / "step-00000200" / "manifest.json"
    original = manifest.read_bytes()
    for hostile in (b"[" * 100_000, b"{}", b"[]", b"null", b"\xff", original.replace(b"\n", b"\r\n")):
        manifest.write_bytes(hostile)
        expect_fall_back(run, "manifest.json: damaged")
    manifest.write_bytes(original)
    shutil.rmtree(manifest.parent)
    with monkeypatch.context() as patch:
        patch.setattr("transduce.training.checkpoint._FORMAT", 2)
        save_checkpoint(run, make_snapshot(200))
    expect_fall_back(run, "manifest.json: not of format 1; it was written by another version of transduce")


def test_a_state_that_is_no_mapping_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.training.checkpoint.read_listed", lambda *_: b"[]")
    with pytest.raises(RunError, match=r"state\.json: expected names and values"):
        read_checkpoint(run / "checkpoints" / "step-00000200")


def test_a_manifest_never_leads_out_of_its_folder(run: Path) -> None:
    outside = run / "secret"
    outside.write_bytes(b"x")
    path = run / "checkpoints" / "step-00000200"
    manifest = Manifest(200, {"../../secret": describe(b"x")})
    (path / "manifest.json").write_bytes(manifest_bytes(manifest))
    expect_fall_back(run, "manifest.json: damaged")


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "a/b", ""], ids=ascii)
@pytest.mark.parametrize("size", [1, "x", -1, 1.5, True])
@pytest.mark.parametrize("sha256", [describe(b"x").sha256, 5])
def test_a_manifest_that_is_sealed_again_is_still_checked(run: Path, name: str, size: Any, sha256: Any) -> None:
    path = run / "checkpoints" / "step-00000200"
    manifest = Manifest(200, {name: FileEntry(size, sha256)})
    (path / "manifest.json").write_bytes(manifest_bytes(manifest))
    expect_fall_back(run, "manifest.json: damaged")


@pytest.mark.parametrize("state", [b'{"step": "x"}', b'{"step": true}'], ids=["a word", "a truth"])
def test_a_state_of_other_kinds_is_refused(run: Path, state: bytes) -> None:
    path = run / "checkpoints" / "step-00000200"
    with pytest.raises(
        RunError, match=r"step-00000200: its state has 'step' as no run writes it. This checkpoint cannot"
    ):
        TrainingProgress.of_state(json.loads(state), path)


@pytest.mark.parametrize(
    "state",
    [b"{", b"[" * 200_000, b'{"step": ' + b"9" * 5000 + b"}", b"\xff", b"[1]", b'{"other": 1}'],
    ids=["open", "deep", "long number", "no text", "a list", "unknown"],
)
def test_a_state_that_is_sealed_again_is_still_checked(run: Path, state: bytes) -> None:
    path = run / "checkpoints" / "step-00000200"
    (path / "state.json").write_bytes(state)
    files = {**read_manifest(path).files, "state.json": describe(state)}
    (path / "manifest.json").write_bytes(manifest_bytes(Manifest(200, files)))
    with pytest.raises(RunError, match=r"step-00000200: (state\.json: .*|its state has 'other' as no run writes it)"):
        TrainingProgress.of_state(read_state(path), path)


def test_a_file_that_is_too_large_is_not_read(run: Path) -> None:
    path = run / "checkpoints" / "step-00000200"
    os.truncate(path / "state.json", 1 << 40)  # sparse
    expect_fall_back(run, "state.json: 1,099,511,627,776 bytes, expected")


@pytest.mark.parametrize(
    "content", [b"step-00000100\n", b"step-00000900\n", b"../../etc\n", b"\xff\x00", b"", b"x" * 9999]
)
def test_a_wrong_latest_is_only_noted(run: Path, content: bytes) -> None:
    (run / "checkpoints" / "latest").write_bytes(content)
    found = newest_good(run)
    assert found is not None
    assert found.step == 200
    assert len(found.notes) == 1
    assert found.notes[0].startswith("latest names ")
    assert found.notes[0].endswith("; the newest complete checkpoint is step-00000200")
    assert len(found.notes[0]) < 400


def test_a_missing_latest_is_only_noted(run: Path) -> None:
    (run / "checkpoints" / "latest").unlink()
    found = newest_good(run)
    assert found is not None
    assert found.notes == ("latest is missing; the newest complete checkpoint is step-00000200",)


def test_no_good_one_is_an_error_that_lists_them(run: Path) -> None:
    (run / "checkpoints" / "step-00000200" / "state.json").unlink()
    (run / "checkpoints" / "step-00000100" / "manifest.json").write_text("{}")
    with pytest.raises(RunError) as caught:
        newest_good(run)
    assert str(caught.value) == (
        f"{run}/checkpoints: none of the 2 checkpoints can be used: step-00000200: state.json: missing; "
        "step-00000100: manifest.json: damaged. Restore one of them from a copy, or move the folder away to train "
        "from the start."
    )


def test_a_damaged_checkpoint_cannot_be_read_by_name(run: Path) -> None:
    path = run / "checkpoints" / "step-00000200"
    (path / "state.json").unlink()
    with pytest.raises(
        RunError, match=r"step-00000200: state.json: missing. This checkpoint cannot be used; take another"
    ):
        read_checkpoint(path)
    with pytest.raises(RunError, match=r"nowhere: manifest.json: missing"):
        read_checkpoint(run / "nowhere")


def test_prune_keeps_what_is_requested_and_what_latest_names(run: Path) -> None:
    for step in (300, 400):
        save_checkpoint(run, make_snapshot(step))
    (run / "checkpoints" / "notes.txt").write_text("mine")
    prune(run, {100, 300})
    assert names(run) == {"latest", "notes.txt", "step-00000100", "step-00000300", "step-00000400"}
    prune(run, set())
    assert names(run) == {"latest", "notes.txt", "step-00000400"}


def test_leftovers_of_killed_runs_are_removed_and_nothing_else(run: Path) -> None:
    (run / "checkpoints" / "step-00000300.tmp-4711").mkdir()
    (run / "checkpoints" / "step-00000300.tmp-4711" / "model.safetensors").write_text("half")
    (run / "checkpoints" / "latest.tmp-12").write_text("step")
    (run / "config.toml.tmp-12").write_text("half")
    (run / "my.tmp-notes").write_text("not ours")
    clean_leftovers(run)
    assert names(run) == {"latest", "step-00000100", "step-00000200"}
    assert {path.name for path in run.iterdir()} == {"checkpoints", "my.tmp-notes"}
    clean_leftovers(run / "checkpoints")


def test_large_step_numbers_still_sort_as_numbers(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000):
        save_checkpoint(tmp_path, Snapshot(step, {}, {}))
    assert newest_step(tmp_path) == 100_000_000


def test_the_manifest_names_versions_sizes_and_hashes(run: Path) -> None:
    document = json.loads((run / "checkpoints" / "step-00000200" / "manifest.json").read_bytes())
    assert document["versions"].keys() == {"python", "safetensors", "torch", "transduce"}
    assert document["files"].keys() == FILES - {"manifest.json"}
    state = (run / "checkpoints" / "step-00000200" / "state.json").stat()
    assert document["files"]["state.json"]["size"] == state.st_size
