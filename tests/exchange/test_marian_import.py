"""Marian models of every shape come in: the same tokens, logits and beams as Hugging Face's own classes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import toys
from cli_runner import Run, refused

pytest.importorskip("transformers", reason="the oracle for Marian models: pip install transduce[test]")

import marian_models as marian

import transduce
from transduce.core.errors import RunError, UserError
from transduce.data.formats.parallel import ParallelText
from transduce.data.prepare.run import Prepare, prepare
from transduce.engines.native import library
from transduce.exchange.convert import convert
from transduce.model.seq2seq import Seq2Seq
from transduce.search.settings import Beam, Greedy, Limits
from transduce.text.train_tokenizer import GivenTokenizer
from transduce.training.loop import train
from transduce.training.run_folder import open_model, read_config
from transduce.translate.translator import Translator

TEXTS = [*marian.SOURCE[:30], "☃ abc ß", ">>fra<< abc def", ">>deu<<abc", "a"]


@dataclass(frozen=True)
class Both:
    """One model, opened by them and by us."""

    shape: str
    folder: Path
    run: Path
    theirs: Any
    tokenizer: Any
    ours: Seq2Seq
    translator: Translator


@pytest.fixture(scope="module", params=marian.SHAPES)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    path = tmp_path_factory.mktemp(request.param)
    folder = marian.folder(path / "theirs", request.param)
    run = transduce.import_model(folder, path / "run")
    theirs, tokenizer = marian.opened(folder)
    _, _, model, _ = open_model(run, trust=False)
    assert isinstance(model, Seq2Seq)
    return Both(request.param, folder, run, theirs, tokenizer, model.eval(), transduce.load(run, "cpu"))


def test_texts_have_the_same_tokens_both_ways(both: Both) -> None:
    tokenizers = both.translator.tokenizers
    assert [[*tokens, 0] for tokens in tokenizers.source.encode(TEXTS)] == both.tokenizer(TEXTS).input_ids
    targets = both.tokenizer(text_target=marian.TARGET[:50]).input_ids
    assert [[*tokens, 0] for tokens in tokenizers.target.encode(marian.TARGET[:50])] == targets
    for tokens in targets:
        theirs = both.tokenizer.decode(tokens, skip_special_tokens=True, use_source_tokenizer=False)
        assert tokenizers.target.decode(tokens) == theirs
    assert tokenizers.shared == ("separate" not in both.shape and both.shape != "untied")


@torch.no_grad()
def test_logits_are_the_same(both: Both) -> None:
    read = both.tokenizer(marian.SOURCE, return_tensors="pt", padding=True)
    pad = both.translator.tokenizers.target.symbols.pad
    generator = torch.Generator().manual_seed(1)
    target = torch.randint(pad, (len(marian.SOURCE), 20), generator=generator)
    target[:, 0] = pad
    theirs = both.theirs(**read, decoder_input_ids=target).logits
    mask = read.attention_mask.bool()
    ours, _ = both.ours.advance(target, both.ours.start(both.ours.encode(read.input_ids, mask)))
    kept = torch.arange(pad)  # padding may be silenced
    assert theirs.std() > 0.5
    torch.testing.assert_close(ours[..., kept], theirs[..., kept], rtol=0, atol=1e-4)
    if both.shape == "renormalized":
        assert (ours[..., pad] < -900).all()
    else:
        torch.testing.assert_close(ours[..., pad], theirs[..., pad], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("size", "shortest"), [(1, 0), (1, 6), (4, 0), (4, 6)])
def test_beams_find_the_same(both: Both, size: int, shortest: int) -> None:
    """With a length penalty of 0 their score and ours are both the log-probability."""
    if both.shape == "renormalized" and shortest:
        pytest.skip("they then spread the probability of an end that may not come yet over the other tokens too")
    read = both.tokenizer(TEXTS, return_tensors="pt", padding=True)
    options = {"length_penalty": 0.0, "num_return_sequences": size} if size > 1 else {}
    written = both.theirs.generate(
        **read, num_beams=size, max_length=25, min_length=shortest + 1, output_scores=True,
        return_dict_in_generate=True, early_stopping=size > 1 and None, **options,
    )  # fmt: skip
    limits = Limits(longest_ratio=0, longest_extra=24, longest=24, shortest=shortest)
    search = Beam(size, 0.0, n_best=size, limits=limits) if size > 1 else Greedy(limits)
    found = both.translator.find(both.translator.tokenizers.source.encode(TEXTS), search)
    rows = [row[1:].tolist() for row in written.sequences]
    theirs = [tuple(row[: row.index(0)] if 0 in row else row) for row in rows]
    ours = [hypothesis.tokens for hypotheses in found for hypothesis in hypotheses]
    pad = both.translator.tokenizers.target.symbols.pad
    assert [tuple(token for token in row if token != pad) for row in theirs] == ours
    if size > 1:
        scores = torch.tensor([hypothesis.log_prob for hypotheses in found for hypothesis in hypotheses])
        torch.testing.assert_close(scores, written.sequences_scores, rtol=0, atol=1e-3)


def test_the_settings_come_along(both: Both) -> None:
    config = read_config(both.run)
    assert isinstance(config.search, Beam)
    assert (config.search.size, config.search.limits.longest, config.search.length_penalty) == (4, 59, 1.0)
    assert both.translator.longest == 64
    assert "imported" in (both.run / "README.md").read_text()


# -- everything works on it --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole")
    return transduce.import_model(marian.folder(path / "theirs", "usual"), path / "run")


def test_a_language_is_named_in_the_text_or_beside_it(usual: Path) -> None:
    translator = transduce.load(usual, "cpu")
    source = translator.tokenizers.source
    assert translator.translate(["abc def"], to="fra")[0] == translator.translate([">>fra<< abc def"])[0]
    assert source.encode([">>fra<< abc"])[0][0] == source.token(">>fra<<")
    long, translator.longest = "abc def ghij. " * 12, 20
    named, written = (
        translator.translate([long], to="deu", protect=False),
        translator.translate([f">>deu<<{long}"], protect=False),
    )
    assert named == written
    assert named[0].parts > 2
    assert written != translator.translate([long], protect=False)
    (aligned,) = translator.translate([">>deu<< abc def"], align="words")
    assert aligned.alignment is not None
    assert aligned.alignment.source == ("abc", "def")
    with pytest.raises(UserError, match="no piece '<2xyz>'"):
        translator("abc", to="xyz")


def test_it_translates_scores_and_aligns(usual: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "source").write_text("abc def\nghij\n")
    (tmp_path / "target").write_text("hij klm\nnop\n")
    translated = run("translate", usual, "-i", tmp_path / "source", "--beam", "2", "--device", "cpu")
    assert (translated.code, len(translated.lines)) == (0, 2)
    scored = run("score", usual, tmp_path / "source", tmp_path / "target", "--device", "cpu")
    assert all(float(line.split("\t")[0]) < 0 for line in scored.lines)
    aligned = run("align", usual, tmp_path / "source", tmp_path / "target", "--device", "cpu")
    assert [len(line.split()) for line in aligned.lines] == [2, 1]
    evaluated = run("evaluate", tmp_path / "target", usual, "--source", tmp_path / "source", "--device", "cpu")
    assert evaluated.code == 0


@pytest.mark.skipif(library.built() is None, reason="the core is not built: make native")
@pytest.mark.parametrize("shape", ["renormalized", "separate", "unscaled"])
def test_it_is_converted_for_the_native_engine(shape: str, tmp_path: Path) -> None:
    run = transduce.import_model(marian.folder(tmp_path / "theirs", shape), tmp_path / "run")
    texts = [*marian.SOURCE[:20], ">>fra<< abc"]
    ours = transduce.load(run, "cpu", engine="torch").translate(texts, beam=4)
    native = transduce.load(convert(run, tmp_path / "converted", "none"), engine="native").translate(texts, beam=4)
    assert [one.text for one in native] == [one.text for one in ours]
    assert [one.score for one in native] == pytest.approx([one.score for one in ours], abs=1e-3)
    small = transduce.load(convert(run, tmp_path / "small", "int8"), engine="native").translate(texts, beam=4)
    assert [one.log_prob for one in small] == pytest.approx([one.log_prob for one in ours], rel=0.1, abs=2)


@pytest.mark.slow
def test_it_is_trained_on_from_its_own_config(usual: Path, tmp_path: Path) -> None:
    pairs = [(f">>deu<< {left}", right) for left, right in zip(marian.SOURCE[:200], marian.TARGET[:200], strict=True)]
    given = GivenTokenizer(folder=str(usual / "tokenizer"))
    texts, held = toys.text(tmp_path / "train", pairs[20:]), toys.text(tmp_path / "valid", pairs[:20])
    corpus = prepare(Prepare(str(tmp_path / "corpus"), (texts,), (held,), tokenizer=given, workers=1))
    assert corpus.tokenizers.digest() == transduce.load(usual, "cpu").tokenizers.digest()
    tagged = prepare(
        Prepare(str(tmp_path / "tagged"), (ParallelText(texts.source, texts.target, tag=">>fra<<"),), tokenizer=given)
    )
    assert int(tagged.split("train").pair(0)[0][0]) == corpus.tokenizers.source.token(">>fra<<")
    config = read_config(usual)
    config = replace(
        config,
        data=replace(config.data, folder=str(tmp_path / "corpus"), tokens=1000),
        training=replace(toys.config(tmp_path / "corpus").training, start_from=str(usual), steps=60, save_every=30),
        validation=replace(config.validation, metric="loss", every=30, sentences=8),
        search=Greedy(),
    )
    outcome = train(config, tmp_path / "run")
    losses = [line["loss"] for line in toys.reports(tmp_path / "run")]
    assert losses[-1] < 0.8 * losses[0]
    assert outcome.step == 60
    tuned = open_model(tmp_path / "run", trust=False)[2].weights()
    before = open_model(usual, trust=False)[2].weights()
    assert all(not torch.equal(tuned[name], before[name]) for name in ("output_bias", "source_embedding.weight"))


# -- what is refused -------------------------------------------------------------------------------------------------


class Runs:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def change(folder: Path, name: str, **values: Any) -> None:
    facts = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**facts, **values}))


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return marian.folder(tmp_path / "theirs", "usual")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model_type": "bart"}, "model_type is 'bart'; only 'marian'"),
        ({"d_model": "wide"}, "d_model: expected an integer of at least 1, got 'wide'"),
        ({"dropout": "some"}, "dropout: expected a number here, got 'some'"),
        ({"dropout": 2}, "dropout: expected at least 0 and below 1, got 2"),
        ({"eos_token_id": [0, 1]}, r"eos_token_id: expected an integer of at least 0, got \[0, 1\]"),
        ({"pad_token_id": 10**6}, "vocab.json: special symbols"),
        ({"d_model": 64, "encoder_layers": 1}, "the tensors are not those of the model in config.json"),
        ({"d_model": 16}, r"self_attn.q_proj.weight is \[32, 32\], and d_model is 16"),
        ({"encoder_layers": 10**9}, "config.json describes 1,000,000,002 layers and"),
        ({"vocab_size": 10**9}, "layers and 1,000,000,000 pieces; the file has"),
        ({"vocab_size": 10**12}, "vocab_size: expected an integer of at least 1, got 1000000000000"),
        ({"share_encoder_decoder_embeddings": False}, "has no embeddings under the name model.encoder.embed_tokens"),
        (
            {"normalize_before": True, "activation_function": "tanh", "static_position_embeddings": False},
            "no Marian model that we know: normalize_before is True, expected False; static_position_embeddings is"
            " False, expected True; activation_function is 'tanh', none of relu, gelu, swish, silu",
        ),
    ],
)  # fmt: skip
def test_settings_that_are_refused(theirs: Path, tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    change(theirs, "config.json", **changes)
    (theirs / "generation_config.json").unlink()
    with pytest.raises(RunError, match=text):
        transduce.import_model(theirs, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_files_that_are_refused(theirs: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal() -> str:
        return refused(run("import", theirs, tmp_path / "run"))

    tensors = safetensors.torch.load_file(theirs / "model.safetensors")
    good = (theirs / "vocab.json").read_text()
    for broken, text in (
        ("[]", "vocab.json: expected a JSON object, with names and values"),
        ("{", "vocab.json: not JSON ("),
        ('{"</s>": 5000}', "vocab.json: '</s>' has number 5000; expected one below the vocabulary's size"),
        ('{"</s>": 0}', "vocab.json: has no piece '<unk>', which stands for all that is unknown"),
    ):
        (theirs / "vocab.json").write_text(broken)
        assert text in refusal()
    (theirs / "vocab.json").write_text(good)
    change(theirs, "generation_config.json", bad_words_ids=5)
    assert "bad_words_ids: expected lists of tokens, got 5" in refusal()
    change(theirs, "generation_config.json", bad_words_ids=[[3]])
    safetensors.torch.save_file({**tensors, "more": torch.ones(2)}, theirs / "model.safetensors")
    assert "0 missing (), 1 unexpected (more)" in refusal()
    (theirs / "model.safetensors").write_bytes(b"nothing")
    assert "model.safetensors: not a safetensors file (" in refusal()
    (theirs / "model.safetensors").unlink()
    assert "has no weights; expected model.safetensors or pytorch_model.bin" in refusal()
    torch.save([1, 2], theirs / "pytorch_model.bin")
    assert "pytorch_model.bin: expected tensors by name" in refusal()
    torch.save({"x": Runs(tmp_path / "ran")}, theirs / "pytorch_model.bin")
    told = refusal()
    assert "pytorch_model.bin: cannot be read as tensors alone (it asks for 'posix system'): it is damaged, or" in told
    assert "weights_only" not in told  # torch's own advice would run what the file holds
    assert not (tmp_path / "ran").exists()
    torch.save(tensors, theirs / "pytorch_model.bin")
    assert run("import", theirs, tmp_path / "run").lines == [str(tmp_path / "run")]
    assert refusal().endswith("already exists and is complete; choose another output, or remove it first")
    pad = transduce.load(tmp_path / "run", "cpu").tokenizers.target.symbols
    assert pad.never == (3, pad.pad)
    (theirs / "config.json").unlink()
    assert "config.json: cannot be read: No such file" in refusal()
    monkeypatch.setattr("transduce.exchange.foreign.LARGEST_JSON_BYTES", 1)
    (theirs / "config.json").write_text("{}")
    assert "config.json: not JSON (larger than 1 bytes)" in refusal()
