"""Glossaries of a server's users: kept by API key, in memory, and on disk where the server has a data folder.

Whoever made a glossary is its only reader: to other keys it does not exist. Without keys all users are one. Each is a
JSON file, `glossaries/OWNER/ID.json` below the data folder, written whole or not at all; the files are read once, at
the start. A change makes a new `Glossary`, so that translations under way finish with the old one.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transduce.core import durable
from transduce.core.errors import DataError, RunError
from transduce.core.untrusted import read_json
from transduce.server.answers import Refused
from transduce.server.settings import Settings
from transduce.text.term_files import LARGEST_GLOSSARY, MOST_TERMS
from transduce.text.terms import Direction, Glossary, Term, check_term

LONGEST_NAME = 1024  # characters
FOLDER = "glossaries"
LARGEST_FILE = 4 * LARGEST_GLOSSARY  # bytes: JSON has more of them than the entries
NOT_FOUND = "Glossary not found"
FULL = 456  # DeepL's status for a quota that is used up


@dataclass(frozen=True)
class StoredGlossary:
    """A glossary with its id, its name, and when it was made (UTC, as in `2026-11-19T20:00:00.000000Z`)."""

    id: str
    name: str
    created: str
    glossary: Glossary

    @property
    def dictionaries(self) -> Mapping[Direction, tuple[Term, ...]]:
        return self.glossary.dictionaries


class GlossaryStore:
    """All glossaries of a server, by owner and id. Safe to use from several threads."""

    def __init__(self, settings: Settings) -> None:
        self._most, self._bytes = settings.glossaries, settings.glossary_bytes
        self._folder = Path(settings.data) / FOLDER if settings.data else None
        self._kept: dict[bytes, dict[str, StoredGlossary]] = {}
        self._lock = threading.Lock()
        self._held: int | None = None
        if self._folder is not None:
            self._open(self._folder)

    def close(self) -> None:
        """Let another server have the data folder."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def all(self, owner: bytes) -> list[StoredGlossary]:
        """The glossaries of an owner, the oldest first."""
        with self._lock:
            return sorted(self._kept.get(owner, {}).values(), key=lambda kept: kept.created)

    def get(self, owner: bytes, number: str) -> StoredGlossary:
        """One glossary of an owner; Refused where there is none of this id."""
        found = self._kept.get(owner, {}).get(number)
        if found is None:
            raise Refused(404, NOT_FOUND, "glossary")
        return found

    def named(self, owner: bytes, numbers: Sequence[str]) -> tuple[Glossary, ...]:
        """The glossaries of these ids, in order."""
        return tuple(self.get(owner, number).glossary for number in numbers)

    def create(self, owner: bytes, name: str, dictionaries: Mapping[Direction, Sequence[Term]]) -> StoredGlossary:
        """Keep a new glossary; Refused where its owner has too many, or it is too large."""
        with self._lock:
            if len(self._kept.get(owner, {})) >= self._most:
                text = f"Quota exceeded: at most {self._most} glossaries are kept for a key; delete one first"
                raise Refused(FULL, text, "limit")
            now = time.time_ns() // 1000
            created = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**6)) + f".{now % 10**6:06d}Z"
            return self._keep(owner, StoredGlossary(str(uuid.uuid4()), name, created, _made(name, dictionaries)))

    def change(self, owner: bytes, number: str, changed: Callable[[StoredGlossary], StoredGlossary]) -> StoredGlossary:
        """Replace a glossary by what `changed` makes of it."""
        with self._lock:
            return self._keep(owner, changed(self.get(owner, number)))

    def delete(self, owner: bytes, number: str) -> None:
        """Forget a glossary."""
        with self._lock:
            self.get(owner, number)
            if self._folder is not None:
                durable.remove(self._folder / _name_of(owner) / f"{number}.json")
            del self._kept[owner][number]

    def _keep(self, owner: bytes, one: StoredGlossary) -> StoredGlossary:
        self._check(one)
        if self._folder is not None:
            folder = self._folder / _name_of(owner)
            folder.mkdir(exist_ok=True)
            durable.write_text(folder / f"{one.id}.json", json.dumps(_as_json(one), ensure_ascii=False))
        self._kept.setdefault(owner, {})[one.id] = one
        return one

    def _check(self, one: StoredGlossary) -> None:
        if not one.name.strip() or len(one.name) > LONGEST_NAME:
            raise Refused(400, f"Value for 'name' not supported: expected 1 to {LONGEST_NAME} characters.", "name")
        if not one.dictionaries or not all(one.dictionaries.values()):
            raise Refused(400, "Invalid glossary entries provided: a dictionary without entries.", "entries")
        terms = [term for dictionary in one.dictionaries.values() for term in dictionary]
        size = sum(len(term.source.encode()) + len(term.entry.encode()) + 2 for term in terms)
        if size > self._bytes or len(terms) > MOST_TERMS:
            text = (
                f"a glossary may have {self._bytes:,} bytes and {MOST_TERMS:,} entries, got {size:,} and {len(terms):,}"
            )
            raise Refused(413, f"Request entity too large: {text}", "limit")

    def _open(self, folder: Path) -> None:
        """Read what an earlier server kept."""
        with durable.disk_errors(folder, "making the folder of glossaries", 0):
            folder.mkdir(parents=True, exist_ok=True)
        self._held = durable.lock_folder(folder)
        for path in sorted(folder.glob("*/*.json")):
            try:
                one, owner = _read(read_json(path, LARGEST_FILE)), bytes.fromhex(path.parent.name.strip("_"))
            except (OSError, ValueError, TypeError, KeyError, DataError) as error:
                raise RunError(
                    f"{path}: not a glossary that this server kept ({error}); move it out of the data folder"
                ) from None
            self._kept.setdefault(owner, {})[one.id] = one


def _made(name: str, dictionaries: Mapping[Direction, Sequence[Term]]) -> Glossary:
    return Glossary({pair: tuple(terms) for pair, terms in dictionaries.items()}, name)


def renamed(one: StoredGlossary, name: str) -> StoredGlossary:
    """A glossary under another name."""
    return replace(one, name=name, glossary=_made(name, one.dictionaries))


def with_dictionaries(one: StoredGlossary, dictionaries: Mapping[Direction, Sequence[Term]]) -> StoredGlossary:
    """A glossary with other dictionaries."""
    return replace(one, glossary=_made(one.name, dictionaries))


def merged(one: StoredGlossary, dictionaries: Mapping[Direction, Sequence[Term]]) -> StoredGlossary:
    """A glossary with entries added; an entry of a source term that it has replaces the one before."""
    found = dict(one.dictionaries)
    for pair, terms in dictionaries.items():
        known = {term.source: term for term in found.get(pair, ())}
        found[pair] = tuple({**known, **{term.source: term for term in terms}}.values())
    return with_dictionaries(one, found)


def _name_of(owner: bytes) -> str:
    """A folder's name: the digest of a key, or `_` where there are no keys."""
    return owner.hex() or "_"


def _as_json(one: StoredGlossary) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "created": one.created,
        "dictionaries": [
            {"source": source, "target": target, "entries": [[term.source, term.entry] for term in terms]}
            for (source, target), terms in one.dictionaries.items()
        ],
    }


def _read(tree: Any) -> StoredGlossary:
    dictionaries = {}
    for dictionary in tree["dictionaries"]:
        for entry in dictionary["entries"]:
            for text in entry:
                check_term(text, "an entry")
        pair = str(dictionary["source"]), str(dictionary["target"])
        dictionaries[pair] = tuple(Term.written(source, target) for source, target in dictionary["entries"])
    number, name, created = (str(tree[field]) for field in ("id", "name", "created"))
    return StoredGlossary(str(uuid.UUID(number)), name, created, _made(name, dictionaries))
