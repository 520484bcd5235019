"""The tensors of the native engine's weight file for Python, with the checks of weights.cpp: files come from anywhere.

The format, and what must be so before a tensor is looked for, are in weight_format.py. The file is mapped and not
copied: a tensor takes memory when it is asked for. Letters: N outputs, K inputs of a matrix.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from transduce.errors import RunError
from transduce.native.layout import Entry
from transduce.native.weight_file import Floats
from transduce.native.weight_format import (
    BYTE_PANELS,
    FLOAT_PANELS,
    FLOATS,
    INTEGERS,
    PANEL,
    StoredTensor,
    failure,
    padded,
    read_table,
)


class WeightReader:
    """A weight file whose hash was found right, and whose table keeps within the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data, self._tensors = read_table(path)
        self.size = len(self._data)

    def __len__(self) -> int:
        return len(self._tensors)

    def integers(self, name: str, columns: int) -> list[int]:
        """A row of whole numbers."""
        tensor = self._tensor(name, INTEGERS, 1, columns)
        found: list[int] = np.frombuffer(self._data, "<i4", columns, tensor.offset).tolist()
        return found

    def floats(self, name: str, rows: int, columns: int) -> Floats:
        """Numbers, all of them finite; a view of the file, not to be written to."""
        return self._finite(name, self._floats(name, rows, columns))

    def matrix(self, name: str, outputs: int, inputs: int, filling: float = 0.0) -> tuple[Floats, Floats]:
        """weight (N, K) and bias (N,), as far as they were not rounded; `filling` is the bias of what only pads."""
        tensor = self._matrix(name, outputs, inputs)
        rows, columns = padded(outputs), padded(inputs)
        bias = self._floats(f"{name}.bias", 1, rows)[0]
        self._finite(f"{name}.bias", bias[:outputs])
        if not (bias[outputs:] == np.float32(filling)).all():
            raise self._failure(f"has a tensor '{name}.bias' whose padding is not {'-infinity' if filling else '0'}")
        if tensor.kind == BYTE_PANELS:
            stored = np.frombuffer(self._data, np.uint8, rows * columns, tensor.offset)
            panels = stored.reshape(-1, columns // 4, PANEL, 4).transpose(0, 2, 1, 3)
            whole = panels.reshape(rows, columns)[:outputs, :inputs].astype(np.float32)
            whole -= np.float32(128)
            scales = self.floats(f"{name}.scales", 1, rows)
            with np.errstate(over="ignore"):
                self._finite(f"{name}.scales", scales * np.float32(128))
            whole *= scales[0, :outputs, None]
            return whole, bias[:outputs]
        numbers = np.frombuffer(self._data, "<f4", rows * columns, tensor.offset)
        self._finite(name, numbers)
        turned = numbers.reshape(-1, columns, PANEL).transpose(0, 2, 1)
        return turned.reshape(rows, columns)[:outputs, :inputs], bias[:outputs]

    def rounded(self, name: str) -> bool:
        """Whether a matrix is stored as whole numbers."""
        return name in self._tensors and self._tensors[name].kind == BYTE_PANELS

    def require(self, entries: Iterable[Entry]) -> None:
        """Refuse a file that lacks a tensor, or has it in another shape; no numbers are read."""
        for entry in entries:
            if not entry.is_matrix:
                self._tensor(entry.name, FLOATS, entry.rows, entry.columns)
                continue
            tensor = self._matrix(entry.name, entry.rows, entry.columns)
            parts = ("bias", "scales") if tensor.kind == BYTE_PANELS else ("bias",)
            for part in parts:
                self._tensor(f"{entry.name}.{part}", FLOATS, 1, padded(entry.rows))

    def _tensor(self, name: str, kind: int, rows: int, columns: int) -> StoredTensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise self._failure(f"lacks the tensor '{name}'")
        if (tensor.kind, tensor.rows, tensor.columns) != (kind, rows, columns):
            raise self._failure(
                f"has a tensor '{name}' of {tensor.rows} x {tensor.columns} of kind {tensor.kind}, and its model needs"
                f" {rows} x {columns} of kind {kind}"
            )
        return tensor

    def _matrix(self, name: str, outputs: int, inputs: int) -> StoredTensor:
        return self._tensor(name, BYTE_PANELS if self.rounded(name) else FLOAT_PANELS, outputs, inputs)

    def _floats(self, name: str, rows: int, columns: int) -> Floats:
        tensor = self._tensor(name, FLOATS, rows, columns)
        return np.frombuffer(self._data, "<f4", rows * columns, tensor.offset).reshape(rows, columns)

    def _finite(self, name: str, values: Floats) -> Floats:
        if not np.isfinite(values).all():
            raise self._failure(f"has a tensor '{name}' with values that are no numbers (NaN or infinite)")
        return values

    def _failure(self, what: str) -> RunError:
        return failure(self.path, what)
