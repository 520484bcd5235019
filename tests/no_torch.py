"""A process as on a machine where only `pip install transduce` was done, and an engine small enough to run there.

`call(code)` runs Python in a new process in which torch and all that comes with the extras cannot be imported. In it
`transduce.engines.native.engine` is a stand-in whose model writes each source backwards.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from transduce.core.errors import EngineRefusal
from transduce.search import Hypothesis
from transduce.search.constraints import DecodingConstraints
from transduce.search.settings import Beam
from transduce.text.tokenizer import Tokenizers
from transduce.text.vocabulary import Symbols
from transduce.translate.model_folder import Converted, seal_of

HERE = Path(__file__).parent
MISSING = ("torch", "safetensors", "sacrebleu")


class NativeEngine:
    """Writes sources backwards, without a beam larger than 8."""

    def __init__(self, path: Path, source: Symbols, target: Symbols) -> None:
        if path.read_bytes() == b"not built":
            raise EngineRefusal("native engine: it was not built when transduce was installed")

    def check_sizes(self, source: int, target: int) -> None:
        """Backwards has any size."""

    def search(
        self, sources: list[tuple[int, ...]], search: object, constraints: list[DecodingConstraints], keys: list[int]
    ) -> list[list[Hypothesis]]:
        if isinstance(search, Beam) and search.size > 8:
            raise EngineRefusal(f"native engine: it has no beam of {search.size}")
        return [[Hypothesis(tuple(tokens)[::-1], -1.0, -1.0, True, (-1.0,))] for tokens in sources]

    def score(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        return [[-0.5] * (len(target) + 1) for target in targets]

    def attend(self, sources: list[list[int]], targets: list[list[int]], layer: int | None) -> list[object]:
        import numpy as np

        return [np.ones((len(t), len(s)), dtype=np.float32) for s, t in zip(sources, targets, strict=True)]


def convert(model: Path, folder: Path) -> Path:
    """A folder as `transduce convert` leaves it, with weights for the stand-in."""
    shutil.copytree(model / "tokenizer", folder / "tokenizer")
    shutil.copy(model / "config.toml", folder / "config.toml")
    (folder / "model.native").touch()
    digest = Tokenizers.load(folder / "tokenizer").digest()
    Converted(digest, seal_of(model / "model.safetensors"), longest=20, quantize="int8").write(folder)
    return folder


def call(
    code: str, cwd: Path, stand_in: bool = True, missing: tuple[str, ...] = MISSING
) -> subprocess.CompletedProcess[str]:
    """Run code where nothing that is missing can be imported."""
    head = f"import sys\nsys.modules.update(dict.fromkeys({missing}))\n"
    if stand_in:
        head += "import no_torch\nsys.modules['transduce.engines.native.engine'] = no_torch\n"
    return subprocess.run(
        [sys.executable, "-c", head + code],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}", "COLUMNS": "200", "NO_COLOR": "1"},
        check=False,
    )


def command(*words: str | Path) -> str:
    """Code that runs the command line."""
    return f"sys.argv = ['transduce', *{[*map(str, words)]!r}]\nfrom transduce.__main__ import main\nmain()\n"
