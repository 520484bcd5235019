"""The tokenizers of a server: no thread is started for a text, and tokens are the same."""

from __future__ import annotations

from typing import Any

import pytest

import transduce
from transduce.server import Served, Settings
from transduce.server.state import State
from transduce.server.tokens import direct

TEXTS = ["five", "five, six", " five ", "", " ", "a  b\tc", "fünf\nsechs", "<2de> five", "\ud800 five", "漢字" * 50]


def test_the_same_tokens(served_translator: transduce.Translator) -> None:
    own, found = served_translator.tokenizers, direct(served_translator).tokenizers
    for mine, other in ((own.source, found.source), (own.target, found.target)):
        assert other.encode(TEXTS) == mine.encode(TEXTS)
        assert other.symbols == mine.symbols
    assert found.shared == own.shared
    assert found.digest() == own.digest()


def test_a_server_asks_for_texts_and_not_for_lists(
    served_translator: transduce.Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State([Served("toy", served_translator, (("en", "de"),))], Settings())
    (served,) = state.models.served
    processor: Any = served.translator.tokenizers.source._processor
    asked = []

    def encode(text: Any, **options: Any) -> Any:
        asked.append(text)
        return real(text, **options)

    real = processor.encode
    monkeypatch.setattr(processor, "encode", encode)
    assert served.translator("five, six", to="de") == served_translator("five, six", to="de")
    assert asked
    assert all(isinstance(text, str) for text in asked)
    state.close()
