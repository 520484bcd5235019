"""BLEU, chrF and TER of whole corpora, computed and signed by sacreBLEU.

Hypotheses are plain, detokenised text; sacreBLEU does its own tokenising, so that numbers compare across papers
(Post, 2018, "A Call for Clarity in Reporting BLEU Scores"). `published_bleu` is the one exception: older results were
measured on lower-cased, Moses-tokenised text.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from transduce.errors import DataError, UserError
from transduce.languages import check_language

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
