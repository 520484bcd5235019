"""The shape of the package, held by tests: which way imports point, what needs no torch, how long things may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "transduce"
FILES = sorted(PACKAGE.rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION = 600, 60

# Each part and what it may import of the others: `search` may import all of `data`, but of `model` only its contract.
MAY_IMPORT = {
    "errors": "",
    "wording": "",
    "sizes": "errors",
    "forking": "",
    "untrusted": "",
    "frequent_words": "",
    "languages": "errors",
    "detection": "forking frequent_words languages",
    "numbers": "",
    "progress": "",
    "launch": "",
    "overrides": "errors untrusted",
    "own_classes": "errors",
    "config": "errors overrides own_classes untrusted wording",
    "durable": "errors",
    "data": "errors extras untrusted progress durable wording",
    "kernels": "",
    "model": "errors kernels sizes",
    "search": "errors config data kernels model.contract evaluation.sentence",
    "objectives": "errors data kernels model search evaluation.sentence",
    "evaluation": "errors progress languages",
    "native": "errors durable config model",
    "conversion": "errors untrusted durable data model_folder native training.run_folder",
    "engines": "errors forking data kernels model native search translation",
    "alignment": "errors data",
    "per_text": "errors",
    "extras": "errors",
    "model_folder": "errors untrusted durable config data.tokenizer languages search.choice",
    "directions": "errors untrusted extras languages detection data.tokenizer model_folder",
    "translation": "alignment search.hypothesis search.constraints",
    "capitals": "data.tokenizer search.constraints translation",
    "translator": "errors data alignment capitals per_text translation search.fit search.hypothesis search.constraints"
    " search.limits search.settings",
    "plot": "errors untrusted progress durable evaluation.measures",
    "experiment": "errors sizes data model search objectives training.settings",
    "training": "errors untrusted progress durable config own_classes data model search objectives evaluation engines"
    " translator experiment languages launch model_folder native.raising sizes wording",
    "loading": "errors untrusted extras data model_folder translation translator search.ensemble search.fit engines"
    " training.run_folder experiment model.whole",
    "teaching": "errors durable config data evaluation search loading model_folder training.run_folder translator",
    "distillation": "errors progress durable data engines teaching training.run_folder training.signals translator",
    "output": "errors durable config data.lines progress translation translator search.choice",
    "comparison": "errors progress durable config overrides own_classes data evaluation engines experiment languages"
    " loading model_folder plot search.constraints training translator wording",
    "exchange": "errors untrusted extras config data model model_folder search experiment training.run_folder"
    " training.weights",
    "gathering": "errors progress durable data",
    "inspection": "errors durable config data model alignment engines.fallback search translation translator",
    "pipelines": "errors untrusted wording progress durable config overrides conversion data distillation evaluation"
    " experiment engines gathering loading model_folder search training translation translator",
    "server": "errors own_classes data alignment detection directions inspection languages search.fit"
    " search.constraints translation translator wording",
    "lab": "errors durable config data model search objectives evaluation engines experiment loading comparison numbers"
    " plot training.cpu training.distributed training.loop training.passes translator",
    "tour": "alignment directions inspection languages translator",
    "demo": "errors config data numbers experiment loading tour training.loop translator",
    "cli": "errors untrusted durable wording extras config conversion data directions evaluation exchange experiment"
    " languages loading model_folder output plot comparison demo distillation inspection tour training translator"
    " pipelines progress search.choice server lab",
    "__main__": "errors durable extras launch wording cli",
}
NO_TORCH = (
    "__init__ config data.tokenizer data.segment data.grouping search.hypothesis search.constraints"
    " search.fit search.choice search.automaton alignment translation translator model_folder extras engines.fallback"
    " engines.native_engine native.library native.weight_file output loading"
    " distillation teaching cli data.sentences inspection.inspecting inspection.alternatives inspection.page"
    " languages detection directions tour"
).split()


def name_of(path: Path) -> str:
    """`data.text` for transduce/data/formats/parallel.py, `data` for its __init__."""
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
    """How tokens lie is given to layers, which kernel does a piece of work is asked of dispatch.py."""
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


def test_no_file_and_no_function_is_too_long() -> None:
    long = []
    for path in FILES:
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines >= LONGEST_FILE:
            long.append(f"{path}: {lines} lines")
        for node in ast.walk(tree_of(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                body = (node.end_lineno or 0) - node.lineno + 1
                if body >= LONGEST_FUNCTION:
                    long.append(f"{path}:{node.lineno}: {node.name} has {body} lines")
    assert not long, "\n".join(long)


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
    """str.splitlines cuts at U+2028, U+0085, form feeds; files opened as text turn \\r into \\n."""
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


def test_test_files_have_names_of_their_own() -> None:
    """Test folders are no packages, so that pytest wants each file name once."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py")]
    assert len(names) == len(set(names))
