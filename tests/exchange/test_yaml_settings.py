"""YAML of strangers: a flat mapping of words is read; depth, anchors and size are refused before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("yaml", reason="Marian's settings are YAML: pip install transduce[test]")

import yaml

from transduce.core.errors import RunError
from transduce.exchange import foreign
from transduce.exchange.foreign import read_settings, shown

WHERE = Path("model.yml")


@pytest.fixture(params=["C", "Python"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both of PyYAML's parsers: an installation may lack the one in C."""
    if request.param == "Python":
        monkeypatch.delattr(yaml, "CBaseLoader", raising=False)
    elif not hasattr(yaml, "CBaseLoader"):
        pytest.skip("this PyYAML has no parser in C")
    return str(request.param)


@pytest.mark.usefixtures("loader")
def test_what_marian_writes_is_read_as_words() -> None:
    text = 'type: transformer\ndim-vocabs:\n  - 400\n  - 400\ninput-types:\n  []\nskip: false\nlog: ""\nx: [1, a b]\n'
    assert read_settings(text, WHERE) == {
        "type": "transformer", "dim-vocabs": ["400", "400"], "input-types": [], "skip": "false", "log": "",
        "x": ["1", "a b"],
    }  # fmt: skip
    assert read_settings('"</s>": 0\n<unk>: 1\n"▁ä": 2\n!<!> "a": !<!> "3"\n', WHERE) == {
        "</s>": "0", "<unk>": "1", "▁ä": "2", "a": "3",
    }  # fmt: skip
    pieces = {f"piece{number}": str(number) for number in range(2000)}
    assert read_settings("".join(f"{name}: {number}\n" for name, number in pieces.items()), WHERE) == pieces


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected YAML with names and values"),
        ("- a\n- b\n", "expected YAML with names and values"),
        ("word", "expected YAML with names and values"),
        ("a: [", r"not YAML \("),
        ("a: [[1]]", "an item of 'a' is a list or a mapping, in line 1; expected names with a word"),
        ("a: 1\nb: {c: d}", "the value of 'b' is a list or a mapping, in line 2"),
        ("[1]: 2", "a name is a list or a mapping"),
        ("a: &x 1\nb: *x", r"has an anchor or an alias \(& or \*\), in line 1"),
        ("a: *x", "has an anchor or an alias"),
        ("a: &x [1]", "has an anchor or an alias"),
        ("a: 1\na: 2", "'a' stands there twice"),
        ("a: 1\n---\nb: 2", "expected one YAML document, found several"),
        ('a: "\\ud800"', r"not YAML \("),
        ('a: "\\UFFFFFFFF"', r"not YAML \("),
    ],
)
def test_anything_else_is_refused(text: str, told: str) -> None:
    with pytest.raises(RunError, match=f"model.yml: {told}"):
        read_settings(text, WHERE)


@pytest.mark.usefixtures("loader")
def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "MOST_ENTRIES", 3)
    with pytest.raises(RunError, match="more than 3 entries; expected settings or a vocabulary"):
        read_settings("a: 1\nb: 1\nc: 1\nd: 1", WHERE)
    with pytest.raises(RunError, match="'a' has more than 3 items; expected a setting"):
        read_settings("a: [1, 2, 3, 4]", WHERE)
    monkeypatch.setattr(foreign, "LARGEST", 8)
    with pytest.raises(RunError, match="YAML of 9 characters, 8 at most are read; copy"):
        read_settings("a: 123456", WHERE)


def test_values_are_cut_in_messages() -> None:
    assert shown("word") == "'word'"
    assert len(shown("x" * 10**6)) < 70
    assert len(shown(["x" * 10**6] * 3)) < 70


ALIASES = "\n".join(["a: [x, x]", *(f"{name}: [{', '.join([f'*{name}'] * 9)}]" for name in "bcdefgh")])


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("text", ["a: " + "[" * 50_000, "[" * 50_000, "{a: " * 50_000, "? " * 50_000, ALIASES])
def test_depth_and_aliases_are_refused_at_once(text: str) -> None:
    with pytest.raises(RunError) as caught:
        read_settings(text, WHERE)
    assert len(str(caught.value)) < 300
