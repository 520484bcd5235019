"""What an inspection says of a sentence, held against the model, the searches and arithmetic done by hand."""

from __future__ import annotations

import base64
import copy
import json
import math
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transduce
from transduce.core.errors import ConfigError, DataError
from transduce.data.readers import FileReader, Reading
from transduce.engines.native import library
from transduce.engines.torch.engine import TorchEngine
from transduce.exchange import convert
from transduce.inspection.inspect import InspectOptions, heads_of, inspect
from transduce.inspection.record import AttentionMap, Inspection
from transduce.model.attention import Attention
from transduce.model.blocks import PreNorm
from transduce.model.convolutional import ConvolutionalDecoder, ConvolutionalEncoder
from transduce.model.layers import Dropout
from transduce.model.parallel import ParallelDecoder
from transduce.model.recurrent import FixedVector, RecurrentDecoder, RecurrentEncoder
from transduce.model.seq2seq import Model
from transduce.model.sources import Frames
from transduce.search.settings import Beam, Greedy, Limits, MaskPredict, Sample
from transduce.translate.translator import Translator

if TYPE_CHECKING:
    from toy_model import Toy

import random_runs

TEXT = "forty-two, seven"


@pytest.fixture(scope="module")
def seen(toy: Toy) -> Inspection:
    return inspect(toy.translator, TEXT, to="de", beam=3, model="toy")


def test_it_is_the_translation_that_the_translator_gives(seen: Inspection, toy: Toy) -> None:
    (own,) = toy.translator.translate([TEXT], to="de", beam=3, protect=False)
    assert (seen.translation, seen.score, seen.finished) == (own.text, own.score, own.finished)
    assert (seen.source[0], seen.source[-1], seen.written[-1]) == ("<2de>", "</s>", "</s>")
    assert seen.read[0] == "<s>"
    assert seen.read[1:] == seen.written[:-1] == own.tokens


def test_steps_are_the_model_s_own_probabilities(seen: Inspection, toy: Toy) -> None:
    source = toy.translator.tokenizers.source
    (scored,) = toy.engine.score([[source.tag("de"), *source.encode([TEXT])[0]]], [seen.tokens[:-1]])
    assert [step.log_prob for step in seen.steps] == pytest.approx(scored, abs=1e-4)
    for step in seen.steps:
        assert step.candidates[min(step.rank, 7)].token == step.token or step.rank > 7
        ordered = [one.log_prob for one in step.candidates]
        assert ordered == sorted(ordered, reverse=True)
        assert 0 <= step.entropy <= math.log2(toy.translator.tokenizers.target.size)


def test_maps_are_distributions_and_equation_1_by_hand(seen: Inspection, toy: Toy) -> None:
    assert [one.name for one in seen.maps] == ["encoder.0.self", "decoder.0.self", "decoder.0.cross"]
    for one in seen.maps:
        assert one.weights.sum(-1) == pytest.approx(np.ones(one.weights.shape[:2]), abs=1e-5)
    assert np.triu(seen.map("decoder", 0).weights[0], 1).max() == 0
    source = toy.translator.tokenizers.source
    tokens = torch.tensor([[source.tag("de"), *source.encode([TEXT])[0], source.symbols.eos]])
    model, block = toy.engine.model, toy.engine.model.encoder.layers[0]
    with torch.no_grad():
        x = model.encoder.positions.add(model.source_embedding(tokens), 0)
        if not isinstance(toy_residual(toy), type(None)):
            x = block.around_attention.norm(x)
        query, key = block.attention.query(x)[0], block.attention.key(x)[0]
    width = query.shape[1] // 2
    for head in range(2):
        part = slice(head * width, (head + 1) * width)
        byhand = torch.softmax(query[:, part] @ key[:, part].T / math.sqrt(width), -1)
        assert seen.map("encoder", 0).weights[head] == pytest.approx(byhand.numpy(), abs=1e-5)


def toy_residual(toy: Toy) -> PreNorm | None:
    """The toy is post-norm unless its preset says otherwise."""
    kind = type(toy.engine.model.encoder.layers[0].around_attention).__name__
    return PreNorm() if kind == "PreNormResidual" else None


@pytest.mark.parametrize(
    "search",
    [
        Beam(size=4, n_best=4),
        Beam(size=3, n_best=3, length_penalty=0.0),
        Beam(size=4, n_best=4, length_normalization="power", shrinking=True),
        Greedy(),
    ],
)
def test_the_tree_holds_what_the_search_kept_and_finished(search: Beam | Greedy, toy: Toy) -> None:
    size = search.size if isinstance(search, Beam) else 1
    own = inspect(toy.translator, TEXT, to="zh", search=search)
    assert own.tree is not None
    nodes = own.tree.nodes
    # The end symbol stands at the end of what is shown even where the length limit cut it off.
    assert [nodes[number].token for number in own.tree.best] == list(own.tokens if own.finished else own.tokens[:-1])
    for node in nodes:
        assert node.total == pytest.approx((nodes[node.parent].total if node.parent >= 0 else 0) + node.log_prob)
        assert node.parent < 0 or nodes[node.parent].fate == "kept"
    for step in range(nodes[-1].step):
        here = [node for node in nodes if node.step == step]
        kept = sorted((node.total for node in here if node.fate == "kept"), reverse=True)
        if isinstance(search, Beam) and search.shrinking:
            size -= sum(node.fate == "finished" for node in here)
        assert len(kept) == size
        going = [node.total for node in here if node.token != own.tokens[-1]]
        assert kept == pytest.approx(sorted(going, reverse=True)[:size])  # the best that do not end go on
    source = toy.translator.tokenizers.source
    found = toy.translator.find([[source.tag("zh"), *source.encode([TEXT])[0]]], search)[0]
    scores = sorted((node.score for node in nodes if node.score is not None), reverse=True)
    assert scores[: len(found)] == pytest.approx([one.score for one in found if one.finished], abs=1e-4)


def test_the_tree_has_the_probabilities_of_the_steps(toy: Toy) -> None:
    model = copy.deepcopy(toy.engine.model).train()  # as a model that is still learning
    for part in model.modules():
        if isinstance(part, Dropout):
            part.probability = 0.9
    assert any(isinstance(part, Dropout) and part.training for part in model.modules())
    engine = TorchEngine(model, toy.engine.source, toy.engine.target, toy.engine.device)
    learning = copy.copy(toy.translator)
    learning.engine = engine
    own = inspect(learning, TEXT, to="de", beam=3)
    assert own.tree is not None
    found = [own.tree.nodes[number].log_prob for number in own.tree.best]
    assert found == pytest.approx([step.log_prob for step in own.steps][: len(found)], abs=1e-4)


def test_what_was_drawn_is_on_the_tree(toy: Toy) -> None:
    own = inspect(toy.translator, TEXT, to="de", search=Sample(seed=3, limits=Limits(longest=12)))
    assert own.tree is not None
    drawn = [own.tree.nodes[number].token for number in own.tree.best]
    assert drawn == list(own.tokens if own.finished else own.tokens[:-1])


@pytest.mark.skipif(library.built() is None, reason="the core is not built: make native")
def test_a_converted_model_is_looked_into_by_torch(toy: Toy, native_toy: Path, tmp_path: Path) -> None:
    """By the weights of the folder, whichever it has; `engine="native"` alone is seen from outside."""
    both = Path(shutil.copytree(native_toy, tmp_path / "both"))
    outside = inspect(transduce.load(both, engine="native"), TEXT, to="de")
    assert [one.name for one in outside.maps] == ["decoder.mean.cross"]
    converted = inspect(transduce.load(both), TEXT, to="de")
    shutil.copy(toy.model / "model.safetensors", both)
    trained = inspect(transduce.load(both), TEXT, to="de")
    for inside in (converted, trained):
        assert [one.name for one in inside.maps] == ["encoder.0.self", "decoder.0.self", "decoder.0.cross"]
        assert inside.translation == outside.translation
        mean = inside.map("cross", 0).weights.mean(0)
        assert outside.maps[0].weights[0, :-1, :-1] == pytest.approx(mean[:-1, :-1], abs=1e-3)
    assert converted.notes == ("Inside are the converted weights, which were not rounded.",)
    assert trained.notes == ()
    assert converted.tree is not None
    assert all((converted.lens, converted.heads, converted.branches))
    for own, wanted in zip(converted.maps, trained.maps, strict=True):
        assert own.weights == pytest.approx(wanted.weights, abs=1e-5)


@pytest.mark.skipif(library.built() is None, reason="the core is not built: make native")
def test_rounded_weights_are_looked_into_and_said_to_be_rounded(toy: Toy, tmp_path: Path) -> None:
    translator = transduce.load(convert.convert(toy.model, tmp_path / "rounded"))
    tree = inspect(translator, TEXT, to="de", beam=3).tree
    assert tree is not None
    assert tree.best
    given = "zweiundvierzig, sieben"
    own, whole = (inspect(one, TEXT, to="de", target=given) for one in (translator, toy.translator))
    assert "weights rounded to 8 bits, not of the trained ones" in own.notes[0]
    assert (len(own.maps), len(own.heads), len(own.lens)) == (len(whole.maps), len(whole.heads), len(whole.lens))
    for rounded, exact in zip(own.maps, whole.maps, strict=True):
        assert rounded.weights == pytest.approx(exact.weights, abs=0.1)
        assert (rounded.weights != exact.weights).any()
    assert translator.translate([TEXT], to="de", search=Beam(size=4, groups=2))[0].text  # which native has not


@pytest.mark.skipif(library.built() is None, reason="the core is not built: make native")
def test_a_config_that_cannot_be_read_leaves_the_view_from_outside(native_toy: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(native_toy, tmp_path / "strange"))
    with (folder / "config.toml").open("a", encoding="utf-8") as file:
        file.write('\n[surprise]\nkind = "somebody:Own"\n')
    own = inspect(transduce.load(folder), TEXT, to="de")
    assert "Seen from outside" in own.notes[0]


def test_what_if_it_had_said_this_instead(seen: Inspection, toy: Toy) -> None:
    assert seen.branches
    for branch in seen.branches[:3]:
        prefix = (*seen.tokens[: branch.step], branch.token)
        if branch.piece != "</s>":
            other = inspect(toy.translator, TEXT, to="de", search=Greedy(), prefix=prefix)
            assert (other.translation, other.forced) == (branch.text, len(prefix))
            assert other.tokens[: len(prefix)] == prefix
            assert other.log_prob == pytest.approx(branch.total, abs=1e-3)
        assert branch.log_prob == pytest.approx(
            next(one.log_prob for one in seen.steps[branch.step].candidates if one.token == branch.token)
        )
    assert inspect(toy.translator, TEXT, to="de", looking=InspectOptions(branches=0)).branches == ()


def test_a_given_translation_is_read_and_not_searched(toy: Toy) -> None:
    given = inspect(toy.translator, "seven", to="de", target="acht")
    (scored,) = toy.translator.score(["seven"], ["acht"], to="de")
    assert (given.translation, given.search, given.tree) == ("acht", "given", None)
    assert given.log_prob == pytest.approx(scored.log_prob, abs=1e-4)


def test_a_prefix_in_words(toy: Toy) -> None:
    forced = inspect(toy.translator, "seven", to="de", prefix="acht")
    assert forced.translation.startswith("acht")
    assert forced.forced == len(toy.translator.tokenizers.target.encode(["acht"])[0])


def test_alignment_is_what_translate_gives(seen: Inspection, toy: Toy) -> None:
    (own,) = toy.translator.translate([TEXT], to="de", beam=3, align="words", protect=False)
    assert own.alignment is not None
    assert seen.alignment is not None
    if len(own.text.split()) > 1:
        assert seen.alignment.links == own.alignment.links
        assert np.array(seen.alignment.weights) == pytest.approx(np.array(own.alignment.weights), abs=1e-5)
    chinese = inspect(toy.translator, "seven", to="zh")
    assert chinese.alignment is not None
    assert len(chinese.alignment.target) == len(chinese.tokens) - 1  # no spaces: pieces


def test_json_keeps_weights_to_one_part_in_255_and_small_ones_better(seen: Inspection) -> None:
    back = json.loads(json.dumps(seen.as_json(), allow_nan=False))
    for one, own in zip(back["maps"], seen.maps, strict=True):
        values = (np.frombuffer(base64.b64decode(one["weights"]), np.uint8) / 255) ** 2
        shape = (one["heads"], one["rows"], one["columns"])
        assert values.reshape(shape) == pytest.approx(own.weights, abs=1 / 255)
        small = own.weights < 0.01
        assert values.reshape(shape)[small] == pytest.approx(own.weights[small], abs=0.0005)
    assert back["tokens"] == list(seen.tokens)
    assert back["tree"]["best"] == list(seen.tree.best) if seen.tree else False


# -- families ----------------------------------------------------------------------------------------------------------

TRANSFORMER = random_runs.transformer()
FAMILIES = {
    "post-norm": TRANSFORMER,
    "pre-norm": random_runs.transformer(residual=PreNorm()),
    "gru": Model(32, 0.0, encoder=RecurrentEncoder(1), decoder=RecurrentDecoder(2)),
    "fixed vector": Model(32, 0.0, encoder=RecurrentEncoder(1), decoder=RecurrentDecoder(1, attention=FixedVector())),
    "convolutions": Model(32, 0.0, encoder=ConvolutionalEncoder(2), decoder=ConvolutionalDecoder(2)),
    "parallel": Model(32, 0.0, encoder=TRANSFORMER.encoder, decoder=ParallelDecoder(2, Attention(2), 48)),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_can_be_looked_into(name: str) -> None:
    torch.manual_seed(3)
    tokenizers, config = random_runs.tokenizers(), FAMILIES[name]
    built = config.build(tokenizers.source.size, tokenizers.target.size, tokenizers.shared)
    engine = TorchEngine(built, tokenizers.source.symbols, tokenizers.target.symbols, torch.device("cpu"))
    search = MaskPredict() if name == "parallel" else Beam(size=2, limits=Limits(longest=12))
    translator = Translator(engine, tokenizers, search, decoder=config.decoder)
    own = inspect(translator, "abc def", search=search)
    json.dumps(own.as_json(), allow_nan=False)
    assert len(own.steps) == len(own.written) == len(own.read) == len(own.tokens)
    assert len(own.source) == len(translator.tokenizers.source.encode(["abc def"])[0]) + 1
    for one in own.maps:
        rows = own.source if one.part == "encoder" else own.written
        columns = own.read if one.part == "decoder" else own.source
        assert one.weights.shape[1:] == (len(rows), len(columns))
    assert (own.tree is None) == (name == "parallel")
    assert bool(own.alignment) == (name != "fixed vector")
    if name == "fixed vector":
        assert "does not look at the source by attention" in own.notes[0]
    # What the last layer says is what the model says, whether or not a norm stands between.
    last = own.lens[-1].places
    for step, best in zip(own.steps, last, strict=True):
        assert best[0].log_prob == pytest.approx(step.candidates[0].log_prob, abs=1e-4)


@dataclass(frozen=True)
class Waves(FileReader):
    """A file's name is as many frames as it has letters, two seconds each."""

    @property
    def width(self) -> int:
        return 8

    def load(self, path: str) -> Any:
        return np.array([ord(letter) for letter in path])

    def frames(self, content: Any) -> Any:
        return np.sin(np.outer(content, np.arange(1, 9))).astype(np.float16)

    def parts(self, frames: Any, longest: int) -> list[Any]:
        return [frames[begin : begin + longest] for begin in range(0, len(frames), longest)]

    def place(self, frame: int, stop: int) -> dict[str, float]:
        return {"seconds": 2.0 * frame, "until": 2.0 * stop}


def test_recordings_are_looked_at_by_their_seconds() -> None:
    torch.manual_seed(3)
    tokenizers, source = random_runs.tokenizers(), Frames(features=8, channels=4)
    config = Model(32, 0.0, "target", source=source, encoder=TRANSFORMER.encoder, decoder=TRANSFORMER.decoder)
    built = config.build(0, tokenizers.target.size, False)
    engine = TorchEngine(built, tokenizers.source.symbols, tokenizers.target.symbols, torch.device("cpu"))
    reading, search = Reading(Waves(), source.places), Beam(size=2, limits=Limits(longest=9))
    translator = Translator(engine, tokenizers, search, 40, decoder=config.decoder, reading=reading)
    own = inspect(translator, "a recording of waves")
    assert own.translation == translator("a recording of waves")
    assert own.source == reading.units(Waves().read("a recording of waves"))
    assert len(own.source) == 5  # a place for four frames
    assert own.source[1].startswith("8")
    assert {one.weights.shape[2] for one in own.maps if one.part != "decoder"} == {5}
    assert own.alignment is not None
    assert own.alignment.source == own.source
    json.dumps(own.as_json(), allow_nan=False)
    with pytest.raises(DataError, match="is read in 3 parts; give a file that is read as one"):
        inspect(translator, "x" * 100)
    with pytest.raises(DataError, match="a model that reads files takes no language; leave it out"):
        inspect(translator, "x", to="de")


def test_members_of_an_ensemble_are_distinguished(tmp_path: Path) -> None:
    folders = [random_runs.run(tmp_path / str(seed), TRANSFORMER, seed=seed) for seed in (1, 2)]
    own = inspect(transduce.load(folders, "cpu"), "abc def", beam=2)
    assert {(one.member, one.name.split(".")[1]) for one in own.maps} == {(0, "0"), (1, "1")}
    assert "No logit lens" in own.notes[0]


def test_an_engine_that_is_not_open_is_seen_from_outside(toy: Toy) -> None:
    class Closed:
        """Searches, scores and attends, as the native engine does."""

        def __init__(self) -> None:
            self.search, self.score, self.attend = toy.engine.search, toy.engine.score, toy.engine.attend

    closed = Translator(Closed(), toy.translator.tokenizers, toy.translator.search)
    whole, own = inspect(toy.translator, TEXT, to="de"), inspect(closed, TEXT, to="de")
    assert own.translation == whole.translation
    assert "the native engine tells the mean cross-attention only" in own.notes[0]
    mean = whole.map("cross", 0).weights.mean(0)
    assert own.maps[0].weights[0, :-1, :-1] == pytest.approx(mean[:-1, :-1], abs=1e-5)
    assert [step.log_prob for step in own.steps] == pytest.approx([step.log_prob for step in whole.steps], abs=1e-4)
    assert (own.tree, own.lens, own.heads) == (None, (), ())
    never = {*toy.translator.tokenizers.target.symbols.never}
    for step, wanted in zip(own.steps, whole.steps, strict=True):
        expected = [one for one in wanted.candidates if one.token not in never]
        found = step.candidates[: len(expected)]
        assert [one.piece for one in found] == [one.piece for one in expected]
        assert [one.log_prob for one in found] == pytest.approx([one.log_prob for one in expected], abs=1e-4)
        assert step.rank == min(wanted.rank, len(step.candidates))
        assert math.isnan(step.entropy)
    assert [(one.step, one.token, one.text) for one in own.branches] == [
        (one.step, one.token, one.text) for one in whole.branches
    ]
    assert json.loads(json.dumps(own.as_json(), allow_nan=False))["steps"][0]["entropy"] is None


# -- heads -------------------------------------------------------------------------------------------------------------


def test_what_heads_do_is_counted_as_one_would() -> None:
    size = 8
    before = np.eye(size, k=-1)
    before[0, 0] = 1
    kinds = [np.eye(size), before, np.full((size, size), 1 / size), np.eye(size)[[size - 1] * size]]
    same, previous, alike, end = heads_of(
        AttentionMap("encoder.0.self", "encoder", 0, np.array(kinds, dtype=np.float32))
    )
    assert (same.diagonal, same.entropy, same.distance, same.role) == (1, 0, 0, "itself")
    assert previous.previous == pytest.approx((size - 1) / size)
    assert previous.role == "the token before"
    assert alike.entropy == pytest.approx(math.log2(size))
    assert alike.confidence == pytest.approx(1 / size)
    assert alike.role == "everything alike"
    assert (end.ends, end.role, end.distance) == (1, "start or end", (size - 1) / 2)
    wide = np.zeros((1, 3, 5), dtype=np.float32)
    wide[0, [0, 1, 2], [0, 2, 4]] = 1  # opposite each other in sentences of 3 and 5
    (cross,) = heads_of(AttentionMap("decoder.0.cross", "cross", 0, wide))
    assert (cross.diagonal, cross.distance, cross.role) == (1, 0, "the place opposite")


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_looked_at_is_refused(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="the text is blank; give a sentence to look at"):
        inspect(toy.translator, " \n")
    short = Translator(toy.engine, toy.translator.tokenizers, toy.translator.search, longest=5)
    with pytest.raises(DataError, match="and the model reads fewer than 5 at once; give it a sentence at a time"):
        inspect(short, "one two three four five six seven")
    with pytest.raises(DataError, match=r"prefix: expected tokens from 0 to \d+, got \[99999\]"):
        inspect(toy.translator, "seven", prefix=[99999])
    with pytest.raises(ConfigError, match="top: expected at least 1 candidate a step, got 0"):
        InspectOptions(top=0)
    with pytest.raises(ConfigError, match="branches: expected a number of questions, or 0 for none, got -1"):
        replace(InspectOptions(), branches=-1)
    monkeypatch.setattr(
        sys.modules["transduce.inspection.inspect"], "MOST_LINES", 100
    )  # the package has the function by that name
    with pytest.raises(DataError, match="attention weights; give it a shorter sentence"):
        inspect(toy.translator, TEXT)
