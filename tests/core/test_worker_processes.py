"""Work in several processes: what they import, and what they leave alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
