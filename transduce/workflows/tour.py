"""A short tour of a model in a terminal or as plain text: translations, attention, alternatives, scores.

`transduce demo` gives it on the shipped model, or on the one that it has just trained. Imports no torch by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from transduce.inspection.alternatives import Alternative, alternatives
from transduce.inspection.terminal import draw
from transduce.text.alignment import Unit
from transduce.text.languages import name_of
from transduce.translate.directions import Pairs, directions_of, scores_of
from transduce.translate.translator import Translator

Sentences = Mapping[str, Sequence[str]]
EVERYDAY: Sentences = {  # for the shipped model
    "en": ("Cats like to sleep.", "Where is the nearest station?", "I would like a cup of tea, please."),
    "de": ("Morgen fahre ich mit dem Zug nach Berlin.",),
    "fr": ("Il fait beau aujourd'hui.",),
    "es": ("¿Cuánto cuesta este libro?",),
    "pt": ("A minha irmã mora perto do mar.",),
    "zh": ("我们明天早上八点见面。",),
}


@dataclass(frozen=True)
class TourTranslation:
    """A sentence, the language it was translated to, and the translation."""

    text: str
    to: str
    words: str


def tour(translator: Translator, folder: Path, sentences: Sentences, console: Console, named: bool = True) -> None:
    """Show a model by sentences in its languages; `named` if commands have to name its folder.

    The translation with the most words is examined closely.
    """
    pairs = directions_of(folder, translator.tokenizers.source)
    console.print("\n[bold]Translations[/], into every language that it has")
    every = _translations(console, translator, pairs, sentences)
    said = max(every, key=lambda translated: len(translated.words.split()))
    _attention(console, translator, said)
    others = _alternatives(console, translator, said)
    _score(console, translator, said, others)
    _measured(console, folder)
    _next(console, every[0], str(folder) if named else "")


def _translations(
    console: Console, translator: Translator, pairs: Pairs, sentences: Sentences
) -> list[TourTranslation]:
    every = []
    for begin, texts in sentences.items():
        ends = [end for source, end in pairs if source == begin]
        for text in texts if ends else ():
            table = Table(Column(), Column(width=12), Column(overflow="fold"), box=None, show_header=False)
            table.add_row("", f"[dim]{name_of(begin)}[/]", f"[bold]{_plain(text)}[/]")
            for end, words in zip(ends, translator([text] * len(ends), to=ends), strict=True):
                table.add_row("", f"[dim]{name_of(end)}[/]", _plain(words))
                every.append(TourTranslation(text, end, words))
            console.print()
            console.print(table)
    return every


def _attention(console: Console, translator: Translator, said: TourTranslation) -> None:
    """Show attention between words, or between pieces where a side is one word or has no spaces."""
    unit: Unit = "words" if min(len(said.text.split()), len(said.words.split())) > 1 else "pieces"
    (found,) = translator.align([said.text], [said.words], said.to, unit)
    if not found.target or not found.source:
        return
    console.print(f"\n[bold]Where it looked[/] when it wrote [bold]{_plain(said.words)}[/]", soft_wrap=True)
    console.print("Rows were written, columns read; the darker a field, the more the one looked at the other.\n")
    draw(console, np.asarray(found.weights, dtype=np.float32), found.target, found.source)


def _alternatives(console: Console, translator: Translator, said: TourTranslation) -> list[str]:
    """Show alternative words in the middle of a translation; return the likeliest whole one that differs."""
    words = said.words.split()
    before = " ".join(words[: len(words) // 2]) + " " if len(words) > 1 else said.words[: len(said.words) // 2]
    found = alternatives(translator, said.text, before, said.to)
    if not found:
        return []
    console.print(f"\n[bold]What it could have said[/] after [bold]{_plain(before.strip())}[/]\n", soft_wrap=True)
    table = Table(Column(), Column(justify="right"), Column(overflow="fold"), box=None, show_header=False)
    for alternative in found:
        table.add_row("", f"[dim]{_percent(alternative.log_prob)}[/]", _with_word(alternative, before))
    console.print(table)
    others = [alternative for alternative in found if alternative.text != said.words]
    return [other.text for other in sorted(others, key=lambda other: -other.log_prob)[:1]]


def _with_word(alternative: Alternative, before: str) -> str:
    """The whole translation with the alternative word in bold."""
    text, word = alternative.text, alternative.word
    start = text.index(word, len(before.rstrip()))
    end = start + len(word)
    return f"{_plain(text[:start])}[bold]{_plain(word)}[/]{_plain(text[end:])}"


def _score(console: Console, translator: Translator, said: TourTranslation, others: Sequence[str]) -> None:
    """Show the probability of the translation, beside another one if there is one."""
    texts = [said.words, *others]
    best, *rest = translator.score([said.text] * len(texts), texts, said.to)
    console.print(
        f"\n[bold]The score[/]: it finds its translation {_percent(best.log_prob)} likely, which is"
        f" {math.exp(best.per_token):.0%} a token, the log-probability {best.log_prob:.2f} in all."
    )
    for score, words in zip(rest, others, strict=True):
        console.print(f"Of [bold]{_plain(words)}[/] it says {_percent(score.log_prob)}, or {score.log_prob:.2f}.")
    console.print("That is how sure it is of its words, not whether they are right: this, only a test tells.")


def _measured(console: Console, folder: Path) -> None:
    """Show measured scores, if the folder has any."""
    for rows in scores_of(folder)[-1:]:
        figures = ", ".join(f"{row['source']}-{row['target']} {row['bleu']:.1f}" for row in rows)
        console.print(f"BLEU on sentences that it never saw: {figures}; more in {folder / 'README.md'}", soft_wrap=True)


def _next(console: Console, said: TourTranslation, folder: str) -> None:
    console.print("\n[bold]Now you:[/]")
    model = f" {folder}" if folder else ""
    lines = [
        f'transduce translate{model} --to {said.to} "{said.text}"',
        f'transduce inspect "{said.text}" --to {said.to}{" --model" + model if model else ""} --output page.html',
        f"transduce serve{model}",
        *([] if folder else ["transduce demo --train"]),
        "transduce prepare --help",
    ]
    comments = ["your own words", "look inside, in a browser", "a web page, and an API"]
    comments += [*([] if folder else ["watch a small one learn: two minutes"]), "then a model of your own text"]
    for line, what in zip(lines, comments, strict=True):
        console.print(f"  {_plain(line)}   [dim]# {what}[/]", soft_wrap=True, highlight=False)


def _percent(log_prob: float) -> str:
    return f"{math.exp(log_prob):.1%}" if math.exp(log_prob) >= 0.001 else "under 0.1%"


def _plain(text: str) -> str:
    """Escape brackets, which would be markup."""
    return text.replace("[", r"\[")
