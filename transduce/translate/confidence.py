"""Confidence: the probability that a translation is acceptable, from what translating leaves at hand.

Acceptable is a translation whose sentence chrF against a person's would reach the bound of its direction: the highest
chrF of the worst fifth of what the model wrote for the held-out text that its confidence was fitted on, a part of which
was damaged on purpose. So on such text confidence is 0.8 in the mean.

`FeatureReader` describes a translation by some numbers: how probable its tokens are, how long it is, what was copied,
repeated or lost, how rare the pieces are. `ConfidenceModel` is a logistic regression over them, a few numbers in
confidence.json beside a model's weights; `workflows/pipeline/confidence.py` fits it. A model without that file has no
confidence. Neither numpy nor torch is needed, and one sentence takes some 50 microseconds.

The confidence of a text that was translated in parts is the mean of theirs, by their numbers of tokens: the share of
the text that can be expected to be acceptable.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from transduce.core.durable import write_text
from transduce.core.errors import RunError
from transduce.core.untrusted import read_json
from transduce.engines import Translation
from transduce.text.faults import length, problems
from transduce.text.tokenizer import Tokenizer, Tokenizers

CONFIDENCE = "confidence.json"  # in the folder of a model
FEATURES = (
    "mean",  # of the log-probabilities of all tokens with the end symbol
    "probability",  # the mean of the probabilities themselves
    "least",
    "quartile",  # a quarter of the tokens are less probable
    "unsure",  # share of tokens below -1
    "unlikely",  # share of tokens below -3
    "spread",  # standard deviation
    "end",  # of the end symbol
    "begin",  # mean of the first three tokens
    "tokens",  # logarithm of their number
    "length",  # logarithm of the source's letters
    "length_ratio",  # logarithm
    "token_ratio",  # logarithm
    "piece_length",  # letters of a source piece
    "source_rarity",  # mean logarithm of the pieces' ranks
    "target_rarity",
    "source_spelt",  # share of source pieces that are bytes or unknown
    "target_spelt",
    "copied",  # share of words that the source has too
    "capitals",  # share of source words with a capital within the sentence
    "capitals_lost",
    "numbers",  # share of source words that are numbers
    "numbers_lost",
    "repeated",  # share of runs of three tokens that were there before
    "distinct",  # share of distinct tokens
    "marks",  # share of marks in the source
    "marks_differ",  # difference in the number of marks
    "final_differs",  # whether one side alone ends with a final mark
    "faults",  # the number of faults (text/faults.py)
    "cut",  # whether the length limit ended it
)
WIDE = "<wide"  # ends the name of a group of translations from Chinese or Japanese
UNSURE, UNLIKELY = -1.0, -3.0
FARTHEST = 4.0  # standard deviations: what lies farther out counts as much
_MARKS = ',.;:!?()"，。；：！？、'
_FINAL = ".!?。！？…"
_NUMBER = re.compile(r"\d+")


class Confidence(Protocol):
    """Gives a translation its confidence, or None."""

    def __call__(
        self, source: str, read: Sequence[int], found: Translation, written: Sequence[int], to: str = ""
    ) -> float | None:
        """The confidence of a translation `found`.

        `read` are the tokens of the source and `written` those of the translation, without end symbols; `to` is the
        language that it is in, "" if that is unknown.
        """
        ...


class FeatureReader:
    """Describes translations by the numbers that `FEATURES` names."""

    def __init__(self, tokenizers: Tokenizers) -> None:
        self._source = _Pieces(tokenizers.source)
        self._target = self._source if tokenizers.source is tokenizers.target else _Pieces(tokenizers.target)

    def __call__(
        self, source: str, read: Sequence[int], found: Translation, written: Sequence[int], to: str = ""
    ) -> tuple[float, ...]:
        """The features of a translation, in the order of `FEATURES`; the arguments are those of `Confidence`."""
        logs = found.token_log_probs or (0.0,)
        return (
            *_of_log_probs(logs),
            *_of_lengths(source, found.text, len(read) + 1, len(logs)),
            self._source.rarity(read),
            self._target.rarity(written),
            self._source.spelt(read),
            self._target.spelt(written),
            *_of_words(source, found.text),
            *_of_repetition(written),
            *_of_marks(source, found.text),
            float(len(problems(source, found.text, to))),
            float(not found.finished),
        )


class _Pieces:
    """How rare the pieces of a tokenizer are; those of a vocabulary stand there by frequency."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._spelt = tokenizer.spelling_tokens
        self._rarity = [math.log(tokenizer.size if n in self._spelt else n + 1) for n in range(tokenizer.size)]

    def rarity(self, tokens: Sequence[int]) -> float:
        return sum(map(self._rarity.__getitem__, tokens)) / max(1, len(tokens))

    def spelt(self, tokens: Sequence[int]) -> float:
        return sum(map(self._spelt.__contains__, tokens)) / max(1, len(tokens))


def _of_log_probs(logs: Sequence[float]) -> tuple[float, ...]:
    count, ordered = len(logs), sorted(logs)
    mean = sum(logs) / count
    spread = math.sqrt(max(0.0, sum(log * log for log in logs) / count - mean * mean))
    return (
        mean,
        sum(map(math.exp, logs)) / count,
        ordered[0],
        ordered[count // 4],
        bisect_left(ordered, UNSURE) / count,
        bisect_left(ordered, UNLIKELY) / count,
        spread,
        logs[-1],
        sum(logs[:3]) / len(logs[:3]),
    )


def _of_lengths(source: str, text: str, read: int, written: int) -> tuple[float, ...]:
    letters = length(source) + 1
    ratio = math.log((length(text) + 1) / letters)
    return math.log(written), math.log(letters), ratio, math.log(written / read), letters / read


def _of_words(source: str, text: str) -> tuple[float, ...]:
    words, made = source.split(), text.split()
    count, known = max(1, len(words)), set(made)
    copied = len(known.intersection(words)) / max(1, len(made))
    names = [word for word in words[1:] if word[0].isupper()]
    numbers = _NUMBER.findall(source)
    kept = _NUMBER.findall(text) if numbers else ()
    return (
        copied,
        len(names) / count,
        sum(name not in known for name in names) / count,
        len(numbers) / count,
        sum(number not in kept for number in numbers) / count,
    )


def _of_repetition(tokens: Sequence[int]) -> tuple[float, float]:
    count, runs = max(1, len(tokens)), max(1, len(tokens) - 2)
    different = len({*zip(tokens, tokens[1:], tokens[2:], strict=False)}) if len(tokens) > 2 else runs
    return 1 - different / runs, len({*tokens}) / count


def _of_marks(source: str, text: str) -> tuple[float, float, float]:
    words = len(source.split()) + 1
    had, has = sum(map(source.count, _MARKS)), sum(map(text.count, _MARKS))
    return had / words, abs(had - has) / words, float((source[-1:] in _FINAL) != (text[-1:] in _FINAL))


def group_of(source: str, to: str) -> str:
    """The translations that are alike in their features: of a target language, from wide characters or from others."""
    return f"{to}{WIDE}" if length(source) > 2 * len(source) else to


@dataclass(frozen=True)
class Figures:
    """How well confidence was fitted, on sentences that took no part in it.

    `auroc` is the mean over directions for their lowest fifth by chrF, `error` the expected calibration error, and
    `bins` say for each tenth of confidence how many sentences have it, their mean confidence, and the share that is
    acceptable.
    """

    sentences: int = 0
    auroc: float = 0.0
    error: float = 0.0
    bins: tuple[tuple[int, float, float], ...] = ()


@dataclass(frozen=True)
class ConfidenceModel:
    """A logistic regression over features, taken relative to the `centres` of their group and to `scales`.

    The centres of "" are for groups that are not known. `bounds` are those of sentence chrF, by direction.
    """

    centres: Mapping[str, tuple[float, ...]]
    scales: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float
    bounds: Mapping[str, float] = field(default_factory=dict)
    figures: Figures = Figures()

    def confidence(self, features: Sequence[float], group: str = "") -> float:
        """The probability that a translation of `group` with these features is acceptable, from 0 to 1."""
        centre, total = self.centres.get(group) or self.centres[""], self.bias
        for value, middle, scale, weight in zip(features, centre, self.scales, self.weights, strict=True):
            scaled = (value - middle) / scale
            total += weight * (scaled if -FARTHEST < scaled < FARTHEST else math.copysign(FARTHEST, scaled))
        return 1 / (1 + math.exp(-total)) if total > 0 else math.exp(total) / (1 + math.exp(total))

    def write(self, folder: Path) -> None:
        """Write the numbers beside the weights of a model."""
        facts = {"features": FEATURES, **asdict(self)}
        write_text(folder / CONFIDENCE, json.dumps(_rounded(facts)) + "\n")

    @classmethod
    def of(cls, folder: Path) -> ConfidenceModel | None:
        """Read the confidence of the model in a folder; None if it has none."""
        path = folder / CONFIDENCE
        try:
            facts = read_json(path)
            return cls._read(facts)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise RunError(
                f"{path}: cannot be read as the confidence of a model ({error}); fit it again with `transduce"
                " confidence`, or delete the file: the model translates without it"
            ) from None

    @classmethod
    def _read(cls, facts: Any) -> ConfidenceModel:
        if [*facts["features"]] != [*FEATURES]:
            raise ValueError("it was fitted to other features than this version has")
        figures = facts["figures"]
        bins = tuple((int(count), float(mean), float(share)) for count, mean, share in figures["bins"])
        found = cls(
            {str(to): _numbers(centre, len(FEATURES)) for to, centre in facts["centres"].items()},
            _numbers(facts["scales"], len(FEATURES)),
            _numbers(facts["weights"], len(FEATURES)),
            _numbers([facts["bias"]], 1)[0],
            {str(to): float(bound) for to, bound in facts["bounds"].items()},
            Figures(int(figures["sentences"]), float(figures["auroc"]), float(figures["error"]), bins),
        )
        if "" not in found.centres or min(found.scales) <= 0:
            raise ValueError("it lacks centres, or has a scale that is not positive")
        return found


def _numbers(values: Sequence[float], count: int) -> tuple[float, ...]:
    found = tuple(map(float, values))
    if len(found) != count or not all(map(math.isfinite, found)):
        raise ValueError(f"expected {count} finite numbers, got {len(found)} values")
    return found


def _rounded(tree: Any) -> Any:
    """The tree with numbers of six digits, which is more than they are known to."""
    if isinstance(tree, float):
        return float(f"{tree:.6g}")
    if isinstance(tree, dict):
        return {name: _rounded(value) for name, value in tree.items()}
    return [_rounded(value) for value in tree] if isinstance(tree, (list, tuple)) else tree


class Estimator:
    """Gives translations of one model their confidence."""

    def __init__(self, model: ConfidenceModel, tokenizers: Tokenizers) -> None:
        self.model, self._tokenizers = model, tokenizers

    @cached_property
    def features(self) -> FeatureReader:
        """Made at the first translation: its tables take some milliseconds."""
        return FeatureReader(self._tokenizers)

    @classmethod
    def open(cls, folder: Path, tokenizers: Tokenizers) -> Estimator | None:
        """The estimator of the model in a folder; None if it has no confidence."""
        model = ConfidenceModel.of(folder)
        return None if model is None else cls(model, tokenizers)

    def __call__(
        self, source: str, read: Sequence[int], found: Translation, written: Sequence[int], to: str = ""
    ) -> float:
        """The confidence of a translation; the arguments are those of `Confidence`."""
        return self.model.confidence(self.features(source, read, found, written, to), group_of(source, to))
