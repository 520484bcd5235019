"""Parallel text as users keep it: two line-aligned files, or one TSV, JSONL or Parquet file; plain or compressed.

`ParallelText` names one corpus; inventory.py streams it as `Chunk`s of raw bytes that know their file and line.
What reading repairs, and counts: a byte order mark at the start of a file, "\\r" at the end of a line, and a line break
inside a JSON or Parquet text (it becomes a space, for a text is one line everywhere else).
"""

from __future__ import annotations

import glob
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from transduce.core.errors import ConfigError, DataError, is_plain, printable
from transduce.data.formats.lines import BYTE_ORDER_MARK, COMPRESSIONS, LINE_BYTES, check_file

Format = Literal["lines", "tsv", "jsonl", "parquet"]
MOST_WEIGHT = 1_000_000.0
_FORMATS: dict[str, Format] = {".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


@dataclass(frozen=True)
class ParallelText:
    """One corpus: `source` and `target` name two line-aligned files, or `path` names one file that holds both sides.

    Each may be a glob; its matches are taken in sorted order. The format of `path` is read from its extension before
    any .gz, .xz or .zst. `columns` says where the two sides are: column numbers from 0 for TSV, field names for JSONL
    and Parquet; left empty it means columns 0 and 1, or the fields "source" and "target".
    """

    source: str = ""
    target: str = ""
    path: str = ""
    columns: tuple[str, ...] = ()
    weight: float = 1.0  # how many times an epoch sees each pair, on average
    tag: str = ""  # a token such as "<2de>", put before every source sentence
    alignment: str = ""  # word alignments in Pharaoh format, a line a pair (see word_links.py)
    name: str = ""  # for reports; the file's name if empty

    def __post_init__(self) -> None:
        if bool(self.path) == bool(self.source or self.target) or bool(self.source) != bool(self.target):
            raise ConfigError(
                f"source={self.source!r}, target={self.target!r}, path={self.path!r}: "
                "expected either both source and target (two line-aligned files), or path alone (TSV, JSONL, Parquet)"
            )
        if self.path and file_format(self.path) == "lines":
            raise ConfigError(
                f"path={self.path!r}: the format is read from the extension; expected .tsv, .jsonl or .parquet, "
                "perhaps with .gz, .xz or .zst after it. For two line-aligned files set source and target"
            )
        if self.columns and (len(self.columns) != 2 or self.columns[0] == self.columns[1] or not self.path):
            raise ConfigError(f"columns={self.columns!r}: expected two different columns, and only together with path")
        if self.path and file_format(self.path) == "tsv" and not all(column.isdecimal() for column in self.sides):
            raise ConfigError(f"columns={self.columns!r}: TSV columns are numbers that start at 0, such as ['0', '1']")
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
        return ("0", "1") if file_format(self.path) == "tsv" else ("source", "target")

    @property
    def label(self) -> str:
        """What reports call this corpus."""
        text = printable(self.name or Path(self.path or self.source).name).replace("\n", " ")
        return text.encode(errors="backslashreplace").decode()  # a file's name may be no text

    def files(self) -> list[tuple[str, str]]:
        """The files of the source side, each with its target file (the same one for TSV, JSONL, Parquet)."""
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
        """Refuse files that are missing or do not go together; `where` is the dotted key of this corpus."""
        for name in ("path", "source", "target", "alignment"):
            try:
                if pattern := getattr(self, name):
                    _matches(pattern)
            except DataError as error:
                raise DataError(f"{where}.{name}: {error}; set it to a file that is there") from None
        self.files(), self.alignment_files()

    def alignment_files(self) -> list[str]:
        """The file of links of each file; none if there are no alignments."""
        found = _matches(self.alignment) if self.alignment else []
        if self.alignment and len(found) != len(self.files()):
            raise DataError(
                f"{self.path or self.source} names {len(self.files())} file(s) but alignment {self.alignment} names "
                f"{len(found)}: each file of text needs its file of links"
            )
        return found


@dataclass(frozen=True)
class Chunk:
    """Consecutive raw lines of both sides; of TSV and JSONL the untouched lines, taken apart only in `pairs`.

    Reading is one process's work, `pairs` that of many: this is why the chunk carries raw lines.
    """

    files: tuple[str, str]
    first_line: int  # number of the first line, from 1
    format: Format
    source: list[bytes]
    target: list[bytes]  # empty for TSV and JSONL
    columns: tuple[str, str] = ("", "")
    links_file: str = ""
    links: list[bytes] = field(default_factory=list)  # a line a pair, or none where there is no such file

    def pairs(self) -> RawPairs:
        """Both sides of every line; raises DataError for a TSV or JSON line that does not hold them."""
        repairs = {"byte_order_mark": 0, "carriage_return": 0, "line_break": 0}
        source, target = self.source, self.target
        if self.format != "parquet":
            source, target = self._without_line_ends(source, repairs), self._without_line_ends(target, repairs)
        if self.format in ("tsv", "jsonl"):
            take = _take_tsv if self.format == "tsv" else _take_json
            taken = [
                take(line, self.columns, f"{self.files[0]}:{number}")
                for number, line in enumerate(source, self.first_line)
            ]
            source, target = [pair[0] for pair in taken], [pair[1] for pair in taken]
        if self.format in ("jsonl", "parquet"):
            source, target = _without_line_breaks(source, repairs), _without_line_breaks(target, repairs)
        return RawPairs(source, target, repairs)

    def _without_line_ends(self, lines: list[bytes], repairs: dict[str, int]) -> list[bytes]:
        if self.first_line == 1 and lines and lines[0].startswith(BYTE_ORDER_MARK):
            lines = [lines[0].removeprefix(BYTE_ORDER_MARK), *lines[1:]]
            repairs["byte_order_mark"] += 1
        repairs["carriage_return"] += sum(line.endswith(b"\r") for line in lines)
        return [line.removesuffix(b"\r") for line in lines]


@dataclass(frozen=True)
class RawPairs:
    """Bytes of both sides, line by line, and how often reading repaired something."""

    source: list[bytes]
    target: list[bytes]
    repairs: dict[str, int]


def file_format(path: str) -> Format:
    """The format that a file's extension promises; plain lines if it promises none."""
    name = Path(path.lower())
    extension = Path(name.stem).suffix if name.suffix in COMPRESSIONS else name.suffix
    return _FORMATS.get(extension, "lines")


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


def _take_tsv(line: bytes, columns: tuple[str, str], place: str) -> tuple[bytes, bytes]:
    if not line or len(line) > LINE_BYTES:
        return line, line  # an empty pair, or one that the doctor finds too long
    fields = line.split(b"\t")
    left, right = int(columns[0]), int(columns[1])
    if max(left, right) >= len(fields):
        raise DataError(
            f"{place}: {len(fields)} tab-separated column(s); expected at least {max(left, right) + 1}, "
            f"for columns = {list(columns)} counts from 0"
        )
    return fields[left], fields[right]


def _take_json(line: bytes, columns: tuple[str, str], place: str) -> tuple[bytes, bytes]:
    if not line or len(line) > LINE_BYTES:
        return line, line
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError:
        return line, line  # the doctor finds the invalid UTF-8
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not valid JSON ({error}); expected one object on each line") from None
    if not isinstance(record, dict):
        raise DataError(f"{place}: a JSON {type(record).__name__}; expected an object with the fields {list(columns)}")
    left, right = (_json_text(record, column, place) for column in columns)
    return left, right


def _json_text(record: dict[str, object], column: str, place: str) -> bytes:
    if column not in record:
        raise DataError(f"{place}: no field {column!r}; there are {sorted(record)}. Set columns to two of them")
    value = record[column]
    if not isinstance(value, str):
        raise DataError(f"{place}: field {column!r} holds {value!r:.40} ({type(value).__name__}); expected a string")
    return value.encode("utf-8", "surrogatepass")  # a lone surrogate thus becomes invalid UTF-8, which the doctor finds
