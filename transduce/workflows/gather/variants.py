"""Variants of training pairs: neighbours joined, capitals, titles, no final mark, marks for protected spans.

A variant replaces its pair, and always changes both sides alike, since both directions are trained. The variant of a
pair is drawn by a hash of its two texts, so the result depends on text and settings alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from transduce.text.protect import mark_pair
from transduce.workflows.gather.clean import HAN, hash_words, length
from transduce.workflows.gather.settings import Variants

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
