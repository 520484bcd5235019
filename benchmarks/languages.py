"""Measure language detection: what of other languages is taken for ours, and what of ours is recognised.

    pip download --no-deps django==5.2.19, and unzip it
    python benchmarks/languages.py DJANGO DATA [--show 20]

DJANGO is the unpacked package, with the interface strings of some 90 languages (BSD); strings of at least 25 letters
that differ from the English are examined. DATA holds wmt-news, tico19, tatoeba-challenge, tatoeba-pt-en and
general/sa-ud-pud. "Taken" is a string whose likeliest language is served; "doubtful" ones are below LIKELY. Relatives
of our languages are counted apart. Three words are taken from the middle of sentences. "By words" is the share that
needed no tables.
"""

from __future__ import annotations

import argparse
import collections
import gettext
import lzma
import random
import time
from collections.abc import Sequence
from pathlib import Path

from transduce.text.languages import LIKELY, Detector, name_of

SERVED = ("en", "de", "fr", "es", "pt", "zh")
RELATIVES = frozenset("gl ast ca ia io oc af nl lb fy nds gsw".split())
LETTERS = 25
SETS = {
    "news": {"en": "wmt-news/newstest2014.en-de.en", "de": "wmt-news/newstest2014.en-de.de",
             "fr": "wmt-news/newstest2014.en-fr.fr", "zh": "wmt-news/newstest2017.zh-en.zh"},
    "tico": {"es": "tico19/en-es.test.es", "pt": "tico19/en-pt.test.pt", "zh": "tico19/en-zh.test.zh"},
    "tatoeba": {"en": "tatoeba-challenge/deu-eng.test.en", "de": "tatoeba-challenge/deu-eng.test.de",
                "fr": "tatoeba-challenge/eng-fra.test.fr", "es": "tatoeba-challenge/eng-spa.test.es",
                "pt": "tatoeba-pt-en/test.pt", "zh": "tatoeba-challenge/eng-zho.test.zh"},
    "pud": {code: f"general/sa-ud-pud/train.en-{'de' if code == 'en' else code}.{code}" for code in SERVED},
}  # fmt: skip


def strings_of(django: Path) -> dict[str, list[str]]:
    """The translated strings of each language that is not served, at least LETTERS letters each."""
    found: dict[str, dict[str, None]] = collections.defaultdict(dict)
    for path in sorted(django.rglob("locale/*/LC_MESSAGES/*.mo")):
        code = path.parts[-3]
        if code.partition("_")[0] in SERVED:
            continue
        with path.open("rb") as file:
            catalog = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
        for key, text in catalog.items():
            source = (key[0] if isinstance(key, tuple) else key).rpartition("\x04")[2]
            if source and text != source and sum(map(str.isalpha, text)) >= LETTERS:
                found[code][text] = None
    return {code: list(texts) for code, texts in sorted(found.items())}


def sentences_of(data: Path, name: str, most: int) -> list[str]:
    """Some sentences of a file, each once."""
    lines = list(dict.fromkeys(lzma.decompress((data / f"{name}.xz").read_bytes()).decode().split("\n")[:-1]))
    return random.Random(7).sample(lines, min(most, len(lines)))


def three_words(text: str, first: bool) -> str:
    """Three words of a text, its first or those in its middle; "" if it has no more than that."""
    words = text.split()
    begin = 0 if first else (len(words) - 3) // 2
    return " ".join(words[begin : begin + 3]) if len(words) >= 3 else ""


def others(detector: Detector, django: Path, show: int) -> None:
    """Print the share of other languages' strings that is taken for ours."""
    totals: collections.Counter[tuple[str, str]] = collections.Counter()
    wrong = []
    for code, texts in strings_of(django).items():
        group = "relatives" if code.partition("_")[0] in RELATIVES else "others"
        taken = 0
        for text in texts:
            best = detector.detect(text)[0]
            if best.language in SERVED and best.confidence > 0:
                taken += 1
                totals[group, "doubtful"] += best.confidence < LIKELY
                wrong.append((code, best, text))
        totals[group, "languages"] += 1
        totals[group, "strings"] += len(texts)
        totals[group, "taken"] += taken
        if taken:
            print(f"  {code:8} {taken:3} of {len(texts):3}  {name_of(code.partition('_')[0])}")
    for group in ("others", "relatives"):
        count, taken, doubtful = (totals[group, name] for name in ("strings", "taken", "doubtful"))
        share = 100 * taken / count
        print(
            f"{group}: {totals[group, 'languages']} catalogues, {count} strings, {share:.2f} % taken for ours"
            f" ({doubtful} of {taken} doubtful)"
        )
    for code, best, text in random.Random(1).sample(wrong, min(show, len(wrong))):
        print(f"  {code} as {best.language} {best.confidence}: {text[:90]!r}")


def ours(detector: Detector, data: Path, most: int, show: int) -> None:
    """Print the share of our sentences, and of three words of them, that is recognised."""
    right: collections.Counter[str] = collections.Counter()
    count: collections.Counter[str] = collections.Counter()
    plain: collections.Counter[str] = collections.Counter()
    missed, seconds = [], 0.0
    for name, files in SETS.items():
        for code, file in files.items():
            texts = sentences_of(data, file, most)
            short = [three_words(text, name == "tatoeba") for text in texts] if code != "zh" else []
            for kind, examined in (("sentences", texts), ("three words", list(filter(None, short)))):
                started = time.perf_counter()
                found = [detector.detect(text)[0].language for text in examined]
                seconds += time.perf_counter() - started
                good = sum(best == code for best in found)
                right[kind] += good
                count[kind] += len(examined)
                plain[kind] += sum(bool(detector.plain(text)) for text in examined)
                missed += [(code, best, text) for best, text in zip(found, examined, strict=True) if best != code]
                if examined:
                    print(f"  {name:8} {code} {kind:12} {100 * good / len(examined):6.2f} % of {len(examined)}")
    for kind, whole in count.items():
        share, quick = 100 * right[kind] / whole, 100 * plain[kind] / whole
        print(f"{kind}: {share:.2f} % of {whole} recognised, {quick:.1f} % of them by words or script")
    print(f"{1e6 * seconds / count.total():.0f} microseconds a text, tables read")
    for code, best, text in random.Random(1).sample(missed, min(show, len(missed))):
        print(f"  {code} as {best}: {text[:90]!r}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("django", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--most", type=int, default=1000, help="sentences a set and language")
    parser.add_argument("--show", type=int, default=0, help="errors to print")
    given = parser.parse_args(arguments)
    detector = Detector(SERVED)
    detector.prepare()
    others(detector, given.django, given.show)
    ours(detector, given.data, given.most, given.show)


if __name__ == "__main__":
    main()
