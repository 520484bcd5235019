"""Atomic files, and the operating system's errors in words."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from cli_runner import Run, refused
from toy_model import Toy

from transduce.core.durable import disk_errors, remove, require_space, write_text
from transduce.core.errors import RunError


def test_text_is_written_as_given_and_replaces_the_old(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    for text in ("first\r\n\u2028", "zweite Fassung: größer\n", ""):
        write_text(path, text)
        assert path.read_bytes() == text.encode("utf-8")
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_content_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "latest"
    write_text(path, "old")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(RunError, match=r"writing latest failed: Input/output error\. Check that the folder"):
                write_text(path, "new")
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        write_text(tmp_path / "gone" / "README.md", "text")
    assert str(caught.value).startswith(f"{tmp_path}/gone: writing README.md failed: No such file or directory: ")


def test_a_file_in_the_place_of_a_folder_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "valid.en").write_text("one\n")
    for folder in (tmp_path / "valid.en", tmp_path / "valid.en" / "runs"):
        with pytest.raises(RunError) as caught, disk_errors(folder, "making the run folder", needed=1):
            folder.mkdir(parents=True, exist_ok=True)
        assert str(caught.value).startswith(f"{folder}: making the run folder failed: ")
        assert str(caught.value).endswith(
            ". A file has the name of the folder to write: choose another folder, or rename that file."
        )


def test_a_folder_that_cannot_be_made_never_was_there(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught, disk_errors(tmp_path / "x", "making the run folder", needed=1):
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), "/proc/x")
    assert str(caught.value) == (
        f"{tmp_path}/x: making the run folder failed: No such file or directory: /proc/x. The folder cannot be created"
        " there: choose another path, one that you may write to."
    )


@pytest.mark.parametrize("name", ["no/x.png", "file/x.png"])
@pytest.mark.parametrize("command", ["translate", "plot", "inspect"])
def test_no_command_makes_the_folder_of_a_file(
    command: str, name: str, toy: Toy, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is mistyped more often than a folder is forgotten."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("one\n")
    words = [command, "five", "-m", toy.model, "--to", "de"] if command == "inspect" else [command, toy.model]
    said = refused(run(*words, "-o", name, stdin=b"five\n"))
    expected = {
        "no/x.png": "No such file or directory; the folder no does not exist: create it first, or choose another path",
        "file/x.png": "Not a directory; file is a file, not a folder",
    }
    assert said.startswith(f"{name}: ")
    assert said.endswith(expected[name])
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("code", "words"), [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "the disk quota is used up")]
)
def test_full_disks_say_what_is_needed_and_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(4321))
    with pytest.raises(RunError) as caught, disk_errors(tmp_path, "saving", needed=1_234_567):
        raise OSError(code, os.strerror(code))
    assert str(caught.value) == (
        f"{tmp_path}: {words} (saving): 1,234,567 bytes needed, 4,321 free. "
        "What was there before is untouched. Free some space there, then run the same command again."
    )


class Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def test_a_full_disk_whose_folder_is_gone_still_has_free_bytes(tmp_path: Path) -> None:
    with (
        pytest.raises(RunError, match=r"10 bytes needed, [1-9][\d,]* free"),
        disk_errors(tmp_path / "a" / "b", "x", 10),
    ):
        raise OSError(errno.ENOSPC, "full")


def test_space_is_required_before_writing(tmp_path: Path) -> None:
    require_space(tmp_path, 1)
    with pytest.raises(OSError, match="No space left"):
        require_space(tmp_path, 1 << 60)


def test_remove_takes_files_folders_and_links_but_not_what_they_point_to(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside").write_text("x")
    stale = tmp_path / f"folder.tmp-{os.getpid()}"
    stale.mkdir()
    (stale / "left by a process with our id").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("link", "folder", "file"):
        remove(tmp_path / name)
    assert list(tmp_path.iterdir()) == [target]
