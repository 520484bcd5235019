"""Word and character error rates against an edit distance of our own."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

import pytest

from transduce.core.errors import DataError, UserError
from transduce.evaluation.report import evaluate
from transduce.metrics.corpus import error_rates

pytest.importorskip("jiwer", reason="error rates are measured by it: pip install transduce[senses]")


def distance(one: Sequence[str], other: Sequence[str]) -> int:
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, start=1):
        before, row[0] = row[0], i
        for j, right in enumerate(other, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (left != right))
    return row[-1]


def test_rates_are_edits_for_each_hundred_of_the_reference() -> None:
    chooser = random.Random(1)
    references = [" ".join(chooser.choices(["ab", "cd", "abc"], k=chooser.randint(1, 6))) for _ in range(50)]
    hypotheses = [" ".join(chooser.choices(["ab", "cd", "abc"], k=chooser.randint(0, 6))) for _ in range(40)]
    hypotheses += references[40:]
    words, characters, lines = error_rates(hypotheses, references)
    pairs = list(zip(hypotheses, references, strict=True))
    edits = sum(distance(h.split(), r.split()) for h, r in pairs)
    assert words.value == pytest.approx(100 * edits / sum(len(r.split()) for r in references))
    edits = sum(distance(h, r) for h, r in pairs)
    assert characters.value == pytest.approx(100 * edits / sum(map(len, references)))
    assert lines.value == pytest.approx(100 * sum(h != r for h, r in pairs) / 50)
    assert words.signature.startswith("jiwer|case:mixed|tok:spaces|version:")


def test_a_report_has_them_where_requested() -> None:
    result = evaluate(None, ["one two"], ["one three"], errors=True)
    assert {one.name: one.value for one in result.qualities}["WER"] == 50.0
    assert "WER" not in [one.name for one in evaluate(None, ["one"], ["one"]).qualities]


def test_what_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="error rates: 1 transcripts and 2 references; expected as many of each"):
        error_rates(["a"], ["a", "b"])
    with pytest.raises(DataError, match="error rates: reference 2 is empty, and edits are counted against its words"):
        error_rates(["a", ""], ["a", " "])
    monkeypatch.setitem(sys.modules, "jiwer", None)
    with pytest.raises(UserError, match=r"error rates need the package jiwer: pip install 'transduce\[senses\]'"):
        error_rates(["a"], ["a"])
