"""Open a model to look inside: with torch where its weights and torch are here, else as it can be."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from transduce.loading import load
from transduce.model_folder import MODEL
from transduce.translator import Translator


def open_to_inspect(folder: Path, device: str = "auto", trust: bool = False, engine: str = "auto") -> Translator:
    """`engine` "auto" is torch even for a converted model, if the folder has the weights that torch reads."""
    has_weights = (folder / MODEL).is_file() and importlib.util.find_spec("torch") is not None
    return load(folder, device, trust, engine="torch" if engine == "auto" and has_weights else engine)
