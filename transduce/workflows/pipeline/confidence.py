"""Fit the confidence of a model (translate/confidence.py) on held-out text, and say how good it is.

The model translates the text, and sentence chrF against the references says which translations are in the worst fifth
of their direction. A part of the sentences is translated again with their sources damaged: letters swapped, words lost
or out of order. Their references stay, so that confidence learns what sources look like of which little can be made.

All figures are of sentences that took no part in the fit: it is repeated without each fifth of them in turn.
Shapes: N sentences, F features.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from transduce.core.errors import DataError
from transduce.core.progress import Progress
from transduce.engines import Translation
from transduce.metrics.sentence import sentence_scorer
from transduce.translate.confidence import FARTHEST, ConfidenceModel, FeatureReader, Figures, group_of
from transduce.translate.translator import Translator

Floats = NDArray[np.float64]

WORST = 0.2  # share of the translations of a direction that are not acceptable
DAMAGED = 1 / 3  # sentences that are translated again with a damaged source, of those that are translated
FOLDS = 5  # parts that are left out in turn
RIDGE = 20.0  # strength of regularisation, in sentences
FEWEST = 100  # sentences to fit on
BINS = 10  # of confidence, in a reliability table


@dataclass(frozen=True)
class HeldOut:
    """Sentences with references in one direction; `target` is the tag to translate with, "" for none."""

    direction: str
    target: str
    sources: Sequence[str]
    references: Sequence[str]

    @classmethod
    def spread(
        cls, direction: str, target: str, sources: Sequence[str], references: Sequence[str], most: int = 0
    ) -> HeldOut:
        """At most `most` of the pairs (0: all), evenly spread, without those that lack a side."""
        pairs = [pair for pair in zip(sources, references, strict=True) if all(map(str.strip, pair))]
        count = min(most or len(pairs), len(pairs))
        chosen = [pairs[number * len(pairs) // count] for number in range(count)]
        return cls(direction, target, [source for source, _ in chosen], [reference for _, reference in chosen])


@dataclass(frozen=True)
class Observed:
    """A translation of a held-out sentence: its features, its chrF, and the number of its sentence."""

    direction: str
    group: str
    sentence: int
    features: tuple[float, ...]
    chrf: float


class FeatureLog:
    """Stands in for the confidence of a translator, and notes the features of all it translates."""

    def __init__(self, translator: Translator) -> None:
        self._reader = FeatureReader(translator.tokenizers)
        self.features: dict[tuple[str, str], tuple[float, ...]] = {}  # of source and translation

    def __call__(
        self, source: str, read: Sequence[int], found: Translation, written: Sequence[int], to: str = ""
    ) -> None:
        self.features[source, found.text] = self._reader(source, read, found, written, to)


def observe(translator: Translator, texts: Sequence[HeldOut], beam: int = 0) -> list[Observed]:
    """Translate held-out text, as it is and damaged, and note what confidence can be fitted on."""
    log, before, chrf = FeatureLog(translator), translator.confidence, sentence_scorer("chrf")
    found: list[Observed] = []
    translator.confidence = log
    try:
        for begun, text in zip(_offsets(texts), texts, strict=True):
            sources, numbers = _with_damaged(text.sources, text.direction)
            made = []
            with Progress(f"Translating {text.direction}", len(sources), "sentences", translator.window) as progress:
                for translation in translator.stream(sources, beam=beam, to=text.target):
                    made.append(translation.text)
                    progress.advance()
            scores = chrf(made, [text.references[number] for number in numbers])
            for source, translated, number, score in zip(sources, made, numbers, scores, strict=True):
                features = log.features.get((source, translated))  # none of texts in parts, or with protected spans
                if features is not None:
                    group = group_of(source, text.target)
                    found.append(Observed(text.direction, group, begun + number, features, float(score)))
    finally:
        translator.confidence = before
    return found


def _offsets(texts: Sequence[HeldOut]) -> list[int]:
    """The number of the first sentence of each text, counted over all of them."""
    return [*accumulate((len(text.sources) for text in texts[:-1]), initial=0)]


def _with_damaged(sources: Sequence[str], seed: str) -> tuple[list[str], list[int]]:
    """Sources, and some of them damaged; with the number of the sentence that each comes from."""
    draw = random.Random(seed)
    chosen = sorted(draw.sample(range(len(sources)), round(DAMAGED * len(sources))))
    return [*sources, *(damaged(sources[n], draw) for n in chosen)], [*range(len(sources)), *chosen]


def damaged(text: str, draw: random.Random) -> str:
    """Damage a text: letters swapped or replaced, words shuffled or left out, or all words backwards."""
    words = text.split() if " " in text else list(text)
    space, kind = " " if " " in text else "", draw.choice(("letters", "letters", "shuffled", "lost", "backwards"))
    if kind == "letters":
        letters = list(text)
        for _ in range(max(1, round(len(letters) * draw.choice((0.03, 0.08, 0.2))))):
            first, second = draw.randrange(len(letters)), draw.randrange(len(letters))
            letters[first], letters[second] = letters[second], draw.choice((letters[first], letters[second]))
        return "".join(letters)
    if kind == "shuffled":
        draw.shuffle(words)
    elif kind == "lost":
        words = [word for word in words if draw.random() < 0.6] or words
    else:
        words = [word[::-1] for word in words]
    return space.join(words)


def fit(found: Sequence[Observed]) -> ConfidenceModel:
    """Fit confidence to held-out translations, with figures of those left out."""
    if len(found) < FEWEST:
        raise DataError(
            f"confidence: {len(found):,} held-out sentences could be used, and at least {FEWEST} are needed; give more"
        )
    features = np.array([one.features for one in found])  # (N, F)
    chrf = np.array([one.chrf for one in found])
    members = _members([one.direction for one in found])
    bounds = {direction: float(np.quantile(chrf[rows], WORST)) for direction, rows in members.items()}
    acceptable = chrf >= np.array([bounds[one.direction] for one in found])
    groups = [one.group for one in found]
    model = _fitted(features, groups, acceptable)
    left_out = np.zeros(len(found))
    folds = np.array([one.sentence for one in found]) % FOLDS
    for fold in range(FOLDS):
        used, rest = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        without = _fitted(features[used], [groups[n] for n in used.tolist()], acceptable[used])
        left_out[rest] = [without.confidence(found[n].features, groups[n]) for n in rest.tolist()]
    return replace(model, bounds=bounds, figures=measure(left_out, acceptable, members))


def _members(names: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """The rows of each name."""
    rows = defaultdict(list)
    for row, name in enumerate(names):
        rows[name].append(row)
    return {name: np.array(numbers) for name, numbers in rows.items()}


def _fitted(features: Floats, groups: Sequence[str], acceptable: NDArray[np.bool_]) -> ConfidenceModel:
    """A logistic regression with ridge penalty, by Newton's method."""
    centres = {group: features[rows].mean(0) for group, rows in _members(groups).items()}
    centred = features - np.array([centres[group] for group in groups])
    scales = np.maximum(centred.std(0), 1e-3)  # a feature that never changes says nothing
    inputs = np.c_[np.clip(centred / scales, -FARTHEST, FARTHEST), np.ones(len(features))]  # (N, F + 1)
    penalty = np.diag([*[RIDGE] * features.shape[1], 1e-6])
    weights = np.zeros(inputs.shape[1])
    for _ in range(20):
        chance = 1 / (1 + np.exp(-inputs @ weights))
        curvature = (inputs * (chance * (1 - chance))[:, None]).T @ inputs + penalty
        weights -= np.linalg.solve(curvature, inputs.T @ (chance - acceptable) + penalty @ weights)
    centres[""] = features.mean(0)
    by_group = {group: tuple(map(float, centre)) for group, centre in sorted(centres.items())}
    return ConfidenceModel(by_group, tuple(scales.tolist()), tuple(weights[:-1].tolist()), float(weights[-1]))


def measure(confidence: Floats, acceptable: NDArray[np.bool_], members: Mapping[str, NDArray[np.int64]]) -> Figures:
    """Measure confidence (N,); AUROC is the mean over the directions whose rows are `members`."""
    areas = [auroc(confidence[rows], acceptable[rows]) for rows in members.values()]
    bins = tuple(reliability(confidence, acceptable))
    error = sum(count * abs(mean - share) for count, mean, share in bins) / len(confidence)
    return Figures(len(confidence), float(np.mean(areas)), error, bins)


def auroc(confidence: Floats, acceptable: NDArray[np.bool_]) -> float:
    """The chance that an acceptable translation is given more confidence than another one; ties count half."""
    good, bad = np.sort(confidence[acceptable]), confidence[~acceptable]
    if not len(good) or not len(bad):
        return 0.5
    below, up_to = np.searchsorted(good, bad, "left"), np.searchsorted(good, bad, "right")
    return float(1 - (below + up_to).sum() / (2 * len(good) * len(bad)))


def reliability(confidence: Floats, acceptable: NDArray[np.bool_]) -> Iterator[tuple[int, float, float]]:
    """For each tenth of confidence that occurs: number, mean confidence and share that is acceptable."""
    tenths = np.minimum((confidence * BINS).astype(int), BINS - 1)
    for tenth in range(BINS):
        rows = tenths == tenth
        if rows.any():
            yield int(rows.sum()), float(confidence[rows].mean()), float(acceptable[rows].mean())


def summary(figures: Figures) -> Iterator[str]:
    """The lines, in Markdown, that say how good a confidence is."""
    yield (
        f"Of {figures.sentences:,} translations that were left out in turn: AUROC {figures.auroc:.3f} (the mean over"
        f" directions), expected calibration error {figures.error:.3f}."
    )
    yield ""
    yield from reliability_table(figures)


def reliability_table(figures: Figures) -> Iterator[str]:
    """The lines of a table in Markdown: how often translations of a confidence are acceptable."""
    yield "| confidence | sentences | mean | acceptable |"
    yield "| --- | --- | --- | --- |"
    for count, mean, share in figures.bins:
        tenth = min(int(mean * BINS), BINS - 1)
        yield f"| {tenth / BINS:.1f} to {(tenth + 1) / BINS:.1f} | {count:,} | {mean:.2f} | {share:.2f} |"
