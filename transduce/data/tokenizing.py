"""Text to memory-mapped token files: in worker processes, in order, the same bytes whatever their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transduce.data.corpus import ALIGNMENT, SIDES, Side, Span
from transduce.data.examination import Examination, Scratch, Section
from transduce.data.lines import read_lines
from transduce.data.links import PlacedLinks, place_links
from transduce.data.report import PLACES, Tally, excerpt
from transduce.data.text import CHUNK_LINES
from transduce.data.tokenizer import Tokenizer, Tokenizers
from transduce.data.workers import ordered_map
from transduce.progress import Progress

SAMPLE_CHARACTERS = 20


@dataclass(frozen=True)
class TokenizerFolder:
    """Where workers find the tokenizers, rather than being sent them with every chunk."""

    path: str
    digest: str  # tells apart what lay in the same folder at different times

    def load(self) -> Tokenizers:
        return _load(self.path, self.digest)


@lru_cache(maxsize=1)
def _load(path: str, digest: str) -> Tokenizers:
    return Tokenizers.load(path)


@dataclass(frozen=True)
class TextChunk:
    """Consecutive pairs of the scratch folder, those that were marked to leave already taken out."""

    section: int
    positions: list[int]
    source: list[bytes]
    target: list[bytes]
    tag: str
    longest: int  # 0: no limit
    links: list[bytes]  # a line a pair, or none where no corpus of the split has alignments


@dataclass(frozen=True)
class UnknownCharacters:
    """Characters that no piece of the tokenizer spells."""

    count: int
    total: int
    sample: str


@dataclass(frozen=True)
class TokenChunk:
    """Tokens of the pairs that stay, end to end, with the length of each."""

    section: int
    tokens: dict[Side, bytes]
    lengths: dict[Side, npt.NDArray[np.uint64]]
    too_long: list[tuple[int, str]]  # position and excerpt of pairs with too many tokens
    unknown: dict[Side, UnknownCharacters]
    read: int
    placed: PlacedLinks
    unplaced: list[tuple[int, str]]  # position and excerpt of pairs that lost their links

    def report(self, tally: Tally, scratch: Scratch) -> None:
        """Count what was dropped."""
        if self.too_long:
            tally.add("too_many_tokens", "dropped", len(self.too_long), _places(self.too_long, scratch))
        if self.unplaced:
            note = "in pieces they have other words than in the text; the pairs stay, without their links"
            places = _places(self.unplaced, scratch)
            tally.add("alignment_lost", "cleaned", len(self.unplaced), places, note)


def _places(found: list[tuple[int, str]], scratch: Scratch) -> list[str]:
    return [f"{scratch.place(position)}: {text}" for position, text in found[:PLACES]]


def unknown_of_both(tokenizers: Tokenizers, source: list[str], target: list[str]) -> dict[Side, UnknownCharacters]:
    """Count the characters without a piece on each side."""
    return {"source": _unknown(tokenizers.source, source), "target": _unknown(tokenizers.target, target)}


def _unknown(tokenizer: Tokenizer, texts: list[str]) -> UnknownCharacters:
    joined = "".join(texts)
    unknown = tokenizer.unknown_of(set(joined))
    if not unknown:
        return UnknownCharacters(0, len(joined), "")
    counts = Counter(joined)
    sample = "".join(sorted(unknown)[:SAMPLE_CHARACTERS])
    return UnknownCharacters(sum(counts[character] for character in unknown), len(joined), sample)


def tokenize_chunk(chunk: TextChunk, folder: TokenizerFolder, dtypes: dict[Side, str]) -> TokenChunk:
    """What a worker does."""
    tokenizers = folder.load()
    source = [line.decode() for line in chunk.source]
    target = [line.decode() for line in chunk.target]
    tag = [tokenizers.source.token(chunk.tag)] if chunk.tag else []
    pairs, too_long, stayed = [], [], []
    encoded = zip(tokenizers.source.encode(source), tokenizers.target.encode(target), strict=True)
    for index, (left, right) in enumerate(encoded):
        if chunk.longest and max(len(tag) + len(left), len(right)) > chunk.longest:
            too_long.append((chunk.positions[index], excerpt((source[index], target[index])[len(right) > len(left)])))
        else:
            pairs.append((tag + left, right))
            stayed.append(index)
    lines = [chunk.links[index] for index in stayed] if chunk.links else [b""] * len(stayed)
    placed = place_links(lines, pairs, bool(tag), tokenizers)
    sides = {side: [pair[number] for pair in pairs] for number, side in enumerate(SIDES)}
    return TokenChunk(
        chunk.section,
        {side: np.array([t for tokens in sides[side] for t in tokens], dtypes[side]).tobytes() for side in SIDES},
        {side: np.array([len(tokens) for tokens in sides[side]], np.uint64) for side in SIDES},
        too_long,
        unknown_of_both(tokenizers, source, target),
        len(chunk.positions),
        placed,
        [(chunk.positions[stayed[i]], excerpt(source[stayed[i]])) for i in placed.unplaced],
    )


def token_dtypes(tokenizers: Tokenizers) -> dict[Side, str]:
    """The smallest type that holds every token of a side."""
    sizes: dict[Side, int] = {"source": tokenizers.source.size, "target": tokenizers.target.size}
    return {side: "uint16" if size <= 1 << 16 else "uint32" for side, size in sizes.items()}


class _Writer:
    """Items end to end in one file (the tokens of a side, or links), and where each sentence's begin in another."""

    def __init__(self, path: Path, items: str = "tokens") -> None:
        self._items, self._offsets = Path(f"{path}.{items}").open("wb"), Path(f"{path}.offsets").open("wb")  # noqa: SIM115
        self._offsets.write(np.zeros(1, "<u8").tobytes())
        self._end = 0

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: object) -> None:
        self._items.close()
        self._offsets.close()

    def add(self, items: bytes, lengths: npt.NDArray[np.uint64]) -> None:
        ends = np.uint64(self._end) + np.cumsum(lengths, dtype=np.uint64)
        self._items.write(items)
        self._offsets.write(ends.astype("<u8").tobytes())
        self._end = int(ends[-1]) if len(ends) else self._end


@dataclass(frozen=True)
class Tokenizing:
    """How the splits of a corpus become token files."""

    tokenizers: Tokenizers
    folder: Path  # where they are saved
    longest: int  # tokens on either side of a training pair
    workers: int

    def write_split(self, examination: Examination, split: str, output: Path) -> list[Span]:
        """Write the token files of a split; what is found is added to the tallies of its sections."""
        scratch = examination.scratches[split]
        sections = [section for section in examination.sections if section.split == split]
        stays = [0] * len(sections)
        rates = [_Rates() for _ in sections]
        with (
            ExitStack() as files,
            Progress(f"Tokenizing {split}", sum(section.stayed for section in sections), "pairs") as progress,
        ):
            writers = {side: files.enter_context(_Writer(output / f"{split}.{side}")) for side in SIDES}
            path = output / f"{split}.{ALIGNMENT}"
            links = files.enter_context(_Writer(path, "links")) if scratch.aligned else None
            for result in self._tokenize(examination, scratch, sections):
                for side in SIDES:
                    writers[side].add(result.tokens[side], result.lengths[side])
                if links is not None:
                    links.add(result.placed.links, result.placed.lengths)
                stays[result.section] += len(result.lengths["source"])
                rates[result.section].add(result.unknown)
                result.report(sections[result.section].tally, scratch)
                progress.advance(result.read)
        for section, rate in zip(sections, rates, strict=True):
            rate.report(section.tally, self.tokenizers)
        bounds = np.cumsum([0, *stays]).tolist()
        return [
            Span(section.text.label, start, stop, section.text.weight, section.text.tag)
            for section, (start, stop) in zip(sections, pairwise(bounds), strict=True)
        ]

    def _tokenize(self, examination: Examination, scratch: Scratch, sections: list[Section]) -> Iterator[TokenChunk]:
        folder = TokenizerFolder(str(self.folder), self.tokenizers.digest())
        work = partial(tokenize_chunk, folder=folder, dtypes=token_dtypes(self.tokenizers))
        longest = self.longest if scratch.split == "train" else 0
        return ordered_map(work, text_chunks(examination, scratch, sections, longest), self.workers)


def add_unknown_characters(examination: Examination, tokenizers: Tokenizers) -> None:
    """Count the characters that a given tokenizer has no piece for, without tokenizing."""
    for split, scratch in examination.scratches.items():
        sections = [section for section in examination.sections if section.split == split]
        rates = [_Rates() for _ in sections]
        for chunk in text_chunks(examination, scratch, sections, 0):
            source, target = ([line.decode() for line in lines] for lines in (chunk.source, chunk.target))
            rates[chunk.section].add(unknown_of_both(tokenizers, source, target))
        for section, rate in zip(sections, rates, strict=True):
            rate.report(section.tally, tokenizers)


class _Rates:
    """Unknown characters of both sides of one corpus, added up."""

    def __init__(self) -> None:
        self.sums: dict[Side, UnknownCharacters] = {side: UnknownCharacters(0, 0, "") for side in SIDES}

    def add(self, more: dict[Side, UnknownCharacters]) -> None:
        for side, unknown in more.items():
            known = self.sums[side]
            sample = known.sample + "".join(c for c in unknown.sample if c not in known.sample)
            self.sums[side] = UnknownCharacters(
                known.count + unknown.count, known.total + unknown.total, sample[:SAMPLE_CHARACTERS]
            )

    def report(self, tally: Tally, tokenizers: Tokenizers) -> None:
        for side, unknown in self.sums.items():
            tokenizer = tokenizers.source if side == "source" else tokenizers.target
            if unknown.count:
                fate = "written as bytes" if tokenizer.byte_fallback else "written as the unknown token"
                rate = f"{unknown.count / unknown.total:.4%} of the characters"
                note = f"{rate}, {fate}; such as {excerpt(unknown.sample)}"
                tally.add(f"unknown_characters_in_{side}", "kept", unknown.count, note=note)


def text_chunks(
    examination: Examination, scratch: Scratch, sections: list[Section], longest: int
) -> Iterator[TextChunk]:
    """The pairs of a split that stay, in order."""
    source, target = read_lines(str(scratch.text("source"))), read_lines(str(scratch.text("target")))
    links = read_lines(str(scratch.text("alignment"))) if scratch.aligned else iter(())
    start = 0
    for number, section in enumerate(sections):
        end = start + section.stayed
        while start < end:
            stop = min(start + CHUNK_LINES, end)
            left, right = list(islice(source, stop - start)), list(islice(target, stop - start))
            linked = list(islice(links, stop - start))
            stays = np.ones(stop - start, np.bool_)
            if scratch.split == "train":
                stays = ~examination.leaves(examination.marks[start:stop])
            chosen = np.flatnonzero(stays).tolist()
            yield TextChunk(
                number,
                [start + index for index in chosen],
                [left[index] for index in chosen],
                [right[index] for index in chosen],
                section.text.tag,
                longest,
                [linked[index] for index in chosen] if linked else [],
            )
            start = stop
