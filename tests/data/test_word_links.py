"""Word alignments from Pharaoh files to (B, T, S) weights over pieces: what is kept, what is dropped, every message."""

from __future__ import annotations

import gzip
import lzma
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import toys
import zstandard

from transduce.core.errors import DataError
from transduce.data.batch import Batch
from transduce.data.batching import Batches
from transduce.data.corpus import Corpus
from transduce.data.formats.parallel import ParallelText
from transduce.data.prepare.run import Prepare, examine, prepare
from transduce.text.train_tokenizer import SentencePiece

TOKENIZER = SentencePiece("bpe", vocabulary=100, byte_fallback=False, character_coverage=1.0)
Pair = tuple[str, str, str]  # source, target, links


def made(count: int, seed: int = 1) -> list[Pair]:
    """Sentences whose target has the same words backwards, some of them linked."""
    chooser = random.Random(seed)
    words = ["".join(chooser.choices("abcdefgh", k=chooser.randint(1, 7))) for _ in range(200)]
    found = []
    for _ in range(count):
        source = chooser.choices(words, k=chooser.randint(1, 9))
        target = [word.upper() for word in reversed(source)]
        links = [f"{i}-{len(source) - 1 - i}" for i in range(len(source)) if chooser.random() < 0.7]
        found.append((" ".join(source), " ".join(target), " ".join(links)))
    return found


def write(folder: Path, name: str, pairs: Sequence[Pair], aligned: bool = True, tag: str = "") -> ParallelText:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{name}.{side}" for side in ("source", "target", "align")]
    for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    source, target, links = map(str, paths)
    return ParallelText(source, target, alignment=links if aligned else "", tag=tag, name=name)


def build(folder: Path, *texts: ParallelText, workers: int = 1) -> Corpus:
    return prepare(Prepare(str(folder / "corpus"), texts, tokenizer=TOKENIZER, workers=workers))


def every_batch(corpus: Corpus, sampling: float = 0.0) -> list[tuple[list[int], Batch]]:
    batches = Batches(corpus.split("train"), corpus.tokenizers, tokens=300, step=4, seed=1, sampling=sampling)
    plan = batches.plan(0)
    return [(plan.batch(number).tolist(), batches.make(plan, 0, number)) for number in range(len(plan))]


def word_of(pieces: list[str]) -> list[int]:
    """The word of each piece, found from the text that the pieces spell: an oracle that counts spaces."""
    return [len("".join(pieces[: i + 1]).replace("▁", " ").split(" ")) - 2 for i in range(len(pieces))]


def expected(corpus: Corpus, batch: Batch, row: int, links: str, tag: int) -> list[list[float]]:
    """The weights of one pair, spelt out link by link."""
    source = batch.source[row][batch.source_mask[row]].tolist()[tag:-1]
    target = batch.gold[row][batch.target_mask[row]].tolist()[:-1]
    source_words = word_of(corpus.tokenizers.source.pieces(source))
    target_words = word_of(corpus.tokenizers.target.pieces(target))
    pairs = {(int(a), int(b)) for a, b in (link.split("-") for link in links.split())}
    weights = [[0.0] * batch.source.size(1) for _ in range(batch.gold.size(1))]
    for t, target_word in enumerate(target_words):
        looked = [tag + s for s, source_word in enumerate(source_words) if (source_word, target_word) in pairs]
        for s in looked:
            weights[t][s] = 1 / len(looked)
    return weights


@pytest.mark.parametrize("sampling", [0.0, 0.3])
def test_pieces_of_linked_words_look_at_each_other(tmp_path: Path, sampling: float) -> None:
    """Tagged, plain and unaligned corpora together; whole words and words cut anew."""
    tagged, plain, bare = made(60, 1), made(60, 2), made(30, 3)
    corpus = build(
        tmp_path,
        write(tmp_path, "tagged", tagged, tag="<2xx>"),
        write(tmp_path, "plain", plain),
        write(tmp_path, "bare", bare, aligned=False),
    )
    split = corpus.split("train")
    stayed = {span.name: span.stop - span.start for span in split.spans}
    assert stayed == {"tagged": 60, "plain": 60, "bare": 30}
    pairs = [*tagged, *plain, *((source, target, "") for source, target, _ in bare)]
    cut = 0
    for members, batch in every_batch(corpus, sampling):
        assert batch.alignment is not None
        assert batch.alignment.dtype == torch.float32
        assert batch.alignment.shape == (*batch.gold.shape, batch.source.size(1))
        sums = batch.alignment.sum(-1)
        assert torch.all(((sums - 1).abs() < 1e-6) | (sums == 0))
        for row, pair in enumerate(members):
            weights = expected(corpus, batch, row, pairs[pair][2], tag=int(pair < 60))
            torch.testing.assert_close(batch.alignment[row], torch.tensor(weights))
            cut += int(batch.source_mask[row].sum()) - 1 - int(pair < 60) - len(pairs[pair][0].split())
    assert cut > 300  # words were of several pieces
    manifest = corpus.manifest["splits"]["train"]
    assert manifest["links"] == sum(len(links.split()) for *_, links in pairs)
    assert manifest["aligned"] == sum(links != "" for *_, links in pairs)
    corpus.verify()
    assert {"train.alignment.links", "train.alignment.offsets"} <= set(corpus.manifest["files"])
    assert f"aligned: {sum(links != '' for *_, links in plain)} kept" in (corpus.folder / "report.txt").read_text()


def test_a_corpus_without_alignments_has_none(tmp_path: Path) -> None:
    corpus = build(tmp_path, write(tmp_path, "bare", made(40), aligned=False))
    assert not corpus.split("train").aligned
    assert corpus.split("train").links(3).shape == (0, 2)
    assert all(batch.alignment is None and len(batch.tensors()) == 4 for _, batch in every_batch(corpus))
    assert not list(corpus.folder.glob("*alignment*"))
    assert "aligned" not in (corpus.folder / "manifest.json").read_text()


def test_a_batch_keeps_its_alignment_when_it_is_moved_or_doubled(tmp_path: Path) -> None:
    batch = every_batch(build(tmp_path, write(tmp_path, "text", made(40))))[0][1]
    assert batch.alignment is not None
    moved = batch.to(torch.device("cpu"))
    assert moved.alignment is not None
    assert torch.equal(moved.alignment, batch.alignment)
    twice = Batch(*(torch.cat((tensor, tensor)) for tensor in batch.tensors()))
    assert twice.alignment is not None
    assert torch.equal(twice.alignment[len(batch.source) :], batch.alignment)


def test_links_go_with_the_pairs_that_are_dropped(tmp_path: Path) -> None:
    """Duplicates, empty lines and pairs of valid leave with their links; the others keep theirs."""
    pairs = made(40)
    dirty = [*pairs[:10], pairs[3], ("", "X", ""), ("a " * 3000, "A", "0-0"), *pairs[10:], pairs[39]]
    text, valid = write(tmp_path, "train", dirty), write(tmp_path, "valid", pairs[20:22])
    corpus = prepare(Prepare(str(tmp_path / "corpus"), (text,), (valid,), tokenizer=TOKENIZER, workers=1))
    split = corpus.split("train")
    stayed = [*pairs[:20], *pairs[22:]]
    assert len(split) == 38
    for index, (_, _, links) in enumerate(stayed):
        found = sorted(tuple(map(int, link.split("-"))) for link in links.split())
        assert list(map(tuple, split.links(index).tolist())) == found
    assert corpus.split("valid").aligned
    assert len(corpus.split("valid").links(1)) == len(pairs[21][2].split())


def test_sentences_whose_words_change_in_pieces_lose_their_links_and_are_counted(tmp_path: Path) -> None:
    """A no-break space or a control character that becomes a space makes two words of one."""
    odd = [("ab\u00a0cd ef", "AB CD EF", "0-0 1-2"), ("ab\x01cd", "AB", "0-0"), ("ab  cd", "AB\tCD", "1-1 1-1 0-1")]
    corpus = build(tmp_path, write(tmp_path, "text", [*made(40), *odd]))
    split = corpus.split("train")
    assert [split.links(index).tolist() for index in (40, 41, 42)] == [[], [], [[0, 1], [1, 1]]]
    report = (corpus.folder / "report.txt").read_text()
    assert "alignment_lost: 2 cleaned (their pieces form other words than the text; the pairs stay" in report
    assert f"{tmp_path}/text.source:41: 'ab\\xa0cd ef'" in report
    assert "text: 43 of 43 pairs kept" in report


def test_tokenizers_without_a_marker_at_the_start_and_single_characters(tmp_path: Path) -> None:
    pairs = made(30)
    text = write(tmp_path, "text", pairs)
    config = Prepare(str(tmp_path / "corpus"), (text,), tokenizer=replace(TOKENIZER, model="char"), workers=1)
    corpus = prepare(config)
    for members, batch in every_batch(corpus):
        assert batch.alignment is not None
        for row, pair in enumerate(members):
            weights = expected(corpus, batch, row, pairs[pair][2], tag=0)
            torch.testing.assert_close(batch.alignment[row], torch.tensor(weights))
    from transduce.data.word_links import word_numbers

    tokens = corpus.tokenizers.source.encode(["ab cd"])[0]
    assert word_numbers(tokens, corpus.tokenizers.source).tolist() == [0, 0, 0, 1, 1, 1]
    assert word_numbers(tokens[1:], corpus.tokenizers.source).tolist() == [0, 0, 1, 1, 1]
    assert word_numbers([], corpus.tokenizers.source).tolist() == []


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing(tmp_path: Path) -> None:
    text = write(tmp_path, "text", made(20_000))
    one = build(tmp_path / "one", text, workers=1)
    two = build(tmp_path / "two", text, workers=2)
    assert one.digest == two.digest
    assert one.manifest["splits"]["train"]["links"] > 40_000


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".zst", zstandard.compress)]
)
def test_packed_files_and_other_formats(tmp_path: Path, suffix: str, pack: object) -> None:
    pairs = made(20)
    text = write(tmp_path, "text", pairs)
    packed = tmp_path / f"text.align{suffix}"
    packed.write_bytes(pack(Path(text.alignment).read_bytes().replace(b"\n", b"\r\n")))  # type: ignore[operator]
    table = tmp_path / "text.tsv"
    table.write_bytes("".join(f"{source}\t{target}\n" for source, target, _ in pairs).encode())
    corpus = build(tmp_path, ParallelText(path=str(table), alignment=str(packed)))
    links = [corpus.split("train").links(index) for index in range(20)]
    assert np.concatenate(links).tolist() == [
        list(map(int, link.split("-"))) for *_, line in pairs for link in line.split()
    ]


# ---- what is refused -------------------------------------------------------------------------------------------------


def refusal(folder: Path, links: bytes, source: bytes = b"a b\nc d\n", target: bytes = b"A B C\nD\n") -> str:
    """What both `doctor` and `prepare` say."""
    paths = [folder / name for name in ("x.en", "x.de", "x.align")]
    for path, content in zip(paths, (source, target, links), strict=True):
        path.write_bytes(content)
    text = ParallelText(str(paths[0]), str(paths[1]), alignment=str(paths[2]))
    config = Prepare(str(folder / "corpus"), (text,), tokenizer=TOKENIZER, workers=1)
    told = []
    for run in (examine, prepare):
        with pytest.raises(DataError) as error:
            run(config)
        told.append(str(error.value).replace(f"{folder}/", ""))
    assert told[0] == told[1]
    assert not (folder / "corpus").exists()
    return told[0]


@pytest.mark.parametrize("word", ["0-", "-1", "0", "0-1-2", "a-b", "0:1", "-1-0", "0-1:0.9", "9999999999-0"])
def test_what_is_no_link(tmp_path: Path, word: str) -> None:
    assert refusal(tmp_path, f"0-0\n0-0 {word}\n".encode()) == (
        f"x.align:2: '{word}' is not a link; expected Pharaoh format: source and target word numbers from 0 such as "
        "'0-0 1-2', and an empty line where there are none"
    )


def test_links_beyond_the_words(tmp_path: Path) -> None:
    assert refusal(tmp_path, b"1-2\n1-0 1-1\n") == (
        "x.align:2: the link 1-1 points at target word 1, but that text has 1 words, counted from 0 and separated by "
        "spaces or tabs; align exactly these texts, source word first"
    )
    assert "x.align:1: the link 2-0 points at source word 2, but that text has 2 words" in refusal(tmp_path, b"2-0\n\n")


def test_line_counts_that_differ(tmp_path: Path) -> None:
    assert refusal(tmp_path, b"0-0\n") == (
        "x.align: has only 1 lines, x.en has more: links need a line for each pair, an empty one where there are none"
    )
    assert refusal(tmp_path, b"0-0\n\n\n") == (
        "x.align: has more than the 2 lines of the text it belongs to: links need a line for each pair, so a pair was "
        "left out of the text, or this is another text's alignment"
    )


def test_too_many_links_on_one_line_and_files_that_are_not_there(tmp_path: Path) -> None:
    assert refusal(tmp_path, b"0-0 " * 200_000 + b"\n\n") == (
        "x.align:1: over 524,288 bytes of links; expected those of one sentence"
    )
    text = ParallelText(str(tmp_path / "x.en"), str(tmp_path / "x.de"), alignment=str(tmp_path / "gone"))
    with pytest.raises(DataError, match="gone: no such file"):
        examine(Prepare("unused", (text,)))
    with pytest.raises(
        DataError, match=r"names 1 file\(s\) but alignment .* names 3: each file of text needs its file"
    ):
        replace(text, alignment=str(tmp_path / "x.*")).alignment_files()


def test_links_of_dropped_pairs_may_point_anywhere(tmp_path: Path) -> None:
    """An empty side has no words: the aligner wrote what it liked, and the pair is dropped."""
    corpus = build(tmp_path, write(tmp_path, "text", [*made(30), ("", "A", "0-0")]))
    assert len(corpus.split("train")) == 30
    held = write(tmp_path, "held", [("a b", "A B", "0-0 1-1")])
    examined = examine(Prepare("unused", (write(tmp_path, "text", made(30)),), (held,), workers=1))
    assert examined.count("aligned", "valid") == 1


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    corpus = build(tmp_path, write(tmp_path, "text", made(30)))
    offsets = corpus.folder / "train.alignment.offsets"
    offsets.write_bytes(offsets.read_bytes()[:-8] + np.array([7], "<u8").tobytes())
    with pytest.raises(DataError, match=r"train\.alignment\.offsets and \.links do not belong together; prepare the"):
        corpus.split("train")


@pytest.mark.parametrize("link", [(0, 60_000), (60_000, 0)])
def test_links_beyond_the_words_of_a_pair_are_refused(tmp_path: Path, link: tuple[int, int]) -> None:
    corpus = build(tmp_path, write(tmp_path, "text", made(30)))
    path = corpus.folder / "train.alignment.links"
    links = np.fromfile(path, "<u2").reshape(-1, 2)
    links[:] = link
    path.write_bytes(links.tobytes())
    split = corpus.split("train")
    with pytest.raises(
        DataError, match=r"words has a link \(.*60000.*\) beyond them: the corpus is damaged; prepare the"
    ):
        next(Batches(split, corpus.tokenizers, 256, 8, 1).stream(0, 0))


def test_guided_alignment_trains_on_them(tmp_path: Path) -> None:
    """From the file to the objective, through the real loop, alone and with R-Drop's doubled batches."""
    text, valid = write(tmp_path, "text", made(60)), write(tmp_path, "valid", made(5, seed=9), aligned=False)
    corpus = prepare(Prepare(str(tmp_path / "corpus"), (text,), (valid,), tokenizer=TOKENIZER, workers=1))
    for kind in ("cross_entropy", "r_drop"):
        settings = [
            f"objective.kind={kind}",
            "objective.terms=[{kind='guided_alignment', layer=0}]",
            "training.steps=4",
        ]
        assert toys.run(corpus.folder, tmp_path / kind, *settings, "validation.every=2").reason == "finished"
        losses = [report["guided_alignment"] for report in toys.reports(tmp_path / kind)]
        assert len(losses) == 4
        assert all(0 < loss < 10 for loss in losses)
