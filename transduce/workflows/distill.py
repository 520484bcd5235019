"""Sequence-level distillation (Kim & Rush, 2016): a corpus whose training targets are a model's own translations.

Decoding runs on the corpus's tokens, which are what the model would make of the text: training text is not kept, and
decoding tokens to encode them again could change them. Pairs of like length form chunks, each translated by one process
and written whole, so that a killed run resumes where it was, and ends with the same bytes.

A chunk's file holds a checksum, the length of each target, whether it is the original one, and all tokens end to end;
it appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transduce.core import config as configs
from transduce.core.durable import check_free, disk_errors, lock_folder, remove, whole_folder, write_bytes, write_text
from transduce.core.errors import ConfigError, DataError, RunError
from transduce.core.processes import ordered_map
from transduce.core.progress import Progress, say
from transduce.data.corpus import MANIFEST, Corpus, Retargeting, Split, Targets, file_digest
from transduce.metrics.corpus import chrf_metric
from transduce.search import Hypothesis, SearchConfig
from transduce.search.settings import STEPWISE, Beam, SearchOption
from transduce.translate.loading import load
from transduce.translate.model_folder import MODEL
from transduce.translate.translator import Translator

Integers = npt.NDArray[np.int64]
GPU_BATCH = 16384  # source tokens a batch; the translator's own size leaves a GPU idle
GPU_ROOM = 1 << 20  # with continuous batching: a chunk is never cut in two, of which one would be small
BEAM = 5  # default beam size where the teacher uses beam search: more than most translate with


@dataclass(frozen=True)
class Teacher:
    """A trained model, or several that are averaged, by their folders; each process opens them once."""

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
        """The number of processes for `workers`: on CPUs 0 is one on each core, a GPU needs but one."""
        return workers if self.on_cpu else max(1, workers)

    def load(self) -> Translator:
        return _load(self)

    def forget(self) -> None:
        """Free the memory of the model."""
        _load.cache_clear()


def weights_digest(run: str | Path) -> str:
    """SHA-256 of the weights in a run folder; "" if there are none, which opening the model will report."""
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
    """Give the translator batches large enough to keep a GPU busy."""
    translator.batch_tokens = GPU_BATCH
    translator.search_tokens = GPU_ROOM if translator.search_tokens else 0
    return translator


def search_of(translator: Translator, beam: int | None, best_of: int, run: str | Path) -> Any:
    """The requested search, or a default that suits the teacher."""
    if beam is None:
        beam = max(BEAM, best_of) if isinstance(translator.search, Beam) else 0
    elif beam > 0 and getattr(translator.decoder, "offers", STEPWISE) != STEPWISE:
        kind = configs.kind_of(type(translator.search))
        raise ConfigError(
            f"beam: {beam} asks for a beam search, which needs a model that writes token by token, and {run} is"
            f" non-autoregressive; leave it out, or say 0, for the model's own search, '{kind}'"
        )
    if 0 < beam < best_of:
        raise ConfigError(f"best_of: expected at most the beam's size ({beam}), got {best_of}; give a larger beam")
    return translator.choose_search(beam, best_of)


@dataclass(frozen=True)
class TeachingPairs:
    """The pairs to translate: a corpus and the name of its split."""

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
    """The job of every process: teacher, pairs, search, and the folder for finished chunks."""

    teacher: Teacher
    pairs: TeachingPairs
    dtype: str  # of the target's tokens
    search: SearchConfig
    best_of: int
    folder: Path

    def facts(self) -> dict[str, Any]:
        """What determines the translations: a stopped run resumes only with equal facts."""
        models, pairs = list(self.teacher.digests), self.pairs
        facts = {"models": models, "corpus": pairs.digest, "split": pairs.split, "best_of": self.best_of}
        return {**facts, "precision": self.teacher.precision, **configs.flatten(SearchOption(self.search))}

    def path(self, number: int) -> Path:
        return self.folder / f"{number:07d}"


@dataclass(frozen=True)
class ChunkTargets:
    """The targets of a chunk: the length of each, which of them are the original ones, all tokens end to end."""

    lengths: npt.NDArray[np.uint32]
    kept: npt.NDArray[np.uint8]
    tokens: npt.NDArray[np.unsignedinteger[Any]]

    def write(self, path: Path) -> None:
        content = self.lengths.tobytes() + self.kept.tobytes() + self.tokens.tobytes()
        write_bytes(path, zlib.crc32(content).to_bytes(4, "little"), content)

    @classmethod
    def read(cls, path: Path, count: int, dtype: str) -> ChunkTargets:
        """Read what `write` wrote of `count` targets."""
        content = path.read_bytes()
        if len(content) < 4 + 5 * count or zlib.crc32(content[4:]) != int.from_bytes(content[:4], "little"):
            raise RunError(f"{path}: is damaged; delete this file and run the same command again, which makes it anew")
        lengths, kept = np.frombuffer(content, "<u4", count, 4), np.frombuffer(content, np.uint8, count, 4 + 4 * count)
        return cls(lengths, kept, np.frombuffer(content[4 + 5 * count :], np.dtype(dtype).newbyteorder("<")))


def translate_chunk(work: Work, task: tuple[int, Integers]) -> int:
    """Translate the pairs of chunk number `task[0]` and write its file; return their number."""
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
    ChunkTargets(np.array([len(target) for target in targets], "<u4"), kept, tokens).write(work.path(number))
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
    """Use one thread: sums of several differ in their last bits, and any number of processes gives the same bytes."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


SETTINGS = "settings.json"
# Source tokens of a chunk, which is what a kill may lose in each process; a GPU is busy only with many at once.
CPU_CHUNK, GPU_CHUNK = 4096, 131072
_EARLIER = {"precision": "fp32"}  # of work from before there was a choice
_CHANGEABLE = ("keep_original",)  # decides only how finished chunks are put together


@dataclass(frozen=True)
class Distilled:
    """The result of a call of `distill`.

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

    `ensemble` are further models, averaged with the first, whose config decides (Freitag et al. 2017). `beam` is the
    size of the beam search, 0 for the model's own search; where it is not given, 5 if that is a beam search, and else
    0. `best_of` = n takes, of the n best translations, the one nearest to the original target by chrF. `keep_original`
    adds the original pairs after the new ones. On CPUs `workers` processes of one thread each share the work, 0 for one
    on each core; on a GPU so many share it, 0 for one: what one reads and writes is done while the GPU works for
    another. A stopped call resumes when it is repeated; `chunk_tokens` (0: by device) is how much is done at a time.
    `device`, `trust`, `precision` and `graphs` are those of `transduce.load`; the engine is torch.
    """
    from transduce.engines.torch.engine import pick_device  # torch comes with it: only now
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
        work_folder = output.with_name(f".{output.name}.distilling")
        pairs = TeachingPairs(str(opened.folder.absolute()), opened.digest, config.data.train)
        work = Work(teacher, pairs, opened.manifest["dtypes"]["target"], search, best_of, work_folder)
        facts = {**work.facts(), "keep_original": keep_original}
        if _is_complete(output, facts):
            say(f"{output}: nothing to do: it is complete")
            shutil.rmtree(work_folder, ignore_errors=True)  # left if killed between writing and tidying up
            return _outcome(Corpus.open(output), pairs.split)
        check_free(output, MANIFEST)
        with _locked(work_folder, output):
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
        """Chunks of about `tokens` source tokens, a pure function of the lengths."""
        lengths = split.source_lengths.astype(np.int64) + 1  # with the end symbol
        order = np.argsort(lengths, kind="stable")
        numbers = (np.cumsum(lengths[order]) - 1) // tokens
        inner = np.flatnonzero(np.diff(numbers)) + 1
        return cls(order, np.concatenate([[0], inner, [len(order)]]).astype(np.int64))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def pairs(self, number: int) -> Integers:
        return self.order[self.bounds[number] : self.bounds[number + 1]]


def _open_corpus(given: str, of_run: str, run: str | Path) -> Corpus:
    if not given and not (Path(of_run) / MANIFEST).is_file():
        raise DataError(
            f"{run}: was trained on the corpus {of_run or '(none)'}, which is not there (seen from {Path.cwd()}); "
            "say where a prepared corpus lies with --corpus FOLDER"
        )
    opened = Corpus.open(given or of_run)
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


# -- beginning, resuming, ending -------------------------------------------------------------------------------------


@contextmanager
def _locked(folder: Path, output: Path) -> Iterator[None]:
    """Create the folder for chunks if need be, and lock it."""
    with disk_errors(output, "making a folder for the work", needed=4096):
        output.parent.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(folder)
    try:
        yield
    finally:
        os.close(lock)


def _begin(work: Work, facts: dict[str, Any], chunk_tokens: int) -> int:
    """The size of chunks: of the run that is resumed, if its facts are equal, else the requested one."""
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
                f"{work.folder}: was begun with {key} = {before.get(key)!r}, and now {now.get(key)!r} is requested; "
                "give the same settings to resume, or delete that folder to begin anew"
            )
    return int(before["chunk_tokens"])


def _translate(work: Work, chunks: Chunks, workers: int) -> Distilled | None:
    """Translate the missing chunks; return the result if a signal ended it, else None."""
    from transduce.core.processes import StopRequest

    # Shuffled, so that the rate so far predicts the rest.
    mixed = np.random.default_rng(0).permutation(len(chunks)).tolist()
    missing = [number for number in mixed if not work.path(number).exists()]
    total, left = len(chunks.order), sum(len(chunks.pairs(number)) for number in missing)
    if left < total:
        say(f"{work.folder}: resuming: {total - left:,} of {total:,} pairs are translated")
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
    say(f"{stop.signal.name}: what is translated is kept; the same command resumes from there")
    return Distilled(work.folder, total - left, 0, stop.signal.name)


def _tasks(chunks: Chunks, numbers: Sequence[int]) -> Iterator[tuple[int, Integers]]:
    for number in numbers:
        yield number, chunks.pairs(number)


def _assemble(work: Work, chunks: Chunks, corpus: Corpus, output: Path, facts: dict[str, Any]) -> Distilled:
    """Assemble the new corpus from all chunks, then delete them."""

    def taught(number: int) -> ChunkTargets:
        return ChunkTargets.read(work.path(number), len(chunks.pairs(number)), work.dtype)

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
    """Whether this very corpus exists already."""
    if not (output / MANIFEST).is_file():
        return False
    found = {**_EARLIER, **Corpus.open(output).manifest.get("distillation", {})}
    return bool({key: value for key, value in found.items() if key != "kept"} == facts)


def _outcome(corpus: Corpus, split: str) -> Distilled:
    facts, pairs = corpus.manifest["distillation"], len(corpus.split(split))
    return Distilled(corpus.folder, pairs // (2 if facts["keep_original"] else 1), facts["kept"], "finished")
