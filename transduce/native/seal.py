"""How the native engine's weight file proves itself: a SHA-256 in its header covers every byte, its own place zero.

Apart from the file's writing, so that who only translates imports no numpy.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from pathlib import Path

from transduce.errors import RunError

MAGIC = b"TRDNATIV"
_CHUNK = 64 << 20  # bytes mapped at a time
LENGTH, SEAL = slice(16, 24), slice(24, 56)  # where in the file its size and the digest stand


def verify(path: Path) -> None:
    """Refuse a file whose bytes are not those that were written."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            header = data[:64]
            if header[:8] == MAGIC and _told(header, data) != len(data):
                raise RunError(_damage(path))  # before all of a file is read that may be of any size
            digest = hashlib.sha256(header[: SEAL.start] + bytes(32) + header[SEAL.stop :])
            with memoryview(data) as whole:
                for begin in range(0, len(data), _CHUNK):
                    with whole[max(begin, 64) : begin + _CHUNK] as part:
                        digest.update(part)
                    if len(data) > _CHUNK and hasattr(mmap, "MADV_DONTNEED"):  # or all of it would stay in memory
                        data.madvise(mmap.MADV_DONTNEED, begin, min(_CHUNK, len(data) - begin))
    except FileNotFoundError:
        raise RunError(f"{path}: no such file; `transduce convert` writes it") from None
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise RunError(f"{path}: the weight file cannot be read: {error}") from error
    if digest.digest() != header[SEAL]:
        raise RunError(_damage(path))


def _told(header: bytes, data: mmap.mmap) -> int:
    """The size that the header tells; 0 where the tensors of the table do not end where the file does."""
    size, count = int.from_bytes(header[LENGTH], "little"), int.from_bytes(header[12:16], "little")
    end = 64 + 64 * count
    if end > len(data):
        return 0
    for place in range(64, end, 64):
        kind, rows, columns, _, offset = struct.unpack_from("<4IQ", data, place + 40)
        if kind in (2, 3):  # panels of bytes and of floats
            rows, columns = (-(-side // 64) * 64 for side in (rows, columns))
        end = max(end, offset + rows * columns * (1 if kind == 2 else 4))
    return size if end == size else 0


def _damage(path: Path) -> str:
    return (
        f"{path}: damaged, cut short, or no weight file: its content does not match its SHA-256. Convert the model"
        " again, or copy the file again from where it came"
    )
