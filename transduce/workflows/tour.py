"""A guided minute with a translator, in a terminal or as plain text: what it says, where it looks, how sure it is.

`transduce demo` gives it on the model that comes with the package, or on the one that it has just trained. Imports no
torch by itself.
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
EVERYDAY: Sentences = {  # ours, for the model that comes with the package
    "en": ("Cats like to sleep.", "Where is the nearest station?", "I would like a cup of tea, please."),
    "de": ("Morgen fahre ich mit dem Zug nach Berlin.",),
    "fr": ("Il fait beau aujourd'hui.",),
    "es": ("¿Cuánto cuesta este libro?",),
    "pt": ("A minha irmã mora perto do mar.",),
    "zh": ("我们明天早上八点见面。",),
}


@dataclass(frozen=True)
class Said:
    """A sentence, the language it was translated to, and the translation."""

    text: str
    to: str
    words: str


def tour(translator: Translator, folder: Path, sentences: Sentences, console: Console, named: bool = True) -> None:
    """Show a model by sentences in its languages; `named` where commands have to name its folder.

    The translation with the most words is looked at closely.
    """
    pairs = directions_of(folder, translator.tokenizers.source)
    console.print("\n[bold]Translations[/], into every language that it has")
    every = _translations(console, translator, pairs, sentences)
    said = max(every, key=lambda one: len(one.words.split()))
    _attention(console, translator, said)
    others = _alternatives(console, translator, said)
    _score(console, translator, said, others)
    _measured(console, folder)
    _next(console, every[0], str(folder) if named else "")


def _translations(console: Console, translator: Translator, pairs: Pairs, sentences: Sentences) -> list[Said]:
    every = []
    for begin, texts in sentences.items():
        ends = [end for one, end in pairs if one == begin]
        for text in texts if ends else ():
            table = Table(Column(), Column(width=12), Column(overflow="fold"), box=None, show_header=False)
            table.add_row("", f"[dim]{name_of(begin)}[/]", f"[bold]{_plain(text)}[/]")
            for end, words in zip(ends, translator([text] * len(ends), to=ends), strict=True):
                table.add_row("", f"[dim]{name_of(end)}[/]", _plain(words))
                every.append(Said(text, end, words))
            console.print()
            console.print(table)
    return every


def _attention(console: Console, translator: Translator, said: Said) -> None:
    """Between words, or between pieces where a side is one word, or writes none apart."""
    unit: Unit = "words" if min(len(said.text.split()), len(said.words.split())) > 1 else "pieces"
    (found,) = translator.align([said.text], [said.words], said.to, unit)
    if not found.target or not found.source:
        return
    console.print(f"\n[bold]Where it looked[/] when it wrote [bold]{_plain(said.words)}[/]", soft_wrap=True)
    console.print("Rows were written, columns read; the darker a field, the more the one looked at the other.\n")
    draw(console, np.asarray(found.weights, dtype=np.float32), found.target, found.source)


def _alternatives(console: Console, translator: Translator, said: Said) -> list[str]:
    """Other words in the middle of a translation, shown; gives the likeliest whole one that differs."""
    words = said.words.split()
    before = " ".join(words[: len(words) // 2]) + " " if len(words) > 1 else said.words[: len(said.words) // 2]
    found = alternatives(translator, said.text, before, said.to)
    if not found:
        return []
    console.print(f"\n[bold]What it could have said[/] after [bold]{_plain(before.strip())}[/]\n", soft_wrap=True)
    table = Table(Column(), Column(justify="right"), Column(overflow="fold"), box=None, show_header=False)
    for one in found:
        table.add_row("", f"[dim]{_percent(one.log_prob)}[/]", _with_word(one, before))
    console.print(table)
    others = [one for one in found if one.text != said.words]
    return [one.text for one in sorted(others, key=lambda one: -one.log_prob)[:1]]


def _with_word(one: Alternative, before: str) -> str:
    """The whole translation, its own word bold."""
    start = one.text.index(one.word, len(before.rstrip()))
    end = start + len(one.word)
    return f"{_plain(one.text[:start])}[bold]{_plain(one.word)}[/]{_plain(one.text[end:])}"


def _score(console: Console, translator: Translator, said: Said, others: Sequence[str]) -> None:
    """How probable the translation is to the model, beside another one where there is one."""
    texts = [said.words, *others]
    best, *rest = translator.score([said.text] * len(texts), texts, said.to)
    console.print(
        f"\n[bold]The score[/]: it finds its translation {_percent(best.log_prob)} likely, which is"
        f" {math.exp(best.per_token):.0%} a token, the log-probability {best.log_prob:.2f} in all."
    )
    for one, words in zip(rest, others, strict=True):
        console.print(f"Of [bold]{_plain(words)}[/] it says {_percent(one.log_prob)}, or {one.log_prob:.2f}.")
    console.print("That is how sure it is of its words, not whether they are right: this, only a test tells.")


def _measured(console: Console, folder: Path) -> None:
    """What tests told, where the folder has it."""
    for own in scores_of(folder)[-1:]:
        figures = ", ".join(f"{one['source']}-{one['target']} {one['bleu']:.1f}" for one in own)
        console.print(f"BLEU on sentences that it never saw: {figures}; more in {folder / 'README.md'}", soft_wrap=True)


def _next(console: Console, said: Said, folder: str) -> None:
    console.print("\n[bold]Now you:[/]")
    model = f" {folder}" if folder else ""
    lines = [
        f'transduce translate{model} --to {said.to} "{said.text}"',
        f'transduce inspect "{said.text}" --to {said.to}{" --model" + model if model else ""} --output page.html',
        f"transduce serve{model}",
        *([] if folder else ["transduce demo --train"]),
        "transduce prepare --help",
    ]
    told = ["your own words", "look inside, in a browser", "a web page, and an API"]
    told += [*([] if folder else ["watch a small one learn: two minutes"]), "then a model of your own text"]
    for line, what in zip(lines, told, strict=True):
        console.print(f"  {_plain(line)}   [dim]# {what}[/]", soft_wrap=True, highlight=False)


def _percent(log_prob: float) -> str:
    return f"{math.exp(log_prob):.1%}" if math.exp(log_prob) >= 0.001 else "under 0.1%"


def _plain(text: str) -> str:
    """Text whose brackets are no markup."""
    return text.replace("[", r"\[")
