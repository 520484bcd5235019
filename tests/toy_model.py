"""A tiny model that really translates, trained once for all tests: English number words to German and Chinese.

Tests ask for it by the fixture `toy`. Tags `<2de>` and `<2zh>` pick the
language. It knows 0 to 99 well enough to end its sentences; nothing here depends on how good it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import transduce
from transduce.core import config as configs
from transduce.data.formats.parallel import ParallelText
from transduce.data.prepare.run import Prepare, prepare
from transduce.engines.torch.engine import TorchEngine
from transduce.experiment import Config
from transduce.text.number_words import chinese, english, german
from transduce.text.train_tokenizer import SentencePiece
from transduce.training.loop import train

SETTINGS = (
    "data.tokens=512 model.d_model=32 model.dropout=0.0"
    " model.encoder.layers=1 model.encoder.attention.heads=2 model.encoder.d_ff=64"
    " model.decoder.layers=1 model.decoder.attention.heads=2 model.decoder.d_ff=64"
    " training.steps=150 training.save_every=50 training.report_every=50 training.device=cpu training.average=0"
    " training.learning_rate.kind=constant training.learning_rate.rate=5e-3"
    " validation.every=75 validation.sentences=5 validation.samples=1 search.kind=greedy"
).split()
WORDS: dict[str, Callable[[int], str]] = {"en": english, "de": german, "zh": chinese}


@dataclass(frozen=True)
class Toy:
    """Where the corpus, the text and the trained model lie, and an open translator."""

    text: Path
    corpus: Path
    model: Path
    translator: transduce.Translator

    @property
    def engine(self) -> TorchEngine:
        assert isinstance(self.translator.engine, TorchEngine)
        return self.translator.engine


def write_text(folder: Path) -> None:
    """train.* holds 0 to 99 and pairs of them, valid.* some of the same kind, a sentence a line."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {"train": [*((n,) for n in range(100)), *((n, (7 * n + 3) % 100) for n in range(100))]}
    numbers["valid"] = [(n, (11 * n + 5) % 100) for n in range(0, 100, 9)]
    for split, rows in numbers.items():
        for language, words in WORDS.items():
            lines = (", ".join(words(number) for number in row) for row in rows)
            (folder / f"{split}.{language}").write_bytes("".join(f"{line}\n" for line in lines).encode())


def make(folder: Path, directions: Sequence[str] = ("en-de", "en-zh"), settings: Sequence[str] = ()) -> Toy:
    """Text, corpus and model in a folder."""
    write_text(folder / "text")

    def pairs(split: str) -> tuple[ParallelText, ...]:
        return tuple(
            ParallelText(f"{folder}/text/{split}.{one}", f"{folder}/text/{split}.{to}", tag=f"<2{to}>", name=name)
            for name in directions
            for one, to in [name.split("-")]
        )

    tokenizer = SentencePiece(vocabulary=330)
    prepare(Prepare(f"{folder}/corpus", pairs("train"), pairs("valid"), tokenizer=tokenizer, workers=1))
    config = configs.load(Config, "tiny", [f"data.folder={folder}/corpus", *settings], defaults=[SETTINGS])
    train(config, folder / "model")
    return Toy(folder / "text", folder / "corpus", folder / "model", transduce.load(folder / "model", "cpu"))


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return make(tmp_path_factory.mktemp("toy"))
