"""BLEU, chrF and TER against sacreBLEU called directly, Moses text against known strings, and every error text."""

from __future__ import annotations

import sys
from typing import get_args

import pytest
import sacrebleu

from transduce.core.errors import ConfigError, DataError, UserError
from transduce.metrics import Metric
from transduce.metrics.corpus import (
    MEASURES,
    bleu,
    chrf,
    moses,
    published_bleu,
    reference_streams,
    ter,
    tokenizer_for,
)

HYPOTHESES = ["The cat sat on the mat.", "A dog runs in the park today.", "two men are Playing football outside"]
REFERENCES = ["The cat sat on a mat.", "A dog is running in the park today.", "Two men are playing football outside."]
MORE = ["A cat was sitting on the mat.", "Today a dog runs in the park.", "Two men play football outside."]
CHINESE = (["我今天去公园散步。", "他喜欢看书。"], ["我今天去公园里散步。", "他很喜欢看书。"])


def test_values_and_signatures_are_sacrebleus_own() -> None:
    ours = bleu(HYPOTHESES, REFERENCES)
    assert ours.name == "BLEU"
    assert ours.value == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert ours.signature == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    assert chrf(HYPOTHESES, REFERENCES).value == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert chrf(HYPOTHESES, REFERENCES).name == "chrF2"
    assert ter(HYPOTHESES, REFERENCES).value == sacrebleu.corpus_ter(HYPOTHESES, [REFERENCES]).score
    assert ter(HYPOTHESES, REFERENCES).signature.startswith("nrefs:1|case:lc|tok:tercom|")


def test_a_perfect_translation() -> None:
    assert bleu(REFERENCES, REFERENCES).value == pytest.approx(100)
    assert chrf(REFERENCES, REFERENCES).value == pytest.approx(100)
    assert ter(REFERENCES, REFERENCES).value == 0


def test_every_metric_of_validation_has_a_label() -> None:
    assert MEASURES.keys() == {*get_args(Metric)}


def test_lower_case_is_named_in_the_signature_and_raises_the_value() -> None:
    lowered = bleu(HYPOTHESES, REFERENCES, lowercase=True)
    assert "case:lc" in lowered.signature
    assert lowered.value > bleu(HYPOTHESES, REFERENCES).value
    assert chrf(HYPOTHESES, REFERENCES, lowercase=True).value > chrf(HYPOTHESES, REFERENCES).value


def test_several_references() -> None:
    both = bleu(HYPOTHESES, [REFERENCES, MORE])
    assert both.value == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES, MORE]).score
    assert both.value > bleu(HYPOTHESES, REFERENCES).value
    assert both.signature.startswith("nrefs:2|")
    assert reference_streams(HYPOTHESES, [REFERENCES]) == reference_streams(HYPOTHESES, REFERENCES) == [REFERENCES]


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [("", "13a"), ("de", "13a"), ("zh", "zh"), ("zh-CN", "zh"), ("ZH_tw", "zh"), ("yue", "zh"), ("th", "char")],
)
def test_tokenizer_follows_the_language(language: str, tokenizer: str) -> None:
    assert tokenizer_for(language) == tokenizer


@pytest.mark.parametrize(("installed", "tokenizer"), [(True, "ja-mecab"), (False, "char")])
def test_japanese_depends_on_mecab(monkeypatch: pytest.MonkeyPatch, installed: bool, tokenizer: str) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if installed else None)
    assert tokenizer_for("ja") == tokenizer


def test_the_name_of_a_language_is_no_code() -> None:
    expected = "language: expected a code such as 'de' or 'zh-CN', got 'chinese', which is not in ISO 639 .near it: zh"
    with pytest.raises(ConfigError, match=expected):
        tokenizer_for("chinese")


def test_a_code_that_no_language_has_is_refused_with_those_near_it() -> None:
    with pytest.raises(ConfigError, match=r"got 'zz', which is not in ISO 639 \(near it: .*zh.*; zh, ja, th"):
        tokenizer_for("zz")
    with pytest.raises(ConfigError, match="got 'd-e'"):
        tokenizer_for("d-e")
    for code in ("sv", "nb", "yo", "deu", "acm", "sv-SE", "pt_BR", "FR"):
        assert tokenizer_for(code) == "13a"
    for code in ("zho", "zho_Hant", "chi", "cmn", "yue", "ZH-tw"):
        assert tokenizer_for(code) == "zh"
    assert tokenizer_for("tha") == tokenizer_for("khm") == "char"


def test_chinese_is_measured_by_characters() -> None:
    hypotheses, references = CHINESE
    assert bleu(hypotheses, references, tokenize="zh").value > 30 > 1 > bleu(hypotheses, references).value
    assert ter(hypotheses, references, language="zh-CN").value == pytest.approx(100 * 2 / 17)  # two characters missing
    assert ter(hypotheses, references).value == 100  # each line one word, and a wrong one


def test_moses_text() -> None:
    assert moses(["Der Hund läuft, z.B. im Park."], "de") == ["der hund läuft , z.b. im park ."]
    assert moses(["L'homme n'est pas là!"], "fr") == ["l' homme n' est pas là !"]
    assert moses(["Tom & Jerry's"], "en", lowercase=False) == ["Tom & Jerry 's"]  # no &amp; and no &apos;
    assert moses(["„Hallo“ – sagte er"], "de") == ["„ hallo “ – sagte er"]
    assert moses(["„Hallo“ – sagte er"], "de", normalize=True) == ['" hallo " - sagte er']


def test_published_bleu_is_bleu_of_moses_text_without_tokenizing() -> None:
    ours = published_bleu(HYPOTHESES, [REFERENCES, MORE], "en")
    prepared = [moses(texts, "en") for texts in (HYPOTHESES, REFERENCES, MORE)]
    assert ours.value == sacrebleu.corpus_bleu(prepared[0], prepared[1:], tokenize="none", force=True).score
    assert ours.name == "BLEU (lower-cased, Moses-tokenised)"
    assert "tok:none" in ours.signature
    named = published_bleu(HYPOTHESES, REFERENCES, "en", normalize=True).name
    assert named == "BLEU (lower-cased, punctuation normalised, Moses-tokenised)"
    assert published_bleu(HYPOTHESES, REFERENCES, "en", lowercase=False).name == "BLEU (Moses-tokenised)"


def test_different_numbers_of_lines() -> None:
    with pytest.raises(DataError) as caught:
        bleu(HYPOTHESES, REFERENCES[:2])
    assert "There are 3 hypotheses, but the reference has 2 lines." in str(caught.value)
    assert "check that both come from the same text" in str(caught.value)
    with pytest.raises(DataError) as caught:
        chrf(HYPOTHESES, [REFERENCES, MORE[:1]])
    assert "There are 3 hypotheses, but reference 2 has 1 lines." in str(caught.value)


def test_empty_input() -> None:
    with pytest.raises(DataError) as caught:
        ter([], [])
    assert "There are no hypotheses to measure: the text is empty." in str(caught.value)
    with pytest.raises(DataError) as caught:
        bleu(HYPOTHESES, [])
    assert "There are no references for 3 hypotheses. Give one reference line for each." in str(caught.value)


def test_unknown_tokenizer() -> None:
    with pytest.raises(DataError) as caught:
        bleu(HYPOTHESES, REFERENCES, tokenize="14a")
    assert "tokenize: '14a' is not a tokenizer of sacreBLEU. Choose one of 13a, char," in str(caught.value)


def test_tokenizer_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    with pytest.raises(DataError) as caught:
        bleu(HYPOTHESES, REFERENCES, tokenize="ja-mecab")
    assert "sacreBLEU cannot use its tokenizer 'ja-mecab' here" in str(caught.value)
    assert "pip install sacrebleu[ja]" in str(caught.value)
    assert "or choose another" in str(caught.value)


def test_moses_without_language_or_package(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError) as caught:
        published_bleu(HYPOTHESES, REFERENCES, "")
    assert "Moses tokenising depends on the language, and none was given." in str(caught.value)
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(UserError) as missing:
        moses(["a"], "en")
    assert "pip install 'transduce[moses]'" in str(missing.value)
