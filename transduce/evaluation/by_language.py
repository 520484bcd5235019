"""BLEU of a text in one target language or several, each tokenised as `evaluate --language` tokenises it.

Of several languages the figure is the mean of their corpus BLEUs, as in the tables of `pipeline`: one BLEU over all
would need one tokenizer for all, and 13a takes a Chinese sentence for a single word.
`target_languages` is the one decision that validation, `evaluate` and `compare` share.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from transduce.evaluation.metrics import Quality, bleu, tokenizer_for
from transduce.languages import is_language, language_of_tag, name_of

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
        language = f"{name_of(self.language)}, " if self.language else ""
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
