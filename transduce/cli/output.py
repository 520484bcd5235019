"""Input and output of lines for the command line: read lazily, written as they are made."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import stat
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar, cast

from transduce.core import config as configs
from transduce.core.durable import reason_of, unwritable
from transduce.core.errors import ConfigError, DataError
from transduce.core.progress import Progress, say
from transduce.data.formats.lines import DAMAGES, damaged, open_unpacked
from transduce.engines import Translation
from transduce.search.settings import SearchOption
from transduce.translate.translator import Translator

T = TypeVar("T")
WINDOW = 1000  # pairs that are scored or aligned at once
NAMED = 10  # lines that are named in a warning
_BARE_WORD = re.compile(r"=\s*([A-Za-z_][\w.:]*)\s*(?=,|$)")


def read_lines(path: Path | None) -> Iterator[str]:
    r"""Yield the lines of a file, or of standard input; they end at \n only, and invalid UTF-8 is an error.

    A byte order mark before the first line is no text, nor is the \r of a line that ends in \r\n. Files that end in
    .gz, .xz or .zst are unpacked.
    """
    name, number = str(path) if path is not None else "standard input", 0
    try:
        with open_unpacked(name) if path is not None else sys.stdin.buffer as file:
            for number, line in enumerate(file, start=1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}:{number}: not UTF-8 at byte {error.start + 1} of the line; convert the text to UTF-8 first"
        ) from None
    except DAMAGES as error:
        raise damaged(name, number + 1, error) from None
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {reason_of(error)}") from None


def read_files(paths: Sequence[Path]) -> Iterator[str]:
    """Yield the lines of one file after another; of standard input if there are none."""
    for path in paths or (None,):
        yield from read_lines(path)


@dataclass(frozen=True)
class TextPairs:
    """Texts and their translations, line by line."""

    sources: list[str]
    targets: list[str]

    def windows(self, size: int) -> Iterator[tuple[list[str], list[str]]]:
        """Yield `size` pairs at a time."""
        for begin in range(0, len(self.sources), size):
            yield self.sources[begin : begin + size], self.targets[begin : begin + size]


def read_pairs(source: Path, target: Path) -> TextPairs:
    """Read two files with equally many lines."""
    sources, targets = list(read_lines(source)), list(read_lines(target))
    if len(sources) != len(targets):
        raise DataError(f"{source} has {len(sources):,} lines and {target} {len(targets):,}; expected as many in each")
    return TextPairs(sources, targets)


def read_manifest(path: Path) -> TextPairs:
    """Read files and their texts: a TSV of path (relative to the manifest's folder) and text."""
    pairs = [(number, *line.partition("\t")) for number, line in enumerate(read_lines(path), start=1)]
    for number, file, tab, _ in pairs:
        if not tab or not file:
            raise DataError(f"{path}:{number}: expected the path of a file, a tab and its text")
    return TextPairs([str(path.parent / file) for _, file, _, _ in pairs], [text for *_, text in pairs])


def read_list(path: Path) -> list[str]:
    """Read paths of files: those of a manifest (.tsv), else a line each, relative to the current folder."""
    return read_manifest(path).sources if path.suffix == ".tsv" else [line for line in read_lines(path) if line]


class _LazyFile(io.TextIOBase):
    """A file that is truncated at the first line written to it; its errors name it."""

    def __init__(self, path: Path) -> None:
        self.path, self.begun = path, False
        with self._naming_errors():
            self.file = path.open("a", encoding="utf-8", newline="\n")

    def write(self, text: str) -> int:
        with self._naming_errors():
            self._begin()
            return self.file.write(text)

    def end(self) -> None:
        """Finish writing, even if nothing was written."""
        with self._naming_errors():
            self._begin()
            self.file.flush()

    def close(self) -> None:
        with suppress(OSError):  # errors of the buffer were reported by then
            self.file.close()

    def _begin(self) -> None:
        if not self.begun and stat.S_ISREG(os.fstat(self.file.fileno()).st_mode):  # devices have nothing to lose
            self.file.truncate(0)
        self.begun = True

    @contextmanager
    def _naming_errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:  # no error: the reader has gone
            raise
        except OSError as error:
            raise DataError(f"{self.path}: cannot be written: {unwritable(self.path, error)}") from None


@contextmanager
def written(path: Path | None, sources: Sequence[Path] = ()) -> Iterator[TextIO]:
    r"""Open a file to write text to, standard output if none is named; \n stays \n. It must not be an input file.

    Its old content is lost with the first line that is written, or at the end: not where an error comes before.
    """
    for source in sources:
        if path is not None and path.exists() and source.exists() and path.samefile(source):
            raise DataError(f"{path}: is read and written at once, which would empty it; choose another --output")
    if path is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", newline="\n", line_buffering=sys.stdout.isatty())
        yield sys.stdout
        sys.stdout.flush()
        return
    new = not path.exists()
    late = _LazyFile(path)
    try:
        yield cast("TextIO", late)
        late.end()
    finally:
        late.close()
        if new and not late.begun:
            path.unlink(missing_ok=True)


def write_translations(
    translations: Iterable[Translation], file: TextIO, links: TextIO | None, json_lines: bool, n_best: int
) -> None:
    """Write translations as they arrive, and their alignments to a file of their own."""
    for number, translation in enumerate(translations, start=1):
        file.write(as_json(translation) if json_lines else as_lines(translation, number, n_best))
        if links is not None and translation.alignment is not None:
            links.write(f"{translation.alignment.pharaoh()}\n")


WARNINGS = {
    "numbers": "has other numbers than the text",
    "repeated": "repeats itself",
    "long": "is far longer than the text",
    "copied": "is a copy of the text",
    "language": "is in another script than the language's",
    "empty": "is empty",
}


def with_warnings_named(translations: Iterable[Translation]) -> Iterator[Translation]:
    """Pass translations on, and name on standard error at the end what is wrong with some."""
    lines: dict[str, list[str]] = {}
    for number, translation in enumerate(translations, start=1):
        for warning in translation.warnings:
            lines.setdefault(f"the translation {WARNINGS.get(warning, warning)}", []).append(f"{number}")
        if translation.missing_terms:
            terms = f"{number} ({', '.join(translation.missing_terms)})"
            lines.setdefault("terms of the glossary could not be placed", []).append(terms)
        yield translation
    for reason, numbers in lines.items():
        more = f" and {len(numbers) - NAMED:,} more" if len(numbers) > NAMED else ""
        say(f"{reason} in line {', '.join(numbers[:NAMED])}{more}")


Unsure = Literal["mark", "source", "empty"]  # what stands for a translation of too little confidence
UNSURE = "[unsure] "  # before a translation that is marked


def sure_enough(
    translations: Iterable[Translation], sources: Iterable[str], least: float, fallback: Unsure
) -> Iterator[Translation]:
    """Replace translations of less confidence than `least`: marked, by their source, or by nothing."""
    for translation, source in zip(translations, sources, strict=False):
        if translation.confidence is None or translation.confidence >= least:
            yield translation
        else:
            text = {"mark": UNSURE + translation.text, "source": source, "empty": ""}[fallback]
            yield dataclasses.replace(translation, text=text)


def as_lines(translation: Translation, number: int, n_best: int) -> str:
    """The text on a line; with several, a line each: the number of the input line, the score, the text."""
    if n_best == 1:
        return f"{translation.text}\n"
    # A blank text has one translation however many are requested: only the number says which line is whose.
    every = (translation, *translation.alternatives)
    return "".join(f"{number}\t{found.score:.4f}\t{found.text}\n" for found in every)


def as_json(translation: Translation) -> str:
    """A translation with all its fields, as a JSON object on a line."""
    return json.dumps(dataclasses.asdict(translation), ensure_ascii=False) + "\n"


def chosen_search(translator: Translator, text: str) -> Any:
    """Parse a search config such as `greedy` or `kind=beam,size=8`; the rest is as in the model's config."""
    base = configs.tree_of(SearchOption(translator.search))
    _named(text)  # for its error message
    settings = _as_toml(text) if "=" in text else text.strip()
    return configs.resolve(SearchOption, configs.layers(SearchOption, None, [f"search={settings}"], base=base)).search


def translations_of(text: str) -> int:
    """The number of translations that a search text requests; 1 by default, whatever the model's own has."""
    named = _named(text)
    return int(named.get("n_best", named.get("samples", 1)))


def _named(text: str) -> dict[str, Any]:
    """The settings in a search text."""
    if "=" not in text:
        return {}
    try:
        table: dict[str, Any] = tomllib.loads(f"search = {_as_toml(text)}")["search"]
        return table
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"--search: {text!r} is no list of settings ({error}); expected such as kind=sample,top_p=0.9"
        ) from None


def _as_toml(text: str) -> str:
    return f"{{{_BARE_WORD.sub(_quoted, text)}}}"


def _quoted(match: re.Match[str]) -> str:
    """Quote a word for TOML."""
    word = match[1]
    return f"={word}" if word in ("true", "false", "inf", "nan") else f'="{word}"'


def with_progress(
    stream: Iterator[T], title: str, total: int | None, printed: bool, window: int = WINDOW
) -> Iterator[T]:
    """Show progress, unless the items are `printed` on a terminal, which shows progress by itself.

    `window` is how many are made at once, and then arrive in quick succession.
    """
    if printed and sys.stdout.isatty():
        yield from stream
        return
    with Progress(title, total, "lines", burst=window) as progress:
        for item in stream:
            yield item
            progress.advance()
