"""Pages of decisions and of tests: every path they name exists, and the index lists every decision."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
PAGES = sorted(DECISIONS.glob("*.md"))
INDEX = DECISIONS / "README.md"
TESTING = ROOT / "docs" / "testing.md"
TOP = {path.name for path in ROOT.iterdir()}
PARTS = ["Context", "Decision", "Alternatives", "Consequences", "In the code", "Tests"]


def paths_in(text: str) -> set[str]:
    """Words in backticks that have a slash, or are the name of a file in the repository's root."""
    words = set(re.findall(r"`([\w.-]+(?:/[\w.-]*)*)`", text))
    return {word for word in words if "/" in word or ("." in word and word in TOP)}


def test_paths_are_found() -> None:
    text = "`transduce/a.py`, `tests/data/`, `setup.py`, `torch.save`, `make test`, `tests`, `pytest tests/cli`"
    assert paths_in(text) == {"transduce/a.py", "tests/data/", "setup.py"}


@pytest.mark.parametrize("page", [*PAGES, TESTING], ids=lambda page: page.stem)
def test_every_path_exists(page: Path) -> None:
    named = paths_in(page.read_text(encoding="utf-8"))
    assert named
    missing = sorted(name for name in named if not (ROOT / name).exists())
    assert not missing, missing


@pytest.mark.parametrize("page", [page for page in PAGES if page != INDEX], ids=lambda page: page.stem)
def test_a_page_has_all_parts_and_names_code_and_tests(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == PARTS
    assert {"transduce", "tests"} <= {name.split("/")[0] for name in paths_in(text)}


def test_the_index_lists_each_page_once() -> None:
    links = re.findall(r"^\| \[[^]]+\]\(([\w-]+\.md)\)", INDEX.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(links) == sorted(page.name for page in PAGES if page != INDEX)
