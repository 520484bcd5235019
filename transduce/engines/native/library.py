"""The C++ core through ctypes: the structs of core.cpp and search.h, and the functions. Needs no other package.

The GIL is released during a call, so that many threads can decode at once.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64
from functools import cache
from pathlib import Path

from transduce.core.errors import EngineRefusal

GREEDY, BEAM, SAMPLE, FORCED = range(4)
EVERY_LAYER, NO_LAYER = -1, -2
_ERROR_SIZE = 512  # characters of an error message


class Options(Structure):
    """Options of a call for all sentences: `Options` of search.h."""

    _fields_ = (
        *((name, c_int32) for name in ("kind", "size", "kept", "samples", "shortest", "no_repeat", "top_k", "traced")),
        *((name, c_int32) for name in ("bos", "eos", "never_count", "by_power", "shrinking", "unused")),
        *((name, c_double) for name in ("length_penalty", "temperature", "top_p")),
        ("seed", c_uint64),
        ("never", POINTER(c_int32)),
    )


class Arrays(Structure):
    """Inputs of each sentence: `Arrays` of core.cpp."""

    _fields_ = (
        ("count", c_int32),
        ("stoppable", c_int32),
        ("sources", POINTER(c_int32)),
        ("source_ends", POINTER(c_int64)),
        ("longest", POINTER(c_int32)),
        ("prefixes", POINTER(c_int32)),
        ("prefix_ends", POINTER(c_int64)),
        ("excluded", POINTER(c_int32)),
        ("excluded_begins", POINTER(c_int64)),
        ("excluded_ends", POINTER(c_int64)),
        ("included", POINTER(c_int32)),
        ("included_begins", POINTER(c_int64)),
        ("included_ends", POINTER(c_int64)),
        ("keys", POINTER(c_uint64)),
        ("stops", POINTER(POINTER(c_int32))),
    )


class ResultView(Structure):
    """Results: `View` of core.cpp, to be copied and released."""

    _fields_ = (
        *((name, c_int64) for name in ("hypotheses", "tokens", "traced")),
        *((name, POINTER(c_int32)) for name in ("counts", "lengths", "complete", "numbers", "written")),
        *((name, POINTER(c_float)) for name in ("log_probs", "weights")),
        ("owner", ctypes.c_void_p),
    )


def built() -> Path | None:
    """Path of the compiled core, if the package was installed with one."""
    path = Path(__file__).with_name("libtransduce.so")
    return path if path.is_file() else None


@cache
def library() -> ctypes.CDLL:
    """Load the core, once."""
    path = built()
    if path is None:
        raise EngineRefusal(
            "native engine: its C++ core was not built when this package was installed, since there was no compiler;"
            " install g++ or clang and then the package again, or use engine=torch"
        )
    core = ctypes.CDLL(str(path))
    handle, error = ctypes.c_void_p, (c_char_p, c_size_t)
    core.transduce_open.argtypes = (c_char_p, c_int, c_char_p, POINTER(handle), *error)
    core.transduce_close.argtypes = (handle,)
    core.transduce_close.restype = None
    core.transduce_sizes.argtypes = (handle, POINTER(c_int32), c_char_p, c_size_t)
    core.transduce_sizes.restype = None
    core.transduce_search.argtypes = (handle, POINTER(Options), POINTER(Arrays), POINTER(ResultView), *error)
    core.transduce_release.argtypes = (POINTER(ResultView),)
    core.transduce_release.restype = None
    floats = POINTER(c_float)
    core.transduce_multiply.argtypes = (
        c_char_p, ctypes.c_void_p, floats, floats, c_int, c_int, floats, c_int, floats, *error
    )  # fmt: skip
    return core


class CoreError(Exception):
    """A call of the core failed."""


def _failure(error: ctypes.Array[ctypes.c_char]) -> CoreError | MemoryError:
    """Convert the core's error text to an exception; `guarded` of core.cpp and weights.cpp write those of memory."""
    text = error.value.decode("utf-8", "replace")
    return MemoryError(text) if text in ("out of memory", "does not fit into memory") else CoreError(text)


class Core:
    """A model opened by the core; closed with this object."""

    def __init__(self, path: Path, threads: int, kernels: str = "") -> None:
        self._core = library()
        self._engine = ctypes.c_void_p()
        error = ctypes.create_string_buffer(_ERROR_SIZE)
        failed = self._core.transduce_open(
            str(path).encode(), threads, kernels.encode(), byref(self._engine), error, _ERROR_SIZE
        )
        if failed:
            raise _failure(error)
        sizes, name = (c_int32 * 7)(), ctypes.create_string_buffer(32)
        self._core.transduce_sizes(self._engine, sizes, name, 32)
        self.d_model, self.source_vocabulary, self.target_vocabulary = sizes[0], sizes[1], sizes[2]
        self.longest_source, self.longest_target, self.layers, self.heads = sizes[3], sizes[4], sizes[5], sizes[6]
        self.kernels = name.value.decode()

    def search(self, options: Options, arrays: Arrays) -> ResultView:
        """Run a search; the view's arrays live until `release`."""
        view, error = ResultView(), ctypes.create_string_buffer(_ERROR_SIZE)
        if self._core.transduce_search(self._engine, byref(options), byref(arrays), byref(view), error, _ERROR_SIZE):
            raise _failure(error)
        return view

    def release(self, view: ResultView) -> None:
        self._core.transduce_release(byref(view))

    def __del__(self) -> None:
        if getattr(self, "_engine", None):
            self._core.transduce_close(self._engine)
            self._engine = ctypes.c_void_p()
