"""transduce: learn to turn one sequence into another with the Transformer of "Attention Is All You Need".

    import transduce
    translator = transduce.load()  # the model that comes along, or the folder of another
    translator("Guten Morgen", to="en")

Names are fetched when first used, so that `import transduce` is quick and needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transduce import config as config
    from transduce import lab as lab
    from transduce.comparison.compare import compare as compare
    from transduce.conversion import convert as convert
    from transduce.data.batch import Batch as Batch
    from transduce.distillation import distill as distill
    from transduce.errors import ConfigError as ConfigError
    from transduce.errors import UserError as UserError
    from transduce.exchange.exporting import export as export
    from transduce.exchange.marian_import import import_model as import_model
    from transduce.experiment import Config as Config
    from transduce.inspection.inspecting import inspect as inspect
    from transduce.loading import load as load
    from transduce.model.contract import DecoderState as DecoderState
    from transduce.model.contract import Memory as Memory
    from transduce.objectives.base import Loss as Loss
    from transduce.pipelines.run import pipeline as pipeline
    from transduce.search.hypothesis import Hypothesis as Hypothesis
    from transduce.training.loop import train as train
    from transduce.translation import Translation as Translation
    from transduce.translator import Translator as Translator

__version__ = "0.1.0"

_HOMES = {
    "Batch": "transduce.data.batch",
    "Config": "transduce.experiment",
    "ConfigError": "transduce.errors",
    "DecoderState": "transduce.model.contract",
    "Hypothesis": "transduce.search.hypothesis",
    "Loss": "transduce.objectives.base",
    "Memory": "transduce.model.contract",
    "Translation": "transduce.translation",
    "Translator": "transduce.translator",
    "UserError": "transduce.errors",
    "compare": "transduce.comparison.compare",
    "convert": "transduce.conversion",
    "distill": "transduce.distillation",
    "export": "transduce.exchange.exporting",
    "import_model": "transduce.exchange.marian_import",
    "inspect": "transduce.inspection.inspecting",
    "load": "transduce.loading",
    "pipeline": "transduce.pipelines.run",
    "train": "transduce.training.loop",
}
__all__ = sorted(_HOMES)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in ("config", "lab"):  # a module and a package, which brings torch
        return importlib.import_module(f"transduce.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'transduce' has no attribute {name!r}")
    from transduce.extras import needed_by

    with needed_by(f"transduce.{name}"):
        return getattr(importlib.import_module(_HOMES[name]), name)
