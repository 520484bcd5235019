"""A corpus of recordings or pictures through `prepare`: what it holds, what the doctor says, batches, damage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_runner import Run
from toy_media import RATE, draw, write_idx, write_speech

from transduce.core.errors import ConfigError, DataError, RunError
from transduce.data.batching import Batches
from transduce.data.corpus import Corpus
from transduce.data.doctor.checks import Doctor
from transduce.data.formats.inventory import Shard
from transduce.data.formats.parallel import ParallelText
from transduce.data.images import Images
from transduce.data.prepare.run import Prepare, examine, merge_shards, prepare, prepare_shard
from transduce.data.speech import Speech
from transduce.text.train_tokenizer import GivenTokenizer, SentencePiece

soundfile = pytest.importorskip("soundfile", reason="recordings are read by it: pip install transduce[senses]")
SPEECH = Speech(rate=RATE, features=20, shortest_seconds=0.05)
WORDS = SentencePiece("bpe", vocabulary=40, byte_fallback=False)


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speech")
    for seed, (name, count) in enumerate((("train", 12), ("valid", 4), ("test", 3))):
        write_speech(folder, name, count, seed)
    return folder


def settings(folder: Path, output: Path, train: str = "train.tsv", **more: object) -> Prepare:
    texts = {split: (ParallelText(path=str(folder / f"{split}.tsv")),) for split in ("valid", "test")}
    options = {"sources": SPEECH, "tokenizer": WORDS, "workers": 1, **texts, **more}
    return Prepare(str(output), (ParallelText(path=str(folder / train)),), **options)  # type: ignore[arg-type]


def test_frames_lie_end_to_end_with_offsets_and_hashes(manifests: Path, tmp_path: Path) -> None:
    corpus = prepare(settings(manifests, tmp_path / "corpus"))
    corpus.verify()
    assert corpus.reader == SPEECH
    assert corpus.tokenizers.shared
    split = corpus.split("train")
    lines = [line.split("\t") for line in (manifests / "train.tsv").read_text().split("\n")[:-1]]
    assert len(split) == len(lines) == 12
    for number, (path, text) in enumerate(lines):
        source, target = split.pair(number)
        np.testing.assert_array_equal(source, SPEECH.read(str(manifests / path)))
        assert source.dtype == np.float16
        assert corpus.tokenizers.target.decode(target.tolist()) == text
        assert split.source_lengths[number] == len(source)
    facts = corpus.manifest["splits"]["train"]
    assert facts["source_frames"] == split.source_lengths.sum()
    assert (tmp_path / "corpus" / "train.source.frames").stat().st_size == facts["source_frames"] * 20 * 2
    sources, texts = corpus.split("valid").to_translate()
    assert [len(source.frames) for source in sources] == corpus.split("valid").source_lengths.tolist()
    assert len(texts) == 4


def test_the_same_bytes_from_workers_shards_and_other_speeds_thrice_the_pairs(manifests: Path, tmp_path: Path) -> None:
    one = prepare(settings(manifests, tmp_path / "one"))
    two = prepare(settings(manifests, tmp_path / "two", workers=2))
    assert one.manifest["files"] == two.manifest["files"]
    sharded = settings(manifests, tmp_path / "shards")
    for number in (1, 2):
        prepare_shard(sharded, Shard(number, 2))
    assert merge_shards(sharded, 2).manifest["files"] == one.manifest["files"]
    pytest.importorskip("soxr", reason="speeds are made by it: pip install transduce[senses]")
    varied = Speech(rate=RATE, features=20, speeds=(0.9, 1.0, 1.1))
    many = prepare(settings(manifests, tmp_path / "many", sources=varied))
    assert len(many.split("train")) == 36
    assert len(many.split("valid")) == 4
    np.testing.assert_array_equal(many.split("train").pair(1)[0], one.split("train").pair(0)[0])


def test_bad_files_are_named_and_refused_or_dropped(manifests: Path, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "files"
    shutil.copytree(manifests, folder)
    (folder / "torn.wav").write_bytes((folder / "train" / "000.wav").read_bytes()[:30])
    soundfile.write(folder / "short.wav", np.zeros(20), RATE)
    lines = (folder / "train.tsv").read_text()
    (folder / "bad.tsv").write_text(f"torn.wav\tlow\n{lines}gone.wav\tmid\nshort.wav\thigh\ntrain/001.flac\t\n")
    with pytest.raises(DataError) as caught:
        prepare(settings(folder, tmp_path / "corpus", "bad.tsv"))
    told = str(caught.value)
    assert "unreadable" in told
    assert f"{folder / 'bad.tsv'}:1: {folder / 'torn.wav'}: " in told
    assert f"bad.tsv:14: {folder / 'gone.wav'}: no such file" in told
    assert "it lasts 0.003 s; expected 0.05 to 30.0" in told
    dropping = settings(folder, tmp_path / "corpus", "bad.tsv", doctor=Doctor(unreadable="drop"))
    corpus = prepare(dropping)
    assert len(corpus.split("train")) == 12
    (report,) = [one for one in corpus.manifest["report"]["corpora"] if one["split"] == "train"]
    assert {(f["check"], f["outcome"], f["count"]) for f in report["findings"]} == {
        ("unreadable", "dropped", 3),
        ("empty", "dropped", 1),
    }
    shutil.copyfile(folder / "bad.tsv", folder / "valid.tsv")
    with pytest.raises(DataError, match="in valid and test, lines cannot be dropped"):
        prepare(settings(folder, tmp_path / "other", doctor=Doctor(unreadable="drop")))
    ran = run("doctor", "sources=speech", f"train.path={folder / 'bad.tsv'}", "workers=1")
    assert ran.code == 2
    assert "gone.wav: no such file" in ran.err


def test_a_recording_under_another_name_is_found_again(manifests: Path, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    shutil.copytree(manifests, folder)
    shutil.copyfile(folder / "valid" / "000.wav", folder / "renamed.wav")
    text = (folder / "valid.tsv").read_text().split("\n")[0].split("\t")[1]
    with open(folder / "train.tsv", "a") as file:
        file.write(f"renamed.wav\t{text}\ntrain/../train/000.wav\t{(folder / 'train.tsv').read_text().split()[1]}\n")
    report = examine(settings(folder, tmp_path / "unused"))
    found = {finding.check: finding.count for finding in report.corpora[0].findings}
    assert found["overlap_with_valid"] == 1


def test_what_belongs_to_text_is_refused(manifests: Path, tmp_path: Path) -> None:
    path = str(manifests / "train.tsv")
    with pytest.raises(ConfigError, match=r"a tag or word alignments belong to sources of text, and these are speech"):
        Prepare(str(tmp_path), (ParallelText(path=path, tag="<2de>"),), sources=SPEECH)
    too_long = prepare(settings(manifests, tmp_path / "corpus", longest=2))
    (report,) = [one for one in too_long.manifest["report"]["corpora"] if one["split"] == "train"]
    assert report["findings"][0]["check"] == "too_many_tokens"


def test_a_file_that_breaks_between_examining_and_reading(
    manifests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Speech, "examine", lambda self, path: hash(path) % (1 << 63))
    folder = tmp_path / "files"
    shutil.copytree(manifests, folder)
    (folder / "train" / "000.wav").unlink()
    with pytest.raises(RunError, match="was readable when examined, but is not now: no such file"):
        prepare(settings(folder, tmp_path / "corpus"))


def test_batches_are_a_function_of_seed_and_epoch_and_padded_by_frames(manifests: Path, tmp_path: Path) -> None:
    corpus = prepare(settings(manifests, tmp_path / "corpus"))
    batches = Batches(corpus.split("train"), corpus.tokenizers, tokens=100, step=8, seed=3, sampling=0.1)
    plan = batches.plan(0)
    assert sorted(plan.pairs.tolist()) == list(range(12))
    seen = 0
    for number in range(len(plan)):
        batch, again = batches.make(plan, 0, number), batches.make(plan, 0, number)
        assert torch.equal(batch.source, again.source)
        assert batch.source.shape[2] == 20
        assert len(batch.source) == 1 or batch.source_mask.numel() <= 110
        members = corpus.split("train").source_lengths[plan.batch(number)]
        assert batch.source_mask.sum(1).tolist() == members.tolist()
        seen += len(batch.source)
    assert seen == 12


def test_pictures_of_idx_files_and_png_in_one_corpus(tmp_path: Path) -> None:
    from PIL import Image

    write_idx(tmp_path / "digits.idx3.gz", np.stack([draw(str(n), n) for n in range(10)]))
    Image.fromarray(draw("12", 1)).save(tmp_path / "strip.png")
    lines = [f"digits.idx3.gz#{n}\t{n}\n" for n in range(10)]
    (tmp_path / "train.tsv").write_text("".join([*lines, "strip.png\t12\n"]))
    (tmp_path / "valid.tsv").write_text("digits.idx3.gz#3\t3\n")
    images = Images(height=16, patch=4)
    train, valid = ((ParallelText(path=str(tmp_path / f"{name}.tsv")),) for name in ("train", "valid"))
    tokenizer = SentencePiece("char", byte_fallback=False, vocabulary=20)
    config = Prepare(
        str(tmp_path / "c"), train, valid, sources=images, tokenizer=tokenizer, workers=1, doctor=Doctor(overlap="keep")
    )
    corpus = prepare(config)
    split = corpus.split("train")
    assert split.source_lengths.tolist() == [12] * 10 + [20]
    np.testing.assert_array_equal(split.pair(10)[0], images.frames(draw("12", 1)))
    given = GivenTokenizer(folder=str(tmp_path / "c" / "tokenizer"))
    report = examine(Prepare("unused", train, valid, sources=images, tokenizer=given, workers=1))
    assert "unknown_characters_in_source" not in {f.check for one in report.corpora for f in one.findings}


def test_damage_is_found(manifests: Path, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    prepare(settings(manifests, folder))
    frames = folder / "train.source.frames"
    content = bytearray(frames.read_bytes())
    content[100] ^= 1
    frames.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"its SHA-256 is not the one in manifest.json"):
        Corpus.open(folder).verify()
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["reader"]["kind"] = "smell"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="these are no settings of a reader of files"):
        Corpus.open(folder).split("train")
    manifest["dtypes"]["source"] = "uint16"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"damaged .*dtypes"):
        Corpus.open(folder)
