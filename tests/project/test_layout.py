"""The shape of the package, held by tests: which way imports point, what needs no torch, how long things may be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import complexipy
import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "transduce"
FILES = sorted(PACKAGE.rglob("*.py"))
LONGEST_FILE = 600  # lines
MOST_COMPLEX = 19  # cognitive complexity of a function

# Each part, and what it may import of the others. What stands lower may import what stands above it, never the other
# way round: core <- text <- metrics <- data <- model <- search <- engines <- translate <- objectives <- training <- ...
MAY_IMPORT = {
    "core": "",
    "text": "core",
    "metrics": "core text",
    "data": "core text",
    "kernels": "",
    "model": "core kernels",
    "search": "core text metrics data model.contract kernels",
    "engines": "core text data model search",
    "translate": "core text data search engines training.run_folder",
    "objectives": "core text metrics data model search kernels",
    "experiment": "core data model search objectives training.settings",
    "training": "core text metrics data model search engines translate objectives experiment",
    "evaluation": "core text metrics",
    "inspection": "core text data model search engines translate",
    "exchange": "core text model search engines translate experiment training",
    "server": "core text search engines translate inspection",
    "workflows": "core text metrics data search engines translate training experiment evaluation inspection exchange",
    "lab": "core text metrics data model search engines translate objectives training experiment evaluation workflows",
    "cli": "core text metrics data search engines translate training experiment evaluation inspection exchange server"
    " workflows lab",
    "__main__": "core cli",
}
# Files outside the package that its docstrings and comments name.
CITED = [path for folder in ("tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
NO_TORCH = (
    "__init__ core.config core.processes text.tokenizer text.segment text.alignment text.languages search"
    " search.constraints search.settings engines engines.native.engine engines.native.library"
    " engines.native.weight_format translate.translator translate.model_folder translate.loading translate.options"
    " translate.directions inspection.inspect inspection.alternatives inspection.page exchange"
    " workflows.distill cli cli.output cli.translating"
).split()


def name_of(path: Path) -> str:
    """`text.segment` for transduce/text/segment.py, `text` for its __init__."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Every module a file imports, at its top, inside functions or for type checking only; `from a import b` is a.b."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def inside(name: str, places: str) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places.split())


@pytest.mark.parametrize("path", [path for path in FILES if path != PACKAGE / "__init__.py"], ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    part = name_of(path).split(".")[0]
    allowed = f"{part} __version__ {MAY_IMPORT[part]}"
    own = [name.removeprefix("transduce.") for name in imports(path) if name.startswith("transduce.")]
    wrong = [name for name in own if not inside(name, allowed)]
    assert not wrong, f"{path}: '{part}' may import only {MAY_IMPORT[part] or 'nothing of ours'}"


def test_nothing_imports_the_command_line_but_the_program() -> None:
    outside = [path for path in FILES if not inside(name_of(path), "cli")]
    assert [name_of(path) for path in outside if any(inside(n, "transduce.cli") for n in imports(path))] == ["__main__"]


def test_kernels_have_one_door() -> None:
    """Layers are given the token layout as an argument; dispatch.py alone chooses kernels."""
    outside = [path for path in FILES if not inside(name_of(path), "kernels")]
    known = {name for path in outside for name in imports(path) if name.startswith("transduce.kernels.")}
    assert known
    assert all(inside(name, "transduce.kernels.dispatch transduce.kernels.packing") for name in known), known


def test_search_knows_the_contract_and_not_the_classes() -> None:
    known = {
        name
        for path in FILES
        if name_of(path).startswith("search")
        for name in imports(path)
        if name.startswith("transduce.model")
    }
    assert known
    assert all(name.startswith("transduce.model.contract.") for name in known)


def test_translating_needs_no_torch_until_a_model_is_opened() -> None:
    modules = ["transduce" if name == "__init__" else f"transduce.{name}" for name in NO_TORCH]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_annotated_example_stands_alone() -> None:
    path = ROOT / "examples" / "annotated.py"
    assert not [name for name in imports(path) if name.split(".")[0] == "transduce"]


def test_modules_are_worth_opening_and_hold_one_idea() -> None:
    """Neither long nor scattered: few small files, few that serve one other alone.

    Files that are found by a suffix, a protocol or a name (`formats`, `protocols`, `lab`, `exchange`, `objectives`)
    have one importer by design, and kernels have one door. These are not counted, so that one more is no fault.
    """
    modules = {f"transduce.{name_of(path)}": path for path in FILES if not path.name.startswith("__")}
    lines = {name: path.read_text(encoding="utf-8").count("\n") for name, path in modules.items()}
    assert not {name: count for name, count in lines.items() if count > LONGEST_FILE}
    small = [name for name, count in lines.items() if count < 50]
    assert len(small) <= 12, small
    importers: dict[str, set[Path]] = {name: set() for name in modules}
    for path in FILES:
        for name in imports(path):
            for known in {name, name.rpartition(".")[0]} & importers.keys():
                importers[known].add(path)
    by_design = {"formats", "protocols", "lab", "exchange", "objectives", "kernels"}
    others = {name: found for name, found in importers.items() if not by_design & set(name.split("."))}
    single = [name for name, found in others.items() if len(found) == 1]
    assert len(single) <= len(others) / 5, single


def test_functions_can_be_followed() -> None:
    """Cognitive complexity (Campbell, 2018): breaks in the flow count, and nested ones count more."""
    hard = [
        f"{path}: {function.name} has {function.complexity}"
        for path in FILES
        for function in complexipy.file_complexity(str(path)).functions
        if function.complexity > MOST_COMPLEX
    ]
    assert not hard, "\n".join(hard)


def test_nothing_unpickles_but_the_one_door_for_weights_alone() -> None:
    dangerous = "pickle dill joblib shelve marshal cloudpickle torch.load numpy.load"
    assert not [(name_of(path), name) for path in FILES for name in imports(path) if inside(name, dangerous)]
    found = []
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                called = f"{node.value.id}.{node.attr}"
                assert called not in ("torch.save", "np.load", "numpy.load"), path
                found += [name_of(path)] * (called == "torch.load")
    assert found == ["exchange.foreign"]
    calls = [node for node in ast.walk(tree_of(PACKAGE / "exchange" / "foreign.py")) if isinstance(node, ast.Call)]
    (loading,) = (call for call in calls if ast.unparse(call.func) == "torch.load")
    assert "weights_only=True" in [ast.unparse(keyword) for keyword in loading.keywords]
    assert not [name_of(path) for path in FILES if "numpy.lib.format" in imports(path)]


def test_lines_end_at_newline_only() -> None:
    r"""No str.splitlines, which cuts at U+2028, U+0085, form feeds; files opened as text turn \r into \n."""
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            assert not (isinstance(node, ast.Attribute) and node.attr == "splitlines"), f"{path}:{node.lineno}"


def test_files_open_with_a_docstring_and_leave_nothing_for_later() -> None:
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert "TODO" not in text, path
        assert "FIXME" not in text, path
        if text:
            assert ast.get_docstring(tree_of(path)), path
            assert "from __future__ import annotations" in text, path


def test_modules_that_the_code_speaks_of_are_there() -> None:
    """Docstrings and comments name other files: `rules.py`, `data/prepare/work_folder.py`."""
    sources = [path for ending in ("py", "cpp", "h") for path in PACKAGE.rglob(f"*.{ending}")]
    known = [*sources, *CITED]
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources
        for name in re.findall(r"(?<![\w.*{`])((?:[a-z_]\w*/)*[a-z_]\w*\.py)\b", path.read_text(encoding="utf-8"))
        if not any(str(one).endswith(f"/{name}") for one in known)
    ]
    assert not wrong, wrong


def test_test_files_have_names_of_their_own() -> None:
    """Test folders are no packages, so that pytest wants each file name once."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py")]
    assert len(names) == len(set(names))


def test_tests_mirror_the_package() -> None:
    """Tests of `transduce/X` are in `tests/X`; those of the project as a whole in `tests/project`."""
    tests = ROOT / "tests"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    assert not [folder for folder in folders - {Path("project")} if not (PACKAGE / folder / "__init__.py").is_file()]
    assert Path() not in folders
