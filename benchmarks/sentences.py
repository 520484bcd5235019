"""Measure sentence splitting: the boundaries between three segments that are put together, found or not.

    python benchmarks/sentences.py DATA [--times 1000] [--show 10]

DATA/general has the segments. "One mark" takes those with exactly one mark of a sentence's end, which is their last
character but for closing quotes and brackets, from all sets alike. "News" takes whole lines of DATA/wmt-news that end
in such a mark, with abbreviations, initials and numbers inside; some lines are two sentences, so that 1 is out of
reach. Three are joined by a space, by none in Chinese. Each is split with its language given, and without.
"""

from __future__ import annotations

import argparse
import lzma
import random
import re
from pathlib import Path

from transduce.text.segment import sentences

LANGUAGES = ("en", "de", "fr", "es", "pt", "zh")
MARKS = ".!?…。！？｡"
CLOSING = "\"'”’“»)\\]）」』"
ONE_MARK = re.compile(rf"[^{MARKS}]+[{MARKS}][{CLOSING}]*")
MARK_LAST = re.compile(rf".*[^{MARKS}][{MARKS}][{CLOSING}]*")
NEWS = {
    "en": "newstest2014.en-de.en",
    "de": "newstest2014.en-de.de",
    "fr": "newstest2014.en-fr.fr",
}
LINES = 4000  # of each set


def lines_of(path: Path) -> list[str]:
    """The lines of a compressed file, without the space around them."""
    return [line.strip() for line in lzma.decompress(path.read_bytes()).decode().split("\n")]


def general(data: Path, language: str) -> list[str]:
    """Segments with one mark."""
    found: list[str] = []
    for folder in sorted(path for path in (data / "general").iterdir() if path.is_dir()):
        for path in sorted(folder.glob(f"train.en-*.{language}.xz"))[:1]:
            lines = lines_of(path)
            random.Random(1).shuffle(lines)
            found += [line for line in lines[:LINES] if ONE_MARK.fullmatch(line)]
    return found


def news(data: Path, language: str) -> list[str]:
    """Lines that end in a mark."""
    return [line for line in lines_of(data / "wmt-news" / f"{NEWS[language]}.xz") if MARK_LAST.fullmatch(line)]


def boundaries(text: str, language: str) -> set[int]:
    """Where all sentences but the last end."""
    found, at = set(), 0
    for part in sentences(text, language)[:-1]:
        at += len(part.text)
        found.add(at)
        at += len(part.space)
    return found


def measure(segments: list[str], language: str, given: str, times: int, show: int) -> tuple[float, int, int, int]:
    """F1, and how many boundaries were found, missed and wrong."""
    draw = random.Random(3)
    right = missed = wrong = 0
    space = "" if language == "zh" else " "
    for _ in range(times):
        three = draw.sample(segments, 3)
        first = len(three[0])
        expected = {first, first + len(space) + len(three[1])}
        text = space.join(three)
        found = boundaries(text, given)
        right += len(found & expected)
        missed += len(expected - found)
        wrong += len(found - expected)
        for at in sorted(found ^ expected) if show > 0 else ():
            show -= 1
            print(f"    {'wrong' if at in found else 'missed'}: {text[max(0, at - 30) : at + 25]!r}")
    return 2 * right / (2 * right + missed + wrong), right, missed, wrong


def main() -> None:
    """Print a row for each language."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--show", type=int, default=0, help="errors to print for each row")
    given = parser.parse_args()
    for name, read, languages in (("one mark", general, LANGUAGES), ("news", news, tuple(NEWS))):
        for language in languages:
            segments = read(given.data, language)
            for known in (language, ""):
                f1, right, missed, wrong = measure(segments, language, known, given.times, given.show)
                label = f"{name:8} {language} {'given' if known else 'not given':9}"
                print(f"{label} F1 {f1:.4f} of {len(segments)} segments: {right} found, {missed} missed, {wrong} wrong")


if __name__ == "__main__":
    main()
