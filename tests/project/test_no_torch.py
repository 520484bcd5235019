"""Translating needs no torch: importing, help, opening a converted model and using it, in processes that have none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from no_torch import MISSING, call, command, convert

import transduce
from transduce.engines.native.library import built
from transduce.exchange import convert as conversion

if TYPE_CHECKING:
    from toy_model import Toy


@pytest.fixture
def converted(toy: Toy, tmp_path: Path) -> Path:
    return convert(toy.model, tmp_path / "converted")


def done(code: str, cwd: Path) -> str:
    """What the code printed."""
    ran = call(code, cwd)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def refused(code: str, cwd: Path) -> str:
    """The text of a user's error, with exit code 2."""
    ran = call(code, cwd)
    assert (ran.returncode, ran.stdout, ran.stderr[:7]) == (2, "", "error: ")
    return ran.stderr[7:-1]


def test_what_a_translator_imports(tmp_path: Path) -> None:
    """Nor what is slow to import, and needed only for some of what a translator can do. A command has typer besides."""
    slow = (*MISSING, "numpy", "rich", "tomlkit", "typer", "pydantic")
    code = (
        "import transduce.translate.translator, transduce.translate.loading\n"
        f"print([name for name in {slow} if sys.modules.get(name)])\n"
        "import transduce.cli.output\n"
        f"print([name for name in {slow} if sys.modules.get(name)])\n"
    )
    ran = call(code, tmp_path, stand_in=False)
    assert (ran.stdout, ran.stderr) == ("[]\n['typer']\n", "")


def test_loading_and_translating(converted: Path, tmp_path: Path) -> None:
    code = (
        "import transduce\n"
        f"translator = transduce.load({str(converted)!r})\n"
        "print(translator('five', to='de'), translator.longest, type(translator.search).__name__, sep='|')\n"
        "(found,) = translator.translate(['one two'], beam=4, to='de', align='pieces')\n"
        "print(len(found.alignment.links) == len(found.tokens) > 2)\n"
        "print(translator.score(['five'], ['fünf'])[0].per_token)\n"
    )
    text, aligned, score = done(code, tmp_path).split("\n")[:-1]
    assert text.endswith("|20|Greedy")
    assert (aligned, score) == ("True", "-0.5")


@pytest.mark.parametrize("name", ["translate", "score", "align", "evaluate", "prepare", "train", ""])
def test_help(name: str, tmp_path: Path) -> None:
    assert "Usage: transduce" in done(command(*name.split(), "--help"), tmp_path)


def test_the_commands_that_use_a_model(converted: Path, tmp_path: Path) -> None:
    for name, lines in (("source", "five\ntwo\n"), ("target", "fünf\nzwei\n")):
        (tmp_path / name).write_text(lines, encoding="utf-8")
    pair = (converted, "source", "target", "--to", "de")
    assert done(command("translate", converted, "five", "--to", "de", "--protect", "off"), tmp_path).endswith("\n")
    asked = ("--to", "de", "--protect", "off", "--search", "kind=sample,samples=2", "--json")
    assert "score" in json.loads(done(command("translate", converted, "five", *asked), tmp_path))
    assert done(command("score", *pair), tmp_path).split("\n")[0].endswith("\t-0.5000")
    assert done(command("align", *pair), tmp_path).startswith("0-0")
    evaluating = command("evaluate", "target", converted, "--source", "source", "--to", "de")
    ran = call(evaluating, tmp_path, missing=("torch", "safetensors"))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "BLEU" in ran.stdout
    assert refused(evaluating, tmp_path) == "measuring translations needs sacrebleu: pip install 'transduce[evaluate]'"


@pytest.mark.parametrize(
    "words", [("train", "tiny"), ("average", "gone"), ("demo", "--train"), ("config", "show"), ("compare", "gone.toml")]
)
def test_commands_that_need_torch_say_so(words: tuple[str, ...], tmp_path: Path) -> None:
    package = "sacrebleu" if words[0] == "compare" else "torch"  # whichever is missed first
    expected = f"transduce {words[0]} needs {package}: pip install 'transduce[train]'"
    assert refused(command(*words), tmp_path) == expected


def test_a_model_that_is_not_converted_needs_torch(toy: Toy, tmp_path: Path) -> None:
    words = f"{toy.model}: a model that is not converted needs torch: pip install 'transduce[train]'"
    assert refused(command("translate", toy.model, "five"), tmp_path) == words


def test_public_names_that_need_torch_say_so(tmp_path: Path) -> None:
    code = "import transduce\ntry:\n    transduce.train\nexcept transduce.UserError as error:\n    print(error)\n"
    assert done(code, tmp_path) == "transduce.train needs torch: pip install 'transduce[train]'\n"


def test_other_missing_modules_are_faults_of_ours(tmp_path: Path) -> None:
    ran = call("sys.modules['sentencepiece'] = None\n" + command("translate", "x", "five"), tmp_path, stand_in=False)
    assert ran.returncode == 1
    assert "ModuleNotFoundError: import of sentencepiece halted" in ran.stderr


def test_what_the_native_engine_refuses(converted: Path, tmp_path: Path) -> None:
    words = command("translate", converted, "five", "--to", "de", "--beam", "9")
    assert refused(words, tmp_path) == (
        "native engine: it has no beam of 9 (here torch cannot do it instead: it is not installed; pip install"
        " 'transduce[train]')"
    )


@pytest.mark.skipif(built() is None, reason="the core is not built: make native")
def test_the_native_engine_needs_no_torch(toy: Toy, tmp_path: Path) -> None:
    """And for a sentence not even numpy."""
    folder = conversion.convert(toy.model, tmp_path / "native")
    here = transduce.load(folder, engine="native")
    words = ("translate", folder, "five", "sixty-two", "--to", "de", "--beam", "4", "--exclude", "elf")
    slow = (*MISSING, "numpy", "rich", "tomlkit")
    code = (
        f"try:\n    {command(*words).replace(chr(10), chr(10) + '    ')}\n"
        f"finally:\n    print([name for name in {slow} if sys.modules.get(name)], file=sys.stderr)\n"
    )
    ran = call(code, tmp_path, stand_in=False)
    expected = here(["five", "sixty-two"], to="de", beam=4, exclude=["elf"])
    assert (ran.returncode, ran.stdout.split("\n")[:-1], ran.stderr) == (0, expected, "[]\n")
    for name, lines in (("source", "five\ntwo\n"), ("target", "fünf\nzwei\n")):
        (tmp_path / name).write_text(lines, encoding="utf-8")
    pair = (folder, "source", "target", "--to", "de")
    scores, links = (call(command(name, *pair), tmp_path, stand_in=False) for name in ("score", "align"))
    texts = (["five", "two"], ["fünf", "zwei"], "de")
    assert [line.split("\t")[0] for line in scores.stdout.split("\n")[:-1]] == [
        f"{one.log_prob:.4f}" for one in here.score(*texts)
    ]
    assert links.stdout.split("\n")[:-1] == [one.pharaoh() for one in here.align(*texts)]
    asked = command("translate", folder, "five", "--to", "de", "--search", "kind=beam,coverage=0.2")
    refusal = call(asked, tmp_path, stand_in=False)
    assert refusal.returncode == 2
    assert refusal.stderr.startswith("error: native engine: its beam search has no 'coverage'")
    assert "here torch cannot do it instead" in refusal.stderr
