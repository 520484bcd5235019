"""The block of files in docs/architecture.md is the package: every file is named there, and nothing that is not there.

A line names files or folders, separated by commas, at its beginning; those that stand deeper belong to the folder above
them. Lines that begin far to the right go on with what the line above says.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "transduce"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CODE = (".py", ".cpp", ".h")
CARRIED = {"everyday/"}  # a model, in builds that have one


def named() -> set[str]:
    """Paths within the package as the block names them: `model/scores`, `presets/`."""
    block = PAGE.split("\n## Files\n")[1].split("```")[1]
    found: set[str] = set()
    folder = ""
    for line in block.splitlines():
        depth = len(line) - len(line.lstrip())
        names = re.match(r" +((?:[\w./]+, )*[\w./]+)", line)
        if depth not in (2, 4) or names is None:
            continue
        if depth == 2:
            folder = names[1] if names[1].endswith("/") else ""
        found |= {(folder if depth == 4 else "") + name.removesuffix(".py") for name in names[1].split(", ")}
    return found


def files() -> set[str]:
    return {
        str(path.relative_to(PACKAGE).with_suffix(""))
        for ending in CODE
        for path in PACKAGE.rglob(f"*{ending}")
        if path.name != "__init__.py"
    }


def test_every_file_is_named() -> None:
    missing = sorted(files() - named())
    assert not missing, missing


def test_what_is_named_is_there() -> None:
    folders = {name for name in named() if name.endswith("/")}
    assert all((PACKAGE / name).is_dir() for name in folders - CARRIED), folders
    invented = sorted(named() - folders - files())
    assert not invented, invented


def test_every_folder_is_named() -> None:
    folders = {path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("*") if path.suffix and path.is_file()}
    known = {str(Path(name)) for name in named()}
    assert not {str(folder) for folder in folders if "__pycache__" not in folder.parts} - known - {"."}


def test_line_counts_are_about_those() -> None:
    told = re.search(r"`model` ([\d,]+), `objectives` ([\d,]+), `search` ([\d,]+), `training` ([\d,]+)", PAGE)
    assert told is not None
    for folder, count in zip(("model", "objectives", "search", "training"), told.groups(), strict=True):
        lines = sum(path.read_text(encoding="utf-8").count("\n") for path in (PACKAGE / folder).glob("*.py"))
        said = int(count.replace(",", ""))
        assert abs(lines - said) < 0.1 * lines, f"{folder} has {lines} lines, docs/architecture.md says {said}"
