"""Sentence chrF and BLEU against sacreBLEU called sentence by sentence."""

from __future__ import annotations

from typing import Any

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.core.errors import DataError
from transduce.metrics.sentence import SentenceMetric, sentence_scorer

TEXTS = st.text("ab cä.,,'1 你\u3000\n", max_size=30)
ORACLES: dict[str, Any] = {"chrf": sacrebleu.sentence_chrf, "bleu": sacrebleu.sentence_bleu}
METRICS = pytest.mark.parametrize("metric", ["chrf", "bleu"])


@METRICS
@settings(deadline=None, max_examples=150)
@given(hypotheses=st.lists(TEXTS, max_size=4), references=st.lists(TEXTS, max_size=4))
def test_every_pair_is_as_sacrebleu_has_it(
    metric: SentenceMetric, hypotheses: list[str], references: list[str]
) -> None:
    found = sentence_scorer(metric).matrix(hypotheses, references)
    assert found.shape == (len(hypotheses), len(references))
    for row, hypothesis in enumerate(hypotheses):
        for column, reference in enumerate(references):
            expected = ORACLES[metric](hypothesis, [reference]).score
            assert found[row, column] == pytest.approx(expected, abs=1e-6)


@METRICS
def test_line_by_line_is_the_diagonal(metric: SentenceMetric) -> None:
    hypotheses = ["the the cat", "", "a dog runs in the park today.", "x", "the the cat", "a a a a a a"]
    references = ["the cat the hat", "gone", "a dog is in the park today.", "", "the the cat", "a a a a"]
    scorer = sentence_scorer(metric)
    found = scorer(hypotheses, references)
    assert found == pytest.approx(scorer.matrix(hypotheses, references).diagonal())
    expected = [ORACLES[metric](one, [other]).score for one, other in zip(hypotheses, references, strict=True)]
    assert found == pytest.approx(expected, abs=1e-6)
    assert found[4] == pytest.approx(100)
    assert scorer([], []).shape == (0,)


def test_bleu_takes_sacrebleus_tokenizers() -> None:
    hypothesis, reference = "我今天去公园散步。", "我今天去公园里散步。"
    expected = sacrebleu.sentence_bleu(hypothesis, [reference], tokenize="zh").score
    assert sentence_scorer("bleu", "zh")([hypothesis], [reference])[0] == pytest.approx(expected)
    with pytest.raises(DataError, match="is not a tokenizer of sacreBLEU"):
        sentence_scorer("bleu", "klingon")


def test_as_many_of_each() -> None:
    with pytest.raises(DataError, match="2 hypotheses and 1 references; give one reference each"):
        sentence_scorer("chrf")(["a", "b"], ["a"])
