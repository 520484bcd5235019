"""One model on every direction of gathered text: BLEU and chrF with signatures, faults counted, odd inputs tried.

Each direction is kept when it is measured, so that a killed evaluation goes on with the next one.

    en-de.txt  en-de.json  ...  odd.txt  odd.json  results.json
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transduce import config as configs
from transduce.data.lines import read_lines
from transduce.durable import disk_errors, write_text
from transduce.errors import DataError
from transduce.evaluation.health import Health, examine
from transduce.evaluation.metrics import bleu, chrf, tokenizer_for
from transduce.evaluation.odd_inputs import KINDS, STAY
from transduce.gathering.gathered import Direction, Gathered
from transduce.loading import load
from transduce.model_folder import MODEL, NATIVE
from transduce.progress import Progress
from transduce.translation import Translation
from transduce.translator import Translator

RESULTS = "results.json"


@dataclass(frozen=True)
class DirectionScore:
    """How well one direction is translated."""

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
    """All that was measured of one model: directions, and odd inputs into each language, by kind."""

    name: str
    size: int  # bytes of its weights
    search: str
    directions: tuple[DirectionScore, ...]
    odd: dict[str, Health]

    @property
    def bleu(self) -> float:
        """The mean over directions."""
        return sum(score.bleu for score in self.directions) / len(self.directions)

    @property
    def chrf(self) -> float:
        """The mean over directions."""
        return sum(score.chrf for score in self.directions) / len(self.directions)

    @property
    def health(self) -> Health:
        """Of all test lines."""
        return sum((score.health for score in self.directions), Health())

    @classmethod
    def read(cls, folder: str | Path) -> Scores:
        """What `Measuring.write` left."""
        path = Path(folder) / RESULTS
        if not path.is_file():
            raise DataError(f"{folder}: no {RESULTS} in it; expected a folder that an evaluate stage has written")
        found = json.loads(path.read_bytes())
        directions = tuple(_score(one) for one in found["directions"])
        odd = {kind: Health(**health) for kind, health in found["odd"].items()}
        return cls(found["name"], found["size"], found["search"], directions, odd)


def _score(table: dict[str, Any]) -> DirectionScore:
    return DirectionScore(**{**table, "health": Health(**table["health"])})


@dataclass(frozen=True)
class Measuring:
    """What is measured, on what, and how."""

    model: str
    text: str
    sentences: int = 0
    beam: int = 0
    engine: str = "auto"
    device: str = "auto"
    precision: str = "fp32"

    def write(self, output: Path, odd: bool = True) -> Scores:
        """Measure what is not measured yet, and write it all down."""
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
        search = _search_in_words(translator.choose_search(self.beam))
        found = Scores(Path(self.model).name, _size(Path(self.model)), search, scores, tried)
        write_text(output / RESULTS, json.dumps(asdict(found), indent=1, ensure_ascii=False) + "\n")
        return found

    def _direction(self, translator: Translator, direction: Direction, output: Path) -> DirectionScore:
        kept = output / f"{direction.name}.json"
        if kept.is_file():
            return _score(json.loads(kept.read_bytes()))
        sources, references = self._read(direction.source), self._read(direction.target)
        made = self._translate(translator, sources, direction.target_language, direction.name)
        texts = [one.text for one in made]
        by_bleu = bleu(texts, references, tokenize=tokenizer_for(direction.target_language))
        by_chrf = chrf(texts, references)
        health = examine(sources, texts, [one.finished for one in made], references)
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
        write_text(kept, json.dumps(asdict(score), ensure_ascii=False) + "\n")
        return score

    def _read(self, path: Path) -> list[str]:
        """All lines, or as many as are wanted, evenly spread."""
        lines = [line.decode() for line in read_lines(str(path))]
        wanted = min(self.sentences or len(lines), len(lines))
        return [lines[number * len(lines) // wanted] for number in range(wanted)]

    def _translate(self, translator: Translator, texts: Sequence[str], to: str, title: str) -> list[Translation]:
        found = []
        with Progress(f"Translating {title}", len(texts), "sentences", translator.window) as progress:
            for one in translator.stream(texts, beam=self.beam, to=to):
                found.append(one)
                progress.advance()
        return found

    def _odd(self, translator: Translator, languages: Sequence[str], output: Path) -> dict[str, Health]:
        """Every odd input into every language; where a copy is no fault, none is counted."""
        kept = output / "odd.json"
        if kept.is_file():
            return {kind: Health(**health) for kind, health in json.loads(kept.read_bytes()).items()}
        found, lines = {kind: Health() for kind in KINDS}, list[str]()
        for language in languages:
            texts = [(kind, text) for kind, some in KINDS.items() for text in some]
            made = self._translate(translator, [text for _, text in texts], language, f"odd inputs to {language}")
            for (kind, text), one in zip(texts, made, strict=True):
                found[kind] += examine([text], [one.text], [one.finished], [text if kind in STAY else ""])
                lines.append(f"{language}\t{kind}\t{text}\t{one.text}\n")
        write_text(output / "odd.txt", "".join(lines))
        write_text(kept, json.dumps({kind: asdict(health) for kind, health in found.items()}) + "\n")
        return found


def _search_in_words(search: Any) -> str:
    """`beam size=4 length_penalty=1.0`: its kind and its numbers."""
    plain = [f"{key}={value}" for key, value in vars(search).items() if isinstance(value, (int, float, str))]
    return " ".join([configs.kind_of(type(search)), *plain])


def _size(folder: Path) -> int:
    """Bytes of the weights that are opened: the native ones where there are some."""
    return next(((folder / name).stat().st_size for name in (NATIVE, MODEL) if (folder / name).is_file()), 0)
