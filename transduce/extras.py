"""Packages that translating does not need: who misses one is told which extra of ours installs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transduce.errors import UserError

# The extra `train` has the first three and protobuf (`google`), `evaluate` the third of them.
_EXPORTING = ("ctranslate2", "onnx", "onnxscript")
_SERVING = ("starlette", "uvicorn", "httptools", "pydantic", "prometheus_client", "python_multipart", "py3langid")
OPTIONAL = ("torch", "safetensors", "sacrebleu", "google", "yaml", *_EXPORTING, *_SERVING)


@contextmanager
def needed_by(what: str, extra: str = "train") -> Iterator[None]:
    """Where one of these packages is missing inside, say who needs it and how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in OPTIONAL:
            raise
        package = {"google": "protobuf"}.get(package, package)
        raise UserError(f"{what} needs {package}: pip install 'transduce[{extra}]'") from None
