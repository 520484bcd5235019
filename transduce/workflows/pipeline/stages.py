"""The kinds of stages: each a thin call of an existing function, returning how it ended ("finished", or a signal).

The runner uses of a stage: `name`; `products`, the files that later stages read, as patterns below its folder;
`free`, settings that change no result; `files`, text from outside that it reads; `facts`, its resolved settings;
`schema`, the type of its `settings` and what they are laid over; `may_continue`, whether work that was done with other
settings may be continued; `check`, which raises for errors that only this machine can reveal, before any stage runs;
and `run`, which resumes after a kill. Modules that need torch are imported where they are used.
"""

from __future__ import annotations

import signal
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from transduce.core import config as configs
from transduce.core.bounds import Bounds, check_bounds
from transduce.core.durable import remove
from transduce.core.errors import ConfigError, RunError
from transduce.data.corpus import MANIFEST
from transduce.data.formats.parallel import ParallelText
from transduce.data.prepare.run import Prepare, prepare
from transduce.search.settings import MOST_PATHS, require
from transduce.translate.model_folder import CONFIG, MODEL, NATIVE, NATIVE_FACTS
from transduce.workflows.gather.run import gather
from transduce.workflows.gather.settings import GATHERED, Gather, Gathered

FINISHED = "finished"
Settings = dict[str, Any]


BeamOption = Annotated[int, Bounds(0, MOST_PATHS, expected=f"a size from 0 (the model's own) to {MOST_PATHS:,}")]


@dataclass(frozen=True)
class Stage:
    """The base of all kinds of stages."""

    name: str
    products: ClassVar[tuple[str, ...]] = (MANIFEST,)
    free: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def schema(cls, table: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        """The type of `settings` in the table of such a stage, and the settings that they are laid over."""
        return Settings, {}

    def files(self) -> list[Path]:
        """Files from outside the pipeline that it reads."""
        return []

    def facts(self) -> Settings:
        """The resolved settings, beyond those written."""
        return {}

    def may_continue(self, output: Path) -> bool:
        """Whether the folder's content, made with other settings, is a beginning of the requested result."""
        return False

    def check(self) -> None:
        """Raise ConfigError for a device that does not exist here."""
        device = getattr(self, "device", "auto")
        if device not in ("auto", "cpu"):
            from transduce.engines.torch.engine import pick_device

            pick_device(device)

    def run(self, output: Path) -> str:
        """Run the stage, or resume it."""
        raise NotImplementedError


@dataclass(frozen=True)
class GatherStage(Stage):
    """Gather raw corpora into clean text; `settings` are those of `Gather`, but for its output."""

    kind: ClassVar[str] = "gather"
    products: ClassVar[tuple[str, ...]] = (GATHERED,)
    free: ClassVar[tuple[str, ...]] = ("settings.workers",)
    settings: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._config(Path("unused"))

    @classmethod
    def schema(cls, table: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        return Gather, {}

    def _config(self, output: Path) -> Gather:
        return configs.parse(Gather, {**self.settings, "output": str(output)}, "settings")

    def files(self) -> list[Path]:
        corpora = self._config(Path("unused")).corpora
        for corpus in corpora:
            corpus.text.check_files(f"settings.corpora '{corpus.name}'")
        texts = [Path(name) for corpus in corpora for names in corpus.text.files() for name in dict.fromkeys(names)]
        return texts + [Path(corpus.labels) for corpus in corpora if corpus.labels]

    def run(self, output: Path) -> str:
        if not (output / GATHERED).is_file():
            gather(self._config(output))
        return FINISHED


@dataclass(frozen=True)
class PrepareStage(Stage):
    """Prepare a corpus of tokens; `text` is a gathered folder, `settings` are those of `transduce prepare`."""

    kind: ClassVar[str] = "prepare"
    free: ClassVar[tuple[str, ...]] = ("settings.workers",)
    text: str = ""
    settings: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.text) == ("train" in self.settings):
            raise ConfigError("text: expected either the folder of a gather stage, or settings.train")
        self._parsed({"train": [{"source": "unused", "target": "unused"}]}, Path("unused"))

    @classmethod
    def schema(cls, table: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        return Prepare, {}

    def _parsed(self, text: Mapping[str, Any], output: Path) -> Prepare:
        return configs.parse(Prepare, {**text, **self.settings, "output": str(output)}, "settings")

    def files(self) -> list[Path]:
        if self.text:
            return []
        splits = self._parsed({}, Path("unused")).splits
        for split, some in splits.items():
            for number, text in enumerate(some):
                text.check_files(f"settings.{split}[{number}]" if len(some) > 1 else f"settings.{split}")
        texts: list[ParallelText] = [text for some in splits.values() for text in some]
        return [Path(name) for text in texts for names in text.files() for name in dict.fromkeys(names)]

    def run(self, output: Path) -> str:
        if not (output / MANIFEST).is_file():
            text = Gathered.open(self.text).preparation() if self.text else {}
            # Tests are measured by stages of their own, from the text: a corpus without them is smaller.
            prepare(self._parsed({key: text[key] for key in ("train", "valid") if text.get(key)}, output))
        return FINISHED


@dataclass(frozen=True)
class TrainStage(Stage):
    """Train a model; `config` is a preset or file, `settings` are laid over it."""

    kind: ClassVar[str] = "train"
    products: ClassVar[tuple[str, ...]] = (MODEL, CONFIG, "tokenizer/*")
    config: str = "base"
    settings: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._config()

    @classmethod
    def schema(cls, table: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        from transduce.experiment import Config

        return Config, configs.layers(Config, table.get("config", cls.config)).tree

    def _config(self) -> Any:
        from transduce.experiment import Config

        try:
            merged = configs.layers(Config, self.config)
        except ConfigError as error:
            raise ConfigError(f"config: {error}") from None
        configs.merge(Config, merged, self.settings, origin="settings")
        try:
            return configs.resolve(Config, merged)
        except ConfigError as error:
            text = str(error)
            ours = text.removeprefix("settings: ")
            raise ConfigError(f"settings: {text}" if ours == text else f"settings.{ours}") from None

    def facts(self) -> Settings:
        from transduce.training.run_folder import FREE

        flat = configs.flatten(self._config())
        lasting = ("training.steps", "training.minutes", "training.average", "search")
        return {k: v for k, v in flat.items() if not k.startswith(FREE) or k.startswith(lasting)}

    def check(self) -> None:
        from transduce.engines.torch.engine import pick_device

        try:
            pick_device(self._config().training.device)
        except ConfigError as error:
            raise ConfigError(f"settings.training.{error}") from None

    def may_continue(self, output: Path) -> bool:
        from transduce.training.run_folder import check_same

        try:
            check_same(output, self._config())
        except RunError:
            return False
        return True

    def run(self, output: Path) -> str:
        from transduce.training.loop import train

        reason = train(self._config(), output).reason
        return reason if reason in signal.Signals.__members__ else FINISHED


@dataclass(frozen=True)
class DistillStage(Stage):
    """Distil a corpus whose training targets are a model's translations; settings as for `transduce distill`."""

    kind: ClassVar[str] = "distill"
    free: ClassVar[tuple[str, ...]] = ("device", "workers")
    model: str = ""
    corpus: str = ""
    beam: BeamOption = 5
    best_of: int = 1
    keep_original: bool = False
    device: str = "auto"
    workers: Annotated[int, Bounds(0, expected="0 or more processes")] = 0
    precision: Literal["fp32", "bf16"] = "fp32"  # of the teacher's weights

    def __post_init__(self) -> None:
        check_bounds(self)
        most = self.beam or MOST_PATHS
        require(1 <= self.best_of <= most, "best_of", self.best_of, f"1 to {most:,} of what the beam finds")

    def run(self, output: Path) -> str:
        from transduce.workflows.distill import distill

        made = distill(
            self.model,
            output,
            self.corpus,
            beam=self.beam,
            best_of=self.best_of,
            keep_original=self.keep_original,
            device=self.device,
            workers=self.workers,
            precision=self.precision,
        )
        return made.reason


@dataclass(frozen=True)
class ConvertStage(Stage):
    """Convert a trained model for the native engine; settings as for `transduce convert`."""

    kind: ClassVar[str] = "convert"
    products: ClassVar[tuple[str, ...]] = (NATIVE, NATIVE_FACTS, CONFIG, "tokenizer/*")
    model: str = ""
    quantize: Literal["int8", "none"] = "int8"

    def run(self, output: Path) -> str:
        from transduce.exchange.convert import convert

        if output.exists():
            remove(output)  # of a conversion that was killed
        convert(self.model, output, self.quantize)
        return FINISHED


@dataclass(frozen=True)
class EvaluateStage(Stage):
    """Evaluate every direction of gathered text (evaluate.py): BLEU, chrF, counts of faults, and confidence."""

    kind: ClassVar[str] = "evaluate"
    products: ClassVar[tuple[str, ...]] = ("results.json",)
    free: ClassVar[tuple[str, ...]] = ("device",)
    model: str = ""
    text: str = ""
    # of each direction at most; 0: all
    sentences: Annotated[int, Bounds(0, expected="0 (all) or more of each direction")] = 0
    beam: BeamOption = 0  # 0: the model's own search
    odd: bool = True  # whether odd inputs are tried too
    # fit confidence on so many test sentences of each direction; 0: do not
    confidence: Annotated[int, Bounds(0, expected="0 (no confidence) or more of each direction")] = 0
    engine: Literal["auto", "torch", "native"] = "auto"
    device: str = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"  # with torch

    def __post_init__(self) -> None:
        check_bounds(self)

    def run(self, output: Path) -> str:
        from transduce.workflows.pipeline.evaluate import Measuring

        how = self.engine, self.device, self.precision
        Measuring(self.model, self.text, self.sentences, self.beam, *how, self.confidence).write(output, self.odd)
        return FINISHED


@dataclass(frozen=True)
class CardStage(Stage):
    """Assemble the folder to give away (evaluate.py): a model, its card, its scores, and its attributions."""

    kind: ClassVar[str] = "card"
    products: ClassVar[tuple[str, ...]] = ("README.md",)
    model: str = ""
    text: str = ""  # a gathered folder, for the attributions
    scores: tuple[str, ...] = ()  # folders of evaluate stages; the last is of this model
    title: str = "A model"
    license: str = ""
    about: str = ""  # what it is, in a paragraph
    limits: str = ""  # what it is not good for
    made: str = ""  # how it was made
    # refuse a larger folder; 0: any
    largest_mib: Annotated[float, Bounds(0, expected="MiB above 0, or 0 for any size")] = 0.0

    def __post_init__(self) -> None:
        check_bounds(self)

    def run(self, output: Path) -> str:
        from transduce.workflows.pipeline.evaluate import Shipping

        shipping = Shipping(
            self.model, self.text, self.scores, self.title, self.license, self.about, self.limits, self.made
        )
        shipping.write(output, self.largest_mib)
        return FINISHED


StageChoice = GatherStage | PrepareStage | TrainStage | DistillStage | ConvertStage | EvaluateStage | CardStage


def stage_class(kind: Any) -> type[Stage]:
    """The class of a kind; `Stage` itself for an unknown kind."""
    return next((cls for cls in typing.get_args(StageChoice) if cls.kind == kind), Stage)
