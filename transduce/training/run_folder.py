"""A run folder besides its checkpoints: config, tokenizer, the model to translate with, and the card (README.md).

    config.toml  tokenizer/  model.safetensors  README.md  metrics.jsonl  checkpoints/

The first three are a translator, with reader.json where sources are recordings or pictures. `model.safetensors`
verifies itself and is replaced in one rename.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from transduce import __version__
from transduce.core import config as configs
from transduce.core.durable import RESUME, disk_errors, write_text
from transduce.core.errors import RunError, counted
from transduce.core.progress import say, seconds_as_text
from transduce.data.readers import FileReader
from transduce.experiment import Config
from transduce.model.encoder_decoder import EncoderDecoder, Seq2Seq
from transduce.search.settings import STEPWISE, search_label
from transduce.text.tokenizer import Tokenizers
from transduce.training.checkpoint import Found, clean_leftovers, newest_good, read_state, read_tensors
from transduce.training.session import TrainingProgress
from transduce.training.weights import Shaped, check_shapes, load_weights, save_weights
from transduce.translate.model_folder import (
    CARD,
    CONFIG,
    MODEL,
    NATIVE,
    READER,
    TOKENIZER,
    check_is_model,
    open_converted,
    read_card,
)

# Settings a resumed run may change without becoming another run. The corpus may be moved: its digest tells that
# it is unchanged.
FREE = (
    "license",
    "search",
    "data.folder",
    *("validation.every", "validation.patience", "validation.samples"),
    *("training.steps", "training.minutes", "training.device", "training.threads", "training.graphs"),
    *("training.compile", "training.parallel", "training.activation_checkpointing", "training.tensorboard"),
    *("training.report_every", "training.save_every", "training.keep_last", "training.keep_best"),
    *("training.average", "training.average_of"),
)
# What and how validation translates. Scores before and after a change cannot be compared, and so neither can which
# checkpoint is best: it may change only where the loss decides, which needs no translations.
TRANSLATED = ("validation.search", "validation.sentences", "validation.language")


def make_ready(
    folder: Path, config: Config, tokenizers: Tokenizers, model: EncoderDecoder, reader: FileReader | None = None
) -> tuple[Found | None, list[str]]:
    """Begin or resume a run; return the checkpoint to resume from, and notes on how it was found.

    A new model gets the weights it is to start from.
    """
    clean_leftovers(folder)
    found = newest_good(folder)
    notes = list(found.notes) if found else []
    if config.training.start_from and found is None:
        start = Path(config.training.start_from)
        notes += take_weights(model, start, tokenizers, entire=config.training.start_with == "all")
    notes += begin(folder, config, tokenizers, reader)
    return found, notes


def begin(folder: Path, config: Config, tokenizers: Tokenizers, reader: FileReader | None = None) -> list[str]:
    """Write config, tokenizer and reader of a new run, or check that a config continues an old one.

    A run has the config of its last command. Returns notes on what this one changes; the card changes with it.
    """
    notes: list[str] = []
    with disk_errors(
        folder, "writing the run's config and tokenizer", needed=len(tokenizers.source.model), advice=RESUME
    ):
        if (folder / CONFIG).exists():
            before = read_config(folder)
            check_same(folder, config)
            if Tokenizers.load(folder / TOKENIZER).digest() != tokenizers.digest():
                raise RunError(
                    f"{folder}: was trained with another tokenizer than the corpus {config.data.folder} has now;"
                    " choose another folder for the new run"
                )
            notes = changed_settings(folder, before, config)
            text = read_card(folder) if notes else ""
            updated = with_other_settings(text, before, config)
            if updated != text:
                write_text(folder / CARD, updated)
        else:
            tokenizers.save(folder / TOKENIZER)
            if reader is not None:
                write_text(folder / READER, json.dumps(reader.facts(), indent=1) + "\n")
        write_text(folder / CONFIG, configs.dump(config))
    return notes


def read_config(folder: Path, trust: bool = True) -> Config:
    """Read the config a run was trained with."""
    check_is_model(folder)
    return configs.load(Config, folder.resolve() / CONFIG, trust=trust)


def export(
    folder: Path, weights: dict[str, Tensor], tokenizers: Tokenizers, longest: int, config: Config, facts: Facts
) -> None:
    """Make these weights the ones the folder translates with, and describe them in the card."""
    needed = sum(tensor.nbytes for tensor in weights.values())
    with disk_errors(folder, "writing the model", needed, advice=RESUME):
        metadata = {"tokenizer": tokenizers.digest(), "longest": str(longest), "weights": facts.weights}
        save_weights(folder / MODEL, weights, metadata)
        write_text(folder / CARD, card(folder.resolve().name, config, facts))


def replace_weights(folder: Path, weights: dict[str, Tensor], name: str, longest: int) -> None:
    """Make other weights of the same run the ones the folder translates with, and update its card if any."""
    digest = Tokenizers.load(folder / TOKENIZER).digest()
    with disk_errors(
        folder, "writing the model", needed=sum(tensor.nbytes for tensor in weights.values()), advice=RESUME
    ):
        save_weights(folder / MODEL, weights, {"tokenizer": digest, "longest": str(longest), "weights": name})
        text = read_card(folder)
        if text:
            write_text(folder / CARD, with_other_weights(text, name))


def open_model(folder: Path, trust: bool, unfinished: bool = False) -> tuple[Config, Tokenizers, EncoderDecoder, int]:
    """Open a run: config, tokenizers, model and the longest source it was trained on.

    `unfinished`: where training was killed before it wrote the model, the newest checkpoint serves, with a note.
    """
    config = read_config(folder, trust)
    tokenizers = Tokenizers.load(folder / TOKENIZER)

    def fits(tensors: Mapping[str, Shaped], metadata: Mapping[str, Any]) -> None:
        if metadata.get("tokenizer") != tokenizers.digest():
            raise RunError(
                f"{folder}: {MODEL} was trained with another tokenizer than {TOKENIZER}/ holds; restore the right one"
            )
        _check_fit(config, tokenizers, tensors, folder)

    if (folder / MODEL).is_file():
        weights, metadata = load_weights(folder / MODEL, fits)
        longest = _longest(metadata.get("longest", "256"), folder / MODEL)
    else:
        weights, longest = _of_checkpoint(folder, config, unfinished)
        _check_fit(config, tokenizers, weights, folder)
    model = config.model.build(tokenizers.source.size, tokenizers.target.size, tokenizers.shared)
    model.load_weights(weights)
    return config, tokenizers, model, longest


def open_weights(folder: Path, trust: bool, unfinished: bool = False) -> tuple[Config, Tokenizers, EncoderDecoder, int]:
    """Open a run like `open_model`, or the converted weights, rounded as they are, where there are no others."""
    if (folder / MODEL).is_file() or not (folder / NATIVE).is_file():
        return open_model(folder, trust, unfinished)
    from transduce.engines.native.lowering import raised

    config, (tokenizers, facts) = read_config(folder, trust), open_converted(folder)
    sizes = tokenizers.source.size, tokenizers.target.size
    return config, tokenizers, raised(config.model, folder / NATIVE, *sizes, tokenizers.shared), facts.longest


def _longest(found: object, where: Path) -> int:
    """Parse the longest source in training from the metadata of weights or of a checkpoint."""
    text = str(found)[:60]
    if not (text.isdecimal() and text.isascii() and len(text) < 10 and int(text) > 0):
        raise RunError(f"{where}: its longest source is {text!r}, expected a number; copy it again")
    return int(text)


def no_model_yet(folder: Path) -> RunError:
    """The error of a run without a model file, where its checkpoint, which may change, will not do."""
    return RunError(
        f"{folder}: has no {MODEL} yet; training writes it at the first validation, when it is stopped and at the end."
        f" Resume training with the same command, or make one of checkpoints: `transduce average {folder} --last 1`"
    )


def _of_checkpoint(folder: Path, config: Config, unfinished: bool) -> tuple[dict[str, Tensor], int]:
    """Weights and longest source of the newest checkpoint of a run that has not written its model yet."""
    if (folder / NATIVE).is_file():
        raise RunError(
            f"{folder}: was converted for the native engine and has no {MODEL}, the weights that torch reads;"
            " give the run folder that it was converted from"
        )
    found = newest_good(folder)
    if found is None:
        raise RunError(
            f"{folder}: has no {MODEL} yet, nor a checkpoint: training ended before it wrote the first. It does so"
            f" every {min(config.training.save_every, config.validation.every):,} steps (training.save_every,"
            " validation.every) and when it is stopped by Ctrl-C. Resume training with the same command"
        )
    if not unfinished:
        raise no_model_yet(folder)
    progress = TrainingProgress.of_state(read_state(found.path), found.path)
    note = f"{folder}: training has not written {MODEL} yet; using its newest checkpoint, step {found.step:,}"
    say(note)
    return read_tensors(found.path, progress.stem(config.training.ema)), _longest(progress.longest, found.path)


def open_teacher(folder: Path, tokenizers: Tokenizers) -> Seq2Seq:
    """Open the frozen model of another run as a teacher for these tokenizers; a converted one is rounded."""
    config, its_tokenizers = read_config(folder, trust=False), Tokenizers.load(folder / TOKENIZER)
    # Not `continues`: the longer tokenizer has symbols that the teacher never saw.
    if its_tokenizers.digest() != tokenizers.digest():
        raise _other_tokenizer(folder, "teacher")
    if getattr(config.model.decoder, "offers", STEPWISE) != STEPWISE:
        raise RunError(f"{folder}: the teacher is non-autoregressive; one that writes token by token is needed")
    model = open_weights(folder, trust=False)[2]
    return cast("Seq2Seq", model.requires_grad_(False).eval())


def take_weights(model: EncoderDecoder, folder: Path, tokenizers: Tokenizers, entire: bool) -> list[str]:
    """Initialise a new model from the weights of another run, all or those that fit; return notes.

    With those that fit, a non-autoregressive decoder can begin as an autoregressive one.
    """
    check_is_model(folder)
    if not tokenizers.continues(Tokenizers.load(folder / TOKENIZER)):  # before the other model is built
        raise _other_tokenizer(folder, "model to start from")
    weights, initial = open_weights(folder, trust=False)[2].weights(), model.weights()
    if entire:
        file = folder / (MODEL if (folder / MODEL).is_file() else NATIVE)
        check_shapes(weights, {name: tuple(tensor.shape) for name, tensor in initial.items()}, file)
    fitting = {
        name: tensor for name, tensor in weights.items() if name in initial and tensor.shape == initial[name].shape
    }
    if not fitting:
        raise RunError(
            f"{folder}: none of its tensors has the name and the shape of one of the new model's; choose a model more"
            ' like it, or set training.start_from="" to begin with random weights'
        )
    model.load_weights(initial | fitting)
    return (
        [] if entire else [f"training.start_from: {len(fitting)} tensors of {len(initial)} begin as those of {folder}"]
    )


def _other_tokenizer(folder: Path, role: str) -> RunError:
    return RunError(
        f"{folder}: the {role} has another tokenizer than the corpus of this run, and to it the same numbers are other"
        f" words; train it on this corpus, or choose another {role}"
    )


def _check_fit(config: Config, tokenizers: Tokenizers, weights: Mapping[str, Shaped], folder: Path) -> None:
    """Raise RunError for weights of another model than the config's, before any memory is given to building it.

    A folder from elsewhere may ask for a model of any size; the one whose weights are really there can be afforded.
    """
    layers = config.model.encoder.layers + config.model.decoder.layers
    try:
        if layers > len(weights):
            raise ValueError(f"{layers:,} layers, and only {len(weights)} tensors")
        widest = max((side for tensor in weights.values() for side in tensor.shape), default=0)
        if config.model.d_model > widest:
            raise ValueError(
                f"d_model is {config.model.d_model:,}, and tensors have {widest:,} rows or columns at most"
            )
        with torch.device("meta"):  # shapes without numbers
            model = config.model.build(tokenizers.source.size, tokenizers.target.size, tokenizers.shared)
    except (ValueError, RuntimeError) as error:
        raise RunError(f"{folder}: {CONFIG} describes another model than {MODEL} holds: {error}") from None
    check_shapes(weights, {name: tuple(t.shape) for name, t in model.weights().items()}, folder / MODEL)


def changed_settings(folder: Path, old: Config, new: Config) -> list[str]:
    """Notes on the settings that a command changes in a run; empty where it changes none."""
    before, after = configs.flatten(old), configs.flatten(new)
    changed = [
        f"{key} = {value!r}" + (f" (was {before[key]!r})" if key in before else "")
        for key, value in after.items()
        if key not in before or before[key] != value
    ]
    if not changed:
        return []
    return [
        f"{folder}: settings of the run that this command changes: {', '.join(changed)}; one that it does not name is"
        " that of the preset or file, or the default"
    ]


def check_same(folder: Path, config: Config) -> None:
    """Raise RunError for a config that would make the run in a folder another run."""
    before, after = configs.flatten(read_config(folder)), configs.flatten(config)
    by_loss = before.get("validation.metric") == after.get("validation.metric") == "loss"
    free = (*FREE, *TRANSLATED) if by_loss else FREE
    for key in sorted(before.keys() | after.keys(), key=lambda key: (not key.endswith("kind"), key.count("."), key)):
        if before.get(key) != after.get(key) and not key.startswith(free):
            why = ", and scores before and after could not be compared" if key.startswith("validation.") else ""
            raise RunError(
                f"{folder}: was trained with {key} = {before.get(key)!r}, and now {after.get(key)!r} is requested{why};"
                " choose another folder, or the same settings to resume"
            )


@dataclass(frozen=True)
class Facts:
    """Facts for the card that the loop knows and the config does not."""

    parameters: int
    step: int
    epoch: int
    seconds: float
    target_tokens: int
    weights: str  # "best of the validations (step 500)", "average of 5 checkpoints", ...
    validation: dict[str, float]
    signature: str
    corpus: dict[str, Any]  # the prepared corpus's manifest


def card(name: str, config: Config, facts: Facts) -> str:
    """Write README.md of a run folder, in Markdown."""
    corpora = "\n".join(_corpus_lines(facts.corpus["splits"]))
    scores = "\n".join(f"| {metric} | {value:.2f} |" for metric, value in facts.validation.items())
    return f"""# {name}

A sequence-to-sequence model trained with transduce {__version__}.

```python
import transduce
translator = transduce.load("{name}")
translator("...")
```

## Data

{corpora}

{_prepared(config)} Tokenizer: inside, in `tokenizer/`.

## Model

{facts.parameters:,} parameters, d_model {config.model.d_model}, {config.model.encoder.layers} encoder and
{config.model.decoder.layers} decoder layers. Everything is in `config.toml`.

## Training

{facts.step:,} steps, {facts.epoch + 1} epochs begun, {facts.target_tokens:,} target tokens,
{seconds_as_text(facts.seconds)} on {_machine()}. Weights: {facts.weights}.

## Validation

| measure | value |
| --- | --- |
{scores or "| none | |"}

{_how_measured(config, facts)}

## Licence

{_licence(config)}
"""


def _prepared(config: Config) -> str:
    return f"Prepared corpus: `{config.data.folder}`."


def _licence(config: Config) -> str:
    return config.license or "Not stated. Set `license` in the config; mind the licences of the data."


def _how_measured(config: Config, facts: Facts) -> str:
    """BLEU's signature, and the search of these scores beside that which the model translates with."""
    if not facts.signature:
        return "Not validated."
    text = f"BLEU signature: `{facts.signature}`\n\n"
    return text + _searches(search_label(config.validation.search), search_label(config.search))


def _searches(measured: str, default: str) -> str:
    """Name the search of the scores, and the model's default where it differs."""
    others = f"; `transduce translate` and `transduce evaluate` use {default} (`search`)" if default != measured else ""
    return f"Translated with {measured} (`validation.search`){others}."


def with_other_weights(text: str, weights: str) -> str:
    """Update a card for weights of the same run that were not validated: the old scores would be false."""
    text = re.sub(r"Weights: .*\.\n", lambda _: f"Weights: {weights}.\n", text)
    unknown = "Not validated since the weights were replaced; `transduce evaluate` measures them."
    return re.sub(r"(?s)(?<=\n## Validation\n\n).*?(?=\n\n## )", lambda _: unknown, text)


def with_other_settings(text: str, before: Config, config: Config) -> str:
    """Update a card for changed settings of the same run and weights; scores keep the search they had."""
    if before.license != config.license:
        text = re.sub(r"(?s)(?<=\n## Licence\n\n).*?(?=\n\n## |\n?\Z)", lambda _: _licence(config), text)
    if before.data.folder != config.data.folder:
        text = re.sub(r"(?m)^Prepared corpus: `.*?`\.", lambda _: _prepared(config), text)
    if before.search != config.search:
        default = search_label(config.search)
        pattern = r"(?m)^Translated with (.*?) \(`validation\.search`\).*$"
        text = re.sub(pattern, lambda found: _searches(found[1], default), text)
    return text


def _corpus_lines(splits: dict[str, Any]) -> Iterator[str]:
    for split, facts in splits.items():
        for span in facts["spans"]:
            weight = "" if span["weight"] == 1 else f", weight {span['weight']}"
            yield f"- {split}: {span['name']}, {span['stop'] - span['start']:,} pairs{weight}"


def _machine() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{counted(torch.get_num_threads(), 'CPU thread')} ({platform.machine()})"
