"""Marian's settings and vocabularies beside its weights, our config for them, and the mapping of tensor names.

    config.json  model.npz.decoder.yml (or decoder.yml)  vocab.spm (or .yml, with source.spm and target.spm)

Marian writes down paths as they were when it ran. Here only their last parts count: the files are looked for beside the
weights. It puts the sines of positions into the first half of a vector and the cosines into the second; the paper, and
we, interleave them. Nothing else distinguishes one element of a vector from another, so that a permutation of all
weights gives an equal model. Shapes: D d_model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import sentencepiece
import torch
from torch import Tensor

from transduce.core.errors import ConfigError, RunError
from transduce.core.untrusted import read_small
from transduce.exchange.foreign import read_json, read_settings, read_text, shown
from transduce.experiment import Config
from transduce.model.attention import Attention
from transduce.model.blocks import Activation, PostNorm, PreNorm
from transduce.model.positions import Sinusoidal
from transduce.model.seq2seq import Model, Tying
from transduce.model.transformer import StackConfig, TransformerDecoder, TransformerEncoder
from transduce.search.settings import Beam, Greedy, Limits
from transduce.text.tokenizer import LARGEST_MODEL_BYTES

# relu first: of two names for one function the first is written.
ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
BIAS = "final_logits_bias"
SHARED, LM_HEAD = "model.shared.weight", "lm_head.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
FINAL = {side: f"model.{side}.layer_norm" for side in ("encoder", "decoder")}  # of pre-norm stacks
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")  # computed, not learned


@dataclass(frozen=True)
class Name:
    """A tensor's name there and here, and which of its dimensions, if any, is a vector of the model's width."""

    theirs: str
    ours: str
    along: int | None


def layer_names(encoder_layers: int, decoder_layers: int, pre_norm: bool = False) -> Iterator[Name]:
    """The names of all tensors of the two stacks; pre-norm models have a final norm besides."""
    for side, layers in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        attentions = {"self_attn": "attention"} | ({"encoder_attn": "cross"} if side == "decoder" else {})
        for number in range(layers):
            theirs, ours = f"model.{side}.layers.{number}", f"{side}.layers.{number}"
            for their, our in attentions.items():
                yield from _attention(f"{theirs}.{their}", f"{ours}.{our}")
                yield from _norm(f"{theirs}.{their}_layer_norm", f"{ours}.around_{our}.norm")
            yield Name(f"{theirs}.fc1.weight", f"{ours}.feed_forward.inner.weight", 1)
            yield Name(f"{theirs}.fc1.bias", f"{ours}.feed_forward.inner.bias", None)
            yield Name(f"{theirs}.fc2.weight", f"{ours}.feed_forward.outer.weight", 0)
            yield Name(f"{theirs}.fc2.bias", f"{ours}.feed_forward.outer.bias", 0)
            yield from _norm(f"{theirs}.final_layer_norm", f"{ours}.around_feed_forward.norm")
        if pre_norm:
            yield from _norm(FINAL[side], f"{side}.final")


def _attention(theirs: str, ours: str) -> Iterator[Name]:
    for their, our in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")):
        yield Name(f"{theirs}.{their}.weight", f"{ours}.{our}.weight", 1)
        yield Name(f"{theirs}.{their}.bias", f"{ours}.{our}.bias", None)
    yield Name(f"{theirs}.out_proj.weight", f"{ours}.output.weight", 0)
    yield Name(f"{theirs}.out_proj.bias", f"{ours}.output.bias", 0)


def _norm(theirs: str, ours: str) -> Iterator[Name]:
    for kind in ("weight", "bias"):
        yield Name(f"{theirs}.{kind}", f"{ours}.{kind}", 0)


def take_turns(d_model: int) -> Tensor:
    """The permutation (D,) from their order to ours: first sine, first cosine, second sine and so on."""
    sines = (d_model + 1) // 2
    order = torch.empty(d_model, dtype=torch.int64)
    order[0::2], order[1::2] = torch.arange(sines), torch.arange(sines, d_model)
    return order


def sines_first(d_model: int) -> Tensor:
    """The permutation (D,) from our order to theirs."""
    return take_turns(d_model).argsort()


def reordered(tensors: Mapping[str, Tensor], names: Mapping[str, int | None], order: Tensor) -> dict[str, Tensor]:
    """Permute tensors along the dimension given for each."""
    return {
        name: tensors[name].clone() if along is None else tensors[name].index_select(along, order)
        for name, along in names.items()
    }


CONFIG, GENERATION = "config.json", "generation_config.json"
_LARGEST = 1 << 31
# Of the years when Marian was read by other classes: with any other value it is another model.
_ELSEWHERE = {
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}


@dataclass(frozen=True)
class MarianSettings:
    """The settings of config.json and generation_config.json, with defaults."""

    where: Path
    values: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> MarianSettings:
        """Read the settings of a folder; raise RunError with every reason for a model that is not Marian's."""
        values = read_json(folder / CONFIG)
        kind = values.get("model_type")
        if kind != "marian":
            raise RunError(f"{folder / CONFIG}: model_type is {kind!r}; only 'marian' (OPUS-MT) can be imported")
        if (folder / GENERATION).is_file():
            values = {**values, **read_json(folder / GENERATION)}
        settings = cls(folder / CONFIG, values)
        reasons = [
            f"{name} is {values[name]!r}, expected {usual!r}"
            for name, usual in _ELSEWHERE.items()
            if values.get(name, usual) != usual
        ]
        if settings.word("activation_function", "gelu") not in ACTIVATIONS:
            reasons.append(
                f"activation_function is {values['activation_function']!r}, none of {', '.join(ACTIVATIONS)}"
            )
        if reasons:
            raise RunError(f"{folder / CONFIG}: this is no Marian model that we know: {'; '.join(reasons)}")
        return settings

    def integer(self, name: str, default: int, least: int = 0) -> int:
        """An integer setting."""
        value = self.values.get(name)
        value = default if value is None else value
        if type(value) is not int or not least <= value < _LARGEST:
            raise RunError(f"{self.where}: {name}: expected an integer of at least {least}, got {value!r}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.values.get(name)
        value = default if value is None else value
        if type(value) not in (int, float):
            raise RunError(f"{self.where}: {name}: expected a number here, got {value!r}")
        return float(value)

    def word(self, name: str, default: str) -> str:
        return str(self.values.get(name, default))

    def holds(self, name: str, default: bool) -> bool:
        return bool(self.values.get(name, default))

    # -- derived settings ------------------------------------------------------------------------------------------

    @property
    def d_model(self) -> int:
        return self.integer("d_model", 1024, 1)

    @property
    def source_size(self) -> int:
        return self.integer("vocab_size", 58101, 1)

    @property
    def target_size(self) -> int:
        return self.source_size if self.shared else self.integer("decoder_vocab_size", self.source_size, 1)

    @property
    def shared(self) -> bool:
        """Whether there is one vocabulary for both sides."""
        return self.holds("share_encoder_decoder_embeddings", True)

    @property
    def tie(self) -> Tying:
        if not self.holds("tie_word_embeddings", True):
            return "none"
        return "all" if self.shared else "target"

    @property
    def activation(self) -> Activation:
        name = self.word("activation_function", "gelu")
        if name not in ACTIVATIONS:
            raise RunError(
                f"{self.where}: activation_function is {name[:60]!r}, none of {', '.join(ACTIVATIONS)}; no other can be"
                " imported"
            )
        return ACTIVATIONS[name]

    @property
    def pad(self) -> int:
        return self.integer("pad_token_id", self.source_size - 1)

    @property
    def start(self) -> int:
        return self.integer("decoder_start_token_id", self.pad)

    @property
    def end(self) -> int:
        return self.integer("eos_token_id", 0)

    @property
    def forbidden(self) -> tuple[int, ...]:
        """Single tokens that `bad_words_ids` forbids."""
        phrases = self.values.get("bad_words_ids") or []
        if not isinstance(phrases, list) or not all(isinstance(phrase, list) for phrase in phrases):
            raise RunError(f"{self.where}: bad_words_ids: expected lists of tokens, got {phrases!r}")
        return tuple(phrase[0] for phrase in phrases if len(phrase) == 1 and type(phrase[0]) is int)

    @property
    def silenced(self) -> frozenset[int]:
        """Tokens with zero probability: padding, which Marian itself does not have, unless it is forbidden.

        Hugging Face gives zero probability to forbidden tokens where `renormalize_logits` is set; else it masks them
        after the softmax, as Marian does.
        """
        padding = frozenset(() if self.pad in self.forbidden else (self.pad,))
        return (padding | set(self.forbidden) if self.holds("renormalize_logits", False) else padding) - {self.end}

    @property
    def pre_norm(self) -> bool:
        """Whether the model is pre-norm; only Marian's own models can be, Hugging Face's classes cannot."""
        return self.holds("normalize_before", False)

    def config(self) -> Config:
        """The config of a run folder with this model."""
        encoder, decoder = (self._stack(side) for side in ("encoder", "decoder"))
        try:
            model = Model(
                d_model=self.d_model,
                dropout=self.number("dropout", 0.1),
                tie=self.tie,
                encoder=TransformerEncoder(**vars(encoder)),
                decoder=TransformerDecoder(**vars(decoder), unnormed_past=self.holds("unnormed_past", False)),
                output_bias=True,
            )
            return Config(model=model, search=self._search())
        except ConfigError as error:
            raise RunError(f"{self.where}: {error}") from None

    def _stack(self, side: str) -> StackConfig:
        return StackConfig(
            layers=self.integer(f"{side}_layers", 12, 1),
            attention=Attention(
                self.integer(f"{side}_attention_heads", 16, 1), dropout=self.number("attention_dropout", 0.0)
            ),
            d_ff=self.integer(f"{side}_ffn_dim", 4096, 1),
            activation=self.activation,
            activation_dropout=self.number("activation_dropout", 0.0),
            positions=Sinusoidal(self.number("position_base", 10000.0)),
            residual=PreNorm() if self.pre_norm else PostNorm(),
        )

    def _search(self) -> Beam | Greedy:
        """The model's search: they divide by length^p, and Marian's beam shrinks, with a limit by the source."""
        longest = max(1, self.integer("max_length", 512, 1) - 1)  # theirs counts the start symbol
        shrinking = self.holds("shrinking", False)
        limits = Limits(
            longest_ratio=self.number("max_length_factor", 3.0) if shrinking else Limits.longest_ratio,
            longest_extra=0 if shrinking else Limits.longest_extra,
            longest=longest,
            shortest=min(max(0, self.integer("min_length", 0) - 1), longest - 1),
            no_repeat=self.integer("no_repeat_ngram_size", 0),
        )
        size = self.integer("num_beams", 1, 1)
        penalty = min(max(self.number("length_penalty", 1.0), -5.0), 5.0)
        if size == 1 and not shrinking:
            return Greedy(limits)
        return Beam(size, penalty, limits=limits, length_normalization="power", shrinking=shrinking)


DECODER = "decoder.yml"
SOURCE_PIECES, TARGET_PIECES = "source.spm", "target.spm"
_YAML = (".yml", ".yaml", ".json")  # Marian reads JSON vocabularies as YAML, of which they are a part


@dataclass(frozen=True)
class Vocabulary:
    """One side's vocabulary: the file that numbers pieces, the numbers, and the SentencePiece model that cuts text."""

    path: Path
    numbers: dict[str, Any]
    pieces: Path


def decoder_settings(weights: Path) -> tuple[Path, dict[str, Any]]:
    """The settings that Marian wrote for decoding with these weights, and their file; {} if there are none."""
    folder = weights.parent
    known = [folder / f"{weights.name}.{DECODER}", folder / DECODER]
    others = sorted(folder.glob(f"*.{DECODER}"))
    found = [path for path in known if path.is_file()] or (others if len(others) == 1 else [])
    return (found[0], read_settings(read_text(found[0]), found[0])) if found else (known[0], {})


def vocabularies(weights: Path, decoder: Path, listed: Any, shared: bool) -> tuple[Vocabulary, ...]:
    """One vocabulary for both sides, or one a side; `listed` is `vocabs` in the decoder's settings."""
    named = listed if isinstance(listed, list) and listed else []
    paths = [weights.parent / PurePosixPath(name.replace("\\", "/")).name for name in named]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise RunError(
            f"{decoder}: names the vocabulary {shown(str(missing[0].name))}, and it is not beside {weights.name}; copy"
            " the model again, whole"
        )
    paths = paths or _beside(weights, shared)
    sides = paths[:1] if shared else [paths[0], paths[-1]]
    if shared and len(set(paths)) > 1:
        raise RunError(f"{decoder}: names {len(set(paths))} vocabularies, and the embeddings of both sides are one")
    return tuple(_read(path, weights, side) for path, side in zip(sides, (SOURCE_PIECES, TARGET_PIECES), strict=False))


def _beside(weights: Path, shared: bool) -> list[Path]:
    """Find vocabularies by their names, for folders without settings of a decoder."""
    found = []
    for patterns in (("*vocab*.spm", "*vocab.yml"),) if shared else (("*src*vocab.yml",), ("*trg*vocab.yml",)):
        files = sorted(path for pattern in patterns for path in weights.parent.glob(pattern))
        if len(files) != 1:
            raise RunError(
                f"{weights.parent}: has {len(files)} files {' or '.join(patterns)} beside {weights.name}; expected one,"
                f" with the number of each piece, or {weights.name}.{DECODER}, which names it. Copy the model again"
            )
        found += files
    return found


def _read(path: Path, weights: Path, side: str) -> Vocabulary:
    if path.suffix == ".spm":
        return Vocabulary(path, _piece_numbers(path), path)
    if path.suffix not in _YAML:
        raise RunError(f"{path}: expected a vocabulary of SentencePiece (.spm) or in YAML; others cannot be imported")
    pieces = path.with_name(side)
    if not pieces.is_file():
        raise RunError(
            f"{pieces}: No such file. {path.name} numbers pieces, and the SentencePiece model that cuts text into them"
            f" was expected beside {weights.name}; models of BPE codes or words cannot be imported"
        )
    numbers = read_settings(read_text(path), path)
    return Vocabulary(path, {piece: integer(path, numbers, piece) for piece in numbers}, pieces)


def _piece_numbers(path: Path) -> dict[str, Any]:
    """The number of each piece of a SentencePiece model."""
    try:
        model = read_small(path, LARGEST_MODEL_BYTES)
    except ValueError as error:
        raise RunError(f"{path}: {error}; expected a SentencePiece model") from None
    except OSError as error:
        raise RunError(f"{path}: not a SentencePiece model ({error}); copy the model again") from None
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise RunError(f"{path}: not a SentencePiece model ({error}); copy the model again") from None
    return {processor.id_to_piece(number): number for number in range(processor.get_piece_size())}


def integer(where: Path, facts: dict[str, Any], name: str, default: int | None = None) -> int:
    """An integer setting."""
    return int(real(where, facts, name, default))


def real(where: Path, facts: dict[str, Any], name: str, default: float | None = None) -> float:
    """A setting that is a finite number."""
    value = facts.get(name, default)
    try:
        found = float(str(value))
        int(found)  # refuses what is not finite
        return found
    except (ValueError, OverflowError):
        raise RunError(f"{where}: {name[:60]}: expected a number, got {shown(value)}; copy the model again") from None
