"""Which search and objective go with which model: these say what they need, a decoder what it offers.

Both are one word, `needs` and `offers`, of the config class (or of its instances, where a setting decides). Classes of
the user's own that say nothing are taken for stepwise ones. A search that returns a translation a length
(`needs_lengths`) fits no decoder with `one_length`. What a search reads besides, a head of the model (`needs_head`) or
attention to the source (`needs_attention`, of a decoder's `cross_heads`), is known where the whole config is. Imports
no torch, so that a translator can check too.

The searches a config can choose from; the first is what a model translates with when nothing is said.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from transduce.core.config import kind_of
from transduce.core.errors import ConfigError
from transduce.search.hypothesis import SearchConfig
from transduce.search.settings import (
    Beam,
    Candidates,
    CTCCollapse,
    Greedy,
    Joint,
    MaskPredict,
    MinimumBayesRisk,
    Sample,
)

SearchChoice = Beam | Greedy | Sample | MinimumBayesRisk | MaskPredict | CTCCollapse | Joint


@dataclass(frozen=True)
class SearchOption:
    """A search by itself, as a command line names it: `search={kind="sample",top_p=0.9}`."""

    search: SearchChoice = Beam()


def search_label(search: SearchConfig) -> str:
    """A search in a word or two, for people: `beam 4`, `greedy`, `mask_predict`."""
    kind = kind_of(type(search))
    return f"{kind} {search.size}" if isinstance(search, Beam) else kind


STEPWISE = "stepwise"
MEANING = {
    STEPWISE: "writes token by token",
    "parallel": "writes all tokens at once",
    "ctc": "writes all tokens at once, on more frames than tokens",
}


def check_fit(chosen: Any, decoder: Any, where: str, choices: Iterable[type[Any]]) -> None:
    """Refuse a config that the decoder's cannot serve; `where` is its dotted key, `choices` all kinds it could be."""
    needs, offers = _needs(chosen), getattr(decoder, "offers", STEPWISE)
    if needs != offers:
        fitting = [kind_of(cls) for cls in choices if _needs(cls()) == offers]
        raise ConfigError(
            f"{where}.kind: '{kind_of(type(chosen))}' needs a decoder that {MEANING.get(needs, needs)};"
            f" model.decoder is '{kind_of(type(decoder))}', which fits {' or '.join(fitting) or 'nothing here'}"
        )


def check_search(search: SearchConfig, decoder: Any, where: str = "search") -> None:
    """The same for a search, or for that which finds its candidates."""
    finder, where, choices = _finder(search, where)
    check_fit(finder, decoder, where, choices)
    if getattr(finder, "needs_lengths", False) and getattr(decoder, "one_length", False):
        kind, length = kind_of(type(finder)), kind_of(type(decoder.length))
        raise ConfigError(
            f"{where}.n_best: expected 1, got {finder.n_best}: '{kind}' finds one translation for each length it tries,"
            f" and model.decoder.length '{length}' has one length a sentence, which fits '{kind}'"
            " with n_best=1; for more train a model with model.decoder.length=length_classifier"
        )


def check_together(
    objective: Any, objectives: tuple[type[Any], ...], searches: Mapping[str, Any], decoder: Any
) -> None:
    """The same for the objective, one of `objectives`, and for searches by their dotted keys; says what mends all."""
    try:
        check_fit(objective, decoder, "objective", objectives)
        for where, search in searches.items():
            check_search(search, decoder, where)
    except ConfigError as error:
        finders = [_finder(search, where) for where, search in searches.items()]
        words = _mending([(objective, "objective", objectives), *finders], decoder)
        raise ConfigError(f"{error}; set {' '.join(words)}" if words else str(error)) from None


def _mending(chosen: Iterable[tuple[Any, str, tuple[type[Any], ...]]], decoder: Any) -> list[str]:
    """`key=value` words that put the first kind that fits where one does not."""
    offers, words = getattr(decoder, "offers", STEPWISE), []
    for one, where, choices in chosen:
        fitting = [kind_of(cls) for cls in choices if _needs(cls()) == offers]
        if fitting and _needs(one) != offers:
            words.append(f"{where}.kind={fitting[0]}")
    return words


def check_reads(search: SearchConfig, model: Any, where: str = "search") -> None:
    """Refuse a search that reads what this model, by its config, does not have."""
    finder, where, choices = _finder(search, where)
    decoder, heads = model.decoder, [head.kind for head in model.heads]
    head = getattr(finder, "needs_head", "")
    if head and head not in heads:
        others = [kind_of(cls) for cls in choices if _needs(cls()) == _needs(finder) and not hasattr(cls, "needs_head")]
        raise ConfigError(
            f"{where}.kind: '{kind_of(type(finder))}' needs a model with a head '{head}', and model.heads is {heads};"
            f" set model.heads={[*heads, head]} with a term that trains it, or choose {' or '.join(others)}"
        )
    if getattr(finder, "needs_attention", False) and not any(getattr(decoder, "cross_heads", (1,))):
        raise ConfigError(
            f"{where}.coverage: expected 0, for model.decoder '{kind_of(type(decoder))}' does not look at the source by"
            " attention, so that there is nothing to cover with; or choose a decoder that does"
        )


def _needs(chosen: Any) -> str:
    return str(getattr(chosen, "needs", STEPWISE))


def _finder(search: SearchConfig, where: str) -> tuple[Any, str, tuple[type[Any], ...]]:
    """What runs the model, its dotted key, and all that it could be."""
    if isinstance(search, MinimumBayesRisk):
        return search.candidates, f"{where}.candidates", typing.get_args(Candidates)
    return search, where, typing.get_args(SearchChoice)
