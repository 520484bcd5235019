"""Error rates of transcripts, computed by jiwer: edits for each hundred words or characters of the reference.

Nothing is normalised: case and punctuation count, words are what stands between spaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from transduce.errors import DataError, UserError
from transduce.evaluation.metrics import Quality


def error_rates(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[Quality, Quality, Quality]:
    """WER, CER, and SER: the share of lines that are not right to the letter. All in percent, LOWER is better."""
    try:
        import jiwer
    except ImportError:
        raise UserError("error rates need the package jiwer: pip install 'transduce[senses]'") from None
    if len(hypotheses) != len(references) or not references:
        raise DataError(
            f"error rates: {len(hypotheses):,} transcripts and {len(references):,} references; expected as many of each"
        )
    empty = [number for number, text in enumerate(references, start=1) if not text.strip()]
    if empty:
        raise DataError(f"error rates: reference {empty[0]} is empty, and edits are counted against its words")
    signature = f"jiwer|case:mixed|tok:spaces|version:{version('jiwer')}"
    wrong = sum(one != other for one, other in zip(hypotheses, references, strict=True))
    return (
        Quality("WER", 100 * float(jiwer.wer(list(references), list(hypotheses))), signature),
        Quality("CER", 100 * float(jiwer.cer(list(references), list(hypotheses))), signature),
        Quality("SER", 100 * wrong / len(references), "lines not right to the letter"),
    )
