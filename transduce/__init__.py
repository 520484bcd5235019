"""transduce: learn to turn one sequence into another with the Transformer of "Attention Is All You Need".

    import transduce

    translator = transduce.load()  # the shipped model, or the folder of another
    translator("Guten Morgen", to="en")

Names are imported when first used, so that `import transduce` is quick and needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transduce import lab as lab
    from transduce.core import config as config
    from transduce.core.errors import ConfigError as ConfigError
    from transduce.core.errors import UserError as UserError
    from transduce.data.batch import Batch as Batch
    from transduce.engines import Translation as Translation
    from transduce.exchange import export as export
    from transduce.exchange.convert import convert as convert
    from transduce.exchange.marian_import import import_model as import_model
    from transduce.experiment import Config as Config
    from transduce.inspection.inspect import inspect as inspect
    from transduce.model.contract import DecoderState as DecoderState
    from transduce.model.contract import Memory as Memory
    from transduce.objectives import Loss as Loss
    from transduce.search import Hypothesis as Hypothesis
    from transduce.text.terms import Glossary as Glossary
    from transduce.training.loop import train as train
    from transduce.translate.loading import load as load
    from transduce.translate.translator import Translator as Translator
    from transduce.workflows.compare.run import compare as compare
    from transduce.workflows.distill import distill as distill
    from transduce.workflows.pipeline.run import pipeline as pipeline

__version__ = "0.1.0"

_HOMES = {
    "Batch": "transduce.data.batch",
    "Config": "transduce.experiment",
    "ConfigError": "transduce.core.errors",
    "DecoderState": "transduce.model.contract",
    "Glossary": "transduce.text.terms",
    "Hypothesis": "transduce.search",
    "Loss": "transduce.objectives",
    "Memory": "transduce.model.contract",
    "Translation": "transduce.engines",
    "Translator": "transduce.translate.translator",
    "UserError": "transduce.core.errors",
    "compare": "transduce.workflows.compare.run",
    "convert": "transduce.exchange.convert",
    "distill": "transduce.workflows.distill",
    "export": "transduce.exchange",
    "import_model": "transduce.exchange.marian_import",
    "inspect": "transduce.inspection.inspect",
    "load": "transduce.translate.loading",
    "pipeline": "transduce.workflows.pipeline.run",
    "train": "transduce.training.loop",
}
__all__ = sorted(_HOMES)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in ("config", "lab"):  # a module and a package, which brings torch
        return importlib.import_module("transduce.core.config" if name == "config" else "transduce.lab")
    if name not in _HOMES:
        raise AttributeError(f"module 'transduce' has no attribute {name!r}")
    from transduce.core.errors import needed_by

    with needed_by(f"transduce.{name}"):
        return getattr(importlib.import_module(_HOMES[name]), name)
