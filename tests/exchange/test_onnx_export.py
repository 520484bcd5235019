"""Our models under onnxruntime: the same logits from all three graphs, for any batch and length, and greedy search."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_runs
import torch
from cli_runner import Run, refused
from numpy.typing import NDArray
from torch import Tensor

pytest.importorskip("onnxscript", reason="torch writes ONNX by it: pip install transduce[test]")
pytest.importorskip("onnxruntime", reason="the oracle for ONNX: pip install transduce[test]")

import onnxruntime

import transduce
from transduce.core.errors import UserError
from transduce.data.batch import pad_sources
from transduce.model.attention import Attention
from transduce.model.blocks import PreNorm
from transduce.model.norms import RMSNorm
from transduce.model.positions import Learned, Rotary, SinusoidalPositions
from transduce.model.recurrent import RecurrentDecoder
from transduce.model.seq2seq import Model, Seq2Seq
from transduce.model.transformer import Mixed, TransformerDecoder, TransformerEncoder
from transduce.search.settings import Greedy, Limits
from transduce.training.run_folder import open_model

MODELS = {
    "paper": Model(
        32, 0.0, encoder=TransformerEncoder(1, Attention(4), 48), decoder=TransformerDecoder(2, Attention(4), 48)
    ),
    "modern": Model(
        24,
        0.0,
        tie="target",
        encoder=TransformerEncoder(1, Attention(3), 20, "gelu", positions=Learned(70)),
        decoder=TransformerDecoder(
            1,
            Attention(4, key_heads=2, key_width=4, query_key_norm=True),
            9,
            "swiglu",
            norm=RMSNorm(),
            residual=PreNorm(),
            positions=Rotary(),
        ),
        output_bias=True,
    ),
}
Arrays = dict[str, NDArray[Any]]


class Graphs:
    """The three of a folder."""

    def __init__(self, folder: Path) -> None:
        names = ("encoder_model", "decoder_model", "decoder_with_past_model")
        self.encoder, self.decoder, self.with_past = (
            onnxruntime.InferenceSession(str(folder / f"{name}.onnx")) for name in names
        )

    def begin(self, source: Tensor, mask: Tensor, target: Tensor) -> tuple[NDArray[Any], Arrays]:
        hidden = self.encoder.run(None, {"input_ids": source.numpy(), "attention_mask": mask.numpy()})[0]
        read = {"encoder_attention_mask": mask.numpy(), "input_ids": target.numpy(), "encoder_hidden_states": hidden}
        logits, *present = self.decoder.run(None, read)
        names = [output.name.replace("present", "past_key_values") for output in self.decoder.get_outputs()[1:]]
        return logits, dict(zip(names, present, strict=True))

    def go_on(self, mask: Tensor, token: Tensor, past: Arrays) -> tuple[NDArray[Any], Arrays]:
        read = {"encoder_attention_mask": mask.numpy(), "input_ids": token.numpy(), **past}
        logits, *present = self.with_past.run(None, read)
        names = [output.name.replace("present", "past_key_values") for output in self.with_past.get_outputs()[1:]]
        return logits, {**past, **dict(zip(names, present, strict=True))}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_it_says_the_same(name: str, tmp_path: Path) -> None:
    run = random_runs.run(tmp_path / "run", MODELS[name], longest=1050)
    folder = transduce.export(run, tmp_path / "theirs", "onnx")
    graphs = Graphs(folder)
    _, tokenizers, model, _ = open_model(run, trust=False)
    assert isinstance(model, Seq2Seq)
    compare_logits(graphs, model.eval(), tokenizers.target.size)

    # Greedy search with nothing but numpy, the graphs, and what the folder tells.
    facts = json.loads((folder / "generation_config.json").read_text())
    texts = random_runs.SOURCE[:20]
    source, mask = pad_sources(tokenizers.source.encode(texts), tokenizers.source.symbols)
    never = [token for (token,) in facts["bad_words_ids"]]
    logits, past = graphs.begin(source, mask.long(), torch.full((20, 1), facts["decoder_start_token_id"]))
    written: list[NDArray[Any]] = []
    for _ in range(15):
        logits[:, -1, never] = -np.inf
        written.append(logits[:, -1].argmax(-1))
        logits, past = graphs.go_on(mask.long(), torch.from_numpy(written[-1])[:, None], past)
    rows = [tuple(row) for row in np.stack(written, 1).tolist()]
    end = facts["eos_token_id"]
    limits = Limits(longest_ratio=0, longest_extra=15, longest=15)
    found = transduce.load(run, "cpu").find(tokenizers.source.encode(texts), Greedy(limits))
    assert [row[: row.index(end)] if end in row else row for row in rows] == [best.tokens for best, *_ in found]


@torch.no_grad()
def compare_logits(graphs: Graphs, model: Seq2Seq, size: int) -> None:
    unlimited = isinstance(model.encoder.positions, SinusoidalPositions)
    long = [(1, 1050, 2)] if unlimited else []
    for batch, length, target_length in ((3, 7, 4), (1, 1, 1), (4, 60, 1), (2, 30, 50), *long):
        source, target = torch.randint(4, size, (batch, length)), torch.randint(4, size, (batch, target_length))
        mask = torch.ones_like(source)
        mask[0, length // 2 + 1 :] = 0
        logits, state = model.advance(target, model.start(model.encode(source, mask.bool())))
        theirs, past = graphs.begin(source, mask, target)
        np.testing.assert_allclose(theirs, logits, rtol=1e-6, atol=1e-4)
        for _ in range(3):
            token = torch.randint(4, size, (batch, 1))
            logits, state = model.advance(token, state)
            theirs, past = graphs.go_on(mask, token, past)
            np.testing.assert_allclose(theirs, logits, rtol=1e-6, atol=1e-4)


def test_what_is_refused(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    model = replace(random_runs.transformer(), decoder=TransformerDecoder(2, Attention(4), 48, wiring=Mixed()))
    folder = random_runs.run(tmp_path / "mixed", model)
    text = "ONNX cannot run this model: decoder.wiring is 'mixed', expected top"
    assert refused(run("export", folder, tmp_path / "out", "--to", "onnx")) == text
    folder = random_runs.run(tmp_path / "recurrent", replace(model, decoder=RecurrentDecoder(1)))
    text = "ONNX cannot run this model: decoder is 'recurrent', expected transformer"
    assert refused(run("export", folder, tmp_path / "out", "--to", "onnx")) == text
    plain = random_runs.run(tmp_path / "plain", random_runs.transformer())
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"export to ONNX needs onnxscript: pip install 'transduce\[onnx\]'"):
        transduce.export(plain, tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()
