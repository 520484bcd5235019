"""Builds the native engine's C++ core with the package. Without a compiler the install goes on and torch serves.

The core is a plain shared library, called through ctypes. It needs no symbol of Python and its file name has no tag of
one, so that one wheel serves every Python. `make wheel` builds the wheel that is published: see docs/releasing.md.
"""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = Path("transduce/engines/native/src")
CORE = "transduce.engines.native.libtransduce"
FLAGS = ["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"]
# The intrinsics' own headers of GCC 12 make the last two warnings; clang does not know their names.
FLAGS += ["-Wno-unknown-warning-option", "-Wno-maybe-uninitialized", "-Wno-uninitialized"]


class BuildCore(build_ext):
    """A shared library instead of an extension module of one Python."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"

    def get_libraries(self, ext: Extension) -> list[str]:
        return list(ext.libraries)  # never Python's own


class AnyPython(bdist_wheel):
    """One wheel for every Python 3; the platform stays, for the core is machine code."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": BuildCore, "bdist_wheel": AnyPython},
    ext_modules=[
        Extension(
            CORE,
            sources=sorted(str(path) for path in FOLDER.glob("*.cpp")),
            depends=sorted(str(path) for path in FOLDER.glob("*.h")),
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
    ],
)
