"""Open a trained model: `transduce.load("runs/demo")("Guten Morgen")`, or several that translate as one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transduce.errors import ConfigError
from transduce.search.fit import STEPWISE
from transduce.translator import Translator


def load(
    folder: str | Path | Sequence[str | Path],
    device: str = "auto",
    trust: bool = False,
    weights: Sequence[float] = (),
) -> Translator:
    """The translator in a run folder, or an ensemble of those in several folders.

    `device`: "auto", "cpu", "cuda" or "cuda:1". `trust=True` lets a folder's config import classes of the user's own.
    `weights` say how much each member of an ensemble counts, alike if not given; its search is the first one's.
    """
    from transduce.engines.torch_engine import TorchEngine, pick_device  # torch comes with it: only now
    from transduce.search.ensemble import Ensemble
    from transduce.training.run_folder import open_model

    folders = [Path(folder)] if isinstance(folder, (str, Path)) else [Path(one) for one in folder]
    if not folders:
        raise ConfigError("load: no folder was given; expected a run folder, or a list of them for an ensemble")
    place = pick_device(device)
    config, tokenizers, first, longest = open_model(folders[0], trust)
    members = [first.to(place)]
    for other in folders[1:]:
        its_config, its_tokenizers, model, its_longest = open_model(other, trust)
        if its_tokenizers.digest() != tokenizers.digest():
            raise ConfigError(
                f"{other}: has another tokenizer than {folders[0]}, and models of an ensemble must read and write the"
                " same tokens; use models trained on one prepared corpus"
            )
        for where, one in ((folders[0], config), (other, its_config)):
            if getattr(one.model.decoder, "offers", STEPWISE) != STEPWISE:
                raise ConfigError(f"{where}: does not write token by token, as every model of an ensemble must")
        members.append(model.to(place))
        longest = min(longest, its_longest)
    whole = Ensemble(members, weights) if len(members) > 1 or weights else members[0]
    engine = TorchEngine(whole, tokenizers.source.symbols, tokenizers.target.symbols, place)
    return Translator(engine, tokenizers, config.search, longest, decoder=config.model.decoder)
