"""Builds the native engine's C++ core with the package. Without a compiler the install goes on and torch serves."""

from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("transduce/native")
FLAGS = ["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"]
# The intrinsics' own headers of GCC 12 make these two warnings.
FLAGS += ["-Wno-maybe-uninitialized", "-Wno-uninitialized"]

setup(
    ext_modules=[
        Extension(
            "transduce.native._core",
            sources=sorted(str(path) for path in FOLDER.glob("*.cpp")),
            depends=sorted(str(path) for path in FOLDER.glob("*.h")),
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
    ]
)
