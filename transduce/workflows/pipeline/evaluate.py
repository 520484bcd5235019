"""Evaluate one model on every direction of gathered text, and assemble the folder to give away.

BLEU and chrF with signatures, faults counted, odd inputs tried, confidence fitted. Each direction is stored when it is
measured, so that a killed evaluation resumes with the next one.

    en-de.txt  en-de.json  ...  odd.txt  odd.json  confidence.json  results.json

The folder to give away holds a model without what only training needs, its scores, and its card.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transduce import __version__
from transduce.core import config as configs
from transduce.core.durable import disk_errors, whole_folder, write_text
from transduce.core.errors import DataError, RunError
from transduce.core.progress import Progress
from transduce.data.formats.lines import read_lines
from transduce.engines import Translation
from transduce.evaluation.report import KINDS, STAY, Health, examine
from transduce.metrics.corpus import bleu, chrf, tokenizer_for
from transduce.search import SearchConfig
from transduce.text.faults import LONG_MORE, LONG_TIMES, REPEATS
from transduce.translate.confidence import CONFIDENCE, ConfidenceModel
from transduce.translate.loading import load
from transduce.translate.model_folder import (
    CARD,
    CONFIG,
    MODEL,
    NATIVE,
    NATIVE_FACTS,
    SCORES,
    TOKENIZER,
    check_is_model,
)
from transduce.translate.translator import Translator
from transduce.workflows.gather.settings import Direction, Gathered, Source
from transduce.workflows.pipeline.confidence import HeldOut, fit, observe, summary

RESULTS = "results.json"


@dataclass(frozen=True)
class DirectionScore:
    """The scores of one direction."""

    source: str
    target: str
    sentences: int
    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    health: Health

    @property
    def direction(self) -> str:
        return f"{self.source}-{self.target}"


@dataclass(frozen=True)
class Scores:
    """The scores of one model: directions, and odd inputs into each language, by kind."""

    name: str
    size: int  # bytes of its weights
    search: str
    directions: tuple[DirectionScore, ...]
    odd: dict[str, Health]

    @property
    def bleu(self) -> float:
        """The mean BLEU over directions."""
        return sum(score.bleu for score in self.directions) / len(self.directions)

    @property
    def chrf(self) -> float:
        """The mean chrF over directions."""
        return sum(score.chrf for score in self.directions) / len(self.directions)

    @property
    def health(self) -> Health:
        """The fault counts of all test lines."""
        return sum((score.health for score in self.directions), Health())

    @classmethod
    def read(cls, folder: str | Path) -> Scores:
        """Read what `Measuring.write` wrote."""
        path = Path(folder) / RESULTS
        if not path.is_file():
            raise DataError(f"{folder}: no {RESULTS} in it; expected a folder that an evaluate stage has written")
        found = json.loads(path.read_bytes())
        directions = tuple(_score(row) for row in found["directions"])
        odd = {kind: Health(**health) for kind, health in found["odd"].items()}
        return cls(found["name"], found["size"], found["search"], directions, odd)


def _score(table: dict[str, Any]) -> DirectionScore:
    return DirectionScore(**{**table, "health": Health(**table["health"])})


@dataclass(frozen=True)
class Measuring:
    """What to measure, on what text, and with which settings."""

    model: str
    text: str
    sentences: int = 0
    beam: int = 0
    engine: str = "auto"
    device: str = "auto"
    precision: str = "fp32"
    confidence: int = 0  # sentences of each direction to fit confidence on

    def write(self, output: Path, odd: bool = True) -> Scores:
        """Measure what is not measured yet, and write all results."""
        directions = Gathered.open(self.text).directions("test")
        if not directions:
            raise DataError(
                f"{self.text}: holds no test text; give the gather stage corpora to test on, or a test_share"
            )
        with disk_errors(output, "making the folder of the evaluation", needed=4096):
            output.mkdir(parents=True, exist_ok=True)
        translator = load(self.model, self.device, engine=self.engine, precision=self.precision)
        scores = tuple(self._direction(translator, direction, output) for direction in directions)
        languages = list(dict.fromkeys(direction.target_language for direction in directions))
        tried = self._odd(translator, languages, output) if odd else {}
        if self.confidence and not (output / CONFIDENCE).is_file():
            self._fit_confidence(translator, directions, output)
        search = _search_in_words(translator.choose_search(self.beam))
        found = Scores(Path(self.model).name, _size(Path(self.model)), search, scores, tried)
        write_text(output / RESULTS, json.dumps(asdict(found), indent=1, ensure_ascii=False) + "\n")
        return found

    def _direction(self, translator: Translator, direction: Direction, output: Path) -> DirectionScore:
        stored = output / f"{direction.name}.json"
        if stored.is_file():
            return _score(json.loads(stored.read_bytes()))
        sources, references = self._read(direction.source), self._read(direction.target)
        made = self._translate(translator, sources, direction.target_language, direction.name)
        texts = [translation.text for translation in made]
        by_bleu = bleu(texts, references, tokenize=tokenizer_for(direction.target_language))
        by_chrf = chrf(texts, references)
        health = examine(sources, texts, [translation.finished for translation in made], references)
        score = DirectionScore(
            direction.source_language,
            direction.target_language,
            len(texts),
            by_bleu.value,
            by_bleu.signature,
            by_chrf.value,
            by_chrf.signature,
            health,
        )
        write_text(output / f"{direction.name}.txt", "".join(f"{text}\n" for text in texts))
        write_text(stored, json.dumps(asdict(score), ensure_ascii=False) + "\n")
        return score

    def _fit_confidence(self, translator: Translator, directions: Sequence[Direction], output: Path) -> None:
        """Fit the model's confidence on its test text, and write it beside the results."""
        texts = [
            HeldOut.spread(
                direction.name,
                direction.target_language,
                self._read(direction.source),
                self._read(direction.target),
                self.confidence,
            )
            for direction in directions
        ]
        fit(observe(translator, texts, self.beam)).write(output)

    def _read(self, path: Path) -> list[str]:
        """All lines, or `sentences` of them, evenly spread."""
        lines = [line.decode() for line in read_lines(str(path))]
        wanted = min(self.sentences or len(lines), len(lines))
        return [lines[number * len(lines) // wanted] for number in range(wanted)]

    def _translate(self, translator: Translator, texts: Sequence[str], to: str, title: str) -> list[Translation]:
        found = []
        with Progress(f"Translating {title}", len(texts), "sentences", translator.window) as progress:
            for translation in translator.stream(texts, beam=self.beam, to=to):
                found.append(translation)
                progress.advance()
        return found

    def _odd(self, translator: Translator, languages: Sequence[str], output: Path) -> dict[str, Health]:
        """Translate every odd input into every language; where a copy is no fault, none is counted."""
        stored = output / "odd.json"
        if stored.is_file():
            return {kind: Health(**health) for kind, health in json.loads(stored.read_bytes()).items()}
        found, lines = {kind: Health() for kind in KINDS}, list[str]()
        for language in languages:
            texts = [(kind, text) for kind, some in KINDS.items() for text in some]
            made = self._translate(translator, [text for _, text in texts], language, f"odd inputs to {language}")
            for (kind, text), translation in zip(texts, made, strict=True):
                reference = text if kind in STAY else ""
                found[kind] += examine([text], [translation.text], [translation.finished], [reference])
                lines.append(f"{language}\t{kind}\t{text}\t{translation.text}\n")
        write_text(output / "odd.txt", "".join(lines))
        write_text(stored, json.dumps({kind: asdict(health) for kind, health in found.items()}) + "\n")
        return found


def _search_in_words(search: SearchConfig) -> str:
    """The search's kind and numbers, as `beam size=4 length_penalty=1.0`."""
    plain = [f"{key}={value}" for key, value in vars(search).items() if isinstance(value, (int, float, str))]
    return " ".join([configs.kind_of(type(search)), *plain])


def _size(folder: Path) -> int:
    """Bytes of the weights that are opened: the native ones where there are some."""
    return next(((folder / name).stat().st_size for name in (NATIVE, MODEL) if (folder / name).is_file()), 0)


MIB = 1 << 20


@dataclass(frozen=True)
class Shipping:
    """The content of the folder to give away, and the text of its card besides figures."""

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
            confidence = ConfidenceModel.of(Path(self.scores[-1])) if self.scores else None
            if confidence is not None:
                confidence.write(folder)
            together = {scores.name: asdict(scores) for scores in measured}
            (folder / SCORES).write_text(json.dumps(together, indent=1, ensure_ascii=False) + "\n", "utf-8")
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            if largest_mib and size > largest_mib * MIB:
                raise RunError(
                    f"{output}: the model would take {size / MIB:.1f} MiB, and at most {largest_mib:g} are allowed;"
                    " train a smaller one (fewer layers, a smaller vocabulary), or raise largest_mib"
                )
            (folder / CARD).write_text(self.card(measured, weights, size, confidence), "utf-8")

    def card(
        self, measured: Sequence[Scores], weights: str, size: int, confidence: ConfidenceModel | None = None
    ) -> str:
        """The model card, README.md, in Markdown."""
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

## Confidence

{_lines(summary(confidence.figures)) if confidence else "Not fitted: translations have none."}

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
    for scores in [tried for tried in measured if tried.odd][-1:]:
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
