"""Commands that make and examine corpora."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from transduce.cli.arguments import Ensemble, Opening, Words, opens_models, split_words
from transduce.core import config as configs
from transduce.core.errors import ConfigError, DataError


def prepare(
    words: Words = None,
    shard: Annotated[
        str, typer.Option(metavar="I/N", help="Do only share I of N (from 1), beside processes that do the others.")
    ] = "",
    wait: Annotated[bool, typer.Option("--wait", help="With --shard: wait for the others, which run now.")] = False,
    merge: Annotated[int, typer.Option(metavar="N", help="Join N shards to the corpus.")] = 0,
) -> None:
    """Read parallel text, examine it, train a tokenizer, and write a corpus that training maps into memory.

    If it is killed, the same command resumes. Shards do the same work on several machines (docs/data.md).

    Examples:

        transduce prepare output=data/mine train.source=a.en train.target=a.de valid.source=b.en valid.target=b.de

        transduce prepare configs/multi30k-en-de.prepare.toml tokenizer.vocabulary=10000

        transduce prepare mine.toml --shard 2/8 --wait
    """
    from transduce.data.formats.inventory import Shard
    from transduce.data.prepare.run import Prepare, merge_shards, prepare_shard
    from transduce.data.prepare.run import prepare as run

    if bool(shard) and bool(merge):
        raise ConfigError(f"--shard {shard} and --merge {merge}: expected one of them; merge when all shards are done")
    config = configs.load(Prepare, *split_words(words))
    if shard:
        print(prepare_shard(config, Shard.parse(shard), wait))
        return
    corpus = merge_shards(config, merge) if merge else run(config)
    print((corpus.folder / "report.txt").read_text(encoding="utf-8"), end="")
    for name in corpus.splits:
        print(f"{corpus.folder}: {name} {len(corpus.split(name)):,} pairs")


def doctor(words: Words = None) -> None:
    """Examine parallel text without writing anything: what is broken, odd, repeated, or shared by train and test.

    Examples:

        transduce doctor train.source=train.en train.target=train.de test.source=test.en test.target=test.de
    """
    from transduce.data.prepare.run import Prepare, check_not_empty, examine

    file, overrides = split_words(words)
    report = examine(configs.load(Prepare, file, overrides, defaults=[["output=unused"]]))
    Console(soft_wrap=True).print(report.render())
    if report.refused:
        raise DataError("this text would be rejected:\n" + "\n".join(report.refused))
    check_not_empty(report)


@opens_models
def distill(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of the model that translates.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Corpus folder to write; unfinished work resumes.")],
    corpus: Annotated[
        Path | None, typer.Option(help="Prepared corpus; default: the one the model was trained on.")
    ] = None,
    ensemble: Ensemble = None,
    beam: Annotated[
        int | None, typer.Option(help="Beam size; 0 = the model's own search. Default: 5 where that is a beam, else 0.")
    ] = None,
    best_of: Annotated[
        int, typer.Option(help="Of this many translations take the one nearest to the target by chrF.")
    ] = 1,
    keep_original: Annotated[bool, typer.Option("--keep-original", help="Add the original pairs.")] = False,
    workers: Annotated[int, typer.Option(help="Processes; 0 = one on each core, one with a GPU.")] = 0,
    *,
    opening: Opening,
) -> None:
    """Write a corpus whose training targets are a model's translations (sequence-level distillation).

    Ctrl-C or SIGTERM keeps what is translated (exit code 130 or 143); the same command resumes, with the same result.

    Examples:

        transduce distill runs/teacher --output data/distilled

        transduce distill runs/a --ensemble runs/b --ensemble runs/c --keep-original --output data/distilled
    """
    from transduce.workflows.distill import distill as make

    if opening.engine not in ("auto", "torch"):
        raise ConfigError(
            f"engine: expected auto or torch, got {opening.engine!r}; a corpus is distilled with the weights that were"
            " trained, which torch runs"
        )
    made = make(
        run,
        output,
        corpus or "",
        ensemble=ensemble or [],
        beam=beam,
        best_of=best_of,
        keep_original=keep_original,
        device=opening.device,
        workers=workers,
        trust=opening.trust,
        precision=opening.precision,
        graphs=opening.graphs,
    )
    if made.reason in signal.Signals.__members__:
        raise typer.Exit(128 + signal.Signals[made.reason])
    print(f"{made.folder}: {made.pairs:,} training pairs distilled, {made.kept:,} of them with their original target")
