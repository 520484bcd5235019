"""Number words: known ones, and all of them read back by a reader that shares no code with the writer."""

from __future__ import annotations

import random
import re

import pytest

from transduce.text.number_words import chinese, english, german

NUMBERS = [*range(1200), *random.Random(5).sample(range(1200, 1_000_000), 3000), 999_999]


@pytest.mark.parametrize(
    ("number", "in_english", "in_german", "in_chinese"),
    [
        (0, "zero", "null", "零"),
        (1, "one", "eins", "一"),
        (10, "ten", "zehn", "十"),
        (12, "twelve", "zwölf", "十二"),
        (16, "sixteen", "sechzehn", "十六"),
        (17, "seventeen", "siebzehn", "十七"),
        (21, "twenty-one", "einundzwanzig", "二十一"),
        (30, "thirty", "dreißig", "三十"),
        (101, "one hundred and one", "einhunderteins", "一百零一"),
        (110, "one hundred and ten", "einhundertzehn", "一百一十"),
        (1000, "one thousand", "eintausend", "一千"),
        (1001, "one thousand and one", "eintausendeins", "一千零一"),
        (1010, "one thousand and ten", "eintausendzehn", "一千零一十"),
        (1100, "one thousand one hundred", "eintausendeinhundert", "一千一百"),
        (12304, "twelve thousand three hundred and four", "zwölftausenddreihundertvier", "一万二千三百零四"),
        (21000, "twenty-one thousand", "einundzwanzigtausend", "二万一千"),
        (100000, "one hundred thousand", "einhunderttausend", "十万"),
        (100101, "one hundred thousand one hundred and one", "einhunderttausendeinhunderteins", "十万零一百零一"),
        (101000, "one hundred and one thousand", "einhunderteintausend", "十万一千"),
        (
            999999,
            "nine hundred and ninety-nine thousand nine hundred and ninety-nine",
            "neunhundertneunundneunzigtausendneunhundertneunundneunzig",
            "九十九万九千九百九十九",
        ),
    ],
)
def test_known_numbers(number: int, in_english: str, in_german: str, in_chinese: str) -> None:
    assert (english(number), german(number), chinese(number)) == (in_english, in_german, in_chinese)


def read_english(text: str) -> int:
    values = {word: value for value, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
        " seventeen eighteen nineteen".split()
    )}  # fmt: skip
    values |= {w: 20 + 10 * i for i, w in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split())}
    total = part = 0
    for word in re.split("[ -]", text):
        if word == "thousand":
            total, part = part * 1000, 0
        elif word == "hundred":
            part *= 100
        elif word != "and":
            part += values[word]
    return total + part


def read_german(text: str) -> int:
    if "tausend" in text:
        thousands, rest = text.split("tausend")
        return read_german(thousands) * 1000 + (read_german(rest) if rest else 0)
    if "hundert" in text:
        hundreds, rest = text.split("hundert")
        return read_german(hundreds) * 100 + (read_german(rest) if rest else 0)
    plain = "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn"
    values = {word: value for value, word in enumerate(f"{plain} siebzehn achtzehn neunzehn".split())} | {"ein": 1}
    tens = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
    ones, joint, ten = text.rpartition("und")
    if ten in tens:
        return 20 + 10 * tens.index(ten) + (values[ones] if joint else 0)
    return values[text]


def read_chinese(text: str) -> int:
    total = part = digit = 0
    for sign in text:
        if sign == "万":
            total, part, digit = (part + digit) * 10_000, 0, 0
        elif sign in "十百千":
            part += (digit or 1) * {"十": 10, "百": 100, "千": 1000}[sign]
            digit = 0
        else:
            digit = "零一二三四五六七八九".index(sign)
    return total + part + digit


@pytest.mark.parametrize(
    ("write", "read"), [(english, read_english), (german, read_german), (chinese, read_chinese)], ids=["en", "de", "zh"]
)
def test_every_number_is_read_back(write, read) -> None:  # type: ignore[no-untyped-def]
    assert [read(write(number)) for number in NUMBERS] == NUMBERS


def test_a_one_before_the_end_is_ein_and_only_at_the_end_eins() -> None:
    assert not any("eins" in german(number)[:-4] for number in NUMBERS)
    assert all(german(number).endswith("eins") for number in NUMBERS if number % 100 == 1)
