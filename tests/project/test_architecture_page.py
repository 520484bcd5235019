"""docs/architecture.md and the glossaries against the package: what they name is there, and the other way round.

A line of the block of files names files or folders, separated by commas, at its beginning; those that stand deeper
belong to the folder above them. Elsewhere on the page `path/file.py` is a file, and `path/file.py: name` a function or
class in it. Paths are below the package or the repository; one with NAME in it stands for a file still to be written.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "transduce"
DOCS = ROOT / "docs"
PAGE = (DOCS / "architecture.md").read_text(encoding="utf-8")
GLOSSARIES = ("glossary.md", "glossary.zh.md")
CODE = (".py", ".cpp", ".h")
CARRIED = {"everyday/", "everyday/tokenizer/"}  # a model, in builds that have one


def block_below(heading: str) -> str:
    """The first block of code below a heading of the page."""
    return PAGE.split(f"\n## {heading}\n")[1].split("```")[1]


def named() -> set[str]:
    """Paths within the package as the block names them: `model/scores`, `presets/`."""
    found: set[str] = set()
    folder = ""
    for line in block_below("Files").splitlines():
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
    } - {"__init__"}


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
    parts = ("kernels", "model", "objectives", "search", "training")
    told = re.search(", ".join(rf"`{part}` ([\d,]+)" for part in parts), PAGE)
    assert told is not None
    for folder, count in zip(parts, told.groups(), strict=True):
        lines = sum(path.read_text(encoding="utf-8").count("\n") for path in (PACKAGE / folder).glob("*.py"))
        said = int(count.replace(",", ""))
        assert abs(lines - said) < 0.1 * lines, f"{folder} has {lines} lines, docs/architecture.md says {said}"


def place_of(name: str) -> Path | None:
    return next((folder / name for folder in (PACKAGE, ROOT) if (folder / name).exists()), None)


def spans(text: str) -> list[str]:
    """What stands in backticks outside of blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def test_files_in_the_text_exist() -> None:
    endings = r"(?:\.(?:py|md|toml|txt|cpp|h|js|css)|/)"
    paths = [found[0] for span in spans(PAGE) if (found := re.match(rf"[\w./-]*\w{endings}(?![\w.])", span))]
    paths = [path for path in paths if "/" in path or path.endswith(".py")]
    missing = [path for path in paths if "NAME" not in path and place_of(path) is None]
    assert len(paths) > 150
    assert not missing, missing


@cache
def names_in(path: Path) -> set[str]:
    """Functions, classes and their methods: `load`, `Translator`, `Translator.find`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            members = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{node.name}.{member.name}" for member in members}
    return found


def test_functions_and_classes_in_the_text_exist() -> None:
    told = [found.groups() for span in spans(PAGE) if (found := re.fullmatch(r"([\w./]+\.py): ([\w.]+)", span))]
    assert len(told) > 80
    wrong = [
        f"{path}: {name}"
        for path, name in told
        if "NAME" not in path and ((place := place_of(path)) is None or name not in names_in(place))
    ]
    assert not wrong, wrong


def test_no_path_is_left_with_an_old_separator() -> None:
    assert not [span for span in spans(PAGE) if "::" in span]


def test_the_table_of_imports_is_the_one_that_is_held() -> None:
    source = (ROOT / "tests" / "project" / "test_layout.py").read_text(encoding="utf-8")
    assigned = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    (held,) = (ast.literal_eval(node.value) for node in assigned if ast.unparse(node.targets[0]) == "MAY_IMPORT")
    lines = [line.split(maxsplit=1) for line in block_below("Direction of dependencies").strip().splitlines()]
    assert {part: "" if rest == "-" else rest for part, rest in lines} == held


# -- the glossaries ---------------------------------------------------------------------------------------------------


def entries(page: str) -> Iterator[tuple[str, ...]]:
    """The cells of every row: term, what the field calls it, meaning."""
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            yield tuple(cell.strip() for cell in line.strip("|").split(" | "))


def terms(page: str) -> list[str]:
    """First cells, without the heads of tables, which are in no code and not bold."""
    return [cells[0] for cells in entries(page) if cells[0].startswith(("`", "**"))]


@cache
def classes() -> set[str]:
    """Classes of the package, and unions and aliases at the top of its modules."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Assign):
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
    return found


def named_classes(text: str) -> set[str]:
    """Words in code that are written as classes are."""
    return {word for span in spans(text) for word in re.findall(r"(?<![\w/.:\"])[A-Z][a-z]\w*", span)} - {"None"}


def test_glossaries_have_the_same_entries_once() -> None:
    english, chinese = map(terms, GLOSSARIES)
    assert english == chinese
    assert len(set(english)) == len(english) > 100


@pytest.mark.parametrize("page", GLOSSARIES)
def test_every_entry_has_three_short_cells(page: str) -> None:
    rows = list(entries(page))
    assert all(len(cells) == 3 and all(cells) for cells in rows), [cells for cells in rows if len(cells) != 3]
    assert not [cells[0] for cells in rows if sum(map(len, cells)) > 260]


@pytest.mark.parametrize("page", GLOSSARIES)
def test_classes_of_a_glossary_exist(page: str) -> None:
    unknown = named_classes((DOCS / page).read_text(encoding="utf-8")) - classes()
    assert not unknown, unknown


def test_classes_of_the_page_exist_and_are_in_the_glossary() -> None:
    explained = named_classes("\n".join(terms("glossary.md")))
    assert named_classes(PAGE) <= classes(), named_classes(PAGE) - classes()
    missing = sorted(named_classes(PAGE) - explained)
    assert not missing, missing
