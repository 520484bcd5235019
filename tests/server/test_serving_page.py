"""docs/serving.md: its server starts, its questions are answered, its Python runs, its table has the real defaults."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from transduce.server import Settings

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="the page asks with curl, which is not installed")
def test_the_page_works_as_printed(native_toy: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine").symlink_to(native_toy)
    (command,) = blocks("sh")
    words = [sys.executable, "-m", *command.split(), "--port", "0"]
    server = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment())
    try:
        assert server.stderr is not None
        port = next(match[1] for line in server.stderr if (match := re.search(r"listening on .*:(\d+)", line)))
        questions = [line for block in blocks("console") for line in block.split("\n") if line]
        assert len(questions) >= 9
        for question in questions:
            asked = question.replace(":5000", f":{port}") + " --fail"
            done = subprocess.run(asked, shell=True, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, f"{question}\n{done.stdout}\n{done.stderr}"
            assert json.loads(done.stdout.split("\n")[0])
        for path in {*re.findall(r"`(/[a-z0-9/]+)`", PAGE)}:
            done = subprocess.run(
                ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"http://127.0.0.1:{port}{path}"],
                capture_output=True,
                text=True,
            )
            assert done.stdout in ("200", "405"), path
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


def test_the_python_of_the_page(native_toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine").symlink_to(native_toy)
    (program,) = blocks("python")
    made: dict[str, object] = {}
    exec(program, made)
    assert made["app"].state.transduce.settings.characters == 10_000  # type: ignore[attr-defined]


def test_the_table_has_the_real_defaults() -> None:
    rows = re.findall(r"^\| (`.*?`) \| (.*?) \|", PAGE.partition("## Limits")[2], flags=re.MULTILINE)
    named = [name for names, _ in rows for name in re.findall(r"`(\w+)`", names)]
    assert sorted(named) == sorted(field.name for field in dataclasses.fields(Settings))
    numbers = {
        name: value
        for names, values in rows
        for name, value in zip(re.findall(r"`(\w+)`", names), re.split(r", (?=\d|none)", values), strict=False)
    }
    for name, value in numbers.items():
        if match := re.match(r"[\d,.]+", value):
            assert float(match[0].replace(",", "")) == float(getattr(Settings(), name)), name


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
