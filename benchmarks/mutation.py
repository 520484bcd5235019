"""Mutation testing: plant small faults in the code and count those that no test notices.

    python -m venv ../cosmic && ../cosmic/bin/pip install cosmic-ray
    python benchmarks/mutation.py search --sample 120 --cosmic ../cosmic/bin/python --output survivors.md

Cosmic Ray finds the places and plants the faults; its own runner starts Python and torch anew for each. A sample is
drawn by `--seed`: one place and kind of fault each. Left out is what no test can see, because it is never evaluated or
never acts in right code: annotations, aliases of types, overloads, and the switches `strict` of zip and `frozen`.

A process collects the quick tests of the area, makes the fixtures `toy` and `native_toy`, and runs all tests once under
coverage, which says what tests run a line. For a fault inside a function it forks, swaps the function's code, and runs
those tests until one fails. A fault outside functions is seen at import alone: then a process that has only torch
loaded forks, and runs the files with tests that run any line of the module, and those that name it.
A survivor is printed as a diff: it is a missing test, or a change that nobody can notice. docs/testing.md lists them.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import gc
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
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 60  # seconds for the tests of a mutant, and twenty times what they take without: a loop may be endless
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
TERMINAL = os.dup(2)  # before pytest takes it
Span = tuple[tuple[int, int], tuple[int, int]]  # (row, column) from and to


@dataclass(frozen=True)
class Mutant:
    """A module of the package with one fault, and the kind of fault."""

    module: str  # transduce/search/beam.py
    operator: str
    row: int
    code: str


@dataclass
class Known:
    """What the run without faults said of the tests: seconds of each, and which run a line of a module."""

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("area", help="a folder or a module of the package: search, training/step_runner.py")
    parser.add_argument("--cosmic", type=Path, required=True, help="the Python of an environment with cosmic-ray")
    parser.add_argument("--sample", type=int, default=120, help="mutants to try")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="+", help="try these of the sample alone, by their numbers")
    parser.add_argument(
        "--tests", nargs="+", default=[], help="test files beside those of the folder that mirrors the area"
    )
    parser.add_argument(
        "--then", nargs="+", default=[], help="test files for survivors, slow ones too: those that start processes"
    )
    parser.add_argument("--longest", type=float, default=60, help="seconds of tests for a mutant, the quickest first")
    parser.add_argument("--output", type=Path, help="a Markdown file for the survivors")
    options = parser.parse_args()
    area = ROOT / "transduce" / options.area
    files = sorted(area.rglob("*.py")) if area.is_dir() else [area]
    if not all(path.is_file() for path in files) or not files:
        sys.exit(f"{options.area}: no Python files there; name a folder or a file below transduce/")
    modules = [str(path.relative_to(ROOT)) for path in files]
    chosen = mutants(modules, options)
    warm_up()
    with tempfile.TemporaryDirectory() as scratch:
        trial = Trial(Path(scratch), modules, chosen, options)
        trial.run()
    report(options, chosen, trial.results)


def mutants(modules: list[str], options: argparse.Namespace) -> dict[int, Mutant]:
    """A sample of all mutations, numbered from 1: places drawn first, then one fault of a kind at each."""
    listing = subprocess.run(
        [options.cosmic, "-c", LISTING, *modules], cwd=ROOT, check=True, capture_output=True, text=True
    )
    places: dict[tuple[str, str, int, int], list[tuple[str, str, int]]] = {}
    left_out = {module: unseen(ROOT / module) for module in modules}
    for line in listing.stdout.split("\n")[:-1]:
        module, operator, occurrence, (row, column) = json.loads(line)
        if not any(start <= (row, column) < stop for start, stop in left_out[module]):
            kind = operator.split("_")[0]
            places.setdefault((module, kind, row, column), []).append((module, operator, occurrence))
    draw = random.Random(options.seed)
    drawn = draw.sample(sorted(places), min(options.sample * 3 // 2, len(places)))
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
    made = [
        Mutant(module, operator, place[2], code)
        for place, (module, operator, _), code in zip(drawn, wanted, codes, strict=True)
        if compiles(code)
    ][: options.sample]
    say(f"{len(places):,} places for a fault, {len(made)} drawn")
    return {n: mutant for n, mutant in enumerate(made, 1) if not options.only or n in options.only}


def compiles(code: str) -> bool:
    """Not so where Cosmic Ray took the stars of `f(*words)` and `{**known}` for operators."""
    try:
        compile(code, "fault", "exec")
    except SyntaxError:
        return False
    return True


def unseen(path: Path) -> list[Span]:
    """Where a file has what no test can see: annotations, overloads, aliases of types, and some switches."""
    found: list[ast.expr | ast.stmt] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg]
            found += [one.annotation for one in [*arguments, node.args.kwarg] if one and one.annotation]
            found += [node.returns] if node.returns else []
            found += [node] if any(ast.unparse(one).endswith("overload") for one in node.decorator_list) else []
        elif isinstance(node, ast.AnnAssign):
            found.append(node if ast.unparse(node.annotation) == "TypeAlias" else node.annotation)
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            found.append(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("zip", "dataclass"):
            found += [one.value for one in node.keywords if one.arg in ("strict", "frozen", "slots")]
    return [((e.lineno, e.col_offset), (e.end_lineno or 0, e.end_col_offset or 0)) for e in found]


def warm_up() -> None:
    """Load what takes long to import and is not ours."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)


def naming(modules: list[str]) -> list[str]:
    """The test files that name one of the modules, from the root of the repository."""
    patterns = []
    for module in modules:
        dotted = module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        package, _, leaf = dotted.rpartition(".")
        if package != "transduce":
            patterns.append(rf"{re.escape(dotted)}\b|from {re.escape(package)} import [^\n]*\b{leaf}\b")
    pattern = re.compile("|".join(patterns) or "(?!)")
    found = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if pattern.search(path.read_text("utf-8"))]
    return [str(path.relative_to(ROOT)) for path in found]


def mirrored(modules: list[str]) -> list[str]:
    """The test files of the folders that mirror the modules'."""
    folders = {ROOT / "tests" / Path(*Path(module).parts[1:-1][:1]) for module in modules}
    return [str(path.relative_to(ROOT)) for folder in sorted(folders) for path in sorted(folder.rglob("test_*.py"))]


class Trial:
    """The trial of mutants in a copy of the tree."""

    def __init__(
        self, scratch: Path, modules: list[str], chosen: dict[int, Mutant], options: argparse.Namespace
    ) -> None:
        self.modules = modules
        self.chosen = chosen
        self.then = options.then
        self.longest = options.longest
        self.results: dict[int, str] = {}
        self.known = Known()
        self.scratch, self.tree = scratch, scratch / "tree"
        self.start = time.monotonic()
        left_out = shutil.ignore_patterns(".git", ".venv", "runs", ".*_cache", "__pycache__")
        shutil.copytree(ROOT, self.tree, ignore=left_out)
        self.near = mirrored(modules)
        self.tests = [*self.near, *(path for path in options.tests if path not in self.near)]
        self.sound: set[tuple[str, ...]] = set()  # files that pass without a fault

    def run(self) -> None:
        """Faults in functions in a forked process that has all tests collected, then the others here."""
        notes = self.scratch / "notes.json"
        forked(lambda: self._in_functions(notes), None)
        if not notes.is_file():
            sys.exit("the tests without a fault did not come to an end: run them as they are")
        results, self.known.seconds, lines = json.loads(notes.read_text(encoding="utf-8"))
        self.results = {int(number): result for number, result in results.items()}
        self.known.lines = {m: {int(row): names for row, names in rows.items()} for m, rows in lines.items()}
        for number, mutant in self.chosen.items():
            if number not in self.results:
                self._note(number, self._at_import(mutant))
        for number, mutant in self.chosen.items():
            if self.then and self.results[number] in ("survived", "no test"):
                self._note(number, self._fresh(mutant, self.then, 600, "slow or not slow"))

    def _note(self, number: int, result: str) -> None:
        self.results[number] = result
        spent = time.monotonic() - self.start
        mutant = self.chosen[number]
        done = f"{len(self.results)} of {len(self.chosen)}"
        say(f"{spent:5.0f} s, {done}: {number} {result} {mutant.module}:{mutant.row}")

    def _in_functions(self, notes: Path) -> None:
        self._pytest(self.tests, [Warm(self, notes)], self.scratch / "warm")

    def _at_import(self, mutant: Mutant) -> str:
        """A module that is imported with its fault: by files with tests that run it, those of its folder first."""
        names = {name for tests in self.known.lines.get(mutant.module, {}).values() for name in tests if name}
        seconds: Counter[str] = Counter()
        for name, taken in self.known.seconds.items():
            seconds[name.partition("::")[0]] += taken  # type: ignore[assignment]
        wanted = {name.partition("::")[0] for name in names} | {t for t in naming([mutant.module]) if seconds[t]}
        files = sorted(wanted, key=lambda path: (path not in self.near, seconds[path]))
        total = 0.0
        chosen: list[str] = []
        for path in files:
            if total + seconds[path] <= self.longest or not chosen:
                chosen.append(path)
                total += seconds[path]
        if not chosen:
            return "no test"
        return self._fresh(mutant, chosen, PATIENCE + 20 * total, "not slow")

    def _fresh(self, mutant: Mutant, tests: list[str], seconds: float, marked: str) -> str:
        """By a new process; once without the fault, for who fails then has killed nothing."""

        def passed() -> str:
            plugins = [Ready(self.scratch)]
            return forked(lambda: self._pytest(tests, plugins, self.scratch / "fresh", marked), seconds)

        if tuple(tests) not in self.sound and passed() != "survived":
            sys.exit(f"these fail without a fault: {' '.join(tests)}")
        self.sound.add(tuple(tests))
        with planted(self.tree / mutant.module, mutant.code):
            return passed()

    def _pytest(self, tests: list[str], plugins: Sequence[object], folder: Path, marked: str = "not slow") -> NoReturn:
        os.chdir(self.tree)
        os.environ["PYTHONPATH"] = str(self.tree)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.dont_write_bytecode = True
        sys.path[:] = [
            str(self.tree),
            *(one for one in sys.path if Path(one).resolve() not in (ROOT, ROOT / "benchmarks")),
        ]
        import pytest

        words = ["-x", "-q", "-n", "0", "-m", marked, "-p", "no:cacheprovider", "--timeout=240"]
        code = pytest.main([*words, f"--basetemp={folder}", *tests], plugins=plugins)
        os._exit(int(code))


class Ready:
    """A plugin: the toy that was trained without a fault."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch

    def pytest_collection_finish(self) -> None:
        import toy_model  # type: ignore[import-not-found]

        import transduce

        make, (folder,) = toy_model.make, (self.scratch / "warm").glob("toy[0-9]")

        def ready(path: Path, *others: object, **settings: object) -> object:
            if others or settings:
                return make(path, *others, **settings)
            model = folder / "model"
            return toy_model.Toy(folder / "text", folder / "corpus", model, transduce.load(model, "cpu"))

        toy_model.make = ready


class Warm:
    """A plugin: in place of pytest's loop over the tests, the trial of all faults inside functions."""

    def __init__(self, trial: Trial, notes: Path) -> None:
        self.trial = trial
        self.notes = notes
        self.failed = False

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed = self.failed or report.failed

    def pytest_runtestloop(self, session: Any) -> None:
        try:
            self._try_all(session)
        except BaseException:
            say(traceback.format_exc())
            raise

    def _try_all(self, session: Any) -> None:
        items = {item.nodeid: item for item in session.items}
        last = session.items[-1]
        self._make_fixtures(session.items)
        say(f"{len(items)} tests, made ready in {time.monotonic() - self.trial.start:.0f} s")
        forget_cached()
        functions = functions_of({str(self.trial.tree / module) for module in self.trial.modules})
        known = self.trial.scratch / "known.json"
        forked(lambda: self._without_faults(items, known), 3600)
        seconds, lines = json.loads(known.read_text(encoding="utf-8"))
        self.trial.known.seconds = seconds
        say(f"without faults: {sum(seconds.values()):.0f} s, in all {time.monotonic() - self.trial.start:.0f} s")
        kept = set((self.trial.scratch / "warm").iterdir())
        for number, mutant in self.trial.chosen.items():
            path = self.trial.tree / mutant.module
            swaps = swapped(path, mutant.code, functions)
            if not swaps:
                continue
            rows = statement(path, mutant.row)
            covering = {name for row in rows for name in lines.get(mutant.module, {}).get(str(row), []) if name}
            order = sorted(covering, key=lambda one: (one.partition("::")[0] not in self.trial.near, seconds[one]))
            names, total = [], 0.0
            for name in order:
                if total + seconds[name] <= self.trial.longest:
                    names.append(name)
                    total += seconds[name]

            def run(names: list[str] = names, swaps: list[tuple[FunctionType, CodeType]] = swaps) -> None:
                for function, code in swaps:
                    function.__code__ = code
                self._run([items[name] for name in names], last)
                os._exit(0)

            with planted(path, mutant.code):  # for processes that a test starts
                result = forked(run, PATIENCE + 20 * total) if names else "no test"
            self.trial._note(number, result)
            for left in set((self.trial.scratch / "warm").iterdir()) - kept:
                shutil.rmtree(left, ignore_errors=True)
        self.notes.write_text(json.dumps([self.trial.results, seconds, lines]), encoding="utf-8")
        os._exit(0)

    def _make_fixtures(self, items: list[Any]) -> None:
        """The costly fixtures, by running a test that asks for them; they stay, since another test follows."""
        for name in ("toy", "native_toy"):
            asking = [item for item in items if name in item.fixturenames]
            if asking:
                item = asking[0]
                item.ihook.pytest_runtest_protocol(item=item, nextitem=items[-1])
                if self.failed:
                    sys.exit(f"{item.nodeid} fails without a fault")

    def _run(self, items: list[Any], last: Any) -> None:
        """Run tests until one fails, at which this process ends."""
        for item, following in zip(items, [*items[1:], last], strict=True):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                os._exit(1)

    def _without_faults(self, items: dict[str, Any], known: Path) -> None:
        """All tests once, and what they run."""
        import coverage

        watched = [str(self.trial.tree / module) for module in self.trial.modules]
        watching = coverage.Coverage(data_file=None, config_file=False, include=watched)
        watching.start()
        every, seconds, failed = list(items.values()), {}, []
        for item, following in zip(every, [*every[1:], every[-1]], strict=True):
            watching.switch_context(item.nodeid)
            start = time.monotonic()
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            seconds[item.nodeid] = time.monotonic() - start
            if self.failed:
                failed.append(item.nodeid)
            self.failed = False
        watching.stop()
        data = watching.get_data()
        lines = {}
        for module, path in zip(self.trial.modules, watched, strict=True):
            rows = data.contexts_by_lineno(path)
            lines[module] = {row: [name for name in names if name not in failed] for row, names in rows.items()}
        if failed:
            say(f"left out, since they fail without a fault: {' '.join(failed)}")
        known.write_text(json.dumps([seconds, lines]), encoding="utf-8")
        os._exit(0)


def say(text: str) -> None:
    os.write(TERMINAL, f"{text}\n".encode())


class planted:
    """A file has another text for a while."""

    def __init__(self, path: Path, code: str) -> None:
        self.path, self.code, self.original = path, code, path.read_text(encoding="utf-8")

    def __enter__(self) -> None:
        self.path.write_text(self.code, encoding="utf-8")

    def __exit__(self, *_: object) -> None:
        self.path.write_text(self.original, encoding="utf-8")


def forked(work: Callable[[], None], seconds: float | None) -> str:
    """What became of a child that did some work: "survived" if it ended well, "killed" if not, "time" if never."""
    child = os.fork()
    if not child:
        try:
            os.setpgid(0, 0)
            if seconds is not None:
                quiet = os.open(os.devnull, os.O_RDWR)
                os.dup2(quiet, 1)
                os.dup2(quiet, 2)
            work()
        except BaseException:
            if seconds is None:
                say(traceback.format_exc())
        finally:
            os._exit(3)
    end = time.monotonic() + (seconds or 1e9)
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            with suppress(ProcessLookupError):  # what a test started and a fault left running
                os.killpg(child, signal.SIGKILL)
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "time"


def forget_cached() -> None:
    """Empty the caches of functions of ours: they hold what the code said without a fault."""
    gc.unfreeze()
    for thing in gc.get_objects():
        if type(thing) is functools._lru_cache_wrapper and str(thing.__module__).startswith("transduce"):
            thing.cache_clear()


def functions_of(paths: set[str]) -> dict[CodeType, list[FunctionType]]:
    found: dict[CodeType, list[FunctionType]] = {}
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename in paths:
            found.setdefault(thing.__code__, []).append(thing)
    gc.freeze()
    return found


def swapped(
    path: Path, code: str, functions: dict[CodeType, list[FunctionType]]
) -> list[tuple[FunctionType, CodeType]]:
    """The functions that a fault changes, with their new code; none if it is outside of functions."""
    old = compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True)
    new = compile(code, str(path), "exec", dont_inherit=True)
    pairs = list(changed(old, new))
    swaps = [(one, after) for before, after in pairs for one in functions.get(before, [])]
    possible = bool(pairs) and all(
        before.co_flags & 1 and before.co_freevars == after.co_freevars for before, after in pairs
    )
    return swaps if possible else []


def changed(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Code objects that differ, those around them included except modules and classes in which only these differ."""
    if old == new:
        return
    inner = [[one for one in code.co_consts if isinstance(one, CodeType)] for code in (old, new)]
    same_inside = len(inner[0]) == len(inner[1])
    bare = [
        code.replace(co_consts=tuple(c for c in code.co_consts if not isinstance(c, CodeType))) for code in (old, new)
    ]
    if old.co_flags & 1 or not same_inside or bare[0] != bare[1]:
        yield old, new
    if same_inside:
        for before, after in zip(*inner, strict=True):
            yield from changed(before, after)


def statement(path: Path, row: int) -> range:
    """The rows of the innermost statement at a row; of a compound one, the head."""
    best = range(row, row + 1)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno if body else (node.end_lineno or row) + 1
            if node.lineno <= row < end:
                best = range(node.lineno, max(end, row + 1))
    return best


def report(options: argparse.Namespace, chosen: dict[int, Mutant], results: dict[int, str]) -> None:
    counts = Counter(results.values())
    killed = counts["killed"] + counts["time"]
    text = f"{options.area}: {killed} of {len(results)} killed, {killed / len(results):.1%} ({dict(counts)})\n\n"
    for number, mutant in chosen.items():
        if results[number] != "killed":
            text += (
                f"{number} {results[number]}: {mutant.module}, {mutant.operator}\n\n```diff\n{diff_of(mutant)}```\n\n"
            )
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")


def diff_of(mutant: Mutant) -> str:
    old = (ROOT / mutant.module).read_text(encoding="utf-8").split("\n")
    new = mutant.code.split("\n")
    return "".join(f"{line}\n" for line in list(difflib.unified_diff(old, new, lineterm="", n=2))[2:])


if __name__ == "__main__":
    main()
