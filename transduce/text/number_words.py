"""Number words: written in English, German and Chinese, and read in these, French, Spanish and Portuguese.

`english`, `german` and `chinese` write integers from 0 to 999,999: synthetic data that a program can check.
`read_words` finds number words in a text. It is generous: it serves to see whether a translation may hold a number,
so "a dozen" is 12, "both" is 2 and "November" is 11.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache

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


# Words and their values, by language; what stands before "=" are the words. "0.5 8" gives a word two values.
_SPELLED = {
    "en": """
        a an one once single first=1 two second twice both pair pairs couple double doubled doubles=2
        three third thirds triple thrice tripled=3 four fourth quadruple=4 five fifth=5 six sixth=6 seven seventh=7
        eight eighth=8 nine ninth=9 ten tenth tens decade decades=10 eleven eleventh=11 twelve twelfth dozen dozens=12
        noon midday midnight=0,12,24 thirteen thirteenth=13 fourteen fourteenth fortnight=14 fifteen fifteenth=15
        sixteen sixteenth=16 seventeen seventeenth=17 eighteen eighteenth=18 nineteen nineteenth=19
        twenty twentieth twenties score=20 thirty thirtieth thirties=30 forty fortieth forties=40
        fifty fiftieth fifties=50 sixty sixtieth sixties=60 seventy seventieth seventies=70
        eighty eightieth eighties=80 ninety ninetieth nineties=90 hundredth hundreds century centuries=100
        half halves=0.5 quarter quarters=0.25,4,15 zero nil none=0
        january jan=1 february feb=2 march mar=3 april apr=4 may=5 june jun=6 july jul=7 august aug=8
        september sept sep=9 october oct=10 november nov=11 december dec=12
    """,
    "de": """
        ein eine einen einem einer eines eins einmal einfach erst erste erstes erster ersten erstem erstmals=1
        zwo zweit beide beiden beider beides doppelt doppel doppelte doppelten doppelter paar=2 dritt drittel=3
        viertel=0.25,4,15 dreiviertel=0.75,45 fünftel=5 achtel=8 zehntel jahrzehnt jahrzehnte=10
        dutzend dutzende dutzenden=12 mittag mittags mitternacht=0,12,24 hundertstel hunderte hunderten=100
        jahrhundert jahrhunderte jahrhunderts=100 halb halbe halben halber halbes hälfte=0.5 anderthalb eineinhalb=1.5
        zweieinhalb=2.5 dreieinhalb=3.5 viereinhalb=4.5 fünfeinhalb=5.5 dreissig=30 keine kein=0
        januar jan jänner=1 februar feb=2 märz mär=3 april apr=4 mai=5 juni jun=6 juli jul=7 august aug=8
        september sept sep=9 oktober okt=10 november nov=11 dezember dez=12
    """,
    "fr": """
        zéro=0 un une premier première premiers premières unique=1
        deux deuxième deuxièmes second seconde double doublé paire couple=2 trois troisième tiers triple=3
        quatre quatrième=4 cinq cinquième=5 six sixième=6 sept septième=7 huit huitième huitaine=8
        neuf neuvième=9 dix dixième dizaine dizaines décennie décennies=10 onze onzième=11
        douze douzième douzaine douzaines=12 midi minuit=0,12,24 treize treizième=13 quatorze quatorzième=14
        quinze quinzième quinzaine=15 seize seizième=16 vingt vingts vingtième vingtaine=20
        trente trentième trentaine=30 quarante quarantième quarantaine=40 cinquante cinquantième cinquantaine=50
        soixante soixantième soixantaine=60 septante=70 octante huitante=80 nonante=90
        centaine centaines centième siècle siècles=100 demi demie demis moitié mi=0.5 quart quarts=0.25,4,15
        janvier janv=1 février févr=2 mars=3 avril avr=4 mai=5 juin=6 juillet juil=7 août=8 septembre sept=9
        octobre oct=10 novembre nov=11 décembre déc=12
    """,
    "es": """
        cero=0 un una uno primer primero primera primeros primeras único única=1
        dos segundo segunda segundos ambos ambas doble par pareja=2 tres tercer tercero tercera tercio tercios triple=3
        cuatro cuarto cuarta=4 cinco quinto quinta=5 seis sexto sexta=6 siete séptimo séptima=7 ocho octavo octava=8
        nueve noveno novena=9 diez décimo décima decena decenas década décadas=10 once undécimo=11
        doce duodécimo docena docenas=12 mediodía medianoche=0,12,24 trece=13 catorce=14 quince quincena=15
        dieciséis=16 diecisiete=17 dieciocho=18 diecinueve=19 veinte veintena=20 veintiuno veintiún veintiuna=21
        veintidós=22 veintitrés=23 veinticuatro=24 veinticinco=25 veintiséis=26 veintisiete=27 veintiocho=28
        veintinueve=29 treinta treintena=30 cuarenta=40 cincuenta=50 sesenta=60 setenta=70 ochenta=80 noventa=90
        cien ciento centenar centenares centenario siglo siglos=100 doscientos doscientas=200
        trescientos trescientas=300 cuatrocientos cuatrocientas=400 quinientos quinientas=500
        seiscientos seiscientas=600 setecientos setecientas=700 ochocientos ochocientas=800
        novecientos novecientas=900 medio media mitad=0.5 cuartos=0.25,4,15
        enero ene=1 febrero feb=2 marzo mar=3 abril abr=4 mayo=5 junio jun=6 julio jul=7 agosto ago=8
        septiembre setiembre sept sep=9 octubre oct=10 noviembre nov=11 diciembre dic=12
    """,
    "pt": """
        zero=0 um uma primeiro primeira primeiros primeiras único única=1
        dois duas segundo segunda segundos ambos ambas dobro duplo dupla par casal=2
        três terceiro terceira terço terços triplo=3 quatro quarto quarta=4 cinco quinto quinta=5
        seis sexto sexta meia=6 sete sétimo sétima=7 oito oitavo oitava=8 nove nono nona=9
        dez décimo décima dezena dezenas década décadas=10 onze=11 doze dúzia dúzias=12
        meio-dia meia-noite=0,12,24 treze=13 catorze quatorze=14 quinze quinzena=15 dezesseis dezasseis=16
        dezessete dezassete=17 dezoito=18 dezenove dezanove=19 vinte=20 trinta=30 quarenta=40 cinquenta=50
        sessenta=60 setenta=70 oitenta=80 noventa=90 cem cento centena centenas século séculos=100
        duzentos duzentas=200 trezentos trezentas=300 quatrocentos quatrocentas=400 quinhentos quinhentas=500
        seiscentos seiscentas=600 setecentos setecentas=700 oitocentos oitocentas=800 novecentos novecentas=900
        meio metade=0.5 quartos=0.25,4,15 janeiro jan=1 fevereiro fev=2 março mar=3 abril abr=4 maio=5 junho jun=6
        julho jul=7 agosto ago=8 setembro set=9 outubro out=10 novembro nov=11 dezembro dez=12
    """,
}
# What multiplies the number before it. "mil millones" and the like are two words.
SCALES = {
    "en": {"hundred": 2, "thousand": 3, "thousands": 3, "k": 3, "million": 6, "millions": 6, "mn": 6, "mln": 6, "m": 6,
           "billion": 9, "billions": 9, "bn": 9, "bln": 9, "trillion": 12, "trillions": 12, "tn": 12},
    "de": {"hundert": 2, "tausend": 3, "tausende": 3, "tausenden": 3, "tsd": 3, "million": 6, "millionen": 6, "mio": 6,
           "m": 6, "milliarde": 9, "milliarden": 9, "mrd": 9, "billion": 12, "billionen": 12},
    "fr": {"cent": 2, "cents": 2, "mille": 3, "milles": 3, "millier": 3, "milliers": 3, "million": 6, "millions": 6,
           "m": 6, "milliard": 9,
           "milliards": 9, "md": 9, "mds": 9, "mrd": 9, "billion": 12, "billions": 12},
    "es": {"mil": 3, "miles": 3, "millar": 3, "millares": 3, "millón": 6, "millones": 6, "m": 6,
           "millardo": 9, "billón": 12, "billones": 12},
    "pt": {"mil": 3, "milhar": 3, "milhares": 3, "milhão": 6, "milhões": 6, "mi": 6, "m": 6, "bilhão": 9, "bilhões": 9,
           "bi": 9, "trilhão": 12, "trilhões": 12, "bilião": 12, "biliões": 12},
    "zh": {"十": 1, "百": 2, "千": 3, "万": 4, "萬": 4, "亿": 8, "億": 8, "兆": 12},
}  # fmt: skip
_JOINERS = {"en": {"and"}, "de": {"und"}, "fr": {"et"}, "es": {"y"}, "pt": {"e"}}
_AFTER_NUMBER = (
    "fach|jahr|jähr|kilo|köpf|mal|meter|minut|minüt|monat|prozent|seit|sitz|spur|stell|stöck|stünd|stund|tag|tägi|teil"
    "|tonn|wöch|zeil|er"
)
_CHINESE_DIGITS = {sign: value for value, sign in enumerate(_DIGITS)} | {
    "〇": 0,
    "两": 2,
    "兩": 2,
    "俩": 2,
    "廿": 20,
    "首": 1,
}
_CHINESE = re.compile(f"[{''.join(_CHINESE_DIGITS)}十百千万萬亿億兆半双雙打]+")
_LETTERS = re.compile(r"[^\W\d_]+")
_ROMAN = re.compile(r"(?<!\w)(?=[IVXLC])(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})(?=(?:e|er|ème|es)?(?!\w))")


@dataclass(frozen=True)
class NumberWords:
    """Number words at a place of a text, and all values they may have."""

    start: int
    stop: int
    value: Decimal
    values: frozenset[Decimal]


@cache
def _table(language: str) -> dict[str, tuple[Decimal, ...]]:
    table = dict[str, tuple[Decimal, ...]]()
    for entry in re.finditer(r"([^=]+)=([\d.,]+)", _SPELLED.get(language, "")):
        for word in entry[1].split():
            table[word] = (*table.get(word, ()), *map(Decimal, entry[2].split(",")))
    if language == "de":
        for number in range(999, -1, -1):
            stem = _german_stem(number) if number else "null"
            if stem.startswith("einhundert"):
                table.setdefault(stem.removeprefix("ein"), (Decimal(number),))
            ordinal = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}.get(number, stem + ("t" if number < 20 else "st"))
            for form in (stem, german(number), *(f"{ordinal}e{ending}" for ending in ("", "n", "r", "s", "m"))):
                table.setdefault(form, (Decimal(number),))
    return table


def read_words(text: str, language: str) -> Iterator[NumberWords]:
    """Yield the number words of a text in a language; what is read as one number also has its parts as values."""
    yield from _roman(text)
    if language == "zh":
        for match in _CHINESE.finditer(text):
            yield NumberWords(*match.span(), *read_chinese(match[0]))
        return
    number, stop = _Sum(), 0
    for word in _LETTERS.finditer(text):
        spelled = word[0].lower()
        values, scale = _values_of(spelled, language)
        joins = spelled in _JOINERS.get(language, ())
        near = text[stop : word.start()].strip() in ("", "-", "\u2011")
        if not number.empty and not (near and (number.takes(values) or scale or joins)):
            yield number.words(stop)
            number = _Sum()
        if values or scale:
            number.add(word.start(), values, scale)
        if values or scale or joins:
            stop = word.end()
    if not number.empty:
        yield number.words(stop)


def _values_of(word: str, language: str) -> tuple[tuple[Decimal, ...], Decimal | None]:
    """Return the values of a word, and what it multiplies the words before it by."""
    power = SCALES.get(language, {}).get(word) if len(word) > 1 else None
    values = _table(language).get(word) or (_german_values(word) if language == "de" else ())
    return values, None if power is None else Decimal(10) ** power


class _Sum:
    """Number words that make one number, as far as they are read."""

    def __init__(self) -> None:
        self.start, self.total, self.part = 0, Decimal(0), Decimal(0)
        self.values = set[Decimal]()

    @property
    def empty(self) -> bool:
        return not self.values

    def takes(self, values: tuple[Decimal, ...]) -> bool:
        """Whether another word can go on: twenty and five can, five and six cannot; quatre takes vingt."""
        if not values:
            return False
        if self.part == Decimal("0.5"):  # half a million
            return values[0] == 1
        free = next((place for place in (1000, 100, 20, 10) if self.part % place == 0), 1)
        return values[0] < free or (self.part == 4 and values[0] == 20)

    def add(self, start: int, values: tuple[Decimal, ...], scale: Decimal | None) -> None:
        """Add a word's value, or multiply by its scale: hundred the last part, what is larger all that is smaller."""
        self.start = start if self.empty else self.start
        if values and self.part != Decimal("0.5"):
            self.part = Decimal(80) if self.part == 4 and values[0] == 20 else self.part + values[0]
        elif scale == 100:
            self.part = (self.part or Decimal(1)) * 100
        elif scale:
            smaller = self.total if self.total < scale else Decimal(0)
            self.total += (smaller + self.part or Decimal(1)) * scale - smaller
            self.part = Decimal(0)
        self.values |= {*values, self.part, self.total, self.total + self.part} | ({scale} if scale else set())

    def words(self, stop: int) -> NumberWords:
        return NumberWords(self.start, stop, self.total + self.part, frozenset(self.values))


def _german_values(word: str) -> tuple[Decimal, ...]:
    """Read compounds: zweitausenddreihundert, and zweijährig by its beginning."""
    table = _table("de")
    before, thousand, after = word.partition("tausend")
    if thousand and (not before or before in table) and (not after or after in table):
        return ((table[before][0] if before else 1) * Decimal(1000) + (table[after][0] if after else 0),)
    for length in range(min(len(word) - 1, 24), 2, -1):
        if word[:length] in table and word[:length] != "ein" and re.match(_AFTER_NUMBER, word[length:]):
            return table[word[:length]]
    return ()


def read_chinese(text: str) -> tuple[Decimal, frozenset[Decimal]]:
    """Read a Chinese numeral such as 一百二十五万 or 二〇一七; also gives the values of its parts."""
    digits = [_CHINESE_DIGITS.get(sign) for sign in text]
    seen = {Decimal(digit) for digit in digits if digit is not None}
    seen |= {Decimal(value) for sign, value in (("双", 2), ("雙", 2), ("打", 12), ("半", "0.5")) if sign in text}
    if len(text) > 1 and None not in digits:
        value = Decimal("".join(map(str, digits)))
        return value, frozenset(seen | {value})
    total = section = digit = Decimal(0)
    last = 0
    for sign in text:
        power = SCALES["zh"].get(sign, 0)
        if power >= 4:
            total = (total + section + digit or Decimal(1)) * 10**power
            section = digit = Decimal(0)
        elif power:
            section += (digit or Decimal(1)) * 10**power
            digit = Decimal(0)
        else:
            digit = Decimal(_CHINESE_DIGITS.get(sign, 0))
        last = power or last
        seen |= {section + digit, total + section + digit}
    if digit and last > 1 and text[-2:-1] in SCALES["zh"]:  # 两万五 is 25,000
        seen.add(total + section + digit * 10 ** (last - 1))
    value = total + section + digit or (Decimal("0.5") if "半" in text else Decimal(0))
    return value, frozenset(seen | {value})


def _roman(text: str) -> Iterator[NumberWords]:
    """Yield Roman numerals, but for a single letter other than V and X."""
    worth = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
    for match in _ROMAN.finditer(text):
        values = [worth[sign] for sign in match[0]]
        if match[0] and match[0] not in ("I", "L", "C"):
            signs = zip(values, [*values[1:], 0], strict=True)
            value = Decimal(sum(-one if one < following else one for one, following in signs))
            yield NumberWords(*match.span(), value, frozenset({value}))
