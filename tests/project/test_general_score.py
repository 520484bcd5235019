"""recipes/general/score.py: which lines and directions it takes, and what it counts."""

from __future__ import annotations

import importlib.util
import lzma
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from transduce.engines import Translation

FILE = Path(__file__).parents[2] / "recipes" / "general" / "score.py"


class Copying:
    """A translator that gives back its sources."""

    def stream(self, texts: Sequence[str], beam: int, to: str) -> Iterator[Translation]:
        assert (beam, to) == (4, "de")
        return (Translation(text, 0.0, True) for text in texts)


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("general_score", FILE)
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    yield made
    del sys.modules[spec.name]


def test_lines_are_spread_evenly(module: ModuleType) -> None:
    lines = [str(number) for number in range(10)]
    assert module.spread(lines, 4) == ["0", "2", "5", "7"]
    assert module.spread(lines, 0) == module.spread(lines, 99) == lines


def test_a_pair_of_files_gives_both_directions(module: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "wmt-news"
    folder.mkdir()
    for year, pair in module.NEWS["judge"]:
        for code in pair.split("-"):
            (folder / f"newstest{year}.{pair}.{code}.xz").write_bytes(lzma.compress(f"{code} {year}\n".encode()))
    found = list(module.sets(tmp_path, "", ["judge"]))
    assert [(one.name, one.source, one.target, one.texts[0]) for one in found[::2]] == [
        ("news2014", "en", "de", ["en 2014"]),
        ("news2014", "en", "fr", ["en 2014"]),
        ("news2018", "zh", "en", ["zh 2018"]),
    ]
    assert [one.texts for one in found[1::2]] == [one.texts[::-1] for one in found[::2]]


def test_leaks_are_counted_beside_those_of_the_references(module: ModuleType) -> None:
    sources = ["Und er weiß, daß es ⟦3⟧ gibt.", "Der Hund schläft dort."]
    chosen = module.ScoringSet("judge", "news", "en", "de", (sources, ["Er weiß, dass es das gibt.", sources[1]]))
    row = module.score(Copying(), chosen, 0, 4)
    assert row["leaks"] == {"marks": 1, "dass": 1, "and_first": 1}
    assert row["leaks_of_references"] == {"marks": 0, "dass": 0, "and_first": 0}
    assert (row["set"], row["sentences"], row["health"]["lines"]) == ("news en-de", 2, 2)
    assert 0 < row["bleu"] < 100
    assert module.leaks(["Há pero muy poco."], "pt")["spanish"] == 1
    assert "spanish" not in module.leaks(["Hay muy poco."], "es")
