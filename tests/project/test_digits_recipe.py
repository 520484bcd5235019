"""recipes/digits/make.py: on made recordings and pictures, and on the real sets where they are."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from toy_media import RATE, draw, tone, write_idx

from transduce.data.images import Images, idx_items
from transduce.data.speech import read_samples

soundfile = pytest.importorskip("soundfile", reason="recordings are read by it: pip install transduce[senses]")
ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def make(*words: str) -> None:
    command = [sys.executable, str(ROOT / "recipes" / "digits" / "make.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def pairs(path: Path) -> list[tuple[Path, str]]:
    lines = (line.split("\t") for line in path.read_text(encoding="utf-8").split("\n")[:-1])
    return [(path.parent / file, text) for file, text in lines]


def test_spoken_digits_and_strings_of_them(tmp_path: Path) -> None:
    (tmp_path / "recordings").mkdir()
    for digit in range(3):
        for speaker in ("ann", "bob", "theo"):
            for index in range(10):
                file = tmp_path / "recordings" / f"{digit}_{speaker}_{index}.wav"
                soundfile.write(file, tone("low", 0.1, digit), RATE)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "recordings", "recordings")
    make("speech", str(tmp_path / "a.tar"), str(tmp_path / "out"), "--lines", "20")
    found = {path.stem: pairs(path) for path in (tmp_path / "out").glob("*.tsv")}
    assert {name: len(lines) for name, lines in found.items()} == {
        "own.train": 18,
        "own.valid": 27,
        "own.test": 45,
        "speaker.train": 30,
        "speaker.valid": 30,
        "speaker.test": 30,
        "strings.train": 20,
        "strings.valid": 1,
        "strings.test": 1,
    }
    assert all(f"{WORDS.index(text)}_" in path.name for path, text in found["own.train"])
    assert {path.stem.split("_")[1] for path, _ in found["speaker.test"]} == {"theo"}
    assert "theo" not in {path.stem.split("_")[1] for path, _ in found["speaker.train"]}
    assert not {path for path, _ in found["own.test"]} & {path for path, _ in found["own.train"]}
    for path, text in found["strings.train"]:
        samples, rate = read_samples(str(path))
        count = len(text.split())
        assert 3 <= count <= 8
        assert rate == RATE
        assert 0.1 * count <= len(samples) / rate <= 0.1 * count + (count + 1) / 3


def test_written_digits_and_strips_of_them(tmp_path: Path) -> None:
    for stem, count in (("train", 1100), ("t10k", 50)):
        pictures = np.zeros((count, 28, 28), np.uint8)
        pictures[:, 5:21, 8:20] = np.stack([draw(str(n % 10), n) for n in range(count)])
        write_idx(tmp_path / f"{stem}-images-idx3-ubyte.gz", pictures)
        write_idx(tmp_path / f"{stem}-labels-idx1-ubyte.gz", (np.arange(count) % 10).astype(np.uint8))
    make("images", str(tmp_path), str(tmp_path / "out"), "--lines", "30")
    single = {split: pairs(tmp_path / "out" / f"single.{split}.tsv") for split in ("train", "valid", "test")}
    assert [len(lines) for lines in single.values()] == [100, 1000, 50]
    images = Images()
    path, text = single["train"][37]
    assert text == "seven"
    expected = images.frames(idx_items(str(tmp_path / "train-images-idx3-ubyte.gz"))[37])
    np.testing.assert_array_equal(images.read(str(path)), expected)
    strips = pairs(tmp_path / "out" / "strips.train.tsv")
    assert len(strips) == 30
    for path, text in strips:
        height, width, _ = images.load(str(path)).shape
        assert height == 28
        assert 1 <= len(text) <= 6
        assert 22 * len(text) <= width <= 34 * len(text) + 20


@pytest.mark.skipif(
    not (DATA / "fsdd").is_dir(), reason="../shared/data/fsdd is not here: the real recordings untested"
)
@pytest.mark.slow
def test_the_real_recordings(tmp_path: Path) -> None:
    make("speech", str(DATA / "fsdd" / "recordings.tar.xz"), str(tmp_path), "--lines", "5")
    assert len(pairs(tmp_path / "own.test.tsv")) == 300
    assert len(pairs(tmp_path / "own.train.tsv")) == 2520
    assert len(pairs(tmp_path / "speaker.test.tsv")) == 500


@pytest.mark.skipif(not (DATA / "mnist").is_dir(), reason="../shared/data/mnist is not here: the real images untested")
@pytest.mark.slow
def test_the_real_images(tmp_path: Path) -> None:
    make("images", str(DATA / "mnist"), str(tmp_path), "--lines", "5")
    assert len(pairs(tmp_path / "single.test.tsv")) == 10000
    assert len(pairs(tmp_path / "single.train.tsv")) == 19000
