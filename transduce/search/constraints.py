"""Decoding constraints of a sentence: a forced prefix, phrases to include, and phrases to exclude.

Words become tokens here. A word can be written in several ways (`▁Haus`, `Ha us`), so each word to include is a choice
of phrases and each word to exclude a set of them.

`Automaton` is that of Aho and Corasick (1975) over the phrases to include. A node is the longest suffix of the written
text that is a prefix of a phrase, so that a broken-off phrase falls back to whatever it still begins. Every engine's
beam search follows these tables. Imports no torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transduce.core.errors import ConfigError, DataError
from transduce.text.tokenizer import Tokenizer

Phrase = tuple[int, ...]


class CancelToken:
    """Cancels running work. Any thread may cancel; searches check it between steps, and leave unfinished results."""

    def __init__(self) -> None:
        self.cell = ctypes.c_int32(0)  # read by the native core

    def cancel(self) -> None:
        """Request that the work end."""
        self.cell.value = 1

    @property
    def cancelled(self) -> bool:
        return bool(self.cell.value)


@dataclass(frozen=True)
class DecodingConstraints:
    """Tokens a translation must begin with, phrases it must contain, and phrases that must not occur in it.

    At least one phrase of each choice in `include` must appear contiguously. A prefix overrules `exclude`.
    `cancel_token` lets another thread end the search of this sentence between two steps.
    """

    prefix: Phrase = ()
    include: tuple[tuple[Phrase, ...], ...] = ()
    exclude: tuple[Phrase, ...] = ()
    cancel_token: CancelToken | None = None


UNCONSTRAINED = DecodingConstraints()


def cancelled_rows(constraints: Sequence[DecodingConstraints]) -> list[int]:
    """Indices of the sentences that are cancelled."""
    return [
        number
        for number, constraint in enumerate(constraints)
        if constraint.cancel_token is not None and constraint.cancel_token.cancelled
    ]


def check_one_path(constraints: Sequence[DecodingConstraints]) -> None:
    """Refuse words to include for a search that keeps a single path."""
    if any(constraint.include for constraint in constraints):
        raise ConfigError(
            "include: words that must appear need a beam search, which keeps paths at every stage of writing them;"
            " greedy search and sampling follow one path. Use beam=4, or a search of kind 'beam'"
        )


def constraints_of_words(
    tokenizer: Tokenizer, include: Sequence[str | tuple[str, ...]], exclude: Sequence[str]
) -> DecodingConstraints:
    """Turn words to include and exclude into target tokens; a word that cannot be written need not be excluded.

    A tuple among the words to include is a choice: one of its words must appear.
    """
    choices = [(word,) if isinstance(word, str) else word for word in dict.fromkeys(include)]
    for name, words in (("include", [word for choice in choices for word in choice]), ("exclude", exclude)):
        for word in words:
            if not word.strip() or not tokenizer.spelling(word):  # a zero-width space has no piece at all
                raise DataError(f"{name}: a blank word was given; give words that can be seen, or none")
    excluded = {word: _shortest([*tokenizer.spellings(word), *_within(tokenizer, word)]) for word in exclude}
    included = tuple(_choice(tokenizer, choice, excluded) for choice in choices)
    forbidden = sorted({phrase for phrases in excluded.values() for phrase in phrases})
    return DecodingConstraints(include=included, exclude=tuple(_shortest(forbidden)))


def _choice(tokenizer: Tokenizer, words: Sequence[str], excluded: dict[str, list[Phrase]]) -> tuple[Phrase, ...]:
    """List the ways to write one of some words: as after a space, and, where no space is needed, inside other text."""
    word, ways = words[0], [way for word in words for way in _ways(tokenizer, word)]
    written = [way for way in dict.fromkeys(ways) if tokenizer.symbols.unk not in way]
    if not written:
        unknown = "".join(tokenizer.unknown(word))
        raise DataError(
            f"include: {word!r} cannot be written, since the model's vocabulary lacks {unknown!r}; leave it out"
        )
    for other, phrases in excluded.items():
        written = [way for way in written if not any(holds(way, phrase) for phrase in phrases)]
        if not written:
            raise DataError(f"include: {word!r} cannot be written without {other!r}, which exclude forbids; drop one")
    return tuple(written)


def _ways(tokenizer: Tokenizer, word: str) -> list[Phrase]:
    """List the ways to write one word."""
    ways = [tokenizer.spelling(word)]
    if not _spaced(word):
        ways += [tokenizer.spelling(word, inside=True), *_within(tokenizer, word)]
    return ways


def _within(tokenizer: Tokenizer, word: str) -> list[Phrase]:
    """Pieces that contain the word and more; only in scripts without spaces is that the same word."""
    return [] if _spaced(word) else tokenizer.holding(word)


def _spaced(word: str) -> bool:
    """Whether the word's script separates words by spaces: it has digits or cases. `ein` is then not in `kein`."""
    begin = word.strip()[0]
    return begin.isdigit() or begin.lower() != begin.upper()


def _shortest(phrases: Sequence[Phrase]) -> list[Phrase]:
    """Keep the phrases that contain no other one: the rest cannot occur without these."""
    phrases = [phrase for phrase in phrases if phrase]  # normalization may leave nothing of a phrase
    unique = set(phrases)
    lengths: dict[int, set[int]] = {}  # lengths of the phrases that begin with a token
    for phrase in unique:
        lengths.setdefault(phrase[0], set()).add(len(phrase))

    def contains_no_other(phrase: Phrase) -> bool:
        runs = ((begin, size) for begin, token in enumerate(phrase) for size in lengths.get(token, ()))
        return not any(
            size < len(phrase) and begin + size <= len(phrase) and phrase[begin : begin + size] in unique
            for begin, size in runs
        )

    return [phrase for phrase in phrases if contains_no_other(phrase)]


def holds(phrase: Phrase, part: Phrase) -> bool:
    """Whether `part` occurs contiguously in the phrase."""
    return any(phrase[i : i + len(part)] == part for i in range(len(phrase) - len(part) + 1))


Include = tuple[tuple[Phrase, ...], ...]  # for each constraint the phrases that fulfil it


@dataclass(frozen=True)
class Automaton:
    """Automaton of one sentence's phrases. `tokens` are all that occur in them; any other token leads to node 0.

    goto[node][i] is the node after token i, complete[node] the constraints fulfilled on reaching it,
    rest[node][constraint] the tokens that still fulfil a constraint from there, needed[constraint] the tokens from the
    start.
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
    """Drop constraints that another one implies in every way it can be written.

    Of two that imply each other the first stays.
    """
    kept: list[tuple[Phrase, ...]] = []
    for index, ways in enumerate(include):
        earlier = any(implies(other, ways) for other in kept)
        if not earlier and not any(implies(o, ways) and not implies(ways, o) for o in include[index + 1 :]):
            kept.append(ways)
    return tuple(kept)


def implies(ways: Sequence[Phrase], others: Sequence[Phrase]) -> bool:
    """Whether each of the ways contains one of the others."""
    return all(any(holds(way, other) for other in others) for way in ways)


def ends_with(text: Phrase, end: Phrase) -> bool:
    """Whether a phrase ends with another."""
    return text[len(text) - len(end) :] == end if len(end) <= len(text) else False
