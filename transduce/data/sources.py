"""The kinds of corpus sources: text, speech, images, or files that the user's own reader reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transduce.core.errors import DataError, UserError
from transduce.core.plugins import own_class
from transduce.core.untrusted import read_json
from transduce.data.images import Images
from transduce.data.readers import FileReader, Text
from transduce.data.speech import Speech

Sources = Text | Speech | Images
_KINDS: dict[str, type[Speech] | type[Images]] = {"speech": Speech, "images": Images}


def reader_of(sources: Sources | FileReader) -> FileReader | None:
    """The reader of the files that source lines name; None for text."""
    return None if isinstance(sources, Text) else sources


def from_facts(facts: dict[str, Any], origin: str, trust: bool = False) -> FileReader:
    """Build the reader that `facts` describe; `trust` allows importing a class of the user's own."""
    kind = str(facts.get("kind")) if isinstance(facts, dict) else ""
    own = own_class(kind, f"{origin}: sources", FileReader, trust) if ":" in kind else None
    try:
        settings: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()}
        word = settings.pop("kind")
        made: FileReader = (own or _KINDS[word])(**settings)
    except (KeyError, TypeError, ValueError, AttributeError, UserError) as error:
        raise DataError(f"{origin}: these are no settings of a reader of files ({error!r}); prepare again") from None
    return made


def read_facts(path: Path, trust: bool = False) -> FileReader:
    """Build the reader described by a JSON file."""
    try:
        facts = read_json(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); take it from a copy of the model") from None
    return from_facts(facts, str(path), trust)
