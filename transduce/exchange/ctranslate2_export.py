"""Export a run folder to CTranslate2's format, by its own specification of Transformers.

Its translators read and write pieces, not text: source.spm and target.spm, which make them, lie beside the model. It
appends the end symbol of a source itself. Shapes: D d_model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from transduce.core.durable import whole_folder
from transduce.core.errors import needed_by
from transduce.exchange.exported_run import Capabilities, ExportedRun
from transduce.exchange.marian_config import SOURCE_PIECES, TARGET_PIECES
from transduce.exchange.marian_import import SILENT
from transduce.model.blocks import GATED, PostNorm, PreNorm
from transduce.model.norms import LayerNorm, RMSNorm
from transduce.model.positions import Learned, Rotary, Sinusoidal, Unordered
from transduce.model.transformer import StackConfig

if TYPE_CHECKING:
    from ctranslate2.specs import TransformerSpec

CTRANSLATE2 = Capabilities(
    "CTranslate2",
    ("relu", "gelu", "silu", "swiglu", "geglu"),
    (LayerNorm, RMSNorm),
    (PostNorm, PreNorm),
    (Sinusoidal, Learned, Rotary, Unordered),
    grouped=True,
)
PLACES = 2048  # length of the table of positions, which cannot grow there
MODEL = "model.bin"
_EPSILON = {LayerNorm: 1e-5, RMSNorm: 1e-6}


def export_ctranslate2(trained: ExportedRun, output: Path) -> None:
    """Write the CTranslate2 folder."""
    CTRANSLATE2.check(trained.config.model, _more(trained))
    with needed_by("export to CTranslate2", "ctranslate2"):
        spec = _spec(trained)
    source, target = trained.tokenizers.source, trained.tokenizers.target
    spec.register_source_vocabulary(source.pieces(range(source.size)))
    spec.register_target_vocabulary(target.pieces(range(target.size)))
    unknown, end, start = target.pieces([target.symbols.unk, target.symbols.eos, target.symbols.bos])
    spec.config.unk_token, spec.config.eos_token = unknown, end
    spec.config.bos_token = spec.config.decoder_start_token = start
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = _EPSILON[type(trained.stacks[0].norm)]
    spec.validate()
    spec.optimize()
    with whole_folder(output, MODEL) as work:
        spec.save(str(work))
        (work / SOURCE_PIECES).write_bytes(source.model)
        (work / TARGET_PIECES).write_bytes(target.model)


def _more(trained: ExportedRun) -> list[str]:
    """Reasons against an export: CTranslate2 has one epsilon of norms and one name of each symbol for both sides."""
    model, tokenizers = trained.config.model, trained.tokenizers
    norms = [type(getattr(stack, "norm", None)) for stack in (model.encoder, model.decoder)]
    reasons = [] if norms[0] is norms[1] else ["encoder and decoder have different norms"]
    sides = tokenizers.source, tokenizers.target
    ends = [side.pieces([side.symbols.eos, side.symbols.unk]) for side in sides]
    if ends[0] != ends[1]:
        reasons.append("end and unknown have other names in the source's vocabulary than in the target's")
    return reasons


def _spec(trained: ExportedRun) -> TransformerSpec:
    from ctranslate2.specs import TransformerDecoderSpec, TransformerEncoderSpec, TransformerSpec

    encoder, decoder = trained.stacks
    spec = TransformerSpec(
        TransformerEncoderSpec(encoder.layers, encoder.attention.heads, **_kind(encoder)),
        TransformerDecoderSpec(decoder.layers, decoder.attention.heads, **_kind(decoder)),
    )
    model: Any = trained.model
    spec.encoder.embeddings[0].weight = _array(model.source_embedding.weight)
    spec.decoder.embeddings.weight = _array(model.target_embedding.weight)
    spec.decoder.projection.weight = _array(model.output_embedding.weight)
    spec.decoder.projection.bias = _array(_bias(trained))
    for stack_spec, stack, config in ((spec.encoder, model.encoder, encoder), (spec.decoder, model.decoder, decoder)):
        if not isinstance(config.positions, Rotary):
            stack_spec.position_encodings.encodings = _array(_table(stack.positions, config, trained))
        if isinstance(config.residual, PreNorm):
            _set_norm(stack_spec.layer_norm, stack.final)
        for layer_spec, layer in zip(stack_spec.layer, stack.layers, strict=True):
            _set_layer(layer_spec, layer)
    return spec


def _kind(stack: StackConfig) -> dict[str, Any]:
    from ctranslate2.specs import Activation

    plain = {"swiglu": "silu", "geglu": "gelu"}.get(str(stack.activation), str(stack.activation))
    rotary = {"rotary_dim": 0, "rotary_base": stack.positions.base} if isinstance(stack.positions, Rotary) else {}
    shared = {"num_heads_kv": stack.attention.key_heads} if stack.attention.key_heads else {}
    return {
        "pre_norm": isinstance(stack.residual, PreNorm),
        "activation": {"relu": Activation.RELU, "gelu": Activation.GELU, "silu": Activation.SWISH}[plain],
        "ffn_glu": stack.activation in GATED,
        "rms_norm": isinstance(stack.norm, RMSNorm),
        **shared,
        **rotary,  # of pairs of neighbours, as ours
    }


def _table(positions: Any, config: StackConfig, trained: ExportedRun) -> Tensor:
    """The position vectors that a scheme adds (N, D)."""
    places = config.positions.longest if isinstance(config.positions, Learned) else PLACES
    table: Tensor = positions.add(torch.zeros(1, places, trained.config.model.d_model), 0)
    return table[0]


def _bias(trained: ExportedRun) -> Tensor:
    """The bias of the logits; forbidden symbols get a very low one, since CTranslate2's search does not forbid them."""
    learned, symbols = trained.model.output_bias, trained.tokenizers.target.symbols
    bias = torch.zeros(trained.tokenizers.target.size) if learned is None else learned.detach().clone()
    bias[list(symbols.never)] = SILENT
    return bias


def _set_layer(spec: Any, layer: Any) -> None:
    _set_norm(spec.self_attention.layer_norm, layer.around_attention.norm)
    _set_linear(spec.self_attention.linear[0], layer.attention.query, layer.attention.key, layer.attention.value)
    _set_linear(spec.self_attention.linear[1], layer.attention.output)
    if hasattr(spec, "attention"):
        _set_norm(spec.attention.layer_norm, layer.around_cross.norm)
        _set_linear(spec.attention.linear[0], layer.cross.query)
        _set_linear(spec.attention.linear[1], layer.cross.key, layer.cross.value)
        _set_linear(spec.attention.linear[2], layer.cross.output)
    _set_norm(spec.ffn.layer_norm, layer.around_feed_forward.norm)
    _set_linear(spec.ffn.linear_0, layer.feed_forward.inner)
    if layer.feed_forward.gate is not None:
        _set_linear(spec.ffn.linear_0_noact, layer.feed_forward.gate)
    _set_linear(spec.ffn.linear_1, layer.feed_forward.outer)


def _set_linear(spec: Any, *maps: nn.Linear) -> None:
    """Concatenate linear maps of one input."""
    spec.weight = _array(torch.cat([linear.weight for linear in maps]))
    spec.bias = _array(torch.cat([linear.bias for linear in maps]))


def _set_norm(spec: Any, norm: Any) -> None:
    spec.gamma = _array(norm.weight)
    if getattr(norm, "bias", None) is not None:
        spec.beta = _array(norm.bias)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().contiguous().numpy()
