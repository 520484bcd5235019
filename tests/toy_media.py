"""Recordings and pictures that a program makes: a tone for each word, a drawn digit for each numeral."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

RATE = 8000
TONES = {"low": 400.0, "mid": 1000.0, "high": 2400.0, "both": 0.0}
Samples = npt.NDArray[np.float32]


def tone(word: str, seconds: float, seed: int, rate: int = RATE) -> Samples:
    """The word's tone in a little noise, fading in and out."""
    generator = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    pitches = [TONES["low"], TONES["high"]] if word == "both" else [TONES[word]]
    sound = sum(np.sin(2 * np.pi * pitch * generator.uniform(0.97, 1.03) * time) for pitch in pitches)
    fade = np.minimum(1, np.minimum(time, time[::-1]) * 40)
    return np.asarray(0.3 * sound * fade + generator.normal(0, 0.01, len(time)), np.float32)


def sentence(words: Sequence[str], seed: int, rate: int = RATE) -> Samples:
    """Several tones with silence between them."""
    generator = np.random.default_rng(seed)
    parts = []
    for number, word in enumerate(words):
        parts += [tone(word, generator.uniform(0.1, 0.15), seed * 100 + number, rate)]
        parts += [np.asarray(generator.normal(0, 0.002, int(generator.uniform(0.04, 0.08) * rate)), np.float32)]
    return np.concatenate(parts)


def write_speech(folder: Path, name: str, count: int, seed: int, most: int = 3) -> Path:
    """Recordings of one to `most` words, and their manifest; gives its path."""
    import soundfile

    generator = np.random.default_rng(seed)
    (folder / name).mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(count):
        words = generator.choice(list(TONES), size=generator.integers(1, most + 1)).tolist()
        file = f"{name}/{number:03}.{'flac' if number % 2 else 'wav'}"
        soundfile.write(folder / file, sentence(words, seed * 1000 + number), RATE)
        lines.append(f"{file}\t{' '.join(words)}\n")
    (folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
    return folder / f"{name}.tsv"


def draw(text: str, seed: int = 0, height: int = 16) -> npt.NDArray[np.uint8]:
    """Numerals in white on black, a little out of place."""
    from PIL import Image, ImageDraw

    generator = np.random.default_rng(seed)
    picture = Image.new("L", (8 * len(text) + 4, height), 0)
    for number, letter in enumerate(text):
        place = (8 * number + 2 + int(generator.integers(0, 2)), int(generator.integers(0, 4)))
        ImageDraw.Draw(picture).text(place, letter, fill=int(generator.integers(180, 256)))
    return np.asarray(picture, np.uint8)


def write_idx(path: Path, items: npt.NDArray[np.uint8]) -> None:
    """An idx file of bytes, gzipped where its name says so."""
    head = bytes([0, 0, 8, items.ndim]) + np.array(items.shape, ">u4").tobytes()
    content = head + items.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
