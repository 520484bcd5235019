"""The kinds of corpus sources by name: text, speech, images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transduce.core.errors import DataError, UserError
from transduce.core.untrusted import read_json
from transduce.data.images import Images
from transduce.data.readers import FileReader, Text
from transduce.data.speech import Speech

Sources = Text | Speech | Images
_KINDS: dict[str, type[Speech] | type[Images]] = {"speech": Speech, "images": Images}


def reader_of(sources: Sources) -> FileReader | None:
    """The reader of the files that source lines name; None for text."""
    return sources if isinstance(sources, FileReader) else None


def from_facts(facts: dict[str, Any], origin: str) -> FileReader:
    """Build the reader that `facts` describe."""
    try:
        settings: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()}
        return _KINDS[settings.pop("kind")](**settings)
    except (KeyError, TypeError, ValueError, AttributeError, UserError) as error:
        raise DataError(f"{origin}: these are no settings of a reader of files ({error!r}); prepare again") from None


def read_facts(path: Path) -> FileReader:
    """Build the reader described by a JSON file."""
    try:
        facts = read_json(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); take it from a copy of the model") from None
    return from_facts(facts, str(path))
