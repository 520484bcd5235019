"""How inspections are shown: the page of one file, pictures, the terminal, and the command that makes them."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import toys
from cli_runner import Run, refused
from rich.console import Console

from transduce.core.errors import ConfigError, RunError, UserError
from transduce.inspection import picture
from transduce.inspection.inspect import inspect
from transduce.inspection.page import FIRST, FOLDER, bundle, page
from transduce.inspection.record import AttentionMap, Inspection
from transduce.inspection.terminal import View, matrix, show
from transduce.text.number_words import english

if TYPE_CHECKING:
    from toy_model import Toy


@pytest.fixture(scope="module")
def seen(toy: Toy) -> Inspection:
    return inspect(toy.translator, "forty-two, seven", to="de", beam=3, model="toy")


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_is_one_file_that_asks_for_nothing(seen: Inspection) -> None:
    text = page([seen, replace(seen, text='</script><script>alert("<!--")</script>')])
    outside = re.findall(r'(?:src|href)="([^"]*)"|url\(([^)]*)\)', text)
    assert outside == []
    links = set(re.findall(r"https?://[^\s\"'`]+", text))
    assert links <= {"http://www.w3.org/2000/svg"}  # the name of SVG, which nobody fetches
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    first, second = json.loads(data)
    assert first["translation"] == seen.translation
    assert second["text"] == '</script><script>alert("<!--")</script>'
    assert text.count("<script") == 2


def test_the_page_s_policy_allows_its_own_script_and_style_alone(seen: Inspection) -> None:
    text = page([seen])
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    for tag in ("script", "style"):
        (body,) = re.findall(rf"<{tag}(?: type=\"module\")?>(.*?)</{tag}>", text, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in html.unescape(policy)
    assert "default-src 'none'" in policy


def test_every_module_of_the_explorer_is_in_the_page_once() -> None:
    script = bundle(FIRST)
    assert not re.search(r"^(import|export) ", script, flags=re.MULTILINE)
    for path in FOLDER.glob("*.js"):
        (first, *_) = path.read_text(encoding="utf-8").split("\n")
        assert script.count(first) == 1, path
    names = re.findall(r"^(?:const|let|function|class) (\w+)", script, flags=re.MULTILINE)
    assert len(names) == len(set(names)), "modules that become one script may not use a name twice"
    assert all(len(path.read_text(encoding="utf-8").split("\n")) < 400 for path in FOLDER.iterdir())


# -- pictures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", [View(), View("encoder", 0, 1), View("decoder", 0)])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures(view: View, suffix: str, seen: Inspection, tmp_path: Path) -> None:
    output = tmp_path / f"x.{suffix}"
    picture.save([seen, seen], view, output)
    begin = {"png": b"\x89PNG", "svg": b"<?xml"}[suffix]
    assert output.read_bytes().startswith(begin)
    assert output.stat().st_size > 10_000


def test_pictures_that_cannot_be_made(seen: Inspection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"the picture cannot be saved: .*file is a file, not a folder"):
        picture.save([seen], View(), tmp_path / "file" / "x.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"drawing attention needs matplotlib: pip install 'transduce\[plot\]'"):
        picture.draw([seen], View())


# -- the terminal ------------------------------------------------------------------------------------------------------


def test_the_terminal_shows_where_words_look_what_was_nearly_said_and_what_was_finished(seen: Inspection) -> None:
    console = Console(record=True, width=140, file=open("/dev/null", "w"))  # noqa: SIM115
    show(console, seen, View())
    text = console.export_text()
    for expected in (seen.text, seen.translation, "mean of all heads", "Step by step", "✓", "Heads"):
        assert expected in text
    best = max(node.score for node in seen.tree.nodes if node.score is not None) if seen.tree else 0
    assert f"score {best:.2f} ✓" in text


def test_a_matrix_is_darkest_where_the_weight_is() -> None:
    console = Console(record=True, width=80, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(matrix(np.array([[1, 0], [0.3, 0.7]], dtype=np.float32), ["one", "two"], ["a", "bc"]))
    top, below, first, second = (line for line in console.export_text().split("\n")[:4])
    assert (top.split(), below.split()) == (["a", "b"], ["c"])
    assert first.split() == ["one", "██", "··"]
    assert second.split() == ["two", "▒▒", "▓▓"]


def test_long_sentences_are_shown_as_a_list(seen: Inspection) -> None:
    console = Console(record=True, width=60, file=open("/dev/null", "w"))  # noqa: SIM115
    weights = np.full((20, 20), 0.05, dtype=np.float32) + 0.5 * np.eye(20, dtype=np.float32)
    many = tuple(f"word{number}" for number in range(20))
    longer = AttentionMap("encoder.0.self", "encoder", 0, weights[None])
    show(console, replace(seen, source=many, maps=(longer,)), View("encoder"))
    text = console.export_text()
    assert re.search(r"word7 +word7 55%", text)


def test_views_that_are_not_there(seen: Inspection) -> None:
    with pytest.raises(ConfigError, match="part: expected encoder, decoder or cross, got 'both'"):
        View("both")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="head: 1 was requested without a layer; heads differ from layer to layer"):
        View(head=1)
    with pytest.raises(ConfigError, match="head: expected one of the 2 that this model has, 0 to 1, got 2"):
        View("cross", 0, 2).of(seen)
    none = View("decoder").of(replace(seen, maps=()))
    assert (none.title, none.weights) == ("The decoder's own attention: none in this model", None)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_writes_what_is_requested(toy: Toy, run: Run, tmp_path: Path) -> None:
    words = ["inspect", "forty-two", "-m", toy.model, "--to", "de"]
    assert "Step by step" in run(*words).out.decode()
    for name in ("page.html", "x.png", "x.svg", "x.json"):
        ran = run(*words, "--model", toy.model, "--output", tmp_path / name)
        assert (ran.code, ran.lines, ran.err.splitlines()[-1]) == (0, [], f"wrote {tmp_path / name}")
        assert (tmp_path / name).stat().st_size > 1000
    left, right = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert left["translation"] == right["translation"] == toy.translator("forty-two", to="de")


def test_models_of_different_kinds_stand_side_by_side(toy: Toy, run: Run, tmp_path: Path) -> None:
    """A model of one direction has no tag, and is given none; where no model has one, that is said."""
    pairs = [(f"abc {word}", f"cba {word}") for word in map(english, range(60))]
    toys.run(toys.corpus(tmp_path, pairs, pairs[:2]), tmp_path / "mono", "training.steps=2")
    words = ["inspect", "abc", "-m", tmp_path / "mono", "--to", "de"]
    assert run(*words, "-m", toy.model, "-o", tmp_path / "both.json").code == 0
    mono, several = json.loads((tmp_path / "both.json").read_text(encoding="utf-8"))
    assert (mono["to"], several["to"], several["source"][0]) == ("", "de", "<2de>")
    assert refused(run(*words)) == (
        f"--to de: {tmp_path / 'mono'} was trained without tags of target languages, such as <2de>, and has one"
        " direction; leave --to out"
    )


def test_the_command_refuses(toy: Toy, run: Run, tmp_path: Path) -> None:
    words = ["inspect", "forty-two", "-m", toy.model]
    message = refused(run(*words, "-o", tmp_path / "x.pdf"))
    assert message.endswith("x.pdf: expected a name that ends in .html, .png, .svg or .json")
    (tmp_path / "file").write_text("")
    assert "cannot be written: " in refused(run(*words, "-o", tmp_path / "file" / "x.html"))
    assert refused(run(*words, "--head", "1")).startswith("head: 1 was requested without a layer")
