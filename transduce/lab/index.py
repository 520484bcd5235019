"""The page that leads to all pages of the laboratory that lie in a folder, made from those pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transduce.durable import write_text
from transduce.lab.report import Claim, shown
from transduce.lab.times import FILE, read_times

OPENING = """# The laboratory

The arguments of "Attention Is All You Need" as measurements: each page is one experiment, its picture, its tables, what
they show (computed from the numbers, and said where it was not as expected) and how to read it beside the paper. One
command makes one page,

    transduce lab complexity --output runs/lab

and `transduce lab all --output docs/lab` (or `make lab`) makes all of them again. Models are small and data is
generated, so that each takes a minute or two on a CPU; figures of time differ from machine to machine, powers, paths
and qualities should not. `transduce lab` lists the experiments, `transduce lab --help` says how to give them a corpus
of your own or a GPU. From Python:

    import transduce
    result = transduce.lab.scaling_factor(transduce.lab.ScalingFactor(keys=64))
    [finding.text for finding in result.report().findings]
"""


def index(folder: Path, names: Sequence[str]) -> Path:
    """Write README.md: every experiment that has a page, its question, how many of its expectations held, its time."""
    rows = ["| experiment | question | as expected | seconds |", "| --- | --- | --- | --: |"]
    missed: list[str] = []
    times = read_times(folder)
    for name in names:
        page = folder / f"{name}.md"
        if not page.exists():
            continue
        lines = page.read_text(encoding="utf-8").split("\n")
        held, failed = _told(lines, held=True), _told(lines, held=False)
        title, seconds = lines[0].removeprefix("# "), shown(times[name].seconds) if name in times else ""
        expected = f"{len(held)} of {len(held) + len(failed)}"
        rows.append(f"| [{title}]({page.name}) | {lines[2]} | {expected} | {seconds} |")
        missed += [f"- {name}: {text}" for text in failed]
    parts = [OPENING, "\n".join(rows)]
    if times:
        parts.append(
            f"\nSeconds are those on the clock; `{FILE}` also has those that cores worked, and the settings of the run."
        )
    if missed:
        parts += ["\n## Not as expected\n", "\n".join(missed)]
    path = folder / "README.md"
    write_text(path, "\n".join(parts) + "\n")
    return path


def _told(lines: Sequence[str], held: bool) -> list[str]:
    """The findings of a page that held, or did not."""
    mark = f"- **{Claim('', held).mark}**: "
    return [line.removeprefix(mark) for line in lines if line.startswith(mark)]
