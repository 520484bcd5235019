"""`make demo` runs `transduce demo`: it must really learn."""

from pathlib import Path

import pytest

from transduce.workflows.demo import demo


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_learns_numbers_it_never_saw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exact = demo(tmp_path / "demo")
    shown = capsys.readouterr().out
    assert exact >= 0.95
    assert "Exactly right:" in shown
    assert "transduce translate" in shown
