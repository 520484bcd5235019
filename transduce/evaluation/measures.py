"""What validation can be judged by: the name of each measure, and whether lower values are better."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """`label` is for people, `lower` says that lower values are better."""

    label: str
    lower: bool = False


MEASURES = {
    "bleu": Measure("BLEU"),
    "chrf": Measure("chrF"),
    "loss": Measure("validation loss", lower=True),
    "wer": Measure("WER", lower=True),
    "cer": Measure("CER", lower=True),
    "accuracy": Measure("accuracy"),
}
