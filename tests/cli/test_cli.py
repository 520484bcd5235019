"""The command line: every command end to end on a toy corpus, and lines in equal lines out."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli_runner import PROGRAM, Run, refused

import transduce
from transduce.text.number_words import chinese

if TYPE_CHECKING:
    from toy_model import Toy


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
def test_train_resumes_the_run_that_is_there(walked: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(walked)
    shutil.copytree("runs/mine", "runs/more")
    ran = run("train", "runs/more/config.toml", "training.steps=22", "--output", "runs/more")
    assert ran.code == 0, ran.err
    assert "resuming from step 20" in ran.err
    assert "finished: 22 steps" in ran.err
    text = refused(run("train", "runs/more/config.toml", "model.dropout=0.3", "-o", "runs/more"))
    assert "runs/more: was trained with model.dropout = 0.0, and now 0.3 is requested; choose another folder" in text


def test_doctor_reports_and_refuses(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_bytes(b"one\ntwo\n\nfour\n")
    (tmp_path / "b").write_bytes(b"eins\nzwei\ndrei\nvier\n")
    ran = run("doctor", "train.source=a", "train.target=b", "workers=1")
    assert ran.code == 0, ran.err
    assert "a:3" in ran.out.decode()
    (tmp_path / "b").write_bytes(b"eins\nzw\xffei\ndrei\nvier\n")
    ran = run("doctor", "train.source=a", "train.target=b", "workers=1")
    assert "this text would be rejected:\n" in refused(ran)
    assert "b:2" in ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "No training pair is left of 0 read; dropped: none by the doctor; a: no lines; give text"),
        (
            b"\n \n",
            "No training pair is left of 2 read; dropped: empty 2; give other text, or keep more of it by `doctor` and"
            " `longest`",
        ),
    ],
)
def test_doctor_and_prepare_refuse_text_that_is_none(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (tmp_path / name).write_bytes(text)
    words = ("train.source=a", "train.target=b", "workers=1")
    examined = run("doctor", *words)
    assert refused(examined) == refused(run("prepare", "output=out", *words)) == message
    assert "0 of" in examined.out.decode()  # the report comes all the same


@pytest.mark.slow
def test_average_and_plot(walked: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(walked / "runs" / "mine", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    ran = run("average", "run", "--last", "1")
    assert ran.lines == ["run/model.safetensors: average of 1 checkpoint (step 20)"]
    assert "9 checkpoints were requested and" in refused(run("average", "run", "--best", "9"))
    assert "run: say how many checkpoints to average, either --last N or --best N" in refused(run("average", "run"))
    shutil.rmtree("run/checkpoints")
    assert "run: there are no checkpoints to average; expected run/checkpoints/step-..." in refused(
        run("average", "run", "--last", "1")
    )
    assert run("plot", "run", walked / "runs" / "mine", "-o", "both.png").lines == ["both.png"]
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")


def test_the_overrides_of_the_manual_do_what_it_says(run: Run) -> None:
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+=[^`]+)` .*?\| (.*) \|$", page.partition("## Overrides")[2], re.M)
    assert len(rows) == 5
    for words, outcome in rows:
        ran = run("config", "show", "tiny", *words.split())
        assert (ran.code == 0) == (not outcome.startswith("error")), ran.err
        if "kind=parallel" in words:
            decoder = ran.lines[ran.lines.index("[model.decoder]") + 1 :]
            assert {'kind = "parallel" # command line', "layers = 2 # command line"} <= set(decoder)


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
    r"""Lines end at \n only, in and out; an unended last line is a line."""
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
    asked = ["--to", "de", "--json", "--protect", "off"]
    ran = run("translate", toy.model, *asked, stdin=f"{text}\nfive\n".encode())
    long, short = (json.loads(line) for line in ran.lines)
    assert long["parts"] >= 100
    assert short["parts"] == 1
    one = toy.translator("five, six, seven.", to="de", protect=False)
    assert long["text"].count(one) == 500


def test_files_in_and_out(toy: Toy, run: Run, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"five\r\n\nsix")
    ran = run("translate", toy.model, "-i", tmp_path / "in", "-o", tmp_path / "out", "--to", "de")
    assert (ran.code, ran.out) == (0, b"")
    expected = toy.translator(["five", "", "six"], to="de")
    assert (tmp_path / "out").read_bytes() == "".join(f"{line}\n" for line in expected).encode()


def test_several_files_one_after_the_other_and_an_old_output_kept_where_one_is_bad(
    toy: Toy, run: Run, tmp_path: Path
) -> None:
    for name, content in (("a", b"five\nsix\n"), ("b", b"seven\n"), ("bad", b"five\nsi\xffx\n"), ("out", b"kept\n")):
        (tmp_path / name).write_bytes(content)
    files = ("-i", tmp_path / "a", "-i", tmp_path / "b", "--to", "de")
    assert run("translate", toy.model, *files).lines == toy.translator(["five", "six", "seven"], to="de")
    text = refused(run("translate", toy.model, "-i", tmp_path / "bad", "-o", tmp_path / "out"))
    assert "bad:2: not UTF-8 at byte 3" in text
    assert (tmp_path / "out").read_bytes() == b"kept\n"


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
    known = {
        "text",
        "score",
        "log_prob",
        "tokens",
        "finished",
        "parts",
        "alternatives",
        "alignment",
        "protection",
        "warnings",
        "token_log_probs",
        "confidence",
        "missing_terms",
    }
    assert set(first) == known
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


def test_words_that_must_appear_and_must_not(toy: Toy, run: Run) -> None:
    words = ("translate", toy.model, "--to", "de", "--json", "five", "six")
    ran = run(
        *words, "--beam", "4", "--include", "elf", "--include", "drei acht", "--exclude", "zehn", "--exclude", "e"
    )
    assert "include: 'elf' cannot be written without 'e', which exclude forbids; drop one" in refused(ran)
    ran = run(
        *words, "--beam", "4", "--include", "elf", "--include", "drei acht", "--exclude", "zehn", "--exclude", "u"
    )
    for line in map(json.loads, ran.lines):
        assert line["finished"]
        assert all(word in line["text"] for word in ("elf", "drei acht"))
        assert not any(word in line["text"] for word in ("zehn", "u"))
    assert "include: words that must appear need a beam search" in refused(run(*words, "--include", "elf"))


def test_spans_that_are_no_language_are_kept_unless_asked(toy: Toy, run: Run) -> None:
    (kept,) = run("translate", toy.model, "--to", "de", "twelve {name} two").lines
    assert kept.count("{name}") == 1
    (lost,) = run("translate", toy.model, "--to", "de", "--protect", "off", "twelve {name} two").lines
    assert lost == toy.translator("twelve {name} two", to="de", protect=False)
    assert "{name}" not in lost
    (own,) = run("translate", toy.model, "--to", "de", "--pattern", r"ORD-\d", "twelve ORD-7 two").lines
    assert "ORD-7" in own
    refused = run("translate", toy.model, "--to", "de", "--pattern", "(", "twelve")
    assert refused.code == 2
    assert "pattern 1, '(', is not a regular expression" in refused.err


def test_groups_and_coverage_are_settings_of_the_search(toy: Toy, run: Run) -> None:
    search = "kind=beam,size=4,n_best=4,groups=4,diversity=2.0,coverage=0.2"
    (line,) = run("translate", toy.model, "--to", "de", "--json", "--search", search, "five").lines
    found = json.loads(line)
    texts = [found["text"], *(other["text"] for other in found["alternatives"])]
    assert len(set(texts)) == len(texts) > 1


def test_what_translate_refuses(toy: Toy, run: Run, tmp_path: Path) -> None:
    def text(*words: str | Path, stdin: bytes = b"five\n") -> str:
        return refused(run("translate", *words, stdin=stdin))

    model = toy.model
    assert "standard input:2: not UTF-8 at byte 3" in text(model, stdin=b"five\nsi\xffx\nseven\n")
    assert text(model, "--to", "xx") == f"--to xx: {model} has no tag of this language; it translates to de, zh"
    for command in ("score", "align"):
        told = refused(run(command, model, toy.text / "valid.en", toy.text / "valid.de", "--to", "xx"))
        assert told.startswith(f"--to xx: {model} has no tag of this language")
    assert "beam: expected a size of at least 1" in text(model, "--beam", "-2")
    assert "n_best: expected an integer from 1" in text(model, "--n-best", "0")
    assert "beam: expected at most 4,096, got 100000" in text(model, "--beam", "100000")
    assert "n_best: expected at most 4,096, got 100000" in text(model, "--n-best", "100000")
    many = text(model, "--search", "kind=sample,samples=1000000")
    assert "search.samples: expected at most 4,096, got 1000000" in many
    if Path("/dev/full").exists():
        assert "/dev/full: cannot be written: the disk is full" in text(model, "-o", Path("/dev/full"))
    assert "search: give a search, or beam and n_best, not both" in text(model, "--search", "greedy", "--beam", "3")
    assert "n_best: expected at most the beam's size (2)" in text(model, "--n-best", "3", "--beam", "2")
    assert "search.kind: '' is not one of beam, greedy, sample" in text(model, "--search", "")
    assert "--pieces: says what the links of --alignments FILE are between, and no such" in text(model, "--pieces")
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


def test_evaluate_finds_the_language_out_and_says_so(texts: Path, run: Run) -> None:
    reference = [chinese(number) for number in range(100_000, 200_000, 7_919)]
    Path("zh").write_text("".join(f"{line}\n" for line in reference), encoding="utf-8")
    Path("made").write_text("".join(f"{line[:-1]}零\n" for line in reference), encoding="utf-8")
    found, given = (
        json.loads(run("evaluate", "zh", "made", "--json", *more).out) for more in ((), ("--language", "zh"))
    )
    assert found["qualities"] == given["qualities"]
    assert found["qualities"][0]["value"] > 30
    assert found["target"] == {"language": "zh", "tokenizer": "zh", "why": "by the script of the references"}
    said = run("evaluate", "zh", "made").out.decode()
    assert "\nBLEU tokenizer: zh (Chinese, by the script of the references)\n" in said
    said = run("evaluate", "reference", "good").out.decode()
    assert "\nBLEU tokenizer: 13a (no language was given or recognised)\n" in said
    said = run("evaluate", "reference", "good", "--language", "sv").out.decode()
    assert "\nBLEU tokenizer: 13a (Swedish, by the language that was given)\n" in said


def test_evaluate_refuses_a_language_that_is_none(texts: Path, run: Run) -> None:
    said = refused(run("evaluate", "reference", "good", "--language", "zz"))
    assert "language: expected a code such as 'de' or 'zh-CN', got 'zz', which is not in ISO 639 (near it: " in said


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
    assert (tmp_path / "out").read_text().split("\n")[:-1] == toy.translator(sources, to="de", beam=2, protect=False)
    both = json.loads(run("evaluate", reference, toy.model, *options, "--other", toy.model).out)
    assert both["searches"] == {str(toy.model): "beam 2"}
    assert both["target"] == {"language": "de", "tokenizer": "13a", "why": "by the tag <2de>"}
    said = run("evaluate", reference, toy.model, *options[:4], "--beam", "1").out.decode()
    assert f"translated by {toy.model} with beam 1\n" in said
    assert [one["value"] for one in both["qualities"]] == [one["value"] for one in found["qualities"]]
    assert "no-such-file: cannot be read" in refused(
        run("evaluate", reference, toy.model, *options, "--other", "no-such-file")
    )
    text = refused(run("evaluate", reference, toy.model))
    assert f"{toy.model} is a model: give the text to translate with --source FILE" in text


def test_evaluate_refuses_options_of_a_model_where_none_is_requested(texts: Path, toy: Toy, run: Run) -> None:
    for words in (["--ensemble", str(toy.model)], ["--beam", "2"], ["--engine", "torch"], ["--device", "cpu"]):
        told = f"{words[0]}: says how a model translates, and good holds translations already; leave it out, or give"
        assert refused(run("evaluate", "reference", "good", *words)).startswith(told)
    for more in ([], ["--other", str(toy.model), "--source", "source"]):
        told = refused(run("evaluate", "reference", "good", "--output", "made", *more))
        assert told.startswith("--output: says how a model translates")


def test_evaluate_needs_as_many_lines(texts: Path, run: Run) -> None:
    Path("short").write_text("one\n")
    assert "There are 1 hypotheses, but the reference has 30 lines" in refused(run("evaluate", "reference", "short"))
    assert "gone: cannot be read" in refused(run("evaluate", "reference", "gone"))


def test_terms_of_a_glossary_are_kept(toy: Toy, run: Run, tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("five\tzwölf\n")
    ran = run("translate", toy.model, "--to", "de", "--glossary", f"en-de={tmp_path}/terms.tsv", "--json", "five")
    found = json.loads(ran.lines[0])
    assert "zwölf" in found["text"]
    assert found["missing_terms"] == []
    assert "expected a glossary in a file that ends in" in refused(
        run("translate", toy.model, "--to", "de", "--glossary", tmp_path / "no.txt", "five")
    )
