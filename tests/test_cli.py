"""The command line: every command end to end on a toy corpus, lines in equal lines out, and errors in plain words.

`run` calls `main()` in this process, which is quick; what only a real process shows (pipes, a full disk) has its own.
"""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer

import transduce
from transduce import cli
from transduce.__main__ import main
from transduce.errors import ConfigError, DataError, RunError, UserError

if TYPE_CHECKING:
    from toy_model import Toy

pytest_plugins = ["toy_model"]

PROGRAM = [sys.executable, "-m", "transduce"]


@dataclass(frozen=True)
class Ran:
    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        """Of standard output; each must end."""
        assert self.out == b"" or self.out.endswith(b"\n")
        return self.out.decode().split("\n")[:-1]


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """`run("translate", folder, stdin=b"...")`: the program in this process."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*words: str | Path, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "argv", ["transduce", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsysbinary.readouterr()
        code: object = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        out, err = capsysbinary.readouterr()
        assert isinstance(code, int)
        return Ran(code, out, err.decode())

    return call


def refused(ran: Ran) -> str:
    """The text of a user's error: exit code 2, nothing but that text, no traceback."""
    assert ran.code == 2, ran
    assert ran.err.startswith("error: "), ran.err
    assert "Traceback" not in ran.err
    return ran.err.removeprefix("error: ").rstrip("\n")


# -- the whole line --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a user has prepared a corpus and trained on it, through real processes."""
    folder = tmp_path_factory.mktemp("walked")
    import toy_model

    toy_model.write_text(folder)

    def go(*words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*PROGRAM, *words], cwd=folder, check=True, capture_output=True)

    sides = [f"{split}.{side}={split}.{end}" for split in ("train", "valid") for side, end in SIDES]
    prepared = go("prepare", "output=corpus", *sides, "tokenizer.vocabulary=330", "workers=1")
    (folder / "prepared.txt").write_bytes(prepared.stdout)
    settings = [word for word in toy_model.SETTINGS if "steps" not in word]
    trained = go("train", "tiny", *settings, "data.folder=corpus", "training.steps=20", "-o", "runs/mine")
    (folder / "trained.txt").write_bytes(trained.stderr)
    return folder


SIDES = (("source", "en"), ("target", "de"))


@pytest.mark.slow
def test_prepare_says_what_it_made(walked: Path) -> None:
    said = (walked / "prepared.txt").read_text(encoding="utf-8")
    assert "corpus: train 200 pairs" in said
    assert "corpus: valid 12 pairs" in said
    assert (walked / "corpus" / "manifest.json").is_file()


@pytest.mark.slow
def test_train_leaves_a_run_folder(walked: Path) -> None:
    names = {path.name for path in (walked / "runs" / "mine").iterdir()}
    assert names >= {"config.toml", "tokenizer", "model.safetensors", "metrics.jsonl", "README.md", "checkpoints"}
    assert "finished: 20 steps, runs/mine is ready" in (walked / "trained.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_train_goes_on_with_the_run_that_is_there(walked: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(walked)
    shutil.copytree("runs/mine", "runs/more")
    ran = run("train", "runs/more/config.toml", "training.steps=22", "--output", "runs/more")
    assert ran.code == 0, ran.err
    assert "going on from step 20" in ran.err
    assert "finished: 22 steps" in ran.err
    text = refused(run("train", "runs/more/config.toml", "model.dropout=0.3", "-o", "runs/more"))
    assert "runs/more: was trained with model.dropout = 0.0, and now 0.3 is asked for; choose another folder" in text


def test_doctor_reports_and_refuses(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_bytes(b"one\ntwo\n\nfour\n")
    (tmp_path / "b").write_bytes(b"eins\nzwei\ndrei\nvier\n")
    ran = run("doctor", "train.source=a", "train.target=b", "workers=1")
    assert ran.code == 0, ran.err
    assert "a:3" in ran.out.decode()
    (tmp_path / "b").write_bytes(b"eins\nzw\xffei\ndrei\nvier\n")
    ran = run("doctor", "train.source=a", "train.target=b", "workers=1")
    assert "this text would be refused:\n" in refused(ran)
    assert "b:2" in ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.slow
def test_average_and_plot(walked: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(walked / "runs" / "mine", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    ran = run("average", "run", "--last", "1")
    assert ran.lines == ["run/model.safetensors: average of 1 checkpoints (steps 20)"]
    assert "9 checkpoints were asked for and" in refused(run("average", "run", "--best", "9"))
    assert "run: say how many checkpoints to average, either --last N or --best N" in refused(run("average", "run"))
    shutil.rmtree("run/checkpoints")
    assert "run: there are no checkpoints to average; expected run/checkpoints/step-..." in refused(
        run("average", "run", "--last", "1")
    )
    assert run("plot", "run", walked / "runs" / "mine", "-o", "both.png").lines == ["both.png"]
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")


def test_config_show(run: Run, tmp_path: Path) -> None:
    ran = run("config", "show", "tiny", "training.steps=7")
    assert "steps = 7 # command line" in ran.lines
    assert "d_model = 128 # preset tiny" in ran.lines
    assert run("config", "show").code == 0
    (tmp_path / "again.toml").write_bytes(ran.out)
    again = run("config", "show", tmp_path / "again.toml")
    assert [line.split(" #")[0] for line in again.lines] == [line.split(" #")[0] for line in ran.lines]


def test_version(run: Run) -> None:
    assert run("--version").lines == [transduce.__version__]


# -- translate -------------------------------------------------------------------------------------------------------


def test_translate_arguments(toy: Toy, run: Run) -> None:
    texts = ["five", "", "ninety-two, three"]
    ran = run("translate", toy.model, *texts, "--to", "de")
    assert (ran.code, ran.lines) == (0, toy.translator(texts, to="de"))


AWKWARD = {
    "empty": b"",
    "one empty line": b"\n",
    "blank lines": b"\n \n\t\n\n",
    "no last newline": b"five\nsix",
    "carriage returns": b"five\r\nsix\r\n\r\n",
    "separators": "five\u2028six\u0085seven\x0beight\x0cnine\x1cten\u2029\rend\nsix\n".encode(),
    "only separators": "\u2028\n\u0085\n\x0c\n\r\n".encode(),
    "emoji": "👩‍👩‍👧‍👦 five 😀\n🇩🇪\n".encode(),
    "long": b"five, " * 500 + b"\nsix\n",
    "long without spaces": b"x" * 3000 + b"\n" + "五".encode() * 500 + b"\nsix\n",
    "nul and controls": b"fi\x00ve\nsi\x1bx\n",
    "byte order mark": b"\xef\xbb\xbffive\nsix\n",
}


@pytest.mark.parametrize("data", AWKWARD.values(), ids=AWKWARD.keys())
def test_as_many_lines_out_as_in(toy: Toy, run: Run, data: bytes) -> None:
    """Lines end at \\n only, in and out; an unended last line is a line."""
    expected = data.count(b"\n") + (not data.endswith(b"\n") and data != b"")
    ran = run("translate", toy.model, "--to", "de", stdin=data)
    assert ran.code == 0, ran.err
    assert len(ran.lines) == expected


def test_order_is_kept_and_neighbours_do_not_matter(toy: Toy, run: Run) -> None:
    texts = ["five", "ninety-two, three", "", "six", "eleven, eleven"] * 7
    ran = run("translate", toy.model, "--to", "zh", stdin="".join(f"{text}\n" for text in texts).encode())
    assert ran.lines == [toy.translator(text, to="zh") for text in texts]


def test_three_thousand_tokens_are_not_cut(toy: Toy, run: Run) -> None:
    text = " ".join(["five, six, seven."] * 500)
    assert len(toy.translator.tokenizers.source.encode([text])[0]) > 3000
    ran = run("translate", toy.model, "--to", "de", "--json", stdin=f"{text}\nfive\n".encode())
    long, short = (json.loads(line) for line in ran.lines)
    assert long["parts"] >= 100
    assert short["parts"] == 1
    one = toy.translator("five, six, seven.", to="de")
    assert long["text"].count(one) == 500


def test_files_in_and_out(toy: Toy, run: Run, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"five\r\n\nsix")
    ran = run("translate", toy.model, "-i", tmp_path / "in", "-o", tmp_path / "out", "--to", "de")
    assert (ran.code, ran.out) == (0, b"")
    expected = toy.translator(["five", "", "six"], to="de")
    assert (tmp_path / "out").read_bytes() == "".join(f"{line}\n" for line in expected).encode()


def test_several_best_are_numbered(toy: Toy, run: Run) -> None:
    ran = run("translate", toy.model, "--to", "de", "--n-best", "2", stdin=b"five\n\nsix\n")
    rows = [line.split("\t") for line in ran.lines]
    assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"]
    assert rows[2][2] == ""
    best = toy.translator.translate(["five"], to="de", n_best=2)[0]
    assert rows[0][1:] == [f"{best.score:.4f}", best.text]
    assert rows[1][1:] == [f"{best.alternatives[0].score:.4f}", best.alternatives[0].text]


def test_json_has_all_that_is_known(toy: Toy, run: Run) -> None:
    ran = run("translate", toy.model, "--to", "de", "--json", "--beam", "3", "--n-best", "2", "five", "")
    first, second = (json.loads(line) for line in ran.lines)
    assert set(first) == {"text", "score", "log_prob", "tokens", "finished", "parts", "alternatives"}
    assert len(first["alternatives"]) == 1
    assert second["text"] == ""


def test_prefix_and_search(toy: Toy, run: Run) -> None:
    ran = run("translate", toy.model, "--to", "de", "--prefix", "acht", "five", "six")
    assert [line.startswith("acht") for line in ran.lines] == [True, True]
    sample = ("translate", toy.model, "--to", "de", "ninety-two, three", "--search")
    assert (
        run(*sample, "kind=sample,temperature=3.0,seed=1").lines
        == run(*sample, "kind=sample,temperature=3.0,seed=1").lines
    )
    assert len({run(*sample, f"kind=sample,temperature=3.0,seed={seed}").out for seed in range(5)}) > 1
    assert run(*sample, "greedy").lines == [toy.translator("ninety-two, three", to="de")]


def test_what_translate_refuses(toy: Toy, run: Run, tmp_path: Path) -> None:
    def text(*words: str | Path, stdin: bytes = b"five\n") -> str:
        return refused(run("translate", *words, stdin=stdin))

    model = toy.model
    assert "standard input:2: not UTF-8 at byte 3" in text(model, stdin=b"five\nsi\xffx\nseven\n")
    assert "no piece '<2xx>'" in text(model, "--to", "xx")
    assert "beam: expected a size of at least 1" in text(model, "--beam", "-2")
    assert "n_best: expected a whole number from 1" in text(model, "--n-best", "0")
    assert "search: give a search, or beam and n_best, not both" in text(model, "--search", "greedy", "--beam", "3")
    assert "search.kind: 'breadth' is not one of beam, greedy, sample" in text(model, "--search", "breadth")
    assert "device: 'moon' is not a device" in text(model, "--device", "moon")
    assert f"{tmp_path / 'no'}: cannot be read: No such file" in text(model, "-i", tmp_path / "no")
    assert "out: cannot be written: No such file" in text(model, "-o", tmp_path / "no" / "out")
    assert "were given; give one of them" in text(model, "five", "-i", tmp_path / "no")
    (tmp_path / "same").write_bytes(b"five\n")
    assert "is read and written at once" in text(model, "-i", tmp_path / "same", "-o", tmp_path / "same")
    assert (tmp_path / "same").read_bytes() == b"five\n"


def test_models_that_are_none(toy: Toy, run: Run, tmp_path: Path) -> None:
    def text(folder: Path) -> str:
        return refused(run("translate", folder, "five"))

    assert "not a trained model (no such folder)" in text(tmp_path / "none")
    assert "not a trained model (no config.toml in it)" in text(tmp_path)
    shutil.copytree(toy.model, tmp_path / "damaged", ignore=shutil.ignore_patterns("checkpoints"))
    weights = tmp_path / "damaged" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 4
    weights.write_bytes(data)
    assert "damaged: its content does not match the SHA-256" in text(tmp_path / "damaged")
    weights.write_bytes(b"\x80\x04" + bytes(20))
    assert "looks like a pickle" in text(tmp_path / "damaged")
    weights.unlink()
    assert "has no model.safetensors yet" in text(tmp_path / "damaged")


# -- score and evaluate ----------------------------------------------------------------------------------------------


def test_score(toy: Toy, run: Run, tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"five\nsix\n\n")
    (tmp_path / "t").write_bytes("fünf\nfünf\nfünf\n".encode())
    ran = run("score", toy.model, tmp_path / "s", tmp_path / "t", "--to", "de")
    expected = toy.translator.score(["five", "six", ""], ["fünf"] * 3, to="de")
    assert ran.lines == [f"{one.log_prob:.4f}\t{one.per_token:.4f}" for one in expected]
    assert all(math.isfinite(float(line.split("\t")[0])) for line in ran.lines)
    (tmp_path / "t").write_bytes(b"a\n")
    text = refused(run("score", toy.model, tmp_path / "s", tmp_path / "t"))
    assert f"{tmp_path / 's'} has 3 lines and {tmp_path / 't'} 1; expected as many in each" in text


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """source, reference, and two systems' translations: a good one and a bad one."""
    monkeypatch.chdir(tmp_path)
    reference = [f"the {n} quick brown foxes jump over {n} lazy dogs" for n in range(30)]
    good = [line.replace("quick", "fast") if i % 5 == 0 else line for i, line in enumerate(reference)]
    bad = [line.replace("jump over", "sit on") for line in reference]
    for name, lines in {"reference": reference, "good": good, "bad": bad, "source": reference}.items():
        Path(name).write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


def test_evaluate_files(texts: Path, run: Run) -> None:
    said = run("evaluate", "reference", "good", "--source", "source", "--other", "bad").out.decode()
    for word in ("30 sentences", "BLEU", "chrF", "TER", "nrefs:1", "source words", "better"):
        assert word in said, word
    assert "good is better than bad by" in said


def test_evaluate_as_json_with_moses(texts: Path, run: Run) -> None:
    ran = run("evaluate", "reference", "good", "--moses", "--language", "en", "-lc", "--json", "--other", "bad")
    found = json.loads(ran.out)
    assert [quality["name"] for quality in found["qualities"]] == [
        "BLEU",
        "chrF2",
        "TER",
        "BLEU (lower-cased, Moses-tokenised)",
    ]
    assert "case:lc" in found["qualities"][0]["signature"]
    assert len(found["verdicts"]) == 3
    assert "Moses tokenising depends on the language" in refused(run("evaluate", "reference", "good", "--moses"))


def test_evaluate_a_model(toy: Toy, run: Run, tmp_path: Path) -> None:
    source, reference = toy.text / "valid.en", toy.text / "valid.de"
    options = ("--source", source, "--to", "de", "--beam", "2", "-o", tmp_path / "out", "--json")
    found = json.loads(run("evaluate", reference, toy.model, *options).out)
    assert found["sentences"] == 12
    sources = source.read_text().split("\n")[:-1]
    assert (tmp_path / "out").read_text().split("\n")[:-1] == toy.translator(sources, to="de", beam=2)
    text = refused(run("evaluate", reference, toy.model))
    assert f"{toy.model} is a model: give the text to translate with --source FILE" in text


def test_evaluate_needs_as_many_lines(texts: Path, run: Run) -> None:
    Path("short").write_text("one\n")
    assert "There are 1 hypotheses, but the reference has 30 lines" in refused(run("evaluate", "reference", "short"))
    assert "gone: cannot be read" in refused(run("evaluate", "reference", "gone"))


# -- errors and usage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [UserError, ConfigError, DataError, RunError])
def test_every_user_error_is_printed_without_a_traceback(
    kind: type[UserError], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise kind("it is so: do this")

    monkeypatch.setattr("transduce.config.layers", fail)
    assert refused(run("config", "show")) == "it is so: do this"


def test_a_fault_of_ours_keeps_its_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("transduce.config.layers", fail)
    with pytest.raises(KeyError, match="ours"):
        run("config", "show")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["trian"], "Did you mean 'train'?"),
        (["translate", "m", "--beem", "3"], "--beam"),
        (["translate", "m", "--beam", "many"], "Invalid value for '--beam'"),
        (["translate"], "Missing argument"),
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
        (["train", "tinny"], "'tinny' is neither a .toml file nor a preset; presets are base, big, small, tiny; did"),
        (["train", "tiny"], "data.folder: no prepared corpus is named; make one with `transduce prepare`"),
        (["train", "tiny", "trainig.steps=3"], "trainig: no such setting; did you mean 'training'?"),
        (["train", "none.toml"], "none.toml: no such file; give a .toml file or one of the presets"),
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
    group = typer.main.get_command(cli.app)
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
    model = "--device --trust"
    assert flags == {
        "": "--version --install-completion --show-completion",
        "prepare": "",
        "doctor": "",
        "train": "--output -o",
        "translate": f"--input -i --output -o --to --beam --n-best --prefix --search --json {model}",
        "score": f"--to {model}",
        "evaluate": f"--source --other --language --lowercase -lc --moses --output -o --to --beam --json {model}",
        "average": "--last --best",
        "plot": "--output -o",
        "demo": "--output -o",
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
def test_a_full_disk_is_told_in_words(unbuffered: str) -> None:
    ran = shell("transduce config show > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert (ran.returncode, ran.stderr) == (2, "error: writing the output: No space left on device\n")


@pytest.mark.slow
def test_a_place_that_may_not_be_written_is_told_in_words() -> None:
    fail = (
        "import sys, transduce.config, transduce.__main__\n"
        "def fail(*words): raise PermissionError(13, 'Permission denied', '/root/x')\n"
        "transduce.config.layers = fail\n"
        "sys.argv = ['transduce', 'config', 'show']\n"
        "transduce.__main__.main()\n"
    )
    ran = subprocess.run([sys.executable, "-c", fail], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (2, "error: /root/x: Permission denied\n")


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
