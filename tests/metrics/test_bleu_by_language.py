"""BLEU by target language: from a setting, a tag or the script of the references; tokenised as `evaluate` does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sacrebleu

from transduce.evaluation.report import by_length, evaluate
from transduce.evaluation.significance import compare
from transduce.metrics.corpus import (
    NamedTarget,
    Target,
    bleu_by_language,
    in_words,
    target_languages,
    unspaced_language,
)
from transduce.text.number_words import chinese, english, german

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

    def told(tags: list[str], *by: NamedTarget) -> dict[str, tuple[int, ...]]:
        return {one.language: one.texts for one in target_languages(texts, tags, *by)}

    assert told(tags, NamedTarget("", "--language"), NamedTarget("ja", "config")) == {"ja": (0, 1, 2, 3)}
    assert told(tags, NamedTarget("", "--language")) == {"de": (0, 1), "zh": (2, 3)}
    assert told(["<2de>"] * 4) == {"de": (0, 1, 2, 3)}
    assert told(["<2copy>", "", "<2xx>", "<2xx>"]) == {"": (0, 1), "zh": (2, 3)}  # xx is no language


def test_it_says_which_tokenizer_was_taken_and_why() -> None:
    tags = ["<2de>"] * len(GERMAN) + [""] * len(CHINESE)
    found = target_languages([*GERMAN, *CHINESE], tags)
    script = "zh (Chinese, by the script of the references)"
    assert in_words(found) == f"BLEU tokenizer: 13a (German, by the tag <2de>); {script}"
    (given,) = target_languages(CHINESE, (), NamedTarget("zh-Hant", "--language"))
    assert given.text == "zh (Chinese (Hant), by --language)"
    (unknown,) = target_languages(GERMAN)
    assert unknown.text == "13a (no language was given or recognised)"


def test_without_a_language_everything_of_evaluate_is_measured_as_with_it() -> None:
    """By sacreBLEU's standard tokenizer all of it would be 0."""
    sources = [english(number) for number in NUMBERS]
    found = evaluate(sources, NEARLY, CHINESE, other=CHINESE)
    given = evaluate(sources, NEARLY, CHINESE, "zh", other=CHINESE)
    assert found.target == Target("zh", tuple(range(len(CHINESE))), "by the script of the references")
    assert replace(found, target=given.target) == given
    assert found.qualities[0].value > 30
    assert by_length(sources, NEARLY, CHINESE) == list(given.lengths)
    assert compare(CHINESE, NEARLY, CHINESE, ("the other", "this system")) == list(given.verdicts)
    assert evaluate(None, NEARLY, [CHINESE, CHINESE]).target.tokenizer == "zh"  # several references
    assert evaluate(None, NEARLY, CHINESE, tag="<2de>").target.tokenizer == "13a"
    assert (
        evaluate(None, GERMAN, GERMAN, named=[NamedTarget("", "x"), NamedTarget("th", "config")]).target.why
        == "by config"
    )


def test_quality_by_length_is_the_mean_over_languages() -> None:
    texts, wrong = [*GERMAN, *CHINESE], [*WRONG, *NEARLY]
    tags = ["<2de>"] * len(GERMAN) + ["<2zh>"] * len(CHINESE)
    (row,) = by_length(["a b"] * len(texts), wrong, texts, targets=target_languages(texts, tags))
    assert row.bleu == pytest.approx(bleu_by_language(wrong, texts, tags).mean)
    (row,) = by_length(["a b"] * len(texts), texts, texts, targets=target_languages(texts, tags))
    assert (row.bleu, row.length_ratio) == (pytest.approx(100), 1.0)


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
def test_scripts_without_spaces_are_recognised(text: str, language: str) -> None:
    assert unspaced_language([text]) == language
