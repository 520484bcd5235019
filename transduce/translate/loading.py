"""Open a trained model: `transduce.load("runs/demo")("Guten Morgen")`, or several as an ensemble.

A run folder is opened with torch, a converted one by the native engine, and then nothing here imports torch. Where the
native engine refuses, or was not built, torch runs instead: with the weights of the run, or with the converted ones.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transduce.core.errors import ConfigError, EngineRefusal, RunError, needed_by
from transduce.core.progress import say
from transduce.core.untrusted import read_small
from transduce.engines import Engine, Fallback, report
from transduce.search.settings import STEPWISE
from transduce.translate.confidence import Estimator
from transduce.translate.model_folder import (
    MODEL,
    NATIVE,
    READER,
    Converted,
    ConvertedDecoder,
    check_is_model,
    open_converted,
    read_search,
    seal_of,
    shipped,
)
from transduce.translate.translator import Translator

if TYPE_CHECKING:
    from transduce.data.readers import Reading

BATCH_TOKENS, BATCH_FRAMES = 4096, 32768  # budget of a batch; an encoder has fewer positions than there are frames
ENGINES = ("auto", "torch", "native")
ROUNDED = "Inside are the converted weights: all numbers are of weights rounded to 8 bits, not of the trained ones."
WHOLE = "Inside are the converted weights, which were not rounded."


def load(
    folder: str | Path | Sequence[str | Path] | None = None,
    device: str = "auto",
    trust: bool = False,
    weights: Sequence[float] = (),
    engine: str = "auto",
    precision: str = "fp32",
    graphs: str = "auto",
) -> Translator:
    """Open the translator in a folder, or an ensemble of several folders; without a folder, the shipped model.

    `device`: "auto", "cpu", "cuda" or "cuda:1". `trust=True` lets a folder's config import classes of the user's own.
    `weights` say how much each member of an ensemble counts, alike if not given; its search is the first one's.
    `engine`: "torch", "native" (for what `transduce convert` wrote: on CPUs, one model), or "auto": native where it
    can be, with torch for what it refuses. Torch opens converted weights too, rounded as they are. With torch,
    `precision` "bf16" rounds the weights to 16 bits, which a GPU runs faster, and `graphs` says whether a GPU's steps
    are recorded and replayed ("on", which is what "auto" means, "off", or "compiled": torch compiles them first, which
    takes minutes; for servers).
    """
    folder = shipped() if folder is None else folder
    folders = [Path(folder)] if isinstance(folder, (str, Path)) else [Path(member) for member in folder]
    if not folders:
        raise ConfigError("load: no folder was given; expected a run folder, or a list of them for an ensemble")
    if engine not in ENGINES:
        raise ConfigError(f"engine: expected auto, torch or native, got {engine!r}")
    if precision not in ("fp32", "bf16"):
        raise ConfigError(f"precision: expected fp32 or bf16, got {precision!r}")
    if graphs not in ("auto", "on", "off", "compiled"):
        raise ConfigError(f"graphs: expected auto, on, off or compiled, got {graphs!r}")
    for member in folders:
        check_is_model(member)
    reason = _not_native(folders, device, weights, precision)
    if engine == "torch" or (engine == "auto" and reason):
        if engine == "auto" and (folders[0] / NATIVE).is_file():
            report(EngineRefusal(str(reason)))
        return _open_torch(folders, device, trust, weights, precision, graphs)
    if reason:
        raise reason
    if graphs in ("on", "compiled"):
        _say_no_graphs("the native engine, which runs on the CPU,")
    if engine == "native":
        return _open_native(folders[0], trust)
    return _open_either(folders[0], trust, lambda: _open_torch(folders, device, trust, weights, precision, graphs))


def _say_no_graphs(who: str) -> None:
    say(f"graphs: {who} has none; decoding without")


def _not_native(
    folders: Sequence[Path], device: str, weights: Sequence[float], precision: str
) -> ConfigError | RunError | None:
    """Why the native engine cannot run these folders on this device; None if it can."""
    if len(folders) > 1 or weights:
        return ConfigError("engine: native runs one model, and an ensemble was requested; use engine=torch")
    if not (folders[0] / NATIVE).is_file():
        return RunError(
            f"{folders[0]}: is not converted, as models of the native engine are; run `transduce convert {folders[0]}"
            " FOLDER` and give that folder, or use engine=torch"
        )
    if device not in ("auto", "cpu"):
        return ConfigError(f"engine: native runs on the CPU, and device={device} was requested; use engine=torch")
    if precision != "fp32":
        return ConfigError(
            f"engine: native has the precision it was converted with, and {precision} was requested; use engine=torch"
        )
    return None


def _open_either(folder: Path, trust: bool, with_torch: Callable[[], Translator]) -> Translator:
    """Open with the native engine, and fall back to torch for what it refuses."""

    def open_torch(refusal: EngineRefusal) -> Translator:
        if importlib.util.find_spec("torch") is None:
            raise EngineRefusal(
                f"{refusal} (here torch cannot do it instead: it is not installed; pip install 'transduce[train]')"
            )
        return with_torch()

    def second(refusal: EngineRefusal) -> Engine:
        return open_torch(refusal).engine

    try:
        translator = _open_native(folder, trust)
    except EngineRefusal as refusal:
        translator = open_torch(refusal)
        report(refusal)
        return translator
    note = ""
    if not (folder / MODEL).is_file():
        note = WHOLE if Converted.read(folder).quantize == "none" else ROUNDED
    translator.engine = Fallback(translator.engine, second, note)
    return translator


def _open_native(folder: Path, trust: bool) -> Translator:
    from transduce.engines.native.engine import NativeEngine

    tokenizers, facts = open_converted(folder)
    if (folder / MODEL).is_file() and seal_of(folder / MODEL) != facts.weights:
        raise EngineRefusal(
            f"{folder}: {NATIVE} was converted from other weights than {MODEL} holds now; convert it again"
        )
    search = read_search(folder, trust)
    engine = NativeEngine(folder / NATIVE, tokenizers.source.symbols, tokenizers.target.symbols)
    engine.check_sizes(tokenizers.source.size, tokenizers.target.size)
    return Translator(
        engine,
        tokenizers,
        search,
        facts.longest,
        decoder=ConvertedDecoder(),
        protect=True,
        confidence=Estimator.open(folder, tokenizers),
    )


def _open_torch(
    folders: Sequence[Path], device: str, trust: bool, weights: Sequence[float], precision: str, graphs: str
) -> Translator:
    converted = (folders[0] / NATIVE).is_file()
    with needed_by(f"{folders[0]}: {'engine=torch' if converted else 'a model that is not converted'}"):
        from transduce.engines.torch.engine import TorchEngine, pick_device, with_precision
        from transduce.search.ensemble import Ensemble
        from transduce.training.run_folder import open_weights

    on = pick_device(device)
    config, tokenizers, first, longest = open_weights(folders[0], trust, unfinished=True)
    members = [first.to(on)]
    for other in folders[1:]:
        its_config, its_tokenizers, model, its_longest = open_weights(other, trust, unfinished=True)
        if its_tokenizers.digest() != tokenizers.digest():
            raise ConfigError(
                f"{other}: has another tokenizer than {folders[0]}, and models of an ensemble must read and write the"
                " same tokens; use models trained on one prepared corpus"
            )
        for where, found in ((folders[0], config), (other, its_config)):
            if getattr(found.model.decoder, "offers", STEPWISE) != STEPWISE:
                raise ConfigError(f"{where}: does not write token by token, as every model of an ensemble must")
        members.append(model.to(on))
        longest = min(longest, its_longest)
    combined = Ensemble(members, weights) if len(members) > 1 or weights else members[0]
    reading = _open_reading(folders, config.model.source.places, trust)
    if on.type == "cpu" or reading is not None:
        if graphs in ("on", "compiled"):
            _say_no_graphs("a CPU" if on.type == "cpu" else "a model of recordings or pictures")
        graphs = "off"  # a CPU has none, and eager decoding drops finished rows at once; frames have no static cache
    symbols = tokenizers.source.symbols, tokenizers.target.symbols
    # eval() once, here: if each call switched training mode off and on, a call that ends would switch it on for others.
    engine = TorchEngine(with_precision(combined.eval(), precision), *symbols, on, graphs)
    return Translator(
        engine,
        tokenizers,
        config.search,
        longest,
        BATCH_FRAMES if reading else BATCH_TOKENS,
        decoder=config.model.decoder,
        search_tokens=engine.search_tokens,
        reading=reading,
        protect=True,
        confidence=Estimator.open(folders[0], tokenizers) if len(folders) == 1 else None,
    )


def _open_reading(
    folders: Sequence[Path], places: Callable[[int], list[tuple[int, int]]], trust: bool = False
) -> Reading | None:
    """How the models read files, None for models of text; all members of an ensemble must read alike."""
    facts = [_reader_facts(member / READER) for member in folders]
    for other, its_facts in zip(folders, facts, strict=True):
        if its_facts != facts[0]:
            raise ConfigError(
                f"{other}: reads its sources otherwise than {folders[0]} ({READER}); use models trained on one corpus"
            )
    if not facts[0]:
        return None
    from transduce.data.readers import Reading  # numpy comes with it
    from transduce.data.sources import read_facts

    return Reading(read_facts(folders[0] / READER, trust), places)


def _reader_facts(path: Path) -> bytes:
    """The bytes of reader.json, not yet parsed; empty for a model that reads text."""
    try:
        return read_small(path)
    except FileNotFoundError:
        return b""
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read ({error}); take it from a copy of the model") from None
