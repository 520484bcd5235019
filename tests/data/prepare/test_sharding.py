"""Shards and resuming: the same bytes as one undisturbed `prepare`, whatever was split, killed, damaged or changed."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from cli_runner import Run, refused

from transduce.core.durable import lock_folder
from transduce.core.errors import ConfigError, DataError, RunError
from transduce.data.corpus import Corpus
from transduce.data.doctor.checks import Doctor
from transduce.data.formats.inventory import (
    STEP,
    FileIndex,
    LineReader,
    Shard,
    cut,
    index_file,
    index_splits,
    index_text,
    read_ranges,
)
from transduce.data.formats.parallel import ParallelText
from transduce.data.formats.parquet import ParquetReader
from transduce.data.prepare.run import Prepare, ShardReport, merge_shards, prepare, prepare_shard
from transduce.text.train_tokenizer import GivenTokenizer, SentencePiece

ROOT = Path(__file__).parents[3]
Pairs = list[tuple[str, str]]


def make_pairs(count: int, seed: int) -> Pairs:
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 7))) for _ in range(200)]
    sources = [" ".join(draw.choices(words, k=draw.randint(3, 12))) for _ in range(count)]
    return [(source, source[::-1]) for source in sources]


def lines(texts: list[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


def two_files(folder: Path, name: str, pairs: Pairs, align: bool = False, **settings: object) -> ParallelText:
    """Plain files, or packed ones if the name ends in .gz; with a link of the first words where `align` is set."""
    stem, packed = name.removesuffix(".gz"), name.endswith(".gz")
    contents = {"en": lines([s for s, _ in pairs]), "de": lines([t for _, t in pairs])}
    contents["align"] = lines([f"0-0 {s.count(' ')}-0" if s and t else "" for s, t in pairs])
    paths = {}
    for kind, content in contents.items():
        paths[kind] = folder / f"{stem}.{kind}{'.gz' if packed else ''}"
        paths[kind].write_bytes(gzip.compress(content, mtime=0) if packed else content)
    aligned = {"alignment": str(paths["align"])} if align else {}
    return ParallelText(str(paths["en"]), str(paths["de"]), **aligned, **settings)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is synced outlives a failing disk; a process that dies, as here, needs it not."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Prepare:
    """Text that no test changes."""
    return make_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def alone(text: Prepare, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The corpus that one undisturbed process makes of it."""
    return content(prepare(replace(text, output=str(tmp_path_factory.mktemp("alone") / "corpus"))).folder)


@pytest.fixture
def config(text: Prepare, tmp_path: Path) -> Prepare:
    return replace(text, output=str(tmp_path / "corpus"))


@pytest.fixture
def own(tmp_path: Path) -> Prepare:
    """A corpus with text of its own, to be changed."""
    return make_text(tmp_path)


def make_text(tmp_path: Path) -> Prepare:
    """All that could differ between shards: repeats far apart, overlap, faults, tags, weights, links, formats."""
    first, second = make_pairs(130, 1), make_pairs(90, 2)
    odd = [
        ("caf\x07é", "x y"),
        ("", "empty"),
        ("漢字", "字"),
        ("w" + " w" * 90, "w" + " w" * 90),
        ("a\u00a0b c", "d e f"),
    ]
    tsv = tmp_path / "tab.tsv.gz"
    tsv.write_bytes(gzip.compress(lines([f"{s}\t{t}" for s, t in [*make_pairs(70, 4), *first[:9]]])))
    table = [*make_pairs(50, 5), *second[:5]]
    columns = {"source": [s for s, _ in table], "target": [t for _, t in table]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "rows.parquet", row_group_size=7)
    return Prepare(
        output=str(tmp_path / "corpus"),
        train=(
            two_files(tmp_path, "plain", [*first[:60], *odd, *first[60:], *first[:20]], align=True, weight=2.0),
            two_files(tmp_path, "packed.gz", [*second, *first[30:50], *second[10:30]], tag="<2xx>"),
            two_files(tmp_path, "twice", [*first[100:], *make_pairs(30, 6)]),
            ParallelText(path=str(tsv)),
            ParallelText(path=str(tmp_path / "rows.parquet")),
        ),
        valid=(two_files(tmp_path, "held", [*make_pairs(20, 3), *first[5:8], ("", "")], align=True),),
        test=(two_files(tmp_path, "tested.gz", [*make_pairs(20, 7), second[3]]),),
        tokenizer=SentencePiece(vocabulary=340, character_coverage=0.99),
        longest=60,
        workers=1,
    )


def content(folder: str | Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_the_corpus_has_everything_that_could_go_wrong(config: Prepare) -> None:
    report = prepare(config).manifest["report"]
    found = {finding["check"] for corpus in report["corpora"] for finding in corpus["findings"]}
    assert found >= {"control", "empty", "aligned", "overlap_with_valid", "overlap_with_test", "duplicates"}
    assert found >= {"too_many_tokens", "alignment_lost", "unknown_characters_in_source"}


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_shards_give_the_same_bytes(config: Prepare, alone: dict[str, bytes], tmp_path: Path, shards: int) -> None:
    order = random.Random(shards).sample(range(1, shards + 1), shards)
    for number in order:
        report = prepare_shard(config, Shard(number, shards))
    assert (report.tokenized, report.behind) == (True, tuple(sorted(order[:-1])))  # the last found all examined
    assert not Path(config.output).exists()
    again = prepare_shard(config, Shard(order[0], shards))
    assert again == ShardReport(Shard(order[0], shards), True, True, tuple(sorted(order[1:-1])))
    assert content(merge_shards(config, shards).folder) == alone
    assert hidden(tmp_path) == []


def test_a_given_tokenizer_and_kept_repeats(config: Prepare, tmp_path: Path) -> None:
    trained = prepare(replace(config, output=str(tmp_path / "first")))
    given = GivenTokenizer(shared=str(trained.folder / "tokenizer" / "shared.model"))
    config = replace(config, tokenizer=given, doctor=Doctor(duplicates="keep"))
    alone = content(prepare(replace(config, output=str(tmp_path / "alone"))).folder)
    for number in (1, 2, 3):
        prepare_shard(config, Shard(number, 3))
    assert content(merge_shards(config, 3).folder) == alone


def test_duplicates_are_found_across_shards(tmp_path: Path) -> None:
    pairs = make_pairs(40, 1)
    text = two_files(tmp_path, "text", [*pairs, *pairs[::-1]])
    config = Prepare(str(tmp_path / "out"), (text,), tokenizer=SentencePiece(vocabulary=300), workers=1)
    shares = [prepare_shard(config, Shard(number, 2)).shard for number in (1, 2)]
    assert [*map(str, shares)] == ["1/2", "2/2"]
    report = merge_shards(config, 2).manifest["report"]["corpora"][0]
    assert (report["pairs"], report["kept"]) == (80, 40)
    assert report["findings"][0]["places"][0] == f"{text.source}:41: as in {text.source}:40"


def test_shards_that_wait_for_each_other(
    config: Prepare, alone: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = [threading.Thread(target=prepare_shard, args=(config, Shard(n, 3), True)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join(60)
    assert "waiting: shards 2, 3 of 3 are not examined yet" in capsys.readouterr().err
    assert content(merge_shards(config, 3).folder) == alone


def test_parts_of_machines_without_a_common_folder(config: Prepare, alone: dict[str, bytes], tmp_path: Path) -> None:
    for number in (1, 2):
        prepare_shard(replace(config, output=str(tmp_path / f"machine{number}" / "corpus")), Shard(number, 2))
    parts = [tmp_path / f"machine{number}" / ".corpus.parts" for number in (1, 2)]
    shutil.copytree(parts[1], parts[0], dirs_exist_ok=True)
    merged = merge_shards(replace(config, output=str(tmp_path / "machine1" / "corpus")), 2)
    assert content(merged.folder) == alone


def test_shares_are_even_and_cover_every_line_once(config: Prepare) -> None:
    corpora = index_splits(config.splits)
    for shards in (1, 2, 5, 1000):
        line_ranges = cut(corpora, shards)
        seen = [(s.section, s.file, line) for s in line_ranges for line in range(s.first, s.first + s.count)]
        total = sum(contents.lines for contents in corpora)
        assert len(seen) == len(set(seen)) == total
        counts = [sum(s.count for s in line_ranges if s.shard == n) for n in range(1, shards + 1)]
        assert max(counts) - total / shards <= max(1, total / (2 * shards))
        assert [s.shard for s in line_ranges] == sorted(s.shard for s in line_ranges)


# -- reading from anywhere ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("packed", [False, True])
def test_lines_from_anywhere(tmp_path: Path, packed: bool, ended: bool) -> None:
    texts = [b"%d" % number * (number % 7) for number in range(2 * STEP + 1)]
    whole = b"\n".join(texts) + (b"\n" if ended else b"")
    path = tmp_path / ("a.gz" if packed else "a")
    path.write_bytes(gzip.compress(whole) if packed else whole)
    index = index_file(str(path))
    assert (index.lines, len(index.starts)) == (len(texts), 0 if packed else 3)
    for wanted in ([0, 5, STEP - 1, STEP, STEP + 3], [STEP + 1, 2 * STEP], [2 * STEP]):
        reader = LineReader(index)
        assert [reader.take(first, 1) for first in wanted] == [[texts[first]] for first in wanted]
    path.write_bytes(gzip.compress(b"x\n") if packed else b"x\n")
    with pytest.raises(DataError, match=r"has fewer lines than when they were counted; it was changed meanwhile"):
        LineReader(index).take(0, 2)


def test_rows_from_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = [str(number) for number in range(100)]
    pyarrow.parquet.write_table(pyarrow.table({"source": texts, "target": texts}), path, row_group_size=30)
    text = ParallelText(path=str(path))
    (files,) = index_text(text)
    assert files.source.lines == 100
    rows = ParquetReader(str(path), ("source", "target"))
    for first in (0, 3, 30, 61, 99):
        assert rows.read(first, 1) == [(b"%d" % first, b"%d" % first)]
    with pytest.raises(DataError, match="has fewer lines than when they were counted"):
        list(read_ranges(text, files, [(99, 2)]))


def test_a_touched_file_is_unchanged_and_a_rewritten_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\n")
    index: FileIndex = index_file(str(path))
    os.utime(path, (1, 1))
    assert index.is_unchanged()
    path.write_bytes(b"two\n")
    assert not index.is_unchanged()
    path.unlink()
    assert not index.is_unchanged()


# -- going on ----------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Ends a preparation as a kill does: nothing is tidied up."""


def stop_at(monkeypatch: pytest.MonkeyPatch, target: str, count: int) -> Callable[[], None]:
    """Make call number `count` of a function fail; gives what undoes it."""
    module, _, name = target.rpartition(".")
    original = getattr(sys.modules[module], name)
    calls = 0

    def fail(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == count:
            raise Killed
        return original(*arguments, **options)

    monkeypatch.setattr(target, fail)
    return lambda: monkeypatch.setattr(target, original)


PARTS = "transduce.data.prepare.work_folder.sync_tree"
STEPS = [
    (PARTS, 1),  # a part is written and not yet in its place: of the first line range,
    (PARTS, 3),  # a later one,
    (PARTS, 8),  # the marks,
    (PARTS, 9),  # the tokenizer,
    (PARTS, 12),  # tokens
    ("transduce.data.prepare.run._write_text", 1),
    ("transduce.data.prepare.run.mark_done", 1),
    ("transduce.core.durable.sync_tree", 1),
    ("transduce.data.prepare.run.discard", 1),
]


@pytest.mark.parametrize(("target", "count"), STEPS)
def test_a_stopped_prepare_resumes_to_identical_bytes(
    config: Prepare, alone: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, count: int
) -> None:
    undo = stop_at(monkeypatch, target, count)
    with pytest.raises(Killed):
        prepare(config)
    undo()
    finished = "discard" in target
    assert Path(config.output).exists() is finished
    assert hidden(tmp_path) == [".corpus.parts"]
    made = sum(1 for part in (tmp_path / ".corpus.parts").rglob("facts.json") if ".tmp-" not in str(part))
    assert made >= count - 1 if target == PARTS else made > 10
    corpus = prepare(config)
    assert content(corpus.folder) == alone
    corpus.verify()
    assert hidden(tmp_path) == []


def test_finished_parts_are_not_done_again(
    config: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    undo = stop_at(monkeypatch, "transduce.data.prepare.run.assemble", 1)
    with pytest.raises(Killed):
        prepare(config)
    undo()
    for function in (
        "data.doctor.checks.Examiner.check",
        "data.prepare.tokenize.place_links",
        "text.train_tokenizer.SentencePiece.train",
    ):
        monkeypatch.setattr(f"transduce.{function}", None)
    prepare(config)
    told = capsys.readouterr().err
    assert "resuming: 7 of 7 parts are examined" in told
    assert "resuming: 7 of 7 parts are tokenized" in told


def test_a_kill_between_the_end_and_tidying_up_of_an_overwritten_corpus(
    config: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = prepare(replace(config, train=config.train[:1])).digest
    config = replace(config, overwrite=True)
    undo = stop_at(monkeypatch, "transduce.core.durable.sync_tree", 1)  # the word that all is done has been written
    with pytest.raises(Killed):
        prepare(config)
    undo()
    assert Corpus.open(config.output).digest == old
    undo = stop_at(monkeypatch, "transduce.data.prepare.run.discard", 1)
    with pytest.raises(Killed):
        prepare(config)
    undo()
    new = Corpus.open(config.output).digest
    assert new != old
    capsys.readouterr()
    assert prepare(replace(config, overwrite=False)).digest == new
    assert "nothing to do: it is complete" in capsys.readouterr().err
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("what", ["examined/000002/source.txt", "examined/000001/facts.json", "joined/marks"])
def test_damaged_parts_are_done_again(
    config: Prepare,
    alone: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    what: str,
) -> None:
    undo = stop_at(monkeypatch, "transduce.data.prepare.run.assemble", 1)
    with pytest.raises(Killed):
        prepare(config)
    undo()
    path = tmp_path / ".corpus.parts" / what
    path.write_bytes(b"?" + path.read_bytes()[1:])
    assert content(prepare(config).folder) == alone
    assert f"{path.parent}: damaged; redoing it" in capsys.readouterr().err


def test_leftover_parts_without_a_plan_do_not_count(config: Prepare, alone: dict[str, bytes], tmp_path: Path) -> None:
    prepare_shard(replace(config, longest=7, train=config.train[1:]), Shard(1, 1))
    (tmp_path / ".corpus.parts" / "plan.json").unlink()
    assert content(prepare(config).folder) == alone


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Real processes and workers, SIGKILL, until one gets to the end."""
    text = two_files(tmp_path, "text", [*make_pairs(24_000, 1), *make_pairs(12_000, 1)], align=True)
    words = [f"train.source={text.source}", f"train.target={text.target}", f"train.alignment={text.alignment}"]
    words += ["tokenizer.vocabulary=400", "tokenizer.sentences=2000", "workers=2"]
    program = [
        sys.executable,
        "-c",
        "import transduce.data.formats.inventory as s; s.LONGEST = 3000; import transduce.__main__ as m; m.main()",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [*program, "prepare", f"output={tmp_path / 'out'}", *words]
    draw = random.Random(0)
    for goal in sorted(draw.sample(range(1, 11), 3)):  # of 12 ranges: by what is done, so that no pace outruns it
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        while sum("facts.json" in names for _, _, names in os.walk(tmp_path / ".out.parts")) < goal:
            assert process.poll() is None
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    subprocess.run(command, env=environment, check=True)
    subprocess.run([*program, "prepare", f"output={tmp_path / 'alone'}", *words], env=environment, check=True)
    assert content(tmp_path / "out") == content(tmp_path / "alone")


# -- what was changed --------------------------------------------------------------------------------------------------


def begun(config: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    undo = stop_at(monkeypatch, "transduce.data.prepare.run.assemble", 1)
    with pytest.raises(Killed):
        prepare(config)
    undo()


def test_changed_text_and_settings_begin_anew(
    own: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(own, monkeypatch)
    other = replace(own, longest=50)
    begun(other, monkeypatch)
    assert "was started with longest = 60, and now it is 50: starting over" in capsys.readouterr().err
    source = Path(own.train[2].source)
    source.write_bytes(source.read_bytes().replace(b"a", b"b"))
    corpus = prepare(other)
    assert f"{source} was changed: starting over" in capsys.readouterr().err
    assert content(corpus.folder) == content(prepare(replace(other, output=str(tmp_path / "alone"))).folder)


def test_another_given_tokenizer_is_another_setting(
    config: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [
        prepare(replace(config, output=str(tmp_path / str(n)), tokenizer=SentencePiece(vocabulary=n)))
        for n in (340, 350)
    ]
    path = tmp_path / "my.model"
    config = replace(config, tokenizer=GivenTokenizer(shared=str(path)))
    shutil.copy(models[0].folder / "tokenizer" / "shared.model", path)
    begun(config, monkeypatch)
    shutil.copy(models[1].folder / "tokenizer" / "shared.model", path)
    assert prepare(config).tokenizers.source.size == 350
    assert "was started with tokenizer.digest = " in capsys.readouterr().err


def test_shards_refuse_what_was_changed(own: Prepare, tmp_path: Path) -> None:
    prepare_shard(own, Shard(1, 2))
    message = "give the settings and files that the shards were started with, or delete that folder to start over"
    with pytest.raises(RunError, match=rf"parts: was started with shards = 2, and now it is 3; {message}"):
        prepare_shard(own, Shard(1, 3))
    with pytest.raises(RunError, match="was started with shards = 2, and now it is 1"):
        prepare(own)
    with pytest.raises(RunError, match=r"was started with train\.0\.weight = 2\.0, and now it is 1\.0"):
        prepare_shard(replace(own, train=(replace(own.train[0], weight=1.0), *own.train[1:])), Shard(2, 2))
    path = Path(own.train[0].source)
    path.write_bytes(path.read_bytes() + b"x\n")
    with pytest.raises(RunError, match=r"plain\.en was changed; give the settings"):
        merge_shards(own, 2)


def test_a_pattern_that_matches_more_files(tmp_path: Path) -> None:
    for name in "ab":
        two_files(tmp_path, name, make_pairs(20, ord(name)))
    text = ParallelText(str(tmp_path / "*.en"), str(tmp_path / "*.de"))
    config = Prepare(str(tmp_path / "out"), (text,), tokenizer=SentencePiece(vocabulary=300), workers=1)
    prepare_shard(config, Shard(1, 2))
    two_files(tmp_path, "c", make_pairs(20, 9))
    with pytest.raises(RunError, match=r"train, \*\.en: its pattern matches other files than before"):
        prepare_shard(config, Shard(2, 2))


def test_text_that_changes_under_way_is_noticed(own: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    from transduce.data.prepare import run as module

    original = module.examine_line_ranges

    def meddle(*arguments: object, **options: object) -> None:
        original(*arguments, **options)  # type: ignore[arg-type]
        path = Path(own.train[0].source)
        path.write_bytes(path.read_bytes().upper())

    monkeypatch.setattr(module, "examine_line_ranges", meddle)
    with pytest.raises(RunError, match=r"plain\.en was changed while it was being prepared; give the command again"):
        prepare(own)


def test_refused_text_is_refused_by_every_shard(own: Prepare, tmp_path: Path) -> None:
    path = Path(own.train[2].source)
    path.write_bytes(b"\xff\n" + path.read_bytes().split(b"\n", 1)[1])
    prepare_shard(own, Shard(1, 2))
    for _ in range(2):
        with pytest.raises(DataError, match="The data doctor refuses this text"):
            prepare_shard(own, Shard(2, 2))
    with pytest.raises(DataError, match="The data doctor refuses this text"):
        merge_shards(own, 2)
    assert not Path(own.output).exists()


# -- the command line, and misuse --------------------------------------------------------------------------------------


def test_the_commands(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    two_files(tmp_path, "a", make_pairs(60, 1))
    words = ["output=out", "train.source=a.en", "train.target=a.de", "tokenizer.vocabulary=300", "workers=1"]
    told = run("prepare", *words, "--shard", "1/2").lines
    assert told == [
        "shard 1/2: examined; shard 2 of 2 is not examined yet; then give this command again to tokenize this "
        "share, or merge"
    ]
    early = run("prepare", *words, "--merge", "2")
    assert early.code == 2
    assert "error: out: shard 2 of 2 is not examined yet: run prepare with --shard 2/2 first\n" in early.err
    assert run("prepare", *words, "--shard", "2/2").lines == ["shard 2/2: tokenized; shard 1 of 2 is not tokenized yet"]
    told = run("prepare", *words, "--shard", "1/2").lines
    assert told == ["shard 1/2: tokenized; now: transduce prepare ... --merge 2"]
    assert run("prepare", *words, "--merge", "2").lines[-1] == "out: train 60 pairs"
    assert "already exists and is complete" in refused(run("prepare", *words, "--shard", "1/2"))
    both = refused(run("prepare", *words, "--shard", "1/2", "--merge", "2"))
    assert both == "--shard 1/2 and --merge 2: expected one of them; merge when all shards are done"
    for wrong in ("0/2", "3/2", "x/2", "2"):
        assert "expected i/n with i from 1 to n, such as 2/8" in refused(run("prepare", *words, "--shard", wrong))


def test_two_processes_on_one_shard_or_folder(config: Prepare, tmp_path: Path) -> None:
    prepare_shard(config, Shard(1, 2))
    lock = lock_folder(tmp_path / ".corpus.parts", shared=True)
    try:
        prepare_shard(config, Shard(2, 2))
        with pytest.raises(RunError, match="another process is using this folder"):
            merge_shards(config, 2)
    finally:
        os.close(lock)
    from transduce.data.prepare.work_folder import hold_work

    with hold_work(tmp_path / "corpus", Shard(1, 2)):
        prepare_shard(config, Shard(2, 2))
        with pytest.raises(RunError, match=r"shard-1\.lock: another process is using this shard; wait for it"):
            prepare_shard(config, Shard(1, 2))


def test_a_full_disk_keeps_what_is_finished(config: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*arguments: object) -> None:
        with open("/dev/full", "wb", 0) as full:
            full.write(b"x")

    with monkeypatch.context() as patch:
        patch.setattr("transduce.data.prepare.run.join", fill)
        with pytest.raises(
            RunError, match=r"no space left on the disk; free some space, then run the same command again"
        ):
            prepare(config)
    assert len([*(tmp_path / ".corpus.parts" / "examined").iterdir()]) == 7
    prepare(config)


def test_wrong_shards() -> None:
    for number, count in ((0, 2), (3, 2), (1, 0)):
        with pytest.raises(ConfigError, match=f"shard {number}/{count}: expected i/n with i from 1 to n"):
            Shard(number, count)
    assert Shard.parse("2/8") == Shard(2, 8)
