"""Language codes and names, matching of requested codes to served ones, and language detection.

`find` matches a requested code to a served one. Names are in English and Chinese.

A `Detector` weighs all languages that it knows, not the served ones alone: a text in none of these is told from them.

1. What is no language (URLs, placeholders, tags) is left out, and the script of most letters leaves the languages that
   are written in it; often that is one.
2. Words: frequent_words.txt has the most frequent ones of 48 languages in Latin letters, counted by
   benchmarks/frequent_words.py in Tatoeba (CC BY 2.0 FR), permissive prose, Home Assistant's interface (Apache-2.0) and
   stopwordsiso (MIT). Where one language has most of the words and is far ahead of the next, that decides: nine in ten
   sentences need nothing else.
3. Else naive Bayes over byte n-grams (py3langid, 140 languages) and the words are added up. Its tables take half a
   second to read. Texts of a few words are taken for a served language unless more speaks against it.

benchmarks/languages.py measures what is taken for what.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from transduce.core.errors import ConfigError, near_words
from transduce.core.processes import ForkLock
from transduce.text.segment import TextPiece, sentences

CODE = r"[a-z]{2,3}(?:-[A-Z][a-z]{3}|-[A-Z]{2}|-[0-9]{3})*"
_PAIR = re.compile(rf"({CODE})-({CODE})")
_TAG = re.compile(r"<2([A-Za-z-]+)>|>>([A-Za-z-]+)<<")
# Languages that separate neither words nor sentences by spaces.
WITHOUT_SPACES = ("zh", "ja", "th", "lo", "km", "my", "yue")

TWO_LETTERS = frozenset(  # ISO 639-1
    """
    aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en eo
    es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg
    ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn
    no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw
    ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
    """.split()
)

_NAMES = """
af Afrikaans 南非语|am Amharic 阿姆哈拉语|ar Arabic 阿拉伯语|as Assamese 阿萨姆语|ast Asturian 阿斯图里亚斯语
az Azerbaijani 阿塞拜疆语|ba Bashkir 巴什基尔语|be Belarusian 白俄罗斯语|bg Bulgarian 保加利亚语|bn Bengali 孟加拉语
bo Tibetan 藏语|br Breton 布列塔尼语|bs Bosnian 波斯尼亚语|ca Catalan 加泰罗尼亚语|cs Czech 捷克语|cy Welsh 威尔士语
da Danish 丹麦语|de German 德语|dv Dhivehi 迪维希语|el Greek 希腊语|en English 英语|eo Esperanto 世界语
es Spanish 西班牙语|et Estonian 爱沙尼亚语|eu Basque 巴斯克语|fa Persian 波斯语|fi Finnish 芬兰语|fo Faroese 法罗语
fr French 法语|fy Frisian 弗里西语|ga Irish 爱尔兰语|gd Gaelic 盖尔语|gl Galician 加利西亚语|gsw Swiss-German 瑞士德语
gu Gujarati 古吉拉特语|ha Hausa 豪萨语|he Hebrew 希伯来语|hi Hindi 印地语|hr Croatian 克罗地亚语|ht Haitian 海地语
hu Hungarian 匈牙利语|hy Armenian 亚美尼亚语|ia Interlingua 国际语|id Indonesian 印度尼西亚语|ig Igbo 伊博语
io Ido 伊多语|is Icelandic 冰岛语|it Italian 意大利语|ja Japanese 日语|jv Javanese 爪哇语|ka Georgian 格鲁吉亚语
kab Kabyle 卡拜尔语|kk Kazakh 哈萨克语|km Khmer 高棉语|kn Kannada 卡纳达语|ko Korean 韩语|ku Kurdish 库尔德语
ky Kyrgyz 吉尔吉斯语|la Latin 拉丁语|lb Luxembourgish 卢森堡语|lo Lao 老挝语|lt Lithuanian 立陶宛语
lv Latvian 拉脱维亚语|mg Malagasy 马达加斯加语|mk Macedonian 马其顿语|ml Malayalam 马拉雅拉姆语|mn Mongolian 蒙古语
mr Marathi 马拉地语|ms Malay 马来语|mt Maltese 马耳他语|my Burmese 缅甸语|nb Norwegian 挪威语|nds Low-German 低地德语
ne Nepali 尼泊尔语|nl Dutch 荷兰语|nn Nynorsk 新挪威语|no Norwegian 挪威语|oc Occitan 奥克语|or Odia 奥里亚语
os Ossetian 奥塞梯语|pa Punjabi 旁遮普语|pl Polish 波兰语|ps Pashto 普什图语|pt Portuguese 葡萄牙语
qu Quechua 克丘亚语|ro Romanian 罗马尼亚语|ru Russian 俄语|sa Sanskrit 梵语|si Sinhala 僧伽罗语|sk Slovak 斯洛伐克语
sl Slovenian 斯洛文尼亚语|so Somali 索马里语|sq Albanian 阿尔巴尼亚语|sr Serbian 塞尔维亚语|sv Swedish 瑞典语
sw Swahili 斯瓦希里语|ta Tamil 泰米尔语|te Telugu 泰卢固语|tg Tajik 塔吉克语|th Thai 泰语|tk Turkmen 土库曼语
tl Tagalog 他加禄语|tr Turkish 土耳其语|tt Tatar 鞑靼语|udm Udmurt 乌德穆尔特语|ug Uyghur 维吾尔语
uk Ukrainian 乌克兰语|ur Urdu 乌尔都语|uz Uzbek 乌兹别克语|vi Vietnamese 越南语|xh Xhosa 科萨语|yi Yiddish 意第绪语
yo Yoruba 约鲁巴语|yue Cantonese 粤语|zh Chinese 中文|zu Zulu 祖鲁语
"""
_KNOWN = {
    code: [name.replace("-", " ") for name in names]
    for code, *names in (entry.split() for line in _NAMES.split("\n") for entry in line.split("|") if entry)
}


def name_of(code: str, interface: str = "en") -> str:
    """Return a language's display name: "German" for de, 德语 with interface "zh"; the code itself if unknown."""
    base, _, rest = code.partition("-")
    if base not in _KNOWN:
        return code
    name = _KNOWN[base][interface == "zh"]
    return f"{name} ({rest})" if rest else name


def is_language(code: str) -> bool:
    """Whether a code's part before the first hyphen is in ISO 639-1, or is any three letters."""
    base = base_of(code.replace("_", "-"))
    return base in TWO_LETTERS or re.fullmatch("[a-z]{3}", base) is not None


def check_language(code: str) -> None:
    """Refuse a string that is not a language code; "" stands for an unknown language."""
    if not code or is_language(code):
        return
    base = base_of(code.replace("_", "-"))
    named = [known for known, (english, chinese) in _KNOWN.items() if base in (english.lower(), chinese)]
    near = named or near_words(base, sorted(TWO_LETTERS), most=3, cutoff=0.5)
    meant = f" (near it: {', '.join(sorted(near))})" if near else ""
    raise ConfigError(
        f"language: expected a code such as 'de' or 'zh-CN', got {code!r}, which is not in ISO 639{meant};"
        f" {', '.join(WITHOUT_SPACES)} have their own tokenizers, all others sacreBLEU's default"
    )


def base_of(code: str) -> str:
    """Return the base language in lower case: `zh` of `zh-Hans`."""
    return code.partition("-")[0].lower()


def language_of_tag(tag: str) -> str:
    """Return `de` of `<2de>` or `>>de<<`, the tags that name a target language; "" of anything else."""
    match = _TAG.fullmatch(tag)
    return (match[1] or match[2]) if match else ""


def find(code: str, served: Sequence[str]) -> str | None:
    """Find the served code for a requested one: equal but for case, else one of the same language.

    `EN-US` finds `en`, `zh` finds `zh-Hans`; `pt-BR` does not find `pt-PT`.
    """
    wanted = code.replace("_", "-").lower()
    for candidate in served:
        if candidate.lower() == wanted:
            return candidate
    for candidate in served:
        if base_of(candidate) == base_of(wanted) and ("-" not in candidate or "-" not in wanted):
            return candidate
    return None


def pair_of(text: str) -> tuple[str, str] | None:
    """Split `en-de` or `zh-Hans-pt-BR` into source and target; None if it is not a pair."""
    match = _PAIR.fullmatch(text)
    return (match[1], match[2]) if match else None


ENOUGH = 1000  # characters of a text that are examined
LIKELY, OTHER, SURE = 50.0, 70.0, 90.0  # percent of confidence: to accept, to refuse as not served, or as unfit
_WORDS_FILE = Path(__file__).with_name("frequent_words.txt")
_WORDS = re.compile(r"[^\W\d_]+")
_NOISE = re.compile(  # each run of characters is looked at once, from its start
    r"https?://\S+|www\.\S+|(?<!\S)[^\s@]+@\S+|</?[A-Za-z][^<>]*>|&#?\w+;|`[^`]*`|%\(\w*\)\w|%\w\b|\$?\{[^{}]*\}"
    r"|(?<![!-~])(?:/[!-~]+|[!-~]*?(?:[_\\]|/[!-~]*?/)[!-~]*)"
)
_FAR_SCRIPT = re.compile("[\u0370-\u1dff\u2c00-\uffff\U00010000-\U0003ffff]")  # neither Latin nor marks
_SCRIPTS = {
    code: languages.split()
    for code, languages in (
        entry.split(": ")
        for entry in """
CYRILLIC: ru uk be bg mk sr kk ky mn tt tg ba os udm|GREEK: el grc|ARMENIAN: hy|HEBREW: he hbo yi
ARABIC: ar ary arz fa ur ps sd ug ku|THAANA: dv|DEVANAGARI: hi mr ne sa gom|BENGALI: bn as|GURMUKHI: pa|GUJARATI: gu
ORIYA: or|TAMIL: ta|TELUGU: te|KANNADA: kn|MALAYALAM: ml|SINHALA: si|THAI: th|LAO: lo|TIBETAN: bo dz|MYANMAR: my
GEORGIAN: ka|ETHIOPIC: am|KHMER: km|HANGUL: ko|CJK: zh|HIRAGANA: ja|KATAKANA: ja""".replace("\n", "|").split("|")[1:]
    )
}
_DENSE = {"CJK": 4, "HIRAGANA": 4, "KATAKANA": 4, "HANGUL": 3}  # letters of Latin that one of these stands for
_LANGID_CODES = {"nb": "no"}  # our codes with a different code in py3langid
_KIN = {"yue": "zh", "wuu": "zh", "nn": "no"}  # languages of py3langid that are written nearly like these
_UNKNOWN_THERE = {  # to py3langid they look like the likeliest of these, so many nats less likely
    "ast": ("es gl ext pt", 0.3), "ia": ("it es fr la pt ro ca oc lij", 0.0), "io": ("eo es it fr ro", 0.5),
    "gsw": ("de lb", 0.5), "nds": ("de nl fy lb af", 0.5),
}  # fmt: skip
_READING = ForkLock()  # guards reading the tables once
# Frequencies after Zipf: the word of rank r is 0.1 / (r + 2.7) of a language, an unlisted one RARE.
_RARE, _WEIGHT = 1e-5, 0.7  # and the weight of words beside n-grams
_AHEAD, _MOST = 6.0, 0.5  # nats, and share of the words, by which words alone decide
_FAVOUR, _SHORT = 6.5, 25  # nats that a served language gets in a text of no letters, falling to none with so many
_IMPOSSIBLE = -70.0
_UNLISTED: dict[str, float] = {}


@dataclass(frozen=True)
class Detected:
    """A detected language and its confidence in percent; one that is not `served` with that in "none of the served"."""

    language: str
    confidence: float
    served: bool = True

    @property
    def unsupported(self) -> bool:
        """Whether the text is not to be translated, for no model knows its language."""
        return not self.served and self.confidence >= OTHER


def bare_words(text: str) -> str:
    """Cut a text to what is examined, without what is no language: URLs, tags, placeholders, names of files."""
    return _NOISE.sub(" ", text[:ENOUGH])


def script_languages(text: str) -> Sequence[str]:
    """The languages written in the script of most letters; () for Latin and for scripts of many languages, or none."""
    if not _FAR_SCRIPT.search(text):
        return ()
    counts = Counter(_script_of(letter) for letter in text if letter.isalpha())
    for script, times in _DENSE.items():
        counts[script] *= times
    script, most = counts.most_common(1)[0] if counts else ("", 0)
    if script == "CJK" and counts["HIRAGANA"] + counts["KATAKANA"] > most / 20:
        script = "HIRAGANA"
    return _SCRIPTS.get(script, ())


@lru_cache(4096)
def _script_of(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0]


class Detector:
    """Detects which language a text is in, preferring the served ones; reads its tables at first use."""

    def __init__(self, languages: Sequence[str]) -> None:
        self.languages = tuple(languages)
        self._labels = {code: _LANGID_CODES.get(base_of(code), base_of(code)) for code in languages}
        self._codes = {label: code for code, label in reversed(self._labels.items())}

    def prepare(self) -> None:
        """Read the tables now if not yet read, so that later calls do not wait."""
        with _READING:
            _identifier()
        _frequent_words()

    def plain(self, text: str) -> str:
        """Detect a language by its script or its frequent words, or ""; the code of one that is not served too.

        For a script of several languages, none of which is served, the first stands for all of them.
        """
        bare = bare_words(text)
        labels = script_languages(bare)
        if labels:
            return self._code(labels[0]) if len(labels) == 1 or self._codes.keys().isdisjoint(labels) else ""
        return self._code(_by_words(bare))

    def is_strange(self, text: str) -> bool:
        """Whether a text of some length has hardly a frequent word of a served language."""
        bare = bare_words(text)
        words, table = _WORDS.findall(bare.lower()), _frequent_words()
        known = sum(not self._codes.keys().isdisjoint(table.get(word, ())) for word in words)
        return sum(map(str.isalpha, bare)) >= _SHORT and known < len(words) / 4

    def sentence_languages(self, text: str, language: str = "") -> list[tuple[TextPiece, str]]:
        """The sentences of a text with the language of each; `language` for those that script and words leave open."""
        return [(part, (self.plain(part.text) if part.text else "") or language) for part in sentences(text)]

    def is_served(self, language: str) -> bool:
        """Whether a code that was detected is one of the served languages."""
        return language in self._labels

    def detect(self, text: str) -> list[Detected]:
        """Rank all served languages; where another one is likelier it is first, with the confidence in "none of ours".

        Without any letters all confidences are 0.
        """
        bare = bare_words(text)
        shares = self._shares(bare) if any(map(str.isalpha, bare)) else {}
        found = [Detected(code, round(100 * shares.get(label, 0.0), 1)) for code, label in self._labels.items()]
        found.sort(key=lambda entry: -entry.confidence)
        best = max(shares, key=lambda label: shares[label], default="")
        if best and best not in self._codes:
            none = sum(share for label, share in shares.items() if label not in self._codes)
            found.insert(0, Detected(best, round(100 * none, 1), served=False))
        return found

    def _code(self, label: str) -> str:
        """The served code of a label, or the label of a language that is not served."""
        return self._codes.get(label, label)

    def _shares(self, bare: str) -> Mapping[str, float]:
        """The probability of every language, those of equal codes counted once."""
        labels = script_languages(bare)
        plain = labels[0] if len(labels) == 1 else "" if labels else _by_words(bare)
        if plain:
            return {plain: 1.0}
        weights = {label: math.log(share) for label, share in self._merged(_identifier().rank(bare)) if share > 1e-30}
        if labels:
            weights = {label: weight for label, weight in weights.items() if label in labels} or dict.fromkeys(
                labels, 0.0
            )
        else:
            _add_words(weights, bare)
        letters = sum(map(str.isalpha, bare))
        favour = _FAVOUR * max(0.0, 1 - letters / _SHORT) ** 1.5
        for label in self._codes:
            if label in weights or not labels:
                weights[label] = weights.get(label, _IMPOSSIBLE) + favour
        most = max(weights.values())
        total = sum(math.exp(weight - most) for weight in weights.values())
        return {label: math.exp(weight - most) / total for label, weight in weights.items()}

    def _merged(self, ranked: Iterable[tuple[str, float]]) -> Iterable[tuple[str, float]]:
        """Let a language that is not served count for a close relative of it."""
        merged: dict[str, float] = {}
        for label, share in ranked:
            label = label if label in self._codes else _KIN.get(label, label)
            merged[label] = max(share, merged.get(label, 0.0))
        return merged.items()


def _by_words(bare: str) -> str:
    """The language that has most of the words and is far ahead of all others, or ""."""
    words = _WORDS.findall(bare.lower())
    scores = _scores(words)
    first, second = (*sorted(scores, key=lambda code: -scores[code])[:2], "", "")[:2]
    if not first or scores[first] - scores.get(second, 0.0) < _AHEAD:
        return ""
    known = sum(first in _frequent_words().get(word, ()) for word in words)
    return first if known >= _MOST * len(words) else ""


def _scores(words: Sequence[str]) -> dict[str, float]:
    """How much likelier the words are in each language than in one that does not list them, in nats."""
    table = _frequent_words()
    scores: dict[str, float] = {}
    for word in words:
        for code, weight in table.get(word, _UNLISTED).items():
            scores[code] = scores.get(code, 0.0) + weight
    return scores


def _add_words(weights: dict[str, float], bare: str) -> None:
    """Add the evidence of words to that of n-grams."""
    words = _WORDS.findall(bare.lower())
    scores = _scores(words)
    for code, (others, less) in _UNKNOWN_THERE.items():
        if code in scores:
            weights[code] = max(weights.get(other, _IMPOSSIBLE) for other in others.split()) - less
    for code, score in scores.items():
        weights[code] = weights.get(code, _IMPOSSIBLE) + _WEIGHT * score / math.sqrt(len(words))


@cache
def _frequent_words() -> dict[str, dict[str, float]]:
    """The weight of each listed word in each language."""
    table: dict[str, dict[str, float]] = {}
    lines = [line.split() for line in _WORDS_FILE.read_text("utf-8").rstrip("\n").split("\n")]
    weights = [math.log(0.1 / (rank + 2.7) / _RARE) for rank in range(max(map(len, lines)))]
    for code, *words in lines:
        for word, weight in zip(words, weights, strict=False):
            table.setdefault(word, {})[code] = weight
    return table


@cache
def _identifier() -> Any:
    """Load py3langid's tables, which takes a second, once per process."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
