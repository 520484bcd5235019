"""Write the model card, README.md of a run folder."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from transduce import __version__
from transduce.core.errors import counted
from transduce.core.progress import seconds_as_text
from transduce.experiment import Config
from transduce.search.fit import search_label


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
