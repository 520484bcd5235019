"""What is asked of one sentence's translation: how it begins, what must appear in it and what must not.

Words become tokens here. The same word can be written in several ways (`▁Haus`, `Ha us`), so each word to include is a
choice of phrases and each word to exclude a set of them. Imports no torch.

Phrases that must appear, as the automaton of Aho and Corasick 1975, in plain Python.

A node is the longest end of what is written that begins a phrase, so that a phrase broken off falls back to whatever
it still begins. Imports no torch: every engine's beam search follows these tables.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transduce.core.errors import ConfigError, DataError
from transduce.text.tokenizer import Tokenizer

Phrase = tuple[int, ...]


class CancelToken:
    """Cancels work under way: whoever waited for it is gone. Any thread may cancel; searches look between
    steps, and what they have then is not finished."""

    def __init__(self) -> None:
        self.cell = ctypes.c_int32(0)  # which the native core reads by itself

    def cancel(self) -> None:
        """From now on nobody waits."""
        self.cell.value = 1

    @property
    def cancelled(self) -> bool:
        return bool(self.cell.value)


@dataclass(frozen=True)
class DecodingConstraints:
    """Tokens a translation must begin with, phrases it must hold, and phrases that must not occur in it.

    Of each choice in `include` one phrase at least must appear, its tokens in a row. A prefix overrules `exclude`.
    `stop` tells a search, between two steps, that it may leave this sentence.
    """

    prefix: Phrase = ()
    include: tuple[tuple[Phrase, ...], ...] = ()
    exclude: tuple[Phrase, ...] = ()
    stop: CancelToken | None = None


UNCONSTRAINED = DecodingConstraints()


def cancelled_rows(constraints: Sequence[DecodingConstraints]) -> list[int]:
    """The sentences, by number, that nobody waits for any more."""
    return [
        number
        for number, constraint in enumerate(constraints)
        if constraint.stop is not None and constraint.stop.cancelled
    ]


def check_one_path(constraints: Sequence[DecodingConstraints]) -> None:
    """Refuse words to include for a search that keeps a single path."""
    if any(constraint.include for constraint in constraints):
        raise ConfigError(
            "include: words that must appear need a beam search, which keeps paths at every stage of writing them;"
            " greedy search and sampling follow one path. Use beam=4, or a search of kind 'beam'"
        )


def constraints_of_words(tokenizer: Tokenizer, include: Sequence[str], exclude: Sequence[str]) -> DecodingConstraints:
    """Words (or runs of words) as tokens of the target side. A word that cannot be written need not be excluded."""
    for name, words in (("include", include), ("exclude", exclude)):
        for word in words:
            if not word.strip() or not tokenizer.spelling(word):  # a zero-width space has no piece at all
                raise DataError(f"{name}: a blank word was given; give words that can be seen, or none")
    struck = {word: _shortest([*tokenizer.spellings(word), *_within(tokenizer, word)]) for word in exclude}
    wanted = tuple(_choice(tokenizer, word, struck) for word in dict.fromkeys(include))
    every = sorted({phrase for phrases in struck.values() for phrase in phrases})
    return DecodingConstraints(include=wanted, exclude=tuple(_shortest(every)))


def _choice(tokenizer: Tokenizer, word: str, struck: dict[str, list[Phrase]]) -> tuple[Phrase, ...]:
    """The ways to write a word that must appear: as after a space, and where none is needed as inside other text."""
    ways = [tokenizer.spelling(word)]
    if not _spaced(word):
        ways += [tokenizer.spelling(word, inside=True), *_within(tokenizer, word)]
    written = [way for way in ways if tokenizer.symbols.unk not in way]
    if not written:
        unknown = "".join(tokenizer.unknown(word))
        raise DataError(
            f"include: {word!r} cannot be written, for the model's vocabulary lacks {unknown!r}; leave it out"
        )
    for other, phrases in struck.items():
        written = [way for way in written if not any(holds(way, phrase) for phrase in phrases)]
        if not written:
            raise DataError(f"include: {word!r} cannot be written without {other!r}, which exclude forbids; drop one")
    return tuple(written)


def _within(tokenizer: Tokenizer, word: str) -> list[Phrase]:
    """Pieces that hold a word among others: only where words are not parted by spaces are these the same word."""
    return [] if _spaced(word) else tokenizer.holding(word)


def _spaced(word: str) -> bool:
    """Whether a space stands before the word: its script has digits or cases. `ein` is then not found in `kein`."""
    begin = word.strip()[0]
    return begin.isdigit() or begin.lower() != begin.upper()


def _shortest(phrases: Sequence[Phrase]) -> list[Phrase]:
    """Those that hold no other one: the rest cannot occur where these do not."""
    phrases = [phrase for phrase in phrases if phrase]  # what normalization leaves nothing of cannot be looked for
    every = set(phrases)
    lengths: dict[int, set[int]] = {}  # of the phrases that begin with a token
    for phrase in every:
        lengths.setdefault(phrase[0], set()).add(len(phrase))

    def free(phrase: Phrase) -> bool:
        runs = ((begin, size) for begin, token in enumerate(phrase) for size in lengths.get(token, ()))
        return not any(
            size < len(phrase) and begin + size <= len(phrase) and phrase[begin : begin + size] in every
            for begin, size in runs
        )

    return [phrase for phrase in phrases if free(phrase)]


def holds(phrase: Phrase, part: Phrase) -> bool:
    """Whether the part stands in the phrase, in a row."""
    return any(phrase[i : i + len(part)] == part for i in range(len(phrase) - len(part) + 1))


Include = tuple[tuple[Phrase, ...], ...]  # of each constraint the phrases that fulfil it


@dataclass(frozen=True)
class Automaton:
    """One sentence's phrases in plain Python. `tokens` are all that occur in them; any other token leads to node 0.

    goto[node][i] is the node after token i, complete[node] the constraints fulfilled on arriving there,
    rest[node][constraint] the tokens that still fulfil a constraint from there, needed[constraint] the same from
    nowhere.
    """

    tokens: list[int]
    goto: list[list[int]]
    complete: list[list[bool]]
    rest: list[list[int]]
    needed: list[int]

    @classmethod
    def of(cls, include: Include) -> Automaton:
        include = without_implied(include)
        phrases = [phrase for ways in include for phrase in ways]
        texts = sorted({phrase[:end] for phrase in phrases for end in range(len(phrase) + 1)} | {()})
        number = {text: node for node, text in enumerate(texts)}
        tokens = sorted({token for phrase in phrases for token in phrase})

        return cls(
            tokens,
            [[longest_end(number, (*text, token)) for token in tokens] for text in texts],
            [[any(ends_with(text, way) for way in ways) for ways in include] for text in texts],
            [[tokens_left(text, ways) for ways in include] for text in texts],
            [min(map(len, ways)) for ways in include],
        )


def longest_end(number: Mapping[Phrase, int], text: Phrase) -> int:
    """The number of the longest end of a text that has one."""
    return next(number[text[begin:]] for begin in range(len(text) + 1) if text[begin:] in number)


def tokens_left(text: Phrase, ways: Sequence[Phrase]) -> int:
    """How many tokens after this text fulfil a constraint in the shortest of its ways."""
    return min(len(way) - done for way in ways for done in range(len(way)) if ends_with(text, way[:done]))


def without_implied(include: Include) -> Include:
    """Without the constraints that another fulfils however it is written.

    Of two that fulfil each other the first stays.
    """
    kept: list[tuple[Phrase, ...]] = []
    for place, ways in enumerate(include):
        earlier = any(implies(other, ways) for other in kept)
        if not earlier and not any(implies(o, ways) and not implies(ways, o) for o in include[place + 1 :]):
            kept.append(ways)
    return tuple(kept)


def implies(ways: Sequence[Phrase], others: Sequence[Phrase]) -> bool:
    """Whether each of the ways holds one of the others."""
    return all(any(holds(way, other) for other in others) for way in ways)


def ends_with(text: Phrase, end: Phrase) -> bool:
    return text[len(text) - len(end) :] == end if len(end) <= len(text) else False
