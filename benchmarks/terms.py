"""Terms of software manuals: how many are used with a glossary, where they occur and where they do not; BLEU; speed.

    python benchmarks/terms.py --data FOLDER --terms 500 --sentences 2000

FOLDER holds sets of parallel text from English, `SET/train.en-de.en.xz` with `SET/train.en-de.de.xz`. The terms are
mined here: a short line (a heading, a menu entry) of one to three words, whose translation stands in at least half of
the references of longer lines that have it, in one form. The sentences are lines whose references have all of their
terms; others, without any term, show what a glossary changes where it should change nothing. The terms are found
by a search of this file's own, not by the package's.

Both ways are translated in turn, several times; the speed is the ratio of the medians. The exit code is 1 where a bar
of the project is missed: 95 % of the terms used, none elsewhere, BLEU not lower, speed 0.9.
"""

from __future__ import annotations

import argparse
import lzma
import random
import re
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import transduce
from transduce.text.terms import Glossary
from transduce.translate.translator import Translator

SETS = "libreoffice-help,gnome-user-docs,godot-docs,python-docs,ms-dynamics365,scratch,kubernetes,ui-strings"
WORD = re.compile(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*")
HAN = re.compile("[\u4e00-\u9fff]+")
ODD = re.compile(r"[<>{}$%&@\[\]_=/\\|`]|\d{3}")  # of markup, placeholders and file names
STOP = frozenset(
    "a an the in on of at to for with by from as is are be was this that these those here there more not no none all"
    " any and or if it its you your we our my new use used using next other only some first last one two how what when"
    " where why can may must do does up down out off yes ok now also same each every".split()
)
LEAST = 3  # sentences of a term


@dataclass(frozen=True)
class Case:
    """A direction's terms, sentences with references and the terms in each, and sentences without any."""

    language: str
    terms: dict[str, str]
    sentences: list[tuple[str, str, list[str]]]
    others: list[str]


def lines(path: Path) -> list[str]:
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return file.read().split("\n")[:-1]


def pairs(folder: Path, sets: Sequence[str], language: str) -> list[tuple[str, str]]:
    found: dict[tuple[str, str], None] = {}
    for name in sets:
        stem = folder / name / f"train.en-{language}"
        if Path(f"{stem}.en.xz").exists():
            both = lines(Path(f"{stem}.en.xz")), lines(Path(f"{stem}.{language}.xz"))
            found |= dict.fromkeys(zip(*both, strict=True))
    return [*found]


def words(text: str) -> str:
    """The words of a text in small letters, each between spaces."""
    return f" {' '.join(match[0].lower() for match in WORD.finditer(text))} "


def standing(term: str, language: str) -> re.Pattern[str]:
    """Where a target term stands: as a word, with a capital at will."""
    if language == "zh":
        return re.compile(re.escape(term))
    first = f"[{term[0]}{term[0].upper()}]" if term[0].isalpha() else re.escape(term[0])
    return re.compile(rf"(?<!\w){first}{re.escape(term[1:])}(?!\w)")


def candidates(every: Sequence[tuple[str, str]], language: str) -> dict[str, Counter[str]]:
    """Short lines and their translations."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for source, target in every:
        own = source.split()
        if (
            not 1 <= len(own) <= 3
            or not all(map(WORD.fullmatch, own))
            or len(source) < 4
            or STOP & {*source.lower().split()}
        ):
            continue
        if language == "zh":
            fits = HAN.fullmatch(target) is not None and 2 <= len(target) <= 8
        else:
            fits = 1 <= len(target.split()) <= 3 and all(map(WORD.fullmatch, target.split()))
        if fits and source.lower() != target.lower():
            found[source.lower()][target] += 1
    return found


def mine(every: Sequence[tuple[str, str]], language: str, most: int) -> dict[str, tuple[str, list[int]]]:
    """The most frequent terms: the form of the target that references have, and the lines that have both."""
    short = candidates(every, language)
    hits: dict[str, list[int]] = defaultdict(list)
    for number, (source, target) in enumerate(every):
        if not 5 <= len(source.split()) <= 30 or len(target) > 260 or ODD.search(source):
            continue
        own = words(source).split()
        grams = {" ".join(own[i : i + n]) for n in (1, 2, 3) for i in range(len(own) - n + 1)}
        for gram in grams & short.keys():
            hits[gram].append(number)
    good: dict[str, tuple[str, list[int]]] = {}
    for term, numbers in hits.items():
        if len(numbers) < LEAST:
            continue
        target = short[term].most_common(1)[0][0]
        any_case = re.compile(re.escape(target) if language == "zh" else rf"(?<!\w){re.escape(target)}(?!\w)", re.I)
        forms = Counter(m[0] for n in numbers for m in any_case.finditer(every[n][1]) if m.start())
        if not forms:
            continue
        form = forms.most_common(1)[0][0]
        if language == "de" and not form[0].isupper():
            continue  # a noun: verbs stand apart in German
        both = [n for n in numbers if standing(form, language).search(every[n][1])]
        if len(both) >= max(LEAST, len(numbers) / 2):
            good[term] = form, both
    ranked = sorted(good, key=lambda term: (-min(len(good[term][1]), 20) * (2 if " " in term else 1), term))
    return {term: good[term] for term in ranked[:most]}


def case_of(folder: Path, sets: Sequence[str], language: str, terms: int, sentences: int, seed: int) -> Case:
    every = pairs(folder, sets, language)
    mined = mine(every, language, terms)
    rng, uses, seen = random.Random(seed), Counter[str](), set[int]()
    order = [(n, term) for term, (_, numbers) in mined.items() for n in numbers]
    rng.shuffle(order)
    chosen: list[tuple[str, str, list[str]]] = []
    most = 2 + 2 * sentences // max(1, len(mined))
    for number, term in order:
        if number in seen or uses[term] >= most or len(chosen) >= sentences:
            continue
        source, target = every[number]
        present = [other for other in mined if f" {other} " in words(source)]
        if all(number in mined[other][1] for other in present):
            seen.add(number)
            uses.update(present)
            chosen.append((source, target, present))
    own = {word for term in mined for word in term.split()}
    stems = tuple(word[:4] for word in own)
    free = [s for s, _ in every if 5 <= len(s.split()) <= 30 and not any(w.startswith(stems) for w in words(s).split())]
    rng.shuffle(free)
    return Case(language, {term: form for term, (form, _) in mined.items()}, chosen, free[:sentences])


def timed(translate: Callable[[], list[str]]) -> tuple[float, list[str]]:
    begin = time.perf_counter()
    found = translate()
    return time.perf_counter() - begin, found


def measure(translator: Translator, case: Case, rounds: int) -> dict[str, float]:
    """Shares of terms used, BLEU and seconds of a direction, with and without its glossary."""
    import sacrebleu

    language = case.language
    glossary = Glossary.of(case.terms, "en", language)
    sources, references, present = (list(column) for column in zip(*case.sentences, strict=True))
    translator(sources[:20], to=language, glossary=glossary)
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    plain: list[str] = []
    kept: list[str] = []
    for _ in range(rounds):
        for name, given in (("without", None), ("with", glossary)):
            taken, found = timed(lambda given=given: translator(sources, to=language, glossary=given))
            seconds[name].append(taken)
            plain, kept = (found, kept) if given is None else (plain, found)
    others = translator(case.others, to=language), translator(case.others, to=language, glossary=glossary)
    needed = [(n, standing(case.terms[term], language)) for n, terms in enumerate(present) for term in terms]

    def share(texts: Sequence[str]) -> float:
        return 100 * sum(pattern.search(texts[n]) is not None for n, pattern in needed) / len(needed)

    def bleu(texts: list[str]) -> float:
        return sacrebleu.corpus_bleu(texts, [references], tokenize="zh" if language == "zh" else "13a").score

    return {
        "terms": len(case.terms),
        "sentences": len(sources),
        "needed": len(needed),
        "used without": share(plain),
        "used": share(kept),
        "changed elsewhere": sum(a != b for a, b in zip(*others, strict=True)),
        "BLEU without": bleu(plain),
        "BLEU": bleu(kept),
        "seconds without": statistics.median(seconds["without"]),
        "seconds": statistics.median(seconds["with"]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--languages", default="de,fr,es,pt,zh")
    parser.add_argument("--terms", type=int, default=500, help="in all languages together")
    parser.add_argument("--sentences", type=int, default=2000, help="in all languages together, and as many without")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default=None, help="folder of a model; default: the shipped one")
    options = parser.parse_args()
    languages = options.languages.split(",")
    translator = transduce.load(options.model)
    rows = []
    for language in languages:
        sizes = options.terms // len(languages), options.sentences // len(languages)
        case = case_of(options.data, options.sets.split(","), language, *sizes, options.seed)
        rows.append(measure(translator, case, options.rounds))
        print(f"en-{language}: " + ", ".join(f"{name} {value:.4g}" for name, value in rows[-1].items()), flush=True)
    needed = sum(row["needed"] for row in rows)
    used = sum(row["used"] * row["needed"] for row in rows) / needed
    speed = sum(row["seconds without"] for row in rows) / sum(row["seconds"] for row in rows)
    elsewhere = sum(row["changed elsewhere"] for row in rows)
    lower = [row for row in rows if row["BLEU"] < row["BLEU without"]]
    print(f"all: used {used:.2f} %, changed elsewhere {elsewhere:.0f}, speed {speed:.3f}")
    return 1 if used < 95 or elsewhere or lower or speed < 0.9 else 0


if __name__ == "__main__":
    sys.exit(main())
