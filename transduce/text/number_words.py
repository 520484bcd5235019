"""Integers from 0 to 999,999 in English, German and Chinese words: synthetic data that a program can check."""

from __future__ import annotations

_ENGLISH = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen"
).split()
_ENGLISH_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_GERMAN = (
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn"
    " achtzehn neunzehn"
).split()
_GERMAN_TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
_DIGITS = "零一二三四五六七八九"


def english(number: int) -> str:
    """Spell out a number in British style: 'twelve thousand three hundred and four'."""
    if number >= 1000:
        thousands, rest = divmod(number, 1000)
        joint = " and " if 0 < rest < 100 else " "
        return f"{english(thousands)} thousand" + (f"{joint}{english(rest)}" if rest else "")
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        return f"{_ENGLISH[hundreds]} hundred" + (f" and {english(rest)}" if rest else "")
    if number >= 20:
        tens, ones = divmod(number, 10)
        return _ENGLISH_TENS[tens - 2] + (f"-{_ENGLISH[ones]}" if ones else "")
    return _ENGLISH[number]


def german(number: int) -> str:
    """Spell out a number as one German word: 'zwölftausenddreihundertvier'."""
    if number % 100 == 1 and number > 100:
        return _german_stem(number - 1) + "eins"
    return "eins" if number == 1 else _german_stem(number)


def _german_stem(number: int) -> str:
    """Spell out a number as before 'hundert' and 'tausend': 'ein', not 'eins'."""
    if number >= 1000:
        thousands, rest = divmod(number, 1000)
        return f"{_german_stem(thousands)}tausend" + (_german_stem(rest) if rest else "")
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        return f"{_GERMAN[hundreds]}hundert" + (_german_stem(rest) if rest else "")
    if number >= 20:
        tens, ones = divmod(number, 10)
        return (f"{_GERMAN[ones]}und" if ones else "") + _GERMAN_TENS[tens - 2]
    return _GERMAN[number]


def chinese(number: int) -> str:
    """Spell out a number in Chinese, with 零 for skipped digits: '一万二千三百零四'."""
    if number >= 10_000:
        myriads, rest = divmod(number, 10_000)
        gap = "零" if 0 < rest < 1000 else ""
        return f"{chinese(myriads)}万{gap}{_below_myriad(rest) if rest else ''}"
    if 10 <= number < 20:
        return "十" + (_DIGITS[number % 10] if number % 10 else "")
    return _below_myriad(number) if number else "零"


def _below_myriad(number: int) -> str:
    text, skipped = "", False
    for unit, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit, number = divmod(number, unit)
        if digit:
            text += ("零" if skipped and text else "") + _DIGITS[digit] + name
            skipped = False
        else:
            skipped = True
    return text
