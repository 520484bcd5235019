"""What can be asked of a model, in kinds: items of one kind and the same settings go through it together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transduce.alignment import Alignment, Unit
from transduce.search.constraints import CancelToken
from transduce.translation import Scored, Translation
from transduce.translator import Translator


@dataclass(frozen=True)
class Sentence:
    """A text to translate, and what is asked of it alone; of score and alignment, `prefix` is the translation given."""

    text: str
    to: str = ""
    prefix: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class Translate:
    """Search for translations, with a search config, and align them if asked to."""

    search: Any
    align: Unit | None = None

    def run(self, translator: Translator, items: Sequence[Sentence], stops: Sequence[CancelToken]) -> list[Translation]:
        """One translation an item."""
        return translator.translate(
            [item.text for item in items],
            search=self.search,
            to=[item.to for item in items],
            prefixes=[item.prefix for item in items],
            include=[list(item.include) for item in items],
            exclude=[list(item.exclude) for item in items],
            align=self.align,
            dense=False,
            stops=stops,
        )


@dataclass(frozen=True)
class Score:
    """How probable given translations are."""

    def run(self, translator: Translator, items: Sequence[Sentence], stops: Sequence[CancelToken]) -> list[Scored]:
        """One score an item."""
        return translator.score(
            [item.text for item in items], [item.prefix for item in items], [item.to for item in items]
        )


@dataclass(frozen=True)
class Align:
    """Where given translations look, in one decoder layer or all; links alone, or the whole matrix."""

    unit: Unit
    layer: int | None = None
    matrix: bool = False

    def run(self, translator: Translator, items: Sequence[Sentence], stops: Sequence[CancelToken]) -> list[Alignment]:
        """One alignment an item."""
        targets, languages = [item.prefix for item in items], [item.to for item in items]
        sources = [item.text for item in items]
        return translator.align(sources, targets, languages, self.unit, self.layer, dense=self.matrix)


Work = Translate | Score | Align
