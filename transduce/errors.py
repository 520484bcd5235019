"""Errors a user can cause, each saying where, what was found, what was expected and what to do.

The command line prints them without a traceback and exits with code 2. Anything else that is raised is a fault of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class UserError(Exception):
    """Something the user can put right; its text is all they need to do so."""


class ConfigError(UserError):
    """A setting that does not exist, has the wrong type or value, or contradicts another."""


class Unfit(ConfigError):
    """What a class of settings finds wrong with them taken together, wherever each came from."""


class DataError(UserError):
    """Text, a tokenizer or a prepared corpus that cannot be used as it is."""


class RunError(UserError):
    """A run folder that is locked, damaged, full, or does not fit what was asked of it."""


class EngineRefusal(UserError):
    """What an engine cannot do and another may: a search or constraint it does not have, or that it was not built here.

    An engine raises it before it does any work, naming itself and what was asked: "native engine: it has no ...".
    With engine="auto" the torch engine then takes over, where the folder holds weights for it.
    """


_SHORTAGES = "out of memory|allocate memory|(calculation|multiplication) overflow"  # in torch's words


@contextmanager
def explaining_shortage(advice: Callable[[], str]) -> Iterator[None]:
    """Where memory runs out inside, say so, followed by where that was and what to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch's own is a RuntimeError; on a CPU it is no more than that
        if not isinstance(error, MemoryError) and not re.search(_SHORTAGES, str(error)):
            raise
        raise RunError(f"out of memory {advice()}") from error
