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
from transduce.metrics import Metric, MetricConfig
from transduce.metrics.corpus import Measure, key_of
from transduce.search import SearchConfig
from transduce.search.settings import Beam, CTCCollapse, Greedy, Joint, MaskPredict, Sample
from transduce.text.languages import check_language
from transduce.training.optimizer import (
    Adam,
    LearningRate,
    LearningRateConfig,
    Muon,
    Optimizer,
    OptimizerConfig,
    Paper,
)


@dataclass(frozen=True)
class Training:
    """Settings of training: steps, optimizer, schedule, checkpoints, and which weights are offered at the end.

    `average` > 0 ends the run by averaging that many checkpoints, the last or the best ones (`average_of`); the average
    is what the run folder offers if it does not validate worse than the best single checkpoint.
    """

    steps: PositiveInt = 100_000
    start_from: str = ""  # run or converted model whose weights a new run begins with; "" = random ones
    start_with: Literal["all", "what_fits"] = "all"  # which weights; a fitting one has name and shape of the new one's
    minutes: NonNegativeFloat = 0.0  # stop after so much training time; 0 = no limit
    accumulate: Annotated[int, Bounds(1, ACCUMULATED)] = 1  # micro-batches a step
    optimizer: Optimizer | OptimizerConfig = Adam()
    learning_rate: LearningRate | LearningRateConfig = Paper()
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
    graphs: bool = True  # on a GPU, replay steps as CUDA graphs where the objective allows it
    compile: Literal["auto", True, False] = (
        "auto"  # torch.compile; auto = on a GPU, where the run is long enough to pay
    )
    activation_checkpointing: bool = False  # store each layer's inputs alone; recompute the rest in backward
    parallel: Literal["ddp", "fsdp"] = "ddp"  # how several processes (torchrun) hold the model: replicated, or sharded
    threads: Annotated[int, Bounds(0, FEW)] = 0  # CPU threads; 0 = the fastest number, found by trials at the start
    tensorboard: bool = False

    def narrow(self, device: str) -> bool:
        """Whether matrix products use bf16 on this kind of device."""
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
        available = self.keep_last if self.average_of == "last" else self.keep_best
        if self.average > available:
            raise ConfigError(
                f"average: {self.average} checkpoints to average, but only {available} are kept;"
                f" set training.keep_{self.average_of}={self.average}"
            )


@dataclass(frozen=True)
class Validation:
    """Validation on held-out text: every `every` steps, by loss and by the quality of real translations.

    Training stops after `patience` validations without a better `metric` (0 = never), and the best, among equals that
    of the lowest loss, is what the run folder offers. `sentences` > 0 translates only that many, evenly spread;
    `samples` of them are shown. BLEU is tokenised for the target language: `language`, else that of each text's tag,
    else the one detected from the script of the references.
    """

    every: PositiveInt = 1000
    metric: Metric | MetricConfig = "bleu"
    language: str = ""  # of the targets, as for `evaluate --language`; "" = detected
    patience: NonNegativeInt = 0
    search: Greedy | Beam | Sample | MaskPredict | CTCCollapse | Joint | SearchConfig = Greedy()
    sentences: NonNegativeInt = 0
    samples: NonNegativeInt = 3

    def __post_init__(self) -> None:
        check_bounds(self)
        check_language(self.language)

    def rank(self, values: dict[str, float]) -> list[float]:
        """The sort key of a validation, the least being the best: a low loss or error rate, or a high BLEU.

        Between equals the loss decides: early in training, or where a target is one word, BLEU is 0 for long.
        """
        if self.metric == "loss":
            return [values["loss"]]
        value = values[self.judged_by]
        return [value if Measure.of(self.metric).lower else -value, values["loss"]]

    @property
    def judged_by(self) -> str:
        """The name of the metric among the values of a validation."""
        return key_of(self.metric)
