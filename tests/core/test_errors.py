"""Words for messages."""

from __future__ import annotations

from transduce.core.errors import counted


def test_one_is_no_plural() -> None:
    found = [counted(1, "line"), counted(2000, "line"), counted(1, "key was", "keys were"), counted(0, "key", "keys")]
    assert found == ["1 line", "2,000 lines", "1 key was", "0 keys"]
