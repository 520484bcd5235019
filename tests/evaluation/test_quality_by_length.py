"""Quality by source length: who falls into which range, and each range measured as a corpus of its own."""

from __future__ import annotations

import pytest
import sacrebleu

from transduce.core.errors import DataError
from transduce.evaluation.report import by_length

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def of_length(count: int) -> str:
    return " ".join(WORDS[n % 10] for n in range(count))


def test_ranges_and_their_ends() -> None:
    lengths = [0, 1, 9, 10, 19, 20, 49, 50, 500]
    sources = [of_length(count) for count in lengths]
    rows = by_length(sources, sources, sources)
    assert [(row.range, row.sentences) for row in rows] == [
        ("0", 1), ("1-9", 2), ("10-19", 2), ("20-29", 1), ("40-49", 1), ("50+", 2)
    ]  # fmt: skip
    assert [(row.shortest, row.longest) for row in rows][-2:] == [(40, 49), (50, None)]
    assert rows[-1].bleu == pytest.approx(100)


def test_each_range_is_measured_alone() -> None:
    sources = [of_length(5), of_length(12), of_length(6), of_length(15)]
    references = list(sources)
    hypotheses = [sources[0], "one two three four five six", sources[2], sources[3] + " more more more more"]
    short, long = by_length(sources, hypotheses, references)
    assert short.bleu == pytest.approx(100)
    assert short.length_ratio == 1.0
    expected = sacrebleu.corpus_bleu([hypotheses[1], hypotheses[3]], [[references[1], references[3]]])
    assert long.bleu == expected.score
    assert long.length_ratio == pytest.approx((6 + 19) / 27)
    assert long.chrf == sacrebleu.corpus_chrf([hypotheses[1], hypotheses[3]], [[references[1], references[3]]]).score


def test_language_case_and_several_references() -> None:
    sources = ["x " * 3]
    row = by_length(sources, ["他喜欢看书"], [["我喜欢看书"], ["他喜欢看书"]], language="zh")[0]
    assert row.bleu == pytest.approx(100)
    assert row.length_ratio == 1.0
    assert by_length(sources, ["A B C D E"], ["a b c d e"], lowercase=True)[0].bleu == pytest.approx(100)
    assert by_length(sources, ["A B C D E"], ["a b c d e"])[0].bleu == 0


def test_length_in_characters() -> None:
    sources = ["他喜欢看书。", "书" * 25, "书 " * 19]
    rows = by_length(sources, sources, sources, characters=True)
    assert [(row.range, row.sentences) for row in rows] == [("1-19", 2), ("20-39", 1)]


def test_errors() -> None:
    with pytest.raises(DataError) as caught:
        by_length(["a"], ["a", "b"], ["a", "b"])
    assert "There are 1 source lines, but 2 hypotheses. Hypothesis n must translate source line n" in str(caught.value)
    with pytest.raises(DataError) as caught:
        by_length(["a", "b"], ["a", "b"], ["a"])
    assert "There are 2 hypotheses, but the reference has 1 lines." in str(caught.value)
