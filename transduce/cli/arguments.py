"""Arguments and options that commands share, and the parsing of words that name a model, texts or languages."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from transduce.core.errors import UserError
from transduce.core.progress import say
from transduce.translate.model_folder import shipped

if TYPE_CHECKING:
    from transduce.translate.directions import ChosenDirection, TextRun
    from transduce.translate.translator import Translator

ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a trained or converted model.")]
ModelAndTexts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL] [TEXT]...",
        help="Folder of a model, default the shipped one; texts, default standard input.",
    ),
]
InputFiles = Annotated[
    list[Path] | None, typer.Option("--input", "-i", help="File to translate, a line at a time; repeatable.")
]
Ensemble = Annotated[
    list[Path] | None, typer.Option("--ensemble", metavar="MODEL", help="A further model to average with; repeatable.")
]
Pieces = Annotated[bool, typer.Option("--pieces", help="Align subword pieces instead of words.")]
SourceText = Annotated[Path, typer.Argument(metavar="SOURCE", help="Source text, a sentence a line.")]
TargetText = Annotated[Path, typer.Argument(metavar="TARGET", help="Its translation, line by line.")]
Language = Annotated[str, typer.Option("--to", help="Target language of a model trained with tags such as <2de>.")]
SourceLanguage = Annotated[
    str,
    typer.Option("--from", help="Source language; default: detected. For models that say which languages they know."),
]
Words = Annotated[
    list[str] | None, typer.Argument(metavar="CONFIG|KEY=VALUE", help="A .toml file or preset, then overrides.")
]

ReferenceText = Annotated[
    Path,
    typer.Argument(
        metavar="REFERENCE", help="Reference translations, a sentence a line; or a .tsv of files and their texts."
    ),
]
MosesBLEU = Annotated[bool, typer.Option("--moses", help="Also BLEU as in older papers: lower-cased, Moses tokens.")]
ErrorRates = Annotated[
    bool, typer.Option("--errors", help="Also word, character and line error rates; always for a .tsv.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="File to write instead of standard output.")]
BeamSize = Annotated[int, typer.Option(help="Beam size; 0 = the model's own search.")]
SearchOfCall = Annotated[
    str | None, typer.Option("--search", help="A search in place of the model's own: kind=sample,top_p=0.9.")
]
Included = Annotated[list[str] | None, typer.Option(metavar="WORD", help="A word that must appear; repeatable.")]
Excluded = Annotated[list[str] | None, typer.Option(metavar="WORD", help="A word that must not appear; repeatable.")]
Glossaries = Annotated[
    list[str] | None,
    typer.Option(
        "--glossary",
        metavar="[LANGUAGES=]FILE",
        help="Terms and their translations: .tsv, .csv, .tbx or .tmx; repeatable, the first preferred.",
    ),
]
Protect = Annotated[
    Literal["on", "off"], typer.Option(help="Whether URLs, placeholders, code and the like are kept as they are.")
]
Patterns = Annotated[
    list[str] | None,
    typer.Option("--pattern", metavar="REGEX", help="Further text to keep as it is, such as 'ORD-\\d+'; repeatable."),
]
JsonLines = Annotated[
    bool,
    typer.Option("--json", help="One JSON object a text: text, score, tokens, alternatives, alignment, confidence."),
]
AlignmentsFile = Annotated[
    Path | None, typer.Option(help="File for word alignments, a line a text: 0-0 1-2, source first.")
]


def split_words(words: list[str] | None) -> tuple[str | None, list[str]]:
    """Split words into a config file or preset, if the first word is one, and overrides."""
    words = list(words or [])
    file = words.pop(0) if words and "=" not in words[0] else None
    return file, words


@dataclass(frozen=True)
class Opening:
    """The options of every command that opens models, passed to `transduce.load`."""

    engine: Annotated[str, typer.Option(help="auto, torch or native (for converted models).")] = "auto"
    precision: Annotated[str, typer.Option(help="With torch: fp32, or bf16 (weights of 16 bits, faster on a GPU).")] = (
        "fp32"
    )
    graphs: Annotated[
        str, typer.Option(help="Steps of torch on a GPU, recorded and replayed: auto, on, off or compiled.")
    ] = "auto"
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:0.")] = "auto"
    trust: Annotated[bool, typer.Option("--trust", help="Let the model's config import classes of your own.")] = False

    def load(self, folders: Path | Sequence[Path]) -> Translator:
        """Load the model in a folder, or an ensemble of those in several."""
        from transduce.translate.loading import load

        return load(folders, self.device, self.trust, engine=self.engine, precision=self.precision, graphs=self.graphs)


def opens_models(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of an `Opening` in place of its parameter `opening`."""
    types, options = get_type_hints(command, include_extras=True), get_type_hints(Opening, include_extras=True)
    declared = inspect.signature(command).parameters.values()
    parameters = [
        *(parameter.replace(annotation=types[parameter.name]) for parameter in declared if parameter.name != "opening"),
        *(
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=options[field.name]
            )
            for field in dataclasses.fields(Opening)
        ),
    ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        opening = Opening(**{name: given.pop(name) for name in options})
        command(**given, opening=opening)

    # What typer reads: the signature for the options, and the annotations for types that it finds in neither.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@dataclass(frozen=True)
class ParsedArgs:
    """A model's folder, whether it is the shipped one, and texts."""

    folder: Path
    ours: bool
    texts: list[str]

    @property
    def name(self) -> str:
        """The display name of the model."""
        return self.folder.name if self.ours else str(self.folder)


def split_model(words: Sequence[str], files: Sequence[Path] = ()) -> ParsedArgs:
    """Split words into a model and texts: the first word names the model if it can, else the shipped one is used."""
    named = bool(words) and _is_folder(words[0])
    texts = list(words[1:] if named else words)
    folder = Path(words[0]) if named else shipped(words[0] if words else "")
    if texts and files:
        raise UserError(f"texts and --input {files[0]} were given; give one of them")
    return ParsedArgs(folder, not named, texts)


def _is_folder(word: str) -> bool:
    """Whether a word means a folder: it exists, or looks like a path, maybe misspelt, and not like a sentence."""
    if os.path.exists(word):  # which, unlike Path's, takes a text of any length
        return True
    if os.sep not in word or "://" in word:
        return False
    return not any(map(str.isspace, word)) or os.path.exists(os.path.dirname(word))


def check_target(translator: Translator, folder: Path, target: str) -> None:
    """Raise UserError for --to where the model has no tag for that language, or none at all."""
    if not target or translator.reading is not None:
        return
    from transduce.text.languages import language_of_tag

    tokenizer = translator.tokenizers.source
    if not tokenizer.has_tag(target):
        known = [code for code in map(language_of_tag, tokenizer.pieces(range(tokenizer.size))) if code]
        if known:
            raise UserError(f"--to {target}: {folder} has no tag of this language; it translates to {', '.join(known)}")
        raise UserError(
            f"--to {target}: {folder} was trained without tags of target languages, such as <2{target}>, and has one"
            " direction; leave --to out"
        )


@dataclass(frozen=True)
class PickedDirection:
    """The tag of each text, or the one of a stream, and what of a text is to be left as it is.

    `source` is the language of all texts, if it is one and known. `left_of` splits a text into sentences to translate
    and others, which say why not.
    """

    tags: list[str]
    left_of: Callable[[str], Sequence[TextRun]] | None = None
    source: str = ""


def pick_direction(translator: Translator, args: ParsedArgs, source: str, target: str) -> PickedDirection:
    """Find the tag of each text, or of a stream; a named model's directions count if `source` is given or measured.

    A direction that was detected where no target was requested is printed on standard error, since it may be wrong.
    """
    from transduce.translate.directions import DirectionQuery, directions_of, scores_of

    tokenizer = translator.tokenizers.source
    if not args.ours and not source:
        check_target(translator, args.folder, target)
        tags = [target] * max(1, len(args.texts))
        if translator.reading is not None or not scores_of(args.folder):
            return PickedDirection(tags)
        pairs = directions_of(args.folder, tokenizer)
        ends = {end for _, end in pairs}
        end = target or (min(ends) if len(ends) == 1 else "")
        return PickedDirection(tags, functools.partial(DirectionQuery(pairs).parts, target=end))
    pairs = directions_of(args.folder, tokenizer)
    if not pairs:
        raise UserError(f"--from {source}: {args.folder} does not tell which languages it translates; leave it out")
    query = DirectionQuery(pairs, source, target)
    ways = [query.way(text) for text in args.texts] or [query.way()]
    if not target:
        _say_recognised(ways)
    tags = [way.target if tokenizer.has_tag(way.target) else "" for way in ways]
    left_of = None if source else functools.partial(query.parts, target=ways[0].target)
    sources = {way.source for way in ways}
    return PickedDirection(tags, left_of, min(sources) if len(sources) == 1 else "")


def _say_recognised(ways: Sequence[ChosenDirection]) -> None:
    """Print the directions that were detected."""
    from transduce.text.languages import name_of

    for way in ways:
        if way.recognised:
            names = [f"{name_of(code)} ({code})" for code in (way.source, way.target)]
            say(f"recognised as {names[0]}: to {names[1]}")
