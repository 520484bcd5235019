"""Which languages a model translates between, as its folder tells, and which way a text is to go.

A model with tags of target languages only is not told the source's: that is found out (detection.py) to pick a target
where none is asked for, and to refuse one that the text is in already. Imports no torch.
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
from transduce.text.languages import LIKELY, SURE, Detected, Detector, find, language_of_tag, name_of, plain_language
from transduce.text.tokenizer import Tokenizer
from transduce.translate.model_folder import SCORES

Pairs = tuple[tuple[str, str], ...]


def directions_of(folder: Path, tokenizer: Tokenizer) -> Pairs:
    """(source, target) languages: directions that were measured, else tags of the source, each to each; or none."""
    measured = dict.fromkeys((one["source"], one["target"]) for own in scores_of(folder) for one in own)
    if measured:
        return tuple(measured)
    tags = [tag for tag in map(language_of_tag, tokenizer.pieces(range(tokenizer.size))) if tag]
    return tuple((source, target) for source in tags for target in tags if source != target)


def scores_of(folder: Path) -> list[list[dict[str, Any]]]:
    """What was measured of each model behind the one in a folder, direction by direction, its own last."""
    path = folder / SCORES
    try:
        scores = [list(own["directions"]) for own in read_json(path).values()]
        if not all(isinstance(one[side], str) for own in scores for one in own for side in ("source", "target")):
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
    """The likeliest language that can be translated to the target; or what the text surely is, whatever follows.

    `models_between` gives the number of models on the way from a language: 0 where it is the target's own, None where
    there is no way.
    """
    for one in found:
        models = models_between(one.language)
        if one.confidence >= (SURE if models is None else LIKELY if models == 0 else 0):
            return one
    return found[0]


@dataclass(frozen=True)
class ChosenDirection:
    """From a language to another; `source` is "" where nobody knows, and `recognised` where nobody said."""

    source: str
    target: str
    recognised: bool = False


@dataclass(frozen=True)
class DirectionQuery:
    """What was asked for, in codes of languages, "" where nothing was, of a model with these directions."""

    pairs: Pairs
    source: str = ""
    target: str = ""

    @cached_property
    def languages(self) -> tuple[str, ...]:
        """Of either side, in the order of the directions."""
        return tuple(dict.fromkeys(language for pair in self.pairs for language in pair))

    def way(self, text: str | None = None) -> ChosenDirection:
        """The way of a text, or of a stream that cannot be looked at (None); refused where there is none."""
        source, target = self._known("--from", self.source), self._known("--to", self.target)
        ends = tuple(dict.fromkeys(end for _, end in self.pairs))
        if not source and not target and len(ends) == 1:
            return ChosenDirection("", ends[0])
        if source:
            return self._checked(ChosenDirection(source, target), text)
        if text is not None and (not target or importlib.util.find_spec("py3langid") is not None):
            return self._recognised(text, target)
        if not target:
            raise UserError(f"--to: not given; which of {', '.join(ends)} is it to be translated to?")
        return ChosenDirection("", target)

    def _known(self, option: str, code: str) -> str:
        """The model's own code for the one given."""
        known = find(code, self.languages) if code else ""
        if known is None:
            raise UserError(
                f"{option} {code}: the model does not know this language; it knows {', '.join(self.languages)}"
            )
        return known

    def _recognised(self, text: str, target: str) -> ChosenDirection:
        plain = plain_language(text, self.languages)
        if plain and (plain, target) in self.pairs:
            return ChosenDirection(plain, target, True)
        with needed_by("without --to, telling which language a text is in", extra="serve"):
            found = self._detector.detect(text)
        if target:
            best = likely_source(found, lambda source: self._models_between(source, target))
            if best.confidence < SURE:
                return ChosenDirection("", target)
            return self._checked(ChosenDirection(best.language, target, True), text)
        best = found[0]
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
        """The way with its target, which is the only one there is where none was asked for."""
        ends = [end for begin, end in self.pairs if begin == way.source]
        where = f"{_short(text)}: this seems to be" if way.recognised and text else f"--from {way.source}:"
        what = f"{where} {name_of(way.source)} ({way.source})"
        other = "; if it is something else, say so with --from" if way.recognised else ""
        if way.target == way.source:
            raise UserError(f"{what}, which is what --to asks for too; give another language to translate to{other}")
        if not ends or (way.target and way.target not in ends):
            can = f"translates to {', '.join(ends)} only" if ends else "does not translate from"
            raise UserError(f"{what}, which the model {can}{other}")
        if not way.target and len(ends) > 1:
            raise UserError(f"{what}, which the model translates to {', '.join(ends)}; pick one with --to{other}")
        return way if way.target else ChosenDirection(way.source, ends[0], way.recognised)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
