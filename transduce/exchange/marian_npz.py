"""Marian's own models: arrays under Hugging Face's names and shapes, settings as those of config.json.

    model.npz or a .bin file (marian_binary.py), and the files beside it (marian_files.py)

The model's settings lie among the arrays, as YAML in bytes. Matrices are (in, out) there and (out, in) here; Marian has
no padding, and starts from a zero vector: a row of zeros is added, which starts and is never written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.errors import RunError
from transduce.exchange.foreign import ForeignTensor
from transduce.exchange.marian_binary import is_binary, read_binary
from transduce.exchange.marian_config import MarianSettings
from transduce.exchange.marian_files import Vocabulary, decoder_settings, real, vocabularies, whole
from transduce.exchange.marian_layout import BIAS, FINAL, SHARED, SOURCE, TARGET
from transduce.exchange.npz_archive import StoredArray, read_archive
from transduce.exchange.yaml_settings import read_settings, shown

SETTINGS, LOGITS_BIAS = "special:model.yml", "decoder_ff_logit_out_b"
PADDING = "<pad>"
LARGEST_SETTINGS = 1 << 20  # bytes of YAML
# With any other value it is another model; YAML's words are words here.
_USUAL: dict[str, Any] = {
    "type": "transformer",
    "transformer-postprocess-emb": "d",
    "transformer-ffn-depth": "2",
    "transformer-decoder-ffn-depth": "0",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-no-projection": "false",
    "transformer-train-position-embeddings": "false",
    "transformer-disable-position-embeddings": "false",
    "transformer-attention-mask": "default",
    "transformer-no-bias": "false",
    "transformer-no-affine": "false",
    "transformer-pool": "false",
    "transformer-tied-layers": [],
    "layer-normalization": "false",
    "right-left": "false",
    "factors-dim-emb": "0",
    "lemma-dim-emb": "0",
    "ulr-dim-emb": "0",
}
_WIRING = tuple(f"transformer-{name}" for name in ("preprocess", "postprocess", "postprocess-top"))
_POST_NORM, _PRE_NORM = ("", "dan", ""), ("n", "da", "n")
LONGEST = 1024  # tokens of a translation, however long its source: Marian has no such limit


@dataclass(frozen=True)
class Archive:
    """What was found: settings as in config.json, tensors by Hugging Face's names, one vocabulary or one a side."""

    settings: MarianSettings
    tensors: dict[str, ForeignTensor]
    vocabularies: tuple[Vocabulary, ...]


def is_marian(path: Path) -> bool:
    """Whether a file of weights is in a format of Marian's own."""
    return path.suffix == ".npz" or (path.suffix == ".bin" and is_binary(path))


def read_marian(path: Path, as_trained: bool = False) -> Archive:
    """The model in an .npz or .bin file, and in the files beside it."""
    arrays = read_archive(path) if path.suffix == ".npz" else _in_memory(read_binary(path))
    facts = _facts(path, arrays)
    pre_norm = _check_wiring(path, facts)
    shared = _holds(facts, "tied-embeddings-all") or _holds(facts, "tied-embeddings-src")
    tensors = _tensors(path, arrays, shared)
    decoder, searching = decoder_settings(path)
    found = vocabularies(path, decoder, searching.get("vocabs"), shared)
    size = tensors[SHARED if shared else SOURCE].shape[0]
    end, unknown = (found[0].numbers.get(piece) for piece in ("</s>", "<unk>"))
    for one in found:
        if end is None or one.numbers.get("</s>") != end:
            raise RunError(f"{one.path}: has no piece '</s>', or another number for it than the other side's")
        one.numbers[next(name for name in _padding_names() if name not in one.numbers)] = size - 1
    values = {
        **_architecture(path, facts, size, shared),
        **_search(decoder, searching, unknown),
        "normalize_before": pre_norm,
        "unnormed_past": pre_norm and not as_trained,
        "eos_token_id": end,
    }
    return Archive(MarianSettings(path, values), tensors, found)


def _in_memory(arrays: dict[str, NDArray[Any]]) -> dict[str, StoredArray]:
    """Arrays that were read already; int8 takes a byte for each value, and nothing takes less."""
    return {
        name: StoredArray(array.dtype, array.shape, array.size, partial(_itself, array))
        for name, array in arrays.items()
    }


def _itself(array: NDArray[Any]) -> NDArray[Any]:
    return array


def _facts(path: Path, arrays: dict[str, StoredArray]) -> dict[str, Any]:
    """The settings among the arrays, which are taken out."""
    if SETTINGS not in arrays:
        raise RunError(f"{path}: has no '{SETTINGS}', which is in every model that Marian saved; found {_few(arrays)}")
    packed = arrays.pop(SETTINGS)
    if packed.dtype.itemsize != 1:
        raise RunError(
            f"{path}: '{SETTINGS}' is an array of {packed.dtype}, expected bytes of YAML; copy the model again"
        )
    if packed.size > LARGEST_SETTINGS:
        raise RunError(
            f"{path}: '{SETTINGS}' has {packed.size:,} bytes, {LARGEST_SETTINGS:,} at most are read; copy the"
            " model again"
        )
    return read_settings(packed.read().tobytes().decode("utf-8", "replace").rstrip("\0"), path)


def _check_wiring(path: Path, facts: dict[str, Any]) -> bool:
    """Whether it is a pre-norm model; refused is what is no Transformer that we know."""
    if facts.get("transformer-decoder-autoreg") == "rnn":
        cell = shown(facts.get("dec-cell", ""))
        raise RunError(
            f"{path}: its decoder has recurrent cells, {cell}, in place of self-attention (transformer-decoder-autoreg"
            " is 'rnn'). SSRU decoders, as Marian's fast students have them, cannot be imported yet; import the"
            " teacher, or a student with self-attention"
        )
    reasons = [
        f"{name} is {shown(facts[name])}, expected {usual!r}"
        for name, usual in _USUAL.items()
        if facts.get(name, usual) != usual
    ]
    wiring = tuple(facts.get(name, usual) for name, usual in zip(_WIRING, _POST_NORM, strict=True))
    if wiring not in (_POST_NORM, _PRE_NORM):
        told = ", ".join(f"{name} {shown(value)}" for name, value in zip(_WIRING, wiring, strict=True))
        reasons.append(f"{told}; expected '', 'dan', '' (post-norm) or 'n', 'da', 'n' (pre-norm)")
    if reasons:
        raise RunError(f"{path}: this is no Marian model that we know: {'; '.join(reasons)}")
    return wiring == _PRE_NORM


def _architecture(path: Path, facts: dict[str, Any], size: int, shared: bool) -> dict[str, Any]:
    """What Hugging Face's config.json says of such a model, and the base of its positions, which it does not say."""
    d_model, inner = whole(path, facts, "dim-emb"), whole(path, facts, "transformer-dim-ffn")
    waves = d_model // 2
    return {
        "d_model": d_model,
        "encoder_layers": whole(path, facts, "enc-depth"),
        "decoder_layers": whole(path, facts, "dec-depth"),
        **{f"{side}_attention_heads": whole(path, facts, "transformer-heads") for side in ("encoder", "decoder")},
        "encoder_ffn_dim": inner,
        "decoder_ffn_dim": whole(path, facts, "transformer-decoder-dim-ffn", 0) or inner,
        "activation_function": str(facts.get("transformer-ffn-activation", "swish")),
        "vocab_size": size,
        "decoder_vocab_size": size,
        "share_encoder_decoder_embeddings": shared,
        "scale_embedding": True,
        "pad_token_id": size - 1,
        "decoder_start_token_id": size - 1,
        "max_position_embeddings": LONGEST,
        # Of n waves the slowest has 10000 times the fastest one's length there, and 10000^((n - 1) / n) times in the
        # paper: the same as the paper's formula with this base.
        "position_base": 10000.0 ** (waves / (waves - 1)) if waves > 1 else 10000.0,
    }


def _search(decoder: Path, searching: dict[str, Any], unknown: int | None) -> dict[str, Any]:
    """The search that Marian's decoder makes by default, as generation_config.json would tell of it."""
    if real(decoder, searching, "word-penalty", 0):
        raise RunError(
            f"{decoder}: word-penalty is {shown(searching['word-penalty'])}, and there is no such penalty here; set it"
            " to 0, and steer the length by `normalize`"
        )
    suppressed = [] if unknown is None or _holds(searching, "allow-unk") else [[unknown]]
    return {
        "num_beams": whole(decoder, searching, "beam-size", 12),
        "length_penalty": real(decoder, searching, "normalize", 0),
        "shrinking": True,
        "bad_words_ids": suppressed,
        "max_length": LONGEST + 1,
        "max_length_factor": real(decoder, searching, "max-length-factor", 3),
    }


def _padding_names() -> Iterator[str]:
    """Names for the piece that is added: the usual one, and others where a vocabulary has it already."""
    yield PADDING
    yield from (f"<pad {number}>" for number in range(1 << 20))


def _tensors(path: Path, arrays: dict[str, StoredArray], shared: bool) -> dict[str, ForeignTensor]:
    """Under Hugging Face's names; what has none is refused, for the model would say something else without it."""
    embeddings = {"Wemb": SHARED} if shared else {"encoder_Wemb": SOURCE, "decoder_Wemb": TARGET}
    missing = sorted(embeddings.keys() - arrays.keys())
    unknown = [name for name in arrays if name not in embeddings and name != LOGITS_BIAS and not _theirs(name)]
    broken = [name for name, array in arrays.items() if array.dtype.kind != "f" or len(array.shape) != 2]
    if missing or unknown or broken:
        raise RunError(
            f"{path}: the arrays are not those of a Marian Transformer with tied embeddings and computed positions:"
            f" missing {_few(missing)}, unknown {_few(unknown)}, not matrices of floats {_few(broken)}"
        )
    rows = {arrays[name].shape[0] for name in embeddings}
    biases = arrays[LOGITS_BIAS].size if LOGITS_BIAS in arrays else max(rows)
    if len(rows) > 1 or biases not in rows:
        raise RunError(
            f"{path}: has vocabularies of {' and '.join(map(str, sorted(rows)))} pieces and {biases} biases of the"
            " output; only vocabularies of one size can be imported"
        )
    found = {theirs: _padded(name, arrays[name]) for name, theirs in embeddings.items()}
    if LOGITS_BIAS in arrays:
        found[BIAS] = _padded_bias(LOGITS_BIAS, arrays[LOGITS_BIAS])
    for name, array in arrays.items():
        if theirs := _theirs(name):
            turned = theirs.endswith("weight") and "norm" not in theirs
            found[theirs] = _matrix(name, array) if turned else _vector(name, array)
    return found


def _padded(name: str, array: StoredArray) -> ForeignTensor:
    rows, width = array.shape
    return ForeignTensor(name, (rows + 1, width), array.taken, lambda: _tensor(np.pad(array.read(), ((0, 1), (0, 0)))))


def _padded_bias(name: str, array: StoredArray) -> ForeignTensor:
    return ForeignTensor(name, (1, array.size + 1), array.taken, lambda: _tensor(np.append(array.read(), 0)[None]))


def _matrix(name: str, array: StoredArray) -> ForeignTensor:
    return ForeignTensor(name, array.shape[::-1], array.taken, lambda: _tensor(array.read().T))


def _vector(name: str, array: StoredArray) -> ForeignTensor:
    return ForeignTensor(name, (array.size,), array.taken, lambda: _tensor(array.read().reshape(-1)))


def _tensor(array: NDArray[Any]) -> Tensor:
    with np.errstate(over="ignore"):  # what is infinite then is refused with all that is
        return torch.from_numpy(np.array(array, dtype=np.float32, order="C"))  # a copy that may be written to


def _theirs(name: str) -> str:
    """Hugging Face's name for `encoder_l1_self_Wq` and its like; nothing for what is of no layer."""
    if name in _TOP:
        return _TOP[name]
    side, _, rest = name.partition("_l")
    number, _, part = rest.partition("_")
    if side not in ("encoder", "decoder") or not number.isdecimal() or number.startswith("0"):
        return ""
    found = _PARTS.get(part.removesuffix("_pre") if "_ln_" in part else part, "")
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
_TOP = {
    f"{side}_top_ln_{theirs}": FINAL[side] + ours
    for side in ("encoder", "decoder")
    for theirs, ours in (("scale", ".weight"), ("bias", ".bias"))
}


def _holds(facts: dict[str, Any], name: str) -> bool:
    return bool(facts.get(name) == "true")


def _few(names: Any) -> str:
    return ", ".join(name[:60] for name in list(names)[:3]) or "none"
