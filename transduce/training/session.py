"""A model in training with all that must survive a crash: weights, optimizer, moving average, position in the data.

`snapshot` and `restore` are exact: a session restored from a snapshot continues bit-identically. A snapshot holds full
tensors, however they are sharded: all processes must call it.
"""

from __future__ import annotations

import dataclasses
import reprlib
import typing
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from transduce.core.errors import ConfigError, RunError, UserError
from transduce.core.plugins import error_in_words, name_of
from transduce.experiment import Config
from transduce.model.encoder_decoder import EncoderDecoder
from transduce.training.checkpoint import Snapshot
from transduce.training.distributed import full_tensor, shard_like
from transduce.training.optimizer import Muon, MuonWithAdam, Optimizer, OptimizerConfig
from transduce.training.weights import check_shapes

_NUMBERS = {"int": int, "float": float, "bool": bool}  # in an optimizer's state, beside tensors

_BUILD = (
    "expected build(parameters, tables) to give an optimizer of torch's interface; correct it as docs/training.md shows"
    " (Optimizers), or choose another training.optimizer"
)


@dataclass
class TrainingProgress:
    """How far a run has come; plain numbers only, so that it is saved as JSON without loss.

    `position` is the next batch of `epoch`; `sums` are what the next report will divide; `ranks` maps the step of each
    validation to its rank, the least being the best; `stale` counts validations since the best. `corpus` is the digest
    of the data that `position` refers to, `longest` the tokens of its longest source. `threads` are those of the CPU,
    on which the last bits of sums depend; 0 before any step, and on a GPU. `tokens` and `shapes` are those of the
    batches that `position` counts, as they were settled at the start; 0 tokens in checkpoints older than this.
    `raw_best`: at `best_step` the raw weights were better than their moving average, and are what the folder offers.
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    seconds: float = 0.0
    target_tokens: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    ranks: dict[str, list[float]] = field(default_factory=dict)
    best_step: int = -1
    stale: int = 0
    validation: dict[str, float] = field(default_factory=dict)
    signature: str = ""
    corpus: str = ""
    longest: int = 256
    threads: int = 0
    tokens: int = 0
    shapes: int = 0
    raw_best: bool = False

    @classmethod
    def of_state(cls, state: dict[str, Any], where: object) -> TrainingProgress:
        """Parse a checkpoint's state; raise RunError for one that no run could have written."""
        fields = {field.name: getattr(cls(), field.name) for field in dataclasses.fields(cls)}
        kinds = {name: (int, float) if type(value) is float else (type(value),) for name, value in fields.items()}
        wrong = [name for name, value in state.items() if name not in kinds or type(value) not in kinds[name]]
        if wrong:
            raise RunError(
                f"{where}: its state has {wrong[0]!r} as no run writes it. This checkpoint cannot be used; take another"
                " one"
            )
        return cls(**state)

    def best_steps(self, count: int) -> list[int]:
        """Steps of the `count` best validations, the best first."""
        return [int(step) for step in sorted(self.ranks, key=lambda step: (self.ranks[step], int(step)))[:count]]

    def stem(self, ema: float) -> str:
        """The file of a checkpoint whose weights are offered: "average", with a moving average, or "model"."""
        return "average" if ema and not self.raw_best else "model"


class Session:
    """The mutable state of one run."""

    def __init__(self, config: Config, model: EncoderDecoder, device: torch.device) -> None:
        self.config = config
        self.model = model
        self.device = device
        self.optimizer = optimizer_for(config.training.optimizer, model)
        if isinstance(self.optimizer, MuonWithAdam):
            self.optimizer.narrow = config.training.narrow(device.type)
        self.average = (
            {name: tensor.clone() for name, tensor in model.weights().items()} if config.training.ema else None
        )
        self.progress = TrainingProgress()

    def move_average(self) -> None:
        """Update the moving average: decay * average + (1 - decay) * weights, after the update of step t + 1.

        The decay is min(ema, (1 + t) / (10 + t)), as in TensorFlow's ExponentialMovingAverage: the average covers the
        last tenth of a run until `ema` reaches further back. At once `ema`, it would hold on to the random initial
        weights for some 1 / (1 - ema) steps.
        """
        if self.average is not None:
            new, step = list(self.model.weights().values()), self.progress.step
            decay = min(self.config.training.ema, (1 + step) / (10 + step))
            torch._foreach_lerp_(list(self.average.values()), new, 1 - decay)

    def raw_weights(self) -> dict[str, Tensor]:
        """The full weights as the last update left them."""
        return full_tensors(self.model.weights())

    def averaged_weights(self) -> dict[str, Tensor]:
        """The moving average of the weights, or the raw weights if there is none."""
        return full_tensors(self.average) if self.average is not None else self.raw_weights()

    def snapshot(self) -> Snapshot:
        tensors = {"model": full_tensors(self.model.weights()), "optimizer": full_tensors(self._optimizer_tensors())}
        if self.average is not None:
            tensors["average"] = full_tensors(self.average)
        return Snapshot(self.progress.step, tensors, asdict(self.progress))

    def restore(self, snapshot: Snapshot, where: str) -> None:
        for stem in ("model", "optimizer"):
            if stem not in snapshot.tensors:
                raise RunError(
                    f"{where}: has no tensors of the {stem}. This checkpoint cannot be used; take another one"
                )
        expected = {name: tuple(tensor.shape) for name, tensor in self.model.weights().items()}
        check_shapes(snapshot.tensors["model"], expected, where)
        weights = self.model.weights()
        self.model.load_weights(
            {name: shard_like(tensor, weights[name]) for name, tensor in snapshot.tensors["model"].items()}
        )
        self._restore_optimizer(snapshot.tensors["optimizer"], where)
        if self.average is not None:
            for name, tensor in snapshot.tensors.get("average", snapshot.tensors["model"]).items():
                self.average[name].copy_(shard_like(tensor, weights[name]))
        self.progress = TrainingProgress.of_state(snapshot.state, where)

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        """The optimizer's state by parameter name; numbers become scalars that name their type."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{name}/{key}"] = value
                elif type(value) in _NUMBERS.values():
                    kind = torch.float64 if isinstance(value, float) else torch.int64
                    tensors[f"{name}/{key}:{type(value).__name__}"] = torch.tensor(value, dtype=kind)
                elif value is not None:
                    raise RunError(
                        f"the optimizer keeps a {type(value).__name__} as {key!r} of {name}, which no checkpoint can"
                        " hold; expected tensors and numbers. Change its class, or choose another training.optimizer"
                    )
        return tensors

    def _restore_optimizer(self, tensors: dict[str, Tensor], where: str) -> None:
        parameters = dict(self.model.named_parameters())
        for key, tensor in tensors.items():
            name, _, moment = key.rpartition("/")
            state: dict[str, Any] = self.optimizer.state[parameters[name]]
            moment, _, number = moment.partition(":")
            state[moment] = _NUMBERS[number](tensor.item()) if number else shard_like(tensor, parameters[name])
        if isinstance(self.optimizer, MuonWithAdam):
            for name, parameter in parameters.items():
                if self.optimizer.misfit(parameter):
                    raise RunError(
                        f"{where}: was written by a version of transduce whose Muon treated {name} in another way, and"
                        " training cannot resume from it as it began. Resume with that version, or begin a new run in"
                        " another folder with training.start_from set to this one"
                    )


def optimizer_for(config: Optimizer | OptimizerConfig, model: EncoderDecoder) -> torch.optim.Optimizer:
    """Build the optimizer of a config, with what it needs of the model's matrices."""
    if isinstance(config, Muon):
        return config.build(model.parameters(), model.tables(), model.stacks())
    if type(config) in typing.get_args(Optimizer):
        return config.build(model.parameters(), model.tables())
    return _own_optimizer(config, model)


def _own_optimizer(config: Any, model: EncoderDecoder) -> torch.optim.Optimizer:
    """Build the optimizer of a user's own class, and check that training can use it."""
    where = f"training.optimizer: build of '{name_of(type(config))}'"
    try:
        made = config.build(model.parameters(), model.tables())
    except UserError:
        raise
    except Exception as error:
        raise ConfigError(f"{where} raised {error_in_words(error)}; {_BUILD}") from error
    missing = [name for name in ("param_groups", "state", "step", "zero_grad") if not hasattr(made, name)]
    if missing:
        raise ConfigError(f"{where} gave {reprlib.repr(made)}, which has no {', '.join(missing)}; {_BUILD}")
    return typing.cast("torch.optim.Optimizer", made)


def full_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gather the full tensors of all names."""
    return {name: full_tensor(tensor) for name, tensor in tensors.items()}
