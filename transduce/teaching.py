"""What one process does when a corpus is distilled: open the teacher, translate a chunk of pairs, write its file.

A chunk's file holds a checksum, the length of each target, whether it is the original one, and all tokens end to end;
it appears whole or not at all.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transduce import config as configs
from transduce.data.corpus import Corpus, Split, file_digest
from transduce.durable import write_bytes
from transduce.errors import ConfigError, RunError
from transduce.evaluation.metrics import chrf_metric
from transduce.loading import load
from transduce.model_folder import MODEL
from transduce.search.choice import SearchOption
from transduce.search.fit import STEPWISE
from transduce.search.hypothesis import Hypothesis
from transduce.search.settings import Beam
from transduce.translator import Translator

Integers = npt.NDArray[np.int64]
GPU_BATCH = 16384  # source tokens a batch; the translator's own size leaves a GPU idle
GPU_ROOM = 1 << 20  # and where rooms let them in by and by: a chunk is never cut in two, of which one would be small
BEAM = 5  # paths, where nobody says how many and the teacher searches with a beam: more than most translate with


@dataclass(frozen=True)
class Teacher:
    """A trained model, or several that are averaged, by their places; each process opens them once."""

    runs: tuple[str, ...]
    digests: tuple[str, ...]
    device: str
    trust: bool
    precision: str = "fp32"
    graphs: str = "auto"

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"

    def processes(self, workers: int) -> int:
        """How many share the work where so many are asked for: on CPUs 0 is one on each core, a GPU needs but one."""
        return workers if self.on_cpu else max(1, workers)

    def load(self) -> Translator:
        return _load(self)

    def forget(self) -> None:
        """Let go of the memory of the model."""
        _load.cache_clear()


def weights_digest(run: str | Path) -> str:
    """SHA-256 of the weights in a run folder; nothing if there are none, which opening the model will say."""
    path = Path(run) / MODEL
    if not path.is_file() and (path.parent / "checkpoints").is_dir():
        from transduce.training.run_folder import no_model_yet

        raise no_model_yet(path.parent)
    return file_digest(path) if path.is_file() else ""


@lru_cache(maxsize=1)
def _load(teacher: Teacher) -> Translator:
    for run, digest in zip(teacher.runs, teacher.digests, strict=True):
        if weights_digest(run) != digest:
            raise RunError(
                f"{run}: its weights have changed since the work began; distill with a model that is not in training "
                "any more, or with a copy of its folder"
            )
    translator = load(
        list(teacher.runs),
        teacher.device,
        teacher.trust,
        engine="torch",
        precision=teacher.precision,
        graphs=teacher.graphs,
    )
    return translator if teacher.on_cpu else in_large_batches(translator)


def in_large_batches(translator: Translator) -> Translator:
    """The same, given as much at a time as keeps a GPU busy."""
    translator.batch_tokens = GPU_BATCH
    translator.search_tokens = GPU_ROOM if translator.search_tokens else 0
    return translator


def search_of(translator: Translator, beam: int | None, best_of: int, run: str | Path) -> Any:
    """The search asked for, or that which suits the teacher."""
    if beam is None:
        beam = max(BEAM, best_of) if isinstance(translator.search, Beam) else 0
    elif beam > 0 and getattr(translator.decoder, "offers", STEPWISE) != STEPWISE:
        own = configs.kind_of(type(translator.search))
        raise ConfigError(
            f"beam: {beam} asks for a beam search, which needs a model that writes token by token, and {run} writes all"
            f" tokens at once; leave it out, or say 0, for the model's own search, '{own}'"
        )
    if 0 < beam < best_of:
        raise ConfigError(f"best_of: expected at most the beam's size ({beam}), got {best_of}; give a larger beam")
    return translator.choose_search(beam, best_of)


@dataclass(frozen=True)
class TeachingPairs:
    """The pairs to translate by their place: a corpus and the name of its split."""

    corpus: str
    digest: str
    split: str

    def open(self) -> Split:
        return _open(self)


@lru_cache(maxsize=1)
def _open(pairs: TeachingPairs) -> Split:
    return Corpus.open(pairs.corpus).split(pairs.split)


@dataclass(frozen=True)
class Work:
    """What every process is told: by whom, what and how to translate, and the folder for finished chunks."""

    teacher: Teacher
    pairs: TeachingPairs
    dtype: str  # of the target's tokens
    search: Any
    best_of: int
    folder: Path

    def facts(self) -> dict[str, Any]:
        """What decides the translations: a stopped run goes on only with the same."""
        models, pairs = list(self.teacher.digests), self.pairs
        own = {"models": models, "corpus": pairs.digest, "split": pairs.split, "best_of": self.best_of}
        return {**own, "precision": self.teacher.precision, **configs.flatten(SearchOption(self.search))}

    def path(self, number: int) -> Path:
        return self.folder / f"{number:07d}"


@dataclass(frozen=True)
class Taught:
    """The targets of a chunk: the length of each, which of them are the original ones, all tokens end to end."""

    lengths: npt.NDArray[np.uint32]
    kept: npt.NDArray[np.uint8]
    tokens: npt.NDArray[np.unsignedinteger[Any]]

    def write(self, path: Path) -> None:
        content = self.lengths.tobytes() + self.kept.tobytes() + self.tokens.tobytes()
        write_bytes(path, zlib.crc32(content).to_bytes(4, "little"), content)

    @classmethod
    def read(cls, path: Path, count: int, dtype: str) -> Taught:
        """What `write` wrote of `count` targets."""
        content = path.read_bytes()
        if len(content) < 4 + 5 * count or zlib.crc32(content[4:]) != int.from_bytes(content[:4], "little"):
            raise RunError(f"{path}: is damaged; delete this file and run the same command again, which makes it anew")
        lengths, kept = np.frombuffer(content, "<u4", count, 4), np.frombuffer(content, np.uint8, count, 4 + 4 * count)
        return cls(lengths, kept, np.frombuffer(content[4 + 5 * count :], np.dtype(dtype).newbyteorder("<")))


def translate_chunk(work: Work, task: tuple[int, Integers]) -> int:
    """Translate the pairs of chunk number `task[0]` and write its file; gives how many they are."""
    number, pairs = task
    translator, split = work.teacher.load(), work.pairs.open()
    originals = [split.pair(int(pair)) for pair in pairs]
    with _one_thread():
        found = translator.find([source.tolist() for source, _ in originals], work.search)
    targets: list[Sequence[int]] = []
    kept = np.zeros(len(pairs), np.uint8)
    for index, (hypotheses, (_, original)) in enumerate(zip(found, originals, strict=True)):
        usable = [hypothesis for hypothesis in hypotheses[: work.best_of] if hypothesis.finished and hypothesis.tokens]
        kept[index] = not usable
        targets.append(_nearest(usable, original.tolist(), translator) if usable else original.tolist())
    tokens = np.array([token for target in targets for token in target], np.dtype(work.dtype).newbyteorder("<"))
    Taught(np.array([len(target) for target in targets], "<u4"), kept, tokens).write(work.path(number))
    return len(pairs)


def _nearest(usable: Sequence[Hypothesis], original: Sequence[int], translator: Translator) -> tuple[int, ...]:
    """Of several translations the one most like the original target, of equals the better ranked."""
    if len(usable) == 1:
        return usable[0].tokens
    decode, metric = translator.tokenizers.target.decode, chrf_metric()
    reference = [decode(original)]
    scores = [metric.sentence_score(decode(hypothesis.tokens), reference).score for hypothesis in usable]
    return usable[scores.index(max(scores))].tokens


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums of several threads differ in their last bits: with one, any number of processes gives the same bytes."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
