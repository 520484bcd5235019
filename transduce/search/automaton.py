"""Phrases that must appear, as the automaton of Aho and Corasick 1975, in plain Python.

A node is the longest end of what is written that begins a phrase, so that a phrase broken off falls back to whatever
it still begins. Imports no torch: every engine's beam search follows these tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transduce.search.constraints import Phrase, holds

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

        def node_of(text: Phrase) -> int:
            return next(number[text[begin:]] for begin in range(len(text) + 1) if text[begin:] in number)

        def rest(text: Phrase, ways: Sequence[Phrase]) -> int:
            return min(len(way) - done for way in ways for done in range(len(way)) if ends_with(text, way[:done]))

        return cls(
            tokens,
            [[node_of((*text, token)) for token in tokens] for text in texts],
            [[any(ends_with(text, way) for way in ways) for ways in include] for text in texts],
            [[rest(text, ways) for ways in include] for text in texts],
            [min(map(len, ways)) for ways in include],
        )


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
