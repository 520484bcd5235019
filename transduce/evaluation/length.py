"""Quality by length of the source sentence: where a system that is good on average begins to fail.

Sentences are gathered into ranges of length; each range is measured as a corpus of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transduce.errors import DataError
from transduce.evaluation.by_language import Target, Told, target_languages
from transduce.evaluation.metrics import References, bleu_metric, chrf_metric, reference_streams

WORD_STARTS = (0, 1, 10, 20, 30, 40, 50)  # 0: blank lines stand apart; 50: and everything longer
CHARACTER_STARTS = (0, 1, 20, 40, 60, 80, 100)  # a Chinese or Japanese word is about two characters


@dataclass(frozen=True)
class LengthRow:
    """The sentences of `shortest` to `longest` words (None: no upper end) and how well they were translated.

    `length_ratio` is hypothesis length over reference length, in BLEU's tokens: below 1 the system leaves things out.
    """

    shortest: int
    longest: int | None
    sentences: int
    bleu: float
    chrf: float
    length_ratio: float

    @property
    def range(self) -> str:
        """'10-19', '50+' or '0'."""
        if self.longest is None:
            return f"{self.shortest}+"
        return f"{self.shortest}-{self.longest}" if self.longest > self.shortest else f"{self.shortest}"


def by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: References,
    language: str = "",
    lowercase: bool = False,
    characters: bool = False,
    targets: Sequence[Target] = (),
) -> list[LengthRow]:
    """One row for each range of source length that has sentences, shortest first.

    Length is in whitespace-separated words, or with `characters` in characters that are no whitespace. `targets` are
    the target languages where there are several: BLEU is then the mean over those that a range has.
    """
    streams = reference_streams(hypotheses, references)
    if len(sources) != len(hypotheses):
        raise DataError(
            f"There are {len(sources):,} source lines, but {len(hypotheses):,} hypotheses. "
            "Hypothesis n must translate source line n: check that both come from the same text."
        )
    lengths = [len("".join(text.split())) if characters else len(text.split()) for text in sources]
    starts = CHARACTER_STARTS if characters else WORD_STARTS
    lines = ["\n".join(texts) for texts in zip(*streams, strict=True)]
    targets = targets or target_languages(lines, (), Told(language, "the language that was given"))
    chrf = chrf_metric(lowercase)
    rows = []
    for shortest, following in zip(starts, (*starts[1:], None), strict=True):
        longest = None if following is None else following - 1
        chosen = [
            n for n, length in enumerate(lengths) if length >= shortest and (longest is None or length <= longest)
        ]
        if not chosen:
            continue
        by_chrf = chrf.corpus_score(*_only(chosen, hypotheses, streams))
        bleu, ratio = _bleu_and_ratio(set(chosen), hypotheses, streams, targets, lowercase)
        rows.append(LengthRow(shortest, longest, len(chosen), bleu, by_chrf.score, ratio))
    return rows


def _only(
    chosen: Sequence[int], hypotheses: Sequence[str], streams: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    return [hypotheses[n] for n in chosen], [[stream[n] for n in chosen] for stream in streams]


def _bleu_and_ratio(
    chosen: set[int],
    hypotheses: Sequence[str],
    streams: Sequence[Sequence[str]],
    targets: Sequence[Target],
    lowercase: bool,
) -> tuple[float, float]:
    """Mean BLEU over the languages of the texts chosen, and how much longer all hypotheses are than the references."""
    scores = [
        bleu_metric(lowercase, target.tokenizer).corpus_score(*_only(texts, hypotheses, streams))
        for target in targets
        if (texts := [n for n in target.texts if n in chosen])
    ]
    ratio = sum(one.sys_len for one in scores) / max(1, sum(one.ref_len for one in scores))
    return sum(one.score for one in scores) / len(scores), ratio
