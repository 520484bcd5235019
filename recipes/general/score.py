"""Score a model on news, PUD and Tatoeba, and count wording that training text can leak.

    python recipes/general/score.py MODEL --data ../shared/data --text runs/general/text --sentences 500 --output FILE

Sets to choose by: newstest2013 (German, French), newstest2017 (Chinese) and PUD. Sets to judge by: newstest2014,
newstest2018. Tatoeba's tests are those of the gathered text. Each is translated in both directions by beam 4.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transduce import load
from transduce.core.durable import write_text
from transduce.data.formats.lines import read_lines
from transduce.evaluation.report import examine
from transduce.metrics.corpus import bleu, chrf, tokenizer_for
from transduce.translate.translator import Translator
from transduce.workflows.gather.settings import Gathered

GROUPS = ("choose", "judge", "tatoeba")
NEWS = {
    "choose": (("2013", "en-de"), ("2013", "en-fr"), ("2017", "zh-en")),
    "judge": (("2014", "en-de"), ("2014", "en-fr"), ("2018", "zh-en")),
}
PUD = ("de", "fr", "es", "pt", "zh")
# What leaks from text: spelling before 1996, how verses begin, marks, Spanish in Portuguese
LEAKS = {
    "marks": ("", re.compile("[⟦⟧]")),
    "dass": ("de", re.compile(r"\b(?:[Dd]aß|[Mm]uß|[Ll]äßt|[Bb]ewußt|wußte)\b")),
    "and_first": ("", re.compile(r"^(?:Und|And|Et|Y|E) ")),
    "spanish": ("pt", re.compile(r"\b(?:el|los|las|y|pero|muy|hay|del)\b")),
}


@dataclass(frozen=True)
class ScoringSet:
    """Sources and references of one direction."""

    group: str
    name: str
    source: str
    target: str
    texts: tuple[list[str], list[str]]


def sets(data: Path, text: str, groups: Sequence[str]) -> Iterator[ScoringSet]:
    """Yield the sets of these groups, each in both directions."""
    for group in groups:
        for year, pair in NEWS.get(group, ()):
            yield from _both(group, f"news{year}", data / "wmt-news" / f"newstest{year}.{pair}", pair)
        for language in PUD if group == "choose" else ():
            pair = f"en-{language}"
            yield from _both(group, "pud", data / "general" / "sa-ud-pud" / f"train.{pair}", pair)
    for direction in Gathered.open(text).directions("test") if "tatoeba" in groups else ():
        languages = direction.source_language, direction.target_language
        texts = _lines(Path(direction.source)), _lines(Path(direction.target))
        yield ScoringSet("tatoeba", "tatoeba", *languages, texts)


def _both(group: str, name: str, stem: Path, pair: str) -> Iterator[ScoringSet]:
    texts = {code: _lines(stem.with_name(f"{stem.name}.{code}.xz")) for code in pair.split("-")}
    one, other = texts
    yield ScoringSet(group, name, one, other, (texts[one], texts[other]))
    yield ScoringSet(group, name, other, one, (texts[other], texts[one]))


def _lines(path: Path) -> list[str]:
    return [line.decode() for line in read_lines(str(path))]


def spread(lines: list[str], count: int) -> list[str]:
    """Take so many lines, evenly spread; 0: all."""
    wanted = min(count or len(lines), len(lines))
    return [lines[number * len(lines) // wanted] for number in range(wanted)]


def leaks(texts: Sequence[str], language: str) -> dict[str, int]:
    """Count the lines with each leak that can be one in this language."""
    wanted = {name: rule for name, (only, rule) in LEAKS.items() if only in ("", language)}
    return {name: sum(bool(rule.search(text)) for text in texts) for name, rule in wanted.items()}


def score(translator: Translator, chosen: ScoringSet, sentences: int, beam: int) -> dict[str, Any]:
    """Translate a set, and measure it."""
    sources, references = (spread(lines, sentences) for lines in chosen.texts)
    made = list(translator.stream(sources, beam=beam, to=chosen.target))
    texts = [translation.text for translation in made]
    health = examine(sources, texts, [translation.finished for translation in made], references)
    return {
        "group": chosen.group,
        "set": f"{chosen.name} {chosen.source}-{chosen.target}",
        "sentences": len(texts),
        "bleu": bleu(texts, references, tokenize=tokenizer_for(chosen.target)).value,
        "chrf": chrf(texts, references).value,
        "health": asdict(health),
        "leaks": leaks(texts, chosen.target),
        "leaks_of_references": leaks(references, chosen.target),
        "texts": texts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a run folder or converted model")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--text", default="runs/general/text", help="the gathered text, for Tatoeba's tests")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--sentences", type=int, default=0, help="of each set, evenly spread; 0: all")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--output", type=Path, required=True, help="JSON with scores and translations")
    arguments = parser.parse_args()
    translator, rows = load(arguments.model), []
    for chosen in sets(arguments.data, arguments.text, arguments.groups):
        row = score(translator, chosen, arguments.sentences, arguments.beam)
        rows.append(row)
        found = {name: f"{count} ({row['leaks_of_references'][name]})" for name, count in row["leaks"].items()}
        faults = {name: count for name, count in row["health"].items() if count and name != "lines"}
        print(f"{row['group']} {row['set']}: {row['bleu']:.1f} {row['chrf']:.1f} {found} {faults}", flush=True)
        write_text(arguments.output, json.dumps(rows, ensure_ascii=False, indent=1) + "\n")
    for group in arguments.groups:
        of_group = [row for row in rows if row["group"] == group]
        means = (statistics.mean(row[key] for row in of_group) for key in ("bleu", "chrf"))
        print(f"{group}, mean of {len(of_group)}:", *(f"{mean:.2f}" for mean in means))


if __name__ == "__main__":
    main()
