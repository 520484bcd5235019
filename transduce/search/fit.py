"""Which search and objective fit which model: they state what they need, a decoder states what it offers.

Both are one word, `needs` and `offers`, of the config class (or of its instances, where a setting decides). A user's
own class without them counts as stepwise. A search that returns one translation per length (`needs_lengths`) does not
fit a decoder with `one_length`. Other requirements, a head of the model (`needs_head`) or cross-attention
(`needs_attention`, of a decoder's `cross_heads`), are checked where the whole config is known. Imports no torch, so
that a translator can check too.

`SearchChoice` lists the searches of a config; the first is the default of translation.
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
    """A search given on a command line: `search={kind="sample",top_p=0.9}`."""

    search: SearchChoice | SearchConfig = Beam()


def search_label(search: SearchConfig) -> str:
    """Name a search briefly for people: `beam 4`, `greedy`, `mask_predict`."""
    kind = kind_of(type(search))
    return f"{kind} {search.size}" if isinstance(search, Beam) else kind


STEPWISE = "stepwise"
MEANING = {
    STEPWISE: "decodes token by token",
    "parallel": "is non-autoregressive",
    "ctc": "is non-autoregressive with CTC",
}


def check_fit(chosen: Any, decoder: Any, where: str, choices: Iterable[type[Any]]) -> None:
    """Refuse a config that does not fit the decoder; `where` is its dotted key, `choices` all kinds it could be."""
    needs, offers = _needs(chosen), getattr(decoder, "offers", STEPWISE)
    if needs != offers:
        fitting = [kind_of(cls) for cls in choices if _needs(cls()) == offers]
        raise ConfigError(
            f"{where}.kind: '{kind_of(type(chosen))}' needs a decoder that {MEANING.get(needs, needs)};"
            f" model.decoder is '{kind_of(type(decoder))}', which fits {' or '.join(fitting) or 'nothing here'}"
        )


def check_search(search: SearchConfig, decoder: Any, where: str = "search") -> None:
    """Refuse a search, or the candidate search of another, that does not fit the decoder."""
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
    """Check the objective, one of `objectives`, and searches by dotted key; the error says which settings fix all."""
    try:
        check_fit(objective, decoder, "objective", objectives)
        for where, search in searches.items():
            check_search(search, decoder, where)
    except ConfigError as error:
        finders = [_finder(search, where) for where, search in searches.items()]
        words = _fixes([(objective, "objective", objectives), *finders], decoder)
        raise ConfigError(f"{error}; set {' '.join(words)}" if words else str(error)) from None


def _fixes(chosen: Iterable[tuple[Any, str, tuple[type[Any], ...]]], decoder: Any) -> list[str]:
    """List `key=value` settings that replace each misfit by the first kind that fits."""
    offers, words = getattr(decoder, "offers", STEPWISE), []
    for config, where, choices in chosen:
        fitting = [kind_of(cls) for cls in choices if _needs(cls()) == offers]
        if fitting and _needs(config) != offers:
            words.append(f"{where}.kind={fitting[0]}")
    return words


def check_reads(search: SearchConfig, model: Any, where: str = "search") -> None:
    """Refuse a search that needs a head or cross-attention that this model's config lacks."""
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
            f"{where}.coverage: expected 0, since model.decoder '{kind_of(type(decoder))}' has no attention to"
            " the source; or choose a decoder that has"
        )


def _needs(chosen: Any) -> str:
    return str(getattr(chosen, "needs", STEPWISE))


def _finder(search: SearchConfig, where: str) -> tuple[Any, str, tuple[type[Any], ...]]:
    """Return the search that runs the model, its dotted key, and all kinds it could be."""
    if isinstance(search, MinimumBayesRisk):
        return search.candidates, f"{where}.candidates", typing.get_args(Candidates)
    return search, where, typing.get_args(SearchChoice)
