"""Mutation testing: plant small faults in the code and count those that no test notices.

    python -m venv ../cosmic && ../cosmic/bin/pip install cosmic-ray
    python benchmarks/mutation.py search --sample 150 --cosmic ../cosmic/bin/python --output survivors.md

Cosmic Ray finds the places and plants the faults; its own runner starts Python and torch anew for each. Here a process
that has torch loaded forks for each mutant, and runs the tests that import the module, the quick ones, until one fails.
A sample is drawn by `--seed`: one place and kind of fault each, none in annotations, which are never evaluated.
A survivor is printed as a diff: it is a missing test, or a change that nobody can notice. docs/testing.md lists them.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 240  # for the tests of one mutant: a fault may make a loop endless
# Run by the Python that has Cosmic Ray: every mutation of the modules, then the text of those that were drawn.
LISTING = """
import json, sys
from cosmic_ray.commands.init import _all_work_items
for item in _all_work_items(sys.argv[1:], {}):
    (one,) = item.mutations
    print(json.dumps([str(one.module_path), one.operator_name, one.occurrence, one.start_pos]))
"""
PLANTING = """
import json, sys
from pathlib import Path
import cosmic_ray.mutating, cosmic_ray.plugins
for line in sys.stdin:
    module, operator, occurrence = json.loads(line)
    code = Path(module).read_text(encoding="utf-8")
    made = cosmic_ray.mutating.mutate_code(code, cosmic_ray.plugins.get_operator(operator)(), occurrence)
    print(json.dumps(made))
"""


@dataclass(frozen=True)
class Mutant:
    """A module of the package with one fault, and the kind of fault."""

    module: str  # transduce/search/beam.py
    operator: str
    code: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("area", help="a folder or a module of the package: search, training/step_runner.py")
    parser.add_argument("--cosmic", type=Path, required=True, help="the Python of an environment with cosmic-ray")
    parser.add_argument("--sample", type=int, default=150, help="mutants to try")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="a Markdown file for the survivors")
    options = parser.parse_args()
    area = ROOT / "transduce" / options.area
    files = sorted(area.rglob("*.py")) if area.is_dir() else [area]
    if not all(path.is_file() for path in files) or not files:
        sys.exit(f"{options.area}: no Python files there; name a folder or a file below transduce/")
    chosen = mutants([str(path.relative_to(ROOT)) for path in files], options)
    warm_up()
    results: list[tuple[Mutant, str]] = []
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch, "tree")
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "runs", "*.md", ".*_cache"))
        for name in ("README.md", "docs"):
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tree / name, **_over(name))
        for module in sorted({mutant.module for mutant in chosen}):
            if (without := outcome(tree, tests_of(module))) != "survived":
                sys.exit(f"{module}: its tests fail without a fault ({without}): {' '.join(tests_of(module))}")
        for number, mutant in enumerate(chosen, 1):
            results.append((mutant, tried(mutant, tree)))
            left = (time.monotonic() - start) / number * (len(chosen) - number)
            print(f"{number} of {len(chosen)}: {results[-1][1]}, {left / 60:.0f} min left", file=sys.stderr, flush=True)
    report(options, results)


def _over(name: str) -> dict[str, bool]:
    return {"dirs_exist_ok": True} if (ROOT / name).is_dir() else {}


def mutants(modules: list[str], options: argparse.Namespace) -> list[Mutant]:
    """A sample of all mutations: places drawn first, then one fault of a kind at each."""
    listing = subprocess.run(
        [options.cosmic, "-c", LISTING, *modules], cwd=ROOT, check=True, capture_output=True, text=True
    )
    places: dict[tuple[str, str, int, int], list[tuple[str, str, int]]] = {}
    annotations = {module: annotated(ROOT / module) for module in modules}
    for line in listing.stdout.split("\n")[:-1]:
        module, operator, occurrence, (row, column) = json.loads(line)
        if not any(start <= (row, column) < stop for start, stop in annotations[module]):
            kind = operator.split("_")[0]
            places.setdefault((module, kind, row, column), []).append((module, operator, occurrence))
    draw = random.Random(options.seed)
    drawn = draw.sample(sorted(places), min(options.sample, len(places)))
    print(f"{len(places):,} places for a fault, {len(drawn)} drawn", file=sys.stderr, flush=True)
    wanted = [draw.choice(places[place]) for place in drawn]
    planted = subprocess.run(
        [options.cosmic, "-c", PLANTING],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        input="".join(json.dumps(one) + "\n" for one in wanted),
    )
    codes = map(json.loads, planted.stdout.split("\n")[:-1])
    return [Mutant(module, operator, code) for (module, operator, _), code in zip(wanted, codes, strict=True)]


def annotated(path: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where a file's annotations stand, as (row, column) from and to; they are strings at run time."""
    found: list[ast.expr] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg]
            found += [one.annotation for one in [*arguments, node.args.kwarg] if one and one.annotation]
            found += [node.returns] if node.returns else []
        elif isinstance(node, ast.AnnAssign):
            found.append(node.annotation)
    return [((e.lineno, e.col_offset), (e.end_lineno or 0, e.end_col_offset or 0)) for e in found]


def warm_up() -> None:
    """Load what takes long to import and is not ours."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)


def tests_of(module: str) -> list[str]:
    """The test files that name a module, those in the folder that mirrors it first."""
    dotted = module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    package, _, leaf = dotted.rpartition(".")
    pattern = re.compile(rf"{re.escape(dotted)}\b|from {re.escape(package)} import [^\n]*\b{leaf}\b")
    mirrored = ROOT / "tests" / Path(module).parent.relative_to("transduce")
    near = sorted(mirrored.glob("test_*.py"))
    naming = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if pattern.search(path.read_text("utf-8"))]
    first = [path for path in naming if path in near]
    rest = [path for path in near if path not in first] + [path for path in naming if path not in near]
    return [str(path.relative_to(ROOT)) for path in first + rest]


def tried(mutant: Mutant, tree: Path) -> str:
    """What becomes of a mutant: "killed" by a failed test, by "time" (a test ran too long), or "survived"."""
    path = tree / mutant.module
    original = path.read_text(encoding="utf-8")
    path.write_text(mutant.code, encoding="utf-8")
    try:
        return outcome(tree, tests_of(mutant.module))
    finally:
        path.write_text(original, encoding="utf-8")


def outcome(tree: Path, tests: list[str]) -> str:
    child = os.fork()
    if not child:
        run_tests(tree, tests)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "time"


def run_tests(tree: Path, tests: list[str]) -> None:
    """In a forked child: the quick tests of a tree, until one fails. Never returns."""
    os.setpgid(0, 0)
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(tree))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    code = 3
    try:
        import pytest

        code = pytest.main(["-x", "-q", "-n", "0", "-m", "not slow", "-p", "no:cacheprovider", "--timeout=60", *tests])
    finally:
        os._exit(int(code))


def report(options: argparse.Namespace, results: list[tuple[Mutant, str]]) -> None:
    counts = Counter(result for _, result in results)
    killed = counts["killed"] + counts["time"]
    print(f"{options.area}: {killed} of {len(results)} killed, {killed / len(results):.1%} ({dict(counts)})")
    survivors = [mutant for mutant, result in results if result == "survived"]
    text = "".join(f"{mutant.module}, {mutant.operator}\n\n```diff\n{diff_of(mutant)}```\n\n" for mutant in survivors)
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")


def diff_of(mutant: Mutant) -> str:
    old = (ROOT / mutant.module).read_text(encoding="utf-8").split("\n")
    changed = difflib.unified_diff(old, mutant.code.split("\n"), lineterm="", n=2)
    return "".join(f"{line}\n" for line in list(changed)[2:])


if __name__ == "__main__":
    main()
