"""The [training] and [validation] sections of a config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from transduce.core.bounds import (
    ACCUMULATED,
    FEW,
    BelowOne,
    Bounds,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    check_bounds,
)
from transduce.core.errors import ConfigError
from transduce.metrics.corpus import MEASURES
from transduce.search.settings import Beam, CTCCollapse, Greedy, Joint, MaskPredict, Sample
from transduce.text.languages import check_language
from transduce.training.optimizer import Adam, LearningRate, Muon, Optimizer, Paper

Metric = Literal["bleu", "chrf", "loss", "wer", "cer", "accuracy"]


@dataclass(frozen=True)
class Training:
    """How the weights are found, how often they are saved, and which are kept at the end.

    `average` > 0 ends the run by averaging that many checkpoints, the last or the best ones (`average_of`); the average
    is what the run folder offers if it does not validate worse than the best single checkpoint.
    """

    steps: PositiveInt = 100_000
    start_from: str = ""  # run or converted model whose weights a new run begins with; "" = random ones
    start_with: Literal["all", "what_fits"] = "all"  # of these weights; what fits has name and shape of the new model's
    minutes: NonNegativeFloat = 0.0  # stop after so much training time; 0 = no limit
    accumulate: Annotated[int, Bounds(1, ACCUMULATED)] = 1  # micro-batches a step
    optimizer: Optimizer = Adam()
    learning_rate: LearningRate = Paper()
    clip: NonNegativeFloat = 0.0  # largest gradient norm; 0 = off, as in the paper
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto = bf16 on a GPU, fp32, which is exact, on a CPU
    ema: BelowOne = 0.0  # highest decay of the moving average of weights (session.py); 0 = off
    report_every: PositiveInt = 100
    save_every: PositiveInt = 1000
    keep_last: PositiveInt = 5
    keep_best: NonNegativeInt = 1
    average: NonNegativeInt = 0
    average_of: Literal["last", "best"] = "last"
    device: str = "auto"
    graphs: bool = True  # on a GPU, replay the launches of a step where the objective lets that be
    compile: Literal["auto", True, False] = (
        "auto"  # torch.compile; auto = on a GPU, where the run is long enough to pay
    )
    activation_checkpointing: bool = False  # keep each layer's inputs alone, and work the rest out again going back
    parallel: Literal["ddp", "fsdp"] = "ddp"  # how several processes (torchrun) hold the model: whole, or in pieces
    threads: Annotated[int, Bounds(0, FEW)] = 0  # CPU threads; 0 = what is fastest, found by trying at the start
    tensorboard: bool = False

    def narrow(self, device: str) -> bool:
        """Whether products are made in bf16 on a kind of device."""
        return self.precision == "bf16" or (self.precision == "auto" and device == "cuda")

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.parallel == "fsdp" and isinstance(self.optimizer, Muon):
            raise ConfigError(
                "parallel: with fsdp each process holds a part of every matrix, and Muon needs whole ones;"
                " set training.parallel=ddp, or training.optimizer=adam_w"
            )
        if self.start_with != "all" and not self.start_from:
            raise ConfigError(f"start_with: expected training.start_from beside it, got {self.start_with!r} alone")
        if self.average_of != "last" and not self.average:
            raise ConfigError(f"average_of: expected training.average beside it, got {self.average_of!r} alone")
        kept = self.keep_last if self.average_of == "last" else self.keep_best
        if self.average > kept:
            raise ConfigError(
                f"average: {self.average} checkpoints to average, but only {kept} are kept;"
                f" set training.keep_{self.average_of}={self.average}"
            )


@dataclass(frozen=True)
class Validation:
    """Measuring on held-out text: every `every` steps, by loss and by the quality of real translations.

    Training stops after `patience` validations without a better `metric` (0 = never), and the best, among equals that
    of the lowest loss, is what the run folder offers. `sentences` > 0 translates only that many, evenly spread;
    `samples` of them are shown. BLEU is tokenised for the target language: `language`, else that of each text's tag,
    else the one that the script of the references tells.
    """

    every: PositiveInt = 1000
    metric: Metric = "bleu"
    language: str = ""  # of the targets, as for `evaluate --language`; "" = found out
    patience: NonNegativeInt = 0
    search: Greedy | Beam | Sample | MaskPredict | CTCCollapse | Joint = Greedy()
    sentences: NonNegativeInt = 0
    samples: NonNegativeInt = 3

    def __post_init__(self) -> None:
        check_bounds(self)
        check_language(self.language)

    def rank(self, values: dict[str, float]) -> list[float]:
        """What decides between validations, the least being the best: a low loss or error rate, or a high BLEU.

        Between equals the loss decides: early in training, or where all is said in a word, BLEU is 0 for long.
        """
        if self.metric == "loss":
            return [values["loss"]]
        value = values[self.metric]
        return [value if MEASURES[self.metric].lower else -value, values["loss"]]
