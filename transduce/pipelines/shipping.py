"""The folder to give away: a model without what only training needs, its scores, and the card that says what it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from transduce import __version__
from transduce.data.folders import whole_folder
from transduce.errors import RunError
from transduce.evaluation.health import LONG_MORE, LONG_TIMES, REPEATS, Health
from transduce.gathering.gathered import Gathered, Source
from transduce.model_folder import CARD, CONFIG, MODEL, NATIVE, NATIVE_FACTS, SCORES, TOKENIZER, check_is_model
from transduce.pipelines.evaluating import Scores

MIB = 1 << 20


@dataclass(frozen=True)
class Shipping:
    """What goes into the folder, and what its card says besides figures."""

    model: str
    text: str
    scores: tuple[str, ...]
    title: str
    license: str
    about: str
    limits: str
    made: str

    def write(self, output: Path, largest_mib: float = 0.0) -> None:
        """Write the folder whole; weights of the native engine, where there are some, else those of torch."""
        model = Path(self.model)
        check_is_model(model)
        measured = [Scores.read(folder) for folder in self.scores]
        weights = NATIVE if (model / NATIVE).is_file() else MODEL
        with whole_folder(output, CARD, overwrite=True) as folder:
            for name in (weights, CONFIG, *([NATIVE_FACTS] if weights == NATIVE else [])):
                shutil.copyfile(model / name, folder / name)
            shutil.copytree(model / TOKENIZER, folder / TOKENIZER)
            together = {scores.name: asdict(scores) for scores in measured}
            (folder / SCORES).write_text(json.dumps(together, indent=1, ensure_ascii=False) + "\n", "utf-8")
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            if largest_mib and size > largest_mib * MIB:
                raise RunError(
                    f"{output}: the model would take {size / MIB:.1f} MiB, and at most {largest_mib:g} are allowed;"
                    " train a smaller one (fewer layers, a smaller vocabulary), or raise largest_mib"
                )
            (folder / CARD).write_text(self.card(measured, weights, size), "utf-8")

    def card(self, measured: Sequence[Scores], weights: str, size: int) -> str:
        """README.md, in Markdown."""
        directions = measured[-1].directions if measured else ()
        languages = ", ".join(dict.fromkeys(f"`--to {score.target}`" for score in directions))
        sources = Gathered.open(self.text).sources if self.text else ()
        return f"""# {self.title}

{self.about or "A sequence-to-sequence model."}

```
transduce translate FOLDER --to {directions[0].target if directions else "LANGUAGE"} "..."
```

FOLDER is where this file lies; the model that comes with the package needs no name.

{f"Directions: {', '.join(score.direction for score in directions)} ({languages})." if directions else ""}
Made with transduce {__version__}. `{weights}` and the tokenizer: {size / MIB:.1f} MiB in all.

## Scores

{_lines(_score_table(measured)) or "Not measured."}

{_lines(_signatures(measured))}

Test sentences are in no training pair, neither they nor their translations.

## Faults

{_lines(_fault_table(measured)) or "Not counted."}

Of each hundred lines. *Repeated*: the same words {REPEATS} times in a row. *Long*: over {LONG_TIMES} times the source
and {LONG_MORE} letters more. *Cut*: ended by the length limit. Odd inputs are single words, numbers, names, capitals,
signs, addresses and sentences in languages that the model does not know, each into every target language.

## What it is not good for

{self.limits or "Not stated."}

## Data, and whom it is owed to

{_lines(_source_table(sources)) or "Not stated."}

## How it was made

{self.made or "Not stated."}

## Licence

{self.license or "Not stated; mind the licences of the data."}
"""


def _lines(lines: Iterator[str]) -> str:
    return "\n".join(lines)


def _score_table(measured: Sequence[Scores]) -> Iterator[str]:
    if not measured:
        return
    yield "| direction | sentences | " + " | ".join(f"{scores.name}: BLEU | chrF" for scores in measured) + " |"
    yield "| --- | --- |" + " --- | --- |" * len(measured)
    for number, score in enumerate(measured[-1].directions):
        rows = [scores.directions[number] for scores in measured]
        figures = " | ".join(f"{row.bleu:.1f} | {row.chrf:.1f}" for row in rows)
        yield f"| {score.direction} | {score.sentences:,} | {figures} |"
    means = " | ".join(f"{scores.bleu:.1f} | {scores.chrf:.1f}" for scores in measured)
    yield f"| mean | {sum(score.sentences for score in measured[-1].directions):,} | {means} |"


def _signatures(measured: Sequence[Scores]) -> Iterator[str]:
    of: dict[str, list[str]] = {}
    for score in measured[-1].directions if measured else ():
        of.setdefault(f"BLEU `{score.bleu_signature}`", []).append(score.direction)
        of.setdefault(f"chrF `{score.chrf_signature}`", []).append(score.direction)
    for signature, directions in sorted(of.items()):
        yield f"- {signature}: {', '.join(directions)}"
    for scores in measured:
        yield f"- {scores.name}: weights {scores.size / MIB:.1f} MiB, search `{scores.search}`"


def _fault_table(measured: Sequence[Scores]) -> Iterator[str]:
    names = ("empty", "copied", "repeated", "long", "cut")
    if not measured:
        return
    yield "| lines | number | " + " | ".join(names) + " |"
    yield "| --- | --- |" + " --- |" * len(names)
    for scores in measured:
        yield _fault_row(f"{scores.name}, tests", scores.health, names)
    for scores in [one for one in measured if one.odd][-1:]:
        for kind, health in scores.odd.items():
            yield _fault_row(f"{scores.name}, odd: {kind}", health, names)


def _fault_row(label: str, health: Health, names: Sequence[str]) -> str:
    counts = asdict(health)
    rates = " | ".join(f"{100 * counts[name] / max(1, health.lines):.2f}" for name in names)
    return f"| {label} | {health.lines:,} | {rates} |"


def _source_table(sources: Sequence[Source]) -> Iterator[str]:
    if not sources:
        return
    yield "| corpus | languages | read | used | licence as stated | from |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for source in sources:
        used = ", ".join(f"{split} {count:,}" for split, count in source.used.items()) or "none"
        origin = f"{source.origin} ({source.note})" if source.note else source.origin
        languages = f"{source.languages[0]}, {source.languages[1]}"
        yield f"| {source.name} | {languages} | {source.read:,} | {used} | {source.license} | {origin} |"
