"""Measures of whole corpora: BLEU, chrF, TER, error rates, accuracy, alignment error rate.

- BLEU, chrF and TER are computed and signed by sacreBLEU. Hypotheses are plain, detokenised text; sacreBLEU does its
  own tokenising, so that numbers compare across papers (Post, 2018, "A Call for Clarity in Reporting BLEU Scores").
  `published_bleu` is the one exception: older results were measured on lower-cased, Moses-tokenised text.
- `bleu_by_language`: of several target languages the figure is the mean of their corpus BLEUs, as in the tables of
  `pipeline`. One BLEU over all would need one tokenizer for all, and 13a takes a Chinese sentence for a single word.
  `target_languages` is the one decision that validation, `evaluate` and `compare` share.
- Error rates of transcripts are computed by jiwer: edits for each hundred words or characters of the reference. Nothing
  is normalised: case and punctuation count, words are what stands between spaces.
- `alignment_error_rate`: how far word links are from links that people drew.
- `MEASURES`: what validation can be judged by, and whether lower values are better.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from transduce.core.config import kind_of
from transduce.core.errors import DataError, UserError
from transduce.core.plugins import name_of
from transduce.metrics import MetricConfig
from transduce.text.languages import check_language, is_language, language_of_tag
from transduce.text.languages import name_of as language_name


@dataclass(frozen=True)
class Measure:
    """`label` is for people, `lower` says that lower values are better."""

    label: str
    lower: bool = False

    @classmethod
    def of(cls, metric: str | MetricConfig) -> Measure:
        """That of a metric's word, or of the user's own."""
        return MEASURES[metric] if isinstance(metric, str) else cls(kind_of(type(metric)), metric.lower)


MEASURES = {
    "bleu": Measure("BLEU"),
    "chrf": Measure("chrF"),
    "loss": Measure("validation loss", lower=True),
    "wer": Measure("WER", lower=True),
    "cer": Measure("CER", lower=True),
    "accuracy": Measure("accuracy"),
}


def key_of(metric: str | MetricConfig) -> str:
    """Under which name its values are reported."""
    return metric if isinstance(metric, str) else name_of(type(metric))


# Either one reference per hypothesis, or several translations of the whole text, each as long as the hypotheses.
References = Sequence[str] | Sequence[Sequence[str]]

CHINESE = ("zh", "cmn", "yue")
_SHORTER = {"zho": "zh", "chi": "zh", "jpn": "ja", "tha": "th", "lao": "lo", "mya": "my", "bur": "my", "khm": "km"}
UNSPACED = (*CHINESE, "ja", "th", "lo", "km", "my")  # written without spaces between words


@dataclass(frozen=True)
class Quality:
    """One figure for a whole text, with the signature that says how it was measured."""

    name: str
    value: float
    signature: str


def base_language(language: str) -> str:
    """'zh' for 'zh', 'zh-CN', 'zh_TW', 'ZH', and 'zho_Hant', as corpora of three-letter codes have it."""
    base = language.replace("_", "-").split("-")[0].lower()
    return _SHORTER.get(base, base)


def tokenizer_for(language: str) -> str:
    """The sacreBLEU tokenizer that suits a target language; "13a", the standard, when the language is not given.

    Japanese gets MeCab where it is installed (`pip install 'sacrebleu[ja]'`) and single characters elsewhere.
    """
    check_language(language)
    base = base_language(language)
    if base in CHINESE:
        return "zh"
    if base == "ja" and importlib.util.find_spec("MeCab") and importlib.util.find_spec("ipadic"):
        return "ja-mecab"
    return "char" if base in UNSPACED else "13a"


def bleu_metric(lowercase: bool = False, tokenize: str = "13a") -> BLEU:
    """sacreBLEU's BLEU, with a readable error where its tokenizer is unknown or not installed."""
    if tokenize not in BLEU.TOKENIZERS:
        raise DataError(
            f"tokenize: {tokenize!r} is not a tokenizer of sacreBLEU. "
            f"Choose one of {', '.join(sorted(BLEU.TOKENIZERS))}; '13a' suits most languages."
        )
    try:
        # `force` only silences a warning about tokenised text, which "none" asks for.
        return BLEU(lowercase=lowercase, tokenize=tokenize, force=tokenize == "none")
    except (RuntimeError, ImportError, OSError) as error:  # what it needs is not installed or cannot be downloaded
        raise DataError(
            f"tokenize: sacreBLEU cannot use its tokenizer {tokenize!r} here: {' '.join(str(error).split())} "
            "Install what it names, or choose another, such as 'char'."
        ) from error


def chrf_metric(lowercase: bool = False) -> CHRF:
    """sacreBLEU's chrF2: character 6-grams, no word n-grams."""
    return CHRF(lowercase=lowercase)


def ter_metric(language: str = "") -> TER:
    """sacreBLEU's TER, lower-cased as Tercom's default is; unspaced East Asian text is cut into characters first."""
    asian = base_language(language) in (*CHINESE, "ja")
    return TER(normalized=asian, asian_support=asian)


def reference_streams(hypotheses: Sequence[str], references: References) -> list[list[str]]:
    """`references` as sacreBLEU takes them: a list of translations of the whole text, each as long as `hypotheses`."""
    if not hypotheses:
        raise DataError("There are no hypotheses to measure: the text is empty. Give at least one line.")
    if not references:
        raise DataError(
            f"There are no references for {len(hypotheses):,} hypotheses. Give one reference line for each."
        )
    single = [text for text in references if isinstance(text, str)]
    streams = [single] if single else [list(stream) for stream in references]
    for number, stream in enumerate(streams, start=1):
        if len(stream) != len(hypotheses):
            which = f"reference {number}" if len(streams) > 1 else "the reference"
            raise DataError(
                f"There are {len(hypotheses):,} hypotheses, but {which} has {len(stream):,} lines. "
                "Line n of one must translate line n of the other: check that both come from the same text."
            )
    return streams


def measure(metric: Metric, hypotheses: Sequence[str], references: References) -> Quality:
    """The quality by any sacreBLEU metric, with its name and signature as sacreBLEU prints them."""
    score = metric.corpus_score(hypotheses, reference_streams(hypotheses, references))
    return Quality(score.name, float(score.score), metric.get_signature().format())


def bleu(hypotheses: Sequence[str], references: References, lowercase: bool = False, tokenize: str = "13a") -> Quality:
    """Corpus BLEU, 0 to 100, higher is better. `tokenizer_for` picks `tokenize` for a language."""
    return measure(bleu_metric(lowercase, tokenize), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: References, lowercase: bool = False) -> Quality:
    """Corpus chrF2, 0 to 100, higher is better; needs no tokenizer, so it is fair to every script."""
    return measure(chrf_metric(lowercase), hypotheses, references)


def ter(hypotheses: Sequence[str], references: References, language: str = "") -> Quality:
    """Corpus TER: edits per 100 reference words, LOWER is better, and may pass 100."""
    return measure(ter_metric(language), hypotheses, references)


def moses(texts: Sequence[str], language: str, lowercase: bool = True, normalize: bool = False) -> list[str]:
    """Texts as Moses would tokenise them (by sacremoses, without escapes), lower-cased first unless told otherwise.

    `normalize` (default: off) also normalises punctuation before tokenising, as the preparation of Multi30k does:
    lowercase, normalize-punctuation, tokenizer, in this order.
    """
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError as error:
        raise UserError(
            "Moses tokenising needs the package sacremoses, which is not installed. "
            "Install it with: pip install 'transduce[moses]'"
        ) from error
    if not language:
        raise DataError("Moses tokenising depends on the language, and none was given. Name it, such as 'de' or 'fr'.")
    tokenizer, normalizer = MosesTokenizer(lang=base_language(language)), MosesPunctNormalizer(base_language(language))
    lines = [text.lower() for text in texts] if lowercase else list(texts)
    if normalize:
        lines = [normalizer.normalize(line) for line in lines]
    return [tokenizer.tokenize(line, escape=False, return_str=True) for line in lines]


def published_bleu(
    hypotheses: Sequence[str], references: References, language: str, lowercase: bool = True, normalize: bool = False
) -> Quality:
    """BLEU as in papers that report it on Moses-tokenised text (Multi30k above all): `sacreBLEU --tokenize none`.

    Not comparable with `bleu`; the signature cannot show what was done before, so the name does.
    `normalize` (default: off) as in `moses`, for both sides.
    """
    streams = [moses(stream, language, lowercase, normalize) for stream in reference_streams(hypotheses, references)]
    quality = bleu(moses(hypotheses, language, lowercase, normalize), streams, tokenize="none")
    steps = ["lower-cased"] * lowercase + ["punctuation normalised"] * normalize + ["Moses-tokenised"]
    return Quality(f"BLEU ({', '.join(steps)})", quality.value, quality.signature)


def jiwer_or_refusal() -> Any:
    """The package that counts edits; whoever lacks it is told what to install."""
    try:
        import jiwer
    except ImportError:
        raise UserError("error rates need the package jiwer: pip install 'transduce[senses]'") from None
    return jiwer


def accuracy(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """The share of lines that are right to the letter, in percent, higher is better."""
    right = sum(one == other for one, other in zip(hypotheses, references, strict=True))
    return 100 * right / max(1, len(references))


def first_empty(references: Sequence[str]) -> int:
    """The number, from 1, of the first reference without words, against which no edits can be counted; 0 if none."""
    return next((number for number, text in enumerate(references, start=1) if not text.strip()), 0)


def error_rates(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[Quality, Quality, Quality]:
    """WER, CER, and SER: the share of lines that are not right to the letter. All in percent, LOWER is better."""
    jiwer = jiwer_or_refusal()
    if len(hypotheses) != len(references) or not references:
        raise DataError(
            f"error rates: {len(hypotheses):,} transcripts and {len(references):,} references; expected as many of each"
        )
    empty = first_empty(references)
    if empty:
        raise DataError(f"error rates: reference {empty} is empty, and edits are counted against its words")
    signature = f"jiwer|case:mixed|tok:spaces|version:{version('jiwer')}"
    return (
        Quality("WER", 100 * float(jiwer.wer(list(references), list(hypotheses))), signature),
        Quality("CER", 100 * float(jiwer.cer(list(references), list(hypotheses))), signature),
        Quality("SER", 100 - accuracy(hypotheses, references), "lines not right to the letter"),
    )


Links = Collection[tuple[int, int]]  # (source word, target word)


def alignment_error_rate(found: Sequence[Links], sure: Sequence[Links], possible: Sequence[Links] = ()) -> float:
    """1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|) over all sentences (Och and Ney, 2003); 0 is perfect, 1 the worst.

    `found` are a system's links, one collection a sentence; `sure` those it must find and `possible` those it may. A
    sure link is always possible. Without `possible` this is 1 minus the F-score of the links.
    """
    possible = possible or [()] * len(sure)
    if not len(found) == len(sure) == len(possible):
        counts = f"{len(found)}, {len(sure)} and {len(possible)}"
        raise DataError(f"links found, sure and possible are of {counts} sentences; give those of the same sentences")
    hits = total = 0
    for links, must, may in zip(map(set, found), map(set, sure), map(set, possible), strict=True):
        hits += len(links & must) + len(links & (must | may))
        total += len(links) + len(must)
    return 1 - hits / total if total else 0.0


_SCRIPTS = {  # of languages written without spaces, for which sacreBLEU's standard tokenizer is of no use
    "zh": re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"),
    "ja": re.compile("[\u3041-\u30ff\u31f0-\u31ff]"),
    "th": re.compile("[\u0e00-\u0e7f]"),
    "lo": re.compile("[\u0e80-\u0eff]"),
    "my": re.compile("[\u1000-\u109f]"),
    "km": re.compile("[\u1780-\u17ff]"),
}
KANA = 0.1  # of Han and kana together: Japanese has about half, Chinese hardly any


@dataclass(frozen=True)
class Told:
    """A target language that somebody has named ("" where nobody has), and `by` what: "--language", a setting."""

    language: str
    by: str


@dataclass(frozen=True)
class Target:
    """A target language ("" where it is not known), the numbers of its texts, and how it was told."""

    language: str
    texts: tuple[int, ...]
    why: str

    @property
    def tokenizer(self) -> str:
        """sacreBLEU's for the language."""
        return tokenizer_for(self.language)

    @property
    def text(self) -> str:
        """`zh (Chinese, told by the script of the references)`, for people."""
        language = f"{language_name(self.language)}, " if self.language else ""
        return f"{self.tokenizer} ({language}{self.why})"


@dataclass(frozen=True)
class LanguageBLEU:
    """`mean` over the languages, and the BLEU of each by its code ("" where the language is not known)."""

    mean: float
    languages: dict[str, Quality]

    @property
    def signature(self) -> str:
        """sacreBLEU's; of languages that are tokenised differently, each with its code in front."""
        signatures = {code: quality.signature for code, quality in self.languages.items()}
        if len(set(signatures.values())) == 1:
            return next(iter(signatures.values()))
        return "; ".join(f"{code or 'other'}: {signature}" for code, signature in signatures.items())


def bleu_by_language(
    hypotheses: Sequence[str], references: Sequence[str], tags: Sequence[str], language: str = ""
) -> LanguageBLEU:
    """BLEU of texts whose target languages are `language`, or those of their tags, or told by the references."""
    return bleu_of_targets(hypotheses, references, target_languages(references, tags, Told(language, "given")))


def bleu_of_targets(hypotheses: Sequence[str], references: Sequence[str], targets: Sequence[Target]) -> LanguageBLEU:
    """BLEU of texts whose target languages are known."""
    found = {
        one.language: bleu(
            [hypotheses[n] for n in one.texts], [references[n] for n in one.texts], tokenize=one.tokenizer
        )
        for one in targets
    }
    return LanguageBLEU(sum(one.value for one in found.values()) / max(1, len(found)), found)


def target_languages(references: Sequence[str], tags: Sequence[str] = (), *told: Told) -> tuple[Target, ...]:
    """The target languages of texts, in the order of their first texts: the one decision that picks tokenizers.

    The first of `told` that names a language goes for all texts. Else a tag that names one (`<2zh>`) tells; texts of
    any other tag, or without one, are told by the script of their references together.
    """
    for one in told:
        if one.language:
            return (Target(one.language, tuple(range(len(references))), f"by {one.by}"),)
    by_tag: dict[str, list[int]] = {}
    for number, tag in enumerate(tags or [""] * len(references)):
        by_tag.setdefault(tag, []).append(number)
    members: dict[str, list[int]] = {}
    why: dict[str, str] = {}
    for tag, numbers in by_tag.items():
        language = language_of_tag(tag)
        reason = f"by the tag {tag}"
        if not is_language(language):
            language = unspaced_language([references[n] for n in numbers])
            reason = "by the script of the references" if language else "no language was given or recognised"
        members.setdefault(language, []).extend(numbers)
        why.setdefault(language, reason)
    return tuple(Target(language, tuple(sorted(some)), why[language]) for language, some in members.items())


def in_words(targets: Sequence[Target]) -> str:
    """`BLEU tokenizer: zh (Chinese, by --language)`; of several languages each."""
    return f"BLEU tokenizer: {'; '.join(one.text for one in targets)}"


def unspaced_language(texts: Sequence[str]) -> str:
    """The language of texts in a script without spaces between words, by most of their letters; "" for all others."""
    letters = sum(1 for text in texts for character in text if character.isalpha())
    counts = {code: sum(len(script.findall(text)) for text in texts) for code, script in _SCRIPTS.items()}
    han, kana = counts["zh"], counts["ja"]
    japanese = kana > KANA * (han + kana)
    counts |= {"zh": 0 if japanese else han + kana, "ja": han + kana if japanese else 0}
    best = max(counts, key=lambda code: counts[code])
    return best if 2 * counts[best] > letters else ""
