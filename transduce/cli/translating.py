"""Commands that use a trained model: translate, transcribe, score, align, evaluate."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain, tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from transduce.cli.arguments import (
    AlignmentsFile,
    BeamSize,
    Ensemble,
    ErrorRates,
    Excluded,
    Glossaries,
    Included,
    InputFiles,
    JsonLines,
    Language,
    ModelAndTexts,
    ModelFolder,
    MosesBLEU,
    Opening,
    Output,
    Patterns,
    Pieces,
    Protect,
    ReferenceText,
    SearchOfCall,
    SourceLanguage,
    SourceText,
    TargetText,
    opens_models,
)
from transduce.core.errors import DataError, UserError, needed_by
from transduce.core.progress import say

if TYPE_CHECKING:
    from transduce.cli.arguments import PickedDirection
    from transduce.data.readers import FileReader
    from transduce.engines import Translation
    from transduce.evaluation.report import Evaluation
    from transduce.metrics.corpus import NamedTarget
    from transduce.translate.directions import TextRun
    from transduce.translate.options import TranslateOptions
    from transduce.translate.translator import Translator

FILES_AT_ONCE = 100  # recordings or pictures that are transcribed at once


@opens_models
def translate(
    words: ModelAndTexts = None,
    input: InputFiles = None,
    output: Output = None,
    to: Language = "",
    source: SourceLanguage = "",
    beam: BeamSize = 0,
    n_best: Annotated[int, typer.Option(help="Translations a text: line number, score, text, tab-separated.")] = 1,
    prefix: Annotated[str, typer.Option(help="How every translation must begin.")] = "",
    include: Included = None,
    exclude: Excluded = None,
    glossary: Glossaries = None,
    search: SearchOfCall = None,
    protect: Protect = "on",
    patterns: Patterns = None,
    json_lines: JsonLines = False,
    alignments: AlignmentsFile = None,
    pieces: Pieces = False,
    min_confidence: Annotated[
        float, typer.Option(help="From 0 to 1: what to do with translations of less confidence is said by --fallback.")
    ] = 0.0,
    fallback: Annotated[
        Literal["mark", "source", "empty"],
        typer.Option(help='In place of them: the translation after "[unsure]", the source, or an empty line.'),
    ] = "mark",
    ensemble: Ensemble = None,
    *,
    opening: Opening,
) -> None:
    """Translate texts, standard input or a file: one line out for each line in, in order.

    Examples:

        transduce translate --to zh "Cats like to sleep."

        transduce translate runs/demo "Guten Morgen" "Wie geht es dir?"

        transduce translate runs/demo --beam 8 < input.txt > output.txt

        transduce translate --to de --glossary terms.tsv --glossary en-de=more.tmx < manual.txt

        transduce translate runs/a --ensemble runs/b --ensemble runs/c -i input.txt --alignments links.txt

        transduce translate --to de -i input.txt --min-confidence 0.5 --fallback source
    """
    from transduce.cli.arguments import pick_direction, split_model
    from transduce.cli.output import (
        chosen_search,
        read_files,
        sure_enough,
        translations_of,
        with_progress,
        with_warnings_named,
        write_translations,
        written,
    )
    from transduce.translate.glossaries import glossaries_of
    from transduce.translate.options import TranslateOptions

    unit = _unit_of(alignments, pieces)
    files = input or []
    args = split_model(words or [], files)
    texts, folders = args.texts, [args.folder, *(ensemble or [])]
    translator = opening.load(folders)
    _check_confidence(translator, args.name, min_confidence)
    direction = pick_direction(translator, args, source, to)
    window = translator.window if texts or files or not sys.stdin.isatty() else 1  # what is typed is answered at once
    options = TranslateOptions(
        beam=beam,
        n_best=n_best,
        search=None if search is None else chosen_search(translator, search),
        to=direction.tags if texts else direction.tags[0],
        prefixes=prefix,
        include=include or (),
        exclude=exclude or (),
        align=unit,
        glossary=glossaries_of(glossary),
        protect=protect == "on",
        patterns=patterns or (),
        source=direction.source,
    )
    lines, again = tee(texts or read_files(files))
    stream = _translations(translator, lines, options, window, direction)
    if min_confidence:
        stream = sure_enough(stream, again, min_confidence, fallback)
    stream = with_warnings_named(stream)
    with written(output, files) as file, nullcontext() if alignments is None else written(alignments, files) as links:
        shown = with_progress(stream, "Translating", len(texts) or None, output is None, window)
        write_translations(shown, file, links, json_lines, n_best if search is None else translations_of(search))


def _check_confidence(translator: Translator, name: str, least: float) -> None:
    """Raise UserError for --min-confidence that is no probability, or of a model without confidence."""
    if not 0 <= least <= 1:
        raise UserError(f"--min-confidence {least:g}: expected a number from 0 to 1")
    if least and translator.confidence is None:
        raise UserError(
            f"--min-confidence: {name} does not say how sure it is; fit its confidence on held-out text with"
            " `transduce confidence`, or leave this out"
        )


REPORTED = 3  # lines that are left as they are and named; of more the number is told


def _translations(
    translator: Translator, texts: Iterable[str], options: TranslateOptions, window: int, direction: PickedDirection
) -> Iterator[Translation]:
    """Translate lazily all but what is to stay as it is, which is named on standard error.

    With options for a text as a whole it stays or is translated as a whole.
    """
    if direction.left_of is None:
        return translator.run(texts, options, window)
    whole = options.n_best > 1 or options.align is not None or bool(options.prefixes or options.include)
    sifted = _Sifted(direction.left_of, whole, options.align is not None)
    units: Iterable[str] = sifted.translated(texts)
    if not isinstance(options.to, str):  # a tag for each text: now one for each of its parts
        units = list(units)
        counts = [sum(not run.left for run in runs) for runs in sifted.waiting]
        tags = [tag for tag, count in zip(options.to, counts, strict=True) for _ in range(count)]
        options = dataclasses.replace(options, to=tags)
    return sifted.joined(translator.run(units, options, window))


@dataclass
class _Sifted:
    """Texts without the sentences that are to stay as they are, which are put back among the translations."""

    left_of: Callable[[str], Sequence[TextRun]]
    whole: bool
    aligned: bool
    left: int = 0
    waiting: deque[Sequence[TextRun]] = field(default_factory=deque)  # the runs of texts that are not yet joined

    def translated(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield what is to be translated, a text without anything to leave as it was."""
        for number, text in enumerate(texts, 1):
            runs = self.left_of(text)
            if self.whole and not all(run.left for run in runs):
                runs = [dataclasses.replace(runs[0], left="")]
            for run in runs:
                self._report(number, run)
            self.waiting.append(runs)
            yield from [text] if len(runs) == 1 and not runs[0].left else [r.piece.text for r in runs if not r.left]
        if self.left > REPORTED:
            say(f"{self.left:,} parts of lines were left as they are")

    def _report(self, number: int, run: TextRun) -> None:
        if run.left:
            self.left += 1
            if self.left <= REPORTED:
                say(f"line {number} is left as it is: {run.left}; if it is something else, say so with --from")

    def joined(self, found: Iterator[Translation]) -> Iterator[Translation]:
        """Yield one translation for each text, as soon as all of its parts are there."""
        from transduce.engines import Translation
        from transduce.text.alignment import Alignment

        alignment = Alignment() if self.aligned else None
        parts: list[Translation] = []
        for translation in chain(found, [None]):
            if translation is not None:
                parts.append(translation)
            while self.waiting and len(parts) >= sum(not run.left for run in self.waiting[0]):
                runs = self.waiting.popleft()
                ready = [Translation(run.piece.text, alignment=alignment) if run.left else parts.pop(0) for run in runs]
                text = "".join(one.text + run.piece.space for one, run in zip(ready, runs, strict=True))
                yield ready[0] if len(ready) == 1 else Translation.joined(ready, text)


def _unit_of(alignments: Path | None, pieces: bool) -> Literal["words", "pieces"] | None:
    """The unit to align translations in, if any."""
    if pieces and alignments is None:
        raise UserError(
            "--pieces: says what the links of --alignments FILE are between, and no such file is named; name one, or"
            " leave --pieces out"
        )
    return None if alignments is None else "pieces" if pieces else "words"


@opens_models
def score(
    model: ModelFolder,
    source: SourceText,
    target: TargetText,
    to: Language = "",
    ensemble: Ensemble = None,
    *,
    opening: Opening,
) -> None:
    """Print the log-probability that the model gives each pair, and its mean per token, tab-separated.

    Examples:

        transduce score runs/demo test.de test.en
    """
    from transduce.cli.arguments import check_target
    from transduce.cli.output import WINDOW, read_pairs, with_progress, written

    translator = opening.load([model, *(ensemble or [])])
    check_target(translator, model, to)
    pairs = read_pairs(source, target)
    scored = (found for sources, targets in pairs.windows(WINDOW) for found in translator.score(sources, targets, to))
    with written(None) as file:
        for found in with_progress(scored, "Scoring", len(pairs.sources), printed=True):
            file.write(f"{found.log_prob:.4f}\t{found.per_token:.4f}\n")


@opens_models
def align(
    model: ModelFolder,
    source: SourceText,
    target: TargetText,
    to: Language = "",
    layer: Annotated[int | None, typer.Option(help="Decoder layer, from 0, or -1 for the last; default: mean.")] = None,
    pieces: Pieces = False,
    ensemble: Ensemble = None,
    *,
    opening: Opening,
) -> None:
    """Print which source word the model looks at for each word of a given translation: 0-0 1-2 ..., a line a pair.

    Examples:

        transduce align runs/demo test.de test.en > links.txt
    """
    from transduce.cli.arguments import check_target
    from transduce.cli.output import WINDOW, read_pairs, with_progress, written

    translator = opening.load([model, *(ensemble or [])])
    check_target(translator, model, to)
    pairs = read_pairs(source, target)
    unit: Literal["words", "pieces"] = "pieces" if pieces else "words"
    aligned = (
        found
        for sources, targets in pairs.windows(WINDOW)
        for found in translator.align(sources, targets, to, unit, layer)
    )
    with written(None) as file:
        for found in with_progress(aligned, "Aligning", len(pairs.sources), printed=True):
            file.write(f"{found.pharaoh()}\n")


@opens_models
def confidence(
    model: ModelFolder,
    source: Annotated[list[Path], typer.Option(help="Held-out source text, a sentence a line; repeatable.")],
    target: Annotated[list[Path], typer.Option(help="Its translation, line by line; one for each --source.")],
    to: Annotated[
        list[str] | None, typer.Option(help="Target language of a model with tags; one for each --source.")
    ] = None,
    sentences: Annotated[int, typer.Option(help="So many of each pair of files, evenly spread; 0: all.")] = 1000,
    beam: BeamSize = 0,
    *,
    opening: Opening,
) -> None:
    """Fit how sure a model is of its translations on text that it was not trained on, and store it with the model.

    Writes confidence.json into the model's folder, and prints how good it is. Give text like that which will be
    translated: confidence is the probability that a translation is not in the worst fifth of it.

    Examples:

        transduce confidence runs/demo --source test.de --target test.en

        transduce confidence runs/many --source a.en --target a.de --to de --source b.en --target b.fr --to fr
    """
    from transduce.cli.arguments import check_target
    from transduce.cli.output import read_pairs

    with needed_by("fitting confidence", extra="evaluate"):
        from transduce.workflows.pipeline.confidence import HeldOut, fit, observe, summary

    targets = to or [""] * len(source)
    if not len(source) == len(target) == len(targets):
        raise UserError(
            f"confidence: {len(source)} --source, {len(target)} --target and {len(to or [])} --to were given; give one"
            " of each for each pair of files"
        )
    pairs = [read_pairs(*files) for files in zip(source, target, strict=True)]
    translator = opening.load(model)
    for language in targets:
        check_target(translator, model, language)
    texts = [
        HeldOut.spread(language, language, pair.sources, pair.targets, sentences)
        for language, pair in zip(targets, pairs, strict=True)
    ]
    fitted = fit(observe(translator, texts, beam))
    fitted.write(model)
    print("\n".join(summary(fitted.figures)))


@opens_models
def evaluate(
    reference: ReferenceText,
    hypothesis: Annotated[
        Path, typer.Argument(metavar="HYPOTHESIS", help="Translations to score, or a model's folder to translate with.")
    ],
    source: Annotated[Path | None, typer.Option(help="Source text: for the table by length, and to translate.")] = None,
    other: Annotated[
        Path | None, typer.Option(help="Translations of a second system, or its model, to compare with.")
    ] = None,
    language: Annotated[str, typer.Option(help="Target language, for sacreBLEU's tokenizer; default: detected.")] = "",
    lowercase: Annotated[bool, typer.Option("--lowercase", "-lc", help="Ignore case.")] = False,
    moses: MosesBLEU = False,
    errors: ErrorRates = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File for a model's translations.")] = None,
    to: Language = "",
    beam: BeamSize = 0,
    protect: Protect = "off",
    json_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ensemble: Ensemble = None,
    *,
    opening: Opening,
) -> None:
    """Measure translations by BLEU, chrF and TER (sacreBLEU, with signatures), by length, and against another system.

    Examples:

        transduce evaluate test.de translated.de --source test.en --other baseline.de

        transduce evaluate test.de runs/demo --source test.en --moses --language de

        transduce evaluate test.tsv runs/digits
    """
    with needed_by("measuring translations", extra="evaluate"):
        from transduce.evaluation.report import evaluate as run
    from transduce.cli.output import read_lines, read_manifest, written
    from transduce.text.languages import check_language
    from transduce.translate.options import TranslateOptions

    check_language(language)  # before any translating
    manifest = read_manifest(reference) if reference.suffix == ".tsv" else None  # recordings or pictures
    references = manifest.targets if manifest else list(read_lines(reference))
    sources = list(read_lines(source)) if source else manifest.sources if manifest else None
    of_any = {"--beam": beam, "--protect": protect == "on"}
    _check_used(hypothesis, other, opening, {"--ensemble": ensemble, "--output": output}, of_any)
    options = TranslateOptions(beam=beam, to=to, protect=protect == "on")
    systems = _systems([hypothesis, *(ensemble or [])], other, opening, sources, options)
    if output is not None and systems[0].search:
        with written(output) as file:
            file.writelines(f"{line}\n" for line in systems[0].lines)
    result = run(
        None if manifest else sources,  # paths have no length that matters
        systems[0].lines,
        references,
        language,
        lowercase,
        moses,
        systems[1].lines if other else None,
        names=(str(hypothesis), str(other)),
        errors=errors or manifest is not None,
        tag=f"<2{to}>" if to else "",
        named=_named_targets([path for path in (hypothesis, other) if path and path.is_dir()]),
        searches={system.name: system.search for system in systems if system.search},
    )
    _show(result, json_lines)


def _show(result: Evaluation, json_lines: bool) -> None:
    if json_lines:
        print(json.dumps(result.as_dict()))
    else:
        from rich.console import Console  # slow to import, and the other commands here do without

        result.render(Console(soft_wrap=True))


def _check_used(
    hypothesis: Path,
    other: Path | None,
    opening: Opening,
    of_first: Mapping[str, object],
    of_any: Mapping[str, object],
) -> None:
    """Raise UserError for options of translating where translations are read from files."""
    changed = [f.name for f in dataclasses.fields(Opening) if getattr(opening, f.name) != f.default]
    of_any = {**of_any, **{f"--{name}": True for name in changed}}
    files = [path for path in (hypothesis, other) if path is not None and path.is_file()]
    unused = [name for name, given in of_first.items() if given and hypothesis in files]
    if len(files) == (1 if other is None else 2):
        unused += [name for name, given in of_any.items() if given]
    if unused:
        raise UserError(
            f"{unused[0]}: says how a model translates, and {hypothesis} holds translations already; leave it out, or"
            " give the folder of a model"
        )


@dataclass(frozen=True)
class _System:
    """Translations to measure, and the `search` that made them where a model did so just now."""

    name: str
    lines: list[str]
    search: str = ""


def _systems(
    folders: list[Path], other: Path | None, opening: Opening, sources: list[str] | None, options: TranslateOptions
) -> list[_System]:
    """The translations of a file, a model or an ensemble, and of the other system if there is one."""
    from transduce.cli.output import read_lines

    paths = [folders, [other]] if other else [folders]
    # Files are read first: a misspelt name costs no translating.
    read = [None if names[0].is_dir() else list(read_lines(names[0])) for names in paths]
    return [
        _translated(names, opening, sources, options) if lines is None else _System(str(names[0]), lines)
        for names, lines in zip(paths, read, strict=True)
    ]


def _translated(folders: list[Path], opening: Opening, sources: list[str] | None, options: TranslateOptions) -> _System:
    """Translate the sources with a model or an ensemble."""
    from transduce.cli.arguments import check_target
    from transduce.cli.output import with_progress
    from transduce.search.settings import search_label

    if sources is None:
        raise UserError(f"{folders[0]} is a model: give the text to translate with --source FILE")
    translator = opening.load(folders)
    check_target(translator, folders[0], str(options.to))
    stream = translator.run(sources, options)
    shown = with_progress(stream, "Translating", len(sources), printed=False, window=translator.window)
    lines = [translation.text for translation in shown]
    return _System(str(folders[0]), lines, search_label(translator.choose_search(options.beam)))


def _named_targets(models: list[Path]) -> list[NamedTarget]:
    """The target languages that the configs of models name."""
    from transduce.metrics.corpus import NamedTarget
    from transduce.translate.model_folder import read_validation_language

    return [NamedTarget(read_validation_language(model), f"validation.language of {model}") for model in models]


@opens_models
def transcribe(
    model: ModelFolder,
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE", help="Recordings or pictures.")] = None,
    input: Annotated[
        Path | None, typer.Option("--input", "-i", help="List of files: a path a line, or a .tsv manifest.")
    ] = None,
    output: Output = None,
    beam: BeamSize = 0,
    n_best: Annotated[int, typer.Option(help="Transcripts a file: file number, score, text, tab-separated.")] = 1,
    search: SearchOfCall = None,
    skip: Annotated[
        bool, typer.Option("--skip", help="Skip files that cannot be read: named on stderr, an empty line each.")
    ] = False,
    json_lines: JsonLines = False,
    ensemble: Ensemble = None,
    *,
    opening: Opening,
) -> None:
    """Transcribe recordings or pictures of text: one line out for each file in, in order.

    All files are opened before the first is transcribed. If some cannot be read each is named with its reason and
    nothing is written, or with --skip an empty line for each of them.

    Examples:

        transduce transcribe runs/digits one.wav two.flac

        transduce transcribe runs/digits --input test.tsv --beam 4 > transcripts.txt

        transduce transcribe runs/digits --input all.txt --skip > transcripts.txt
    """
    from transduce.cli.output import (
        chosen_search,
        read_list,
        translations_of,
        with_progress,
        write_translations,
        written,
    )
    from transduce.translate.options import TranslateOptions

    if bool(files) == (input is not None):
        raise UserError("transcribe: expected files, or a list of them with --input FILE, and not both")
    translator = opening.load([model, *(ensemble or [])])
    if translator.reading is None:
        raise UserError(f"{model}: reads text, not recordings or pictures; use `transduce translate`")
    chosen = None if search is None else chosen_search(translator, search)
    named = list(files or []) if input is None else read_list(input)
    paths = _readable(translator.reading.reader, named, skip)
    options = TranslateOptions(beam, n_best, chosen)
    stream = translator.run(paths, options, FILES_AT_ONCE)
    with written(output, [input] if input else []) as file:
        shown = with_progress(stream, "Reading", len(paths), output is None, FILES_AT_ONCE)
        write_translations(shown, file, None, json_lines, n_best if search is None else translations_of(search))


def _readable(reader: FileReader, paths: list[str], skip: bool) -> list[str]:
    """Check that each path can be read; one that cannot is an error, or with `skip` becomes ""."""
    faults = {path: fault for path in dict.fromkeys(paths) if path.strip() and (fault := reader.fault(path))}
    if not faults:
        return paths
    listed = "\n".join(f"{path}: cannot be read: {fault}" for path, fault in faults.items())
    count = f"{len(faults):,} of {len(set(paths)):,} files cannot be read"
    if not skip:
        raise DataError(
            f"{listed}\n{count}, and nothing was transcribed; {reader.expected}, or leave them out by --skip"
        )
    if len(faults) == len(set(paths)):
        raise DataError(f"{listed}\nnone of the files can be read; {reader.expected}")
    say(f"{listed}\n{count} and were skipped: an empty line each")
    return ["" if path in faults else path for path in paths]
