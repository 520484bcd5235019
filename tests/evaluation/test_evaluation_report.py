"""The whole evaluation: what it holds, its JSON, and what people read on a terminal and in a file."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from transduce.core.errors import DataError
from transduce.evaluation.report import Evaluation, evaluate
from transduce.metrics.corpus import bleu, published_bleu

SOURCES = ["Die Katze saß auf der Matte.", "Ein Hund läuft heute im Park.", " ".join(["sehr"] * 12)]
HYPOTHESES = ["The cat sat on the mat.", "A dog runs in the park today.", "very " * 12]
REFERENCES = ["The cat sat on a mat.", "A dog is running in the park today.", "very " * 12]
OTHER = ["The cat.", "A dog.", "very"]


def printed(evaluation: Evaluation, terminal: bool) -> str:
    output = io.StringIO()
    evaluation.render(Console(file=output, force_terminal=terminal, width=80, color_system=None))
    return output.getvalue()


def test_only_what_was_requested() -> None:
    evaluation = evaluate(None, HYPOTHESES, REFERENCES)
    assert [quality.name for quality in evaluation.qualities] == ["BLEU", "chrF2", "TER"]
    assert evaluation.qualities[0] == bleu(HYPOTHESES, REFERENCES)
    assert evaluation.lengths == ()
    assert evaluation.verdicts == ()
    assert "source words" not in printed(evaluation, terminal=False)


def test_everything() -> None:
    evaluation = evaluate(SOURCES, HYPOTHESES, REFERENCES, language="en", lowercase=True, moses=True, other=OTHER)
    assert evaluation.qualities[0] == bleu(HYPOTHESES, REFERENCES, lowercase=True)
    assert evaluation.qualities[3] == published_bleu(HYPOTHESES, REFERENCES, "en")
    assert [(row.range, row.sentences) for row in evaluation.lengths] == [("1-9", 2), ("10-19", 1)]
    assert [verdict.metric for verdict in evaluation.verdicts] == ["BLEU", "chrF2", "TER"]
    assert evaluation.verdicts[0].second == evaluation.qualities[0].value
    read = json.loads(json.dumps(evaluation.as_dict()))
    assert read["sentences"] == 3
    assert read["qualities"][0]["value"] == evaluation.qualities[0].value
    assert read["lengths"][1]["shortest"] == 10
    assert read["verdicts"][0]["p_value"] == evaluation.verdicts[0].p_value


@pytest.mark.parametrize("terminal", [True, False])
def test_what_people_read(terminal: bool) -> None:
    evaluation = evaluate(SOURCES, HYPOTHESES, REFERENCES, "en", moses=True, other=OTHER, names=("[new]", "old"))
    text = printed(evaluation, terminal)
    lines = text.split("\n")
    assert lines[0] == "3 sentences"
    assert f"BLEU: {evaluation.qualities[0].signature}" in lines  # in one piece, however narrow the window
    assert any("BLEU (lower-cased, Moses-tokenised)" in line and "higher" in line for line in lines)
    assert any("TER" in line and "lower" in line for line in lines)
    assert any("10-19" in line and "100.0" in line for line in lines)
    assert "[new] is" in text
    assert ("─" in text) == terminal
    if not terminal:
        assert evaluation.verdicts[0].text in lines


def test_source_language_decides_how_length_is_counted() -> None:
    evaluation = evaluate(["猫坐在垫子上。"], HYPOTHESES[:1], REFERENCES[:1], source_language="zh-CN")
    assert evaluation.length_unit == "characters"
    assert "source characters" in printed(evaluation, terminal=False)


def test_errors_come_through() -> None:
    with pytest.raises(DataError) as caught:
        evaluate(SOURCES[:2], HYPOTHESES, REFERENCES)
    assert "There are 2 source lines, but 3 hypotheses." in str(caught.value)
    with pytest.raises(DataError) as caught:
        evaluate(SOURCES, HYPOTHESES, REFERENCES, other=OTHER[:1])
    assert "the other has 1 lines, this system has 3" in str(caught.value)
