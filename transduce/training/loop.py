"""The training loop, the only one: batches in, losses summed, one division, one update.

Each step draws its randomness from (seed, step) alone, and the data from (seed, epoch, position), so that a run resumed
from any checkpoint is bit-identical to one that was never stopped (on the CPU in fp32).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from transduce.core.durable import RESUME, disk_errors
from transduce.core.errors import ConfigError, RunError
from transduce.core.processes import RunLock, StopRequest
from transduce.data.corpus import Corpus
from transduce.data.stream import Portion, Share, prefetched
from transduce.experiment import Config, check_positions, check_source
from transduce.model.contract import Autoregressive
from transduce.objectives import ObjectiveContext, ObjectiveStep
from transduce.training.averages import average, average_of, better, which
from transduce.training.checkpoint import Found, prune, read_checkpoint, save_checkpoint, step_folders
from transduce.training.distributed import Group, hollow
from transduce.training.log import RunLog, SilentLog, Sums, board_writer
from transduce.training.machine import build_model, explained_shortage, own_threads, peak_memory, tune_threads
from transduce.training.optimizer import LearningRateByBudget, anneals, update
from transduce.training.run_folder import Facts, export, make_ready, open_teacher
from transduce.training.session import Session
from transduce.training.start import introduction, resolve_batching
from transduce.training.step_runner import OomSplitter, make_runner
from transduce.training.validate import ValidationResult, check_metric, held_out_loss, swapped_weights, validate

_ENDS = ("finished", "patience", "minutes")
_METRIC = "metrics."  # prefix of the objective's own sums, to keep them apart from the loop's
HOPELESS = 20  # steps in a row whose gradient was not finite: something is wrong that skipping will not mend


@dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended: "finished", "patience", "minutes", or the name of the signal that stopped it."""

    folder: Path
    step: int
    reason: str
    validation: dict[str, float]


def train(config: Config, folder: str | Path = "runs/model") -> Outcome:
    """Train in a run folder, or resume the run that is there; processes started by torchrun train it together."""
    folder = Path(folder)
    if not isinstance(config, Config):
        raise ConfigError(
            f"train: expected a Config, got {config!r}; make one of a preset or a file with"
            ' transduce.config.load(transduce.Config, "tiny", ["data.folder=data/mine"])'
        )
    if config.training.tensorboard:
        board_writer()
    with Group(config.training.device) as group:
        corpus = Corpus.open(corpus_folder(config), config.data.trust)
        if group.first:
            with disk_errors(folder, "making the run folder", needed=4096, advice=RESUME):
                folder.mkdir(parents=True, exist_ok=True)
        lock = RunLock(folder) if group.first else nullcontext()
        with lock, StopRequest(speaks=group.first, aborts=group.size == 1) as stop, own_threads():
            return _Run(config, folder, corpus, group).go(stop)


def corpus_folder(config: Config) -> str:
    """The folder of the prepared corpus; raise ConfigError if the config names none."""
    if not config.data.folder:
        raise ConfigError(
            "data.folder: no prepared corpus is named; make one with `transduce prepare`, then data.folder=FOLDER"
        )
    return config.data.folder


class _Run:
    """One call of `train`: everything that is set up once, and the steps between."""

    def __init__(self, config: Config, folder: Path, corpus: Corpus, group: Group) -> None:
        self.config, self.folder, self.corpus, self.group = config, folder, corpus, group
        self.tokenizers = corpus.tokenizers
        split = corpus.split(config.data.train)
        self.validates = config.data.valid in corpus.splits
        check_source(config.model, corpus)
        check_positions(config, corpus)
        if self.validates:
            check_metric(config, corpus)
        model = build_model(config.model, self.tokenizers, config.seed)
        ready = make_ready(folder, config, self.tokenizers, model, corpus.reader) if group.first else (None, [])
        group.spread(model.weights().values())
        model = model.to(group.device)
        for block in model.blocks():
            block.recomputes = config.training.activation_checkpointing
        in_pieces = group.size > 1 and config.training.parallel == "fsdp"
        self.hollow = hollow(model) if in_pieces else None  # for validating unsharded weights
        self.module = ObjectiveStep(model, config.objective.build(self._objective_context()))
        self.written = make_runner(self.module, model, config, group, lambda text: self.log.say(text))
        self.session = Session(config, model, group.device)
        self.session.progress.corpus = corpus.digest
        self.session.progress.longest = int(split.source_lengths.max(initial=1)) + 1
        self.notes = self._resume(*ready)
        self.has_batch_statistics = len(model.weights()) > len(list(model.parameters()))  # of BatchNorm
        self.share = Share(group.rank, group.size, config.training.accumulate, entire=not self.has_batch_statistics)
        self.sums = Sums(self.session.progress, group)
        self.log, training = self._log(), config.training
        self.rate = LearningRateByBudget(
            training.learning_rate, config.model.d_model, training.steps, training.minutes, self.log.say
        )

    def _resume(self, found: Found | None, notes: list[str]) -> list[str]:
        """Restore the newest good checkpoint; return the notes of the process that has looked for it."""
        path, notes = self.group.broadcast((str(found.path) if found else "", notes))
        if not path:
            return notes
        self.session.restore(self.group.snapshot(read_checkpoint(Path(path)) if self.group.first else None), path)
        if self.session.progress.corpus != self.corpus.digest:
            raise RunError(
                f"{self.folder}: was trained on another corpus than {self.corpus.folder} holds now; give data.folder"
                " the one it began with, or choose another folder for the new run"
            )
        return notes

    def _objective_context(self) -> ObjectiveContext:
        target = self.tokenizers.target

        def teacher(folder: str) -> Autoregressive:
            return open_teacher(Path(folder), self.tokenizers).to(self.group.device)

        return ObjectiveContext(target.symbols, target.decode, teacher, target.size)

    # -- the loop --------------------------------------------------------------------------------------------------

    def go(self, stop: StopRequest) -> Outcome:
        progress = self.session.progress
        with self.log as log:
            for note in self.notes:
                log.say(note)
            reason = self._end()
            if reason and self.group.broadcast(log.finished):
                log.say(
                    f"{self.folder}: nothing to do: it ended at step {progress.step:,} ({reason}); raise"
                    " training.steps, training.minutes or validation.patience to train further"
                )
                return Outcome(self.folder, progress.step, reason, progress.validation)
            with explained_shortage(self.config, progress):
                self._make_ready(log)
                with prefetched(self._stream(), ahead=4 * self.group.size) as ready:
                    while not reason:
                        reason = self._step(ready, log, stop)
                if reason in _ENDS:
                    self._finish(log, reason)
        return Outcome(self.folder, progress.step, reason, progress.validation)

    def _make_ready(self, log: RunLog) -> None:
        """Resolve batching, compiling and threads before the first step."""
        found = resolve_batching(self.config, self.session, self.written, self.corpus, self.group, log.say)
        self.config, self.batches = found.config, found.batches
        progress, alone = self.session.progress, self.group.size == 1
        begins = introduction(self.config, self.session, self.batches, self.group, self.validates)
        log.say(f"{self.folder}: {f'resuming from step {progress.step:,}' if progress.step else begins}")
        if self.config.training.minutes:
            follow = "rates and the end follow" if anneals(self.config.training.learning_rate) else "the end follows"
            log.say(f"training.minutes: {follow} the clock; only runs bounded by steps can be repeated")
        tune_threads(self.config.training, self.session, found.passes, self.batches, alone, log.say)
        unsplittable = self.has_batch_statistics or not alone
        self.passes = OomSplitter(found.passes, self.session, self.config.seed, unsplittable, log.say)

    def _stream(self) -> Iterator[Portion]:
        """Yield batches from where the run stands, pinned for a GPU; runs in the prefetching thread."""
        progress, pins = self.session.progress, self.session.device.type == "cuda"
        for portion in self.share.portions(self.batches, progress.epoch, progress.position):
            yield portion.pinned() if pins else portion

    def _log(self) -> RunLog:
        training, step, metric = self.config.training, self.session.progress.step, self.config.validation.metric
        if not self.group.first:
            return SilentLog()
        return RunLog(self.folder, training.steps, step, training.tensorboard, metric, training.minutes)

    def _end(self) -> str:
        """The reason why no further step is due, or ""."""
        training, progress = self.config.training, self.session.progress
        if progress.step >= training.steps:
            return "finished"
        if 0 < self.config.validation.patience <= progress.stale:
            return "patience"
        return "minutes" if training.minutes and progress.seconds > 60 * training.minutes else ""

    def _step(self, ready: Iterator[Portion], log: RunLog, stop: StopRequest) -> str:
        """Make one update and what is due after it; return the reason to stop, or ""."""
        training, progress = self.config.training, self.session.progress
        started = time.monotonic()
        self._update(list(itertools.islice(ready, training.accumulate)))
        progress.step += 1
        progress.seconds += time.monotonic() - started
        if progress.step % training.report_every == 0:
            self._report(log)
        log.advance(progress.step)
        if training.minutes:
            progress.seconds = self.group.highest(progress.seconds)  # one clock, so that all end at the same step
        if self.validates and (progress.step % self.config.validation.every == 0 or self._end()):
            self._validate(log)
        # Read once: a signal that arrives while saving is for the next step.
        received = self.group.any_signal(stop.signal)
        reason = received.name if received else self._end()
        if reason or self._planned(progress.step):
            self._save()
        if received:
            self._leave(log, reason)
        return reason

    def _leave(self, log: RunLog, reason: str) -> None:
        """Stop after a signal; where nothing was validated yet, export the weights of this step."""
        progress = self.session.progress
        offered = self.session.averaged_weights()
        if progress.best_step < 0:
            name = f"last, step {progress.step:,}, where training was stopped"
            self._export(offered, name + which(self.config.training.ema, raw=False))
        log.say(
            f"{reason}: saved step {progress.step:,} in {self.folder}; the same command resumes from there, and the"
            " folder is a model with the weights of step"
            f" {progress.step if progress.best_step < 0 else progress.best_step:,}"
        )

    def _planned(self, step: int) -> bool:
        """Whether an uninterrupted run would save this step."""
        validated = self.validates and step % self.config.validation.every == 0
        return validated or step % self.config.training.save_every == 0

    def _update(self, portions: list[Portion]) -> None:
        """Back-propagate the sums of all micro-batches, then divide once by the sum of their counts."""
        session, progress = self.session, self.session.progress
        self.module.train()
        count = torch.zeros((), device=session.device)
        for loss in self.passes([(portion, portion.batch) for portion in portions if portion.batch is not None]):
            count += loss.count
            finite = loss.total.isfinite()  # else the micro-batch is left out of all sums, and reports stay means
            metrics = {f"{_METRIC}{name}": value for name, value in loss.metrics.items()}
            for name, value in {"loss": loss.total, "count": loss.count, **metrics}.items():
                self.sums.add(name, value * finite)
        progress.epoch, progress.position = portions[-1].epoch, portions[-1].position + 1
        count, rate = self.group.sum(count), self.rate(progress.step, progress.seconds)
        norm, skipped = update(session.optimizer, rate, count, self.config.training.clip)
        session.move_average()
        self.sums.add("norm", norm)
        self.sums.add("steps", torch.ones((), device=session.device))
        self.sums.skip(skipped)

    def _report(self, log: RunLog) -> None:
        progress, sums = self.session.progress, self.sums.take()
        if sums["skipped"]:
            log.say(
                f"step {progress.step:,}: {sums['skipped']:.0f} of the last {sums['steps']:.0f} updates were skipped,"
                " because the gradient was not finite; the weights are untouched by them"
            )
        if sums["in_a_row"] >= HOPELESS:
            raise RunError(
                f"{self.folder}: the gradient has not been finite for {sums['in_a_row']:.0f} steps,"
                f" up to step {progress.step}. The weights and the last checkpoint are sound."
                " Lower training.learning_rate, set training.clip=1, or train with training.precision=fp32"
            )
        count = max(sums["count"], 1.0)
        progress.target_tokens += int(sums["count"])
        log.train(
            progress.step,
            {
                "loss": sums["loss"] / count,
                **{name.removeprefix(_METRIC): sums[name] / count for name in sums if name.startswith(_METRIC)},
                "learning_rate": self.rate.last,
                "gradient_norm": sums["norm"] / max(sums["steps"], 1.0),
                "skipped": sums["skipped"],
                "epoch": progress.epoch,
                "tokens_per_second": sums["count"] / max(progress.seconds - sums["since"], 1e-9),
                "seconds": progress.seconds,
                "memory": peak_memory(self.session.device),
            },
        )

    # -- validating, saving, ending ----------------------------------------------------------------------------------

    def _validate(self, log: RunLog) -> None:
        progress, validation = self.session.progress, self.config.validation
        self.sums.store()
        offered = better(self.session, self._measure, self._loss)
        measured = offered.measured
        rank = progress.ranks[str(progress.step)] = validation.rank(measured.values)
        best = progress.best_step < 0 or rank < progress.ranks[str(progress.best_step)]
        progress.stale = 0 if best else progress.stale + 1
        log.valid(progress.step, measured.values, best, offered.raw)
        for sample in measured.samples:
            log.say(f"    {sample.source}\n      -> {sample.translation}\n      =  {sample.reference}")
        if best:
            progress.best_step, progress.raw_best = progress.step, offered.raw
            progress.validation, progress.signature = measured.values, measured.signature
            name = f"best by validation {validation.judged_by}, step {progress.step:,}"
            self._export(offered.weights, name + which(self.config.training.ema, offered.raw))

    def _measure(self, weights: dict[str, Tensor]) -> ValidationResult:
        """Validate these weights, which all processes have: each takes its share of the texts."""
        with swapped_weights(self.session.model, weights, self.hollow) as model:
            return validate(model, self.corpus, self.config, self.session.device, self.group)

    def _loss(self, weights: dict[str, Tensor]) -> float:
        """The loss of these weights on the validation text, alone; each process takes its share of the batches."""
        with swapped_weights(self.session.model, weights, self.hollow) as model:
            return held_out_loss(model, self.corpus, self.config, self.session.device, self.group)

    def _save(self) -> None:
        """Save a checkpoint, and only then delete old ones."""
        training = self.config.training
        self.sums.store()
        snapshot = self.session.snapshot()
        if self.group.first:
            save_checkpoint(self.folder, snapshot)
            prune(self.folder, {*self._last(training.keep_last), *self.session.progress.best_steps(training.keep_best)})

    def _last(self, count: int) -> list[int]:
        """The last `count` saved steps; one saved only because of a signal no longer counts once training resumes."""
        saved = sorted(step_folders(self.folder))
        return [step for step in saved if self._planned(step) or step == self.session.progress.step][-count:]

    def _finish(self, log: RunLog, reason: str) -> None:
        """Average if configured, and leave the best weights in the folder."""
        training, progress = self.config.training, self.session.progress
        self.sums.store()
        offered = self.session.averaged_weights()
        if progress.best_step < 0:
            self._export(offered, f"last, step {progress.step:,}" + which(training.ema, raw=False))
        averaged = self._average(log, offered) if training.average > 1 else {}
        if not self.group.first:
            return
        spent = {"seconds": progress.seconds, "memory": peak_memory(self.session.device)}
        log.record("finished", progress.step, {**progress.validation, **averaged, **spent})
        use = f'translate {self.folder} "..."' if self.corpus.reader is None else f"transcribe {self.folder} FILE"
        log.say(f"{reason}: {progress.step:,} steps, {self.folder} is ready: transduce {use}")

    def _to_average(self, log: RunLog) -> list[int]:
        """The steps whose checkpoints are averaged, two at least or none; says so if there are fewer than requested."""
        training, progress = self.config.training, self.session.progress
        steps: list[int] = []
        if self.group.first:
            steps = self._last(training.average)
            if training.average_of == "best" and progress.best_step >= 0:
                saved = step_folders(self.folder)
                steps = [step for step in progress.best_steps(training.average) if step in saved]
        steps = self.group.broadcast(steps)
        if len(steps) < training.average:
            there = "1 is there" if len(steps) == 1 else f"{len(steps)} are there"
            log.say(
                f"training.average: {training.average} checkpoints were requested and {there},"
                f" {'which are averaged' if len(steps) > 1 else 'so that there is nothing to average'}; save them more"
                " often (training.save_every, validation.every), or request fewer"
            )
        return steps if len(steps) > 1 else []

    def _averaged(self, steps: list[int], alike: dict[str, Tensor]) -> tuple[dict[str, Tensor], str]:
        """The average of checkpoints, which rank 0 reads, for all processes, and its name; `alike` has its shapes."""
        training, stem = self.config.training, self.session.progress.stem(self.config.training.ema)
        weights = {key: tensor.clone() for key, tensor in alike.items()}
        if self.group.first:
            saved = step_folders(self.folder)
            found = average([saved[step] for step in steps], stem)
            weights = {key: found[key].to(self.session.device) for key in alike}
        self.group.spread(weights.values())
        name = f"{average_of(len(steps))} ({training.average_of})"
        return weights, name + which(training.ema, raw=stem == "model")

    def _average(self, log: RunLog, offered: dict[str, Tensor]) -> dict[str, float]:
        """Offer the average if it is no worse than the best; return its measures, if it could be measured."""
        progress, validation = self.session.progress, self.config.validation
        steps = self._to_average(log)
        if not steps:
            return {}
        weights, name = self._averaged(steps, offered)
        if progress.best_step < 0:
            self._export(weights, name)
            return {}
        measured = self._measure(weights)
        rank, best = validation.rank(measured.values), progress.ranks[str(progress.best_step)]
        chosen = rank <= best
        log.say(
            f"{name}: {validation.judged_by} {abs(rank[0]):.2f} against {abs(best[0]):.2f} of the best single one;"
            f" {'the average' if chosen else 'the single one'} is kept"
        )
        if chosen:
            progress.validation, progress.signature = measured.values, measured.signature
            self._export(weights, name)
        return {f"average_{key}": number for key, number in measured.values.items()}

    def _export(self, weights: dict[str, Tensor], name: str) -> None:
        """Make these weights the ones that the folder translates with."""
        if not self.group.first:
            return
        progress = self.session.progress
        facts = Facts(
            parameters=sum(parameter.numel() for parameter in self.session.model.parameters()),
            step=progress.step,
            epoch=progress.epoch,
            seconds=progress.seconds,
            target_tokens=progress.target_tokens + int(progress.sums.get("count", 0)),
            weights=name,
            validation=progress.validation,
            signature=progress.signature,
            corpus=self.corpus.manifest,
        )
        export(self.folder, weights, self.tokenizers, progress.longest, self.config, facts)
