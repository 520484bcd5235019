"""Folders as Marian writes them, post-norm and pre-norm, in floats and int8, against Marian's own arithmetic."""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_runner import Run, refused

pytest.importorskip("yaml", reason="writes Marian's files: pip install transduce[test]")

import marian_folders as marian
import yaml

import transduce
from transduce.core.errors import RunError
from transduce.search.settings import Beam
from transduce.text.tokenizer import LARGEST_MODEL_BYTES
from transduce.training.run_folder import open_model, read_config

TEXTS = marian.SOURCE[:12]


def tokens_of(run: Path, text: str) -> list[int]:
    (tokens,) = transduce.load(run, "cpu").tokenizers.source.encode([text])
    return tokens


def given(number: int) -> list[int]:
    """Some tokens of a target, but no end and nothing unknown."""
    draw = random.Random(number)
    return [draw.randrange(2, marian.pieces().get_piece_size()) for _ in range(draw.randint(0, 12))]


@pytest.mark.parametrize(("wiring", "as_trained"), [("post", False), ("pre", False), ("pre", True)])
def test_every_log_probability_is_that_of_marian(wiring: str, as_trained: bool, tmp_path: Path) -> None:
    reference = marian.Reference(marian.folder(tmp_path / "theirs", wiring), wiring, as_trained)
    run = transduce.import_model(tmp_path / "theirs", tmp_path / "run", as_trained=as_trained)
    sources = [marian.pieces().encode(text) for text in TEXTS]
    targets = [given(number) for number in range(len(TEXTS))]
    found = transduce.load(run, "cpu").engine.score(sources, targets)
    for source, target, ours in zip(sources, targets, found, strict=True):
        memory, written = reference.encode(source), [*target, marian.EOS]
        expected = [reference.log_probs(memory, written[:place])[token] for place, token in enumerate(written)]
        assert ours == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("wiring", ["post", "pre"])
@pytest.mark.parametrize("size", [1, 4])
def test_translations_are_those_of_marian(wiring: str, size: int, tmp_path: Path) -> None:
    reference = marian.Reference(marian.folder(tmp_path / "theirs", wiring), wiring)
    run = transduce.import_model(tmp_path / "theirs", tmp_path / "run")
    translator, processor = transduce.load(run, "cpu"), marian.pieces()
    search = replace(translator.search, size=size, n_best=size)
    assert search == Beam(size, 0.6, size, search.limits, length_normalization="power", shrinking=True)
    lengths = set()
    for text, found in zip(TEXTS, translator.translate(TEXTS, search=search, protect=False), strict=True):
        assert tokens_of(run, text) == processor.encode(text)
        expected = reference.search(processor.encode(text), size, 0.6)
        ours = [one for one in (found, *found.alternatives) if one.finished]
        assert [one.text for one in ours] == [processor.decode(list(tokens)) for _, _, tokens in expected]
        for one, (score, log_prob, tokens) in zip(ours, expected, strict=True):
            assert one.score == pytest.approx(score, abs=1e-3)
            assert one.log_prob == pytest.approx(log_prob, abs=1e-3)
            lengths.add(len(tokens))
    assert size == 1 or len(lengths) > 3, "translations of one length would show nothing of its normalization"


def test_a_pre_norm_model_decodes_as_it_was_trained_on_request(tmp_path: Path, run: Run) -> None:
    marian.folder(tmp_path / "theirs", "pre")
    assert run("import", tmp_path / "theirs", tmp_path / "trained", "--as-trained").code == 0
    assert run("import", tmp_path / "theirs", tmp_path / "decoded").code == 0
    for name, unnormed in (("trained", False), ("decoded", True)):
        assert read_config(tmp_path / name).model.decoder.unnormed_past is unnormed  # type: ignore[union-attr]
    trained, decoded = (transduce.load(tmp_path / name, "cpu").translate(TEXTS) for name in ("trained", "decoded"))
    assert [one.log_prob for one in trained] != [one.log_prob for one in decoded]


def test_defaults_come_from_the_decoders_settings(tmp_path: Path) -> None:
    marian.folder(tmp_path / "theirs", "post")
    path = tmp_path / "theirs" / "model.npz.decoder.yml"
    told = yaml.safe_load(path.read_text())

    def imported(name: str, **changed: Any) -> Any:
        path.write_text(yaml.safe_dump({**told, **changed}))
        return transduce.load(transduce.import_model(tmp_path / "theirs", tmp_path / name), "cpu")

    usual = imported("usual")
    search = usual.search
    assert (search.size, search.length_penalty, search.length_normalization, search.shrinking) == (
        6,
        0.6,
        "power",
        True,
    )
    assert (search.limits.longest_ratio, search.limits.longest_extra) == (3.0, 0)
    assert usual.choose_search(beam=2) == replace(search, size=2), "a caller's size leaves the rest as it is"
    assert marian.UNK in usual.tokenizers.target.symbols.never
    allowing = imported("allowing", **{"allow-unk": True, "normalize": 1.5, "beam-size": 1, "max-length-factor": 2.5})
    assert marian.UNK not in allowing.tokenizers.target.symbols.never
    assert (allowing.search.size, allowing.search.length_penalty) == (1, 1.5)
    assert allowing.search.limits.longest_ratio == 2.5


@pytest.mark.parametrize("wiring", ["post", "pre"])
def test_the_binary_format_holds_the_same_model(wiring: str, tmp_path: Path) -> None:
    weights = marian.folder(tmp_path / "theirs", wiring)
    npz = open_model(transduce.import_model(tmp_path / "theirs", tmp_path / "npz"), trust=False)[2].weights()
    for int8 in (False, True):
        path = tmp_path / "theirs" / f"model.{int8}.bin"
        marian.binary(path, weights, marian.settings(wiring), int8)
        found = open_model(transduce.import_model(path, tmp_path / path.name), trust=False)[2].weights()
        assert found.keys() == npz.keys()
        rounded = {name for name in npz if not torch.equal(found[name], npz[name])}
        assert all(name.endswith("weight") and "norm" not in name and "embedding" not in name for name in rounded)
        assert bool(rounded) == int8
        for name in rounded:
            step = npz[name].abs().max() / 127
            assert (found[name] - npz[name]).abs().max() <= 0.501 * step
    assert transduce.load(tmp_path / "model.False.bin", "cpu")(TEXTS) == transduce.load(tmp_path / "npz", "cpu")(TEXTS)


def test_a_folder_with_a_binary_file_alone(tmp_path: Path, run: Run) -> None:
    weights = marian.folder(tmp_path / "theirs", "post")
    marian.binary(tmp_path / "theirs" / "model.intgemm8.bin", weights, marian.settings("post"), int8=True)
    (tmp_path / "theirs" / "model.npz").unlink()
    assert run("import", tmp_path / "theirs", tmp_path / "folder").code == 0
    assert run("import", tmp_path / "theirs" / "model.intgemm8.bin", tmp_path / "file").code == 0
    weights_of = [open_model(tmp_path / name, trust=False)[2].weights() for name in ("folder", "file")]
    assert all(torch.equal(weights_of[0][name], weights_of[1][name]) for name in weights_of[0])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"},
            "its decoder has recurrent cells, 'ssru', in place",
        ),
        ({"transformer-decoder-autoreg": "average-attention"}, "transformer-decoder-autoreg is 'average-attention'"),
        (
            {"transformer-postprocess-top": "n"},
            r"transformer-postprocess-top 'n'; expected '', 'dan', '' \(post-norm\)",
        ),
        ({"transformer-tied-layers": [1, 1]}, "transformer-tied-layers is \\['1', '1'\\], expected \\[\\]"),
        ({"transformer-no-bias": True}, "transformer-no-bias is 'true', expected 'false'"),
    ],
)
def test_models_that_are_refused(changes: dict[str, Any], text: str, tmp_path: Path) -> None:
    marian.folder(tmp_path / "theirs", "post", **changes)
    with pytest.raises(RunError, match=text):
        transduce.import_model(tmp_path / "theirs", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_files_beside_the_weights_that_are_refused(tmp_path: Path, run: Run) -> None:
    marian.folder(tmp_path / "theirs", "post")
    theirs = tmp_path / "theirs"
    path = theirs / "model.npz.decoder.yml"
    told = yaml.safe_load(path.read_text())

    def said(**changed: Any) -> str:
        path.write_text(yaml.safe_dump({**told, **changed}))
        return refused(run("import", theirs, tmp_path / "run"))

    assert "word-penalty is '0.5', and there is no such penalty here; set it to 0" in said(**{"word-penalty": 0.5})
    assert "normalize: expected a number, got '.nan'" in said(normalize=float("nan"))
    assert "names the vocabulary 'gone.spm', and it is not beside model.npz" in said(vocabs=["x/gone.spm"] * 2)
    (theirs / "words.txt").write_text("a\n")
    assert "expected a vocabulary of SentencePiece (.spm) or in YAML" in said(vocabs=["words.txt"] * 2)
    (theirs / "words.yml").write_text("</s>: 0\n<unk>: 1\n")
    assert "source.spm: No such file. words.yml numbers pieces" in said(vocabs=["words.yml"] * 2)
    assert "names 2 vocabularies, and the embeddings of both sides are one" in said(vocabs=["words.yml", "vocab.spm"])
    (theirs / "vocab.spm").write_bytes(b"no model")
    assert "vocab.spm: not a SentencePiece model" in said()
    with (theirs / "vocab.spm").open("wb") as stream:
        stream.truncate(LARGEST_MODEL_BYTES + 1)  # sparse: it takes no room
    assert f"larger than {LARGEST_MODEL_BYTES:,} bytes; expected a SentencePiece model" in said()
    (theirs / "vocab.spm").unlink()
    path.unlink()
    assert "has 0 files *vocab*.spm or *vocab.yml beside model.npz" in refused(run("import", theirs, tmp_path / "run"))


def refused_binary(path: Path, content: bytes | None = None) -> str:
    """What is said of a binary file that cannot be read."""
    from transduce.exchange.marian_npz import read_binary

    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RunError) as caught:
        read_binary(path)
    return str(caught.value)


def test_binary_files_that_are_refused(tmp_path: Path) -> None:
    from transduce.exchange.marian_npz import read_binary

    weights = marian.folder(tmp_path / "theirs", "post")
    path = tmp_path / "theirs" / "model.bin"
    marian.binary(path, weights, marian.settings("post"), int8=True)
    good = path.read_bytes()

    def refusal(data: bytes) -> str:
        path.write_bytes(data)
        with pytest.raises(RunError) as caught:
            transduce.import_model(path, tmp_path / "run")
        return str(caught.value)

    for length in (8, 12, 16, 40, 3000, len(good) // 2, len(good) - 1):
        assert str(path) in refusal(good[:length])
    assert "bytes, and" in refusal(good[:-1])
    assert "announces 18,446,744,073,709,551,615 tensors" in refusal(good[:8] + b"\xff" * 8 + good[16:])
    packed = good.index((0x10001).to_bytes(8, "little"))
    assert "is of type 0x11801, expected float32, float16 or intgemm8" in refusal(
        good[:packed] + (0x11801).to_bytes(8, "little") + good[packed + 8 :]
    )
    assert "tensors, more than fit into 16 bytes; " in refusal(good[:8] + (1).to_bytes(8, "little"))
    assert ": cannot be read: Is a directory; expected a file of Marian's weights" in refused_binary(tmp_path)
    assert "not a binary file of Marian's (" in refusal(good[:8])

    def with_shape(*shape: int) -> bytes:
        """One int8 tensor that its header gives this shape."""
        begin = (
            struct.pack("<QQQQQQ", 1, 1, 2, 0x10001, len(shape), 64) + b"x\0" + struct.pack(f"<{len(shape)}i", *shape)
        )
        return begin + struct.pack("<Q", 0) + bytes(64)

    assert "x has the shape (-1, 4); " in refused_binary(path, with_shape(-1, 4))
    assert "x has the shape (4,), expected a matrix; " in refused_binary(path, with_shape(4))
    assert "x was multiplied by 0.0, expected a number above 0" in refused_binary(path, with_shape(2, 2))
    assert "has a tensor of 99 dimensions" in refusal(
        good[: packed + 8] + (99).to_bytes(8, "little") + good[packed + 16 :]
    )
    draw = random.Random(1)
    for _ in range(300):  # any damage to the headers is refused or harmless
        damaged = bytearray(good[:8000])
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(8, len(damaged))] = draw.randrange(256)
        path.write_bytes(bytes(damaged) + good[8000:])
        with suppress(RunError):
            read_binary(path)


def test_who_cannot_have_it_says_why(tmp_path: Path) -> None:
    for wiring in ("post", "pre"):
        marian.folder(tmp_path / wiring, wiring)
        transduce.import_model(tmp_path / wiring, tmp_path / f"{wiring}-run")
    with pytest.raises(RunError, match=r"encoder.positions.base is 1\d{4}.*, expected 10000: positions are computed"):
        transduce.export(tmp_path / "post-run", tmp_path / "out", "marian")
    with pytest.raises(RunError, match=r"decoder.unnormed_past is true, expected false \(import .* --as-trained\)"):
        transduce.export(tmp_path / "pre-run", tmp_path / "out", "ctranslate2")


def test_a_piece_named_pad_stays_a_piece(tmp_path: Path) -> None:
    """Marian has no padding; where a vocabulary has a piece of that name, what is added is called otherwise."""
    weights = marian.folder(tmp_path / "theirs", "post")
    numbers = {marian.pieces().id_to_piece(number): number for number in range(len(weights["Wemb"]))}
    last = list(numbers)[-1]
    numbers = {"<pad>" if piece == last else piece: number for piece, number in numbers.items()}
    (tmp_path / "theirs" / "words.vocab.yml").write_text(yaml.safe_dump(numbers))
    for name in ("source.spm", "target.spm"):
        (tmp_path / "theirs" / name).write_bytes(marian.vocabulary())
    (tmp_path / "theirs" / "vocab.spm").unlink()
    (tmp_path / "theirs" / "model.npz.decoder.yml").unlink()
    run = transduce.import_model(tmp_path / "theirs", tmp_path / "run")
    tokenizer = transduce.load(run, "cpu").tokenizers.target
    assert tokenizer.pieces([numbers["<pad>"], len(numbers)]) == ["<pad>", "<pad 0>"]
    assert tokenizer.symbols.pad == len(numbers)
    assert np.array_equal(open_model(run, trust=False)[2].weights()["source_embedding.weight"][-1], np.zeros(marian.D))
