"""Count what no translation should be: empty, a copy, repetitive, far too long, or cut by the length limit.

Only the worst is caught, by rules that people can check by eye; a good translation is hardly ever counted.

Two hundred inputs that people type and corpora hardly hold, written here by hand, show what a model makes of them.
Words, capitals, greetings in other languages ought to be translated; numbers, names, signs and addresses mostly stay.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

WORDS = (
    "cat|house|water|why|tomorrow|blue|seventeen|run|beautiful|nothing|window|maybe|sorry|help|Wednesday"
    "|Katze|Haus|Wasser|warum|morgen|schön|Danke|maison|eau|pourquoi|demain|merci|gato|casa|agua|mañana"
    "|gracias|água|amanhã|obrigado|猫|房子|水|为什么|明天"
)
NUMBERS = (
    "7|42|1984|3.14159|1,000,000|-273.15|50%|100 km/h|12:45|2026-11-15|15.11.2026|$19.99|€5|£3.50|¥800|+49 30 1234567"
    "|1/2|2 + 2 = 4|10^6|0|IV|1st|3rd|20°C|A4|H2O"
)
NAMES = (
    "Maria|Tom|Anna-Lena Müller|José García|João da Silva|François Dupont|王小明|Dr. Smith|Mr. and Mrs. Brown|O'Neill"
    "|New York|Zürich|São Paulo|Beijing|Gdańsk|IBM|UNESCO|iPhone|Müller & Söhne GmbH|Hyperion Quill|Zorblax|McAllister"
)
CAPITALS = (
    "STOP|HELP ME|DO NOT ENTER|I LOVE YOU|WHERE ARE YOU|NO SMOKING|PLEASE READ THIS|THE CAT IS ON THE TABLE|SALE"
    "|WARNING: HOT SURFACE|EXIT ONLY|HAPPY BIRTHDAY|BITTE NICHT STÖREN|DÉFENSE DE FUMER|PROHIBIDO EL PASO"
    "|NÃO PERTURBE|thank you very much|how are you|i dont know|whats your name|WhErE iS iT|nO wAy|okay...|???|!!!"
)
SIGNS = (
    "😀|❤️|👍👍👍|I ❤️ you|Good morning ☀️|🎉 Happy birthday! 🎉|:-)|;-)|¯\\_(ツ)_/¯|😂😂😂 so funny|🐱 + 🥛 = ❤️"
    '|→|★★★★☆|© 2026|™|…|—|""|()|*'
)
ADDRESSES = (
    "https://example.org|www.example.com/path?query=1&page=2|ftp://files.example.net/a.zip|someone@example.com"
    "|See https://example.org for more.|Write to info@example.org.|C:\\Users\\me\\file.txt|/usr/local/bin|~/notes.md"
    "|print('hello')|if (x == 1) { return; }|<b>bold</b>|SELECT * FROM users;|@someone|#hashtag|v1.2.3|192.168.0.1"
    "|file_name_with_underscores.tar.gz|key=value|a@b@c"
)
OTHER_LANGUAGES = (
    "Доброе утро!|Где вокзал?|おはようございます。|猫が好きです。|안녕하세요?|صباح الخير|שלום|Καλημέρα|Buongiorno!"
    "|Dov'è la stazione?|Goedemorgen!"
    "|God morgon!|Dzień dobry!|Dobré ráno!|Jó reggelt!|Günaydın!|Chào buổi sáng!|नमस्ते"
    "|สวัสดี|Selamat pagi!|Habari za asubuhi?"
    "|Bună dimineața!|Huomenta!|Góðan daginn!|Maidin mhaith!|Salve, amice!|Saluton, mondo!"
    "|早晨，你好嗎？|貓喜歡睡覺。|Guete Morge mitenand!"
)
MIXED = (
    "asdfghjkl|aaaaaaaaaa|ha ha ha|x|ß|the the the|I I want want this this"
    "|Ich bin very happy today.|C'est la vie, my friend.|No problem, amigo!|我要一杯 coffee。"
    '|Lorem ipsum dolor sit amet|NULL|Yes No Yes No|12 cats, 3 dogs & 1 bird|( see page 4 )|"Hi," he said.'
)

KINDS: dict[str, tuple[str, ...]] = {
    "word": tuple(WORDS.split("|")),
    "number": tuple(NUMBERS.split("|")),
    "name": tuple(NAMES.split("|")),
    "capitals": tuple(CAPITALS.split("|")),
    "signs": tuple(SIGNS.split("|")),
    "address": tuple(ADDRESSES.split("|")),
    "other language": tuple(OTHER_LANGUAGES.split("|")),
    "mixed": tuple(MIXED.split("|")),
}
STAY = ("number", "name", "signs", "address", "mixed")  # a copy of these is no fault


REPEATS = 4  # repetitions in a row that are no accident
LONG_TIMES, LONG_MORE = 3, 30  # longer than so many times the source, and so many letters more
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
# A unit of one to four words, or of up to eight characters where there are no spaces, repeated.
_WORDS = re.compile(rf"(?:^|(?<=\s))(\S+(?:\s\S+){{0,3}}?)(?:\s\1){{{REPEATS - 1},}}(?=\s|$)")
_CHARACTERS = re.compile(rf"(\S{{2,8}}?)\1{{{REPEATS - 1},}}|(\S)\2{{{2 * REPEATS},}}")


@dataclass(frozen=True)
class Health:
    """Counts of faulty translations among `lines`."""

    lines: int = 0
    empty: int = 0
    copied: int = 0
    repeated: int = 0
    long: int = 0
    cut: int = 0

    def __add__(self, other: Health) -> Health:
        left, right = asdict(self), asdict(other)
        return Health(**{key: left[key] + right[key] for key in left})


def letters(text: str) -> str:
    """Letters and digits alone, casefolded: what is unchanged in a copy."""
    return "".join(character for character in text.casefold() if character.isalnum())


def length(text: str) -> int:
    """Letters of a text; a Chinese or Japanese character says as much as three."""
    return len(text) + 2 * len(_WIDE.findall(text))


def repeats(text: str) -> bool:
    """Whether some words or characters are repeated many times in a row."""
    return bool(_WORDS.search(text) or _CHARACTERS.search(text))


def examine(
    sources: Sequence[str], translations: Sequence[str], finished: Sequence[bool], references: Sequence[str] = ()
) -> Health:
    """Count the faults of all lines; what the source (or the reference) does too is no fault."""
    found = Health()
    for number, (source, translation, complete) in enumerate(zip(sources, translations, finished, strict=True)):
        reference = references[number] if references else ""
        empty = not translation.strip() and bool(source.strip())
        copied = bool(letters(source)) and letters(translation) == letters(source) != letters(reference)
        found += Health(
            lines=1,
            empty=int(empty),
            copied=int(copied),
            repeated=int(repeats(translation) and not repeats(source) and not repeats(reference)),
            long=int(length(translation) > LONG_TIMES * length(source) + LONG_MORE),
            cut=int(not complete),
        )
    return found
