"""Our models go out to Hugging Face's Marian classes: the same tokens, logits and beams there; and back again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runner import Run, refused

pytest.importorskip("transformers", reason="the oracle for Marian models: pip install transduce[test]")

import marian_models as marian
import random_runs

import transduce
from transduce.core.errors import ConfigError, RunError
from transduce.model.attention import Attention
from transduce.model.blocks import PreNorm
from transduce.model.norms import RMSNorm
from transduce.model.positions import Rotary
from transduce.model.recurrent import RecurrentDecoder, RecurrentEncoder
from transduce.model.scores import Additive, Relu
from transduce.model.seq2seq import Model
from transduce.model.transformer import Mixed, TransformerDecoder, TransformerEncoder
from transduce.search.settings import Beam, Greedy, Limits
from transduce.text.tokenizer import Tokenizer, Tokenizers
from transduce.text.vocabulary import Symbols, VocabularyMap
from transduce.training.run_folder import open_model

MODELS: dict[str, tuple[Model, Tokenizers | None]] = {
    "paper": (random_runs.transformer(), None),
    "gelu": (random_runs.transformer(activation="gelu", output_bias=True), None),
    "silu": (random_runs.transformer(activation="silu", tie="target", output_bias=True), None),
    "untied": (random_runs.transformer(tie="none"), None),
    "untied-shared": (random_runs.transformer(tie="none"), random_runs.tokenizers()),
    "odd": (random_runs.transformer(15, 5, output_bias=True), None),
    "bytes": (random_runs.transformer(output_bias=True), random_runs.tokenizers(byte_fallback=True)),
    "uneven": (
        Model(30, 0.0, encoder=TransformerEncoder(3, Attention(5), 20), decoder=TransformerDecoder(1, Attention(3), 9)),
        None,
    ),
}
TEXTS = [*random_runs.SOURCE[:30], "☃ abc ß"]


@pytest.mark.parametrize("name", MODELS)
def test_they_read_it_and_say_the_same(name: str, tmp_path: Path) -> None:
    run = random_runs.run(tmp_path / "run", *MODELS[name])
    theirs, tokenizer = marian.opened(transduce.export(run, tmp_path / "theirs", "marian"))
    translator, ours = transduce.load(run, "cpu"), open_model(run, trust=False)[2].eval()
    end, start = translator.tokenizers.target.symbols.eos, translator.tokenizers.target.symbols.bos
    read = tokenizer(TEXTS, return_tensors="pt", padding=True)
    encoded = translator.tokenizers.source.encode(TEXTS)
    assert [[*tokens, end] for tokens in encoded] == tokenizer(TEXTS).input_ids
    targets = tokenizer(text_target=random_runs.TARGET[:40]).input_ids
    assert [[*tokens, end] for tokens in translator.tokenizers.target.encode(random_runs.TARGET[:40])] == targets
    assert [tokenizer.decode(t, skip_special_tokens=True, use_source_tokenizer=False) for t in targets] == [
        translator.tokenizers.target.decode(tokens) for tokens in targets
    ]

    target = torch.randint(translator.tokenizers.target.size, (len(TEXTS), 12))
    target[:, 0] = start
    with torch.no_grad():
        logits = theirs(**read, decoder_input_ids=target).logits
        memory = ours.encode(read.input_ids, read.attention_mask.bool())
        torch.testing.assert_close(ours.advance(target, ours.start(memory))[0], logits, rtol=0, atol=1e-4)  # type: ignore[operator]

    limits = Limits(longest_ratio=0, longest_extra=20, longest=20)
    for size in (1, 4):
        written = theirs.generate(
            **read, num_beams=size, max_length=21, min_length=0, forced_eos_token_id=None,
            **({"length_penalty": 0.0} if size > 1 else {}),
        )  # fmt: skip
        search = Beam(size, 0.0, limits=limits) if size > 1 else Greedy(limits)
        rows = [row[1:].tolist() for row in written]
        rows = [tuple(row[: row.index(end)] if end in row else row) for row in rows]
        assert [found[0].tokens for found in translator.find(encoded, search)] == rows


def test_tags_are_known_by_their_names(tmp_path: Path) -> None:
    run = random_runs.run(tmp_path / "run", random_runs.transformer())
    _, tokenizer = marian.opened(transduce.export(run, tmp_path / "theirs", "marian"))
    source = transduce.load(run, "cpu").tokenizers.source
    assert tokenizer(">>de<< abc").input_ids[:-1] == [source.token("<2de>"), *source.encode(["abc"])[0]]
    assert tokenizer.convert_ids_to_tokens(source.token("<2de>")) == "<2de>"


@pytest.mark.parametrize("shape", ["usual", "separate", "unscaled", "untied", "renormalized"])
def test_what_came_in_goes_out_as_it_came(shape: str, tmp_path: Path, run: Run) -> None:
    first = marian.folder(tmp_path / "first", shape)
    transduce.import_model(first, tmp_path / "run")
    assert run("export", tmp_path / "run", tmp_path / "second", "--to", "marian").lines == [str(tmp_path / "second")]
    (one, its), (other, others) = marian.opened(first), marian.opened(tmp_path / "second")
    texts = [*marian.SOURCE[:20], ">>fra<< abc"]
    read = its(texts, return_tensors="pt", padding=True)
    assert torch.equal(others(texts, return_tensors="pt", padding=True).input_ids, read.input_ids)
    target = torch.randint(90, (len(texts), 9))
    with torch.no_grad():
        logits = [model(**read, decoder_input_ids=target).logits for model in (one, other)]
    pad = one.config.pad_token_id
    torch.testing.assert_close(logits[1][..., :pad], logits[0][..., :pad], rtol=0, atol=1e-4)
    assert other.generation_config.bad_words_ids == [[pad]]
    assert other.config.decoder_start_token_id == pad
    again = transduce.import_model(tmp_path / "second", tmp_path / "again")
    assert transduce.load(again, "cpu")(texts) == transduce.load(tmp_path / "run", "cpu")(texts)


def test_the_search_goes_along(tmp_path: Path) -> None:
    run = random_runs.run(tmp_path / "run", random_runs.transformer())
    folder = transduce.export(run, tmp_path / "theirs", "marian")
    facts = json.loads((folder / "generation_config.json").read_text())
    assert (facts["num_beams"], facts["length_penalty"], facts["max_length"]) == (3, 1.0, 31)
    never = open_model(run, trust=False)[1].target.symbols.never
    assert facts["bad_words_ids"] == [[token] for token in never]


@pytest.mark.parametrize(
    ("model", "reasons"),
    [
        (
            random_runs.transformer(
                activation="swiglu",
                norm=RMSNorm(),
                residual=PreNorm(),
                positions=Rotary(),
                attention=Attention(4, key_heads=2, key_width=4, query_key_norm=True),
                window=3,
            ),
            [
                "encoder.activation is 'swiglu', expected relu or gelu or silu",
                "decoder.norm is 'rms_norm', expected layer_norm",
                "encoder.residual is 'pre_norm', expected post_norm",
                "decoder.positions is 'rotary', expected sinusoidal",
                "encoder.attention.key_heads is 2, expected as many as heads",
                "decoder.attention.key_width is 4, expected d_model / heads",
                "decoder.attention.query_key_norm is set",
                "decoder.window is 3, expected 0",
            ],
        ),
        (
            replace(
                random_runs.transformer(),
                encoder=TransformerEncoder(2, Attention(4, score=Additive(), weights=Relu()), 48, "gelu"),
                decoder=TransformerDecoder(2, Attention(4), 48, wiring=Mixed()),
            ),
            [
                "encoder.attention.score is 'additive', expected scaled_dot",
                "encoder.attention.weights is 'relu', expected softmax",
                "decoder.wiring is 'mixed', expected top",
                "encoder and decoder have different activations, gelu and relu",
            ],
        ),
        (
            Model(32, 0.0, encoder=RecurrentEncoder(1), decoder=RecurrentDecoder(1)),
            ["encoder is 'recurrent', expected transformer", "decoder is 'recurrent', expected transformer"],
        ),
    ],
)
def test_every_reason_is_reported(model: Model, reasons: list[str], tmp_path: Path, run: Run) -> None:
    folder = random_runs.run(tmp_path / "run", model)
    text = refused(run("export", folder, tmp_path / "theirs", "--to", "marian"))
    assert text.startswith("Marian cannot run this model: ")
    assert [reason for reason in reasons if reason not in text] == []
    assert not (tmp_path / "theirs").exists()


def test_special_symbols_must_agree(tmp_path: Path) -> None:
    plain = random_runs.tokenizers(shared=False)
    table = VocabularyMap(tuple(plain.target.pieces(range(plain.target.size)))[::-1], Symbols(99, 97, 96, 98))
    mixed = Tokenizers(plain.source, Tokenizer(plain.target.model, table=table))
    run = random_runs.run(tmp_path / "run", random_runs.transformer(tie="target"), mixed)
    with pytest.raises(RunError, match="padding, end and unknown have other numbers in the source's vocabulary"):
        transduce.export(run, tmp_path / "theirs", "marian")


def test_only_systems_that_there_are(tmp_path: Path) -> None:
    unknown: Any = "moses"
    with pytest.raises(ConfigError, match=r"to: expected marian.*, got 'moses'"):
        transduce.export(tmp_path, tmp_path / "out", unknown)
