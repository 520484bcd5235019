"""Convert a trained model for the native engine, which translates without torch (`transduce convert`).

    config.toml  tokenizer/  README.md  model.native  native.json

The folder may be the run's own: then it has weights for both engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from torch import Tensor

from transduce.core.durable import disk_errors, write_bytes, write_text
from transduce.core.errors import ConfigError, RunError
from transduce.core.untrusted import LARGEST_TOML, read_small
from transduce.engines.native.lowering import lower
from transduce.engines.native.weight_file import PackedTensor, write
from transduce.text.tokenizer import Tokenizers
from transduce.training.run_folder import open_model
from transduce.translate.model_folder import CARD, CONFIG, MODEL, NATIVE, TOKENIZER, Converted, read_card, seal_of

Quantize = Literal["int8", "none"]
_HEADING = "## Converted"


def convert(run: str | Path, output: str | Path, quantize: str = "int8", trust: bool = False) -> Path:
    """Write the model of a run folder to `output` for the native engine; return the folder.

    `quantize`: "int8" stores weights as integers with a scale for each output, a quarter of the size and several
    times as fast; "none" keeps them as they are. `trust=True` lets the config import classes of the user's own.
    """
    run, output = Path(run), Path(output)
    if quantize not in get_args(Quantize):
        raise ConfigError(f"quantize: expected int8 or none, got {quantize!r}")
    in_place = output.exists() and output.resolve() == run.resolve()
    if not in_place and output.exists() and not _may_be_filled(output):
        raise RunError(f"{output}: is there already and is no converted model; choose a new folder, or empty this one")
    config, tokenizers, model, longest = open_model(run, trust)
    _check_finite(model.state_dict(), run / MODEL)
    tensors = lower(config.model, model, quantize == "int8")
    needed = sum(len(tensor.data) for tensor in tensors.values())
    with disk_errors(output, "writing the converted model", needed):
        output.mkdir(parents=True, exist_ok=True)
        if not in_place:
            _copy_the_rest(run, output, tokenizers, tensors, quantize)
        write(output / NATIVE, tensors)
        Converted(tokenizers.digest(), seal_of(run / MODEL), longest, quantize).write(output)
    return output


def _check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise RunError for NaN or infinity, which would make every translation empty, without a word."""
    broken = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if broken:
        raise RunError(
            f"{path}: {len(broken)} tensors hold values that are no numbers (NaN or infinite): {', '.join(broken[:3])}"
            f"{', ...' if len(broken) > 3 else ''}. Use a checkpoint from before that, or copy the model again"
        )


def _may_be_filled(folder: Path) -> bool:
    """Whether a folder is empty, or was converted before and holds no run."""
    converted = (folder / NATIVE).is_file() and not (folder / MODEL).exists()
    return folder.is_dir() and (converted or not any(folder.iterdir()))


def _copy_the_rest(
    run: Path, output: Path, tokenizers: Tokenizers, tensors: dict[str, PackedTensor], quantize: str
) -> None:
    write_bytes(output / CONFIG, read_small(run / CONFIG, LARGEST_TOML))
    tokenizers.save(output / TOKENIZER)
    text = read_card(run) or f"# {run.resolve().name}\n"
    stored = "int8, a scale for each output" if quantize == "int8" else "32-bit floats, as they were trained"
    facts = f"From `{run.resolve().name}` for the native engine. Weights: {stored}; {len(tensors)} tensors."
    write_text(output / CARD, f"{text.partition(_HEADING)[0].rstrip()}\n\n{_HEADING}\n\n{facts}\n")
