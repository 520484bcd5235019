"""Alternative words at one position of a translation, each with its continuation, for a click on a word.

The next tokens after a prefix come from a beam search that may write one token only, which any engine can run; each is
then continued by the model's own search. What is offered is a whole word in the target's language: in writing without
spaces, pieces that are new or that look at one source word. Imports no torch.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import Any

from transduce.core.errors import UserError
from transduce.search.constraints import CancelToken, DecodingConstraints
from transduce.search.settings import STEPWISE, Beam, Limits
from transduce.text.languages import TWO_LETTERS, WITHOUT_SPACES, Detector, script_languages
from transduce.text.tokenizer import Tokenizer
from transduce.translate.translator import Translator

WORST = 4.0  # how much less likely, in nats, than the likeliest an alternative may be
TRIES = 4  # tokens tried for each alternative: some continue the word before, or lead to one word twice
LONGEST = 4  # letters of a word in writing without spaces, if it has several pieces
FINAL_MARKS = ".!?…。！？"
_INSIDE = "'’-‐‑.,:·&"  # marks that may stand between two letters of a word


@dataclass(frozen=True)
class Alternative:
    """A whole word at the position, without punctuation; the whole translation; its log-probability."""

    word: str
    text: str
    log_prob: float


@dataclass(frozen=True)
class _Piece:
    """A piece of a translation: where it begins and ends, and the source word that it looks at, or -1."""

    begin: int
    end: int
    text: str
    source_word: int


def alternatives(
    translator: Translator,
    text: str,
    before: str,
    to: str = "",
    count: int = 5,
    stop: CancelToken | None = None,
    current: str = "",
) -> list[Alternative]:
    """Translations of a text that begin with `before` and continue in different ways, the likeliest first.

    A space at the end of `before` says that a word must begin there. `current` is the translation as it stands, which
    begins with `before`: its own word is not offered, and its final mark stays. Without it the likeliest continuation
    is offered too. Empty for models that read files, for non-autoregressive ones, and where another thread cancels
    through `stop`.
    """
    reads_files = translator.reading is not None
    if reads_files or not text.strip() or getattr(translator.decoder, "offers", STEPWISE) != STEPWISE:
        return []
    start = before.rstrip()
    found = _continued(translator, text, before, to, count * TRIES, stop)
    if stop is not None and stop.cancelled:
        return []
    least = max(found.values(), default=0.0) - WORST
    likely = sorted((full for full, log_prob in found.items() if log_prob >= least), key=lambda full: -found[full])
    words = _words(translator, text, start, to, likely, current)
    languages = _Languages(translator.tokenizers.source, to)
    # Of a name or a quotation in another language the alternatives are in that language too.
    same_language = not languages.excludes(current[len(start) :])
    by_word: dict[str, Alternative] = {}
    seen = {_letters(current)}
    current_word = _letters(words.get(current, ""))
    for full in likely:
        word, rest = words[full], full[len(start) :]
        new = word and _letters(word) != current_word and _letters(full) not in seen
        if new and not (same_language and (languages.excludes(word) or languages.excludes(rest))):
            whole = _with_final_mark(full, current) if current else full
            by_word.setdefault(_letters(word), Alternative(word, whole, found[full]))
    return list(by_word.values())[:count]


def _continued(
    translator: Translator, text: str, before: str, to: str, tries: int, stop: CancelToken | None
) -> dict[str, float]:
    """The likeliest translations whose next token after `before` differs, with their log-probabilities."""
    target = translator.tokenizers.target
    tag, rest = translator.tokenizers.source.cut_tag(text)
    tag = ((translator.tokenizers.source.tag(to),) if to else ()) + tag
    source = (*tag, *translator.tokenizers.source.encode([rest])[0])[: translator.longest - 1]
    begin = tuple(target.encode([before.strip()])[0]) if before.strip() else ()
    one_more = Beam(size=tries, n_best=tries, length_penalty=0.0, limits=Limits(longest=1))
    (found,) = translator.find([source], one_more, [DecodingConstraints(prefix=begin, cancel_token=stop)])
    nexts = [best.tokens for best in found if len(best.tokens) == len(begin) + 1 and _fits(target, best.tokens, before)]
    constraints = [DecodingConstraints(prefix=tokens, cancel_token=stop) for tokens in nexts]
    likeliest: dict[str, float] = {}
    for hypotheses in translator.find([source] * len(nexts), _one_best(translator), constraints):
        full = target.decode(hypotheses[0].tokens) if hypotheses else ""
        if hypotheses and full.startswith(before.rstrip()):
            likeliest[full] = max(hypotheses[0].log_prob, likeliest.get(full, -float("inf")))
    return likeliest


def _one_best(translator: Translator) -> Any:
    """The model's own search for one translation; a beam search where that reranks texts."""
    search = translator.search
    if isinstance(search, Beam):
        return replace(search, n_best=1)
    return search if not hasattr(search, "choose") else Beam()


def _fits(target: Tokenizer, tokens: Sequence[int], before: str) -> bool:
    """Whether the newest token comes after a space just where `before` ends with one."""
    (piece,) = target.pieces(tokens[-1:])
    return bool(piece) and (not before or piece.startswith("▁") == before[-1].isspace())


class _Languages:
    """Whether a text is in another language of a model than the target's; models of one direction have no other."""

    def __init__(self, source: Tokenizer, to: str) -> None:
        self.to = to
        self.detector = Detector([to, *(code for code in TWO_LETTERS if code != to and source.has_tag(code))])

    def excludes(self, text: str) -> bool:
        return bool(self.to) and self.detector.excludes(text, self.to)


def _words(
    translator: Translator, source: str, start: str, to: str, texts: Sequence[str], current: str
) -> dict[str, str]:
    """The word after `start` of each text and of the current translation; "" where no whole word begins there."""
    every = dict.fromkeys([*texts, current] if current.startswith(start) else texts)
    rests = {full: full[len(start) :].lstrip() for full in every}
    words = {full: _spaced_word(rest) for full, rest in rests.items()}
    after = {*rests.values()} - {""}
    unspaced = [full for full, rest in rests.items() if _is_unspaced(rest[:1])]
    if unspaced:
        pieces = dict(zip(unspaced, _pieces(translator, source, unspaced, to), strict=True))
        own = pieces.get(current, [])
        words |= {full: _unspaced_word(pieces[full], own, len(full) - len(rests[full]), after) for full in unspaced}
    return words


def _spaced_word(rest: str) -> str:
    """The letters and digits that a text begins with, and the marks among them, up to writing without spaces."""
    end = 0
    for number, letter in enumerate(rest):
        if _is_letter(letter) and not _is_unspaced(letter):
            end = number + 1
        elif letter not in _INSIDE or number != end:
            break
    return rest[:end]


def _unspaced_word(pieces: Sequence[_Piece], current: Sequence[_Piece], start: int, rests: Container[str]) -> str:
    """The pieces from `start` on that are one word: all that are new if few, else letters that look at one source word.

    "" where the first of them belongs to the word before: the tokenizer joins both, or it is one letter more before
    what another translation has there, as in 猫咪喜欢 beside 猫喜欢.
    """
    earlier, after = [one for one in pieces if one.begin < start], [one for one in pieces if one.begin >= start]
    own = [one for one in current if one.begin >= start]
    if not after or (earlier and earlier[-1].end > start):
        return ""
    if earlier and len(after[0].text) == 1 and "".join(one.text for one in after[1:]) in rests:
        return ""
    new = _in_script(after[: len(after) - _shared_end(after, own)] or after[:1])
    word = "".join(one.text for one in new)
    if own and len(word) <= LONGEST:
        return word
    word = new[0].text
    for one in new[1:LONGEST]:
        if len(one.text) > 1 or one.source_word != new[0].source_word:
            break
        word += one.text
    return word


def _shared_end(first: Sequence[_Piece], second: Sequence[_Piece]) -> int:
    """How many pieces at the end of two translations are the same."""
    same = (one.text == other.text for one, other in zip(reversed(first), reversed(second), strict=False))
    return sum(takewhile(bool, same))


def _in_script(pieces: Iterable[_Piece]) -> list[_Piece]:
    """The pieces up to the first letter that is not written without spaces."""
    found = []
    for one in pieces:
        others = (i for i, letter in enumerate(one.text) if not (_is_unspaced(letter) or _is_mark(letter)))
        end = next(others, len(one.text))
        found += [replace(one, text=one.text[:end])] if end else []
        if end < len(one.text):
            break
    return found


def _pieces(translator: Translator, source: str, texts: Sequence[str], to: str) -> list[list[_Piece]]:
    """The pieces of translations, as the tokenizer cuts them, with the source words that they look at."""
    target = translator.tokenizers.target
    try:
        aligned = translator.align([source] * len(texts), texts, to, unit="pieces", dense=False)
    except UserError:  # a model without attention
        aligned = []
    found = []
    for number, text in enumerate(texts):
        (tokens,) = target.encode([text])
        ends = [len(target.decode(tokens[:end])) for end in range(len(tokens) + 1)]
        links = {}
        if aligned:
            word_of = _word_numbers(aligned[number].source)
            links = {piece: word_of[read] for read, piece in aligned[number].links}
        spans = [(begin, end, text[begin:end], links.get(i, -1)) for i, (begin, end) in enumerate(pairwise(ends))]
        found.append([_Piece(*span) for span in spans if span[2]])
    return found


def _word_numbers(pieces: Sequence[str]) -> list[int]:
    """The number of the word of each source piece; in writing without spaces each piece is one."""
    numbers: list[int] = []
    for piece in pieces:
        new = piece.startswith("▁") or _is_unspaced(piece[:1])
        numbers.append((numbers[-1] if numbers else 0) + new)
    return numbers


def _is_unspaced(letter: str) -> bool:
    """Whether a letter is of a script whose words have no spaces between them; marks and digits are not."""
    return letter.isalpha() and any(language in WITHOUT_SPACES for language in script_languages(letter))


def _is_letter(letter: str) -> bool:
    return letter.isalnum() or _is_mark(letter)


def _is_mark(letter: str) -> bool:
    """Whether a character is written on or beside the letter before it, such as a vowel sign."""
    return unicodedata.category(letter).startswith("M")


def _letters(text: str) -> str:
    """A text without what case, spaces and punctuation make different."""
    return "".join(filter(_is_letter, text.casefold()))


def _with_final_mark(text: str, current: str) -> str:
    """A text with the final marks of the current translation in place of its own."""
    return text.rstrip(FINAL_MARKS) + current[len(current.rstrip(FINAL_MARKS)) :]
