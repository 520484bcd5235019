"""Measure whether spans that are not language survive translation, and whether numbers keep their value.

    python benchmarks/protected.py                                   # the shipped model, 10 directions
    python benchmarks/protected.py --directions en-de zh-en --lines 700 --show 5
    python benchmarks/protected.py --numbers ../shared/data/wmt-news  # numbers by value, against the references

Spans: 14 kinds (URLs, placeholders, tags ...), drawn anew for each line, stand in 50 frames, sentences that
`protected_frames.tsv` holds in six languages; 14 frames have two. For each direction and kind:

- exact: lines in which each span stands exactly once, to the letter; of an ICU message what stands around its words.
- around: lines that fell back to translating the text around the spans (`Translation.protection`).
- order: of the lines with two spans, those that have them in the order of the frame in the target language.
- rest: chrF of the sentence without its spans against the frame, as a share of that of the same frames with a common
  name in the span's place.

Numbers: of those in the source whose value the reference has too, the share whose value the translation has.
Exits with code 1 if a span is lost, more than 3 % of a direction's lines fell back, its rest is below 0.97, or fewer
than 99.5 % of the numbers are kept.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import string
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import transduce
from transduce.data.formats.lines import read_lines
from transduce.metrics.corpus import chrf
from transduce.text.numbers import Number, find_numbers, missing_numbers
from transduce.text.protect import icu_message, protected_spans

FALLBACK, REST, NUMBERS = 0.03, 0.97, 0.995  # the bars
LANGUAGES = ("en", "de", "fr", "es", "pt", "zh")
DIRECTIONS = tuple(pair for other in LANGUAGES[1:] for pair in (f"en-{other}", f"{other}-en"))
NAMES = (("Maria", "玛丽亚"), ("Peter", "彼得"))
# How the names may come out, longest first.
NAME_FORMS = re.compile("Maria|Marie|María|Mary|玛丽亚|玛利亚|玛丽|瑪麗亞|Peter|Pierre|Pedro|彼得|皮特")
NEWS = (("newstest2013", "en", "de"), ("newstest2014", "en", "de"), ("newstest2013", "en", "fr"),
        ("newstest2014", "en", "fr"), ("newstest2017", "zh", "en"))  # fmt: skip
Translate: TypeAlias = Callable[[Sequence[str]], Sequence[Any]]
SLOT = re.compile(r"\{([01])\}")
WORDS = (
    "alpha archive backup basket batch blue border branch cache client cloud copper data delta device draft echo file \
forest garden grid harbor index invoice item job key lake list log manual member mirror model morning night north note \
order panel paper plan port project queue record report river root sample server shop silver site stage status stone \
store table task team test ticket token total tree update user value window winter world".split()
)
# Words to be translated stand in an ICU message, one line a language.
COUNTED = {
    "en": (("# file", "# files"), ("# day", "# days")),
    "de": (("# Datei", "# Dateien"), ("# Tag", "# Tage")),
    "fr": (("# fichier", "# fichiers"), ("# jour", "# jours")),
    "es": (("# archivo", "# archivos"), ("# día", "# días")),
    "pt": (("# arquivo", "# arquivos"), ("# dia", "# dias")),
    "zh": (("# 个文件", "# 个文件"), ("# 天", "# 天")),
}  # fmt: skip


@dataclass(frozen=True)
class Filled:
    """What stands in a slot, and the strings of it that must survive; of an ICU message those around its words."""

    text: str
    kept: tuple[str, ...]
    is_message: bool = False


@dataclass(frozen=True)
class Line:
    """A source text, its frame in the target language, and what fills the slots."""

    text: str
    frame: str
    number: int  # of the frame
    fillings: tuple[Filled, ...]
    kinds: tuple[str, ...]


@dataclass
class Tally:
    """Counts of one direction or of one kind in it."""

    lines: int = 0
    exact: int = 0
    around: int = 0
    marks: int = 0
    pairs: int = 0
    ordered: int = 0
    rests: list[tuple[str, str, int]] = field(default_factory=list)  # without spans, its reference, which frame

    def row(self, named: Sequence[str]) -> list[str]:
        """Columns of a table; `named` has each frame's translation with names, without these."""
        rest = f"{self.rest(named):.3f}" if self.rests else ""
        order = f"{self.ordered / self.pairs:.1%}" if self.pairs else ""
        shares = (self.exact, self.marks, self.around)
        return [f"{self.lines:,}", *(f"{share / self.lines:.2%}" for share in shares), order, rest]

    def rest(self, named: Sequence[str]) -> float:
        """ChrF of the sentences without their spans, as a share of that of the same frames with names."""
        rests, references, frames = map(list, zip(*self.rests, strict=True))
        return chrf(rests, references).value / chrf([named[frame] for frame in frames], references).value


class Drawn:
    """Spans of each kind, drawn by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def word(self) -> str:
        return self.random.choice(WORDS)

    def digits(self, count: int) -> str:
        return "".join(self.random.choices(string.digits, k=count))

    def one_of(self, *forms: Callable[[], str]) -> Filled:
        text = self.random.choice(forms)()
        return Filled(text, (text,))

    def url(self, language: str) -> Filled:
        host = f"{self.word()}-{self.word()}.{self.random.choice(('org', 'com', 'net', 'de', 'co.uk', 'io'))}"
        return self.one_of(
            lambda: f"https://www.{host}",
            lambda: f"https://{host}/{self.word()}/{self.word()}?id={self.digits(3)}&lang={self.word()}",
            lambda: f"http://localhost:{self.digits(4)}/{self.word()}",
            lambda: f"https://{host}/wiki/{self.word().title()}_({self.word()})",
            lambda: f"www.{host}/{self.word()}.html#{self.word()}",
            lambda: f"ftp://{host}/{self.word()}/",
        )

    def email(self, language: str) -> Filled:
        host = f"{self.word()}.{self.random.choice(('org', 'com', 'example.net', 'de'))}"
        return self.one_of(
            lambda: f"{self.word()}@{host}",
            lambda: f"{self.word()}.{self.word()}+{self.digits(2)}@{host}",
            lambda: f"{self.word()}_{self.digits(3)}@mail.{host}",
        )

    def path(self, language: str) -> Filled:
        extension = self.random.choice(("pdf", "txt", "py", "json", "tar.gz", "docx", "png", "yaml"))
        return self.one_of(
            lambda: f"{self.word()}_{self.word()}.{extension}",
            lambda: f"/usr/local/{self.word()}/{self.word()}.{extension}",
            lambda: f"C:\\Users\\{self.word()}\\{self.word()}.{extension}",
            lambda: f"~/{self.word()}/{self.word()}",
            lambda: f"./{self.word()}/{self.word()}-{self.digits(2)}.{extension}",
            lambda: f"src/{self.word()}/{self.word()}.{extension}",
        )

    def code(self, language: str) -> Filled:
        return self.one_of(
            lambda: f"`{self.word()} --{self.word()} {self.digits(2)}`",
            lambda: f"`{self.word()}[{self.digits(1)}] = {self.word()}`",
            lambda: f'`print("{self.word()}")`',
            lambda: f"`{self.word()}`",
        )

    def identifier(self, language: str) -> Filled:
        return self.one_of(
            lambda: f"{self.word()}_{self.word()}",
            lambda: f"{self.word()}_{self.word()}_{self.digits(2)}",
            lambda: f"{self.word().title()}{self.word().title()}()",
            lambda: f"--{self.word()}-{self.word()}",
            lambda: f"{self.digits(1)}.{self.digits(2)}.{self.digits(1)}",
            lambda: f"v{self.digits(1)}.{self.digits(1)}.{self.digits(2)}",
            lambda: f"{self.word().upper()}_{self.word().upper()}",
        )

    def placeholder(self, language: str) -> Filled:
        return self.one_of(
            lambda: f"{{{self.word()}}}",
            lambda: f"{{{self.digits(1)}}}",
            lambda: f"{{{{{self.word()}}}}}",
            lambda: f"${{{self.word()}}}",
            lambda: "%s",
            lambda: f"%({self.word()})d",
            lambda: f"%{self.random.randint(1, 9)}$s",
            lambda: f":{self.word()}",
            lambda: f"<{self.digits(1)}/>",
        )

    def message(self, language: str) -> Filled:
        one, other = self.random.choice(COUNTED[language])
        fixed = (f"{{{self.word()}, plural, one {{", "} other {", "}}")
        return Filled(f"{fixed[0]}{one}{fixed[1]}{other}{fixed[2]}", fixed, is_message=True)

    def markup(self, language: str) -> Filled:
        name = NAMES[self.random.randint(0, 1)][language == "zh"]
        opening, closing = self.random.choice(
            (
                ("<b>", "</b>"),
                (f'<a href="https://{self.word()}.org/{self.word()}">', "</a>"),
                (f'<span class="{self.word()}">', "</span>"),
                ("[", f"](https://{self.word()}.com/{self.word()})"),
                ("**", "**"),
                ("<em>", "</em>"),
            )
        )
        return Filled(f"{opening}{name}{closing}", (opening, closing))

    def hashtag(self, language: str) -> Filled:
        return self.one_of(
            lambda: f"#{self.word()}{self.word()}",
            lambda: f"#{self.word().title()}{self.digits(4)}",
            lambda: f"#{self.word()}",
        )

    def handle(self, language: str) -> Filled:
        return self.one_of(lambda: f"@{self.word()}{self.digits(2)}", lambda: f"@{self.word()}_{self.word()}")

    def iban(self, language: str) -> Filled:
        country, length = self.random.choice((("DE", 20), ("FR", 25), ("ES", 22), ("AT", 18), ("PT", 23)))
        digits = f"{country}{self.digits(length)}"
        grouped = " ".join(digits[at : at + 4] for at in range(0, len(digits), 4))
        return self.one_of(lambda: digits, lambda: grouped)

    def phone(self, language: str) -> Filled:
        return self.one_of(
            lambda: f"+49 {self.random.randint(30, 89)} {self.digits(6)}",
            lambda: f"+1 ({self.random.randint(201, 989)}) 555-{self.digits(4)}",
            lambda: f"0{self.random.randint(151, 179)} {self.random.randint(10, 99)}{self.digits(5)}",
            lambda: f"+33 6 {' '.join(self.digits(2) for _ in range(4))}",
            lambda: f"+86 138 {self.digits(4)} {self.digits(4)}",
            lambda: f"({self.random.randint(201, 989)}) 555-{self.digits(4)}",
        )

    def reference(self, language: str) -> Filled:
        return self.one_of(
            lambda: f"{self.random.randint(2020, 2026)}-{self.digits(5)}",
            lambda: f"INV-{self.random.randint(2020, 2026)}-{self.digits(4)}",
            lambda: f"{''.join(self.random.choices(string.ascii_uppercase, k=3))}-{self.digits(6)}",
            lambda: f"#{self.random.randint(1000, 99999)}",
            lambda: self.digits(8).replace("0", "4"),
        )

    def emoji(self, language: str) -> Filled:
        return self.one_of(lambda: self.random.choice("😀 😂 👍 🎉 ❤️ 👩‍💻 🇩🇪 👍🏽 ✅ 🚀 ☀️ 🍕 🤷‍♂️ ⭐".split()))


KINDS = ("url", "email", "path", "code", "identifier", "placeholder", "message", "markup", "hashtag", "handle", "iban",
         "phone", "reference", "emoji")  # fmt: skip


def read_frames(path: Path) -> list[dict[str, str]]:
    """One frame a line, in all languages."""
    head, *rows = [line.decode("utf-8").split("\t") for line in read_lines(str(path))]
    return [dict(zip(head, row, strict=True)) for row in rows]


def fill(frame: str, texts: Sequence[str]) -> str:
    return SLOT.sub(lambda slot: texts[int(slot[1])], frame)


def draw_lines(frames: Sequence[dict[str, str]], source: str, target: str, count: int, seed: int) -> list[Line]:
    """Every kind in every frame as often as any other; the second span of a frame is of the next kind but three."""
    drawn, lines = Drawn(seed), []
    for number in range(count):
        turn, place = divmod(number, len(frames))
        frame, kinds = frames[place], [KINDS[(place + turn) % len(KINDS)]]
        if "{1}" in frame[source]:
            kinds.append(KINDS[(place + turn + 3 + turn // len(KINDS)) % len(KINDS)])
        while True:  # spans that hold each other could not be told apart
            fillings = tuple(getattr(drawn, kind)(source) for kind in kinds)
            texts = [filling.text for filling in fillings]
            text = fill(frame[source], texts)
            if all(text.count(one) == 1 for one in texts) and (len(texts) < 2 or apart(*fillings)):
                break
        lines.append(Line(text, frame[target], place, fillings, tuple(kinds)))
    return lines


def apart(one: Filled, other: Filled) -> bool:
    return not any(piece in other.text for piece in one.kept) and not any(piece in one.text for piece in other.kept)


def spans_of(line: Line, translation: str) -> list[tuple[int, int]] | None:
    """Where each filling lies in a translation, from its first string to its last; None if any did not survive."""
    found = []
    for filling in line.fillings:
        if filling.is_message:
            messages = [(s.start, s.stop) for s in protected_spans(translation) if s.kind == "icu"]
            right = [(a, b) for a, b in messages if fixed_of(translation[a:b]) == filling.kept]
            if len(right) != 1:
                return None
            found += right
        elif any(translation.count(piece) != line.text.count(piece) for piece in filling.kept):
            return None
        else:
            start = translation.index(filling.kept[0])
            stop = translation.rindex(filling.kept[-1]) + len(filling.kept[-1])
            if start >= stop:
                return None
            found.append((start, stop))
    return found


def fixed_of(message: str) -> tuple[str, ...]:
    taken = icu_message(message)
    return taken.fixed if taken else ()


def without(text: str, spans: Sequence[tuple[int, int]]) -> str:
    for start, stop in sorted(spans, reverse=True):
        text = f"{text[:start]} {text[stop:]}"
    return " ".join(text.split())


def count_lines(lines: Sequence[Line], translations: Sequence[Any]) -> tuple[Tally, dict[str, Tally], list[str]]:
    """Return the tally of all lines, of each kind, and the lines in which a span was lost."""
    total, kinds, lost = Tally(), defaultdict[str, Tally](Tally), list[str]()
    for line, translation in zip(lines, translations, strict=True):
        spans, how = spans_of(line, translation.text), getattr(translation, "protection", "")
        slots = [int(slot[1]) for slot in SLOT.finditer(line.frame)]
        for tally in (total, kinds[line.kinds[0]]):
            tally.lines += 1
            tally.around += how == "around"
            tally.marks += how == "marks"
            tally.exact += spans is not None
            if spans is not None:
                tally.rests.append((without(translation.text, spans), without_slots(line.frame), line.number))
                if len(spans) == 2:
                    tally.pairs += 1
                    tally.ordered += sorted(slots, key=lambda slot: spans[slot]) == slots
        if spans is None:
            lost.append(f"{'+'.join(line.kinds)}: {line.text}\n      -> {translation.text}")
    return total, kinds, lost


def without_slots(frame: str) -> str:
    return " ".join(SLOT.sub(" ", frame).split())


def with_names(translate: Translate, frames: Sequence[dict[str, str]], source: str) -> list[str]:
    """Translate the frames with common names in the slots, and take the names out again."""
    names = [pair[source == "zh"] for pair in NAMES]
    made = translate([fill(frame[source], names) for frame in frames])
    return [" ".join(NAME_FORMS.sub(" ", one.text).split()) for one in made]


def measure_spans(model: Any, options: argparse.Namespace) -> bool:
    frames = read_frames(Path(__file__).with_name("protected_frames.tsv"))
    passed, results = True, {}
    print("| direction | lines | exact | marks | around | order | rest |\n| --- | --- | --- | --- | --- | --- | --- |")
    for direction in options.directions:
        source, target = direction.split("-")
        translate = partial(model.translate, to="" if options.untagged else target)
        lines = draw_lines(frames, source, target, options.lines, options.seed)
        named = with_names(translate, frames, source)
        begun = time.perf_counter()
        total, kinds, lost = count_lines(lines, translate([line.text for line in lines]))
        seconds = time.perf_counter() - begun
        row = total.row(named)
        print(f"| **{direction}** | {' | '.join(row)} |", flush=True)
        for kind in KINDS:
            if kind in kinds:
                print(f"| {kind} | {' | '.join(kinds[kind].row(named))} |")
        for one in lost[: options.show]:
            print(f"    {one}")
        passed &= total.exact == total.lines and total.around <= FALLBACK * total.lines and total.rest(named) >= REST
        results[direction] = {
            "all": row,
            **{kind: tally.row(named) for kind, tally in kinds.items()},
            "seconds": seconds,
        }
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return passed


def in_digits(text: str, language: str) -> list[Number]:
    return [number for number in find_numbers(text, language) if number.kind != "words"]


def measure_numbers(model: Any, options: argparse.Namespace) -> bool:
    passed = True
    print("| set | numbers | kept | lines that add a number |\n| --- | --- | --- | --- |")
    for name, one, other in NEWS:
        if f"{one}-{other}" not in options.directions:
            continue
        sources, references = (
            [line.decode("utf-8") for line in read_lines(str(options.numbers / f"{name}.{one}-{other}.{side}.xz"))]
            for side in (one, other)
        )
        chosen = [pair for pair in zip(sources, references, strict=True) if in_digits(pair[0], one)][: options.lines]
        made = model.translate([source for source, _ in chosen], to="" if options.untagged else other)
        wanted = kept = added = 0
        shown = list[str]()
        for (source, reference), translation in zip(chosen, made, strict=True):
            lacking = set(missing_numbers(source, reference, one, other).missing)
            check = missing_numbers(source, translation.text, one, other)
            numbers = [number for number in in_digits(source, one) if number not in lacking]
            lost = [number for number in numbers if number in check.missing]
            wanted, kept, added = wanted + len(numbers), kept + len(numbers) - len(lost), added + bool(check.added)
            if lost:
                shown.append(f"{', '.join(number.text for number in lost)}: {source}\n      -> {translation.text}")
        print(f"| {name} {one}-{other} | {wanted:,} | {kept / wanted:.2%} | {added / len(chosen):.2%} |", flush=True)
        for text in shown[: options.show]:
            print(f"    {text}")
        passed &= kept >= NUMBERS * wanted
    return passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder; the shipped model if none is given")
    parser.add_argument("--directions", nargs="+", default=[*DIRECTIONS], help="such as en-de zh-en")
    parser.add_argument("--lines", type=int, default=10_000, help="of each direction")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--untagged", action="store_true", help="the model has one direction and no language tags")
    parser.add_argument("--numbers", type=Path, help="measure numbers instead, in this folder of newstest files")
    parser.add_argument("--show", type=int, default=0, help="print so many failures of each direction")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    model = transduce.load(options.model) if options.model else transduce.load()
    sys.exit(not (measure_numbers if options.numbers else measure_spans)(model, options))


if __name__ == "__main__":
    main()
