"""Files of strangers: a pipe is not waited on, and what has no end is not read to it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transduce.core.errors import UserError
from transduce.core.untrusted import LARGEST, open_regular, read_small
from transduce.evaluation.plot import plot, read_history
from transduce.text.tokenizer import Tokenizer
from transduce.training.checkpoint import find_fault
from transduce.translate.directions import scores_of
from transduce.translate.loading import _open_reading
from transduce.translate.model_folder import CARD, Converted, read_card

READERS: dict[str, Callable[[Path], Any]] = {
    "native.json": Converted.read,
    "scores.json": scores_of,
    "metrics.jsonl": lambda folder: read_history(folder, "run"),
    "reader.json": lambda folder: _open_reading([folder], lambda _: []),
    "shared.model": lambda folder: Tokenizer.load(folder / "shared.model"),
    CARD: read_card,
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused_at_once(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=f"{re.escape(name)}: .*not a regular file"):
        READERS[name](tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_a_file_without_end_is_not_read(name: str, tmp_path: Path) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(1 << 40)  # sparse: it takes no room
    with pytest.raises(UserError, match=f"{re.escape(name)}: .*larger than [0-9,]+ bytes"):
        READERS[name](tmp_path)


def test_a_checkpoint_of_pipes_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    assert find_fault(tmp_path, 1) == "manifest.json: cannot be read: not a regular file"


def test_devices_are_refused_and_the_largest_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(Path("/dev/zero"))
    (tmp_path / "full").write_bytes(bytes(LARGEST))
    assert len(read_small(tmp_path / "full")) == LARGEST


def test_a_report_nested_without_end_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("[" * 200_000 + "\n{}\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl:1: not JSON \(nested too deeply\)"):
        read_history(tmp_path, "run")


def test_a_config_that_is_a_pipe_does_not_stop_a_plot(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.toml")
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": 2}\n')
    plot([tmp_path], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").is_file()


def test_a_card_that_is_no_text_is_reported(tmp_path: Path) -> None:
    (tmp_path / CARD).write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"README\.md: cannot be read .*expected text in UTF-8"):
        read_card(tmp_path)
