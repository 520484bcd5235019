"""Export a trained model to another system, or import another system's model as a run folder. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from transduce.core.errors import ConfigError

System = Literal["marian", "ctranslate2", "onnx"]


def export(run: str | Path, output: str | Path, to: System) -> Path:
    """Export the model of a run folder to another system's format; raise with all reasons if it cannot run it.

    "marian": a folder for Hugging Face's MarianMTModel and MarianTokenizer. "ctranslate2": one for its Translator, with
    the sentencepiece models beside it. "onnx": encoder, decoder and decoder with past, named as Optimum names them.
    """
    from transduce.exchange.ctranslate2_export import export_ctranslate2
    from transduce.exchange.exported_run import ExportedRun
    from transduce.exchange.marian_export import export_marian
    from transduce.exchange.onnx_export import export_onnx

    writers = {"marian": export_marian, "ctranslate2": export_ctranslate2, "onnx": export_onnx}
    if to not in writers:
        raise ConfigError(f"to: expected {', '.join(get_args(System))}, got {to!r}")
    writers[to](ExportedRun.open(Path(run)), Path(output))
    return Path(output)
