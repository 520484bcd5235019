"""Generated tasks: strings to copy or to reverse, numbers to say in another language.

Each task is a list of pairs, held-out ones apart, prepared as any corpus is; so the experiments need nothing from
outside. Training and preparing print to the console; in an experiment of ten runs they print to a file.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from transduce.data.formats.parallel import ParallelText
from transduce.data.prepare.run import Prepare, prepare
from transduce.text.number_words import english, german
from transduce.text.train_tokenizer import SentencePiece


@contextlib.contextmanager
def quiet(file: Path) -> Iterator[None]:
    """Redirect output to the end of a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        yield


Pair = tuple[str, str]
LETTERS = "abcdefghijkl"


@dataclass(frozen=True)
class LabTask:
    """A task: pairs to learn, and pairs to test on; `pieces` 0 makes every character a token."""

    name: str
    training: tuple[Pair, ...]
    held_out: tuple[Pair, ...]
    pieces: int = 0

    def prepare(self, folder: Path) -> Path:
        """Write and prepare the corpus below a folder, unless that was done; return its folder."""
        output = folder / "corpus"
        if not (output / "manifest.json").exists():
            texts = [
                _written(folder / name, pairs) for name, pairs in (("train", self.training), ("valid", self.held_out))
            ]
            model: Literal["bpe", "char"] = "bpe" if self.pieces else "char"
            tokenizer = SentencePiece(
                model=model, vocabulary=self.pieces or 8000, byte_fallback=False, character_coverage=1.0
            )
            settings = Prepare(output=str(output), train=(texts[0],), valid=(texts[1],), tokenizer=tokenizer, workers=1)
            with quiet(folder / "prepare.log"):
                prepare(settings)
        return output


def _written(stem: Path, pairs: Sequence[Pair]) -> ParallelText:
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_suffix(f".{side}") for side in ("source", "target")]
    for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return ParallelText(source=str(paths[0]), target=str(paths[1]))


def strings(
    count: int, lengths: Sequence[int], seed: int, answer: Callable[[str], str] = lambda text: text
) -> tuple[Pair, ...]:
    """Distinct random strings of these lengths, each with its answer."""
    if count > sum(len(LETTERS) ** length for length in set(lengths)):
        raise ValueError(f"there are not {count} strings of lengths {list(lengths)}")
    chooser = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(chooser.choices(LETTERS, k=chooser.choice(lengths)))] = None
    return tuple((text, answer(text)) for text in found)


def backwards(text: str) -> str:
    """Reverse a text."""
    return text[::-1]


def copying(count: int, lengths: Sequence[int], held_out: int, seed: int, turned: bool = False) -> LabTask:
    """Strings to copy, or to reverse."""
    pairs = strings(count + held_out, lengths, seed, backwards if turned else str)
    return LabTask("Strings to turn round" if turned else "Strings to copy", pairs[held_out:], pairs[:held_out])


def number_words(count: int, held_out: int, seed: int) -> LabTask:
    """Numbers below a million from English to German; 0 to 99 are always in training.

    No rule predicts a word that was never seen.
    """
    chooser = random.Random(seed)
    found: dict[int, None] = {}
    while len(found) < count + held_out - 100:
        found[chooser.randrange(100, 10 ** chooser.randint(3, 6))] = None
    pairs = tuple((english(number), german(number)) for number in (*found, *range(100)))
    return LabTask("Number words, English to German", pairs[held_out:], pairs[:held_out], pieces=100)
