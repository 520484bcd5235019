"""Error rates of transcripts, computed by jiwer: edits for each hundred words or characters of the reference.

Nothing is normalised: case and punctuation count, words are what stands between spaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from transduce.errors import DataError, UserError
from transduce.evaluation.metrics import Quality


def jiwer_or_refusal() -> Any:
    """The package that counts edits; whoever lacks it is told what to install."""
    try:
        import jiwer
    except ImportError:
        raise UserError("error rates need the package jiwer: pip install 'transduce[senses]'") from None
    return jiwer


def accuracy(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """The share of lines that are right to the letter, in percent, higher is better."""
    right = sum(one == other for one, other in zip(hypotheses, references, strict=True))
    return 100 * right / max(1, len(references))


def first_empty(references: Sequence[str]) -> int:
    """The number, from 1, of the first reference without words, against which no edits can be counted; 0 if none."""
    return next((number for number, text in enumerate(references, start=1) if not text.strip()), 0)


def error_rates(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[Quality, Quality, Quality]:
    """WER, CER, and SER: the share of lines that are not right to the letter. All in percent, LOWER is better."""
    jiwer = jiwer_or_refusal()
    if len(hypotheses) != len(references) or not references:
        raise DataError(
            f"error rates: {len(hypotheses):,} transcripts and {len(references):,} references; expected as many of each"
        )
    empty = first_empty(references)
    if empty:
        raise DataError(f"error rates: reference {empty} is empty, and edits are counted against its words")
    signature = f"jiwer|case:mixed|tok:spaces|version:{version('jiwer')}"
    return (
        Quality("WER", 100 * float(jiwer.wer(list(references), list(hypotheses))), signature),
        Quality("CER", 100 * float(jiwer.cer(list(references), list(hypotheses))), signature),
        Quality("SER", 100 - accuracy(hypotheses, references), "lines not right to the letter"),
    )
