"""Codes of languages, their names in English and Chinese, and how a code that was asked for finds one served."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from transduce.errors import ConfigError

CODE = r"[a-z]{2,3}(?:-[A-Z][a-z]{3}|-[A-Z]{2}|-[0-9]{3})*"
_PAIR = re.compile(rf"({CODE})-({CODE})")
_TAG = re.compile(r"<2([A-Za-z-]+)>|>>([A-Za-z-]+)<<")
# Languages that part neither words nor sentences by spaces.
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
ar Arabic 阿拉伯语|bg Bulgarian 保加利亚语|bn Bengali 孟加拉语|ca Catalan 加泰罗尼亚语|cs Czech 捷克语|da Danish 丹麦语
de German 德语|el Greek 希腊语|en English 英语|eo Esperanto 世界语|es Spanish 西班牙语|et Estonian 爱沙尼亚语
eu Basque 巴斯克语|fa Persian 波斯语|fi Finnish 芬兰语|fr French 法语|ga Irish 爱尔兰语|gl Galician 加利西亚语
he Hebrew 希伯来语|hi Hindi 印地语|hr Croatian 克罗地亚语|hu Hungarian 匈牙利语|id Indonesian 印度尼西亚语
is Icelandic 冰岛语|it Italian 意大利语|ja Japanese 日语|ko Korean 韩语|ky Kyrgyz 吉尔吉斯语|la Latin 拉丁语
lt Lithuanian 立陶宛语|lv Latvian 拉脱维亚语|ms Malay 马来语|nb Norwegian 挪威语|nl Dutch 荷兰语|no Norwegian 挪威语
pl Polish 波兰语|pt Portuguese 葡萄牙语|ro Romanian 罗马尼亚语|ru Russian 俄语|sk Slovak 斯洛伐克语
sl Slovenian 斯洛文尼亚语|sq Albanian 阿尔巴尼亚语|sr Serbian 塞尔维亚语|sv Swedish 瑞典语|sw Swahili 斯瓦希里语
ta Tamil 泰米尔语|th Thai 泰语|tl Tagalog 他加禄语|tr Turkish 土耳其语|uk Ukrainian 乌克兰语|ur Urdu 乌尔都语
vi Vietnamese 越南语|zh Chinese 中文
"""
_KNOWN = {
    code: names for code, *names in (entry.split() for line in _NAMES.split("\n") for entry in line.split("|") if entry)
}


def name_of(code: str, interface: str = "en") -> str:
    """A language's name for people: "German" for de, 德语 with interface "zh"; the code itself where none is known."""
    base, _, rest = code.partition("-")
    if base not in _KNOWN:
        return code
    name = _KNOWN[base][interface == "zh"]
    return f"{name} ({rest})" if rest else name


def is_language(code: str) -> bool:
    """Whether a code, or what stands before its first hyphen, may be one: of ISO 639-1, or any of three letters."""
    base = base_of(code.replace("_", "-"))
    return base in TWO_LETTERS or re.fullmatch("[a-z]{3}", base) is not None


def check_language(code: str) -> None:
    """Refuse what is no code of a language; "" stands for one that is not known."""
    if not code or is_language(code):
        return
    base = base_of(code.replace("_", "-"))
    named = [known for known, (english, chinese) in _KNOWN.items() if base in (english.lower(), chinese)]
    near = named or difflib.get_close_matches(base, sorted(TWO_LETTERS), n=3, cutoff=0.5)
    meant = f" (near it: {', '.join(sorted(near))})" if near else ""
    raise ConfigError(
        f"language: expected a code such as 'de' or 'zh-CN', got {code!r}, which is none of ISO 639{meant};"
        f" {', '.join(WITHOUT_SPACES)} have tokenizers of their own, all others sacreBLEU's standard"
    )


def base_of(code: str) -> str:
    """`zh` of `zh-Hans`, lower-cased."""
    return code.partition("-")[0].lower()


def language_of_tag(tag: str) -> str:
    """`de` of `<2de>` or `>>de<<`, the tags that name a target language; "" of anything else."""
    match = _TAG.fullmatch(tag)
    return (match[1] or match[2]) if match else ""


def find(code: str, served: Sequence[str]) -> str | None:
    """The code among those served that is meant: the same in any case, else one of the same language.

    `EN-US` finds `en`, `zh` finds `zh-Hans`; `pt-BR` does not find `pt-PT`.
    """
    wanted = code.replace("_", "-").lower()
    for one in served:
        if one.lower() == wanted:
            return one
    for one in served:
        if base_of(one) == base_of(wanted) and ("-" not in one or "-" not in wanted):
            return one
    return None


def pair_of(text: str) -> tuple[str, str] | None:
    """Source and target of `en-de` or `zh-Hans-pt-BR`; None for what is no pair."""
    match = _PAIR.fullmatch(text)
    return (match[1], match[2]) if match else None
