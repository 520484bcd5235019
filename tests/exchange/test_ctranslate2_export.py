"""Our models under CTranslate2: the same log-probabilities, and the same tokens by greedy and beam search."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import random_runs
from cli_runner import Run, refused

pytest.importorskip("ctranslate2", reason="the oracle for its exports: pip install transduce[test]")

import ctranslate2
import sentencepiece

import transduce
from transduce.core.errors import RunError, UserError
from transduce.model.attention import Attention
from transduce.model.blocks import PreNorm
from transduce.model.norms import BatchNorm, LayerNorm, RMSNorm
from transduce.model.positions import Alibi, Learned, Rotary, Unordered
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.search.settings import Beam, Greedy, Limits
from transduce.text.tokenizer import Tokenizer, Tokenizers
from transduce.text.vocabulary import VocabularyMap

KINDS: dict[str, dict[str, Any]] = {
    "paper": {},
    "gelu": {"activation": "gelu"},
    "silu-target": {"activation": "silu", "tie": "target"},
    "untied": {"tie": "none"},
    "pre": {"residual": PreNorm()},
    "swiglu": {"activation": "swiglu"},
    "geglu": {"activation": "geglu", "residual": PreNorm()},
    "rms": {"norm": RMSNorm()},
    "learned": {"positions": Learned(100)},
    "unordered": {"positions": Unordered()},
    "rotary": {"positions": Rotary()},
    "rotary-base": {"positions": Rotary(500.0), "residual": PreNorm()},
    "grouped": {"attention": Attention(4, key_heads=2)},
    "modern": {
        "activation": "swiglu",
        "norm": RMSNorm(),
        "residual": PreNorm(),
        "positions": Rotary(),
        "attention": Attention(4, key_heads=1),
    },
}
MODELS = {name: random_runs.transformer(output_bias=True, **parts) for name, parts in KINDS.items()}
MODELS["uneven"] = Model(
    30,
    0.0,
    encoder=TransformerEncoder(3, Attention(5), 20, "gelu", residual=PreNorm(), positions=Rotary()),
    decoder=TransformerDecoder(1, Attention(3), 9, positions=Learned(50)),
    output_bias=True,
)
TEXTS, TARGETS = random_runs.SOURCE[:30], random_runs.TARGET[:30]
LIMITS = Limits(longest_ratio=0, longest_extra=20, longest=20)


def cut(folder: Path, side: str, texts: list[str]) -> list[list[str]]:
    """As its users do."""
    pieces: list[list[str]] = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm")).encode(
        texts, out_type=str
    )
    return pieces


@pytest.mark.parametrize("name", MODELS)
def test_it_finds_the_same(name: str, tmp_path: Path) -> None:
    run = random_runs.run(tmp_path / "run", MODELS[name])
    folder = transduce.export(run, tmp_path / "theirs", "ctranslate2")
    theirs, ours = ctranslate2.Translator(str(folder), compute_type="float32"), transduce.load(run, "cpu")
    sources, targets = cut(folder, "source", TEXTS), cut(folder, "target", TARGETS)
    encoded = ours.tokenizers.source.encode(TEXTS)
    scored = ours.engine.score(encoded, ours.tokenizers.target.encode(TARGETS))
    for found, expected in zip(theirs.score_batch(sources, targets), scored, strict=True):
        assert found.log_probs == pytest.approx(expected, abs=1e-4)
    for size in (1, 4):
        search = Beam(size, 0.0, limits=LIMITS) if size > 1 else Greedy(LIMITS)
        mine = [ours.tokenizers.target.pieces(best.tokens) for best, *_ in ours.find(encoded, search)]
        results = theirs.translate_batch(
            sources, beam_size=size, length_penalty=0, min_decoding_length=0, max_decoding_length=20
        )
        assert [result.hypotheses[0] for result in results] == mine


def test_what_must_not_be_written_is_not(tmp_path: Path) -> None:
    """Without a bias of its own the model would write padding; ours strikes it, theirs does not know of it."""
    run = random_runs.run(tmp_path / "run", random_runs.transformer(tie="none"), random_runs.tokenizers())
    folder = transduce.export(run, tmp_path / "theirs", "ctranslate2")
    theirs, ours = ctranslate2.Translator(str(folder), compute_type="float32"), transduce.load(run, "cpu")
    results = theirs.translate_batch(
        cut(folder, "source", TEXTS), beam_size=1, min_decoding_length=0, max_decoding_length=20
    )
    found = ours.find(ours.tokenizers.source.encode(TEXTS), Greedy(LIMITS))
    mine = [ours.tokenizers.target.pieces(best.tokens) for best, *_ in found]
    assert [result.hypotheses[0] for result in results] == mine


def test_an_imported_model_goes_on(tmp_path: Path, run: Run) -> None:
    pytest.importorskip("transformers", reason="random Marian models are made by it: pip install transduce[test]")
    import marian_models as marian

    transduce.import_model(marian.folder(tmp_path / "first", "renormalized"), tmp_path / "run")
    folder = tmp_path / "theirs"
    assert run("export", tmp_path / "run", folder, "--to", "ctranslate2").lines == [str(folder)]
    theirs, ours = ctranslate2.Translator(str(folder), compute_type="float32"), transduce.load(tmp_path / "run", "cpu")
    sources = [[">>fra<<", *pieces] for pieces in cut(folder, "source", TEXTS)]
    encoded = ours.tokenizers.source.encode([f">>fra<< {text}" for text in TEXTS])
    mine = [ours.tokenizers.target.pieces(best.tokens) for best, *_ in ours.find(encoded, Beam(4, 0.0, limits=LIMITS))]
    results = theirs.translate_batch(
        sources, beam_size=4, length_penalty=0, min_decoding_length=0, max_decoding_length=20
    )
    assert [result.hypotheses[0] for result in results] == mine


def test_every_reason_is_reported(tmp_path: Path, run: Run) -> None:
    model = replace(
        random_runs.transformer(),
        encoder=TransformerEncoder(2, Attention(4, query_key_norm=True), 48, norm=BatchNorm()),
        decoder=TransformerDecoder(2, Attention(4), 48, positions=Alibi(), norm=LayerNorm()),
    )
    folder = random_runs.run(tmp_path / "run", model)
    text = refused(run("export", folder, tmp_path / "theirs", "--to", "ctranslate2"))
    assert text == (
        "CTranslate2 cannot run this model: encoder.norm is 'batch_norm', expected layer_norm or rms_norm;"
        " encoder.attention.query_key_norm is set; decoder.positions is 'alibi', expected sinusoidal or learned or"
        " rotary or unordered; encoder and decoder have different norms"
    )


def test_symbols_must_have_one_name(tmp_path: Path) -> None:
    plain = random_runs.tokenizers(shared=False)
    names = plain.target.pieces(range(plain.target.size))
    renamed = VocabularyMap(tuple("<end>" if name == "</s>" else name for name in names), plain.target.symbols)
    mixed = Tokenizers(plain.source, Tokenizer(plain.target.model, table=renamed))
    run = random_runs.run(tmp_path / "run", random_runs.transformer(tie="target"), mixed)
    with pytest.raises(RunError, match="end and unknown have other names in the source's vocabulary"):
        transduce.export(run, tmp_path / "theirs", "ctranslate2")


def test_who_lacks_it_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = random_runs.run(tmp_path / "run", random_runs.transformer())
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    with pytest.raises(UserError, match=r"CTranslate2 needs ctranslate2: pip install 'transduce\[ctranslate2\]'"):
        transduce.export(run, tmp_path / "theirs", "ctranslate2")
