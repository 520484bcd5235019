"""Export a run folder as three ONNX graphs, with the names that Optimum gives them.

    encoder_model.onnx             source tokens to encoder states
    decoder_model.onnx             the first tokens, without a cache
    decoder_with_past_model.onnx   one token more, with the KV cache of those before

Shapes: B batch, S source length, T target tokens, P tokens before, D d_model, G heads of keys, K and U widths of keys
and values, V vocabulary.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from transduce.core.durable import whole_folder
from transduce.core.errors import needed_by
from transduce.exchange.exported_run import Capabilities, ExportedRun
from transduce.exchange.marian_config import GENERATION
from transduce.exchange.marian_export import generation_settings, write_json, write_tokenizers
from transduce.model.blocks import Activation, Residual
from transduce.model.contract import DecoderState, Memory
from transduce.model.encoder_decoder import Seq2Seq
from transduce.model.kv_cache import CrossKV, KVCache
from transduce.model.norms import Norm
from transduce.model.positions import Learned, Positions

ENCODER, DECODER, WITH_PAST = "encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx"
OPSET = 18
PLACES = 1024  # longest sequence, at least, where positions have no limit of their own
ONNX = Capabilities(
    "ONNX",
    get_args(Activation),
    get_args(Norm),
    get_args(Residual),
    get_args(Positions),
    grouped=True,
    any_attention=True,
)


class EncoderGraph(nn.Module):
    """The encoder graph: input_ids and attention_mask (B, S) to last_hidden_state (B, S, D)."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model.encode(input_ids, attention_mask.bool()).layers[-1]


class DecoderGraph(nn.Module):
    """The decoder graph without a cache: logits (B, T, V) and the KV caches of target and source.

    encoder_attention_mask (B, S), input_ids (B, T), encoder_hidden_states (B, S, D) to logits (B, T, V) and, for each
    layer, keys (B, G, T, K) and values (B, G, T, U) of the target and of the source (B, G, S, K or U).
    """

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, encoder_attention_mask: Tensor, input_ids: Tensor, encoder_hidden_states: Tensor) -> Any:
        state = self.model.start(Memory((encoder_hidden_states,), encoder_attention_mask.bool()))
        source: CrossKV = state.static
        logits, state = self.model.advance(input_ids, state)
        pairs = zip(state.cache, source.layers, strict=True)
        return logits, [tensor for target, its in pairs for tensor in (target.key, target.value, its.key, its.value)]


class DecoderWithPastGraph(nn.Module):
    """The decoder graph with a KV cache: one token (B, 1) after P tokens, with the caches that `DecoderGraph` gave."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, encoder_attention_mask: Tensor, input_ids: Tensor, past: list[Tensor]) -> Any:
        grown = tuple(KVCache(*past[first : first + 2]) for first in range(0, len(past), 4))
        source = tuple(KVCache(*past[first + 2 : first + 4]) for first in range(0, len(past), 4))
        mask = encoder_attention_mask.bool()[:, None, None, :]
        logits, state = self.model.advance(input_ids, DecoderState(CrossKV(source, mask), grown, past[0].size(2)))
        return logits, [tensor for cache in state.cache for tensor in (cache.key, cache.value)]


def export_onnx(trained: ExportedRun, output: Path) -> None:
    """Write the ONNX folder: graphs, tokenizers, and the settings of a search."""
    ONNX.check(trained.config.model)
    with needed_by("export to ONNX", "onnx"):
        import onnx  # noqa: F401  (torch imports both, later and with a worse error)
        import onnxscript  # noqa: F401
    places = _places(trained)
    with torch.no_grad(), whole_folder(output, WITH_PAST) as work:
        if places > PLACES:  # tables of positions grow on demand, and graphs do not
            long = torch.zeros(1, places, dtype=torch.int64)
            trained.model.advance(long, trained.model.start(trained.model.encode(long, long == 0)))
        _write_graphs(trained.model, trained.stacks[1].layers, places, work)
        write_tokenizers(trained, work)
        write_json(work / GENERATION, generation_settings(trained))


def _places(trained: ExportedRun) -> int:
    """The longest sequences: limited by learned positions, or by the tables of positions."""
    learned = [stack.positions.longest for stack in trained.stacks if isinstance(stack.positions, Learned)]
    return min([*learned, max(PLACES, trained.longest)])


def _write_graphs(model: Seq2Seq, layers: int, places: int, work: Path) -> None:
    mask, source, target = torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 3)
    memory = model.encode(source, mask.bool()).layers[-1]
    past = DecoderGraph(model)(mask, target.long(), memory)[1]
    batch, length, written, before = (
        torch.export.Dim("batch", min=1),
        torch.export.Dim("encoder_sequence_length", min=1, max=places),
        torch.export.Dim("decoder_sequence_length", min=2, max=places),  # the graph does for one token as well
        torch.export.Dim("past_decoder_sequence_length", min=1, max=places - 1),
    )
    read = {0: batch, 1: length}
    halves = [{0: batch, 2: before}] * 2 + [{0: batch, 2: length}] * 2
    target_only = [f"{layer}.decoder.{kind}" for layer in range(layers) for kind in ("key", "value")]
    both = [f"{n}.{side}.{kind}" for n in range(layers) for side in ("decoder", "encoder") for kind in ("key", "value")]
    _write(
        EncoderGraph(model),
        (source, mask),
        (read, read),
        ["input_ids", "attention_mask"],
        ["last_hidden_state"],
        work / ENCODER,
    )
    _write(
        DecoderGraph(model),
        (mask, target.long(), memory),
        (read, {0: batch, 1: written}, read),
        ["encoder_attention_mask", "input_ids", "encoder_hidden_states"],
        ["logits", *(f"present.{name}" for name in both)],
        work / DECODER,
    )
    _write(
        DecoderWithPastGraph(model),
        (mask, target[:, :1].long(), past),
        (read, {0: batch}, halves * layers),
        ["encoder_attention_mask", "input_ids", *(f"past_key_values.{name}" for name in both)],
        ["logits", *(f"present.{name}" for name in target_only)],
        work / WITH_PAST,
    )


def _write(
    module: nn.Module, inputs: Any, shapes: Any, read: Sequence[str], written: Sequence[str], path: Path
) -> None:
    with _quiet():
        program = torch.onnx.export(
            module.eval(),
            inputs,
            input_names=list(read),
            output_names=list(written),
            dynamic_shapes=shapes,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    program.save(str(path))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings of its own deprecations and of operators that we do not use."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
