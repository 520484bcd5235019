"""Import a Hugging Face Marian or OPUS-MT folder, or Marian's own model, as a run folder.

    config.json  generation_config.json  model.safetensors | pytorch_model.bin  source.spm  target.spm  vocab.json

or Marian's own model.npz or .bin with its files (marian_npz.py). The run folder translates, scores, aligns and can be
trained further. The models compute equal sums, with their vectors in another order (marian_config.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from transduce.core import config as configs
from transduce.core.durable import whole_folder
from transduce.core.errors import DataError, RunError
from transduce.exchange.foreign import ForeignTensor, find_weights, read_json, read_tensors
from transduce.exchange.marian_config import (
    BIAS,
    LM_HEAD,
    POSITIONS,
    SHARED,
    SOURCE,
    SOURCE_PIECES,
    TARGET,
    TARGET_PIECES,
    MarianSettings,
    Name,
    Vocabulary,
    layer_names,
    reordered,
    take_turns,
)
from transduce.exchange.marian_config import CONFIG as SETTINGS
from transduce.exchange.marian_npz import is_marian, read_marian
from transduce.experiment import Config
from transduce.model.seq2seq import Tying
from transduce.text.tokenizer import Tokenizer, Tokenizers
from transduce.text.vocabulary import Symbols, VocabularyMap
from transduce.training.weights import Shaped, TensorHeader, check_shapes, save_weights
from transduce.translate.model_folder import CARD, CONFIG, MODEL, TOKENIZER

VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
_AT_ONCE = 1 << 20  # values checked for finiteness together: torch makes copies as large
SILENT = -1000.0  # added to a logit: e^-1000 is nothing, and in 16 bits still a number


@dataclass(frozen=True)
class ForeignModel:
    """A model as it was found: one vocabulary for both sides, or one a side, and the SentencePiece model of each."""

    settings: MarianSettings
    tensors: dict[str, ForeignTensor]
    vocabularies: tuple[Vocabulary, ...]
    pieces: tuple[Path, Path]


def import_model(folder: str | Path, output: str | Path, as_trained: bool = False) -> Path:
    """Make a run folder `output` of a Marian model, in Hugging Face's format or Marian's own, as OPUS-MT has them.

    The new folder is like one that was trained here: `load` opens it, `training.start_from` trains it further.
    `folder` may also be the file of weights in it (.safetensors, .bin, .pt, .npz); of a pickle only tensors are read.

    Marian decodes its own pre-norm models otherwise than it trains them (`unnormed_past` of the decoder). So does the
    imported model, which then translates as Marian does; with `as_trained` it decodes as it was trained.
    """
    path, output = find_weights(Path(folder)), Path(output)
    theirs = _read(path, as_trained)
    settings = theirs.settings
    config = settings.config()
    tokenizers = _read_tokenizers(theirs)
    weights = our_weights(settings, config, theirs.tensors, path)
    longest = settings.integer("max_position_embeddings", 1024, 2)
    with whole_folder(output, CONFIG) as work:
        tokenizers.save(work / TOKENIZER)
        (work / CONFIG).write_bytes(configs.dump(config).encode())
        metadata = {"tokenizer": tokenizers.digest(), "longest": str(longest), "weights": "imported"}
        save_weights(work / MODEL, weights, metadata)
        (work / CARD).write_bytes(_card(output.absolute().name, config, tokenizers).encode())
    return output


def _read(path: Path, as_trained: bool) -> ForeignModel:
    """Read the model whose weights are in this file, in either format."""
    folder = path.parent
    if is_marian(path):
        found = read_marian(path, as_trained)
        _check_sizes(found.settings, found.tensors, path)
        pieces = found.vocabularies[0].pieces, found.vocabularies[-1].pieces
        if found.settings.shared and pieces[0].name == SOURCE_PIECES:  # one table, and a model to cut each side's text
            pieces = pieces[0], folder / TARGET_PIECES
        return ForeignModel(found.settings, found.tensors, found.vocabularies, pieces)
    if not (folder / SETTINGS).is_file():
        raise RunError(
            f"{folder / SETTINGS}: cannot be read: No such file. {path.name} holds weights alone; expected beside it"
            f" {SETTINGS}, {VOCABULARY}, {SOURCE_PIECES} and {TARGET_PIECES}, as in a folder of Hugging Face's Marian"
            " format: copy the whole folder. Checkpoints of other toolkits cannot be imported"
        )
    settings, tensors = MarianSettings.read(folder), read_tensors(path)
    _check_sizes(settings, tensors, path)
    names = (VOCABULARY,) if settings.shared else (VOCABULARY, TARGET_VOCABULARY)
    pieces = folder / SOURCE_PIECES, folder / TARGET_PIECES
    tables = tuple(Vocabulary(folder / name, read_json(folder / name), pieces[0]) for name in names)
    return ForeignModel(settings, tensors, tables, pieces)


# -- tokenizers ------------------------------------------------------------------------------------------------------


def _read_tokenizers(theirs: ForeignModel) -> Tokenizers:
    """The SentencePiece pair, with the numbers of the vocabulary, or of one a side."""
    settings, (first, second) = theirs.settings, theirs.pieces
    source = _table(theirs.vocabularies[0], settings.source_size, settings)
    target = source if settings.shared else _table(theirs.vocabularies[1], settings.target_size, settings)
    cutting = Tokenizer.load(first, source)
    single = settings.shared and first == second
    return Tokenizers(cutting, cutting if single else Tokenizer.load(second, target))


def _table(vocabulary: Vocabulary, size: int, settings: MarianSettings) -> VocabularyMap:
    path, numbers = vocabulary.path, vocabulary.numbers
    pieces = [f"<unused {number}>" for number in range(size)]
    for piece, number in numbers.items():  # of two names for one number the later counts, as it does there
        if type(number) is not int or not 0 <= number < size:
            raise RunError(f"{path}: {piece!r} has number {number!r}; expected one below the vocabulary's size, {size}")
        if not _is_text(piece):
            raise RunError(
                f"{path}: {piece!r} has half of a surrogate pair; expected Unicode text; copy the model again"
            )
        pieces[number] = piece
    if "<unk>" not in numbers:
        raise RunError(f"{path}: has no piece '<unk>', which stands for all that is unknown; copy the model again")
    never = {settings.pad, settings.start, *settings.forbidden} - {settings.end}
    symbols = Symbols(settings.pad, settings.start, settings.end, numbers["<unk>"], tuple(sorted(never)))
    try:
        return VocabularyMap(tuple(pieces), symbols)
    except DataError as error:
        raise RunError(f"{path}: {error}") from None


def _is_text(piece: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in piece)


# -- weights ---------------------------------------------------------------------------------------------------------


def our_weights(
    settings: MarianSettings, config: Config, tensors: dict[str, ForeignTensor], path: Path
) -> dict[str, Tensor]:
    """Their tensors under our names, in our order; each is read after the names and shapes of all were compared."""
    embeddings = _embeddings(settings, tensors, path)
    names = [
        *layer_names(
            settings.integer("encoder_layers", 12, 1), settings.integer("decoder_layers", 12, 1), settings.pre_norm
        ),
        *(Name(name, name, 1) for name in embeddings),
    ]
    every = {**tensors, **embeddings}
    _check_names(settings, names, every, path)
    _check_taken({name.theirs: every[name.theirs] for name in names}, path)
    _check_shapes(settings, config, {name.ours: every[name.theirs] for name in names}, tensors.get(BIAS), path)
    order = take_turns(settings.d_model)
    found = {}
    for name in names:
        tensor = _read_finite(every[name.theirs], path)
        found[name.ours] = reordered({name.ours: tensor}, {name.ours: name.along}, order)[name.ours]
    if not settings.holds("scale_embedding", False):
        _scale(found, settings)
    found["output_bias"] = _bias(settings, tensors, path)
    return found


def _check_names(settings: MarianSettings, names: list[Name], found: dict[str, ForeignTensor], path: Path) -> None:
    missing = [name.theirs for name in names if name.theirs not in found]
    unexpected = sorted(
        found.keys() - {name.theirs for name in names} - {BIAS, SHARED, SOURCE, TARGET, LM_HEAD, *POSITIONS}
    )
    if missing or unexpected:
        raise RunError(
            f"{path}: the tensors are not those of the model in config.json: {len(missing)} missing"
            f" ({', '.join(missing[:3])}), {len(unexpected)} unexpected ({_few(unexpected)})"
        )
    wrong = [
        n.theirs for n in names if n.along is not None and found[n.theirs].shape[n.along :][:1] != (settings.d_model,)
    ]
    if wrong:
        raise RunError(f"{path}: {wrong[0]} is {list(found[wrong[0]].shape)}, and d_model is {settings.d_model}")


def _check_taken(tensors: dict[str, ForeignTensor], path: Path) -> None:
    """Raise RunError for a small file of large tensors that share their values."""
    needed, size = sum(tensor.taken for tensor in tensors.values()), path.stat().st_size
    if needed > size:
        raise RunError(
            f"{path}: its tensors would have {needed:,} bytes, and the file has {size:,}: they share their values."
            " Expected values for every tensor; copy the model again, or ask whoever made it for a model.safetensors"
        )


def _check_shapes(
    settings: MarianSettings, config: Config, tensors: dict[str, ForeignTensor], bias: ForeignTensor | None, path: Path
) -> None:
    with torch.device("meta"):
        model = config.model.build(settings.source_size, settings.target_size, settings.shared)
    size = math.prod(bias.shape) if bias else settings.target_size
    found: dict[str, Shaped] = {**tensors, "output_bias": TensorHeader((size,))}
    check_shapes(found, {name: tuple(tensor.shape) for name, tensor in model.weights().items()}, path)


def _read_finite(tensor: ForeignTensor, path: Path) -> Tensor:
    values = tensor.read()
    flat = values.flatten()
    parts = (flat[start : start + _AT_ONCE] for start in range(0, len(flat), _AT_ONCE))
    bad = sum(int(part.isfinite().logical_not().sum()) for part in parts)
    if bad:
        raise RunError(
            f"{path}: {tensor.name}: {bad:,} of {values.numel():,} values are NaN or infinite; expected finite numbers:"
            " the file is damaged, or the training diverged that it comes from. Get the model again, or an earlier one"
        )
    return values


def _few(names: list[str]) -> str:
    return ", ".join(name[:60] for name in names[:3])


def _embeddings(settings: MarianSettings, tensors: dict[str, ForeignTensor], path: Path) -> dict[str, ForeignTensor]:
    """Our embeddings; tied ones are stored under any of their names."""
    every: dict[Tying, dict[str, tuple[str, ...]]] = {
        "all": {"source_embedding": (SHARED, SOURCE, TARGET, LM_HEAD)},
        "target": {"source_embedding": (SOURCE,), "target_embedding": (TARGET, LM_HEAD)},
        "none": {
            "source_embedding": (SOURCE, SHARED),
            "target_embedding": (TARGET, SHARED),
            "output_embedding": (LM_HEAD,),
        },
    }
    found = {}
    for ours, names in every[settings.tie].items():
        there = [name for name in names if name in tensors]
        if not there:
            raise RunError(f"{path}: has no embeddings under the name {' or '.join(names)}; copy the model again")
        found[f"{ours}.weight"] = tensors[there[0]]
    return found


def _check_sizes(settings: MarianSettings, tensors: dict[str, ForeignTensor], path: Path) -> None:
    """Check the sizes in config.json against the weights, before anything so large is built."""
    layers = sum(settings.integer(f"{side}_layers", 12, 1) for side in ("encoder", "decoder"))
    rows = {tensor.shape[0] for tensor in _embeddings(settings, tensors, path).values() if len(tensor.shape) == 2}
    sizes = {settings.source_size, settings.target_size}
    if layers > len(tensors) or not sizes <= rows:
        raise RunError(
            f"{path}: config.json describes {layers:,} layers and {max(sizes):,} pieces; the file has {len(tensors):,}"
            f" tensors and embeddings of {max(rows, default=0):,}. Copy the model again"
        )


def _scale(weights: dict[str, Tensor], settings: MarianSettings) -> None:
    """Scale down embeddings that are read unscaled: ours are multiplied by sqrt(d_model).

    Where they are the output matrix too, the decoder's last norm makes up for it.
    """
    factor = math.sqrt(settings.d_model)
    for name in ("source_embedding.weight", "target_embedding.weight"):
        if name in weights:
            weights[name] /= factor
    if settings.tie != "none":
        last = f"decoder.layers.{settings.integer('decoder_layers', 12, 1) - 1}.around_feed_forward.norm"
        weights[f"{last}.weight"] *= factor
        weights[f"{last}.bias"] *= factor


def _bias(settings: MarianSettings, tensors: dict[str, ForeignTensor], path: Path) -> Tensor:
    bias = _read_finite(tensors[BIAS], path).flatten().clone() if BIAS in tensors else torch.zeros(settings.target_size)
    for token in settings.silenced:
        if token < len(bias):
            bias[token] = SILENT
    return bias


def _card(name: str, config: Config, tokenizers: Tokenizers) -> str:
    return f"""# {name}

A Marian model, imported.

```python
import transduce
translator = transduce.load("{name}")
translator("...")
```

d_model {config.model.d_model}, {config.model.encoder.layers} encoder and {config.model.decoder.layers} decoder layers,
{tokenizers.source.size:,} source and {tokenizers.target.size:,} target pieces. What it was trained on, and its licence,
is told where it came from.
"""
