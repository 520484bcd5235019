"""Which search goes with which decoder: a search says what it needs, a decoder what it offers.

Both are one word, `needs` and `offers`, of the config class (or of its instances, where a setting decides). Classes of
the user's own that say nothing are taken for stepwise ones. Imports no torch, so that a translator can check too.
"""

from __future__ import annotations

import typing
from typing import Any

from transduce.config import kind_of
from transduce.errors import ConfigError

STEPWISE = "stepwise"
MEANING = {STEPWISE: "writes token by token", "parallel": "writes all tokens at once"}


def check_fit(search: Any, decoder: Any, where: str = "search") -> None:
    """Refuse a search config that the decoder config cannot serve; `where` is the search's dotted key."""
    needs, offers = getattr(search, "needs", STEPWISE), getattr(decoder, "offers", STEPWISE)
    if needs != offers:
        raise ConfigError(
            f"{where}.kind: '{kind_of(type(search))}' needs a decoder that {MEANING.get(needs, needs)};"
            f" model.decoder is '{kind_of(type(decoder))}', which fits {' or '.join(_fitting(offers)) or 'no search'}"
        )


def _fitting(offers: str) -> list[str]:
    """The kinds of search, of those a config can choose from, that such a decoder serves."""
    from transduce.search.choice import SearchChoice  # torch comes with it: only for the text of an error

    return [kind_of(cls) for cls in typing.get_args(SearchChoice) if cls().needs == offers]
