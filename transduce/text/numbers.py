"""Numbers by value: 1,249.50 in English is 1.249,50 in German, 1,250,000 is 125万, and 3:30 pm is 15:30.

`find_numbers` reads the numbers of a text as its language writes them. `missing_numbers` compares a text and its
translation: a number is kept if the other side has its value in any form, in digits or in words, so that a right
translation is not blamed. `write_number` writes a number as another language does, and never as another value.

A sign before a number is not read: "-5" and "5" are equal, since a hyphen is also a dash and a range.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal, TypeAlias

from transduce.text.languages import base_of
from transduce.text.number_words import SCALES, NumberWords, read_chinese, read_words

Kind: TypeAlias = Literal["integer", "decimal", "percentage", "amount", "date", "time", "ordinal", "words"]
Values: TypeAlias = frozenset[Decimal]

_SPACES = " \u00a0\u2009\u202f"
_THIN = "\u00a0\u2009\u202f"
# The decimal mark and the usual mark between thousands; a language that is not here has either.
_MARKS = {
    **dict.fromkeys(("en", "zh"), (".", ",")),
    **dict.fromkeys(("de", "es", "pt"), (",", ".")),
    "fr": (",", "\u202f"),
}
_WIDE = str.maketrans("０１２３４５６７８９．：％－／", "0123456789.:%-/")
_WIDE_COMMA = re.compile("(?<=[０-９])，(?=[０-９]{3})")
_HALVES = {"½": "0.5", "¼": "0.25", "¾": "0.75", "⅓": "0.33", "⅔": "0.67", "⅛": "0.125"}

_CURRENCY = r"US\$|A\$|C\$|HK\$|NZ\$|R\$|[$€£¥￥₹₽]|\b(?:EUR|USD|GBP|CHF|RMB|CNY|JPY|AUD|CAD|BRL)"
_BEFORE = re.compile(rf"(?:({_CURRENCY})|(百分之))[{_SPACES}]?$")
_AFTER = re.compile(
    rf"\.?[{_SPACES}]?(?:(%|‰|percent|per cent|prozent|pour cent|por ciento|por cento|pct)"
    rf"|({_CURRENCY}|欧元|美元|英镑|元|人民币|"
    r"euros?\b|dollars?\b|yuan\b|pounds?\b|pfund\b|livres\b|libras\b|dólares\b|reais\b|pesos\b)"
    rf"|((?:km/h|mph|km|kg|mg|cm|mm|ml|kW|MW|kHz|MHz|GHz|[KMGT]B|°[CF]?|m²|km²|ha|g|m|l|t|h)\b))",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    rf"(?P<iso>(?<!\d)\d{{4}}-\d\d-\d\d(?!\d))"
    r"|(?P<date>(?<![\d.,/])\d{1,2}(?P<mark>[./-])\d{1,2}(?P=mark)(?:\d{4}|\d\d)(?!\d|[./,]\d))"
    r"|(?P<clock>(?<![\d:])\d{1,3}:[0-5]\d(?::[0-5]\d)?(?:[.,]\d{1,3})?(?![\d:]))"
    rf"|(?P<spaced>(?<![\d.,{_THIN}])\d{{1,3}}(?:[{_SPACES}'’]\d{{3}})+(?:[.,]\d+)?(?![\d]))"
    r"|(?P<plain>\d+(?:[.,]\d+)*)"
)
_PM = re.compile(rf"[{_SPACES}]?([ap])\.?[{_THIN} ]?m\b", re.IGNORECASE)
_HOURS = re.compile(
    rf"[{_SPACES}]?(?:(?:uhr|heures?|horas?|o['’]clock|h)(?![a-zß-ÿ])|点钟|[點点时時])"
    rf"(?:[{_SPACES}]?([0-5]?\d)(?:分|(?![\d%]|[.,]\d))|(半))?",
    re.IGNORECASE,
)
_HOUR = re.compile(r"(?:[01]?\d|2[0-4])(?:\.[0-5]\d)?")
_ORDINAL = re.compile(r"(?:st|nd|rd|th|ers?|ères?|res?|èmes?|es|e|os|as|o|a|º|ª|°)(?![\w])|\.(?=\s[A-Za-zÄÖÜäöü])")
_DECADE = re.compile(r"[’']?s\b|er\b|年代|[后後]")
_DECADE_BEFORE = re.compile(r"(?:ann[ée]es|años|anos|’|')\s?$", re.IGNORECASE)
_CENTURY = re.compile(r"世纪(\d0)年代")
_FRACTION = re.compile(rf"(?:[{_SPACES}-](\d)/(\d)(?![\d/])|[{_SPACES}]?([½¼¾⅓⅔⅛]))")
_RANGE = re.compile(r"\s*(?:-|–|—|~|～|/|to|bis|à|a|and|und|et|y|e|or|oder|ou|o|或|至|到|and)\s*", re.IGNORECASE)
_AND_HALF = re.compile(r" (?:and a half|et demie?|y medi[oa]|e mei[oa])\b")
_CHINESE_SCALE = re.compile(rf"[{_SPACES}]?[余餘多来來几个]?[{_SPACES}]?((?:[十千万萬亿億]|百(?!分)|兆(?![瓦赫字]))+)")
_SCALE = re.compile(rf"[{_SPACES}-]?([^\W\d_]+)\.?")


@dataclass(frozen=True)
class Number:
    """A number of a text: its place, its text, its value and its kind.

    The span holds the digits with words such as "million", not the unit. `readings` are the values it may have: a time
    or a date has several values at once. A number in words has the kind "words".
    """

    start: int
    stop: int
    text: str
    value: Decimal
    kind: Kind
    unit: str = ""
    scale: Decimal = Decimal(1)
    readings: tuple[Values, ...] = ()

    def found_in(self, values: Values) -> bool:
        """Whether one of the readings is wholly among some values."""
        return any(reading <= values for reading in self.readings)


@dataclass(frozen=True)
class NumberCheck:
    """What became of the numbers in digits: those of the source that the target lacks, and those that it adds."""

    missing: tuple[Number, ...] = ()
    added: tuple[Number, ...] = ()

    @property
    def kept(self) -> bool:
        return not self.missing and not self.added


def missing_numbers(source: str, target: str, source_language: str, target_language: str) -> NumberCheck:
    """Compare the numbers of a text and of its translation by value, in any form and order.

    Numbers in words are taken where they help, and are never blamed: "two" may become 2, or nothing.
    """
    if not _DIGIT.search(source) and not _DIGIT.search(target):
        return NumberCheck()
    of_source, of_target = find_numbers(source, source_language), find_numbers(target, target_language)
    in_source, in_target = _values_of(of_source), _values_of(of_target)
    return NumberCheck(
        tuple(number for number in of_source if number.kind != "words" and not number.found_in(in_target)),
        tuple(number for number in of_target if number.kind != "words" and not number.found_in(in_source)),
    )


def find_numbers(text: str, language: str) -> list[Number]:
    """Return the numbers of a text from left to right, read as its language writes them."""
    language, folded = base_of(language), _WIDE_COMMA.sub(",", text).translate(_WIDE)
    found, blank = list(_digits(folded, language)), list(folded)
    for number in found:
        blank[number.start : number.stop] = "\0" * (number.stop - number.start)
    found += map(_of_words, read_words("".join(blank), language))
    found = _with_ranges(sorted(found, key=lambda number: number.start), folded)
    return [replace(number, text=text[number.start : number.stop]) for number in found]


def write_number(number: Number, language: str) -> str:
    """Write a number as a language does: 1,249.50 as 1.249,50, 3.5 million as 3,5 Millionen; as it stands if unsure.

    Read in that language it has the value it had. Words, dates, times, ordinals and what has two readings stay.
    """
    language = base_of(language)
    if language not in _MARKS or number.kind in ("words", "date", "time", "ordinal") or not _PLAIN.match(number.text):
        return number.text
    if len({reading for reading in number.readings if len(reading) == 1}) > 1:
        return number.text
    if number.scale > 1:
        written = _scaled(number.value, language)
    else:
        first = re.match(r"\d+", number.text.translate(_WIDE))
        grouped = number.value >= 10 ** len(first[0]) if first else False
        written = _grouped(number.value, language, grouped)
    read = find_numbers(written, language)
    return written if len(read) == 1 and read[0].value == number.value else number.text


_PLAIN = re.compile(r"[1-9０-９]|0[.,．，]|0$")
_LONGEST = 24  # digits of a number that is calculated with
_DIGIT = re.compile(r"\d")
# How large numbers are written: the scale, what follows one of it, and what follows more.
_LARGE = {
    "en": ((12, "trillion", "trillion"), (9, "billion", "billion"), (6, "million", "million")),
    "de": ((12, "Billion", "Billionen"), (9, "Milliarde", "Milliarden"), (6, "Million", "Millionen")),
    "fr": ((12, "billion", "billions"), (9, "milliard", "milliards"), (6, "million", "millions")),
    "es": ((12, "billón", "billones"), (6, "millón", "millones")),
    "pt": ((6, "milhão", "milhões"),),
    "zh": ((8, "亿", "亿"), (4, "万", "万")),
}


def _grouped(value: Decimal, language: str, grouped: bool) -> str:
    """Write digits with the language's marks, with marks between thousands only if `grouped`."""
    point, thousands = _MARKS[language]
    written = f"{value:,f}" if grouped else f"{value:f}"
    return written.translate({ord("."): point, ord(","): thousands})


def _scaled(value: Decimal, language: str) -> str:
    """Write a large number with its word where three decimals are enough, else in digits."""
    for power, one, more in _LARGE[language]:
        mantissa = value.scaleb(-power).normalize()
        if mantissa >= 1 and -int(mantissa.as_tuple().exponent) <= 3:
            singular = mantissa < 2 if language in ("fr", "pt") else mantissa == 1
            space = "" if language == "zh" else " "
            return f"{_grouped(mantissa, language, mantissa >= 10_000)}{space}{one if singular else more}"
    return _grouped(value.normalize(), language, True)


def _values_of(numbers: Sequence[Number]) -> Values:
    """Return all values of a text. A time and a year have the one that stands there, a scaled number what is one value.

    So 1950s is found in "the fifties", and not in "the 1850s".
    """
    found = set[Decimal]()
    for number in numbers:
        year = number.kind == "integer" and 1000 <= number.value < 2100
        for reading in number.readings[:1] if number.kind == "time" or year else number.readings:
            if number.scale == 1 or number.kind == "words" or len(reading) == 1:
                found |= reading
    return frozenset(found)


def _of_words(words: NumberWords) -> Number:
    sized = 0 < words.value < 10**_LONGEST
    scale = next((10**power for power in (12, 9, 8, 6, 4, 3) if sized and words.value % 10**power == 0), 1)
    readings = (frozenset({words.value}), words.values)
    return Number(words.start, words.stop, "", words.value, "words", scale=Decimal(scale), readings=readings)


def _digits(text: str, language: str) -> Iterator[Number]:
    """Yield the numbers that begin with a digit; their `text` is still empty."""
    position = 0
    while token := _TOKEN.search(text, position):
        read = _moment(token, text) or _quantity(token, text, language)
        yield from read
        position = read[-1].stop


def _moment(token: re.Match[str], text: str) -> list[Number]:
    """Read a date, or a time of day; none if the token is neither."""
    parts = re.findall(r"\d+", token[0])
    if token["iso"] or (token["date"] and min(map(int, parts[:2])) <= 12 and max(map(int, parts[:2])) <= 31):
        return [_date(token, parts)]
    if not (token["clock"] or _HOUR.fullmatch(token[0])) or len(parts) > 2 or int(parts[0]) > 24:
        return []
    half_day, named = _PM.match(text, token.end()), _HOURS.match(text, token.end())
    if half_day:
        return [_time(token.start(), half_day.end(), parts, afternoon=half_day[1] in "pP")]
    if not named or (len(parts) > 1 and named[1]):
        return [_time(token.start(), token.end(), parts)] if token["clock"] else []
    minutes = named[1] or ("30" if named[2] else "0")
    return [_time(token.start(), named.end(), [*parts, minutes])]


def _date(token: re.Match[str], parts: Sequence[str]) -> Number:
    year = next((part for part in parts if len(part) == 4), parts[-1])
    others = frozenset(Decimal(part) for part in parts if part is not year)
    readings = tuple(others | {possible} for possible in _years(Decimal(year)))
    return Number(token.start(), token.end(), "", Decimal(year), "date", readings=readings)


def _time(start: int, stop: int, parts: Sequence[str], afternoon: bool = False) -> Number:
    hour, minute = Decimal(parts[0]), Decimal(parts[1] if len(parts) > 1 else 0)
    hour += 12 if afternoon and hour < 12 else 0
    return Number(start, stop, "", hour * 60 + minute, "time", readings=_times(hour, minute))


def _times(hour: Decimal, minute: Decimal) -> tuple[Values, ...]:
    """Return the ways to say a time: of 12 or 24 hours; 30 minutes are half past, 15 a quarter."""
    shares = {15: ((0, "0.25"),), 30: ((0, "0.5"), (1, "0.5")), 45: ((0, "0.75"), (1, "0.25"), (1, "15"))}
    readings = list[Values]()
    for hours in (hour, hour + 12, hour - 12):
        if 0 <= hours <= 24:
            readings += [frozenset({hours, minute})] if minute else [frozenset({hours})]
            for later, share in shares.get(int(minute), ()):
                readings += [frozenset({one + later, Decimal(share)}) for one in (hours, hours % 12 or Decimal(12))]
    return tuple(readings)


def _years(year: Decimal) -> list[Decimal]:
    """Return a year, and what it is with two digits or with four."""
    return [year, year % 100] if year >= 1000 else [year, year + 1900, year + 2000]


def _quantity(token: re.Match[str], text: str, language: str) -> list[Number]:
    """Read a count, an amount, a percentage or an ordinal; a list such as 1.2.3 is several numbers."""
    digits = token[0]
    if not token["plain"] and not (token["spaced"] and _groups_by_space(digits, language)):
        digits = re.match(r"\d+(?:[.,]\d+)*", digits)[0]  # type: ignore[index]  # it begins with a digit
    values = _values(digits, language)
    start, stop = token.start(), token.start() + len(digits)
    if not values:
        parts = re.finditer(r"\d+", digits)
        return [_integer(start + part.start(), start + part.end(), Decimal(part[0])) for part in parts]
    stop, scaled = _scales(text, start, stop, values[0], language)
    scale = scaled / values[0] if scaled and values[0] else Decimal(1)
    fraction = _FRACTION.match(text, stop) if scaled == values[0] else None
    readings = [frozenset({value * scale}) for value in values]
    if scale > 1:
        readings.append(frozenset({values[0], scale}))
        readings = [frozenset({scaled}), *readings[1:]]
    if fraction and (fraction[3] or 0 < int(fraction[1]) < int(fraction[2])):
        part = Decimal(_HALVES[fraction[3]]) if fraction[3] else Decimal(fraction[1]) / Decimal(fraction[2])
        mixed = {values[0], *(map(Decimal, (fraction[1], fraction[2])) if fraction[1] else (part,))}
        readings, scaled, stop = [frozenset({scaled + part}), frozenset(mixed)], scaled + part, fraction.end()
    if scaled % 1 == Decimal("0.5"):
        readings.append(frozenset({scaled // 1, Decimal("0.5")}))
    if clock := re.fullmatch(r"(\d{1,2})[.,](\d\d)", digits):  # 6.30 may be a time, and 7.19 a date
        readings.append(frozenset(map(Decimal, clock.groups())))
    number = Number(start, stop, "", scaled, "decimal" if scaled % 1 else "integer", scale=scale)
    return [_named(replace(number, readings=tuple(readings)), text)]


def _groups_by_space(digits: str, language: str) -> bool:
    """Whether spaces of a token are between thousands, and not between two numbers."""
    return language not in ("en", "zh") or " " not in digits or digits.endswith(" 000")


def _named(number: Number, text: str) -> Number:
    """Add what stands around a number: its unit, which says its kind, an ordinal's ending, a decade's."""
    before, after = _BEFORE.search(text[max(0, number.start - 8) : number.start]), _AFTER.match(text, number.stop)
    if (after and after[1]) or (before and before[2]):
        return replace(number, kind="percentage", unit="%")
    if before or (after and after[2]):
        return replace(number, kind="amount", unit=before[1] if before else after[2] if after else "")
    if after:
        return replace(number, unit=after[3])
    return _counted(number, text) if number.kind == "integer" and number.scale == 1 else number


def _counted(number: Number, text: str) -> Number:
    """Add the other readings of a decade, and say whether an integer is an ordinal."""
    if century := _CENTURY.match(text, number.stop):
        return replace(number, readings=(*number.readings, frozenset({number.value * 100 - 100 + int(century[1])})))
    decade = _DECADE.match(text, number.stop) or _DECADE_BEFORE.search(text[max(0, number.start - 8) : number.start])
    if decade and (number.value < 100 or 1000 <= number.value < 2100):
        readings = tuple(frozenset({year}) for year in _years(number.value))
        return replace(number, readings=number.readings + readings)
    is_ordinal = _ORDINAL.match(text, number.stop) or text[number.start - 1 : number.start] == "第"
    return replace(number, kind="ordinal") if is_ordinal else number


def _integer(start: int, stop: int, value: Decimal) -> Number:
    return Number(start, stop, "", value, "integer", readings=(frozenset({value}),))


def _values(digits: str, language: str) -> list[Decimal]:
    """Return the values that digits with marks may have, the likely one first; none for a list such as 1.2.3."""
    bare = re.sub(rf"[{_SPACES}'’]", "", digits)
    marks = re.findall("[.,]", bare)
    if len(bare) > _LONGEST:
        return []
    if not marks:
        return [Decimal(bare)]
    whole, last = bare.replace(marks[0], ""), bare.rsplit(marks[-1], 1)[-1]
    if len(set(marks)) == 2:
        head = bare[: -len(last) - 1]
        grouped = marks.count(marks[-1]) == 1 and re.fullmatch(r"\d{1,3}(?:[.,]\d{3})+", head)
        return [Decimal(re.sub("[.,]", "", head) + "." + last)] if grouped else []
    if len(marks) > 1:
        return [Decimal(whole)] if re.fullmatch(r"[1-9]\d{0,2}(?:[.,]\d{3})+", bare) else []
    as_decimal = Decimal(bare.replace(",", "."))
    point = _MARKS.get(language, ("", ""))[0]
    if bare != digits or not re.fullmatch(r"[1-9]\d{0,2}[.,]\d{3}", bare):
        return [as_decimal]
    if marks[0] == point:  # 15,000 in German is fifteen, and yet most often meant as thousands
        return [as_decimal, Decimal(whole)] if last == "000" or language == "es" else [as_decimal]
    return [Decimal(whole), as_decimal] if language == "fr" or not point else [Decimal(whole)]


def _scales(text: str, start: int, stop: int, value: Decimal, language: str) -> tuple[int, Decimal]:
    """Read on over words such as "million": where the number ends then, and its value."""
    if language == "zh":
        return _chinese_scales(text, stop, value)
    for _ in range(2):
        word = _SCALE.match(text, stop)
        power = SCALES.get(language, {}).get(word[1].lower(), 0) if word else 0
        if not word or not power or (language, power) == ("fr", 2):
            break
        if len(word[1]) == 1 and word.start(1) != stop and word[1] != "M":
            break
        if word[1] in ("m", "M") and not (
            _BEFORE.search(text[max(0, start - 8) : start]) or text[word.end() :][:1] in "$€£"
        ):
            break
        stop, value = word.end(1), value.scaleb(power)
        if half := _AND_HALF.match(text, stop):
            return half.end(), value + Decimal(10) ** power / 2
    return stop, value


def _chinese_scales(text: str, stop: int, value: Decimal) -> tuple[int, Decimal]:
    """Read 125万, 1.2万亿 and sums such as 1亿2500万."""
    total, part = Decimal(0), value
    while scale := _CHINESE_SCALE.match(text, stop):
        total += part * read_chinese(scale[1])[0]
        stop = scale.end(1)
        following = re.compile(r"\d+(?:\.\d+)?(?=[千百万亿])").match(text, stop)
        if not following:
            return stop, total
        part, stop = Decimal(following[0]), following.end()
    return stop, total + part


def _with_ranges(numbers: list[Number], text: str) -> list[Number]:
    """Give the first part of a range its other reading: 3 to 5 million, and 2008/09 the year 2009."""
    for index in range(len(numbers) - 1):
        first, second = numbers[index : index + 2]
        between = text[first.stop : second.start]
        if len(between) > 8 or not _RANGE.fullmatch(between):
            continue
        if second.scale > 1 and (first.scale == 1 or first.kind == "words"):
            more = frozenset({first.value * second.scale})
            numbers[index] = replace(first, readings=(*first.readings, more))
        elif 1500 <= first.value < 2100 and second.value < 2100 and between.strip() in "-–/":
            century = first.value - first.value % 100
            year = second.value % 100 if second.value >= 1500 else century + second.value
            numbers[index + 1] = replace(second, readings=(*second.readings, frozenset({year})))
    return numbers
