"""How the native engine's weight file proves itself: a SHA-256 in its header covers every byte, its own place zero.

Apart from the file's writing, so that who only translates imports no numpy.
"""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path

from transduce.errors import RunError

SEAL = slice(24, 56)  # where in the file the digest stands


def verify(path: Path) -> None:
    """Refuse a file whose bytes are not those that were written."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            header = data[:64]
            digest = hashlib.sha256(header[: SEAL.start] + bytes(32) + header[SEAL.stop :])
            with memoryview(data) as whole:
                digest.update(whole[64:])
    except FileNotFoundError:
        raise RunError(f"{path}: no such file; `transduce convert` writes it") from None
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise RunError(f"{path}: the weight file cannot be read: {error}") from error
    if digest.digest() != header[SEAL]:
        raise RunError(
            f"{path}: damaged, cut short, or no weight file: its content does not match its SHA-256. Convert the model"
            " again, or copy the file again from where it came"
        )
