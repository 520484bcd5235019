"""Work in several processes: what they import, and what they leave alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from transduce.core.processes import usable_cores

SAFE_PATH = "PYTHONSAFEPATH"
ROOT = Path(__file__).parent.parent.parent
SCRIPT = f"""
import os
from transduce.core.processes import ordered_map
if __name__ == "__main__":
    print(sum(ordered_map(abs, range(100), 2)), os.environ.get({SAFE_PATH!r}))
"""


def test_the_current_folder_is_nothing_to_workers(tmp_path: Path) -> None:
    """Whatever names its modules have: `python -c`, by which multiprocessing starts processes, takes them first."""
    (tmp_path / "here").mkdir()
    for name in ("multiprocessing", "random", "tempfile"):
        (tmp_path / "here" / f"{name}.py").write_text("open('ran', 'a').write(__name__)", encoding="utf-8")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop(SAFE_PATH, None)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path / "here", env=environment, capture_output=True, text=True
    )
    assert done.stdout == "4950 None\n", done.stderr
    assert not (tmp_path / "here" / "ran").exists()


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"own": "0::/\n", "cpu.max": "max 100000\n"}, 8),
        ({"own": "0::/\n", "cpu.max": "200000 100000\n"}, 2),
        ({"own": "1:cpu:/x\n0::/a/b\n", "a/b/cpu.max": "450000 100000\n", "a/cpu.max": "150000 100000\n"}, 2),
        ({"own": "0::/a\n", "a/cpu.max": "1000 100000\n"}, 1),
        ({"own": "0::/\n", "cpu.max": "nonsense"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
    ],
)
def test_a_container_has_the_cores_of_its_quota(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path, tmp_path / "own") == cores
