"""The command line: each command a few lines over a function of the package.

Everything about a run is a key of its config (`key=value`); flags are few, and a test holds their list.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from transduce import config as configs
from transduce.arguments import (
    AlignmentsFile,
    BeamSize,
    Device,
    Ensemble,
    Excluded,
    Included,
    JsonLines,
    Language,
    ModelFolder,
    Output,
    Pieces,
    SourceText,
    TargetText,
    Trust,
    Words,
)
from transduce.comparison.command import compare
from transduce.errors import DataError, UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Learn to turn one sequence into another: prepare text, train a Transformer, translate, score.",
)
config_app = typer.Typer(no_args_is_help=True, help="Look at configurations.")
app.add_typer(config_app, name="config")


def _split_words(words: list[str] | None) -> tuple[str | None, list[str]]:
    """A config file or preset, if the first word is one, and the overrides."""
    words = list(words or [])
    file = words.pop(0) if words and "=" not in words[0] else None
    return file, words


@app.command()
def prepare(words: Words = None) -> None:
    """Read parallel text, examine it, train a tokenizer, and write a corpus that training maps into memory.

    Examples:

        transduce prepare output=data/mine train.source=a.en train.target=a.de valid.source=b.en valid.target=b.de

        transduce prepare configs/multi30k-en-de.prepare.toml tokenizer.vocabulary=10000
    """
    from transduce.data.prepare import Prepare
    from transduce.data.prepare import prepare as run

    corpus = run(configs.load(Prepare, *_split_words(words)))
    print((corpus.folder / "report.txt").read_text(encoding="utf-8"), end="")
    for name in corpus.splits:
        print(f"{corpus.folder}: {name} {len(corpus.split(name)):,} pairs")


@app.command()
def doctor(words: Words = None) -> None:
    """Examine parallel text without writing anything: what is broken, odd, repeated, or shared by train and test.

    Examples:

        transduce doctor train.source=train.en train.target=train.de test.source=test.en test.target=test.de
    """
    from transduce.data.prepare import Prepare, examine

    file, overrides = _split_words(words)
    report = examine(configs.load(Prepare, file, ["output=unused", *overrides]))
    Console(soft_wrap=True).print(report.render())
    if report.refused:
        raise DataError("this text would be refused:\n" + "\n".join(report.refused))


@app.command()
def train(
    words: Words = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Run folder; a run that is there goes on.")] = Path(
        "runs/model"
    ),
) -> None:
    """Train a model on a prepared corpus, or go on with a run that was stopped.

    Ctrl-C or SIGTERM saves and leaves (exit code 130 or 143); the same command goes on from there, to the same result.

    Examples:

        transduce train tiny data.folder=data/mine --output runs/mine

        transduce train configs/multi30k-en-de.toml training.steps=5000 -o runs/multi30k
    """
    from transduce.experiment import Config
    from transduce.training.loop import train as run

    outcome = run(configs.load(Config, *_split_words(words)), output)
    if outcome.reason in signal.Signals.__members__:
        raise typer.Exit(128 + signal.Signals[outcome.reason])


@app.command()
def translate(
    model: ModelFolder,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts; standard input if none.")] = None,
    input: Annotated[Path | None, typer.Option("--input", "-i", help="File to translate, a line at a time.")] = None,
    output: Output = None,
    to: Language = "",
    beam: BeamSize = 0,
    n_best: Annotated[int, typer.Option(help="Translations a text: line number, score, text, tab-separated.")] = 1,
    prefix: Annotated[str, typer.Option(help="How every translation must begin.")] = "",
    include: Included = None,
    exclude: Excluded = None,
    search: Annotated[str, typer.Option(help="A search in place of the model's own: kind=sample,top_p=0.9.")] = "",
    json_lines: JsonLines = False,
    alignments: AlignmentsFile = None,
    pieces: Pieces = False,
    ensemble: Ensemble = None,
    device: Device = "auto",
    trust: Trust = False,
) -> None:
    """Translate texts, standard input or a file: one line out for each line in, in order.

    Examples:

        transduce translate runs/demo "Guten Morgen" "Wie geht es dir?"

        transduce translate runs/demo --beam 8 < input.txt > output.txt

        transduce translate runs/a --ensemble runs/b --ensemble runs/c -i input.txt --alignments links.txt
    """
    from transduce.loading import load
    from transduce.output import as_json, as_lines, chosen_search, read_lines, with_progress, written

    if texts and input is not None:
        raise UserError(f"texts and --input {input} were given; give one of them")
    translator = load([model, *(ensemble or [])], device, trust)
    typed = not texts and input is None and sys.stdin.isatty()  # then each line is answered at once
    stream = translator.stream(
        list(texts) if texts else read_lines(input),
        beam=beam,
        n_best=n_best,
        search=chosen_search(translator, search) if search else None,
        to=to,
        prefixes=prefix,
        include=include or (),
        exclude=exclude or (),
        align=None if alignments is None else "pieces" if pieces else "words",
        window=1 if typed else 1000,
    )
    with written(output, input) as file, nullcontext() if alignments is None else written(alignments, input) as links:
        shown = with_progress(stream, "Translating", len(texts) if texts else None, printed=output is None)
        for number, translation in enumerate(shown, start=1):
            file.write(as_json(translation) if json_lines else as_lines(translation, number, n_best))
            if links is not None and translation.alignment is not None:
                links.write(f"{translation.alignment.pharaoh()}\n")


@app.command()
def score(
    model: ModelFolder,
    source: SourceText,
    target: TargetText,
    to: Language = "",
    ensemble: Ensemble = None,
    device: Device = "auto",
    trust: Trust = False,
) -> None:
    """Print the log-probability that the model gives each pair, and its mean per token, tab-separated.

    Examples:

        transduce score runs/demo test.de test.en
    """
    from transduce.loading import load
    from transduce.output import read_pairs, with_progress, written

    translator = load([model, *(ensemble or [])], device, trust)
    pairs = read_pairs(source, target)
    scored = (one for sources, targets in pairs.windows(1000) for one in translator.score(sources, targets, to))
    with written(None) as file:
        for one in with_progress(scored, "Scoring", len(pairs.sources), printed=True):
            file.write(f"{one.log_prob:.4f}\t{one.per_token:.4f}\n")


@app.command()
def align(
    model: ModelFolder,
    source: SourceText,
    target: TargetText,
    to: Language = "",
    layer: Annotated[int | None, typer.Option(help="Decoder layer, from 0, or -1 for the last; default: mean.")] = None,
    pieces: Pieces = False,
    ensemble: Ensemble = None,
    device: Device = "auto",
    trust: Trust = False,
) -> None:
    """Print which source word the model looks at for each word of a given translation: 0-0 1-2 ..., a line a pair.

    Examples:

        transduce align runs/demo test.de test.en > links.txt
    """
    from transduce.loading import load
    from transduce.output import read_pairs, with_progress, written

    translator = load([model, *(ensemble or [])], device, trust)
    pairs = read_pairs(source, target)
    unit: Literal["words", "pieces"] = "pieces" if pieces else "words"
    found = (
        one for sources, targets in pairs.windows(1000) for one in translator.align(sources, targets, to, unit, layer)
    )
    with written(None) as file:
        for one in with_progress(found, "Aligning", len(pairs.sources), printed=True):
            file.write(f"{one.pharaoh()}\n")


@app.command()
def evaluate(
    reference: Annotated[Path, typer.Argument(help="Reference translations, a sentence a line.")],
    hypothesis: Annotated[Path, typer.Argument(help="Translations to score, or a run folder to translate with.")],
    source: Annotated[Path | None, typer.Option(help="Source text: for the table by length, and to translate.")] = None,
    other: Annotated[Path | None, typer.Option(help="Translations of a second system, to compare with.")] = None,
    language: Annotated[str, typer.Option(help="Target language: picks sacreBLEU's tokenizer, as for zh.")] = "",
    lowercase: Annotated[bool, typer.Option("--lowercase", "-lc", help="Ignore case.")] = False,
    moses: Annotated[
        bool, typer.Option("--moses", help="Also BLEU as in older papers: lower-cased, Moses tokens.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to keep the translations a model makes.")
    ] = None,
    to: Language = "",
    beam: BeamSize = 0,
    json_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ensemble: Ensemble = None,
    device: Device = "auto",
    trust: Trust = False,
) -> None:
    """Measure translations by BLEU, chrF and TER (sacreBLEU, with signatures), by length, and against another system.

    Examples:

        transduce evaluate test.de translated.de --source test.en --other baseline.de

        transduce evaluate test.de runs/demo --source test.en --moses --language de
    """
    from transduce.evaluation.report import evaluate as run
    from transduce.output import read_lines, with_progress, written

    sources = list(read_lines(source)) if source else None
    if hypothesis.is_dir():
        from transduce.loading import load

        if sources is None:
            raise UserError(f"{hypothesis} is a model: give the text to translate with --source FILE")
        stream = load([hypothesis, *(ensemble or [])], device, trust).stream(sources, beam=beam, to=to)
        shown = with_progress(stream, "Translating", len(sources), printed=False)
        hypotheses = [translation.text for translation in shown]
        if output is not None:
            with written(output) as file:
                file.writelines(f"{line}\n" for line in hypotheses)
    else:
        hypotheses = list(read_lines(hypothesis))
    others = list(read_lines(other)) if other else None
    names = (str(hypothesis), str(other))
    result = run(sources, hypotheses, list(read_lines(reference)), language, lowercase, moses, others, names=names)
    if json_lines:
        print(json.dumps(result.as_dict()))
    else:
        result.render(Console(soft_wrap=True))


@app.command()
def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    last: Annotated[int, typer.Option(help="Average the last so many checkpoints.")] = 0,
    best: Annotated[int, typer.Option(help="Average the best so many by validation.")] = 0,
) -> None:
    """Average checkpoints of a run and make the result the model that the folder offers.

    Examples:

        transduce average runs/demo --last 5
    """
    from transduce.training.average import average_run

    print(average_run(run, last, best))


@app.command()
def distill(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of the model that translates.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Corpus folder to write; work that is there goes on.")],
    corpus: Annotated[
        Path | None, typer.Option(help="Prepared corpus; the one the model was trained on if none.")
    ] = None,
    beam: Annotated[int, typer.Option(help="Beam size; 0 = the model's own search.")] = 5,
    best_of: Annotated[
        int, typer.Option(help="Of so many translations take the one nearest to the target by chrF.")
    ] = 1,
    keep_original: Annotated[bool, typer.Option("--keep-original", help="Add the original pairs.")] = False,
    workers: Annotated[int, typer.Option(help="Processes on CPUs; 0 = one on each core.")] = 0,
    device: Device = "auto",
    trust: Trust = False,
) -> None:
    """Write a corpus whose training targets are a model's translations (sequence-level distillation).

    Ctrl-C or SIGTERM keeps what is translated (exit code 130 or 143); the same command goes on, to the same result.

    Examples:

        transduce distill runs/teacher --output data/distilled
    """
    from transduce.distillation import distill as make

    options = {"beam": beam, "best_of": best_of, "workers": workers}
    made = make(run, output, corpus or "", keep_original=keep_original, device=device, trust=trust, **options)
    if made.reason in signal.Signals.__members__:
        raise typer.Exit(128 + signal.Signals[made.reason])
    print(f"{made.folder}: {made.pairs:,} training pairs distilled, {made.kept:,} of them with their original target")


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="PNG file to write.")] = Path("plot.png"),
) -> None:
    """Draw loss, learning rate and BLEU of one or several runs to a PNG.

    Examples:

        transduce plot runs/first runs/second -o compared.png
    """
    from transduce.plot import plot as draw

    draw(runs, output)
    print(output)


app.command()(compare)


@config_app.command("show")
def config_show(words: Words = None) -> None:
    """Print the whole config that a file or preset and overrides give, with the place each value came from.

    Examples:

        transduce config show base model.decoder.layers=2
    """
    from transduce.experiment import Config

    layers = configs.layers(Config, *_split_words(words))
    print(configs.dump(configs.resolve(Config, layers), layers.origins), end="")


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for corpus and model.")] = Path("runs/demo"),
) -> None:
    """Train a small model on number words (generated here), translate with it, and score it: about two minutes.

    Examples:

        transduce demo
    """
    from transduce.demo import demo as run

    run(output)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from transduce import __version__

        print(__version__)
        raise typer.Exit
