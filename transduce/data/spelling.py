"""Every way in which a tokenizer's pieces can write a text, fewest pieces first."""

from __future__ import annotations

from collections.abc import Mapping

Tokens = tuple[int, ...]


def spellings(text: str, pieces: Mapping[str, Tokens], most: int) -> list[Tokens]:
    """At most `most` ways to write `text` in whole pieces; none where a character belongs to no piece.

    `pieces` maps what a piece writes to its token, or a character that has none to the tokens of its bytes.
    """
    longest = max(map(len, pieces), default=0)
    ways: list[list[Tokens]] = [[()]]  # of each beginning of the text
    for end in range(1, len(text) + 1):
        found = {
            (*before, *pieces[text[start:end]])
            for start in range(max(0, end - longest), end)
            if text[start:end] in pieces
            for before in ways[start]
        }
        ways.append(sorted(found, key=lambda way: (len(way), way))[:most])
    return ways[-1]
