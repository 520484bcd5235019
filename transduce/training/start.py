"""What is settled before the first step: tokens a batch, shapes of batches, and whether the step is compiled.

Tokens and shapes are kept with the run: a place in the data is a place among certain batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from transduce.data.batching import Batches
from transduce.data.corpus import Corpus
from transduce.errors import ConfigError
from transduce.experiment import Config
from transduce.objectives.base import ObjectiveStep
from transduce.training.compiled import SHAPES, compiled_step, failed, hindrance, packs, pays, warm_up
from transduce.training.distributed import Group
from transduce.training.fitting import fit_tokens
from transduce.training.passes import EagerRunner, make_runner
from transduce.training.session import Session

Say = Callable[[str], None]
COMPILED = 0.75  # of the tokens that fit as the step is written: compiled, `base` takes 14.0 GB for 10.6 on an H200


@dataclass(frozen=True)
class Start:
    """How steps are made from here on, and on what; `config` has the tokens that were found."""

    config: Config
    batches: Batches
    passes: EagerRunner


def resolve_batching(
    config: Config, session: Session, passes: EagerRunner, corpus: Corpus, group: Group, say: Say
) -> Start:
    """For a run where it stands: what an earlier life of it has settled stays. `passes` are not compiled."""
    place, data, module = session.place, config.data, passes.module
    split, tokenizers = corpus.split(data.train), corpus.tokenizers
    plain = EagerRunner(module, session.device, config.training.narrow(session.device.type))

    def batches_of(tokens: int, shapes: int, compiling: bool = True) -> Batches:
        # Rooms of one size are for whole batches; a CPU that runs steps as they are written takes any.
        roomy = group.size == 1 if shapes > 0 else session.device.type == "cpu" and not compiling
        packed = roomy and packs(config)
        return Batches(split, tokenizers, tokens, data.bucket, config.seed, data.sampling, shapes, packed)

    if place.step == 0:
        place.shapes = data.shapes
        place.tokens = data.tokens or _fitted(config, session, plain, lambda n: batches_of(n, data.shapes), group, say)
    tokens = place.tokens or data.tokens
    why_not = hindrance(config, session.device, group.size)
    if why_not and (config.training.compile is True or (config.training.compile and session.device.type == "cuda")):
        say(f"training.compile: not compiled: {why_not}")
    compiling = not why_not
    if compiling:
        _, _, batch = next(batches_of(tokens, place.shapes).stream(place.epoch, place.position))
        compiling = pays(config, session, plain, batch, say)
    if compiling and place.step == 0:
        if packs(config) and not data.sampling:
            place.shapes = place.shapes or SHAPES
        if not data.tokens:
            tokens = place.tokens = int(COMPILED * tokens)
            say(f"data.tokens: {tokens:,} of them, for compiled code takes more memory than the step that was tried")
    batches = batches_of(tokens, place.shapes, compiling)
    compiled = _compiled(config, session, module, batches, group, say) if compiling else None
    return Start(replace(config, data=replace(data, tokens=tokens)), batches, compiled or passes)


def introduction(config: Config, session: Session, batches: Batches, group: Group, validates: bool) -> str:
    """What a new run is: its size, its batches, and where it runs."""
    count = sum(parameter.numel() for parameter in session.model.parameters())
    plan = batches.plan(0)
    return (
        f"{count:,} parameters, {len(batches.split):,} pairs, {len(plan):,} batches an epoch"
        f" in {len(set(map(tuple, plan.shapes.tolist())))} shapes, on {session.device}"
        + (f", {group.size} processes ({config.training.parallel})" if group.size > 1 else "")
        + ("" if validates else f"; not validated, for the corpus has no split '{config.data.valid}'")
    )


def _compiled(
    config: Config, session: Session, module: ObjectiveStep, batches: Batches, group: Group, say: Say
) -> EagerRunner | None:
    """Passes compiled for all shapes; nothing where the compiler fails, or what it made takes too much memory."""
    passes, asked = (
        make_runner(compiled_step(module), session.model, config, group, say),
        config.training.compile is True,
    )
    try:
        if batches.shapes:
            warm_up(session, passes, batches, say)
    except torch.OutOfMemoryError:
        if asked:
            raise
        say("training.compile: compiled, batches do not fit in the GPU's memory; going on as it is written")
        return None
    except RuntimeError as error:
        failed(error, asked, say)
        return None
    return passes


def _fitted(
    config: Config, session: Session, passes: EagerRunner, batches_of: Callable[[int], Batches], group: Group, say: Say
) -> int:
    if session.device.type != "cuda" or group.size > 1:
        where = "a CPU" if session.device.type != "cuda" else f"{group.size} processes"
        raise ConfigError(
            "data.tokens: 0, as many as the GPU holds, is found by one process on a GPU, and this runs on"
            f" {where}; give a number, such as data.tokens=4096"
        )
    tokens = fit_tokens(session, passes, batches_of)
    if tokens == 0:
        raise ConfigError("data.tokens: not even one pair fits in the GPU's memory; choose a smaller model")
    say(f"data.tokens: {tokens:,}, as many as fit; the run keeps that number")
    return tokens
