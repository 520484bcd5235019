"""Stamps: what a stage was made of, so that it is made again only when that has changed.

`stamps/NAME.json` in the pipeline's folder holds the settings of a stage as they are written, the SHA-256 of every file
from outside, that of what it read of other stages, and whether it is done. Files that have the size and time they had
before are not read again (`stamps/files.json`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transduce.data.corpus import file_digest
from transduce.durable import write_text
from transduce.errors import RunError
from transduce.pipelines.plan import PipelinePlan, PlannedStage

FOLDER = "stamps"


@dataclass(frozen=True)
class Identity:
    """What makes a stage what it is: two that are equal give the same."""

    settings: dict[str, Any]
    files: list[str]
    needs: dict[str, str]

    def difference(self, before: Identity) -> str:
        """What is another than before, in words; "" if nothing is."""
        for key in sorted(self.settings.keys() | before.settings.keys()):
            old, new = before.settings.get(key), self.settings.get(key)
            if old != new:
                return f"{key} was {old!r}, and is {new!r}"
        if self.files != before.files:
            return "its text was changed"
        for name in sorted(self.needs.keys() | before.needs.keys()):
            if self.needs.get(name) != before.needs.get(name):
                return f"{name} was changed"
        return ""


@dataclass(frozen=True)
class Stamp:
    """How far a stage is: begun with this identity, or done, in so many seconds."""

    identity: Identity
    done: bool
    seconds: float = 0.0


class Stamps:
    """The stamps of one pipeline, and the hashes of files."""

    def __init__(self, plan: PipelinePlan) -> None:
        self.plan, self.folder = plan, plan.folder / FOLDER
        self._known: dict[str, list[Any]] = _read(self.folder / "files.json")

    def read(self, name: str) -> Stamp | None:
        """What is known of a stage, if anything."""
        found = _read(self.folder / f"{name}.json")
        with suppress(KeyError, TypeError):
            return Stamp(Identity(**found["identity"]), found["done"], found["seconds"])
        return None

    def write(self, name: str, stamp: Stamp) -> None:
        """Keep it, and all hashes found so far."""
        write_text(self.folder / "files.json", json.dumps(self._known, indent=0) + "\n")
        write_text(self.folder / f"{name}.json", json.dumps(asdict(stamp), indent=1, ensure_ascii=False) + "\n")

    def identity(self, planned: PlannedStage) -> Identity:
        """Of a stage whose needs are all there."""
        stage = planned.stage
        settings = {k: v for k, v in _flat(planned.settings) if not k.startswith(stage.free or ("\0",))}
        facts = {f"config {key}": value for key, value in planned.written.facts().items()}
        if facts:  # they say all that these words come to
            settings = {k: v for k, v in settings.items() if not k.startswith(("config", "settings."))}
        plain = json.loads(json.dumps({**settings, **facts}))
        files = [self._digest(path) for path in stage.files()]
        return Identity(plain, files, {name: self.made(name, planned.name) for name in planned.needs})

    def made(self, name: str, reader: str) -> str:
        """One hash of all that a stage offers to others."""
        found = self.products(name)
        if not found:
            raise RunError(
                f"stage '{reader}' needs what stage '{name}' makes, and {self.plan.output(name)} does not hold it; run"
                " the pipeline from there"
            )
        total = hashlib.sha256()
        for path in found:
            total.update(f"{path.relative_to(self.plan.output(name))} {self._digest(path)}\n".encode())
        return total.hexdigest()

    def products(self, name: str) -> list[Path]:
        """The files that a stage offers to others, none unless each pattern's are there."""
        output = self.plan.output(name)
        patterns = self.plan.stages[self.plan.find(name)].stage.products
        if not all((output / pattern).is_file() for pattern in patterns if "*" not in pattern):
            return []
        return sorted({path for pattern in patterns for path in output.glob(pattern) if path.is_file()})

    def _digest(self, path: Path) -> str:
        facts = os.stat(path)
        known = self._known.get(str(path.absolute()))
        if known is None or known[:2] != [facts.st_size, facts.st_mtime_ns]:
            known = [facts.st_size, facts.st_mtime_ns, file_digest(path)]
            self._known[str(path.absolute())] = known
        return str(known[2])


def _flat(tree: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return {}
