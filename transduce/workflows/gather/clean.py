"""Clean raw pairs (one spelling of each text, simplified Chinese, no pair that is no translation) and vary some.

The rules look at one pair alone, so that workers share the pairs in any way they like. Traditional characters become
simplified ones by OpenCC (`pip install 'transduce[chinese]'`). Corpora are cleaned range by range: each range of lines
becomes a part (data/prepare), which a kill cannot take away.

Variants: neighbours joined, capitals, titles, no final mark, marks for protected spans. One replaces its pair, and
always changes both sides alike, since both directions are trained. It is drawn by a hash of the two texts, so the
result depends on text and settings alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transduce.core.errors import DataError, UserError
from transduce.core.processes import ordered_map
from transduce.core.progress import Progress
from transduce.data.formats.inventory import IndexedCorpus, LineRange, LineReader, index_file, read_line_ranges
from transduce.data.formats.parallel import Chunk
from transduce.data.prepare.work_folder import FinishedPart, PartWriter, PreparationPlan, WorkFolder, gather
from transduce.text.protect import mark_pair
from transduce.workflows.gather.settings import Gather, RawText, Variants

HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_BETWEEN = re.compile(r"(?<=[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]) (?=[\u3000-\u303f\u3400-\u9fff\uff00-\uffef])")


@cache
def converter() -> Callable[[str], str]:
    """The converter from traditional to simplified, phrase by phrase; simplified text stays as it is."""
    try:
        import opencc
    except ImportError:
        raise UserError(
            "writing Chinese in simplified characters needs the package opencc: pip install 'transduce[chinese]'"
            " (or set simplified = [] to leave Chinese as it is)"
        ) from None
    convert: Callable[[str], str] = opencc.OpenCC("t2s").convert
    return convert


def simplify(text: str) -> str:
    """Convert to simplified characters. Labels such as cmn_Hans are ignored: some of them are wrong."""
    return converter()(text)


def close_up(text: str) -> str:
    """Remove the spaces between Chinese characters, which some corpora put there and some do not."""
    return _BETWEEN.sub("", text)


FREE_LETTERS = 15  # of either side that no ratio counts: short texts differ in length by chance
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_LETTERS = re.compile(r"[^\W_]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
BLOCK = 64  # lines that are in a sample together, so that neighbours stay neighbours
PIVOT_COMMON, OTHER_COMMON = 1, 2  # bits of a pair's flags


@dataclass(frozen=True)
class ChunkToClean:
    """Raw lines of one range, the corpus they belong to, and their labels if it has any."""

    line_range: int
    corpus: RawText
    chunk: Chunk
    labels: list[bytes]


@dataclass
class Cleaned:
    """The clean pairs, the pivot's side first, with the hashes that dividing them needs; and counts of dropped ones.

    Hashes are of a text's letters alone: two sentences that differ in case or punctuation are the same sentence.
    """

    read: int
    texts: tuple[list[str], list[str]]
    hashes: tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]  # of the sentence of the pivot; of the other one
    pairs: npt.NDArray[np.uint64]  # of both texts as they are
    flags: npt.NDArray[np.uint8]
    dropped: Counter[str]


def normalise(text: str) -> str:
    """Normalise: Unicode NFC, no invisible characters, single spaces."""
    text = _CONTROL.sub(" ", _INVISIBLE.sub("", unicodedata.normalize("NFC", text)))
    return " ".join(text.split())


def letters(text: str) -> str:
    """Letters and digits without case, accents kept: what makes two sentences the same."""
    return "".join(_LETTERS.findall(unicodedata.normalize("NFKC", text).casefold()))


def length(text: str) -> int:
    """Letters of a text; a Chinese character says as much as three."""
    return len(text) if text.isascii() else len(text) + 2 * len(HAN.findall(text))


def hash_words(*words: str) -> int:
    """A 64-bit hash of some words; the separator between them is no letter."""
    return int.from_bytes(blake2b("\0".join(words).encode(), digest_size=8).digest(), "little")


def clean_chunk(task: ChunkToClean, config: Gather) -> tuple[int, Cleaned]:
    """Clean one chunk; runs in a worker."""
    raw = task.chunk.pairs()
    swapped = task.corpus.languages[0] != config.pivot
    found: tuple[list[str], list[str]] = ([], [])
    numbers: list[tuple[int, int, int, int]] = []
    dropped: Counter[str] = Counter()
    cleaner = Cleaner(config, task.corpus)
    for index, lines in enumerate(zip(raw.source, raw.target, strict=True)):
        if not cleaner.draws(task.chunk.first_line + index):
            dropped["not_sampled"] += 1
            continue
        labels = task.labels[index].decode("utf-8", "replace").split("\t") if task.labels else []
        texts, reason = cleaner.clean(lines, labels)
        if reason:
            dropped[reason] += 1
            continue
        pivot, other = reversed(texts) if swapped else texts
        found[0].append(pivot)
        found[1].append(other)
        numbers.append(cleaner.numbers(pivot, other))
    table = np.array(numbers, np.uint64).reshape(-1, 4)
    hashes = (table[:, 0].copy(), table[:, 1].copy())
    return task.line_range, Cleaned(
        len(raw.source), found, hashes, table[:, 2].copy(), table[:, 3].astype(np.uint8), dropped
    )


class Cleaner:
    """The rules for one corpus."""

    def __init__(self, config: Gather, corpus: RawText) -> None:
        self.config, self.corpus = config, corpus
        self.other = config.other(corpus)
        self.drop = re.compile(corpus.drop) if corpus.drop else None

    def draws(self, line: int) -> bool:
        """Whether the block of lines that this one is in belongs to the sample."""
        if self.corpus.sample == 1:
            return True
        return hash_words(self.corpus.name, str(line // BLOCK)) < self.corpus.sample * 2**64

    def clean(self, lines: tuple[bytes, bytes], labels: list[str]) -> tuple[tuple[str, str], str]:
        """Both texts, or why the pair is dropped."""
        nothing = ("", "")
        if self.corpus.keep and not set(self.corpus.keep) & set(labels):
            return nothing, "other_language"
        try:
            texts = lines[0].decode(), lines[1].decode()
        except UnicodeDecodeError:
            return nothing, "invalid_utf8"
        texts = self._written(texts[0], 0), self._written(texts[1], 1)
        return texts, self._reason(texts)

    def _written(self, text: str, side: int) -> str:
        text = normalise(text)
        if self.corpus.languages[side] in self.config.simplified:
            text = close_up(simplify(text))
        return text

    def _reason(self, texts: tuple[str, str]) -> str:
        if not all(_LETTERS.search(text) for text in texts):
            return "empty"
        if self.drop and any(self.drop.search(text) for text in texts):
            return "markup"
        if texts[0] == texts[1]:
            return "copied"
        if not all(_fits(text, language) for text, language in zip(texts, self.corpus.languages, strict=True)):
            return "other_script"
        lengths = sorted(length(text) for text in texts)
        if lengths[1] > self.config.longest:
            return "too_long"
        if lengths[1] - FREE_LETTERS > self.config.largest_ratio * lengths[0]:
            return "mismatched"
        return ""

    def numbers(self, pivot: str, other: str) -> tuple[int, int, int, int]:
        """Hashes of the sentence of the pivot, of the other one, of the pair, and flags."""
        keys = letters(pivot), letters(other)
        short = [length(key) <= self.config.common for key in keys]
        flags = PIVOT_COMMON * short[0] + OTHER_COMMON * short[1]
        pair = hash_words(self.other, pivot, other)
        return hash_words(keys[0]), hash_words(self.other, keys[1]), pair, flags


@cache
def _is_chinese(language: str) -> bool:
    return language.lower() in ("zh", "cmn", "yue", "wuu", "lzh")


def _fits(text: str, language: str) -> bool:
    """Whether a text is in the script of its language, as far as Chinese is concerned: others have no Han, it has."""
    return _is_chinese(language) == bool(HAN.search(text)) or language.lower() in ("ja", "ko")


HASH = "<u8"
PIVOT, OTHER = "pivot", "other"  # names of the two sides


def clean_all(plan: PreparationPlan, config: Gather) -> None:
    """Clean the ranges that have no part yet."""
    left = plan.unfinished(plan.work.examined, plan.line_ranges)
    tasks = _tasks(plan.corpora, left, config)
    with Progress("Cleaning", sum(line_range.count for line_range in left), "pairs") as progress:
        results = ordered_map(partial(clean_chunk, config=config), tasks, config.workers)
        gather(results, lambda number: _CleanedPart(number, plan.work, progress))


def _tasks(
    corpora: Sequence[IndexedCorpus], line_ranges: Sequence[LineRange], config: Gather
) -> Iterator[ChunkToClean]:
    ordered, labels = config.ordered(), dict[int, LineReader]()
    for line_range, chunk in read_line_ranges(corpora, line_ranges):
        corpus = ordered[line_range.section]
        if corpus.labels and line_range.section not in labels:
            labels[line_range.section] = _open_labels(corpus, corpora[line_range.section])
        known = labels.get(line_range.section)
        of_chunk = known.take(chunk.first_line - 1, len(chunk.source)) if known else []
        yield ChunkToClean(line_range.number, corpus, chunk, of_chunk)


def _open_labels(corpus: RawText, contents: IndexedCorpus) -> LineReader:
    index = index_file(corpus.labels)
    if len(contents.files) > 1 or index.lines != contents.lines:
        raise DataError(
            f"{corpus.labels}: has {index.lines:,} lines, and {corpus.name} has {contents.lines:,} pairs in"
            f" {len(contents.files)} file(s); labels need a line for each pair, of one file"
        )
    return LineReader(index)


class _CleanedPart:
    """The part of one range while it is written."""

    def __init__(self, number: int, work: WorkFolder, progress: Progress) -> None:
        self.number, self.progress = number, progress
        self.writer = PartWriter(work.examined(number))
        self.read = self.stayed = 0
        self.dropped: Counter[str] = Counter()

    def add(self, cleaned: Cleaned) -> None:
        for side, texts, hashes in zip((PIVOT, OTHER), cleaned.texts, cleaned.hashes, strict=True):
            self.writer.add(f"{side}.txt", "".join(f"{text}\n" for text in texts).encode())
            self.writer.add(f"{side}.hashes", hashes.astype(HASH).tobytes())
        self.writer.add("pairs.hashes", cleaned.pairs.astype(HASH).tobytes())
        self.writer.add("flags", cleaned.flags.tobytes())
        self.read += cleaned.read
        self.stayed += len(cleaned.flags)
        self.dropped += cleaned.dropped
        self.progress.advance(cleaned.read)

    def finish(self) -> None:
        self.writer.finish({"read": self.read, "stayed": self.stayed, "dropped": dict(sorted(self.dropped.items()))})


@dataclass(frozen=True)
class CleanedRange:
    """A cleaned range: its corpus, and the position of its first pair among all of one use."""

    corpus: RawText
    part: FinishedPart
    start: int

    @property
    def count(self) -> int:
        return int(self.part.facts["stayed"])

    def hashes(self, what: str) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """Hashes of the sentences of one side, or of the pairs."""
        return self.part.array(f"{what}.hashes", HASH)

    def flags(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Which sentences are common."""
        return self.part.array("flags", "u1")

    def marks(
        self, all_marks: np.ndarray[tuple[int], np.dtype[np.uint8]]
    ) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """The marks of its own pairs, out of the marks of all of its use."""
        return all_marks[self.start : self.start + self.count]

    def lines(self) -> Iterator[tuple[bytes, bytes]]:
        """Both texts of each pair, with their line ends."""
        names: tuple[Path, Path] = (self.part.path / f"{PIVOT}.txt", self.part.path / f"{OTHER}.txt")
        with open(names[0], "rb") as pivot, open(names[1], "rb") as other:
            yield from zip(pivot, other, strict=True)


def open_cleaned(plan: PreparationPlan, config: Gather) -> dict[str, list[CleanedRange]]:
    """The cleaned ranges of each use, in order."""
    ordered, starts = config.ordered(), {"train": 0, "test": 0}
    found: dict[str, list[CleanedRange]] = {"train": [], "test": []}
    for line_range in plan.line_ranges:
        corpus = ordered[line_range.section]
        cleaned = CleanedRange(corpus, FinishedPart(plan.work.examined(line_range.number)), starts[corpus.use])
        found[corpus.use].append(cleaned)
        starts[corpus.use] += cleaned.count
    return found


Pair = tuple[str, str]
MOST_JOINED = 4  # neighbours
LONGEST_TITLE = 80  # letters
_FINAL = re.compile(r"[.!?。！？]$")
_OPENING = re.compile(r"^[¿¡]")
_SMALL = frozenset(  # words that stay small in a title
    "a an and as at by for in of on or the to with der die das den dem des ein eine und im am von zu mit für auf"
    " le la les un une et ou de du à au aux en dans el los las una y o del al con por para os um uma e do da dos"
    " no na em".split()
)


def vary(pairs: Iterator[Pair], variants: Variants, joined: float, longest: int) -> Iterator[Pair]:
    """Yield the pairs of one corpus in order, some joined with those after them, some changed."""
    for pair in _join(pairs, joined, longest) if joined else pairs:
        yield _varied(pair, variants)


def _varied(pair: Pair, variants: Variants) -> Pair:
    marked = mark_pair(*pair, variants.marked) if variants.marked else pair
    drawn = _draw("variant", pair)
    for share, change in ((variants.upper, _upper), (variants.title, _title), (variants.bare, _bare)):
        if drawn < share:
            return change(marked)
        drawn -= share
    return marked


def _draw(purpose: str, pair: Pair) -> float:
    """A pseudo-random number in [0, 1), fixed for one pair."""
    return hash_words(purpose, *pair) / 2.0**64


def _join(pairs: Iterator[Pair], share: float, longest: int) -> Iterator[Pair]:
    """Join two to four neighbours from each pair that is drawn: whole sentences, up to `longest` letters."""
    run, wanted = list[Pair](), 1
    for pair in pairs:
        if run and not _may_follow(run, pair, longest):
            yield _joined(run)
            run = []
        if not run:
            drawn = _draw("joined", pair) / share
            wanted = 2 + int(drawn * (MOST_JOINED - 1)) if drawn < 1 and _is_sentence(pair) else 1
        run.append(pair)
        if len(run) == wanted:
            yield _joined(run)
            run = []
    if run:
        yield _joined(run)


def _may_follow(run: list[Pair], pair: Pair, longest: int) -> bool:
    fits = all(length(before) + length(after) < longest for before, after in zip(_joined(run), pair, strict=True))
    return fits and _is_sentence(pair)


def _is_sentence(pair: Pair) -> bool:
    """Whether both texts end like sentences; headings and list items often do not."""
    return all(_FINAL.search(text) and len(text) > 1 for text in pair)


def _joined(run: list[Pair]) -> Pair:
    source, target = (("" if HAN.search(texts[0]) else " ").join(texts) for texts in zip(*run, strict=True))
    return source, target


def _has_case(pair: Pair) -> bool:
    return all(text.upper() != text.lower() and not HAN.search(text) for text in pair)


def _upper(pair: Pair) -> Pair:
    return (pair[0].upper(), pair[1].upper()) if _has_case(pair) else pair


def _title(pair: Pair) -> Pair:
    if not _has_case(pair) or max(map(length, pair)) > LONGEST_TITLE:
        return pair
    source, target = _bare(pair)
    return _titled(source), _titled(target)


def _titled(text: str) -> str:
    words = text.split(" ")
    return " ".join(w if n and w in _SMALL else w[:1].upper() + w[1:] for n, w in enumerate(words))


def _bare(pair: Pair) -> Pair:
    if not _is_sentence(pair):
        return pair
    source, target = (_OPENING.sub("", _FINAL.sub("", text)) for text in pair)
    return source, target
