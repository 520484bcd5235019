"""Sequence-level distillation (Kim & Rush, 2016): a corpus whose training targets are a model's own translations.

The search runs on the corpus's tokens, which are what the model would make of the text: training text is not kept, and
decoding tokens to encode them again could change them. Pairs of like length form chunks, each translated by one process
and written whole, so that a killed run goes on where it was, and ends with the same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transduce.data.corpus import MANIFEST, Corpus, Split
from transduce.data.folders import check_free, lock_folder, whole_folder
from transduce.data.retarget import Retargeting, Targets
from transduce.data.workers import ordered_map
from transduce.durable import disk_errors, remove, write_text
from transduce.errors import ConfigError, DataError, RunError
from transduce.progress import Progress
from transduce.teaching import Taught, Teacher, TeachingPairs, Work, search_of, translate_chunk, weights_digest
from transduce.translator import Translator

Integers = npt.NDArray[np.int64]
SETTINGS = "settings.json"
# Source tokens of a chunk, which is what a kill may lose in each process; a GPU is busy only with many at once.
CPU_CHUNK, GPU_CHUNK = 4096, 131072
_EARLIER = {"precision": "fp32"}  # of work from before there was a choice
_CHANGEABLE = ("keep_original",)  # decides only how finished chunks are put together


@dataclass(frozen=True)
class Distilled:
    """How a call of `distill` ended.

    `pairs` have been translated so far, `kept` of them keep their original target, since the translation was empty or
    cut by the length limit. `reason`: "finished", or the name of the signal that stopped it.
    """

    folder: Path
    pairs: int
    kept: int
    reason: str


def distill(
    run: str | Path,
    output: str | Path,
    corpus: str | Path = "",
    *,
    ensemble: Sequence[str | Path] = (),
    beam: int | None = None,
    best_of: int = 1,
    keep_original: bool = False,
    device: str = "auto",
    workers: int = 0,
    trust: bool = False,
    chunk_tokens: int = 0,
    precision: str = "fp32",
    graphs: str = "auto",
) -> Distilled:
    """Translate the training sources of a prepared corpus (the run's own if none is named) into a new corpus.

    `ensemble` are further models, averaged with the first, whose config decides (Freitag et al. 2017).
    `beam` is the size of the beam search, 0 for the model's own search; where it is not given, 5 if that is a beam
    search, and else 0. `best_of` = n takes, of the n best translations, the one nearest to the original target by
    chrF. `keep_original` adds the original pairs after the new ones. On CPUs `workers` processes of one thread each
    share the work, 0 for one on each core; on a GPU so many share it, 0 for one: what one reads and writes is done
    while the GPU works for another. A call that was stopped goes on when it is repeated; `chunk_tokens` (0: by
    device) is how much is done at a time. `device`, `trust`, `precision` and `graphs` are those of `transduce.load`;
    the engine is torch.
    """
    from transduce.engines.torch_engine import pick_device  # torch comes with it: only now
    from transduce.training.run_folder import read_config

    if best_of < 1 or workers < 0 or chunk_tokens < 0:
        raise ConfigError(
            f"best_of={best_of}, workers={workers}, chunk_tokens={chunk_tokens}: expected at least 1, 0 and 0"
        )
    config, output = read_config(Path(run), trust), Path(output).absolute()
    opened = _open_corpus(str(corpus), config.data.folder, run)
    runs = tuple(map(str, (run, *ensemble)))
    teacher = Teacher(runs, tuple(map(weights_digest, runs)), str(pick_device(device)), trust, precision, graphs)
    try:
        translator = teacher.load()
        _check_tokenizer(opened, translator, run)
        search = search_of(translator, beam, best_of, run)
        place = output.with_name(f".{output.name}.distilling")
        pairs = TeachingPairs(str(opened.folder.absolute()), opened.digest, config.data.train)
        work = Work(teacher, pairs, opened.manifest["dtypes"]["target"], search, best_of, place)
        facts = {**work.facts(), "keep_original": keep_original}
        if _is_complete(output, facts):
            _say(f"{output}: nothing to do: it is complete")
            shutil.rmtree(place, ignore_errors=True)  # left if we were killed between writing and tidying up
            return _outcome(Corpus.open(output), pairs.split)
        check_free(output, MANIFEST)
        with _held(place, output):
            chunks = Chunks.of(pairs.open(), _begin(work, facts, chunk_tokens))
            stopped = _translate(work, chunks, teacher.processes(workers))
            return stopped or _assemble(work, chunks, opened, output, facts)
    finally:
        teacher.forget()


# -- what to translate ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chunks:
    """Pairs of like length: `order[bounds[i]:bounds[i + 1]]` are the numbers of those in chunk i."""

    order: Integers
    bounds: Integers

    @classmethod
    def of(cls, split: Split, tokens: int) -> Chunks:
        """Chunks of about so many source tokens, a pure function of the lengths."""
        lengths = split.source_lengths.astype(np.int64) + 1  # with the end symbol
        order = np.argsort(lengths, kind="stable")
        numbers = (np.cumsum(lengths[order]) - 1) // tokens
        inner = np.flatnonzero(np.diff(numbers)) + 1
        return cls(order, np.concatenate([[0], inner, [len(order)]]).astype(np.int64))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def pairs(self, number: int) -> Integers:
        return self.order[self.bounds[number] : self.bounds[number + 1]]


def _open_corpus(given: str, own: str, run: str | Path) -> Corpus:
    if not given and not (Path(own) / MANIFEST).is_file():
        raise DataError(
            f"{run}: was trained on the corpus {own or '(none)'}, which is not there (seen from {Path.cwd()}); "
            "say where a prepared corpus lies with --corpus FOLDER"
        )
    opened = Corpus.open(given or own)
    if opened.reader is not None:
        raise DataError(
            f"{opened.folder}: holds {opened.reader.kind}, and only sources of text are distilled; transcribe them,"
            " and prepare them with these texts"
        )
    return opened


def _check_tokenizer(corpus: Corpus, translator: Translator, run: str | Path) -> None:
    if corpus.tokenizers.digest() != translator.tokenizers.digest():
        raise DataError(
            f"{corpus.folder}: has another tokenizer than the model {run}, so its tokens mean nothing to it; prepare "
            f"the text with the model's: tokenizer.kind=given_tokenizer and the files in {Path(run) / 'tokenizer'}"
        )


# -- beginning, going on, ending -------------------------------------------------------------------------------------


@contextmanager
def _held(folder: Path, output: Path) -> Iterator[None]:
    """The folder for chunks, made if need be, for this process alone."""
    with disk_errors(output, "making a folder for the work", needed=4096):
        output.parent.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(folder)
    try:
        yield
    finally:
        os.close(lock)


def _begin(work: Work, facts: dict[str, Any], chunk_tokens: int) -> int:
    """The size of chunks: of the run that is continued, if it is the same, else what is asked for."""
    path = work.folder / SETTINGS
    if not path.exists():
        tokens = chunk_tokens or (CPU_CHUNK if work.teacher.on_cpu else GPU_CHUNK)
        write_text(path, json.dumps({**facts, "chunk_tokens": tokens}, indent=1) + "\n")
        return tokens
    before = {**_EARLIER, **json.loads(path.read_bytes())}
    now = {**facts, "chunk_tokens": chunk_tokens or before["chunk_tokens"]}
    for key in sorted((before.keys() | now.keys()) - {*_CHANGEABLE}):
        if before.get(key) != now.get(key):
            raise RunError(
                f"{work.folder}: was begun with {key} = {before.get(key)!r}, and now {now.get(key)!r} is asked for; "
                "give the same settings to go on, or delete that folder to begin anew"
            )
    return int(before["chunk_tokens"])


def _translate(work: Work, chunks: Chunks, workers: int) -> Distilled | None:
    """Translate what is not there yet; gives how it ended if a signal ended it."""
    from transduce.training.signals import StopRequest

    # Mixed, so that the rate so far tells how long the rest will take.
    mixed = np.random.default_rng(0).permutation(len(chunks)).tolist()
    missing = [number for number in mixed if not work.path(number).exists()]
    total, left = len(chunks.order), sum(len(chunks.pairs(number)) for number in missing)
    if left < total:
        _say(f"{work.folder}: going on: {total - left:,} of {total:,} pairs are translated")
    with (
        StopRequest("ending with the sentences under way") as stop,
        Progress("Distilling", left, "pairs") as progress,
        closing(ordered_map(partial(translate_chunk, work), _tasks(chunks, missing), workers, worth=2)) as results,
    ):
        try:
            for done in results:
                progress.advance(done)
                left -= done
                if stop.signal:
                    break
        except RunError:
            if not stop.signal:  # else a signal to all processes of the group ended the workers too
                raise
    if not stop.signal or not left:
        return None
    _say(f"{stop.signal.name}: what is translated is kept; the same command goes on from there")
    return Distilled(work.folder, total - left, 0, stop.signal.name)


def _tasks(chunks: Chunks, numbers: Sequence[int]) -> Iterator[tuple[int, Integers]]:
    for number in numbers:
        yield number, chunks.pairs(number)


def _assemble(work: Work, chunks: Chunks, corpus: Corpus, output: Path, facts: dict[str, Any]) -> Distilled:
    """The new corpus out of all chunks; then these go."""

    def taught(number: int) -> Taught:
        return Taught.read(work.path(number), len(chunks.pairs(number)), work.dtype)

    def targets() -> Iterator[Targets]:
        for number in range(len(chunks)):
            found = taught(number)
            yield Targets(chunks.pairs(number), found.lengths, found.tokens)

    kept = sum(int(taught(number).kept.sum()) for number in range(len(chunks)))
    split, facts = work.pairs.split, {**facts, "kept": kept}
    note = (
        f"distilled: {len(chunks.order):,} targets of {split} are translations of a model, but for {kept:,} that came "
        "out empty or were cut by the length limit"
    )
    with whole_folder(output, MANIFEST) as folder:
        Retargeting(corpus, split, targets, facts["keep_original"], "distilled", note, facts).write(folder)
    remove(work.folder)
    return _outcome(Corpus.open(output), split)


def _is_complete(output: Path, facts: dict[str, Any]) -> bool:
    """Whether this very corpus is there already."""
    if not (output / MANIFEST).is_file():
        return False
    found = {**_EARLIER, **Corpus.open(output).manifest.get("distillation", {})}
    return bool({key: value for key, value in found.items() if key != "kept"} == facts)


def _outcome(corpus: Corpus, split: str) -> Distilled:
    facts, pairs = corpus.manifest["distillation"], len(corpus.split(split))
    return Distilled(corpus.folder, pairs // (2 if facts["keep_original"] else 1), facts["kept"], "finished")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
