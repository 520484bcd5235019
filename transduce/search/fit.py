"""Which search and objective go with which decoder: these say what they need, a decoder what it offers.

Both are one word, `needs` and `offers`, of the config class (or of its instances, where a setting decides). Classes of
the user's own that say nothing are taken for stepwise ones. Imports no torch, so that a translator can check too.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable
from typing import Any

from transduce.config import kind_of
from transduce.errors import ConfigError

STEPWISE = "stepwise"
MEANING = {
    STEPWISE: "writes token by token",
    "parallel": "writes all tokens at once",
    "ctc": "writes all tokens at once, on more frames than tokens",
}


def check_fit(chosen: Any, decoder: Any, where: str = "search", choices: Iterable[type[Any]] = ()) -> None:
    """Refuse a config that the decoder's cannot serve; `where` is its dotted key, `choices` all kinds it could be.

    Without choices it is a search.
    """
    needs, offers = getattr(chosen, "needs", STEPWISE), getattr(decoder, "offers", STEPWISE)
    if needs != offers:
        fitting = [kind_of(cls) for cls in choices or _searches() if getattr(cls(), "needs", STEPWISE) == offers]
        raise ConfigError(
            f"{where}.kind: '{kind_of(type(chosen))}' needs a decoder that {MEANING.get(needs, needs)};"
            f" model.decoder is '{kind_of(type(decoder))}', which fits {' or '.join(fitting) or 'nothing here'}"
        )


def _searches() -> tuple[type[Any], ...]:
    from transduce.search.choice import SearchChoice

    return typing.get_args(SearchChoice)
