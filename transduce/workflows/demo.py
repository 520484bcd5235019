"""The demo: number words in English, German and Chinese, generated, learned and translated in two minutes.

One small model turns 0 to 999,999, written out in any of the three languages, into any other, chosen by a tag such as
`<2de>`. Numbers held out from training show whether it has learned to count or only to recite.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from transduce.core import config as configs
from transduce.data.formats.parallel import ParallelText
from transduce.data.prepare.run import Prepare, prepare
from transduce.experiment import Config
from transduce.text.number_words import chinese, english, german
from transduce.text.train_tokenizer import SentencePiece
from transduce.translate.loading import load
from transduce.translate.translator import Translator
from transduce.workflows.tour import tour

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
    """Prepare, train, score and give a tour in `folder`; return the share of held-out numbers translated exactly."""
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
    """Write parallel files for each pair of languages; return the numbers held out."""
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
                source=f"{text}/{split}.{source}",
                target=f"{text}/{split}.{target}",
                tag=f"<2{target}>",
                name=f"{source}-{target}",
            )
            for source in LANGUAGES
            for target in LANGUAGES
            if source != target
        )

    tags = tuple(f"<2{language}>" for language in LANGUAGES)
    # So few pieces that number words are cut into meaningful parts, and Chinese digits stay apart.
    tokenizer = SentencePiece(model="bpe", vocabulary=110, byte_fallback=False, symbols=tags)
    return Prepare(output=str(folder / "corpus"), train=pairs("train"), valid=pairs("valid"), tokenizer=tokenizer)


def _show(console: Console, translator: Translator, numbers: list[int]) -> float:
    table = Table("number", Column("said in", overflow="fold"), Column("translated", overflow="fold"))
    for number, (begin, end) in zip(numbers, [("en", "de"), ("de", "zh"), ("zh", "en"), ("en", "zh")], strict=False):
        source = LANGUAGES[begin](number)
        table.add_row(f"{number:,}", source, translator(source, to=end))
    console.print(table)
    right = total = 0
    for begin, end in [("en", "de"), ("de", "en"), ("en", "zh"), ("zh", "en"), ("de", "zh"), ("zh", "de")]:
        sources = [LANGUAGES[begin](number) for number in numbers]
        translations = translator(sources, to=end)
        right += sum(text == LANGUAGES[end](number) for text, number in zip(translations, numbers, strict=True))
        total += len(numbers)
    console.print(
        f"\n[bold]Exactly right:[/] {right} of {total} translations of held-out numbers ({right / total:.1%})."
    )
    return right / total
