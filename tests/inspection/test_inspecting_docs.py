"""What docs/inspecting.md prints runs as it is, on the model that comes along; its pictures are there, and small."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from cli_runner import Run

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "inspecting.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_commands_and_python_run_as_printed(
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.chdir(tmp_path)
    (commands,) = re.findall(r"^```sh\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    (program,) = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    for line in commands.strip().split("\n"):
        ran = run(*shlex.split(line)[1:])
        assert ran.code == 0, (line, ran.err)
    for name in ("page.html", "head.png", "both.html", "instead.svg", "given.json"):
        assert (tmp_path / name).stat().st_size > 1000, name
    capsysbinary.readouterr()
    exec(compile(program, "docs/inspecting.md", "exec"), {})
    printed = capsysbinary.readouterr().out.decode().split("\n")
    assert printed[0].startswith("Katzen schlafen gerne.")
    assert printed[1].startswith("(6, ")  # heads


def test_its_pictures_are_there_and_small() -> None:
    pictures = re.findall(r"\]\((images/[^)]+)\)", TEXT)
    assert len(pictures) == 6
    pictures += re.findall(r"\]\((images/[^)]+)\)", (DOCS / "speech-and-images.md").read_text(encoding="utf-8"))
    assert len(pictures) == 7
    for name in pictures:
        assert 10_000 < (DOCS / name).stat().st_size < 200_000, name
