"""The report of `transduce evaluate`: metrics with signatures, quality by source length, verdicts.

`evaluate` computes, `Evaluation.as_dict` is for machines, `Evaluation.render` for people. Quality by source length
shows where a system that is good on average begins to fail: sentences are grouped into ranges of length, and each range
is measured as a corpus of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from transduce.core.errors import DataError
from transduce.core.progress import Progress
from transduce.evaluation.significance import Verdict, compare
from transduce.metrics.corpus import (
    UNSPACED,
    NamedTarget,
    Quality,
    References,
    Target,
    base_language,
    bleu_metric,
    chrf_metric,
    error_rates,
    in_words,
    measure,
    published_bleu,
    reference_streams,
    target_languages,
    ter_metric,
)
from transduce.text.faults import is_copy, repeats, runs_away

WORD_STARTS = (0, 1, 10, 20, 30, 40, 50)  # 0: blank lines stand apart; 50: and everything longer
CHARACTER_STARTS = (0, 1, 20, 40, 60, 80, 100)  # a Chinese or Japanese word is about two characters


@dataclass(frozen=True)
class LengthRow:
    """Quality on the sentences of `shortest` to `longest` words (None: no upper end).

    `length_ratio` is hypothesis length over reference length, in BLEU's tokens: below 1 the system leaves things out.
    """

    shortest: int
    longest: int | None
    sentences: int
    bleu: float
    chrf: float
    length_ratio: float

    @property
    def range(self) -> str:
        """The range as text: '10-19', '50+' or '0'."""
        if self.longest is None:
            return f"{self.shortest}+"
        return f"{self.shortest}-{self.longest}" if self.longest > self.shortest else f"{self.shortest}"


def by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: References,
    language: str = "",
    lowercase: bool = False,
    characters: bool = False,
    targets: Sequence[Target] = (),
) -> list[LengthRow]:
    """Measure quality by range of source length, one row for each range that has sentences, shortest first.

    Length is in whitespace-separated words, or with `characters` in characters that are no whitespace. `targets` are
    the target languages where there are several: BLEU is then the mean over those that a range has.
    """
    streams = reference_streams(hypotheses, references)
    if len(sources) != len(hypotheses):
        raise DataError(
            f"There are {len(sources):,} source lines, but {len(hypotheses):,} hypotheses. "
            "Hypothesis n must translate source line n: check that both come from the same text."
        )
    lengths = [len("".join(text.split())) if characters else len(text.split()) for text in sources]
    starts = CHARACTER_STARTS if characters else WORD_STARTS
    lines = ["\n".join(texts) for texts in zip(*streams, strict=True)]
    targets = targets or target_languages(lines, (), NamedTarget(language, "the language that was given"))
    chrf = chrf_metric(lowercase)
    rows = []
    for shortest, following in zip(starts, (*starts[1:], None), strict=True):
        longest = None if following is None else following - 1
        chosen = [
            n for n, length in enumerate(lengths) if length >= shortest and (longest is None or length <= longest)
        ]
        if not chosen:
            continue
        by_chrf = chrf.corpus_score(*_only(chosen, hypotheses, streams))
        bleu, ratio = _bleu_and_ratio(set(chosen), hypotheses, streams, targets, lowercase)
        rows.append(LengthRow(shortest, longest, len(chosen), bleu, by_chrf.score, ratio))
    return rows


def _only(
    chosen: Sequence[int], hypotheses: Sequence[str], streams: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    return [hypotheses[n] for n in chosen], [[stream[n] for n in chosen] for stream in streams]


def _bleu_and_ratio(
    chosen: set[int],
    hypotheses: Sequence[str],
    streams: Sequence[Sequence[str]],
    targets: Sequence[Target],
    lowercase: bool,
) -> tuple[float, float]:
    """Mean BLEU over the languages of the chosen texts, and the length ratio of all hypotheses to references."""
    scores = [
        bleu_metric(lowercase, target.tokenizer).corpus_score(*_only(texts, hypotheses, streams))
        for target in targets
        if (texts := [n for n in target.texts if n in chosen])
    ]
    ratio = sum(score.sys_len for score in scores) / max(1, sum(score.ref_len for score in scores))
    return sum(score.score for score in scores) / len(scores), ratio


@dataclass(frozen=True)
class Evaluation:
    """One system's quality; `verdicts` is empty unless it was compared with another, `lengths` without sources.

    `target` is the target language, with BLEU's tokenizer and how the language was determined. `searches` are those
    that made the translations, by system, where that is known.
    """

    sentences: int
    qualities: tuple[Quality, ...]
    lengths: tuple[LengthRow, ...]
    length_unit: str
    verdicts: tuple[Verdict, ...]
    target: Target
    searches: dict[str, str]

    def as_dict(self) -> dict[str, object]:
        """Plain values only, for JSON."""
        target = {"language": self.target.language, "tokenizer": self.target.tokenizer, "why": self.target.why}
        return asdict(self) | {"target": target}

    def render(self, console: Console) -> None:
        """Print everything: ruled tables on a terminal, aligned columns elsewhere; signatures on one line, to copy."""
        console.print(f"{self.sentences:,} sentences", highlight=False)
        for system, search in self.searches.items():
            console.print(Text(f"translated by {system} with {search}"), soft_wrap=True)
        console.print()
        console.print(self._quality_table(console))
        console.print(in_words([self.target]), soft_wrap=True, highlight=False, markup=False)
        for quality in self.qualities:
            console.print(Text(f"{quality.name}: {quality.signature}", style="dim"), soft_wrap=True)
        if self.lengths:
            console.print()
            console.print(self._length_table(console))
        if self.verdicts:
            console.print()
        for verdict in self.verdicts:
            console.print(Text(verdict.text), soft_wrap=not console.is_terminal)

    def _quality_table(self, console: Console) -> Table:
        table = _table(console)
        table.add_column("metric", no_wrap=True)
        table.add_column("value", justify="right")
        table.add_column("better", style="dim")
        for quality in self.qualities:
            better = "lower" if quality.name.endswith("ER") else "higher"
            digits = 2 if quality.name in ("WER", "CER", "SER") else 1
            table.add_row(Text(quality.name), f"{quality.value:.{digits}f}", better)
        return table

    def _length_table(self, console: Console) -> Table:
        table = _table(console)
        for heading in (f"source {self.length_unit}", "sentences", "BLEU", "chrF", "length ratio"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in self.lengths:
            figures = (f"{row.sentences:,}", f"{row.bleu:.1f}", f"{row.chrf:.1f}", f"{row.length_ratio:.2f}")
            table.add_row(row.range, *figures)
        return table


def _table(console: Console) -> Table:
    ruled = console.is_terminal
    return Table(box=box.SIMPLE_HEAD if ruled else None, pad_edge=ruled, header_style="bold")


def evaluate(
    sources: Sequence[str] | None,
    hypotheses: Sequence[str],
    references: References,
    language: str = "",
    lowercase: bool = False,
    moses: bool = False,
    other: Sequence[str] | None = None,
    source_language: str = "",
    names: tuple[str, str] = ("this system", "the other"),
    errors: bool = False,
    tag: str = "",
    named: Sequence[NamedTarget] = (),
    searches: Mapping[str, str] | None = None,
) -> Evaluation:
    """Compute BLEU, chrF and TER of `hypotheses`; with `sources` also by length; with `other` compare two systems.

    `language` is the target's and picks the tokenizer. Where it is not given, it is determined as in validation: by
    `named`, then the `tag` of all texts, then the script of the references. `moses` adds BLEU as older papers measured
    it, `errors` the error rates of transcripts. `searches` names what made the translations of each system.
    """
    lines = ["\n".join(texts) for texts in zip(*reference_streams(hypotheses, references), strict=True)]
    given = NamedTarget(language, "the language that was given")
    (target,) = target_languages(lines, [tag] * len(lines), given, *named)
    language = target.language
    by_characters = base_language(source_language) in UNSPACED
    metrics = (bleu_metric(lowercase, target.tokenizer), chrf_metric(lowercase), ter_metric(language))
    lengths: list[LengthRow] = []
    verdicts: list[Verdict] = []
    with Progress("Measuring", total=len(metrics) + moses + (sources is not None), unit="metrics") as progress:
        qualities = []
        for metric in metrics:
            qualities.append(measure(metric, hypotheses, references))
            progress.advance()
        if errors:
            (references_once,) = reference_streams(hypotheses, references)
            qualities += error_rates(hypotheses, references_once)
        if moses:
            qualities.append(published_bleu(hypotheses, references, language))
            progress.advance()
        if sources is not None:
            lengths = by_length(sources, hypotheses, references, language, lowercase, by_characters)
            progress.advance()
    if other is not None:  # the other system first: it is the baseline
        verdicts = compare(other, hypotheses, references, (names[1], names[0]), language, lowercase)
    unit = "characters" if by_characters else "words"
    return Evaluation(
        len(hypotheses), tuple(qualities), tuple(lengths), unit, tuple(verdicts), target, dict(searches or {})
    )


WORDS = (
    "cat|house|water|why|tomorrow|blue|seventeen|run|beautiful|nothing|window|maybe|sorry|help|Wednesday"
    "|Katze|Haus|Wasser|warum|morgen|schön|Danke|maison|eau|pourquoi|demain|merci|gato|casa|agua|mañana"
    "|gracias|água|amanhã|obrigado|猫|房子|水|为什么|明天"
)
NUMBERS = (
    "7|42|1984|3.14159|1,000,000|-273.15|50%|100 km/h|12:45|2026-11-15|15.11.2026|$19.99|€5|£3.50|¥800|+49 30 1234567"
    "|1/2|2 + 2 = 4|10^6|0|IV|1st|3rd|20°C|A4|H2O"
)
NAMES = (
    "Maria|Tom|Anna-Lena Müller|José García|João da Silva|François Dupont|王小明|Dr. Smith|Mr. and Mrs. Brown|O'Neill"
    "|New York|Zürich|São Paulo|Beijing|Gdańsk|IBM|UNESCO|iPhone|Müller & Söhne GmbH|Hyperion Quill|Zorblax|McAllister"
)
CAPITALS = (
    "STOP|HELP ME|DO NOT ENTER|I LOVE YOU|WHERE ARE YOU|NO SMOKING|PLEASE READ THIS|THE CAT IS ON THE TABLE|SALE"
    "|WARNING: HOT SURFACE|EXIT ONLY|HAPPY BIRTHDAY|BITTE NICHT STÖREN|DÉFENSE DE FUMER|PROHIBIDO EL PASO"
    "|NÃO PERTURBE|thank you very much|how are you|i dont know|whats your name|WhErE iS iT|nO wAy|okay...|???|!!!"
)
SIGNS = (
    "😀|❤️|👍👍👍|I ❤️ you|Good morning ☀️|🎉 Happy birthday! 🎉|:-)|;-)|¯\\_(ツ)_/¯|😂😂😂 so funny|🐱 + 🥛 = ❤️"
    '|→|★★★★☆|© 2026|™|…|—|""|()|*'
)
ADDRESSES = (
    "https://example.org|www.example.com/path?query=1&page=2|ftp://files.example.net/a.zip|someone@example.com"
    "|See https://example.org for more.|Write to info@example.org.|C:\\Users\\me\\file.txt|/usr/local/bin|~/notes.md"
    "|print('hello')|if (x == 1) { return; }|<b>bold</b>|SELECT * FROM users;|@someone|#hashtag|v1.2.3|192.168.0.1"
    "|file_name_with_underscores.tar.gz|key=value|a@b@c"
)
OTHER_LANGUAGES = (
    "Доброе утро!|Где вокзал?|おはようございます。|猫が好きです。|안녕하세요?|صباح الخير|שלום|Καλημέρα|Buongiorno!"
    "|Dov'è la stazione?|Goedemorgen!"
    "|God morgon!|Dzień dobry!|Dobré ráno!|Jó reggelt!|Günaydın!|Chào buổi sáng!|नमस्ते"
    "|สวัสดี|Selamat pagi!|Habari za asubuhi?"
    "|Bună dimineața!|Huomenta!|Góðan daginn!|Maidin mhaith!|Salve, amice!|Saluton, mondo!"
    "|早晨，你好嗎？|貓喜歡睡覺。|Guete Morge mitenand!"
)
MIXED = (
    "asdfghjkl|aaaaaaaaaa|ha ha ha|x|ß|the the the|I I want want this this"
    "|Ich bin very happy today.|C'est la vie, my friend.|No problem, amigo!|我要一杯 coffee。"
    '|Lorem ipsum dolor sit amet|NULL|Yes No Yes No|12 cats, 3 dogs & 1 bird|( see page 4 )|"Hi," he said.'
)

KINDS: dict[str, tuple[str, ...]] = {
    "word": tuple(WORDS.split("|")),
    "number": tuple(NUMBERS.split("|")),
    "name": tuple(NAMES.split("|")),
    "capitals": tuple(CAPITALS.split("|")),
    "signs": tuple(SIGNS.split("|")),
    "address": tuple(ADDRESSES.split("|")),
    "other language": tuple(OTHER_LANGUAGES.split("|")),
    "mixed": tuple(MIXED.split("|")),
}
STAY = ("number", "name", "signs", "address", "mixed")  # a copy of these is no fault


@dataclass(frozen=True)
class Health:
    """Counts of faulty translations among `lines`."""

    lines: int = 0
    empty: int = 0
    copied: int = 0
    repeated: int = 0
    long: int = 0
    cut: int = 0

    def __add__(self, other: Health) -> Health:
        left, right = asdict(self), asdict(other)
        return Health(**{key: left[key] + right[key] for key in left})


def examine(
    sources: Sequence[str], translations: Sequence[str], finished: Sequence[bool], references: Sequence[str] = ()
) -> Health:
    """Count the faults of all lines; what the source (or the reference) does too is no fault."""
    found = Health()
    for number, (source, translation, complete) in enumerate(zip(sources, translations, finished, strict=True)):
        reference = references[number] if references else ""
        empty = not translation.strip() and bool(source.strip())
        copied = is_copy(source, translation) and not is_copy(source, reference)
        found += Health(
            lines=1,
            empty=int(empty),
            copied=int(copied),
            repeated=int(repeats(translation) and not repeats(source) and not repeats(reference)),
            long=int(runs_away(source, translation)),
            cut=int(not complete),
        )
    return found
