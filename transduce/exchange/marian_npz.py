r"""Read Marian's own models: arrays under Hugging Face's names and shapes, settings as those of config.json.

    model.npz or a .bin file, and the files beside it (marian_config.py)

The model's settings lie among the arrays, as YAML in bytes. Matrices are (in, out) there and (out, in) here; Marian has
no padding, and starts from a zero vector: a row of zeros is added, which starts and is never written.

The arrays of an .npz archive: headers first, by a parser that knows no Python, and values on demand.

    zip archive of NAME.npy: b"\x93NUMPY", version, length of the header, {'descr', 'fortran_order', 'shape'}, values

numpy's own reader gives a header to Python's parser, which ends in errors of many kinds, and allocates whatever the
shape says. Here a header is matched by one expression, and its shape must fit the bytes that follow it.

Marian's binary model files (.bin), with float or int8 weights: the arrays of a model.npz.

    version (1), number of items, {name length, type, shape length, data length} of each, names, shapes, padding, data

All numbers are little-endian, 64 bits wide in the headers and 32 bits in the shapes. Matrices of type intgemm8 are
int8, transposed, followed by the factor that they were multiplied by before they were rounded (marian-dev:
src/common/binary.cpp, src/tensors/cpu/expression_graph_packable.h). `marian-conv -g intgemm8` writes this layout, which
no processor uses as it is; those that are arranged for one kind of processor are refused.
"""

from __future__ import annotations

import math
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.core.errors import RunError
from transduce.exchange.foreign import ForeignTensor, read_settings, shown
from transduce.exchange.marian_config import (
    BIAS,
    FINAL,
    SHARED,
    SOURCE,
    TARGET,
    MarianSettings,
    Vocabulary,
    decoder_settings,
    integer,
    real,
    vocabularies,
)

_MOST_PACKED = 2  # times its size that an archive may have unpacked: weights hardly shrink
_LONGEST_HEADER = 10_000
_NPY_HEADER = re.compile(
    rb"\{'descr': ?'([<>|=]?[a-zA-Z]\d{0,3})', ?'fortran_order': ?(True|False),"
    rb" ?'shape': ?\(((?:\d{1,18}, ?){0,8}(?:\d{1,18})?)\),? ?\}\s*"
)
_UNREADABLE = (OSError, ValueError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)


@dataclass(frozen=True)
class StoredArray:
    """An array in a file: type and shape of its header, its size in bytes there, and a reader of its values."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    taken: int
    read: Callable[[], NDArray[Any]]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class _Header:
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    length: int  # bytes before the values


def read_archive(path: Path) -> dict[str, StoredArray]:
    """The arrays of an .npz file by name; of each only the header is read."""
    with _refusing(path):
        packed = zipfile.ZipFile(path)
        entries = packed.infolist()
        unpacked = sum(entry.file_size for entry in entries)
        if unpacked > _MOST_PACKED * path.stat().st_size:
            raise RunError(f"{path}: would unpack to {unpacked:,} bytes, more than weights can; it is no model")
        found = {entry.filename.removesuffix(".npy"): _stored(path, packed, entry) for entry in entries}
        if len(found) < len(entries):
            raise ValueError("two arrays have one name")
        return found


def _stored(path: Path, packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> StoredArray:
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{entry.filename!r:.60} is compressed in a way that numpy never does")
    with packed.open(entry) as stream:
        header = _read_header(stream)
    expected = header.length + math.prod(header.shape) * header.dtype.itemsize
    if entry.file_size != expected:
        raise ValueError(f"{entry.filename!r:.60} has {entry.file_size:,} bytes, expected {expected:,} for its shape")
    return StoredArray(header.dtype, header.shape, entry.compress_size, partial(_values, path, packed, entry, header))


def _read_header(stream: IO[bytes]) -> _Header:
    start = stream.read(8)
    if start not in (b"\x93NUMPY\x01\0", b"\x93NUMPY\x02\0", b"\x93NUMPY\x03\0"):
        raise ValueError(f"expected an array of numpy's, found {start!r}")
    width = struct.Struct("<H" if start[6] == 1 else "<I")
    (length,) = width.unpack(stream.read(width.size))
    if length > _LONGEST_HEADER:
        raise ValueError(f"a header of {length:,} bytes")
    text = stream.read(length)
    matched = _NPY_HEADER.fullmatch(text)
    if not matched or len(text) < length:
        raise ValueError(f"the header {text[:60]!r} does not tell type, order and shape of numbers")
    kind, order, shape = (part.decode() for part in matched.groups())
    try:
        dtype = np.dtype(kind)
    except TypeError:
        raise ValueError(f"values of a type that is unknown, {kind!r}") from None
    if dtype.hasobject:
        raise ValueError("Python's objects in place of numbers")
    sizes = tuple(int(size) for size in shape.split(",") if size.strip())
    return _Header(dtype, sizes, "F" if order == "True" else "C", 8 + width.size + length)


def _values(path: Path, packed: zipfile.ZipFile, entry: zipfile.ZipInfo, header: _Header) -> NDArray[Any]:
    with _refusing(path):
        data = packed.read(entry)
        flat: NDArray[Any] = np.frombuffer(data, header.dtype, math.prod(header.shape), header.length)
        return np.reshape(flat, header.shape, order=header.order)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turn every error of reading a foreign archive into one RunError."""
    try:
        yield
    except _UNREADABLE as error:
        raise RunError(
            f"{path}: cannot be read as arrays alone ({type(error).__name__}: {error}); pickled objects are never"
            " opened. Copy the model again, or ask whoever made it for plain arrays"
        ) from None


VERSION = struct.pack("<Q", 1)
INT8, FLOAT16, FLOAT32, INTGEMM8 = 0x101, 0x402, 0x404, 0x10001
_PLAIN = {INT8: "i1", FLOAT16: "<f2", FLOAT32: "<f4"}
_ITEM_HEADER = struct.Struct("<QQQQ")
_MOST_DIMENSIONS = 8
_AGAIN = "copy the model again"


@dataclass(frozen=True)
class Item:
    """The header of one tensor; `begin` is where its data starts."""

    name: str
    kind: int
    shape: tuple[int, ...]
    begin: int
    length: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def is_binary(path: Path) -> bool:
    """Whether a file begins as Marian's binary files do; pickles and archives do not."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(VERSION)) == VERSION
    except OSError:
        return False


def read_binary(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of a .bin file; int8 matrices are returned as floats, within half a quantisation step."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}; expected a file of Marian's weights") from None
    try:
        return {item.name: _array(data, item, path) for item in _items(data, path)}
    except (struct.error, ValueError, OverflowError) as error:
        raise RunError(f"{path}: not a binary file of Marian's ({error}); {_AGAIN}") from None


def _items(data: bytes, path: Path) -> Iterator[Item]:
    """Yield all tensors, with their lengths checked against the file before anything is made of them."""
    (count,) = struct.unpack_from("<Q", data, len(VERSION))
    position = len(VERSION) + 8
    if count > (len(data) - position) // _ITEM_HEADER.size:
        raise RunError(f"{path}: announces {count:,} tensors, more than fit into {len(data):,} bytes; {_AGAIN}")
    headers = [_ITEM_HEADER.unpack_from(data, position + _ITEM_HEADER.size * number) for number in range(count)]
    position += _ITEM_HEADER.size * count
    names = []
    for length, *_ in headers:
        names.append(_cut(data, position, length, path).rstrip(b"\0").decode("utf-8"))
        position += length
    shapes = []
    for _, _, dimensions, _ in headers:
        if dimensions > _MOST_DIMENSIONS:
            raise RunError(f"{path}: has a tensor of {dimensions:,} dimensions; {_AGAIN}")
        shapes.append(struct.unpack_from(f"<{dimensions}i", data, position))
        position += 4 * dimensions
    (padding,) = struct.unpack_from("<Q", data, position)
    position += 8 + padding
    for (_, kind, _, length), name, shape in zip(headers, names, shapes, strict=True):
        if min(shape, default=0) < 0:
            raise RunError(f"{path}: {name[:60]} has the shape {shape}; {_AGAIN}")
        _cut(data, position, length, path)
        yield Item(name, kind, shape, position, length)
        position += length


def _cut(data: bytes, begin: int, length: int, path: Path) -> bytes:
    if begin + length > len(data):
        raise RunError(f"{path}: ends after {len(data):,} bytes, and {begin + length:,} were expected; {_AGAIN}")
    return data[begin : begin + length] if length < 1 << 16 else b""


def _array(data: bytes, item: Item, path: Path) -> NDArray[Any]:
    kind = _PLAIN.get(item.kind, "i1")
    needed = item.elements * np.dtype(kind).itemsize + (4 if item.kind == INTGEMM8 else 0)
    if item.kind not in _PLAIN and item.kind != INTGEMM8:
        raise RunError(
            f"{path}: {item.name[:60]} is of type {item.kind:#x}, expected float32, float16 or intgemm8; weights"
            " packed for one kind of processor cannot be read: convert model.npz with `marian-conv -g intgemm8`"
        )
    if needed > item.length:
        raise RunError(f"{path}: {item.name[:60]} has {item.length:,} bytes, expected {needed:,}; {_AGAIN}")
    values: NDArray[Any] = np.frombuffer(data, kind, item.elements, item.begin)
    if item.kind != INTGEMM8:
        return values.reshape(item.shape)
    if len(item.shape) != 2:
        raise RunError(f"{path}: {item.name[:60]} has the shape {item.shape}, expected a matrix; {_AGAIN}")
    (factor,) = struct.unpack_from("<f", data, item.begin + item.elements)
    if not 0 < factor < math.inf:
        raise RunError(f"{path}: {item.name[:60]} was multiplied by {factor}, expected a number above 0; {_AGAIN}")
    return (values.reshape(item.shape[::-1]).T / np.float32(factor)).astype(np.float32)


SETTINGS, LOGITS_BIAS = "special:model.yml", "decoder_ff_logit_out_b"
PADDING = "<pad>"
LARGEST_SETTINGS = 1 << 20  # bytes of YAML
# With any other value it is another model; YAML's values are strings here.
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
    """A model as found: settings as in config.json, tensors by Hugging Face's names, one vocabulary or one a side."""

    settings: MarianSettings
    tensors: dict[str, ForeignTensor]
    vocabularies: tuple[Vocabulary, ...]


def is_marian(path: Path) -> bool:
    """Whether a file of weights is in a format of Marian's own."""
    return path.suffix == ".npz" or (path.suffix == ".bin" and is_binary(path))


def read_marian(path: Path, as_trained: bool = False) -> Archive:
    """Read the model in an .npz or .bin file, and in the files beside it."""
    arrays = read_archive(path) if path.suffix == ".npz" else _in_memory(read_binary(path))
    facts = _facts(path, arrays)
    pre_norm = _check_wiring(path, facts)
    shared = _holds(facts, "tied-embeddings-all") or _holds(facts, "tied-embeddings-src")
    tensors = _tensors(path, arrays, shared)
    decoder, searching = decoder_settings(path)
    found = vocabularies(path, decoder, searching.get("vocabs"), shared)
    size = tensors[SHARED if shared else SOURCE].shape[0]
    end, unknown = (found[0].numbers.get(piece) for piece in ("</s>", "<unk>"))
    for vocabulary in found:
        if end is None or vocabulary.numbers.get("</s>") != end:
            raise RunError(f"{vocabulary.path}: has no piece '</s>', or another number for it than the other side's")
        name = next(name for name in _padding_names() if name not in vocabulary.numbers)
        vocabulary.numbers[name] = size - 1
    values = {
        **_architecture(path, facts, size, shared),
        **_search(decoder, searching, unknown),
        "normalize_before": pre_norm,
        "unnormed_past": pre_norm and not as_trained,
        "eos_token_id": end,
    }
    return Archive(MarianSettings(path, values), tensors, found)


def _in_memory(arrays: dict[str, NDArray[Any]]) -> dict[str, StoredArray]:
    """Wrap arrays that were read already; int8 takes a byte for each value, and nothing takes less."""
    return {
        name: StoredArray(array.dtype, array.shape, array.size, partial(_itself, array))
        for name, array in arrays.items()
    }


def _itself(array: NDArray[Any]) -> NDArray[Any]:
    return array


def _facts(path: Path, arrays: dict[str, StoredArray]) -> dict[str, Any]:
    """Remove the settings from the arrays, and parse them."""
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
    """Whether it is a pre-norm model; raise RunError for an unknown kind of Transformer."""
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
        found = ", ".join(f"{name} {shown(value)}" for name, value in zip(_WIRING, wiring, strict=True))
        reasons.append(f"{found}; expected '', 'dan', '' (post-norm) or 'n', 'da', 'n' (pre-norm)")
    if reasons:
        raise RunError(f"{path}: this is no Marian model that we know: {'; '.join(reasons)}")
    return wiring == _PRE_NORM


def _architecture(path: Path, facts: dict[str, Any], size: int, shared: bool) -> dict[str, Any]:
    """The settings of Hugging Face's config.json for such a model, and the base of its positions besides."""
    d_model, inner = integer(path, facts, "dim-emb"), integer(path, facts, "transformer-dim-ffn")
    waves = d_model // 2
    return {
        "d_model": d_model,
        "encoder_layers": integer(path, facts, "enc-depth"),
        "decoder_layers": integer(path, facts, "dec-depth"),
        **{f"{side}_attention_heads": integer(path, facts, "transformer-heads") for side in ("encoder", "decoder")},
        "encoder_ffn_dim": inner,
        "decoder_ffn_dim": integer(path, facts, "transformer-decoder-dim-ffn", 0) or inner,
        "activation_function": str(facts.get("transformer-ffn-activation", "swish")),
        "vocab_size": size,
        "decoder_vocab_size": size,
        "share_encoder_decoder_embeddings": shared,
        "scale_embedding": True,
        "pad_token_id": size - 1,
        "decoder_start_token_id": size - 1,
        "max_position_embeddings": LONGEST,
        # Of n waves the slowest has 10000 times the fastest one's length there, and 10000^((n - 1) / n) times in the
        # paper: equal to the paper's formula with this base.
        "position_base": 10000.0 ** (waves / (waves - 1)) if waves > 1 else 10000.0,
    }


def _search(decoder: Path, searching: dict[str, Any], unknown: int | None) -> dict[str, Any]:
    """The default search of Marian's decoder, as in generation_config.json."""
    if real(decoder, searching, "word-penalty", 0):
        raise RunError(
            f"{decoder}: word-penalty is {shown(searching['word-penalty'])}, and there is no such penalty here; set it"
            " to 0, and steer the length by `normalize`"
        )
    suppressed = [] if unknown is None or _holds(searching, "allow-unk") else [[unknown]]
    return {
        "num_beams": integer(decoder, searching, "beam-size", 12),
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
    """The tensors under Hugging Face's names; an unknown one is an error, for the model would differ without it."""
    embeddings = {"Wemb": SHARED} if shared else {"encoder_Wemb": SOURCE, "decoder_Wemb": TARGET}
    _check_arrays(path, arrays, embeddings)
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


def _check_arrays(path: Path, arrays: dict[str, StoredArray], embeddings: dict[str, str]) -> None:
    """Refuse arrays that are missing, that nobody knows, or that are no matrices of floats."""
    missing = sorted(embeddings.keys() - arrays.keys())
    unknown = [name for name in arrays if name not in embeddings and name != LOGITS_BIAS and not _theirs(name)]
    broken = [name for name, array in arrays.items() if array.dtype.kind != "f" or len(array.shape) != 2]
    if missing or unknown or broken:
        raise RunError(
            f"{path}: the arrays are not those of a Marian Transformer with tied embeddings and computed positions:"
            f" missing {_few(missing)}, unknown {_few(unknown)}, not matrices of floats {_few(broken)}"
        )


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
    """Hugging Face's name for `encoder_l1_self_Wq` and its like; "" for what is of no layer."""
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
    for part, theirs in (("self", "self_attn"), ("context", "encoder_attn")):
        for letter, name in zip("qkvo", ("q_proj", "k_proj", "v_proj", "out_proj"), strict=True):
            yield f"{part}_W{letter}", f"{theirs}.{name}.weight"
            yield f"{part}_b{letter}", f"{theirs}.{name}.bias"
        yield f"{part}_Wo_ln_scale", f"{theirs}_layer_norm.weight"
        yield f"{part}_Wo_ln_bias", f"{theirs}_layer_norm.bias"
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
