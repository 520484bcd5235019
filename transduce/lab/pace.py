"""How fast models train and translate, all of them in turns on the same data.

Training is a pass forward and back on a batch as the loop makes it (on a GPU in bf16, replayed); translating is the
search alone, without tokenizing. The least of several tries counts (timing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from transduce.data.batch import Batch, collate
from transduce.data.corpus import Corpus
from transduce.data.symbols import Symbols
from transduce.lab.learning import LabRun
from transduce.lab.timing import least_seconds
from transduce.objectives.base import ObjectiveStep
from transduce.search.constraints import UNCONSTRAINED
from transduce.training.distributed import Group
from transduce.training.passes import make_runner
from transduce.translator import Translator

SYMBOLS = Symbols(pad=0, bos=1, eos=2, unk=3)


@dataclass(frozen=True)
class DecodingPace:
    """Of one search at one size of batch."""

    seconds_a_sentence: float
    tokens_per_second: float


def searching(translator: Translator, sources: Sequence[list[int]], batch: int, search: Any) -> Callable[[], int]:
    """Translate everything in batches; gives the tokens written."""
    groups = [sources[begin : begin + batch] for begin in range(0, len(sources), batch)]

    def run() -> int:
        tokens = 0
        for group in groups:
            found = translator.engine.search(group, search, [UNCONSTRAINED] * len(group), range(len(group)))
            tokens += sum(len(hypotheses[0].tokens) for hypotheses in found)
        return tokens

    return run


def decoding_speeds(
    ways: Mapping[str, tuple[Translator, Any]],
    sources: Sequence[list[int]],
    batches: Sequence[int],
    repeats: int,
    device: torch.device,
) -> dict[tuple[str, int], DecodingPace]:
    """For each way to translate (a model and a search) and each size of batch."""
    tasks = {
        (name, batch): searching(translator, sources[: max(batch, 8)], batch, search)
        for name, (translator, search) in ways.items()
        for batch in batches
    }
    seconds = least_seconds(tasks, repeats, device)
    return {
        key: DecodingPace(took / len(sources[: max(key[1], 8)]), tasks[key]() / took) for key, took in seconds.items()
    }


def some_sources(corpus: Corpus, count: int) -> list[list[int]]:
    """Sources of the held-out part, evenly from all of it, the shortest first."""
    split = corpus.split("valid")
    taken = min(count, len(split))
    return sorted((split.pair(number * len(split) // taken)[0].tolist() for number in range(taken)), key=len)


def training_tokens_per_second(
    runs: Sequence[LabRun],
    lengths: Sequence[int],
    tokens: int,
    repeats: int,
    device: torch.device,
    vocabulary: int = 100,
) -> dict[tuple[str, int], float]:
    """Target tokens a second of fresh models of these runs, on random sentences of each length, `tokens` a batch."""

    def task(run: LabRun, length: int) -> Callable[[], None]:
        torch.manual_seed(1)
        model = run.config.model.build(vocabulary, vocabulary, shared=True).to(device)
        step = ObjectiveStep(model, run.config.objective.build())
        batch = random_batch(length, max(1, tokens // length), vocabulary).to(device)
        passes = make_runner(step, model, run.config, Group(str(device)), print)

        def work() -> None:
            passes(batch, 0)
            model.zero_grad(set_to_none=passes.drops_gradients)

        return work

    tasks = {(run.name, length): task(run, length) for run in runs for length in lengths}
    seconds = least_seconds(tasks, repeats, device)
    return {(name, length): max(1, tokens // length) * length / took for (name, length), took in seconds.items()}


def random_batch(length: int, rows: int, vocabulary: int) -> Batch:
    """Sources and targets of `length` tokens, the end symbol among them."""
    tokens = torch.randint(4, vocabulary, (2, rows, length - 1), generator=torch.Generator().manual_seed(1)).tolist()
    return collate(tokens[0], tokens[1], SYMBOLS, SYMBOLS)
