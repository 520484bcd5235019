"""Figure 1 with live values: for each block of the diagram its code in this repository, and its tensors.

A trace of one sentence holds attention weights and the outputs of layers; what lies between (queries, keys, values, the
inner layer) is captured by forward hooks for one pass.
Shapes: S source tokens, T positions of the decoder, D d_model, V vocabulary.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import transduce
from transduce.core.errors import ConfigError
from transduce.data.batch import collate
from transduce.inspection.inspect import InspectOptions, opened
from transduce.inspection.inspect import inspect as inspect_text
from transduce.inspection.paper import FIGURE_1
from transduce.inspection.record import Inspection, packed
from transduce.inspection.tracing import Opened
from transduce.model.attention import MultiHeadAttention
from transduce.model.attention import attention as equation_1
from transduce.model.blocks import FeedForward, PostNormResidual
from transduce.model.contract import evaluating, teacher_forced_log_probs
from transduce.model.encoder_decoder import Embedding, EncoderDecoder
from transduce.model.positions import SinusoidalPositions
from transduce.model.transformer import DecoderLayer, EncoderLayer
from transduce.search.constraints import CancelToken
from transduce.text.tokenizer import Tokenizer
from transduce.translate.translator import Translator

WIDEST = 128  # columns of a tensor that are shown
ORDER = ("x", "PE", "Q", "K", "V", "inner", "output", "logits", "p")


@dataclass(frozen=True, eq=False)
class TensorView:
    """A tensor to display: names of its rows, statistics of the whole tensor, and the columns that a picture shows.

    `tokens` names the columns shown where they are entries of a vocabulary.
    """

    name: str
    shape: tuple[int, int]
    facts: Mapping[str, float]
    rows: tuple[str, ...]
    values: NDArray[np.float32]
    tokens: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, name: str, whole: NDArray[np.float32], rows: tuple[str, ...], columns: NDArray[np.int64],
        tokens: tuple[str, ...] = (),
    ) -> TensorView:  # fmt: skip
        """Take the given columns of a whole tensor (rows, columns), with the statistics of all of it."""
        mean = float(whole.mean(dtype=np.float64))
        squares = sum(float(((row.astype(np.float64) - mean) ** 2).sum()) for row in whole)  # row by row: it is large
        facts = {"least": whole.min(), "most": whole.max(), "mean": mean, "spread": math.sqrt(squares / whole.size)}
        count, width = whole.shape
        return cls(
            name, (count, width), {key: float(fact) for key, fact in facts.items()}, rows, whole[:, columns], tokens
        )

    def as_json(self) -> dict[str, Any]:
        """Statistics of the whole tensor, and the part shown as bytes from 0 at its minimum to 255 at its maximum."""
        least, most = self.facts["least"], self.facts["most"]
        scaled = (self.values - least) / max(most - least, 1e-9)
        return {
            "name": self.name,
            "shape": self.shape,
            "rows": self.rows,
            "columns": self.tokens or self.values.shape[1],
            "values": packed(scaled.astype(np.float32)),
            **{name: float(f"{value:.4g}") for name, value in self.facts.items()},
        }


@dataclass(frozen=True)
class Code:
    """Lines of this repository: the file, the first line, the text."""

    file: str
    line: int
    text: str


def code_of(thing: Any) -> Code:
    """The source of a class or a function."""
    path = Path(inspect.getsourcefile(thing) or "").resolve()
    lines, first = inspect.getsourcelines(thing)
    return Code(str(path.relative_to(Path(transduce.__file__).resolve().parents[1])), first, "".join(lines))


def codes(model: nn.Module | None = None) -> dict[str, tuple[Code, ...]]:
    """The code of every block: the paper's own choices, or those of a model."""
    position: Any = SinusoidalPositions
    residual: Any = PostNormResidual
    if model is not None and _blocks(model, EncoderLayer):
        position = type(model.encoder.positions)  # type: ignore[union-attr]
        residual = type(_blocks(model, EncoderLayer)[0].around_attention)
    made: dict[str, tuple[Any, ...]] = {
        "input": (Embedding,),
        "input-positions": (position,),
        "encoder-attention": (equation_1, MultiHeadAttention, EncoderLayer),
        "encoder-norm-1": (residual,),
        "encoder-feed-forward": (FeedForward,),
        "encoder-norm-2": (residual,),
        "output": (Embedding,),
        "output-positions": (position,),
        "decoder-attention": (equation_1, MultiHeadAttention, DecoderLayer),
        "decoder-norm-1": (residual,),
        "decoder-cross": (equation_1, DecoderLayer),
        "decoder-norm-2": (residual,),
        "decoder-feed-forward": (FeedForward,),
        "decoder-norm-3": (residual,),
        "linear": (EncoderDecoder.logits,),
        "softmax": (teacher_forced_log_probs,),
    }
    assert made.keys() == FIGURE_1.keys()
    return {name: tuple(code_of(thing) for thing in things) for name, things in made.items()}


def depth(engine: Opened) -> tuple[int, int]:
    """The number of encoder and decoder layers; 0 where a stack is no Transformer's."""
    return len(_blocks(engine.model, EncoderLayer)), len(_blocks(engine.model, DecoderLayer))


def alive(
    translator: Translator, text: str, to: str = "", layer: int = 0, stop: CancelToken | None = None
) -> dict[str, Any]:
    """Everything the learner's page shows of one sentence, as JSON: translation, and every block's code and tensors.

    Without tensors where the engine or the model has none that belong to the diagram.
    """
    seen = inspect_text(translator, text, to=to, looking=InspectOptions(top=1, branches=0, tree=False), stop=stop)
    engine = opened(translator.engine)
    found = (
        {} if engine is None or not seen.source_tokens else tensors(engine, seen, translator.tokenizers.target, layer)
    )
    sources = codes(None if engine is None else engine.model)
    layers = max(depth(engine)) if engine is not None and min(depth(engine)) else 0
    blocks = {
        name: {
            "code": [asdict(code) for code in sources[name]],
            "tensors": [tensor.as_json() for tensor in found.get(name, ())],
        }
        for name in FIGURE_1
    }
    sentence = {"text": text, "translation": seen.translation, "notes": seen.notes}
    return {**sentence, "layers": layers, "layer": layer, "blocks": blocks}


def tensors(engine: Opened, seen: Inspection, target: Tokenizer, layer: int) -> dict[str, tuple[TensorView, ...]]:
    """The tensors of every block for an inspected sentence, in one layer; empty for a model that is no Transformer."""
    model, encoder, decoder = engine.model, _blocks(engine.model, EncoderLayer), _blocks(engine.model, DecoderLayer)
    if not encoder or not decoder:
        return {}
    if not 0 <= layer < max(len(encoder), len(decoder)):
        raise ConfigError(f"layer: this model has layers 0 to {max(len(encoder), len(decoder)) - 1}, and not {layer}")
    batch = collate([seen.source_tokens[:-1]], [seen.tokens[:-1]], engine.source, engine.target).to(engine.device)
    low, high = min(layer, len(encoder) - 1), min(layer, len(decoder) - 1)
    with evaluating(model), torch.inference_mode(), _caught(_modules(encoder[low], decoder[high])) as caught:
        trace: dict[str, Tensor] = {}
        memory = model.encode(batch.source, batch.source_mask, trace)
        logits, _ = model.advance(batch.target[:, :-1], model.start(memory), trace, batch.target_mask)
        found = {
            "input/x": model.source_embedding(batch.source),
            "output/x": model.target_embedding(batch.target[:, :-1]),
            "linear/logits": logits,
        }
        for side, stack in (("input", model.encoder), ("output", model.decoder)):
            found[f"{side}-positions/PE"] = stack.positions.add(torch.zeros_like(found[f"{side}/x"]), 0)
    weights = {
        "encoder-attention": trace[f"encoder.{low}.self"],
        "decoder-attention": trace[f"decoder.{high}.self"],
        "decoder-cross": trace[f"decoder.{high}.cross"],
    }
    made = _arranged({**found, **caught}, weights, seen, target)
    return {**made, "softmax": (_shown("p", logits.float().softmax(-1), seen.read, target),)}


def _blocks(model: nn.Module, kind: type[nn.Module]) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, kind)]


def _modules(encoder: EncoderLayer, decoder: DecoderLayer) -> dict[str, nn.Module]:
    """The modules to hook, by `block/tensor`."""
    found: dict[str, nn.Module] = {}
    for name, attention in (
        ("encoder-attention", encoder.attention),
        ("decoder-attention", decoder.attention),
        ("decoder-cross", decoder.cross),
    ):
        maps = {"Q": attention.query, "K": attention.key, "V": attention.value, "output": attention.output}
        found |= {f"{name}/{part}": module for part, module in maps.items()}
    for side, block, norms in (("encoder", encoder, 2), ("decoder", decoder, 3)):
        around = [block.around_attention, block.around_feed_forward]
        if norms == 3:
            around.insert(1, cast("DecoderLayer", block).around_cross)
        found |= {f"{side}-norm-{number}/output": module for number, module in enumerate(around, start=1)}
        found[f"{side}-feed-forward/inner"] = cast("FeedForward", block.feed_forward).inner
        found[f"{side}-feed-forward/output"] = block.feed_forward
    return found


@contextmanager
def _caught(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """Capture the modules' outputs inside the block, in this thread: a server may run the model in others too."""
    found: dict[str, Tensor] = {}
    this_thread = threading.get_ident()

    def keep(name: str) -> Any:
        def hook(module: nn.Module, given: Any, output: Tensor) -> None:
            if threading.get_ident() == this_thread:
                found[name] = output

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _arranged(
    found: Mapping[str, Tensor], weights: Mapping[str, Tensor], seen: Inspection, target: Tokenizer
) -> dict[str, tuple[TensorView, ...]]:
    """Group tensors by block, the attention weights after queries, keys and values."""
    made: dict[str, list[TensorView]] = {name: [] for name in FIGURE_1}
    for name in sorted(found, key=lambda name: ORDER.index(name.partition("/")[2])):
        block, _, part = name.partition("/")
        rows = seen.source if _from_source(block, part) else seen.read
        made[block].append(_shown(part, found[name], rows, target))
    for block, heads in weights.items():
        rows = seen.source if block == "encoder-attention" else seen.read
        columns = seen.read if block == "decoder-attention" else seen.source
        for head, map_of_head in enumerate(heads[0].float().cpu().numpy()):
            every = np.arange(map_of_head.shape[1])
            made[block].insert(3 + head, TensorView.of(f"head {head}", map_of_head, rows, every, columns))
    return {name: tuple(parts) for name, parts in made.items()}


def _from_source(block: str, part: str) -> bool:
    return block.startswith(("input", "encoder")) or (block == "decoder-cross" and part in ("K", "V"))


def _shown(name: str, tensor: Tensor, rows: tuple[str, ...], target: Tokenizer) -> TensorView:
    """The first columns of a tensor (1, rows, columns); of a vocabulary those that are likely in some row."""
    values = tensor[0].float().cpu().numpy()
    if name in ("logits", "p"):
        few = math.ceil(WIDEST / 2 / len(values))
        best = np.unique([np.argsort(-row)[:few] for row in values])
        return TensorView.of(name, values, rows, best, tuple(target.pieces(best.tolist())))
    return TensorView.of(name, values, rows, np.arange(min(WIDEST, values.shape[1])))
