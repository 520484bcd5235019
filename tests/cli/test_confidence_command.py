"""`transduce confidence` fits what `translate --min-confidence` then goes by; and what either refuses."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli_runner import Run, refused

from transduce.translate.confidence import ConfidenceModel

if TYPE_CHECKING:
    from toy_model import Toy


@pytest.fixture(scope="module")
def model(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy in a folder of its own, since fitting writes into it."""
    folder = tmp_path_factory.mktemp("confidence") / "model"
    shutil.copytree(toy.model, folder, ignore=shutil.ignore_patterns("checkpoints"))
    return folder


def files(toy: Toy, *targets: str, split: str = "train") -> list[str | Path]:
    words: list[str | Path] = []
    for target in targets:
        words += ["--source", toy.text / f"{split}.en", "--target", toy.text / f"{split}.{target}", "--to", target]
    return words


def test_fitted_and_used(model: Path, toy: Toy, run: Run) -> None:
    before = run("translate", model, "five", "twelve", "--to", "de", "--json")
    assert [json.loads(line)["confidence"] for line in before.lines] == [None, None]
    ran = run("confidence", model, *files(toy, "de", "zh"), "--sentences", "60")
    assert ran.code == 0, ran.err
    said = re.match(r"Of (\d+) translations that were left out in turn: AUROC 0\.", ran.lines[0])
    assert said is not None
    assert 120 < int(said[1]) <= 160  # 60 sentences in two directions, a third damaged too; none that are cut
    assert "| confidence | sentences | mean | acceptable |" in ran.lines
    fitted = ConfidenceModel.of(model)
    assert fitted is not None
    assert set(fitted.bounds) == {"de", "zh"}
    found = [json.loads(line) for line in run("translate", model, "five", "twelve", "--to", "de", "--json").lines]
    assert all(0 < one["confidence"] < 1 for one in found)
    assert [one["text"] for one in found] == [json.loads(line)["text"] for line in before.lines]  # nothing else changes
    strict = ("translate", model, "five", "--to", "de", "--min-confidence", "1")
    assert run(*strict).lines == [f"[unsure] {found[0]['text']}"]
    assert run(*strict, "--fallback", "source").lines == ["five"]
    assert run(*strict, "--fallback", "empty").lines == [""]
    assert run(*strict[:-1], "0.0001").lines == [found[0]["text"]]


def test_what_cannot_be_fitted(model: Path, toy: Toy, run: Run) -> None:
    ran = run("confidence", model, *files(toy, "de", split="valid"))
    said = refused(ran)
    assert re.fullmatch(
        r"confidence: 1\d held-out sentences could be used, and at least 100 are needed; give more", said
    )
    ran = run("confidence", model, *files(toy, "de"), "--source", toy.text / "train.en")
    assert refused(ran) == (
        "confidence: 2 --source, 1 --target and 1 --to were given; give one of each for each pair of files"
    )
    assert "--to xx" in refused(run("confidence", model, *files(toy, "de")[:-1], "xx"))


def test_no_confidence_to_go_by(toy: Toy, run: Run) -> None:
    words = ("translate", toy.model, "five", "--to", "de", "--min-confidence")
    assert refused(run(*words, "0.5")) == (
        f"--min-confidence: {toy.model} does not say how sure it is; fit its confidence on held-out text with"
        " `transduce confidence`, or leave this out"
    )
    assert refused(run(*words, "50")) == "--min-confidence 50: expected a number from 0 to 1"
