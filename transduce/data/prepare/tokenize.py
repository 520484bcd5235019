"""Tokenize text, or read files as frames, by line range in worker processes; their number does not matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set, Sized
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transduce.core.errors import RunError
from transduce.core.processes import ordered_map
from transduce.core.progress import Progress
from transduce.data.corpus import ALIGNMENT, SIDES, Side
from transduce.data.doctor.examine import LINE, Examination, ExaminedSplit
from transduce.data.doctor.report import Tally, excerpt
from transduce.data.formats.inventory import CHUNK_LINES
from transduce.data.formats.lines import read_lines
from transduce.data.prepare.work_folder import PartWriter, WorkFolder, gather
from transduce.data.readers import Array, FileReader, Unreadable
from transduce.data.word_links import PlacedLinks, place_links
from transduce.text.tokenizer import Tokenizer, Tokenizers

SAMPLE_CHARACTERS = 20
LENGTH = "<u4"
CHUNK_FILES = 50  # recordings or pictures at a time


@dataclass(frozen=True)
class TokenizerFolder:
    """Where workers load the tokenizers from, instead of receiving them with every chunk."""

    path: str
    digest: str  # distinguishes the contents of one folder at different times

    def load(self) -> Tokenizers:
        return _load(self.path, self.digest)


@lru_cache(maxsize=1)
def _load(path: str, digest: str) -> Tokenizers:
    return Tokenizers.load(path)


@dataclass(frozen=True)
class TextChunk:
    """Consecutive pairs of a line range, without those marked to be dropped."""

    line_range: int
    section: int
    positions: list[int]  # among the pairs of the split left by the checks of single pairs
    file: str
    lines: list[int]
    source: list[bytes]
    target: list[bytes]
    tag: str
    longest: int  # 0: no limit
    links: list[bytes]  # a line per pair, or empty if no corpus of the split has alignments

    def place(self, index: int, text: str) -> str:
        """Location and excerpt of a pair, for reports."""
        return f"{self.file}:{self.lines[index]}: {excerpt(text)}"


@dataclass(frozen=True)
class UnknownCharacters:
    """Counts of characters that no piece of the tokenizer covers."""

    count: int = 0
    total: int = 0
    sample: str = ""

    def __add__(self, more: UnknownCharacters) -> UnknownCharacters:
        sample = self.sample + "".join(c for c in more.sample if c not in self.sample)
        return UnknownCharacters(self.count + more.count, self.total + more.total, sample[:SAMPLE_CHARACTERS])


@dataclass(frozen=True)
class TokenChunk:
    """Tokens of the pairs that stay, end to end, with the length of each."""

    tokens: dict[Side, bytes]
    lengths: dict[Side, npt.NDArray[np.uint64]]
    unknown: dict[Side, UnknownCharacters]
    read: int
    placed: PlacedLinks
    tally: Tally


def unknown_of_both(tokenizers: Tokenizers, source: list[str], target: list[str]) -> dict[Side, UnknownCharacters]:
    """Count the characters without a piece on each side."""
    return {"source": _unknown(tokenizers.source, source), "target": _unknown(tokenizers.target, target)}


def frame_chunk(
    chunk: TextChunk, folder: TokenizerFolder, dtypes: dict[Side, str], reader: FileReader
) -> tuple[int, TokenChunk]:
    """Read the files of a chunk as frames in place of source tokens, in a worker process."""
    tokenizers = folder.load()
    target = [line.decode() for line in chunk.target]
    frames: list[Array] = []
    tokens: list[list[int]] = []
    tally = Tally()
    for index, (line, right) in enumerate(zip(chunk.source, tokenizers.target.encode(target), strict=True)):
        path = line.decode()
        if chunk.longest and len(right) > chunk.longest:
            tally.add("too_many_tokens", "dropped", 1, [chunk.place(index, target[index])])
            continue
        try:
            content = reader.load(path)
        except Unreadable as error:
            raise RunError(f"{path}: was readable when examined, but is not now: {error}; prepare again") from None
        variants = reader.varied(content) if chunk.longest else [reader.frames(content)]
        frames += variants
        tokens += [right] * len(variants)
    target_tokens = np.array([token for sentence in tokens for token in sentence], dtypes["target"])
    return chunk.line_range, TokenChunk(
        {
            "source": b"".join(sequence.astype(dtypes["source"]).tobytes() for sequence in frames),
            "target": target_tokens.tobytes(),
        },
        {"source": _lengths(frames), "target": _lengths(tokens)},
        unknown_of_both(tokenizers, [], target),
        len(chunk.positions),
        PlacedLinks(b"", np.zeros(len(tokens), np.uint64), []),
        tally,
    )


def _lengths(sequences: Sequence[Sized]) -> npt.NDArray[np.uint64]:
    return np.array([len(sequence) for sequence in sequences], np.uint64)


def _unknown(tokenizer: Tokenizer, texts: list[str]) -> UnknownCharacters:
    joined = "".join(texts)
    unknown = tokenizer.unknown_of(set(joined))
    if not unknown:
        return UnknownCharacters(0, len(joined), "")
    counts = {character: count for character, count in Counter(joined).items() if character in unknown}
    return UnknownCharacters(sum(counts.values()), len(joined), "".join(counts)[:SAMPLE_CHARACTERS])  # the first ones


def tokenize_chunk(chunk: TextChunk, folder: TokenizerFolder, dtypes: dict[Side, str]) -> tuple[int, TokenChunk]:
    """Tokenize a chunk, in a worker process."""
    tokenizers = folder.load()
    source = [line.decode() for line in chunk.source]
    target = [line.decode() for line in chunk.target]
    tag = [tokenizers.source.token(chunk.tag)] if chunk.tag else []
    pairs, stayed, tally = [], [], Tally()
    encoded = zip(tokenizers.source.encode(source), tokenizers.target.encode(target), strict=True)
    for index, (left, right) in enumerate(encoded):
        if chunk.longest and max(len(tag) + len(left), len(right)) > chunk.longest:
            longer = (source[index], target[index])[len(right) > len(left)]
            tally.add("too_many_tokens", "dropped", 1, [chunk.place(index, longer)])
        else:
            pairs.append((tag + left, right))
            stayed.append(index)
    lines = [chunk.links[index] for index in stayed] if chunk.links else [b""] * len(stayed)
    placed = place_links(lines, pairs, bool(tag), tokenizers)
    for index in (stayed[i] for i in placed.unplaced):
        note = "their pieces form other words than the text; the pairs stay, without links"
        tally.add("alignment_lost", "cleaned", 1, [chunk.place(index, source[index])], note)
    sides = {side: [pair[number] for pair in pairs] for number, side in enumerate(SIDES)}
    return chunk.line_range, TokenChunk(
        {side: np.array([t for tokens in sides[side] for t in tokens], dtypes[side]).tobytes() for side in SIDES},
        {side: _lengths(sides[side]) for side in SIDES},
        unknown_of_both(tokenizers, source, target),
        len(chunk.positions),
        placed,
        tally,
    )


def token_dtypes(tokenizers: Tokenizers, reader: FileReader | None = None) -> dict[Side, str]:
    """The smallest dtype that holds every token of a side; for frames the reader's."""
    sizes: dict[Side, int] = {"source": tokenizers.source.size, "target": tokenizers.target.size}
    dtypes: dict[Side, str] = {side: "uint16" if size <= 1 << 16 else "uint32" for side, size in sizes.items()}
    return dtypes if reader is None else {**dtypes, "source": reader.dtype}


class _TokenizedPart:
    """The part of one line range: tokens of each side and links, with the length of each sentence."""

    def __init__(self, number: int, work: WorkFolder, aligned: bool, progress: Progress) -> None:
        self.number, self.aligned, self.progress = number, aligned, progress
        self.writer = PartWriter(work.tokenized(number))
        self.pairs = 0
        self.tally = Tally()
        self.unknown: dict[Side, UnknownCharacters] = {side: UnknownCharacters() for side in SIDES}

    def add(self, result: TokenChunk) -> None:
        for side in SIDES:
            self.writer.add(f"{side}.tokens", result.tokens[side])
            self.writer.add(f"{side}.lengths", result.lengths[side].astype(LENGTH).tobytes())
            self.unknown[side] += result.unknown[side]
        if self.aligned:
            self.writer.add(f"{ALIGNMENT}.links", result.placed.links)
            self.writer.add(f"{ALIGNMENT}.lengths", result.placed.lengths.astype(LENGTH).tobytes())
        self.pairs += len(result.lengths["source"])
        self.tally.merge(result.tally)
        self.progress.advance(result.read)

    def finish(self) -> None:
        unknown = {side: asdict(rate) for side, rate in self.unknown.items()}
        self.writer.finish({"pairs": self.pairs, "tally": self.tally.as_list(), "unknown": unknown})


@dataclass(frozen=True)
class Tokenizing:
    """Tokenizes line ranges."""

    work: WorkFolder
    tokenizers: Tokenizers
    folder: Path  # where the tokenizers are saved
    longest: int  # tokens on either side of a training pair
    workers: int
    reader: FileReader | None = None  # for sources that are files; None for text

    def write_parts(self, examination: Examination, numbers: Set[int]) -> None:
        """Tokenize the remaining pairs of the numbered line ranges, into one part each."""
        folder = TokenizerFolder(str(self.folder), self.tokenizers.digest())
        dtypes, lines = token_dtypes(self.tokenizers, self.reader), CHUNK_LINES if self.reader is None else CHUNK_FILES
        work = partial(tokenize_chunk, folder=folder, dtypes=dtypes)
        if self.reader is not None:
            work = partial(frame_chunk, folder=folder, dtypes=dtypes, reader=self.reader)
        chunks = (
            chunk
            for split in examination.splits.values()
            for chunk in text_chunks(examination, split, self.longest if split.name == "train" else 0, numbers, lines)
        )
        chosen = [
            (split, line_range)
            for split in examination.splits.values()
            for line_range in split.line_ranges
            if line_range.lines.number in numbers
        ]
        aligned = {line_range.lines.number for split, line_range in chosen if split.aligned}
        total = sum(int(examination.stays(split, line_range).sum()) for split, line_range in chosen)
        with Progress("Tokenizing", total, "pairs") as progress:
            results = ordered_map(work, chunks, self.workers)
            gather(results, lambda number: _TokenizedPart(number, self.work, number in aligned, progress))


def text_chunks(
    examination: Examination,
    split: ExaminedSplit,
    longest: int = 0,
    numbers: Set[int] | None = None,
    size: int = CHUNK_LINES,
) -> Iterator[TextChunk]:
    """Yield the pairs of a split that stay, in order, at least a chunk per line range: all, or the numbered ones."""
    for line_range in split.line_ranges:
        if numbers is not None and line_range.lines.number not in numbers:
            continue
        section = examination.sections[line_range.lines.section]
        path = line_range.part.path
        source, target = (read_lines(str(path / f"{side}.txt")) for side in SIDES)
        links = read_lines(str(path / "alignment.txt")) if split.aligned else iter(())
        lines, stays = line_range.part.array("lines", LINE), examination.stays(split, line_range)
        for at in range(0, max(line_range.stayed, 1), size):
            count = min(size, line_range.stayed - at)
            left, right, linked = (list(islice(texts, count)) for texts in (source, target, links))
            first = line_range.start + at
            chosen = np.flatnonzero(stays[at : at + count])
            yield TextChunk(
                line_range.lines.number,
                line_range.lines.section,
                (chosen + first).tolist(),
                line_range.file,
                lines[chosen + at].tolist(),
                [left[index] for index in chosen.tolist()],
                [right[index] for index in chosen.tolist()],
                section.text.tag,
                longest,
                [linked[index] for index in chosen.tolist()] if linked else [],
            )


# -- characters without a piece ----------------------------------------------------------------------------------------


def add_unknown_characters(examination: Examination, tokenizers: Tokenizers, text: bool = True) -> None:
    """Count the characters without a piece in a given tokenizer, without tokenizing."""
    sums = [{side: UnknownCharacters() for side in SIDES} for _ in examination.sections]
    for split in examination.splits.values():
        for chunk in text_chunks(examination, split):
            source, target = ([line.decode() for line in lines] for lines in (chunk.source, chunk.target))
            for side, unknown in unknown_of_both(tokenizers, source if text else [], target).items():
                sums[chunk.section][side] += unknown
    for section, unknown_characters in zip(examination.sections, sums, strict=True):
        report_unknown(section.tally, unknown_characters, tokenizers)


def report_unknown(tally: Tally, unknown_of_side: dict[Side, UnknownCharacters], tokenizers: Tokenizers) -> None:
    """Add the unknown-character rates of one corpus to its findings."""
    for side, unknown in unknown_of_side.items():
        tokenizer = tokenizers.source if side == "source" else tokenizers.target
        if unknown.count:
            fate = "written as bytes" if tokenizer.byte_fallback else "written as the unknown token"
            rate = f"{unknown.count / unknown.total:.4%} of the characters"
            note = f"{rate}, {fate}; such as {excerpt(unknown.sample)}"
            tally.add(f"unknown_characters_in_{side}", "kept", unknown.count, note=note)
