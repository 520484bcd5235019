"""The first two minutes: number words in English, German and Chinese, generated here, learned and translated.

One small model turns 0 to 999,999, written out in any of the three languages, into any other, told which by a tag
such as `<2de>`. Numbers held out from training show whether it has learned to count or only to recite.

A guided minute with a translator, in a terminal or as plain text: what it says, where it looks, how sure it is.

`transduce demo` gives it on the model that comes with the package, or on the one that it has just trained. Imports no
torch by itself.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from transduce.core import config as configs
from transduce.data.formats.parallel import ParallelText
from transduce.data.prepare.run import Prepare, prepare
from transduce.experiment import Config
from transduce.inspection.alternatives import Alternative, alternatives
from transduce.inspection.terminal import draw
from transduce.text.alignment import Unit
from transduce.text.languages import name_of
from transduce.text.number_words import chinese, english, german
from transduce.text.train_tokenizer import SentencePiece
from transduce.translate.directions import Pairs, directions_of, scores_of
from transduce.translate.loading import load
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


LANGUAGES: dict[str, Callable[[int], str]] = {"en": english, "de": german, "zh": chinese}
HELD_OUT = 200  # numbers never seen in training
SETTINGS = (
    "data.tokens=1024 data.bucket=4 model.encoder.layers=2 model.decoder.layers=2 model.dropout=0.0"
    " model.encoder.residual=pre_norm model.decoder.residual=pre_norm objective.label_smoothing=0.0"
    " training.steps=1100 training.report_every=50 training.save_every=550"
    " training.learning_rate.kind=cosine training.learning_rate.peak=3e-3 training.learning_rate.warmup=100"
    " validation.every=550 validation.metric=chrf validation.sentences=120 validation.samples=2 search=greedy"
)


def demo(folder: Path, steps: int = 0) -> float:
    """Prepare, train, score and give a tour in `folder`; gives the share of held-out numbers translated exactly."""
    console = Console()
    console.print("[bold]1. Text.[/] Number words in English, German and Chinese, written by the program.")
    numbers = write_text(folder / "text")
    if not (folder / "corpus" / "manifest.json").exists():
        prepare(_preparation(folder))
    console.print("\n[bold]2. Training[/] a small Transformer on every pair of languages.")
    from transduce.training.loop import train

    overrides = [f"data.folder={folder / 'corpus'}", *([f"training.steps={steps}"] if steps else [])]
    train(configs.load(Config, "tiny", overrides, defaults=[SETTINGS.split()]), folder / "model")
    console.print("\n[bold]3. Translating[/] numbers that it never saw.\n")
    translator = load(folder / "model")
    exact = _show(console, translator, numbers)
    console.print("\n[bold]4. A look around.[/]")
    shown = {"en": ("four thousand and twelve", english(numbers[0])), "de": (german(numbers[1]),)}
    tour(translator, folder / "model", {**shown, "zh": (chinese(numbers[2]),)}, console)
    return exact


def write_text(folder: Path, count: int = 6000, seed: int = 1) -> list[int]:
    """Parallel files for each pair of languages; gives the numbers held out."""
    chooser = random.Random(seed)
    numbers = list(range(100)) + [chooser.randrange(10 ** chooser.randint(3, 6)) for _ in range(count)]
    numbers = list(dict.fromkeys(numbers))
    chooser.shuffle(numbers)
    held_out = [number for number in numbers if number >= 100][:HELD_OUT]
    hidden = set(held_out)
    folder.mkdir(parents=True, exist_ok=True)
    for language, words in LANGUAGES.items():
        seen = (words(number) for number in numbers if number not in hidden)
        (folder / f"train.{language}").write_text("".join(f"{text}\n" for text in seen), encoding="utf-8")
        unseen = (words(number) for number in held_out)
        (folder / f"valid.{language}").write_text("".join(f"{text}\n" for text in unseen), encoding="utf-8")
    return held_out


def _preparation(folder: Path) -> Prepare:
    def pairs(split: str) -> tuple[ParallelText, ...]:
        text = folder / "text"
        return tuple(
            ParallelText(
                source=f"{text}/{split}.{one}", target=f"{text}/{split}.{two}", tag=f"<2{two}>", name=f"{one}-{two}"
            )
            for one in LANGUAGES
            for two in LANGUAGES
            if one != two
        )

    tags = tuple(f"<2{language}>" for language in LANGUAGES)
    # So few pieces that number words are cut into meaningful parts, and Chinese digits stay apart.
    tokenizer = SentencePiece(model="bpe", vocabulary=110, byte_fallback=False, symbols=tags)
    return Prepare(output=str(folder / "corpus"), train=pairs("train"), valid=pairs("valid"), tokenizer=tokenizer)


def _show(console: Console, translator: Translator, numbers: list[int]) -> float:
    table = Table("number", Column("said in", overflow="fold"), Column("translated", overflow="fold"))
    for number, (one, two) in zip(numbers, [("en", "de"), ("de", "zh"), ("zh", "en"), ("en", "zh")], strict=False):
        source = LANGUAGES[one](number)
        table.add_row(f"{number:,}", source, translator(source, to=two))
    console.print(table)
    right = total = 0
    for one, two in [("en", "de"), ("de", "en"), ("en", "zh"), ("zh", "en"), ("de", "zh"), ("zh", "de")]:
        sources = [LANGUAGES[one](number) for number in numbers]
        translations = translator(sources, to=two)
        right += sum(text == LANGUAGES[two](number) for text, number in zip(translations, numbers, strict=True))
        total += len(numbers)
    console.print(
        f"\n[bold]Exactly right:[/] {right} of {total} translations of held-out numbers ({right / total:.1%})."
    )
    return right / total
