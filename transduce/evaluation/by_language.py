"""BLEU of a text in one target language or several, each tokenised as `evaluate --language` tokenises it.

Of several languages the figure is the mean of their corpus BLEUs, as in the tables of `pipeline`: one BLEU over all
would need one tokenizer for all, and 13a takes a Chinese sentence for a single word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from transduce.evaluation.metrics import Quality, bleu, tokenizer_for
from transduce.languages import base_of, language_of_tag

_CODE = re.compile(r"[a-z]{2,3}")
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
    found = {
        code: bleu([hypotheses[n] for n in members], [references[n] for n in members], tokenize=tokenizer_for(code))
        for code, members in target_languages(references, tags, language).items()
    }
    return LanguageBLEU(sum(one.value for one in found.values()) / max(1, len(found)), found)


def target_languages(references: Sequence[str], tags: Sequence[str], language: str = "") -> dict[str, list[int]]:
    """The numbers of the texts of each target language, in the order of their first texts.

    Where `language` is not given, a tag that names a language (`<2zh>`) tells; texts of any other tag, or without one,
    are told by the script of their references together.
    """
    if language:
        return {language: list(range(len(references)))}
    by_tag: dict[str, list[int]] = {}
    for number, tag in enumerate(tags):
        by_tag.setdefault(tag, []).append(number)
    found: dict[str, list[int]] = {}
    for tag, members in by_tag.items():
        named = language_of_tag(tag)
        known = named if _CODE.fullmatch(base_of(named)) else unspaced_language([references[n] for n in members])
        found.setdefault(known, []).extend(members)
    return {code: sorted(members) for code, members in found.items()}


def unspaced_language(texts: Sequence[str]) -> str:
    """The language of texts in a script without spaces between words, by most of their letters; "" for all others."""
    letters = sum(1 for text in texts for character in text if character.isalpha())
    counts = {code: sum(len(script.findall(text)) for text in texts) for code, script in _SCRIPTS.items()}
    han, kana = counts["zh"], counts["ja"]
    japanese = kana > KANA * (han + kana)
    counts |= {"zh": 0 if japanese else han + kana, "ja": han + kana if japanese else 0}
    best = max(counts, key=lambda code: counts[code])
    return best if 2 * counts[best] > letters else ""
