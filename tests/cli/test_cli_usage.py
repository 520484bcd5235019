"""How the command line is used and misused: errors in plain words, help with examples, the frozen list of flags.

What only a real process shows (pipes, a full disk) runs in one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer
from cli_runner import PROGRAM, Run, refused

from transduce import cli
from transduce.core.errors import ConfigError, DataError, RunError, UserError

if TYPE_CHECKING:
    from toy_model import Toy


# -- errors and usage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [UserError, ConfigError, DataError, RunError])
def test_every_user_error_is_printed_without_a_traceback(
    kind: type[UserError], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise kind("it is so: do this")

    monkeypatch.setattr("transduce.core.config.layers", fail)
    assert refused(run("config", "show")) == "it is so: do this"


def test_a_fault_of_ours_keeps_its_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("transduce.core.config.layers", fail)
    with pytest.raises(KeyError, match="ours"):
        run("config", "show")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["trian"], "Did you mean 'train'?"),
        (["translate", "m", "--beem", "3"], "--beam"),
        (["translate", "m", "--beam", "many"], "Invalid value for '--beam'"),
        (["evaluate", "r"], "Missing argument"),
        (["config", "shwo"], "Did you mean 'show'?"),
    ],
)
def test_wrong_usage_exits_with_2_and_suggests(words: list[str], expected: str, run: Run) -> None:
    ran = run(*words)
    assert ran.code == 2
    assert expected in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["train", "tinny"],
            "'tinny' is neither a .toml file nor a preset; presets are base, big, modern, small, tiny",
        ),
        (["train", "tiny"], "data.folder: no prepared corpus is named; make one with `transduce prepare`"),
        (["train", "tiny", "trainig.steps=3"], "trainig: no such setting; did you mean 'training'?"),
        (["train", "none.toml"], "none.toml: no such file; give a .toml file or one of the presets"),
        (
            ["compare", "none.toml"],
            "none.toml: no such file; give a comparison file, a .toml file with a [[variant]] for",
        ),
        (["compare", "tiny"], "tiny: no such file; give a comparison file, a .toml file with a [[variant]] for each"),
        (["train", "tiny", "data.folder=nowhere"], "nowhere"),
        (["prepare"], "output: must be given, and has no default"),
        (["prepare", "output=o"], "train: must be given, and has no default"),
        (["doctor", "train.source=gone", "train.target=gone"], "gone: "),
        (["average", "gone", "--last", "2"], "gone: not a trained model (no such folder)"),
        (["plot", "gone"], "gone"),
    ],
)
def test_what_the_other_commands_refuse(
    words: list[str], expected: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in refused(run(*words))


def test_text_in_other_formats_that_cannot_be_read(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def text(path: str, data: bytes) -> str:
        Path(path).write_bytes(data)
        return refused(run("doctor", f"train.path={path}", "workers=1"))

    assert "a.jsonl:1: no field 'target'; there are ['source']. Set columns to two of them" in text(
        "a.jsonl", b'{"source": "x"}\n'
    )
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"en": ["one"]}), "made.parquet")
    assert "a.parquet: no column 'source'; there are ['en']" in text("a.parquet", Path("made.parquet").read_bytes())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "b.parquet: reading Parquet needs pyarrow: pip install transduce[parquet]" in text("b.parquet", b"")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert "reading .zst files needs zstandard: pip install transduce[zstd]" in text("a.tsv.zst", b"x")


def commands() -> dict[str, typer.core.TyperCommand]:
    group = typer.main.get_command(cli.program([]))
    found = dict(group.commands)  # type: ignore[attr-defined]
    nested = found.pop("config")
    return {"": group, **found, **{f"config {name}": one for name, one in nested.commands.items()}}


@pytest.mark.parametrize("name", [name for name in commands() if name])
def test_help_shows_an_example(name: str, run: Run) -> None:
    ran = run(*name.split(), "--help")
    assert ran.code == 0
    assert f"transduce {name}" in ran.out.decode().split("Examples:")[1]


def test_the_program_alone_shows_its_help(run: Run) -> None:
    ran = run()
    assert "Usage" in ran.out.decode() + ran.err
    assert all(name.split()[0] in ran.out.decode() + ran.err for name in commands() if name)


def test_the_flags_are_these_and_no_others() -> None:
    """Everything about a run is a key of its config; a new flag needs a reason and a line here."""
    flags = {
        name: " ".join(
            option
            for parameter in command.params
            for option in (*parameter.opts, *parameter.secondary_opts)
            if option.startswith("-") and option != "--help"
        )
        for name, command in commands().items()
    }
    opening = "--engine --precision --graphs --device --trust"
    model = f"--ensemble {opening}"
    assert flags == {
        "": "--version --install-completion --show-completion",
        "prepare": "--shard --wait --merge",
        "doctor": "",
        "train": "--output -o",
        "translate": "--input -i --output -o --to --from --beam --n-best --prefix --include --exclude --glossary"
        f" --search --protect --pattern --json --alignments --pieces --min-confidence --fallback {model}",
        "transcribe": f"--input -i --output -o --beam --n-best --search --skip --json {model}",
        "score": f"--to {model}",
        "align": f"--to --layer --pieces {model}",
        "confidence": f"--source --target --to --sentences --beam {opening}",
        "evaluate": "--source --other --language --lowercase -lc --moses --errors --output -o --to --beam --protect"
        f" --json {model}",
        "serve": f"--host --port --api-keys {opening}",
        "inspect": f"--model -m --output -o --to --beam --target --prefix --part --layer --head {opening}",
        "average": "--last --best",
        "convert": "--quantize",
        "distill": f"--output -o --corpus --ensemble --beam --best-of --keep-original --workers {opening}",
        "plot": "--output -o",
        "compare": "--output -o --jobs",
        "pipeline": "--from --until --list",
        "demo": "--output -o --train",
        "import": "--as-trained",
        "export": "--to",
        "lab": "--output -o",
        "config schema": "",
        "config show": "",
    }


# -- a real process --------------------------------------------------------------------------------------------------


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = " ".join(PROGRAM)
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command.replace('transduce', program)}"],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_is_no_error(unbuffered: str) -> None:
    ran = shell("transduce config show tiny | true", PYTHONUNBUFFERED=unbuffered)
    assert (ran.returncode, ran.stderr) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_reported_in_words(unbuffered: str) -> None:
    ran = shell("transduce config show > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert (ran.returncode, ran.stderr) == (2, "error: writing the output: the disk is full\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("closed", "told"),
    [
        ("config show tiny >&-", "error: writing the output: it is closed\n"),
        ("translate MODEL --to de five >&-", "error: writing the output: it is closed\n"),
        ("translate MODEL --to de <&-", "error: standard input: cannot be read: it is closed\n"),
    ],
)
def test_a_closed_stream_is_reported_in_words(closed: str, told: str, toy: Toy) -> None:
    ran = shell(f"transduce {closed.replace('MODEL', str(toy.model))}")
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", told)


@pytest.mark.slow
def test_closed_streams_that_are_not_needed_are_not_missed(toy: Toy, tmp_path: Path) -> None:
    ran = shell(f"transduce translate {toy.model} --to de five <&- 2>&-")
    assert (ran.returncode, ran.stdout) == (0, toy.translator("five", to="de") + "\n")
    assert shell(f"transduce translate {toy.model} --to de five -o {tmp_path / 'out'} >&-").returncode == 0
    assert (tmp_path / "out").read_text(encoding="utf-8") == ran.stdout


@pytest.mark.slow
def test_a_place_that_may_not_be_written_is_reported_in_words() -> None:
    fail = (
        "import sys, transduce.core.config, transduce.__main__\n"
        "def fail(*words): raise PermissionError(13, 'Permission denied', '/elsewhere/x')\n"
        "transduce.core.config.layers = fail\n"
        "sys.argv = ['transduce', 'config', 'show']\n"
        "transduce.__main__.main()\n"
    )
    ran = subprocess.run([sys.executable, "-c", fail], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (2, "error: /elsewhere/x: Permission denied\n")


@pytest.mark.slow
def test_output_is_utf8_in_any_locale(toy: Toy) -> None:
    ran = subprocess.run(
        [*PROGRAM, "translate", str(toy.model), "--to", "zh"],
        input=b"five\nsix\n",
        capture_output=True,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert ran.stdout.decode().split("\n")[:-1] == toy.translator(["five", "six"], to="zh")
    assert not ran.stdout.isascii()


# -- what is no text -------------------------------------------------------------------------------------------------


def test_a_key_of_a_stranger_moves_no_cursor(tmp_path: Path, run: Run) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[search]\n"\\u001b[31m\\nred" = 1\n')
    text = refused(run("config", "show", config))
    assert text.startswith(f"{config}: search.'\\x1b[31m\\nred': no such setting; settings of kind 'beam': ")
    config.write_text('extends = "\\u001b[31mred.toml"\n')
    assert "\\x1b[31mred.toml: no such file" in refused(run("config", "show", config))


def test_settings_that_are_not_utf8_are_refused(run: Run) -> None:
    assert refused(run("config", "show", "license=\udcff")) == (
        "'license=\\udcff': is not UTF-8; give settings as text in UTF-8"
    )
