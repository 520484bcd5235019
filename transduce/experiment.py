"""The one top-level config of a run: data, model, objective, search, training, validation."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Annotated

from transduce.core.bounds import FEW, TOKENS, BelowOne, Bounds, NonNegativeInt, check_bounds
from transduce.core.errors import ConfigError
from transduce.data.batching import widest
from transduce.data.corpus import Corpus
from transduce.model.norms import BatchNorm
from transduce.model.seq2seq import Model
from transduce.model.sources import Tokens
from transduce.model.transformer import StackConfig
from transduce.objectives import ObjectiveConfig
from transduce.objectives.cross_entropy import CrossEntropy, RDrop, Smoothed
from transduce.objectives.parallel import MaskedPrediction, ParallelCTC
from transduce.objectives.sequence_level import MinimumRisk, Reinforce, SequenceLevel
from transduce.search import SearchConfig
from transduce.search.settings import Beam, SearchChoice, check_reads, check_together
from transduce.training.settings import Training, Validation

ObjectiveChoice = CrossEntropy | RDrop | Reinforce | MinimumRisk | MaskedPrediction | ParallelCTC


@dataclass(frozen=True)
class Data:
    """Which prepared corpus to read, and how to cut it into batches."""

    folder: str = ""
    # padded tokens (of files, frames) a batch, on each side; 0 = as many as the GPU holds, found by trials
    tokens: Annotated[int, Bounds(0, TOKENS)] = 4096
    bucket: Annotated[int, Bounds(1, FEW)] = 8  # lengths are padded to multiples of this, more coarsely as they grow
    # at most so many shapes of batches, of real tokens; 0 = as `bucket` has it, few where compiled
    shapes: Annotated[int, Bounds(0, FEW)] = 0
    sampling: BelowOne = 0.0  # subword sampling (unigram) or BPE-dropout: 0.1 is usual, 0 = off
    train: str = "train"
    valid: str = "valid"
    trust: bool = False  # import the class of one's own that read the corpus's files, if one did

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.sampling > 0 and self.shapes:
            raise ConfigError(
                f"shapes: {self.shapes} shapes are chosen by the lengths of the texts, which data.sampling ="
                f" {self.sampling} changes each time; set data.shapes=0, or data.sampling=0"
            )


@dataclass(frozen=True)
class Config:
    """The config of a run; the defaults are the paper's base model.

    `search` is how the finished model translates unless requested otherwise.
    """

    seed: NonNegativeInt = 1
    license: str = ""  # of the trained model, for its card
    data: Data = Data()
    model: Model = Model()
    objective: ObjectiveChoice | ObjectiveConfig = CrossEntropy()
    search: SearchChoice | SearchConfig = Beam()
    training: Training = Training()
    validation: Validation = Validation()

    def __post_init__(self) -> None:
        check_bounds(self)
        searches = {"search": self.search, "validation.search": self.validation.search}
        check_together(self.objective, typing.get_args(ObjectiveChoice), searches, self.model.decoder)
        for where, search in searches.items():
            check_reads(search, self.model, where)
        if self.data.shapes and not isinstance(self.model.source, Tokens):
            raise ConfigError(
                f"data.shapes: {self.data.shapes} shapes are for batches as wide as long, and recordings and pictures"
                " have many more frames than their texts have tokens; set data.shapes=0"
            )
        if self.training.parallel == "fsdp" and isinstance(self.objective, SequenceLevel):
            raise ConfigError(
                "training.parallel: with fsdp all processes use each block as often, and translations that are drawn"
                " differ in length; set training.parallel=ddp"
            )
        if self.training.activation_checkpointing:
            _check_recomputable(self)
        if self.training.compile is True and not (isinstance(self.objective, Smoothed) and self.objective.steady):
            raise ConfigError(
                "training.compile: the objective does not do the same at every step (it has terms, draws, or is one of"
                " your own), and compiled code would do as at the first; set training.compile=auto, or false"
            )
        if isinstance(self.objective, (Smoothed, SequenceLevel)):  # not a class of the user's own
            try:
                self.objective.check(self.model)
            except ConfigError as error:
                raise ConfigError(f"objective.{error}") from None


def _check_recomputable(config: Config) -> None:
    """Raise ConfigError for activation checkpointing where layers cannot be recomputed."""
    for name, stack in (("encoder", config.model.encoder), ("decoder", config.model.decoder)):
        if not isinstance(stack, StackConfig):
            raise ConfigError(
                f"training.activation_checkpointing: is for layers of Transformers, and model.{name} is"
                f" {type(stack).__name__}; set training.activation_checkpointing=false, and lower data.tokens to save"
                " memory"
            )
        if isinstance(stack.norm, BatchNorm):
            raise ConfigError(
                f"training.activation_checkpointing: model.{name}.norm = batch_norm keeps statistics of its batches,"
                f" and working a layer out twice would count each batch twice; set model.{name}.norm=layer_norm, or"
                " training.activation_checkpointing=false"
            )
    if config.training.compile is True:
        raise ConfigError(
            "training.activation_checkpointing: is not for compiled steps, where the compiler decides what is kept; set"
            " training.compile=false, or training.activation_checkpointing=false"
        )


def check_source(model: Model, corpus: Corpus) -> None:
    """Raise ConfigError for a model that reads something else than the corpus holds."""
    reader, width = corpus.reader, model.source.width
    if reader is None and width:
        raise ConfigError(
            f"model.source: reads frames of {width} numbers, and the sources of {corpus.folder} are text;"
            " set model.source=tokens, or prepare recordings or pictures"
        )
    if reader is not None and width != reader.width:
        reads = f"frames of {width} numbers" if width else "tokens"
        kind = "patches" if reader.kind == "images" else f"frames, model.source.features={reader.width}"
        raise ConfigError(
            f"model.source: reads {reads}, and {corpus.folder} holds {reader.kind}, frames of {reader.width} numbers;"
            f" set model.source.kind={kind}, with the settings that the corpus was prepared with"
        )


def check_positions(config: Config, corpus: Corpus) -> None:
    """Raise ConfigError for learned positions that end before the corpus's sentences do, as batches pad them."""
    data = config.data
    _check_reach(config.model, widest(corpus.split(data.train), data.bucket, data.shapes), f"{corpus.folder}", "train")
    if data.valid in corpus.splits:  # whose batches are padded to their longest sentence
        _check_reach(config.model, corpus.split(data.valid).longest, f"{corpus.folder}", "valid")


def _check_reach(model: Model, sides: tuple[int, int], folder: str, name: str) -> None:
    """Check learned positions against the source and target positions of a split's longest batch."""
    source, target = sides
    read = source if isinstance(model.source, Tokens) else len(model.source.places(source))
    length = getattr(model.decoder, "length", None)  # of a non-autoregressive decoder
    written = target if length is None else length.places(read, target)
    for part, stack, places in (("encoder", model.encoder, read), ("decoder", model.decoder, written)):
        learned = getattr(getattr(stack, "positions", None), "longest", places)
        if places > learned:
            raise ConfigError(
                f"model.{part}.positions.longest: there are {learned} learned positions, and the longest batch of"
                f" {folder} (data.{name}) has {places}, with end symbol and padding; set it to at least {places}, or"
                f" model.{part}.positions.kind to one without an end such as sinusoidal, or prepare the text without"
                " sentences so long"
            )
