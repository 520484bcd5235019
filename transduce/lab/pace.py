"""Timing of training and translating, all models in turns on the same data, and the power of n that times grow with.

Training is a pass forward and back on a batch as the loop makes it (on a GPU in bf16, replayed); translating is the
search alone, without tokenizing. On a CPU the seconds are CPU time of one core, not wall-clock time; on a GPU they are
wall-clock time. Other work only ever makes something slower, so the minimum of several tries is nearest to the truth;
the tries of all that is compared take turns, so that a busy minute affects all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from transduce.data.batch import Batch, collate
from transduce.data.corpus import Corpus
from transduce.lab.learning import LabRun
from transduce.objectives import NO_CONTEXT, ObjectiveStep
from transduce.search import SearchConfig
from transduce.search.constraints import UNCONSTRAINED
from transduce.text.vocabulary import Symbols
from transduce.training.distributed import Group
from transduce.training.machine import keep_freed_memory
from transduce.training.step_runner import make_runner
from transduce.translate.translator import Translator

Key = TypeVar("Key")


def least_seconds(tasks: Mapping[Key, Callable[[], object]], repeats: int, device: torch.device) -> dict[Key, float]:
    """The shortest time of each task in `repeats` rounds, after one to warm up; by one thread."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    if device.type == "cpu":
        keep_freed_memory()  # as training does: else large sizes pay for fresh memory each time, and small ones do not
    best: dict[Key, float] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with more, small sizes are done by one and large ones by all: a bend in every line
    try:
        for number in range(repeats + 1):
            for key, task in tasks.items():
                wait(device)
                started = clock()
                task()
                wait(device)
                took = clock() - started
                if number:
                    best[key] = min(took, best.get(key, took))
    finally:
        torch.set_num_threads(threads)
    return best


def wait(device: torch.device) -> None:
    """Synchronize with the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Exponent:
    """A fitted power law, y = factor x^value; `error` is the standard error of the line through the logarithms."""

    value: float
    error: float
    factor: float  # y = factor x^value

    def __str__(self) -> str:
        return f"{self.value:.2f} ± {self.error:.2f}"

    def at(self, x: float) -> float:
        """The value of the line at x."""
        return float(self.factor * x**self.value)


def fitted(sizes: Sequence[float], values: Sequence[float]) -> Exponent:
    """Fit a power law by least squares on logarithms; with two points its error is unknown (0)."""
    x, y = np.log(np.asarray(sizes, float)), np.log(np.asarray(values, float))
    slope, shift = np.polyfit(x, y, 1)
    rest = y - (slope * x + shift)
    free = len(x) - 2
    error = float(np.sqrt((rest @ rest) / free / ((x - x.mean()) @ (x - x.mean())))) if free > 0 else 0.0
    return Exponent(float(slope), error, float(np.exp(shift)))


SYMBOLS = Symbols(pad=0, bos=1, eos=2, unk=3)


@dataclass(frozen=True)
class DecodingPace:
    """The speed of one search at one batch size."""

    seconds_a_sentence: float
    tokens_per_second: float


def searching(
    translator: Translator, sources: Sequence[list[int]], batch: int, search: SearchConfig
) -> Callable[[], int]:
    """A task that translates everything in batches and returns the number of tokens written."""
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
    """The speed of each way to translate (a model and a search) at each batch size."""
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
    """Sources evenly spread over the held-out part, the shortest first."""
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
    """Target tokens a second of fresh models of these runs, on random sentences of each length.

    A batch has `tokens` tokens.
    """

    def task(run: LabRun, length: int) -> Callable[[], None]:
        torch.manual_seed(1)
        model = run.config.model.build(vocabulary, vocabulary, shared=True).to(device)
        step = ObjectiveStep(model, run.config.objective.build(NO_CONTEXT))
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
    """A batch of random sources and targets of `length` tokens, the end symbol among them."""
    tokens = torch.randint(4, vocabulary, (2, rows, length - 1), generator=torch.Generator().manual_seed(1)).tolist()
    return collate(tokens[0], tokens[1], SYMBOLS, SYMBOLS)
