"""What one request may cost: its work in tokens, and the attention weights that it asks for.

Both are counted from the texts before any of the work begins, and what is too much is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from transduce.server.failures import Refused
from transduce.server.settings import Settings

MOST_INCLUDED = 128  # tokens of words that must appear
MOST_EXCLUDED = 1000  # characters of words that must not
CELLS_A_TOKEN = 64  # attention weights that count as much as a token at the gate
PASSES_ALIGNED = 2  # of the model over a sentence: to translate it, and to see where it looked
PASSES_TAGGED = 3  # over a passage with tags: the same, and once more in stretches where the tags cannot be placed


def width_of(n_best: int, beam: int, included: int = 0) -> int:
    """How many times the usual work a search does: more hypotheses than a usual beam has cost more, and the search for
    words that must appear keeps one for each of their tokens."""
    return max(1, n_best // 2, beam // 4, included // 4)


def check_included(included: int, tokens: int, settings: Settings) -> int:
    """The tokens of words that must appear, if a search can keep so many hypotheses of a sentence of some tokens."""
    if included > MOST_INCLUDED:
        raise Refused(
            422,
            f"include: expected words of at most {MOST_INCLUDED} tokens in all, got {included}; give fewer or shorter"
            " words",
            "limit",
        )
    if tokens * width_of(1, 0, included) > settings.batch_tokens:
        raise Refused(
            422,
            f"include: words of {included} tokens are too many for a text of {tokens} tokens; give fewer words, or"
            " shorter texts",
            "limit",
        )
    return included


def check_work(tokens: int, settings: Settings) -> int:
    """The tokens, if a request may be that much work."""
    if tokens > settings.request_tokens:
        raise Refused(
            422,
            f"the request is {tokens:,} tokens of work, and at most {settings.request_tokens:,} are allowed (each"
            " sentence counts for every model on its way, and more with alignment, tags, n_best or a large beam); send"
            " fewer texts at a time",
            "limit",
        )
    return tokens


def check_lengths(name: str, texts: Sequence[str], settings: Settings) -> None:
    """Refuse more and longer texts than are allowed in the field `name`."""
    if len(texts) > settings.texts:
        raise Refused(
            400, f"{name}: expected at most {settings.texts} texts, got {len(texts)}; send fewer at a time", "limit"
        )
    longest = max(map(len, texts), default=0)
    if longest > settings.characters:
        raise Refused(
            400, f"{name}: expected at most {settings.characters} characters, got {longest}; send it in parts", "limit"
        )


def check_excluded(words: Sequence[str]) -> None:
    """Words that must not appear: each may be written in many ways, all of which are looked for at every step."""
    characters = sum(map(len, words))
    if characters > MOST_EXCLUDED:
        raise Refused(
            422, f"exclude: expected words of at most {MOST_EXCLUDED} characters in all, got {characters}", "limit"
        )


def check_cells(cells: int, settings: Settings, what: str = "the answer") -> int:
    """The number of attention weights, if so many may be asked for."""
    if cells > settings.cells:
        raise Refused(
            422,
            f"{what} would take {cells:,} attention weights, and at most {settings.cells:,} are allowed; send shorter"
            " texts, or fewer at a time",
            "limit",
        )
    return cells
