r"""Parallel text as users keep it: two line-aligned files, or one file of both sides; plain or compressed.

`ParallelText` names one corpus; inventory.py streams it as `Chunk`s of raw bytes with their file and line. Reading
repairs, and counts: a byte order mark at the start of a file, "\r" at the end of a line, and a line break inside a text
of a file of both sides (it becomes a space, since a text is one line everywhere else).
"""

from __future__ import annotations

import glob
import math
from dataclasses import dataclass, field
from pathlib import Path

from transduce.core.errors import ConfigError, DataError, is_plain, printable
from transduce.data.formats import FileFormat, Pair, format_of, formats_by_suffix
from transduce.data.formats.lines import BYTE_ORDER_MARK, LINE_BYTES, check_file

MOST_WEIGHT = 1_000_000.0
LINES = "lines"  # the format of two line-aligned files


@dataclass(frozen=True)
class ParallelText:
    """One corpus: `source` and `target` name two line-aligned files, or `path` names one file that holds both sides.

    Each may be a glob; its matches are taken in sorted order. The format of `path` is read from its extension before
    any .gz, .xz or .zst. `columns` says where the two sides are, by the numbers or names that the format has
    (`FileFormat`); empty means the format's own.
    """

    source: str = ""
    target: str = ""
    path: str = ""
    columns: tuple[str, ...] = ()
    weight: float = 1.0  # how many times an epoch sees each pair, on average
    tag: str = ""  # a token such as "<2de>", put before every source sentence
    alignment: str = ""  # word alignments in Pharaoh format, a line per pair (word_links.py)
    name: str = ""  # for reports; the file's name if empty

    def __post_init__(self) -> None:
        if bool(self.path) == bool(self.source or self.target) or bool(self.source) != bool(self.target):
            raise ConfigError(
                f"source={self.source!r}, target={self.target!r}, path={self.path!r}: "
                f"expected either both source and target (two line-aligned files), or path alone ({_suffixes()})"
            )
        form = format_of(self.path)
        if self.path and form is None:
            raise ConfigError(
                f"path={self.path!r}: the format is read from the extension; expected {_suffixes()}, "
                "perhaps with .gz, .xz or .zst after it. For two line-aligned files set source and target"
            )
        if self.columns and (len(self.columns) != 2 or self.columns[0] == self.columns[1] or not self.path):
            raise ConfigError(f"columns={self.columns!r}: expected two different columns, and only together with path")
        if form is not None and form.numbered and not all(column.isdecimal() for column in self.sides):
            kind = form.name.upper()
            raise ConfigError(
                f"columns={self.columns!r}: {kind} columns are numbers that start at 0, such as ['0', '1']"
            )
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise ConfigError(f"weight={self.weight!r}: expected a number above 0")
        if self.weight > MOST_WEIGHT:
            raise ConfigError(f"weight={self.weight!r}: expected at most {MOST_WEIGHT:,.0f}")
        if any(character.isspace() for character in self.tag) or not is_plain(self.tag):
            raise ConfigError(f"tag={self.tag!r}: expected one token without spaces, such as '<2de>'")

    @property
    def sides(self) -> tuple[str, str]:
        """The columns, or their defaults."""
        if self.columns:
            return self.columns[0], self.columns[1]
        form = format_of(self.path)
        return form.columns if form is not None else ("source", "target")

    @property
    def label(self) -> str:
        """The name of this corpus in reports."""
        text = printable(self.name or Path(self.path or self.source).name).replace("\n", " ")
        return text.encode(errors="backslashreplace").decode()  # a file's name may not be valid text

    def files(self) -> list[tuple[str, str]]:
        """List the files of the source side, each with its target file (the same one if it holds both sides)."""
        if self.path:
            return [(path, path) for path in _matches(self.path)]
        sources, targets = _matches(self.source), _matches(self.target)
        if len(sources) != len(targets):
            raise DataError(
                f"{self.source} names {len(sources)} file(s) but {self.target} names {len(targets)}: "
                "each source file needs its target file"
            )
        return list(zip(sources, targets, strict=True))

    def check_files(self, where: str) -> None:
        """Refuse files that are missing or do not match; `where` is the dotted key of this corpus."""
        for name in ("path", "source", "target", "alignment"):
            try:
                if pattern := getattr(self, name):
                    _matches(pattern)
            except DataError as error:
                raise DataError(f"{where}.{name}: {error}; set it to a file that is there") from None
        self.files(), self.alignment_files()

    def alignment_files(self) -> list[str]:
        """List the links file of each text file; empty without alignments."""
        links_files = _matches(self.alignment) if self.alignment else []
        if self.alignment and len(links_files) != len(self.files()):
            raise DataError(
                f"{self.path or self.source} names {len(self.files())} file(s) but alignment {self.alignment} names "
                f"{len(links_files)}: each file of text needs its file of links"
            )
        return links_files


@dataclass(frozen=True)
class Chunk:
    """Consecutive raw lines of both sides; of a format with a pair per line complete lines, parsed only in `pairs`.

    One process reads, many call `pairs`: this is why a chunk carries raw lines.
    """

    files: tuple[str, str]
    first_line: int  # number of the first line, from 1
    format: str
    source: list[bytes]
    target: list[bytes]  # empty where a line holds both sides
    columns: tuple[str, str] = ("", "")
    links_file: str = ""
    links: list[bytes] = field(default_factory=list)  # a line per pair, or empty without a links file

    def pairs(self) -> RawPairs:
        """Parse both sides of every line; raises DataError for a line without them."""
        repairs = {"byte_order_mark": 0, "carriage_return": 0, "line_break": 0}
        source, target = self.source, self.target
        form = None if self.format == LINES else formats_by_suffix()[f".{self.format}"]
        if form is None or form.pair is not None:
            source, target = self._without_line_ends(source, repairs), self._without_line_ends(target, repairs)
        if form is not None:
            if form.pair is not None:
                pairs = self._taken_apart(source, form)
                source, target = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            source, target = _without_line_breaks(source, repairs), _without_line_breaks(target, repairs)
        return RawPairs(source, target, repairs)

    def _taken_apart(self, lines: list[bytes], form: FileFormat) -> list[Pair]:
        assert form.pair is not None
        return [
            form.pair(line, self.columns, f"{self.files[0]}:{number}")
            if 0 < len(line) <= LINE_BYTES
            else (line, line)  # an empty pair, or one that the doctor reports as too long
            for number, line in enumerate(lines, self.first_line)
        ]

    def _without_line_ends(self, lines: list[bytes], repairs: dict[str, int]) -> list[bytes]:
        if self.first_line == 1 and lines and lines[0].startswith(BYTE_ORDER_MARK):
            lines = [lines[0].removeprefix(BYTE_ORDER_MARK), *lines[1:]]
            repairs["byte_order_mark"] += 1
        repairs["carriage_return"] += sum(line.endswith(b"\r") for line in lines)
        return [line.removesuffix(b"\r") for line in lines]


@dataclass(frozen=True)
class RawPairs:
    """Bytes of both sides, line by line, and the number of repairs."""

    source: list[bytes]
    target: list[bytes]
    repairs: dict[str, int]


def _suffixes() -> str:
    *others, last = (form.suffixes[0] for form in dict.fromkeys(formats_by_suffix().values()))
    return f"{', '.join(others)} or {last}"


def _without_line_breaks(texts: list[bytes], repairs: dict[str, int]) -> list[bytes]:
    repairs["line_break"] += sum(b"\n" in text for text in texts)
    return [text.replace(b"\n", b" ") for text in texts]


def _matches(pattern: str) -> list[str]:
    if Path(pattern).exists() or not glob.has_magic(pattern):
        check_file(pattern)
        return [pattern]
    found = sorted(path for path in glob.glob(pattern, recursive=True) if Path(path).is_file())
    if not found:
        raise DataError(f"{pattern}: no file matches this pattern (seen from {Path.cwd()})")
    return found
