"""The learner's figure: each block's code is the repository's, each tensor the one that the model makes."""

from __future__ import annotations

import base64
import inspect as sources
import json
import math
import re
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from transduce.core.errors import ConfigError
from transduce.engines.torch.engine import TorchEngine
from transduce.inspection.figure_one import alive, codes, depth, tensors
from transduce.inspection.inspect import inspect
from transduce.inspection.paper import FIGURE_1
from transduce.model.attention import MultiHeadAttention
from transduce.model.attention import attention as equation_1
from transduce.model.recurrent import RecurrentDecoder, RecurrentEncoder
from transduce.model.seq2seq import Model
from transduce.search.settings import Greedy
from transduce.translate.translator import Translator

if TYPE_CHECKING:
    from toy_model import Toy

import random_runs

TEXT = "sixty-two, eleven"


def test_the_tensors_are_the_model_s_own(toy: Toy) -> None:
    seen = inspect(toy.translator, TEXT, to="de")
    before = {name: len(module._forward_hooks) for name, module in toy.engine.model.named_modules()}
    found = {
        f"{block}/{one.name}": one.values
        for block, parts in tensors(toy.engine, seen, toy.translator.tokenizers.target, 0).items()
        for one in parts
    }
    assert before == {name: len(module._forward_hooks) for name, module in toy.engine.model.named_modules()}
    # Equation 1 from the queries, keys and values shown: the weights shown, and with W^O the output shown.
    for block, masked in (("encoder-attention", False), ("decoder-attention", True), ("decoder-cross", False)):
        query, key, value = (torch.tensor(found[f"{block}/{part}"]) for part in "QKV")
        width, heads = query.shape[1] // 2, []
        for head in range(2):
            part = slice(head * width, (head + 1) * width)
            scores = query[:, part] @ key[:, part].T / math.sqrt(width)
            if masked:
                scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
            weights = scores.softmax(-1)
            assert found[f"{block}/head {head}"] == pytest.approx(weights.numpy(), abs=1e-4)
            heads.append(weights @ value[:, part])
        side = toy.engine.model.encoder if block.startswith("encoder") else toy.engine.model.decoder
        own = side.layers[0].cross if block == "decoder-cross" else side.layers[0].attention
        with torch.no_grad():
            assert found[f"{block}/output"] == pytest.approx(own.output(torch.cat(heads, 1)).numpy(), abs=1e-4)
    assert found["softmax/p"].max() <= 1
    last = [math.exp(step.log_prob) for step in seen.steps]
    assert (found["softmax/p"].max(1) >= np.array(last) - 1e-5).all()
    assert found["encoder-feed-forward/inner"].min() >= 0  # cut at zero


def test_positions_are_the_paper_s_waves(toy: Toy) -> None:
    seen = inspect(toy.translator, TEXT, to="de")
    (one,) = tensors(toy.engine, seen, toy.translator.tokenizers.target, 0)["input-positions"]
    width = one.values.shape[1]
    for place in range(len(one.rows)):
        for i in range(0, width, 2):
            angle = place / 10000 ** (i / width)
            assert one.values[place, i] == pytest.approx(math.sin(angle), abs=1e-5)
            assert one.values[place, i + 1] == pytest.approx(math.cos(angle), abs=1e-5)


def test_the_code_is_that_of_the_repository(toy: Toy) -> None:
    own = codes(toy.engine.model)
    attention, heads, _ = own["encoder-attention"]
    assert attention.text == sources.getsource(equation_1)
    assert heads.text == sources.getsource(MultiHeadAttention)
    assert attention.file == "transduce/model/attention.py"
    lines = (Path(__file__).parents[2] / attention.file).read_text(encoding="utf-8").split("\n")
    assert lines[attention.line - 1].startswith("def attention(")
    residual = type(toy.engine.model.encoder.layers[0].around_attention)
    assert own["encoder-norm-1"][0].text == sources.getsource(residual)


def test_formulas_are_sound_and_words_are_there_in_both_languages() -> None:
    for idea in FIGURE_1.values():
        for math_element in re.findall(r"<math.*?</math>", idea.formula):
            assert xml.fromstring(math_element).tag == "math"
        assert idea.formula.startswith("<math")
        assert idea.title.keys() == idea.about.keys() == {"en", "zh"}


def test_all_of_it_as_json(toy: Toy) -> None:
    found = json.loads(json.dumps(alive(toy.translator, TEXT, to="de"), allow_nan=False))
    assert found["blocks"].keys() == FIGURE_1.keys()
    assert (found["translation"], found["layers"]) == (toy.translator(TEXT, to="de", protect=False), 1)
    (one,) = found["blocks"]["input"]["tensors"]
    values = np.frombuffer(base64.b64decode(one["values"]), np.uint8).reshape(len(one["rows"]), one["columns"])
    scaled = one["least"] + values / 255 * (one["most"] - one["least"])
    source = toy.translator.tokenizers.source
    tokens = torch.tensor([source.tag("de"), *source.encode([TEXT])[0], source.symbols.eos])
    with torch.no_grad():
        expected = toy.engine.model.source_embedding(tokens).numpy()
    assert scaled == pytest.approx(expected, abs=(one["most"] - one["least"]) / 255)
    with pytest.raises(ConfigError, match="layer: this model has layers 0 to 0, and not 3"):
        alive(toy.translator, TEXT, to="de", layer=3)


def test_statistics_are_of_the_whole_tensor_and_not_of_the_part_shown() -> None:
    """Recomputed from the weights: a picture is 128 columns wide at most, the tensors of this model are wider."""
    tokenizers = random_runs.tokenizers()
    torch.manual_seed(0)
    size = tokenizers.target.size
    built = Model(160, 0.0).build(tokenizers.source.size, size, tokenizers.shared).eval()
    symbols = tokenizers.source.symbols, tokenizers.target.symbols
    translator = Translator(TorchEngine(built, *symbols, "cpu"), tokenizers, Greedy())
    found = json.loads(json.dumps(alive(translator, TEXT), allow_nan=False))["blocks"]
    (x,), (p,) = found["input"]["tensors"], found["softmax"]["tensors"]
    tokens = torch.tensor([*tokenizers.source.encode([TEXT])[0], tokenizers.source.symbols.eos])
    with torch.no_grad():
        expected = built.source_embedding(tokens).double()
    assert x["shape"] == [len(tokens), 160]
    assert (x["columns"], len(base64.b64decode(x["values"]))) == (128, 128 * len(tokens))
    statistics = [float(f(expected)) for f in (torch.min, torch.max, torch.mean)] + [float(expected.std(correction=0))]
    assert [x[name] for name in ("least", "most", "mean", "spread")] == pytest.approx(statistics, rel=1e-3)
    # The probabilities of a row sum to one, so their mean is one in so many tokens, whichever of them are shown.
    assert p["shape"][1] == size > len(p["columns"])
    assert p["mean"] == pytest.approx(1 / size, rel=1e-3)
    shown = np.frombuffer(base64.b64decode(p["values"]), np.uint8)
    assert shown.max() == 255  # the greatest of all is among the likeliest
    for block in ("encoder-attention", "decoder-attention", "decoder-cross"):
        for head in (one for one in found[block]["tensors"] if one["name"].startswith("head")):
            assert head["shape"] == [len(head["rows"]), len(head["columns"])]
            assert head["mean"] == pytest.approx(1 / len(head["columns"]), rel=1e-3)


def test_a_model_that_is_no_transformer_has_code_and_no_tensors() -> None:
    tokenizers = random_runs.tokenizers()
    config = Model(32, 0.0, encoder=RecurrentEncoder(1), decoder=RecurrentDecoder(1))
    built = config.build(tokenizers.source.size, tokenizers.target.size, tokenizers.shared)
    engine = TorchEngine(built, tokenizers.source.symbols, tokenizers.target.symbols, torch.device("cpu"))
    found = alive(Translator(engine, tokenizers, Greedy(), decoder=config.decoder), "abc")
    assert depth(engine) == (0, 0)
    assert found["layers"] == 0
    assert not any(block["tensors"] for block in found["blocks"].values())
    assert all(block["code"] for block in found["blocks"].values())
