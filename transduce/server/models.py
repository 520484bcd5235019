"""The models of a server, the languages each translates, and the route from one language to another."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from transduce.core.errors import ConfigError, UserError
from transduce.server.answers import Refused
from transduce.text.languages import find, is_language, name_of, pair_of
from transduce.translate.directions import Pairs, directions_of
from transduce.translate.translator import Translator


@dataclass(frozen=True)
class Served:
    """One model: its name, what runs it, and the (source, target) languages it translates between.

    `reopen` opens the translator again in another process; it can be pickled. Inspections run there (see
    inspection_process.py), and without it here.
    """

    name: str
    translator: Translator
    pairs: Pairs
    reopen: Callable[[], Translator] | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", self.name):
            raise ConfigError(f"name: expected letters, digits, dots and hyphens, got {self.name!r}; rename the folder")
        if not self.pairs:
            raise ConfigError(f"{self.name}: no languages are named; say which it translates, as en-de=FOLDER")
        for source, target in self.pairs:
            if source == target:
                raise ConfigError(
                    f"{self.name}: expected pairs of two languages, got {source}-{target}; a text that is in the target"
                    " language already is given back without a model"
                )

    @cached_property
    def tagged(self) -> frozenset[str]:
        """Target languages that need a tag on the source."""
        tokenizer = self.translator.tokenizers.source
        return frozenset(target for _, target in self.pairs if tokenizer.has_tag(target))


@dataclass(frozen=True)
class RouteHop:
    """A step of a route: one model from a language to another."""

    served: Served
    source: str
    target: str

    @property
    def to(self) -> str:
        """The target language to pass to the translator: "" for a model of one direction."""
        return self.target if self.target in self.served.tagged else ""


class Models:
    """All models of a server; `pivot` is the language to go through where none translates directly."""

    def __init__(self, served: Sequence[Served], pivot: str = "") -> None:
        if not served:
            raise ConfigError("models: none is given; a server needs one at least")
        names = [model.name for model in served]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"models: two have the name {name!r}; rename one of the folders")
        self.served, self.pivot = tuple(served), pivot
        self._hops: dict[tuple[str, str], RouteHop] = {}
        for model in served:
            for source, target in model.pairs:
                self._hops.setdefault((source, target), RouteHop(model, source, target))
        if pivot and pivot not in self.languages:
            raise ConfigError(f"pivot: expected one of {', '.join(self.languages)}, got {pivot!r}")

    @property
    def shadowed(self) -> tuple[RouteHop, ...]:
        """Directions that a model has but an earlier model serves, unless requested by name."""
        every = [RouteHop(model, source, target) for model in self.served for source, target in model.pairs]
        return tuple(hop for hop in every if self._hops[hop.source, hop.target].served is not hop.served)

    @cached_property
    def languages(self) -> tuple[str, ...]:
        """All languages of either side."""
        return tuple(sorted({language for pair in self._hops for language in pair}))

    @cached_property
    def known(self) -> tuple[str, ...]:
        """All languages of either side, source languages first."""
        return (*self.sources, *(language for language in self.languages if language not in self.sources))

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Languages that can be translated."""
        return tuple(sorted({source for source, _ in self._hops}))

    def targets(self, source: str) -> tuple[str, ...]:
        """Target languages of a source language, directly or through the pivot."""
        every = sorted({target for _, target in self._hops})
        return tuple(target for target in every if target != source and self._way(source, target))

    def named(self, name: str) -> Served:
        """The model of a name, or Refused with 404."""
        for model in self.served:
            if model.name == name:
                return model
        raise Refused(
            404, f"no model is named {name!r}; there are {', '.join(model.name for model in self.served)}", "model"
        )

    def route(self, source: str, target: str) -> tuple[RouteHop, ...]:
        """One hop, two by the pivot, or none where both are one language; codes in any case."""
        known = find(source, self.languages), find(target, self.languages)
        begin, end = known
        for name, requested, code in (("source", source, begin), ("target", target, end)):
            if code is None:
                there = self.sources if name == "source" or begin is None else self.targets(begin)
                text = f"{requested} is not supported as {name}; expected one of {', '.join(there) or begin}"
                raise Refused(400, text, "language")
        assert begin is not None
        assert end is not None
        if begin == end:
            return ()
        way = self._way(begin, end)
        if not way:
            raise Refused(
                400,
                f"{name_of(end)} ({end}) is not available as a target language from {name_of(begin)} ({begin})",
                "language",
            )
        return way

    def _way(self, source: str, target: str) -> tuple[RouteHop, ...]:
        direct = self._hops.get((source, target))
        if direct is not None:
            return (direct,)
        first, second = self._hops.get((source, self.pivot)), self._hops.get((self.pivot, target))
        return (first, second) if first is not None and second is not None else ()


def open_models(words: Iterable[str], load: Callable[[Path], Translator]) -> list[Served]:
    """Open the models that a command line names: folders, each with its languages before it if it has none inside.

    `load` can be pickled, as `transduce.load` can: a process of its own opens a model again to inspect it.
    """
    found = []
    for word in words:
        pairs, folder = _split(word)
        translator = load(folder)
        if translator.reading is not None:  # what a caller sends would be the name of a file of ours
            raise UserError(
                f"serve: {folder} reads {translator.reading.reader.kind}, and only models of text are served; use"
                " `transduce transcribe`"
            )
        pairs = pairs or pairs_of(folder, translator)
        found.append(Served(folder.resolve().name, translator, pairs, partial(load, folder.resolve())))
    return found


def _split(word: str) -> tuple[Pairs, Path]:
    """Parse `en-de,de-en=FOLDER`, or a folder alone."""
    names, sign, folder = word.partition("=")
    if not sign or Path(word).exists():
        return (), Path(word)
    pairs = [pair_of(name) for name in names.split(",")]
    known = tuple(pair for pair in pairs if pair is not None)
    if len(known) < len(pairs):
        raise ConfigError(f"{word}: expected languages as en-de=FOLDER or en-de,de-en=FOLDER, got {names!r}")
    for code in (code for pair in known for code in pair):
        if not is_language(code):
            raise ConfigError(f"{word}: {code!r} is the code of no language; expected those of ISO 639, as in en-de")
    return known, Path(folder)


def pairs_of(folder: Path, translator: Translator) -> Pairs:
    """The languages of a model, from its folder: measured directions, or its tags, each to each."""
    pairs = directions_of(folder, translator.tokenizers.source)
    if not pairs:
        raise ConfigError(
            f"{folder}: its languages are not stated there; state them, as in: transduce serve en-de={folder}"
        )
    return pairs
