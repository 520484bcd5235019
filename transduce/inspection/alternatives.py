"""Alternative words at one position of a translation, each with its continuation, for a click on a word.

The next tokens after a prefix come from a beam search that may write one token only, which any engine can run; each is
then continued by the model's own search. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from transduce.search.constraints import CancelToken, DecodingConstraints
from transduce.search.settings import STEPWISE, Beam, Limits
from transduce.translate.translator import Translator

WORST = 12.0  # how much less likely, in nats, than the first of them an alternative may be
TRIES = 4  # tokens tried for each alternative: some continue the word before, or lead to one word twice


@dataclass(frozen=True)
class Alternative:
    """A word at the position, up to the next space; the whole translation; its log-probability."""

    word: str
    text: str
    log_prob: float


def alternatives(
    translator: Translator, text: str, before: str, to: str = "", count: int = 5, stop: CancelToken | None = None
) -> list[Alternative]:
    """Translations of a text that begin with `before` and continue in different ways, the likeliest first.

    A space at the end of `before` says that a word must begin there. Empty for models that read files, for
    non-autoregressive ones, and where another thread cancels through `stop`.
    """
    reads_files = translator.reading is not None
    if reads_files or not text.strip() or getattr(translator.decoder, "offers", STEPWISE) != STEPWISE:
        return []
    target = translator.tokenizers.target
    tag, rest = translator.tokenizers.source.cut_tag(text)
    tag = ((translator.tokenizers.source.tag(to),) if to else ()) + tag
    source = (*tag, *translator.tokenizers.source.encode([rest])[0])[: translator.longest - 1]
    begin = tuple(target.encode([before.strip()])[0]) if before.strip() else ()
    one_more = Beam(size=count * TRIES, n_best=count * TRIES, length_penalty=0.0, limits=Limits(longest=1))
    (found,) = translator.find([source], one_more, [DecodingConstraints(prefix=begin, cancel_token=stop)])
    nexts = [
        best.tokens for best in found if len(best.tokens) == len(begin) + 1 and _fits(translator, best.tokens, before)
    ]
    constraints = [DecodingConstraints(prefix=tokens, cancel_token=stop) for tokens in nexts]
    continued = translator.find([source] * len(nexts), _one_best(translator), constraints)
    if stop is not None and stop.cancelled:
        return []
    by_word: dict[str, Alternative] = {}
    for hypotheses in continued:
        full = target.decode(hypotheses[0].tokens)
        word = _first(full[len(before.rstrip()) :])
        if word and full.startswith(before.rstrip()):
            by_word.setdefault(word, Alternative(word, full, hypotheses[0].log_prob))
    least = next((first.log_prob for first in by_word.values()), 0.0) - WORST
    return [found for found in by_word.values() if found.log_prob >= least][:count]


def _one_best(translator: Translator) -> Any:
    """The model's own search for one translation; a beam search where that reranks texts."""
    search = translator.search
    if isinstance(search, Beam):
        return replace(search, n_best=1)
    return search if not hasattr(search, "choose") else Beam()


def _fits(translator: Translator, tokens: tuple[int, ...], before: str) -> bool:
    """Whether the newest token begins a word where one must begin, and does not where it must not."""
    (piece,) = translator.tokenizers.target.pieces(tokens[-1:])
    if not before or not before[-1].isspace():
        return bool(piece)
    return piece.startswith("▁")


def _first(text: str) -> str:
    """The first word, or of writing without spaces the first letters."""
    words = text.split()
    if not words:
        return ""
    word = words[0]
    wide = [index for index, letter in enumerate(word) if letter > "\u2e7f"]
    return word[: wide[0] + 2] if wide else word
