"""Marian's own model.npz: its arrays under Hugging Face's names and shapes, its settings as those of config.json.

    model.npz  decoder.yml  *vocab.yml (or *src.vocab.yml and *trg.vocab.yml)  source.spm  target.spm

The settings lie in the archive itself, as YAML in bytes. Matrices are (in, out) there and (out, in) here; Marian has no
padding, and starts from a zero vector: a row of zeros is added, which starts and is never written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.errors import RunError
from transduce.exchange.foreign import read_archive, read_text, read_yaml
from transduce.exchange.marian_config import MarianSettings
from transduce.exchange.marian_layout import BIAS, SHARED, SOURCE, TARGET

DECODER, SETTINGS, LOGITS_BIAS = "decoder.yml", "special:model.yml", "decoder_ff_logit_out_b"
PADDING = "<pad>"
# With any other value it is another model; YAML's words are words here.
_USUAL = {
    "type": "transformer",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-ffn-depth": "2",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-no-projection": "false",
    "transformer-train-position-embeddings": "false",
    "layer-normalization": "false",
    "right-left": "false",
    "lemma-dim-emb": "0",
    "ulr-dim-emb": "0",
}


@dataclass(frozen=True)
class Archive:
    """What was found: settings as in config.json, tensors by Hugging Face's names, each side's numbers of pieces."""

    settings: MarianSettings
    tensors: dict[str, Tensor]
    vocabularies: tuple[tuple[Path, dict[str, Any]], ...]


def read_npz(path: Path) -> Archive:
    """The model in an .npz file, and in the YAML files beside it."""
    arrays = read_archive(path)
    if SETTINGS not in arrays:
        raise RunError(f"{path}: has no '{SETTINGS}', which is in every model that Marian saved; found {_few(arrays)}")
    text = arrays.pop(SETTINGS).astype(np.uint8).tobytes().decode("utf-8", "replace").rstrip("\0")
    facts = read_yaml(text, path)
    reasons = [
        f"{name} is {facts[name]!r}, expected {usual!r}"
        for name, usual in _USUAL.items()
        if facts.get(name, usual) != usual
    ]
    if reasons:
        raise RunError(f"{path}: this is no Marian model that we know: {'; '.join(reasons)}")
    shared = _holds(facts, "tied-embeddings-all") or _holds(facts, "tied-embeddings-src")
    tensors = _tensors(path, arrays, shared)
    vocabularies = _vocabularies(path, shared)
    numbers = vocabularies[0][1]
    size = len(tensors[SHARED if shared else SOURCE])
    for where, pieces in vocabularies:
        if "</s>" not in pieces or pieces["</s>"] != numbers["</s>"]:
            raise RunError(f"{where}: has no piece '</s>', or another number for it than the other side's")
        pieces[PADDING] = size - 1
    return Archive(MarianSettings(path, _settings(path, facts, size, numbers["</s>"], shared)), tensors, vocabularies)


def _settings(path: Path, facts: dict[str, Any], size: int, end: int, shared: bool) -> dict[str, Any]:
    """What Hugging Face's config.json says of such a model."""
    decoder = path.parent / DECODER
    searching = read_yaml(read_text(decoder), decoder) if decoder.is_file() else {}
    layers = {"encoder_layers": "enc-depth", "decoder_layers": "dec-depth"}
    heads = {f"{side}_attention_heads": "transformer-heads" for side in ("encoder", "decoder")}
    widths = {f"{side}_ffn_dim": "transformer-dim-ffn" for side in ("encoder", "decoder")}
    names = {"d_model": "dim-emb", "max_position_embeddings": "dim-emb", **layers, **heads, **widths}
    return {
        **{theirs: _number(path, facts, name) for theirs, name in names.items()},
        "activation_function": str(facts.get("transformer-ffn-activation", "swish")),
        "vocab_size": size,
        "decoder_vocab_size": size,
        "share_encoder_decoder_embeddings": shared,
        "scale_embedding": True,
        "pad_token_id": size - 1,
        "decoder_start_token_id": size - 1,
        "eos_token_id": end,
        "num_beams": _number(decoder, searching, "beam-size", 1),
        "length_penalty": float(_number(decoder, searching, "normalize", 0)),
    }


def _tensors(path: Path, arrays: dict[str, NDArray[Any]], shared: bool) -> dict[str, Tensor]:
    """Under Hugging Face's names; what has none is refused, for the model would say something else without it."""
    embeddings = {"Wemb": SHARED} if shared else {"encoder_Wemb": SOURCE, "decoder_Wemb": TARGET}
    missing = sorted(embeddings.keys() - arrays.keys())
    unknown = [name for name in arrays if name not in embeddings and name != LOGITS_BIAS and not _theirs(name)]
    broken = [name for name, array in arrays.items() if array.dtype.kind != "f" or array.ndim != 2]
    if missing or unknown or broken:
        raise RunError(
            f"{path}: the arrays are not those of a Marian Transformer with tied embeddings and computed positions:"
            f" missing {_few(missing)}, unknown {_few(unknown)}, not matrices of floats {_few(broken)}"
        )
    rows = {len(arrays[name]) for name in embeddings}
    bias = arrays.get(LOGITS_BIAS, np.zeros((1, max(rows))))
    if len(rows) > 1 or bias.size not in rows:
        raise RunError(
            f"{path}: has vocabularies of {' and '.join(map(str, sorted(rows)))} pieces and {bias.size} biases of the"
            " output; only vocabularies of one size can be imported"
        )
    found = {BIAS: _tensor(np.append(bias, 0)[None])}
    for name, theirs in embeddings.items():
        found[theirs] = _tensor(np.pad(arrays[name], ((0, 1), (0, 0))))
    for name, array in arrays.items():
        if theirs := _theirs(name):
            found[theirs] = _tensor(
                array.T if theirs.endswith("weight") and "norm" not in theirs else array.reshape(-1)
            )
    return found


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def _theirs(name: str) -> str:
    """Hugging Face's name for `encoder_l1_self_Wq` and its like; nothing for what is of no layer."""
    side, _, rest = name.partition("_l")
    number, _, part = rest.partition("_")
    if side not in ("encoder", "decoder") or not number.isdecimal() or number.startswith("0"):
        return ""
    found = _PARTS.get(part, "")
    if not found or (side == "encoder" and found.startswith("encoder_attn")):
        return ""
    return f"model.{side}.layers.{int(number) - 1}.{found}"


def _parts() -> Iterator[tuple[str, str]]:
    for own, theirs in (("self", "self_attn"), ("context", "encoder_attn")):
        for letter, name in zip("qkvo", ("q_proj", "k_proj", "v_proj", "out_proj"), strict=True):
            yield f"{own}_W{letter}", f"{theirs}.{name}.weight"
            yield f"{own}_b{letter}", f"{theirs}.{name}.bias"
        yield f"{own}_Wo_ln_scale", f"{theirs}_layer_norm.weight"
        yield f"{own}_Wo_ln_bias", f"{theirs}_layer_norm.bias"
    for number in "12":
        yield f"ffn_W{number}", f"fc{number}.weight"
        yield f"ffn_b{number}", f"fc{number}.bias"
    yield "ffn_ffn_ln_scale", "final_layer_norm.weight"
    yield "ffn_ffn_ln_bias", "final_layer_norm.bias"


_PARTS = dict(_parts())


def _vocabularies(path: Path, shared: bool) -> tuple[tuple[Path, dict[str, Any]], ...]:
    """The file of each side, or the one for both, with the number of each piece."""
    found = []
    for pattern in ("*vocab.yml",) if shared else ("*src.vocab.yml", "*trg.vocab.yml"):
        files = sorted(path.parent.glob(pattern))
        if len(files) != 1:
            raise RunError(
                f"{path.parent}: has {len(files)} files {pattern} beside {path.name}; expected one, with the number of"
                " each piece. Copy the model again, whole"
            )
        numbers = read_yaml(read_text(files[0]), files[0])
        found.append((files[0], {piece: _number(files[0], numbers, piece) for piece in numbers}))
    return tuple(found)


def _number(where: Path, facts: dict[str, Any], name: str, default: int | None = None) -> int:
    value = facts.get(name, default)
    try:
        return int(float(str(value)))
    except (ValueError, OverflowError):
        raise RunError(f"{where}: {name}: expected a number, got {value!r}; copy the model again") from None


def _holds(facts: dict[str, Any], name: str) -> bool:
    return bool(facts.get(name) == "true")


def _few(names: Any) -> str:
    return ", ".join(list(names)[:3]) or "none"
