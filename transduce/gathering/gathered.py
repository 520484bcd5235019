"""A folder of gathered text: what lies in it, how often each direction is to be seen, and whom it is owed to.

    gathered.json        all that follows from it
    train/en-de.NAME.en  train/en-de.NAME.de  valid/en-de.en  valid/en-de.de  test/en-de.en  test/en-de.de

Paths in gathered.json are below the folder, so that it may be moved.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transduce.data.text import ParallelText
from transduce.errors import DataError

GATHERED = "gathered.json"
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class TextFiles:
    """Text of one pair of languages: in `train` of one corpus, else of all. `languages` has the pivot first."""

    split: str
    languages: tuple[str, str]
    files: tuple[str, str]  # below the folder
    pairs: int
    sha256: tuple[str, str]
    weight: float = 1.0
    name: str = ""


@dataclass(frozen=True)
class Source:
    """A corpus that text came from: what was read, what was left out and why, and where the rest went."""

    name: str
    use: str
    languages: tuple[str, str]
    read: int
    used: dict[str, int]  # pairs by split
    dropped: dict[str, int]
    license: str = ""
    origin: str = ""
    note: str = ""


@dataclass(frozen=True)
class Direction:
    """One direction of translation with the files to measure it on."""

    source_language: str
    target_language: str
    source: Path
    target: Path
    pairs: int

    @property
    def name(self) -> str:
        return f"{self.source_language}-{self.target_language}"


@dataclass(frozen=True)
class Gathered:
    """Everything in `folder`."""

    folder: Path
    pivot: str
    texts: tuple[TextFiles, ...]
    sources: tuple[Source, ...]
    settings: str = ""  # digest

    @classmethod
    def open(cls, folder: str | Path) -> Gathered:
        """Read `gathered.json`."""
        path = Path(folder) / GATHERED
        if not path.is_file():
            raise DataError(f"{folder}: no {GATHERED} in it; expected a folder that a gather stage has written")
        found = json.loads(path.read_bytes())
        texts = tuple(TextFiles(**_tuples(one, "languages", "files", "sha256")) for one in found["texts"])
        sources = tuple(Source(**_tuples(one, "languages")) for one in found["sources"])
        return cls(Path(folder), found["pivot"], texts, sources, found["settings"])

    def as_json(self) -> str:
        """What `open` reads."""
        plain = {
            "pivot": self.pivot,
            "texts": [asdict(text) for text in self.texts],
            "sources": [asdict(source) for source in self.sources],
            "settings": self.settings,
        }
        return json.dumps(plain, indent=1, ensure_ascii=False) + "\n"

    def directions(self, split: str) -> list[Direction]:
        """Both directions of every pair of languages that has text in a held-out split."""
        found = []
        for text in self.texts:
            if text.split != split or not text.pairs:
                continue
            pivot, other = (self.folder / file for file in text.files)
            found.append(Direction(*text.languages, pivot, other, text.pairs))
            found.append(Direction(text.languages[1], text.languages[0], other, pivot, text.pairs))
        return found

    def preparation(self) -> dict[str, list[dict[str, Any]]]:
        """The tables `train`, `valid` and `test` of a `prepare` config: every direction, with tags and weights."""
        return {split: [_plain(one) for one in self._parallel(split)] for split in SPLITS}

    def _parallel(self, split: str) -> Iterator[ParallelText]:
        for text in self.texts:
            if text.split != split or not text.pairs:
                continue
            pivot, other = (str(self.folder / file) for file in text.files)
            first, second = text.languages
            label = f" {text.name}" if text.name else ""
            yield ParallelText(pivot, other, weight=text.weight, tag=f"<2{second}>", name=f"{first}-{second}{label}")
            yield ParallelText(other, pivot, weight=text.weight, tag=f"<2{first}>", name=f"{second}-{first}{label}")


def _tuples(table: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: tuple(value) if key in names else value for key, value in table.items()}


def _plain(text: ParallelText) -> dict[str, Any]:
    wanted = ("source", "target", "weight", "tag", "name")
    return {key: value for key, value in asdict(text).items() if key in wanted}


def weights(pairs: dict[str, float], temperature: float) -> dict[str, float]:
    """How often each is to be seen: p ~ n^(1/T) (Arivazhagan et al., 2019, section 4.2), in all as often as without."""
    powers = {name: count ** (1 / temperature) for name, count in pairs.items() if count}
    total, mass = sum(pairs.values()), sum(powers.values())
    return {name: total * power / mass / pairs[name] for name, power in powers.items()}
