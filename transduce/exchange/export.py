"""Hand a trained model over to another system.

A trained model with all that an exporter asks of it.

What another system can compute, and every reason why a model of ours is not that.

`transduce convert`: a trained model as a folder for the native engine, which translates without torch.

    config.toml  tokenizer/  README.md  model.native  native.json

The folder may be the run's own: then it has weights for both engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from torch import Tensor

from transduce.core.config import kind_of
from transduce.core.durable import disk_errors, write_bytes, write_text
from transduce.core.errors import ConfigError, RunError
from transduce.core.untrusted import LARGEST_TOML, read_small
from transduce.engines.native.lowering import lower
from transduce.engines.native.weight_file import PackedTensor, write
from transduce.experiment import Config
from transduce.model.attention import Attention
from transduce.model.blocks import Activation
from transduce.model.encoder_decoder import Seq2Seq
from transduce.model.scores import ScaledDot, Softmax
from transduce.model.seq2seq import Model
from transduce.model.sources import Tokens
from transduce.model.transformer import StackConfig, Top, TransformerDecoder, TransformerEncoder
from transduce.text.tokenizer import Tokenizers
from transduce.training.run_folder import open_model
from transduce.translate.model_folder import CARD, CONFIG, MODEL, NATIVE, TOKENIZER, Converted, read_card, seal_of


@dataclass(frozen=True)
class ExportedRun:
    """What a run folder holds; `longest` source tokens were met in training."""

    config: Config
    tokenizers: Tokenizers
    model: Seq2Seq
    longest: int

    @classmethod
    def open(cls, folder: Path) -> ExportedRun:
        config, tokenizers, model, longest = open_model(folder, trust=False)
        return cls(config, tokenizers, cast("Seq2Seq", model.eval()), longest)

    @property
    def stacks(self) -> tuple[TransformerEncoder, TransformerDecoder]:
        """Both stacks of a model that was found to be a Transformer (refusal.py)."""
        model = self.config.model
        return cast("TransformerEncoder", model.encoder), cast("TransformerDecoder", model.decoder)


@dataclass(frozen=True)
class Able:
    """Kinds of parts that a system knows.

    `grouped` means that several heads may share keys and values, `any_attention` that scores, weights and widths of
    attention may be what they like.
    """

    system: str
    activations: Sequence[Activation]
    norms: Sequence[type[Any]]
    residuals: Sequence[type[Any]]
    positions: Sequence[type[Any]]
    grouped: bool = False
    any_attention: bool = False

    def check(self, model: Model, more: Sequence[str] = ()) -> None:
        """Refuse a model with parts that the system lacks, naming them all; `more` are reasons found elsewhere."""
        reasons = [*self._reasons(model), *more]
        if reasons:
            raise RunError(f"{self.system} cannot run this model: {'; '.join(reasons)}")

    def _reasons(self, model: Model) -> Iterator[str]:
        if not isinstance(model.source, Tokens):
            yield f"source is '{kind_of(type(model.source))}', expected tokens"
        for name, stack, plain in (
            ("encoder", model.encoder, TransformerEncoder),
            ("decoder", model.decoder, TransformerDecoder),
        ):
            if isinstance(stack, plain):
                yield from self._stack(name, stack)
            else:
                yield f"{name} is '{kind_of(type(stack))}', expected transformer"
        if isinstance(model.decoder, TransformerDecoder) and not isinstance(model.decoder.wiring, Top):
            yield f"decoder.wiring is '{kind_of(type(model.decoder.wiring))}', expected top"
        if isinstance(model.decoder, TransformerDecoder) and model.decoder.unnormed_past:
            yield "decoder.unnormed_past is true, expected false (import the Marian model with --as-trained)"

    def _stack(self, name: str, stack: StackConfig) -> Iterator[str]:
        if stack.activation not in self.activations:
            yield f"{name}.activation is '{stack.activation}', expected {' or '.join(self.activations)}"
        for part, known in (("norm", self.norms), ("residual", self.residuals), ("positions", self.positions)):
            kind = type(getattr(stack, part))
            if kind not in known:
                yield f"{name}.{part} is '{kind_of(kind)}', expected {' or '.join(map(kind_of, known))}"
        if stack.window:
            yield f"{name}.window is {stack.window}, expected 0"
        yield from self._attention(f"{name}.attention", stack.attention)

    def _attention(self, name: str, attention: Attention) -> Iterator[str]:
        if attention.key_heads not in (0, attention.heads) and not self.grouped:
            yield f"{name}.key_heads is {attention.key_heads}, expected as many as heads"
        if self.any_attention:
            return
        if attention.key_width:
            yield f"{name}.key_width is {attention.key_width}, expected d_model / heads"
        if attention.score != ScaledDot():
            yield f"{name}.score is '{kind_of(type(attention.score))}', expected scaled_dot"
        if attention.weights != Softmax():
            yield f"{name}.weights is '{kind_of(type(attention.weights))}', expected softmax"
        if attention.query_key_norm:
            yield f"{name}.query_key_norm is set"


System = Literal["marian", "ctranslate2", "onnx"]


def export(run: str | Path, output: str | Path, to: System) -> Path:
    """Write the model of a run folder as another system keeps it; refused, with all reasons, if it cannot run it.

    "marian": a folder for Hugging Face's MarianMTModel and MarianTokenizer. "ctranslate2": one for its Translator, with
    the sentencepiece models beside it. "onnx": encoder, decoder and decoder with past, named as Optimum names them.
    """
    from transduce.exchange.ctranslate2_export import export_ctranslate2
    from transduce.exchange.marian_export import export_marian
    from transduce.exchange.onnx_export import export_onnx

    writers = {"marian": export_marian, "ctranslate2": export_ctranslate2, "onnx": export_onnx}
    if to not in writers:
        raise ConfigError(f"to: expected {', '.join(get_args(System))}, got {to!r}")
    writers[to](ExportedRun.open(Path(run)), Path(output))
    return Path(output)


Quantize = Literal["int8", "none"]
_HEADING = "## Converted"


def convert(run: str | Path, output: str | Path, quantize: str = "int8", trust: bool = False) -> Path:
    """Write the model of a run folder to `output` for the native engine; gives the folder.

    `quantize`: "int8" stores weights as whole numbers with a scale for each output, a quarter of the size and several
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
    """Numbers that are none would make every translation empty, without a word."""
    broken = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if broken:
        raise RunError(
            f"{path}: {len(broken)} tensors hold values that are no numbers (NaN or infinite): {', '.join(broken[:3])}"
            f"{', ...' if len(broken) > 3 else ''}. Use a checkpoint from before that, or copy the model again"
        )


def _may_be_filled(folder: Path) -> bool:
    """An empty folder, or one that was converted before and holds no run."""
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
