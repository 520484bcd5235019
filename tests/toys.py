"""Toy corpora and tiny models: text that a program makes and checks, through the real prepare, train and load.

`corpus` writes text and prepares it, `config` is a model of some thousand parameters, `run` trains one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from transduce.core import config as configs
from transduce.data.formats.parallel import ParallelText
from transduce.data.prepare.run import Prepare, prepare
from transduce.experiment import Config
from transduce.text.number_words import english, german
from transduce.text.train_tokenizer import SentencePiece
from transduce.training.checkpoint import Snapshot, read_checkpoint, step_folders
from transduce.training.loop import Outcome, train

Pairs = Sequence[tuple[str, str]]
TINY = (
    "data.tokens=160 data.bucket=4 model.d_model=16 model.dropout=0.1"
    " model.encoder.layers=1 model.encoder.attention.heads=2 model.encoder.d_ff=32"
    " model.decoder.layers=1 model.decoder.attention.heads=2 model.decoder.d_ff=32"
    " training.device=cpu training.steps=20 training.report_every=1 training.save_every=10"
    " training.learning_rate.kind=constant training.learning_rate.rate=3e-3"
    " validation.every=10 validation.metric=loss validation.sentences=4 validation.samples=1 search=greedy"
).split()


def words(count: int, seed: int, letters: str = "abcdefgh", longest: int = 8) -> list[str]:
    """Distinct random words."""
    chooser = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(chooser.choices(letters, k=chooser.randint(2, longest)))] = None
    return list(found)


def copies(count: int, seed: int = 1, longest: int = 8) -> Pairs:
    """Each word is its own translation."""
    return [(word, word) for word in words(count, seed, longest=longest)]


def reversals(count: int, seed: int = 1, longest: int = 8) -> Pairs:
    """Each word backwards."""
    return [(word, word[::-1]) for word in words(count, seed, longest=longest)]


def numbers(count: int, seed: int = 1) -> Pairs:
    """Distinct numbers below a million in English and German words.

    The last hundred are 0 to 99, to be trained on: no rule tells a word that was never seen.
    """
    chooser = random.Random(seed)
    found: dict[int, None] = {}
    while len(found) < count - 100:
        found[chooser.randrange(100, 10 ** chooser.randint(3, 6))] = None
    return [(english(number), german(number)) for number in (*found, *range(100))]


def corpus(
    folder: Path,
    train_pairs: Pairs,
    valid_pairs: Pairs = (),
    model: Literal["char", "bpe", "unigram"] = "char",
    vocabulary: int = 0,
) -> Path:
    """Write the pairs as text below `folder` and prepare them; gives the folder of the corpus."""
    tokenizer = SentencePiece(model=model, byte_fallback=False, character_coverage=1.0)
    if vocabulary:
        tokenizer = replace(tokenizer, vocabulary=vocabulary)
    valid = (text(folder / "valid", valid_pairs),) if valid_pairs else ()
    output = folder / "corpus"
    prepare(
        Prepare(
            output=str(output),
            train=(text(folder / "train", train_pairs),),
            valid=valid,
            tokenizer=tokenizer,
            workers=1,
        )
    )
    return output


def text(stem: Path, pairs: Pairs) -> ParallelText:
    paths = [stem.with_suffix(f".{side}") for side in ("source", "target")]
    stem.parent.mkdir(parents=True, exist_ok=True)
    for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return ParallelText(source=str(paths[0]), target=str(paths[1]))


def latest(*words: str) -> list[str]:
    """The last word for each key: a command line that gives one twice is refused."""
    return list({word.partition("=")[0]: word for word in words}.values())


def config(folder: Path, *overrides: str) -> Config:
    """A tiny config on a prepared corpus; a later word for a key takes the place of an earlier one."""
    return configs.load(Config, "tiny", latest(*overrides), defaults=[TINY, [f"data.folder={folder}"]])


def run(corpus_folder: Path, folder: Path, *overrides: str) -> Outcome:
    """Train a tiny model."""
    return train(config(corpus_folder, *overrides), folder)


def reports(folder: Path, kind: str = "train") -> list[dict[str, Any]]:
    """The lines of one kind in metrics.jsonl."""
    lines = (folder / "metrics.jsonl").read_bytes().decode().split("\n")[:-1]
    return [line for line in map(json.loads, lines) if line["kind"] == kind]


def untimed(folder: Path) -> list[dict[str, Any]]:
    """All of metrics.jsonl but what clock and machine decide."""
    lines = (folder / "metrics.jsonl").read_bytes().decode().split("\n")[:-1]
    clocked = {"seconds", "tokens_per_second", "memory"}
    return [{key: value for key, value in json.loads(line).items() if key not in clocked} for line in lines]


def final(folder: Path) -> Snapshot:
    """The last checkpoint of a run, without what the clock decides."""
    kept = step_folders(folder)
    snapshot = read_checkpoint(kept[max(kept)])
    state = {key: value for key, value in snapshot.state.items() if key != "seconds"}
    state["sums"] = {key: value for key, value in state["sums"].items() if key != "since"}
    return replace(snapshot, state=state)


def exact(translate: Callable[[list[str]], list[str]], pairs: Pairs) -> float:
    """The share of pairs translated letter for letter."""
    translations = translate([source for source, _ in pairs])
    return sum(text == target for text, (_, target) in zip(translations, pairs, strict=True)) / len(pairs)
