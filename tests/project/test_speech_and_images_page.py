"""The commands and Python of docs/speech-and-images.md run as printed, on made recordings and pictures."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import toys
from cli_runner import Run
from toy_media import draw, write_idx, write_speech

from transduce.core import config as configs
from transduce.experiment import Config
from transduce.search.settings import Joint

for package in ("soundfile", "soxr", "PIL", "jiwer"):
    pytest.importorskip(package, reason="docs/speech-and-images.md shows it: pip install transduce[senses]")
DOCS = (Path(__file__).parents[2] / "docs" / "speech-and-images.md").read_text(encoding="utf-8")
SHORT = [
    *("training.steps=4", "training.save_every=4", "training.device=cpu", "data.tokens=2000", "validation.every=4"),
    *("model.d_model=32", "model.encoder.layers=1", "model.decoder.layers=1", "training.threads=1"),
    *("search.limits.longest=20", "validation.search.limits.longest=20"),
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOCS, flags=re.MULTILINE | re.DOTALL)


def write_files() -> None:
    """What the page speaks of, in the folder where we are."""
    from PIL import Image

    for seed, (name, count) in enumerate((("train", 20), ("valid", 4), ("test", 4))):
        write_speech(Path(), name, count, seed, most=2)
    Path("recordings").mkdir()
    shutil.copyfile("test/000.wav", "recordings/0001.wav")
    shutil.copyfile("test/001.flac", "recordings/0002.flac")
    Path("pictures").mkdir()
    for number in range(10):
        Image.fromarray(draw(str(number), number)).save(f"pictures/{number}.png")
    lines = "".join(f"pictures/{number}.png\t{number}\n" for number in range(10))
    Path("pictures.tsv").write_text(lines, encoding="utf-8")
    write_idx(Path("digits.idx3.gz"), np.stack([draw("3", 1)]))


@pytest.mark.slow
def test_commands_and_python_run_as_printed(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files()
    commands = [line for block in blocks("sh") for line in block.strip().split("\n") if not line.startswith("pip ")]
    assert len(commands) == 10
    for line in commands:
        words = shlex.split(line)[1:]
        words = [*words[:2], *toys.latest(*SHORT, *words[2:])] if words[0] == "train" else words
        words = [*words, "workers=1"] if words[0] == "prepare" else words
        ran = run(*words)
        assert ran.code == 0, (line, ran.err)
    assert len(Path("transcripts.txt").read_text(encoding="utf-8").split("\n")) == 5
    programs = blocks("python")
    assert len(programs) == 2
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for program in programs:
            exec(compile(program, "docs/speech-and-images.md", "exec"), {})
    assert "(0, 4) {'seconds': 0.04, 'until': 0.08}" in printed.getvalue()


def test_the_settings_it_shows_are_settings(tmp_path: Path) -> None:
    (block,) = blocks("toml")
    (tmp_path / "a.toml").write_text(block, encoding="utf-8")
    config = configs.load(Config, tmp_path / "a.toml")
    assert config.search == Joint()
    model = config.model
    assert model.heads[0].kind == "ctc"
    assert model.source.width == 40
