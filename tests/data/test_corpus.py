"""The prepared corpus: what is stored, that it is whole or absent, the same for any number of workers, flat memory."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from transduce.core.durable import whole_folder
from transduce.core.errors import ConfigError, DataError, RunError
from transduce.core.processes import ordered_map
from transduce.data.corpus import Corpus, Span, Split
from transduce.data.formats.parallel import ParallelText
from transduce.data.prepare.run import Prepare, prepare
from transduce.data.prepare.tokenize import token_dtypes
from transduce.text.tokenizer import Tokenizers
from transduce.text.train_tokenizer import GivenTokenizer, SentencePiece

SMALL = SentencePiece(vocabulary=340)
ROOT = Path(__file__).parents[2]


def make_pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 7))) for _ in range(300)]
    sources = [" ".join(draw.choices(words, k=draw.randint(3, 12))) for _ in range(count)]
    return [(source, source[::-1]) for source in sources]


def write(folder: Path, name: str, pairs: list[tuple[str, str]], **settings: object) -> ParallelText:
    path = folder / f"{name}.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8", newline="\n")
    return ParallelText(path=str(path), name=name, **settings)  # type: ignore[arg-type]


@pytest.fixture
def config(tmp_path: Path) -> Prepare:
    return Prepare(
        output=str(tmp_path / "corpus"),
        train=(
            write(tmp_path, "one", make_pairs(300, 1), weight=2.0),
            write(tmp_path, "two", make_pairs(200, 2), tag="<2xx>"),
        ),
        valid=(write(tmp_path, "held", [*make_pairs(20, 3), ("a\u2028b", "c\u0085"), ("", "")]),),
        tokenizer=SMALL,
    )


def test_everything_comes_back(config: Prepare) -> None:
    corpus = prepare(config)
    train, valid, tokenizers = corpus.split("train"), corpus.split("valid"), corpus.tokenizers
    assert train.spans == [Span("one", 0, 300, 2.0, ""), Span("two", 300, 500, 1.0, "<2xx>")]
    assert (len(train), len(valid), corpus.splits) == (500, 22, ["train", "valid"])
    for index, (source, target) in enumerate([*make_pairs(300, 1), *make_pairs(200, 2)]):
        left, right = train.pair(index)
        assert tokenizers.source.decode(left) == ("<2xx> " if index >= 300 else "") + source
        assert tokenizers.target.decode(right) == target
        assert (len(left), len(right)) == (train.source_lengths[index], train.target_lengths[index])
    assert left[0] == tokenizers.source.token("<2xx>")
    assert left.dtype == np.uint16
    assert train.source_lengths.dtype == np.int32
    assert valid.texts()[0][-2:] == ["a\u2028b", ""]
    assert valid.texts()[1][:1] == [make_pairs(20, 3)[0][1]]
    assert not any(set(train.pair(index)[0].tolist()) & {0, 2, 3} for index in range(500))  # no start, end or padding
    with pytest.raises(IndexError, match="pair 500 of 500"):
        train.pair(500)


def test_manifest_and_digest(config: Prepare) -> None:
    corpus = prepare(config)
    manifest = json.loads((corpus.folder / "manifest.json").read_text())
    assert manifest["splits"]["train"]["source_tokens"] == corpus.split("train").source_lengths.sum()
    assert manifest["tokenizer"]["digest"] == corpus.tokenizers.digest()
    listed = set(manifest["files"]) | {"manifest.json"}
    assert listed == {str(path.relative_to(corpus.folder)) for path in corpus.folder.rglob("*") if path.is_file()}
    assert "train.source.txt" not in listed
    assert {"valid.source.txt", "report.txt", "tokenizer/shared.model"} <= listed
    assert Corpus.open(config.output).digest == corpus.digest
    corpus.verify()
    other = prepare(replace(config, output=config.output + "2", longest=255))
    assert other.digest == corpus.digest  # where it lies and limits that nothing meets do not matter


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing(tmp_path: Path) -> None:
    pairs = make_pairs(21_000)
    pairs[15_000:15_000] = pairs[100:200]  # duplicates far apart
    text, valid = write(tmp_path, "train", pairs), write(tmp_path, "valid", pairs[500:510])
    contents = []
    for workers in (1, 2, 3):
        output = tmp_path / f"out{workers}"
        settings = Prepare(
            str(output), (text,), (valid,), tokenizer=replace(SMALL, sentences=5000), longest=40, workers=workers
        )
        corpus = prepare(settings)
        contents.append({p.relative_to(output): p.read_bytes() for p in output.rglob("*") if p.is_file()})
        dropped = {f["check"]: f["count"] for f in corpus.manifest["report"]["corpora"][0]["findings"]}
        assert dropped["duplicates"] >= 100
        assert dropped["overlap_with_valid"] >= 10
        assert dropped["too_many_tokens"] > 10
    assert contents[0] == contents[1] == contents[2]


def test_long_training_pairs_are_dropped_but_held_out_ones_are_not(tmp_path: Path) -> None:
    pairs = [*make_pairs(50), ("ab " * 200, "cd " * 200)]
    config = Prepare(
        str(tmp_path / "out"), (write(tmp_path, "a", pairs),), (write(tmp_path, "v", pairs),), tokenizer=SMALL
    )
    corpus = prepare(replace(config, longest=100, doctor=replace(config.doctor, overlap="keep")))
    assert (len(corpus.split("train")), len(corpus.split("valid"))) == (50, 51)
    assert "too_many_tokens: 1 dropped\n    " in (corpus.folder / "report.txt").read_text()
    assert f"{tmp_path}/a.tsv:51: 'ab ab" in (corpus.folder / "report.txt").read_text()
    assert corpus.split("train").source_lengths.max() <= 100


def test_separate_and_given_tokenizers(config: Prepare, tmp_path: Path) -> None:
    corpus = prepare(replace(config, tokenizer=SentencePiece(vocabulary=330, shared=False, symbols=("<x>",))))
    assert not corpus.tokenizers.shared
    assert corpus.tokenizers.source.token("<x>") > 3
    folder = corpus.folder / "tokenizer"
    given = GivenTokenizer(source=str(folder / "source.model"), target=str(folder / "target.model"))
    again = prepare(replace(config, output=str(tmp_path / "again"), tokenizer=given))
    assert again.tokenizers.digest() == corpus.tokenizers.digest()
    assert np.array_equal(again.split("train").pair(7)[0], corpus.split("train").pair(7)[0])
    tagged = replace(config.train[0], tag="<2zz>")
    with pytest.raises(DataError, match=r"no piece '<2zz>'; was the tokenizer trained with symbols=\['<2zz>'\]\?"):
        prepare(replace(config, output=str(tmp_path / "third"), train=(tagged,), tokenizer=given))


def test_a_lowered_vocabulary_is_noted(config: Prepare) -> None:
    corpus = prepare(replace(config, tokenizer=SentencePiece(vocabulary=50_000)))
    assert "pieces, not the 50,000 requested" in corpus.manifest["report"]["notes"][0]
    assert "not the 50,000 requested" in (corpus.folder / "report.txt").read_text()


def test_large_vocabularies_get_wider_tokens() -> None:
    class Sized:
        def __init__(self, size: int) -> None:
            self.size = size

    sizes = Tokenizers(Sized(65_536), Sized(65_537))  # type: ignore[arg-type]
    assert token_dtypes(sizes) == {"source": "uint16", "target": "uint32"}


def test_an_existing_corpus_is_kept_unless_overwritten(config: Prepare, tmp_path: Path) -> None:
    first = prepare(config)
    with pytest.raises(
        DataError, match="already exists and is complete; choose another output, or set overwrite = true"
    ):
        prepare(config)
    second = prepare(replace(config, overwrite=True, train=config.train[:1]))
    assert len(second.split("train")) == 300
    assert first.digest != second.digest
    failing = replace(config, overwrite=True, train=(ParallelText(path=str(tmp_path / "gone.tsv")),))
    with pytest.raises(DataError, match=r"^train\.path: .*gone\.tsv: no such file; set it to a file that is there$"):
        prepare(failing)
    assert Corpus.open(config.output).digest == second.digest
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_other_folders_and_files_are_never_overwritten(config: Prepare, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    prepare(config)  # an empty folder is fine
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(DataError, match="mine: a folder with other files in it; choose another output"):
        prepare(replace(config, output=str(tmp_path / "mine"), overwrite=True))
    with pytest.raises(DataError, match=r"one\.tsv: a file; expected the name of a folder"):
        prepare(replace(config, output=str(tmp_path / "one.tsv"), overwrite=True))
    with pytest.raises(RunError, match="cannot be written"):
        prepare(replace(config, output="/proc/corpus"))


def test_leftovers_are_removed_and_a_lost_rename_is_mended(config: Prepare, tmp_path: Path) -> None:
    work, old = tmp_path / ".corpus.preparing", tmp_path / ".corpus.replaced"
    (work / "scratch").mkdir(parents=True)
    (work / "scratch" / "junk").write_text("x")
    corpus = prepare(config)
    assert not work.exists()
    os.replace(corpus.folder, old)  # as if killed between the two renames
    with pytest.raises(DataError, match="already exists and is complete"):
        prepare(config)
    assert Corpus.open(config.output).digest == corpus.digest


def test_two_at_once_are_kept_apart(config: Prepare) -> None:
    with whole_folder(Path(config.output), "manifest.json", overwrite=False) as work:
        with pytest.raises(RunError, match="another process is using this folder"):
            prepare(config)
        (work / "manifest.json").write_text("{}")
    assert (Path(config.output) / "manifest.json").exists()


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    def fill() -> None:
        with whole_folder(tmp_path / "out", "manifest.json", overwrite=False), open("/dev/full", "wb", 0) as full:
            full.write(b"x")

    with pytest.raises(RunError, match="no space left on the disk; the unfinished output was removed"):
        fill()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_killed_prepare_leaves_no_processes_and_no_corpus(tmp_path: Path) -> None:
    text = write(tmp_path, "train", make_pairs(60_000))
    script = tmp_path / "run.py"
    script.write_text(
        "from transduce.data.prepare.run import *\nif __name__ == '__main__':\n"
        f"    prepare(Prepare({str(tmp_path / 'out')!r}, (ParallelText(path={text.path!r}),), workers=2))\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], env=os.environ | {"PYTHONPATH": str(ROOT)})
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 60
    while len(started := children.read_text().split()) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)  # two workers and the resource tracker
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(started) >= 3
    while any(Path(f"/proc/{child}/cmdline").exists() for child in started) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{child}/cmdline").exists() for child in started)
    assert not (tmp_path / "out").exists()
    corpus = prepare(Prepare(str(tmp_path / "out"), (write(tmp_path, "few", make_pairs(100)),), tokenizer=SMALL))
    assert len(corpus.split("train")) == 100
    assert not (tmp_path / ".out.preparing").exists()


@pytest.mark.slow
def test_memory_stays_flat(tmp_path: Path) -> None:
    """The parent of 200,000 pairs, measured in a process of its own; the text alone is 26 MB."""
    with gzip.open(tmp_path / "big.tsv.gz", "wt", compresslevel=1, newline="\n") as file:
        for number, (source, target) in enumerate(make_pairs(2000) * 100):
            file.write(f"{number} {source}\t{target} {number}\n")
    code = f"""
import resource
from transduce.data.prepare.run import *
if __name__ == "__main__":
    text = ParallelText(path={str(tmp_path / "big.tsv.gz")!r})
    tokenizer = SentencePiece(vocabulary=400, sentences=5000)
    config = Prepare({str(tmp_path / "out")!r}, (text,), tokenizer=tokenizer, workers=2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    corpus = prepare(config)
    assert len(corpus.split("train")) == 200_000
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    script = tmp_path / "run.py"
    script.write_text(code)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True)
    assert int(result.stdout) < 150_000  # kilobytes


def test_refusals_name_places_and_the_setting(config: Prepare, tmp_path: Path) -> None:
    Path(config.train[0].path).write_bytes(b"caf\xe9\tx\nfine\tgut\n")
    with pytest.raises(DataError, match="The data doctor refuses this text") as caught:
        prepare(config)
    assert f"train, one: invalid_utf8: 1 refused\n  {config.train[0].path}:1: b'caf\\xe9'" in str(caught.value)
    assert "doctor.invalid_utf8 = 'drop'" in str(caught.value)
    assert not Path(config.output).exists()


def test_nothing_left_to_train_on(tmp_path: Path) -> None:
    text = write(tmp_path, "a", [("", "x"), ("y", "y" * 900), ("a", "b"), ("a", "b")])
    held = write(tmp_path, "v", [("a", "b")])
    config = Prepare(str(tmp_path / "out"), (text,), (held,), tokenizer=SMALL)
    message = "No training pair is left of 4 read; dropped: empty 1, ratio 1, overlap_with_valid 2"
    with pytest.raises(DataError, match=message):
        prepare(config)
    long = write(tmp_path, "b", make_pairs(30))
    with pytest.raises(DataError, match="No training pair is left of 30 read; dropped: too_many_tokens 30"):
        prepare(replace(config, train=(long,), longest=1))
    with pytest.raises(DataError, match="No training pair is left of 0 read; dropped: none by the doctor"):
        prepare(replace(config, train=(write(tmp_path, "c", []),)))


def test_opening_what_is_not_a_corpus(config: Prepare, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"nowhere: not a prepared corpus \(no such folder\); make one with `transduce prep"
    ):
        Corpus.open(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"not a prepared corpus \(no manifest\.json in it\)"):
        Corpus.open(tmp_path)
    corpus = prepare(config)
    with pytest.raises(DataError, match="no split 'test'; there are train, valid"):
        corpus.split("test")
    with pytest.raises(DataError, match="the train split keeps tokens only; valid and test keep their text"):
        corpus.split("train").texts()
    tokens = corpus.folder / "train.source.tokens"
    content = tokens.read_bytes()
    tokens.write_bytes(content[:-2])
    with pytest.raises(
        DataError, match=r"train\.source\.tokens: [\d,]+ bytes, expected [\d,]+; prepare the corpus again"
    ):
        Corpus.open(corpus.folder)
    tokens.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(DataError, match=r"train\.source\.tokens: its SHA-256 is not the one in manifest\.json"):
        Corpus.open(corpus.folder).verify()
    tokens.unlink()
    with pytest.raises(DataError, match=r"train\.source\.tokens: missing, though manifest\.json lists it"):
        Corpus.open(corpus.folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, r"manifest\.json: version 2; this program reads version 1; prepare the corpus again"),
        ({"format": "other"}, r"manifest\.json: damaged \(.*format is 'other', expected 'transduce corpus'"),
        ({"files": {"../x": {"bytes": 1, "sha256": ""}}}, r"damaged \(.*lies outside the folder"),
        ({"files": {"x": {"bytes": "1", "sha256": ""}}}, r"damaged \(.*no size and hash for 'x'"),
        ({"files": []}, r"manifest\.json: damaged"),
        ({"splits": {"train": {"spans": [{"name": "a"}]}}}, r"manifest\.json: damaged"),
        ({"splits": {"train": {"spans": [[1, 2, 3]]}}}, r"manifest\.json: damaged"),
        ({"dtypes": {"source": "float64", "target": "uint16"}}, r"manifest\.json: damaged"),
    ],
)
def test_damaged_manifests(config: Prepare, change: dict[str, object], message: str) -> None:
    path = prepare(config).folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=message):
        Corpus.open(config.output)
    for text in ("{", "[" * 100_000, '{"version": ' + "9" * 5000 + "}"):
        path.write_text(text)
        with pytest.raises(DataError, match=r"manifest\.json: damaged"):
            Corpus.open(config.output)
    os.truncate(path, 1 << 40)  # sparse: it is not read
    with pytest.raises(DataError, match=r"manifest\.json: damaged .*larger than"):
        Corpus.open(config.output)


def test_files_that_do_not_belong_together(config: Prepare) -> None:
    corpus = prepare(config)
    with pytest.raises(DataError, match=r"train\.source\.offsets and \.tokens do not belong together"):
        Split(corpus.folder, "train", [Span("one", 0, 7, 1.0, "")], corpus.manifest["dtypes"])


def span_of(**changes: object) -> dict[str, object]:
    return {"name": "one", "start": 0, "stop": 3, "weight": 1.0, "tag": "", **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *[
            ({"weight": weight}, "weight of 'one' is .*, expected a number above 0, up to 1,000,000")
            for weight in ("x", None, [], {}, True, 0, -1.0, float("nan"), float("inf"), 1e308, 3_000_000)
        ],
        ({"start": 0.0}, r"start of 'one' is 0\.0, expected an integer"),
        ({"stop": 0.0}, r"stop of 'one' is 0\.0, expected an integer"),
        ({"stop": True}, "stop of 'one' is True, expected an integer"),
        *[
            ({"name": name}, "a span whose name is .*, expected one line of text")
            for name in ("\ud800", 7, None, "a\nb")
        ],
        *[({"tag": tag}, "a span whose tag is .*, expected one line of text") for tag in ("\ud800", [], "\x1b[2J")],
    ],
)
def test_spans_that_are_none(config: Prepare, changes: dict[str, object], message: str) -> None:
    path = Path(config.output) / "manifest.json"
    if not path.exists():
        prepare(config)
    manifest = json.loads(path.read_text())
    manifest["splits"]["train"]["spans"] = [span_of(**changes)]
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=rf"manifest\.json: damaged \(.*{message}.*; prepare the corpus again"):
        Corpus.open(config.output)


def test_a_split_whose_name_is_no_text(config: Prepare) -> None:
    path = prepare(config).folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["splits"]["\ud800"] = {"spans": []}
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"damaged \(.*a split called "):
        Corpus.open(config.output)


@pytest.mark.parametrize("side", ["source", "target", "alignment"])
@pytest.mark.parametrize("place", [0, 5])
def test_offsets_that_do_not_rise_within_the_file(
    tmp_path: Path, side: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = make_pairs(40)
    text = write(tmp_path, "text", pairs)
    links = tmp_path / "links"
    links.write_text("0-0\n" * len(pairs))
    corpus = prepare(Prepare(str(tmp_path / "out"), (replace(text, alignment=str(links)),), tokenizer=SMALL))
    path = corpus.folder / f"train.{side}.offsets"
    for value in (10**6, 2**63, 2**64 - 1):
        offsets = np.fromfile(path, "<u8")
        offsets[place] = value
        corpus.folder.joinpath(path.name).write_bytes(offsets.tobytes())
        split = Corpus.open(corpus.folder).split("train")
        asked = [lambda split=split: split.pair(7), lambda split=split: split.longest]
        for ask in asked if side != "alignment" else [lambda split=split: split.links(7)]:
            with pytest.raises(DataError, match=rf"train\.{side}\.offsets do not rise from 0; damaged; prepare the"):
                ask()


@pytest.mark.parametrize("side", ["source", "target"])
def test_tokens_beyond_the_vocabulary(config: Prepare, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found when the first pair is read, wherever in the file they are."""
    corpus = prepare(config)
    size = corpus.tokenizers.source.size
    path = corpus.folder / f"train.{side}.tokens"
    tokens = np.fromfile(path, "<u2")
    tokens[-1] = size - 1
    path.write_bytes(tokens.tobytes())
    monkeypatch.setattr("transduce.data.corpus._BLOCK", 100)
    assert len(Corpus.open(config.output).split("train").pair(0)) == 2
    tokens[-1] = size
    path.write_bytes(tokens.tobytes())
    split = Corpus.open(config.output).split("train")
    assert split.longest[0] > 0  # lengths need no tokens
    message = f"train\\.{side}\\.tokens has a token {size}, and its tokenizer has those below {size}; damaged; prepare"
    for _ in range(2):
        with pytest.raises(DataError, match=message):
            split.pair(0)


def test_held_out_text_that_is_damaged(config: Prepare) -> None:
    corpus = prepare(config)
    path = corpus.folder / "valid.target.txt"
    good = path.read_bytes()
    assert len(corpus.split("valid").texts()[1]) == len(corpus.split("valid"))
    for content, message in (
        (b"\xff" + good[1:], r"valid\.target\.txt: damaged \(not UTF-8 at byte 0\); prepare the corpus again"),
        (good + b"\n", r"damaged \(\d+ whole lines, and the split has \d+ pairs\); prepare the corpus again"),
        (good[:-1] + b"x", r"damaged \(\d+ whole lines, and"),
        (b"", r"damaged \(0 whole lines, and"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            corpus.split("valid").texts()


def test_odd_names_of_corpora_are_written_out(tmp_path: Path) -> None:
    assert ParallelText(path="a/b.tsv").label == "b.tsv"
    assert ParallelText(path="a.tsv", name="x\ny\x1b").label == "x y\\x1b"
    assert ParallelText(path=os.fsdecode(b"a/\xff.tsv")).label == "\\udcff.tsv"


def test_settings_messages() -> None:
    text = (ParallelText(path="a.tsv"),)
    with pytest.raises(ConfigError, match="output: expected the folder to write"):
        Prepare("", text)
    with pytest.raises(ConfigError, match="train: expected at least one corpus"):
        Prepare("out", ())
    with pytest.raises(ConfigError, match="longest: expected at least 1, got 0"):
        Prepare("out", text, longest=0)


def die(number: int) -> int:
    if number == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_workers_keep_order_and_bounded_work() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(200):
            taken += 1
            yield number

    results = ordered_map(abs, items(), workers=2)
    first = [next(results) for _ in range(3)]
    assert first == [0, 1, 2]
    assert taken < 20
    assert list(results) == list(range(3, 200))
    with pytest.raises(
        RunError, match=r"a worker process died: it was killed, perhaps for lack of memory \(set workers"
    ):
        list(ordered_map(die, range(50), workers=2))


def test_no_torch_behind_the_data() -> None:
    code = "import sys, transduce.data.prepare.run; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
