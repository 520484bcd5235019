"""Settings of gathering: raw corpora, each with its languages, licence and use, and the rules; and the gathered folder.

    gathered.json        the description of all files
    train/en-de.NAME.en  train/en-de.NAME.de  valid/en-de.en  valid/en-de.de  test/en-de.en  test/en-de.de

Paths in gathered.json are below the folder, so that it may be moved.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from transduce.core.errors import ConfigError, DataError
from transduce.data.corpus import file_digest
from transduce.data.formats.lines import check_file
from transduce.data.formats.parallel import ParallelText

Use = Literal["train", "test"]
EACH = "XX"  # stands for each of the codes of `of`


@dataclass(frozen=True)
class RawText:
    """One corpus as it was published; `source`, `target`, `path` and `columns` name its files as for `prepare`.

    `languages` are those of the two sides. `labels` names a file with a line a pair, tab-separated codes such as
    `eng<tab>cmn_Hant`: with `keep`, only pairs with one of these codes are read. `of` makes one corpus for each of its
    codes: the code stands for `XX` in languages and file names, and ends the name.
    """

    name: str
    languages: tuple[str, str]
    source: str = ""
    target: str = ""
    path: str = ""
    columns: tuple[str, ...] = ()
    of: tuple[str, ...] = ()
    use: Use = "train"
    labels: str = ""
    keep: tuple[str, ...] = ()
    drop: str = ""  # a regular expression: pairs with it on either side are left out, such as markup
    sample: float = 1.0  # share of the pairs that is read, in blocks of neighbours
    weight: float = 1.0  # how often an epoch sees each pair, before the temperature changes it
    joined: float = 0.0  # share of pairs that are joined with the pairs after them: for text in document order
    held_out: bool = True  # whether it may give validation pairs
    license: str = ""
    origin: str = ""  # where it came from, for the attribution
    note: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w+-]*", self.name):
            raise ConfigError(f"name: expected letters, digits and + - _, for it names files, got {self.name!r}")
        if self.languages[0] == self.languages[1] or not all(re.fullmatch(r"[A-Za-z]+", x) for x in self.languages):
            raise ConfigError(f"languages: expected two codes such as ['en', 'de'], got {list(self.languages)}")
        if bool(self.of) != (EACH in self.languages):
            raise ConfigError(
                f"of: {list(self.of)} with languages={list(self.languages)}: expected codes such as ['de', 'fr'] and"
                f" {EACH!r} as a language, for which they stand, or neither"
            )
        for name in ("joined", "sample"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)}: expected a share of the pairs, from 0 to 1")
        if self.keep and not self.labels:
            raise ConfigError(f"keep: {list(self.keep)} are codes of the file 'labels', and none is given")
        try:
            re.compile(self.drop)
        except re.error as error:
            raise ConfigError(f"drop: {self.drop!r} is no regular expression: {error}") from None
        _ = self.text  # its own checks

    def expanded(self) -> list[RawText]:
        """One corpus for each code of `of`; this one alone if there are none."""
        if not self.of:
            return [self]

        def for_code(code: str) -> RawText:
            first, second, source, target, path, labels = (
                text.replace(EACH, code) for text in (*self.languages, self.source, self.target, self.path, self.labels)
            )
            files = replace(
                self, of=(), languages=(first, second), source=source, target=target, path=path, labels=labels
            )
            return replace(files, name=f"{self.name}-{code}")

        return [for_code(code) for code in self.of]

    @property
    def text(self) -> ParallelText:
        """The corpus as a ParallelText, as `prepare` reads it."""
        return ParallelText(self.source, self.target, self.path, self.columns, weight=self.weight, name=self.name)


@dataclass(frozen=True)
class Variants:
    """Shares of the training pairs that are changed; `marked` multiplies the shares of the rules in text/protect.py."""

    upper: float = 0.0  # ALL CAPITALS on both sides, of languages that have capitals
    title: float = 0.0  # Capitals at the Start of Words, in the same languages
    bare: float = 0.0  # no final full stop, question or exclamation mark, where both sides have one
    marked: float = 0.0  # protected spans as marks; 1 is what the rules say

    def __post_init__(self) -> None:
        for share in fields(self):
            value, most = getattr(self, share.name), 2 if share.name == "marked" else 1
            if not 0 <= value <= most:
                raise ConfigError(f"{share.name}={value}: expected a number from 0 to {most}")
        if self.upper + self.title + self.bare > 1:
            raise ConfigError(f"upper={self.upper}, title={self.title}, bare={self.bare}: expected at most 1 together")


@dataclass(frozen=True)
class Gather:
    """The corpora to turn into clean training, validation and test text with one common language, and the rules."""

    output: str
    corpora: tuple[RawText, ...]
    pivot: str = "en"  # in every pair; its sentences decide the split
    valid_share: float = 0.005  # of the sentences of the pivot, held out in all pairs of languages
    test_share: float = 0.0  # likewise for testing, where there are no test corpora
    test_most: int = 0  # at most about so many test pairs of each pair of languages; 0: all
    common: int = 0  # see run.py: sentences of up to so many letters stay in training, and tests lose them
    temperature: float = 1.0  # directions are seen in proportion to their number of pairs to the power 1/temperature
    variants: Variants = field(default_factory=Variants)  # of training pairs
    simplified: tuple[str, ...] = ("zh",)  # languages that are to be written in simplified Chinese
    longest: int = 400  # letters of a side; a Chinese character counts as three
    largest_ratio: float = 3.0  # between the letters of the sides, 15 allowed to each
    packed: Literal["", "gz", "xz"] = ""
    workers: int = 0  # processes; 0: one for each core
    overwrite: bool = False

    def __post_init__(self) -> None:
        if not self.corpora:
            raise ConfigError("corpora: expected at least one [[corpora]], got none")
        expanded = tuple(raw for corpus in self.corpora for raw in corpus.expanded())
        object.__setattr__(self, "corpora", expanded)
        names = [corpus.name for corpus in self.corpora]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"corpora: two are called {twice[0]!r}; give each a name of its own")
        for corpus in self.corpora:
            if self.pivot not in corpus.languages:
                raise ConfigError(
                    f"corpora: {corpus.name} is in {' and '.join(corpus.languages)}, and every corpus must be in"
                    f" {self.pivot} and one other language; set pivot to a language that all have"
                )
        if not any(corpus.use == "train" for corpus in self.corpora):
            raise ConfigError("corpora: all are for testing; expected at least one with use = 'train'")
        if not (0 <= self.valid_share < 1 and 0 <= self.test_share < 1 and self.valid_share + self.test_share < 1):
            raise ConfigError(
                f"valid_share={self.valid_share}, test_share={self.test_share}: expected shares of at least 0 that are"
                " below 1 together, and so leave something for training"
            )
        if self.temperature < 1 or self.longest < 1 or self.largest_ratio < 1:
            raise ConfigError(
                f"temperature={self.temperature}, longest={self.longest}, largest_ratio={self.largest_ratio}: expected"
                " at least 1 of each"
            )
        if min(self.common, self.test_most, self.workers) < 0:
            raise ConfigError(
                f"common={self.common}, test_most={self.test_most}, workers={self.workers}: expected 0 or more"
            )

    def ordered(self) -> list[RawText]:
        """All corpora, those for training first: the order in which they are read."""
        return [corpus for use in ("train", "test") for corpus in self.corpora if corpus.use == use]

    def splits(self) -> dict[str, tuple[ParallelText, ...]]:
        """The corpora by use, as ParallelTexts."""
        return {use: tuple(c.text for c in self.corpora if c.use == use) for use in ("train", "test")}

    def other(self, corpus: RawText) -> str:
        """The language of a corpus that is not the pivot."""
        return corpus.languages[1] if corpus.languages[0] == self.pivot else corpus.languages[0]

    def pair(self, corpus: RawText) -> str:
        """The name of a corpus's language pair, `en-de`: the pivot first."""
        return f"{self.pivot}-{self.other(corpus)}"

    def settings(self) -> dict[str, Any]:
        """What the result depends on besides the text, as JSON."""
        facts = {k: v for k, v in asdict(self).items() if k not in ("output", "workers", "overwrite")}
        for corpus in self.corpora:
            if corpus.labels:
                check_file(corpus.labels)
        facts["labels"] = [file_digest(Path(corpus.labels)) if corpus.labels else "" for corpus in self.corpora]
        return dict(json.loads(json.dumps(facts)))

    def digest(self) -> str:
        """A digest of all settings."""
        return hashlib.sha256(json.dumps(self.settings(), sort_keys=True).encode()).hexdigest()


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
    """A corpus that text came from: what was read, what was dropped and why, and where the rest went."""

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
    """A gathered folder."""

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
        texts = tuple(TextFiles(**_tuples(row, "languages", "files", "sha256")) for row in found["texts"])
        sources = tuple(Source(**_tuples(row, "languages")) for row in found["sources"])
        return cls(Path(folder), found["pivot"], texts, sources, found["settings"])

    def as_json(self) -> str:
        """The content of `gathered.json`."""
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
        return {split: [_plain(text) for text in self._parallel(split)] for split in SPLITS}

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
    """Sampling weights p ~ n^(1/T) (Arivazhagan et al., 2019, section 4.2) that leave the total unchanged."""
    powers = {name: count ** (1 / temperature) for name, count in pairs.items() if count}
    total, mass = sum(pairs.values()), sum(powers.values())
    return {name: total * power / mass / pairs[name] for name, power in powers.items()}
