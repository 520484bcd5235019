"""A trained model with all that an exporter asks of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from transduce.data.tokenizer import Tokenizers
from transduce.experiment import Config
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.model.whole import Seq2Seq
from transduce.training.run_folder import open_model


@dataclass(frozen=True)
class ExportedRun:
    """What a run folder holds; `longest` source tokens were met in training."""

    config: Config
    tokenizers: Tokenizers
    model: Seq2Seq
    longest: int

    @classmethod
    def open(cls, folder: Path) -> ExportedRun:
        config, tokenizers, model, longest = open_model(folder, trust=False)
        return cls(config, tokenizers, cast("Seq2Seq", model.eval()), longest)

    @property
    def stacks(self) -> tuple[TransformerEncoder, TransformerDecoder]:
        """Both stacks of a model that was found to be a Transformer (refusal.py)."""
        model = self.config.model
        return cast("TransformerEncoder", model.encoder), cast("TransformerDecoder", model.decoder)
