"""Open a trained model: `transduce.load("runs/demo")("Guten Morgen")`."""

from __future__ import annotations

from pathlib import Path

from transduce.translator import Translator


def load(folder: str | Path, device: str = "auto", trust: bool = False) -> Translator:
    """The translator in a run folder.

    `device`: "auto", "cpu", "cuda" or "cuda:1". `trust=True` lets the folder's config import classes of the user's own.
    """
    from transduce.engines.torch_engine import TorchEngine, pick_device  # torch comes with it: only now
    from transduce.training.run_folder import open_model

    place = pick_device(device)
    config, tokenizers, model, longest = open_model(Path(folder), trust)
    engine = TorchEngine(model.to(place), tokenizers.source.symbols, tokenizers.target.symbols, place)
    return Translator(engine, tokenizers, config.search, longest)
