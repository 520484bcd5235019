r"""Raw lines of one file, plain or compressed (gz, xz, zst), in flat memory.

A line ends at the byte "\n" and nowhere else. A line longer than LINE_BYTES is cut to LINE_BYTES + 1 bytes while it is
read, so that its length still shows the doctor that it was too long.
"""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from transduce.core.errors import DataError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

LINE_BYTES = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
COMPRESSIONS = (".gz", ".xz", ".zst")
_ZSTD_INPUT_BYTES = 4096  # a few bytes of zstd may decompress to 128 KiB each: small reads keep memory flat


class _ZstdFile(io.RawIOBase):
    """Decompresses zstd frame by frame; unlike the library's own reader it detects a truncated file."""

    def __init__(self, file: IO[bytes], path: str) -> None:
        try:
            import zstandard
        except ImportError:
            raise DataError(f"{path}: reading .zst files needs zstandard: pip install transduce[zstd]") from None
        self._file, self._error = file, zstandard.ZstdError
        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._frame = self._new_frame()
        self._inside_frame = False
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        while not self._ready:
            packed = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = self._new_frame()
                self._inside_frame = False
            packed = packed or self._file.read(_ZSTD_INPUT_BYTES)
            if not packed:
                if self._inside_frame:
                    raise EOFError("the last zstd frame is incomplete")
                return 0
            self._inside_frame = True
            try:
                self._ready = memoryview(self._frame.decompress(packed))
            except self._error as error:
                raise EOFError(str(error)) from None
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._ready))
        view[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


DAMAGES = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)


def damaged(path: str, line: int, error: Exception) -> DataError:
    """The error for one of `DAMAGES`."""
    return DataError(
        f"{path}:{line}: the compressed file is cut short or damaged ({error}); "
        "copy or download it again, then compare its size"
    )


@contextmanager
def open_unpacked(path: str) -> Iterator[io.BufferedIOBase]:
    """Open a file for reading, decompressed by its suffix."""
    with open(path, "rb") as file:
        match Path(path).suffix.lower():
            case ".gz":
                with gzip.open(file, "rb") as unpacked:
                    yield unpacked
            case ".xz":
                with lzma.open(file, "rb") as unpacked:
                    yield unpacked
            case ".zst":
                yield io.BufferedReader(_ZstdFile(file, path), 1 << 18)
            case _:
                yield file


def check_file(path: str) -> None:
    """Refuse a path that is not a readable file."""
    if not Path(path).exists():
        raise DataError(f"{path}: no such file")
    if Path(path).is_dir():
        raise DataError(f"{path}: is a folder; expected a file (a glob such as {path.rstrip('/')}/* names its files)")


def read_lines(path: str, line: int = 0, start: int = 0) -> Iterator[bytes]:
    """Yield each line without its newline; a byte order mark is kept, for the caller to remove and count.

    In a plain file, line number `line` (from 0) may come first, if it begins at the byte `start`.
    """
    check_file(path)
    number = line
    try:
        with open_unpacked(path) as file:
            if start:
                file.seek(start)
            while content := file.readline(LINE_BYTES + 2):
                number += 1
                if not content.endswith(b"\n") and len(content) == LINE_BYTES + 2:
                    _skip_rest_of_line(file)
                    yield content[:-1]
                else:
                    yield content.removesuffix(b"\n")
    except DAMAGES as error:
        raise damaged(path, number + 1, error) from None
    except OSError as error:
        raise DataError(f"{path}:{number + 1}: cannot be read: {error.strerror or error}") from None


def _skip_rest_of_line(file: io.BufferedIOBase) -> None:
    while rest := file.readline(LINE_BYTES):
        if rest.endswith(b"\n"):
            return
