"""The format of the native engine's weight file (weights.h): its header, its table, and the hash that proves it whole.

A SHA-256 in the header covers every byte of the file, its own place zero. No other file knows where anything stands:
weight_file.py packs the tensors that are written here, weight_reader.py unpacks those that are found. Needs no numpy,
for who only translates checks the hash, and the core reads the rest.

What lies in a weight file of a model: the numbers that describe it, and the name and shape of every tensor.

lowering.py writes these, raising.py and model.cpp read them. Names and shapes follow from the config alone, so that a
file can be compared with it before a model is built: both may come from anywhere.
Letters: D d_model, H heads, G heads of keys and values, K a head's width, W the padded one.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from transduce.core.errors import RunError
from transduce.model.attention import Attention
from transduce.model.blocks import ACTIVATIONS, GATED, PreNorm
from transduce.model.norms import BatchNorm, LayerNorm, RMSNorm
from transduce.model.positions import Learned
from transduce.model.scores import Cosine, Dot, Relu
from transduce.model.seq2seq import Model
from transduce.model.transformer import StackConfig, Top, TransformerDecoder

PANEL = 64  # outputs in a panel; both sides of a matrix are padded to whole ones
ALIGN = 64  # tensors begin at multiples of it
FLOATS, INTEGERS, BYTE_PANELS, FLOAT_PANELS = range(4)  # kinds of tensors
_MAGIC, _VERSION = b"TRDNATIV", 1
_HEADER, _ENTRY = struct.Struct("<8s2IQ32s8x"), struct.Struct("<40s4IQ")
_DIGEST = slice(24, 56)  # of the header
_LONGEST_NAME = 40
_MOST_TENSORS, _MOST_PLACES = 1 << 16, 1 << 24
_CHUNK = 64 << 20  # bytes mapped at a time


def padded(size: int) -> int:
    """Up to whole panels."""
    return -(-size // PANEL) * PANEL


class Header(NamedTuple):
    """So many `tensors` in a file of `size` bytes."""

    magic: bytes
    version: int
    tensors: int
    size: int
    digest: bytes


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as the table has it: its kind, its shape without padding, and where in the file its bytes begin."""

    name: str
    kind: int
    rows: int
    columns: int
    offset: int

    @property
    def end(self) -> int:
        rows, columns = self.rows, self.columns
        if self.kind in (BYTE_PANELS, FLOAT_PANELS):
            rows, columns = padded(rows), padded(columns)
        return self.offset + rows * columns * (1 if self.kind == BYTE_PANELS else 4)

    @property
    def is_sound(self) -> bool:
        """Whether there can be such a tensor, and the core would read it."""
        places = 1 <= self.rows <= _MOST_PLACES and 1 <= self.columns <= _MOST_PLACES
        return self.kind <= FLOAT_PANELS and places and self.offset % ALIGN == 0


def bytes_before_tensors(count: int) -> int:
    """What header and table of so many tensors take."""
    return _HEADER.size + count * _ENTRY.size


def header_and_table(tensors: Sequence[StoredTensor], body: bytes | bytearray) -> tuple[bytes, bytes]:
    """What stands before the bytes of the tensors."""
    table = bytearray()
    for tensor in tensors:
        encoded = tensor.name.encode("ascii")
        if len(encoded) > _LONGEST_NAME:
            raise ValueError(f"{tensor.name}: a tensor's name has at most {_LONGEST_NAME} characters")
        table += _ENTRY.pack(encoded, tensor.kind, tensor.rows, tensor.columns, 0, tensor.offset)
    size = bytes_before_tensors(len(tensors)) + len(body)
    header = Header(_MAGIC, _VERSION, len(tensors), size, bytes(_DIGEST.stop - _DIGEST.start))
    digest = hashlib.sha256(_HEADER.pack(*header))
    digest.update(table)
    digest.update(body)
    return _HEADER.pack(*header._replace(digest=digest.digest())), bytes(table)


def verify(path: Path) -> None:
    """Refuse a file whose bytes are not those that were written."""
    with _mapped(path) as data:
        _check_hash(path, data)


def read_table(path: Path) -> tuple[mmap.mmap, dict[str, StoredTensor]]:
    """A file whose hash was found right, mapped, and its tensors by name, all of which are sound and within it."""
    data = _mapped(path)
    _check_hash(path, data)
    header = _header_of(data)
    if header.magic != _MAGIC:
        raise failure(path, "is no weight file of the native engine")
    if header.version != _VERSION:
        raise failure(path, f"has format {header.version}, and this program reads {_VERSION}")
    found: dict[str, StoredTensor] = {}
    for tensor in _entries(header, data):
        if not tensor.is_sound:  # it ends within the file, as the hash could not be right without
            raise failure(path, f"is damaged: tensor '{tensor.name}' has impossible sizes, or leaves the file")
        if tensor.name in found:
            raise failure(path, f"is damaged: tensor '{tensor.name}' occurs twice")
        found[tensor.name] = tensor
    return data, found


def failure(path: Path, what: str) -> RunError:
    """Why a file is refused whose hash is right."""
    return RunError(f"{path}: {what}. Convert the model again")


def _mapped(path: Path) -> mmap.mmap:
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise RunError(f"{path}: no such file; `transduce convert` writes it") from None
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise RunError(f"{path}: the weight file cannot be read: {error}") from error


def _check_hash(path: Path, data: mmap.mmap) -> None:
    damage = RunError(
        f"{path}: damaged, cut short, or no weight file: its content does not match its SHA-256. Convert the model"
        " again, or copy the file again from where it came"
    )
    if len(data) < _HEADER.size:
        raise damage
    header, start = _header_of(data), data[: _HEADER.size]
    if header.magic == _MAGIC and _end(header, data) != len(data):
        raise damage  # before all of a file is read that may be of any size
    digest = hashlib.sha256(start[: _DIGEST.start] + bytes(len(header.digest)) + start[_DIGEST.stop :])
    with memoryview(data) as whole:
        for begin in range(0, len(data), _CHUNK):
            with whole[max(begin, _HEADER.size) : begin + _CHUNK] as part:
                digest.update(part)
            if len(data) > _CHUNK and hasattr(mmap, "MADV_DONTNEED"):  # or all of it would stay in memory
                data.madvise(mmap.MADV_DONTNEED, begin, min(_CHUNK, len(data) - begin))
    if digest.digest() != header.digest:
        raise damage


def _header_of(data: mmap.mmap) -> Header:
    return Header._make(_HEADER.unpack_from(data))


def _entries(header: Header, data: mmap.mmap) -> Iterator[StoredTensor]:
    """The table, which must lie within the file."""
    for place in range(_HEADER.size, bytes_before_tensors(header.tensors), _ENTRY.size):
        name, kind, rows, columns, _, offset = _ENTRY.unpack_from(data, place)
        yield StoredTensor(name.partition(b"\0")[0].decode("ascii", "replace"), kind, rows, columns, offset)


def _end(header: Header, data: mmap.mmap) -> int:
    """Where the file ends by its header and its table alike; 0 where these differ, or the table cannot be."""
    end = bytes_before_tensors(header.tensors)
    if header.tensors > _MOST_TENSORS or end > len(data):
        return 0
    end = max([end, *(tensor.end for tensor in _entries(header, data))])
    return header.size if end == header.size else 0


LONGEST = 2048  # places that tables of positions hold, where the model itself has no limit
TABLES = ("positions", "rotary", "bias")  # of a stack, each with a number that says whether it is there
_NORMS = (LayerNorm, RMSNorm, BatchNorm)  # in the order of the core's enum
_VECTOR = 16  # floats that a head's width must be a multiple of


@dataclass(frozen=True)
class Entry:
    """A tensor of the file: a matrix with its bias, or plain numbers."""

    name: str
    rows: int
    columns: int
    is_matrix: bool = False


def is_wired(config: Model) -> bool:
    """Whether decoder layers look at other encoder layers than the last."""
    return not isinstance(cast("TransformerDecoder", config.decoder).wiring, Top)


def whole_facts(config: Model, source: int, target: int) -> dict[str, int]:
    """The numbers of the tensor 'sizes', for vocabularies of so many pieces."""
    return {
        "d_model": config.d_model,
        "source vocabulary": source,
        "target vocabulary": target,
        "wiring": int(is_wired(config)),
    }


def entries(config: Model, source: int, target: int, tables: Mapping[str, Sequence[int]]) -> Iterator[Entry]:
    """Every tensor but those of whole numbers; `tables` says of each stack which of TABLES are there."""
    d_model = config.d_model
    yield Entry("embedding_scale", 1, 1)
    for name, rows in (("source", source), ("target", target), ("output", target)):
        yield Entry(name, rows, d_model, is_matrix=True)
    encoder, decoder = cast("StackConfig", config.encoder), cast("TransformerDecoder", config.decoder)
    for name, stack in (("encoder", encoder), ("decoder", decoder)):
        yield from Sizes(name, stack, d_model).entries(tables[name])
    if is_wired(config):
        yield Entry("shares", decoder.layers, encoder.layers)
        for layer in range(encoder.layers):
            yield from _norm(f"wiring.{layer}", d_model)


def _norm(name: str, d_model: int) -> Iterator[Entry]:
    for part in ("gain", "shift"):
        yield Entry(f"{name}.{part}", 1, padded(d_model))


@dataclass(frozen=True)
class Sizes:
    """One stack of a model, with the sizes that its tensors have in the file."""

    name: str
    stack: StackConfig
    d_model: int

    @property
    def attention(self) -> Attention:
        return self.stack.attention

    @property
    def heads(self) -> int:
        return self.attention.heads

    @property
    def groups(self) -> int:
        return self.attention.key_heads or self.attention.heads

    @property
    def width(self) -> int:
        """Of queries and keys."""
        return self.attention.widths(self.d_model)[0]

    @property
    def value_width(self) -> int:
        return self.attention.widths(self.d_model)[1]

    @property
    def wide(self) -> int:
        """Of all of them in the core, where heads have one width."""
        return -(-max(self.width, self.value_width) // _VECTOR) * _VECTOR

    @property
    def longest(self) -> int:
        return self.stack.positions.longest if isinstance(self.stack.positions, Learned) else LONGEST

    @property
    def scale(self) -> np.float32:
        """What queries are multiplied by before the dot product."""
        unscaled = isinstance(self.attention.score, (Dot, Cosine))
        return np.float32(1.0 if unscaled else self.width**-0.5)

    def facts(self) -> dict[str, int]:
        """The numbers of the tensor named as the stack, but for those of TABLES."""
        stack, attention = self.stack, self.attention
        unnormed_past = isinstance(stack, TransformerDecoder) and stack.unnormed_past
        return {
            "layers": stack.layers,
            "heads": attention.heads,
            "key_heads": self.groups,
            "width": self.wide,
            "real_width": self.width,
            "d_ff": stack.d_ff,
            "longest": self.longest,
            "activation": list(ACTIVATIONS).index(stack.activation),
            "norm": _NORMS.index(type(stack.norm)),
            "pre_norm": int(isinstance(stack.residual, PreNorm)) + int(unnormed_past),  # 2: keys of unnormed states
            "query_key_norm": int(attention.query_key_norm),
            "cosine": int(isinstance(attention.score, Cosine)),
            "rectified": int(isinstance(attention.weights, Relu)),
        }

    def entries(self, tables: Sequence[int]) -> Iterator[Entry]:
        """The tensors of this stack."""
        shapes = ((self.longest, padded(self.d_model)), (self.longest, self.width), (self.heads, 2 * self.longest - 1))
        for table, shape, present in zip(TABLES, shapes, tables, strict=True):
            if present:
                yield Entry(f"{self.name}.{table}", *shape)
        for layer in range(self.stack.layers):
            yield from self._layer_entries(f"{self.name}.{layer}")
        if isinstance(self.stack.residual, PreNorm):
            yield from _norm(f"{self.name}.final", self.d_model)

    def _layer_entries(self, name: str) -> Iterator[Entry]:
        keys, d_ff = 2 * self.groups * self.wide, self.stack.d_ff
        yield from self._attention_entries(f"{name}.self", keys)
        yield from _norm(f"{name}.around_self", self.d_model)
        if self.name == "decoder":
            yield from self._attention_entries(f"{name}.cross", 0)
            yield from _norm(f"{name}.around_cross", self.d_model)
            yield Entry(f"{name}.source", keys, self.d_model, is_matrix=True)
        inner = 2 * padded(d_ff) if self.stack.activation in GATED else d_ff
        yield Entry(f"{name}.inner", inner, self.d_model, is_matrix=True)
        yield Entry(f"{name}.outer", self.d_model, d_ff, is_matrix=True)
        yield from _norm(f"{name}.around_feed_forward", self.d_model)

    def _attention_entries(self, name: str, keys: int) -> Iterator[Entry]:
        """`keys` rows beside the queries' make keys and values."""
        queries = self.heads * self.wide
        yield Entry(f"{name}.project", queries + keys, self.d_model, is_matrix=True)
        yield Entry(f"{name}.output", self.d_model, queries, is_matrix=True)
        if self.attention.query_key_norm:
            for side in ("query", "key"):
                yield Entry(f"{name}.{side}_norm", 1, self.wide)
        if isinstance(self.attention.score, Cosine):
            yield Entry(f"{name}.sharpness", 1, self.heads)
