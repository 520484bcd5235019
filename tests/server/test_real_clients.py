"""Clients as their packages come, and schemathesis, against a server of ours: each that is installed.

They want versions of each other that do not go together, so few are beside this Python. TRANSDUCE_CLIENTS names a
folder of environments as `benchmarks/clients.py --install` makes them, and then all of those run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="pip install transduce[serve]")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import schema
from clients import CLIENTS, Client, run, serving

from transduce.engines.native.library import built

pytestmark = [pytest.mark.skipif(built() is None, reason="the core is not built: make native"), pytest.mark.slow]
FOLDER = os.environ.get("TRANSDUCE_CLIENTS", "")
TEXT = "five"


@pytest.fixture(scope="module")
def address(native_toy: Path) -> Iterator[str]:
    with serving([f"en-de,en-zh={native_toy}"]) as address:
        yield address


def installed(client: Client) -> bool:
    if not FOLDER and client.node:
        return False
    return run(Client(client.name, client.environment, client.packages, "", client.node), folder(), {}) is not None


def folder() -> Path | None:
    return Path(FOLDER).absolute() if FOLDER else None


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_client_finds_what_it_expects(client: Client, request: pytest.FixtureRequest) -> None:
    if not installed(client):
        where = f"in {FOLDER}" if FOLDER else "here"
        pytest.skip(f"{', '.join(client.packages)} is not installed {where}: see docs/serving.md")
    address = request.getfixturevalue("address")
    body = json.dumps({"q": TEXT, "source": "en", "target": "de"}).encode()
    asked = urllib.request.Request(f"{address}/translate", body, {"content-type": "application/json"})
    with urllib.request.urlopen(asked) as answer:
        expected = json.load(answer)["translatedText"]
    assert run(client, folder(), {"URL": address, "TEXT": TEXT, "EXPECTED": expected}) == ""


def test_the_document_tells_what_the_server_does(request: pytest.FixtureRequest) -> None:
    program = os.environ.get("TRANSDUCE_SCHEMATHESIS") or shutil.which("schemathesis", path=Path(sys.prefix) / "bin")
    if program is None:
        pytest.skip("schemathesis is not installed here: see docs/serving.md")
    address = request.getfixturevalue("address")
    options = argparse.Namespace(schemathesis=program, cases=3, seed=1)
    with schema.settings() as config:
        cases, passed = schema.examined(options, address, config)
    assert passed
    assert cases > 20
    assert not [status for (_, status) in schema.statuses(address) if status >= 500 and status != 503]
