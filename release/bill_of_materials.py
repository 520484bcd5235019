"""The software bill of materials of a wheel, as CycloneDX JSON: what it holds, and what it was checked with."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

MODEL = "transduce/everyday/model.native"
VERSION = SchemaVersion.V1_6


def write_bill(path: Path, wheel: Path, python: Path) -> Path:
    """Write the bill of a wheel that is installed in the environment of `python`, valid by the schema."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--spec-version", "1.6", "--output-reproducible"]
    made = subprocess.run([*command, str(python)], capture_output=True, text=True, check=True)
    bill: dict[str, Any] = json.loads(made.stdout)
    own = [part for part in bill["components"] if part["name"] == "transduce"]
    (component,) = own
    component |= {"type": "application", "hashes": [_sha256(wheel.read_bytes())]}
    component.pop("externalReferences", None)  # the path of the file here
    bill["metadata"]["component"] = component
    unwanted = ("transduce", "pip", "setuptools")  # the last two are the environment's own
    others = [part for part in bill["components"] if part["name"] not in unwanted]
    dropped = {part["bom-ref"] for part in bill["components"] if part["name"] in unwanted[1:]}
    bill["dependencies"] = [part for part in bill["dependencies"] if part["ref"] not in dropped]
    bill["components"] = others + contained(wheel)
    text = json.dumps(bill, indent=2, sort_keys=True) + "\n"
    faults = JsonStrictValidator(VERSION).validate_str(text)
    if faults is not None:
        raise ValueError(f"{path.name}: {faults}")
    path.write_text(text)
    return path


def contained(wheel: Path) -> list[dict[str, Any]]:
    """What the wheel holds besides its Python: the weights, and what zig links into the core."""
    with zipfile.ZipFile(wheel) as archive:
        weights = _sha256(archive.read(MODEL))
    zig = subprocess.run([sys.executable, "-m", "ziglang", "version"], capture_output=True, text=True, check=True)
    return [
        {
            "bom-ref": MODEL,
            "type": "machine-learning-model",
            "name": "everyday",
            "description": "Weights and vocabulary of the model that comes along: transduce/everyday/README.md",
            "hashes": [weights],
            "licenses": [{"license": {"id": "CC-BY-2.0"}}],
        },
        {
            "bom-ref": "libc++",
            "type": "library",
            "name": "libc++, libc++abi, libunwind",
            "description": "Linked into transduce/engines/native/libtransduce.so",
            "version": f"as of zig {zig.stdout.strip()}",
            "licenses": [{"expression": "Apache-2.0 WITH LLVM-exception"}],
        },
        {
            "bom-ref": "compiler-rt",
            "type": "library",
            "name": "zig's compiler-rt",
            "description": "Linked into transduce/engines/native/libtransduce.so",
            "version": zig.stdout.strip(),
            "licenses": [{"license": {"id": "MIT"}}],
        },
    ]


def _sha256(content: bytes) -> dict[str, str]:
    return {"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}
