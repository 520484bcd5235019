"""Write manifests of digit tasks: spoken (Free Spoken Digit Dataset) and handwritten (MNIST), single and in lines.

    python recipes/digits/make.py speech ../shared/data/fsdd/recordings.tar.xz data/digits/speech
    python recipes/digits/make.py images ../shared/data/mnist data/digits/images

A manifest is a TSV file: path (relative to the manifest's folder), text. Strings and strips are made only of the single
digits of their own split, so held-out digits stay held out. The same arguments give the same files.
"""

from __future__ import annotations

import argparse
import os
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transduce.data.images import idx_items

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SHORTEST, LONGEST = 3, 8  # digits of a string
TEST_INDEX, VALID_INDEX = (
    range(5),
    range(5, 8),
)  # of the recordings of each digit by each speaker; 0 to 4 is the set's own
VALID_IMAGES = 1000  # the last of the training images
Pixels = npt.NDArray[np.uint8]
Samples = npt.NDArray[np.int16]


def write_manifest(path: Path, pairs: Iterable[tuple[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{file}\t{text}\n" for file, text in pairs), encoding="utf-8")


# -- speech ------------------------------------------------------------------------------------------------------------


def make_speech(archive: Path, output: Path, speaker: str, strings: int) -> None:
    """Unpack the recordings (`digit_speaker_index.wav`) and write the manifests of three corpora."""
    import soundfile

    wav = output / "wav"
    wav.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and member.name.endswith(".wav"):
                member.name = Path(member.name).name
                tar.extract(member, wav, filter="data")
    found = sorted((name.stem.split("_"), name.name) for name in wav.glob("*.wav"))
    recordings = [(int(digit), who, int(index), f"wav/{name}") for (digit, who, index), name in found]
    splits = {
        "test": [one for one in recordings if one[2] in TEST_INDEX],
        "valid": [one for one in recordings if one[2] in VALID_INDEX],
        "train": [one for one in recordings if one[2] not in (*TEST_INDEX, *VALID_INDEX)],
    }
    others = [one for one in recordings if one[1] != speaker]
    held_out = {
        "test": [one for one in recordings if one[1] == speaker],
        "valid": [one for one in others if one[2] in TEST_INDEX],
        "train": [one for one in others if one[2] not in TEST_INDEX],
    }
    for kind, parts in (("own", splits), ("speaker", held_out)):
        for split, members in parts.items():
            write_manifest(output / f"{kind}.{split}.tsv", [(path, WORDS[digit]) for digit, _, _, path in members])
    samples = {path: soundfile.read(output / path, dtype="int16") for *_, path in recordings}
    for seed, (split, members) in enumerate(splits.items()):
        count = strings if split == "train" else max(1, strings // 20)
        generator = np.random.default_rng(seed)
        pairs = []
        for number in range(count):
            chosen = _choose(members, generator)
            file = f"strings/{split}/{number:05}.flac"
            (output / file).parent.mkdir(parents=True, exist_ok=True)
            rate = samples[chosen[0][3]][1]
            soundfile.write(output / file, join([samples[path][0] for *_, path in chosen], rate, generator), rate)
            pairs.append((file, " ".join(WORDS[digit] for digit, *_ in chosen)))
        write_manifest(output / f"strings.{split}.tsv", pairs)


def _choose(
    members: Sequence[tuple[int, str, int, str]], generator: np.random.Generator
) -> list[tuple[int, str, int, str]]:
    """Recordings of one speaker, any digits."""
    speakers = sorted({who for _, who, _, _ in members})
    own = [one for one in members if one[1] == speakers[generator.integers(len(speakers))]]
    return [own[i] for i in generator.integers(len(own), size=generator.integers(SHORTEST, LONGEST + 1))]


def join(pieces: Sequence[Samples], rate: int, generator: np.random.Generator) -> Samples:
    """Recordings one after another, before, between and after them up to a third of a second of faint noise."""
    gaps = generator.integers(0, rate // 3, size=len(pieces) + 1)
    faint = [np.rint(generator.normal(0, 5, size=gap)).astype(np.int16) for gap in gaps]
    parts = [part for pair in zip(faint, pieces, strict=False) for part in pair]
    return np.concatenate([*parts, faint[-1]])


# -- images ------------------------------------------------------------------------------------------------------------


def make_images(folder: Path, output: Path, strips: int) -> None:
    """Manifests of single images, which stay in their idx files, and strips of several digits as PNG."""
    from PIL import Image

    output.mkdir(parents=True, exist_ok=True)
    spans: dict[str, tuple[str, slice]] = {
        "train": ("train", slice(None, -VALID_IMAGES)),
        "valid": ("train", slice(-VALID_IMAGES, None)),
        "test": ("t10k", slice(None)),
    }
    for seed, (split, (stem, span)) in enumerate(spans.items()):
        file = folder / f"{stem}-images-idx3-ubyte.gz"
        labels = idx_items(str(folder / f"{stem}-labels-idx1-ubyte.gz"))
        numbers = np.arange(len(labels))[span]
        seen = os.path.relpath(file, output)
        write_manifest(output / f"single.{split}.tsv", [(f"{seen}#{n}", WORDS[labels[n]]) for n in numbers.tolist()])
        pictures, generator = idx_items(str(file)), np.random.default_rng(seed)
        pairs = []
        (output / "strips" / split).mkdir(parents=True, exist_ok=True)
        for number in range(strips if split == "train" else max(1, strips // 10)):
            fewest = 1 if split == "train" else 2  # single ones show what a digit is before order matters
            chosen = generator.choice(numbers, size=generator.integers(fewest, 7))
            path = f"strips/{split}/{number:05}.png"
            Image.fromarray(beside([pictures[n] for n in chosen], generator)).save(output / path)
            pairs.append((path, "".join(str(labels[n]) for n in chosen)))
        write_manifest(output / f"strips.{split}.tsv", pairs)


def beside(pictures: Sequence[Pixels], generator: np.random.Generator) -> Pixels:
    """Pictures side by side; neighbours lie up to six pixels apart, or over each other by as much."""
    places = [int(generator.integers(0, 9))]
    for picture in pictures:
        places.append(places[-1] + picture.shape[1] + int(generator.integers(-6, 7)))
    strip = np.zeros((pictures[0].shape[0], max(places) + 8), np.uint8)
    for place, picture in zip(places, pictures, strict=False):
        held = strip[:, place : place + picture.shape[1]]
        np.maximum(held, picture, out=held)
    return strip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speech", "images"))
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--speaker", default="theo", help="speaker held out of the training of speaker.*")
    parser.add_argument("--lines", type=int, default=0, help="strings (4000) or strips (24000) to train on")
    arguments = parser.parse_args()
    if arguments.what == "speech":
        make_speech(arguments.input, arguments.output, arguments.speaker, arguments.lines or 4000)
    else:
        make_images(arguments.input, arguments.output, arguments.lines or 24000)


if __name__ == "__main__":
    main()
