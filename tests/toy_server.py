"""The toy model served in this process: `native_toy` is its folder for the native engine, `client` talks to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import transduce
from transduce.exchange import convert

if TYPE_CHECKING:
    from starlette.testclient import TestClient
    from toy_model import Toy

PAIRS = (("en", "de"), ("en", "zh"))


@pytest.fixture(scope="session")
def native_toy(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy as `transduce convert` leaves it."""
    return convert.convert(toy.model, tmp_path_factory.mktemp("served") / "toy", "none")


@pytest.fixture(scope="session")
def served_translator(native_toy: Path) -> transduce.Translator:
    return transduce.load(native_toy)


@pytest.fixture
def client(served_translator: transduce.Translator) -> Iterator[TestClient]:
    """A server of one model, from English to German and Chinese, with all limits as they come."""
    from starlette.testclient import TestClient

    from transduce.server import Served, application

    with TestClient(application([Served("toy", served_translator, PAIRS)]), "http://localhost") as client:
        yield client
