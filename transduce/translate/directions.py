"""The language pairs a model offers, read from its folder, and the choice of a direction for a text.

A model with tags of target languages only is not given the source's: text/languages.py detects it to pick a target
where none is requested, and to refuse a text that is in the target already or in a language that the model does not
know. `DirectionQuery.way` answers for a text that somebody typed, `DirectionQuery.parts` for each line of a file: what
it names is left as it is. A source that was requested is never doubted. Imports no torch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transduce.core.errors import ConfigError, UserError, needed_by
from transduce.core.untrusted import read_json
from transduce.text.languages import LIKELY, SURE, Detected, Detector, find, language_of_tag, name_of
from transduce.text.segment import TextPiece
from transduce.text.tokenizer import Tokenizer
from transduce.translate.model_folder import SCORES

Pairs = tuple[tuple[str, str], ...]


def directions_of(folder: Path, tokenizer: Tokenizer) -> Pairs:
    """Pairs of (source, target) languages: measured directions, else every pair of tagged languages; or none."""
    measured = dict.fromkeys((row["source"], row["target"]) for rows in scores_of(folder) for row in rows)
    if measured:
        return tuple(measured)
    tags = [tag for tag in map(language_of_tag, tokenizer.pieces(range(tokenizer.size))) if tag]
    return tuple((source, target) for source in tags for target in tags if source != target)


def scores_of(folder: Path) -> list[list[dict[str, Any]]]:
    """Read `scores.json`: the measured directions of each model behind the one in a folder, its own last."""
    path = folder / SCORES
    try:
        scores = [list(model["directions"]) for model in read_json(path).values()]
        if not all(isinstance(row[side], str) for rows in scores for row in rows for side in ("source", "target")):
            raise ValueError("languages that are no text")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}); expected what the card stage of `transduce pipeline` writes; delete the"
            " file to go by the model's tags"
        ) from None
    return scores


def likely_source(found: Sequence[Detected], models_between: Callable[[str], int | None]) -> Detected:
    """The likeliest language with a route to the target; or the certain language of the text, with or without.

    `models_between` gives the number of models on the route from a language: 0 for the target itself, None without a
    route. One that is not served is returned where it is fairly sure.
    """
    if found[0].unsupported:
        return found[0]
    found = [candidate for candidate in found if candidate.served]
    for candidate in found:
        models = models_between(candidate.language)
        if is_sure(candidate, found) if models is None else candidate.confidence >= (LIKELY if models == 0 else 0):
            return candidate
    return found[0]


def is_sure(best: Detected, found: Sequence[Detected]) -> bool:
    """Whether the text is likely in this served language, and surely in no other that is served."""
    served = sum(candidate.confidence for candidate in found if candidate.served)
    return best.confidence >= max(LIKELY, SURE / 100 * served)


@dataclass(frozen=True)
class ChosenDirection:
    """A source and a target language; `source` is "" if unknown, `recognised` if it was detected."""

    source: str
    target: str
    recognised: bool = False


@dataclass(frozen=True)
class TextRun:
    """Sentences of a text that follow each other; `left` says why they are to stay as they are, "" if they are not."""

    piece: TextPiece
    left: str = ""


@dataclass(frozen=True)
class DirectionQuery:
    """The requested language codes, "" where none was given, and the pairs that the model offers."""

    pairs: Pairs
    source: str = ""
    target: str = ""

    @cached_property
    def languages(self) -> tuple[str, ...]:
        """All languages of either side, in the order of the pairs."""
        return tuple(dict.fromkeys(language for pair in self.pairs for language in pair))

    def way(self, text: str | None = None) -> ChosenDirection:
        """Choose the direction for a text, or for a stream that cannot be read ahead (None); UserError if none fits."""
        source, target = self._known("--from", self.source), self._known("--to", self.target)
        ends = tuple(dict.fromkeys(end for _, end in self.pairs))
        if source:
            return self._checked(ChosenDirection(source, target), text)
        if text is not None:
            translated = [run.piece.text for run in self.parts(text, target) if not run.left]
            text = " ".join(translated) or text
        if not target and len(ends) == 1:
            if text is not None:
                self._check_supported(text)
            return ChosenDirection("", ends[0])
        if text is not None:
            return self._recognised(text, target)
        if not target:
            raise UserError(f"--to: not given; which of {', '.join(ends)} is it to be translated to?")
        return ChosenDirection("", target)

    def _known(self, option: str, code: str) -> str:
        """Return the model's own code for the given one, or raise UserError."""
        known = find(code, self.languages) if code else ""
        if known is None:
            raise UserError(
                f"{option} {code}: the model does not know this language; it knows {', '.join(self.languages)}"
            )
        return known

    def parts(self, text: str, target: str) -> list[TextRun]:
        """Split a text where some sentences are in the target already or in a language that the model does not know.

        Only what script and words make plain counts, and the tables are read for texts with hardly a known word alone.
        """
        if self.source:
            return [TextRun(TextPiece(text, ""))]
        found: list[TextRun] = []
        for part, language in self._detector.sentence_languages(text):
            if language and not self._detector.is_served(language):
                language = self._unsupported(part.text) or language  # by its right name
            left = self._objection(language, target)
            if found and (found[-1].left == left or not part.text):
                last = found.pop()
                part = TextPiece(last.piece.text + last.piece.space + part.text, part.space)
            found.append(TextRun(part, left))
        if len(found) == 1 and not found[0].left and self._detector.is_strange(text):
            return [TextRun(found[0].piece, self._objection(self._unsupported(text), target))]
        return found or [TextRun(TextPiece(text, ""))]

    def _unsupported(self, text: str) -> str:
        """The language of a text that is in none of the model's, or ""; reads the tables if they are there."""
        if not _can_detect():
            plain = self._detector.plain(text)
            return "" if self._detector.is_served(plain) else plain
        best = self._detector.detect(text)[0]
        return best.language if best.unsupported else ""

    def _objection(self, language: str, target: str) -> str:
        """Why a text in this language is not translated, or ""."""
        if not language:
            return ""
        name = f"{name_of(language)} ({language})"
        if not self._detector.is_served(language):
            return f"this looks like {name}; the model translates {', '.join(map(name_of, self._sources))}"
        return f"this is {name} already" if language == target else ""

    def _check_supported(self, text: str) -> None:
        """Raise UserError for a text in a language that the model does not know."""
        plain = self._detector.plain(text)
        if not (plain and self._detector.is_served(plain)) and (language := self._unsupported(text)):
            raise UserError(
                f"{_short(text)}: {self._objection(language, '')}; if it is one of these, say so with --from"
            )

    @property
    def _sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(source for source, _ in self.pairs))

    def _recognised(self, text: str, target: str) -> ChosenDirection:
        self._check_supported(text)
        plain = self._detector.plain(text)
        if plain and (plain, target) in self.pairs:
            return ChosenDirection(plain, target, True)
        if target and not plain and not _can_detect():
            return ChosenDirection("", target)
        with needed_by("without --to, telling which language a text is in", extra="serve"):
            found = self._detector.detect(text)
        if target:
            best = likely_source(found, lambda source: self._models_between(source, target))
            if not is_sure(best, found):
                return ChosenDirection("", target)
            return self._checked(ChosenDirection(best.language, target, True), text)
        best = next(candidate for candidate in found if candidate.served)
        if best.confidence < LIKELY:
            raise UserError(
                f"{_short(text)}: too little to tell which language it is in; say what to translate it to with --to"
            )
        return self._checked(ChosenDirection(best.language, "", True), text)

    def _models_between(self, source: str, target: str) -> int | None:
        return 0 if source == target else 1 if (source, target) in self.pairs else None

    @cached_property
    def _detector(self) -> Detector:
        return Detector(self.languages)

    def _checked(self, way: ChosenDirection, text: str | None) -> ChosenDirection:
        """Check that the model offers this direction; fill in the target if there is only one."""
        ends = [end for begin, end in self.pairs if begin == way.source]
        where = f"{_short(text)}: this seems to be" if way.recognised and text else f"--from {way.source}:"
        what = f"{where} {name_of(way.source)} ({way.source})"
        other = "; if it is something else, say so with --from" if way.recognised else ""
        if way.target == way.source:
            raise UserError(f"{what}, which --to names too; give another language to translate to{other}")
        if not ends or (way.target and way.target not in ends):
            can = f"translates to {', '.join(ends)} only" if ends else "does not translate from"
            raise UserError(f"{what}, which the model {can}{other}")
        if not way.target and len(ends) > 1:
            raise UserError(f"{what}, which the model translates to {', '.join(ends)}; pick one with --to{other}")
        return way if way.target else ChosenDirection(way.source, ends[0], way.recognised)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def _can_detect() -> bool:
    """Whether the tables can be read: they are no part of the smallest installation."""
    return importlib.util.find_spec("py3langid") is not None
