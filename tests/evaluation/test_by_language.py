"""BLEU by target language: told by a setting, a tag or the script of the references; tokenised as `evaluate` does."""

from __future__ import annotations

import pytest
import sacrebleu

from transduce.evaluation.by_language import bleu_by_language, target_languages, unspaced_language
from transduce.evaluation.report import evaluate
from transduce.numbers import chinese, english, german

NUMBERS = range(100_000, 200_000, 7_919)
CHINESE = [chinese(number) for number in NUMBERS]
NEARLY = [f"{text[:-1]}零" for text in CHINESE]  # the last character is wrong
GERMAN = [f"{german(number)} und {german(number + 1)} und drei" for number in NUMBERS]
WRONG = [text.replace("drei", "vier") for text in GERMAN]


def test_one_language_is_measured_as_evaluate_measures_it() -> None:
    expected = evaluate(None, NEARLY, CHINESE, language="zh").qualities[0]
    for tags, language in (([""], "zh"), (["<2zh>"], ""), ([">>zh-Hans<<"], ""), ([""], ""), (["<domain>"], "")):
        found = bleu_by_language(NEARLY, CHINESE, tags * len(CHINESE), language)
        assert (found.mean, found.signature) == (expected.value, expected.signature)
    assert "tok:zh" in found.signature
    assert found.mean > 30 > sacrebleu.corpus_bleu(NEARLY, [CHINESE]).score


def test_of_several_languages_it_is_the_mean_of_what_each_has() -> None:
    tags = ["<2de>"] * len(GERMAN) + ["<2zh>"] * len(CHINESE)
    found = bleu_by_language([*WRONG, *NEARLY], [*GERMAN, *CHINESE], tags)
    alone = {"de": evaluate(None, WRONG, GERMAN, "de"), "zh": evaluate(None, NEARLY, CHINESE, "zh")}
    expected = {code: one.qualities[0] for code, one in alone.items()}
    assert found.languages == expected
    assert found.mean == pytest.approx((expected["de"].value + expected["zh"].value) / 2)
    assert found.signature == "; ".join(f"{code}: {one.signature}" for code, one in expected.items())


def test_the_setting_goes_before_tags_and_tags_before_the_script() -> None:
    texts, tags = [*GERMAN[:2], *CHINESE[:2]], ["<2de>", "<2de>", "<2zh>", "<2zh>"]
    assert target_languages(texts, tags, "ja") == {"ja": [0, 1, 2, 3]}
    assert target_languages(texts, tags) == {"de": [0, 1], "zh": [2, 3]}
    assert target_languages(texts, ["<2de>"] * 4) == {"de": [0, 1, 2, 3]}
    assert target_languages(texts, ["<2copy>", "", "<2back>", "<2back>"]) == {"": [0, 1], "zh": [2, 3]}


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("一百二十三 (123)", "zh"),
        ("我们都很喜欢用 Python 写程序，还有日本的の", "zh"),
        ("猫は寝るのが好きです。", "ja"),
        ("カタカナ", "ja"),
        ("แมวชอบนอน", "th"),
        ("ແມວມັກນອນ", "lo"),
        ("ကြောင်များ", "my"),
        ("ឆ្មាចូលចិត្តដេក", "km"),
        ("고양이는 자는 것을 좋아한다", ""),
        ("The word 猫 means cat", ""),
        (english(21), ""),
        ("123 !", ""),
        ("", ""),
    ],
)
def test_scripts_without_spaces_are_told(text: str, language: str) -> None:
    assert unspaced_language([text]) == language
