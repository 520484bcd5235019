"""Language codes and names, matching of requested codes to served ones, and language detection.

`find` matches a requested code to a served one. Names are in English and Chinese.

`FREQUENT` has words and greetings that tell languages apart, from word counts of Tatoeba (CC BY 2.0 FR): each is
sixty times as frequent in its own language as in any other here, or is a greeting or a household word added by hand
and twenty times as frequent.

`Detector` is naive Bayes over byte n-grams (py3langid), restricted to the served languages. All languages it knows are
scored: a text in none of ours still gets one of them, with low confidence. Its tables take half a second to read, so
a sentence with words like "the" or "und" does not wait for them; and they say little about one or two words, so "Hello"
is English because it is frequent there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from transduce.core.errors import ConfigError, near_words
from transduce.core.processes import ForkLock

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


FREQUENT = {
    "en": "the and is are you of to my it this that what with have i we they she your can like for be who were please"
    " him know want not here go there did how his at everyone love up got everything need good looks get just let"
    " one think never about out look help us likes take everybody very nothing something why seems had should"
    " nobody where now looked going back went home would more if loves hate from work speak when down right happy"
    " must by said again well keep felt tell eat feel people them could hello hi yes thanks morning evening night"
    " welcome sorry goodbye bye cat cats dog dogs house water book books friend friends today tomorrow yesterday"
    " school world",
    "de": "der und nicht ich ist ein eine mit auf für wir sie den dem wie zu haben er sind ihr bin mich mir habe sich"
    " dich bist dass bitte wurde wird mag kann hast ihn einen nichts etwas alle gehen dir wer noch von warum sein"
    " aus nach als gut werde niemand werden seid meine im euch weiß wo hatte sehr alles muss möchte kommt ihm"
    " gerne mein kommen gerade liebe komm können viel wenn diese keine weiter mehr geld schon waren nie deine lass"
    " macht geht vor tun nur machen morgen ging immer jetzt heute liebt zeit müssen kannst hallo guten danke"
    " tschüss nein abend nacht haus wasser buch katze katzen hund freund frau stadt straße schule welt"
    " gestern",
    "fr": "est je une vous pas dans avec nous elle qui ce sur il et suis êtes ne ça ils moi était sont elles sommes"
    " tout qu ici veux étais faire toi au votre cela quelle mon cette pourquoi ton avez fait quel aime être où"
    " soyez peux ceci ont tous sais lui là beaucoup regarde temps très personne avons fais bon laisse dit quelque"
    " été tes voici maintenant trop laissez allez semble vraiment demain toutes reste parler porte quand juste"
    " parle regardez rien allons prends veuillez restez faites peut aimerais maison étaient encore peu bonjour"
    " bonsoir salut merci oui plaît chien chiens eau livres ami amis femme homme enfant enfants jour nuit matin"
    " ville rue école monde",
    "es": "el los las una muy pero con del yo qué ella hay tengo mi su fue él estoy eso quiero esto aquí más soy estaba"
    " puedo eres tienes ellos tiene están dónde quién ya necesito ahora mañana cómo gusta mucho nadie puedes puede"
    " sé quieres tú tiempo quiere hacer usted dinero tenemos verdad hoy cuándo quería siempre todavía trabajo ayer"
    " alguien libro ese sus mejor voy hablar ahí cuando allí ayuda conmigo hace hacerlo esa deberías otra creo"
    " habla dijo cuánto nosotros debería podría hizo tres había nuevo años odio tus poco mí día perro tenía hasta"
    " hola adiós buenos buenas gracias perros agua libros mujer hombre niño niños ciudad calle escuela",
    "pt": "não uma você os ele ela muito em eu isso são é meu estou nós eles sou vocês estava foi tem aqui quero tenho"
    " quem vai já estão bem elas tudo fazer vou quer ninguém seu onde agora quando isto posso sua há minha ao"
    " ainda pode tempo disse gosto comigo preciso hoje temos lá alguém queria fala acho só obrigado bom demais"
    " quanto disso falar estavam amanhã ficar sempre mim tão melhor ter ficou seja odeio sem anos dinheiro fez"
    " também qual ontem pessoas livro ajudar lhe mesmo precisamos dele essa novo coisa gostaria três trabalho seus"
    " sim olá obrigada tchau boa cachorro cão água livros mulher homem criança crianças cidade rua escola",
    "zh": "",  # detected by its script
}


ENOUGH = 1000  # characters of a text that are examined
LIKELY, TOLD, SURE = 50.0, 75.0, 90.0  # percent of confidence: to accept, of a frequent word, to refuse
_LANGID_CODES = {"nb": "no"}  # our codes with a different code in py3langid
_KIN = {"yue": "zh", "wuu": "zh", "nn": "no"}  # languages of py3langid that are written nearly like these
_WORD_LANGUAGE = {word: code for code, words in FREQUENT.items() for word in words.split()}
_READING = ForkLock()  # guards reading the tables once
_WORDS = re.compile(r"[^\W\d_]+")
_HAN, _KANA = re.compile("[\u4e00-\u9fff]"), re.compile("[\u3040-\u30ff]")


def plain_language(text: str, languages: Sequence[str]) -> str:
    """Detect a language by words frequent in it alone, or ""; needs no tables.

    Answers only where all of the languages are in FREQUENT; words of two languages leave it open.
    """
    if not all(base_of(code) in FREQUENT for code in languages):
        return ""
    found = {_WORD_LANGUAGE[word] for word in _WORDS.findall(text.lower()[:ENOUGH]) if word in _WORD_LANGUAGE}
    if _HAN.search(text) and not _KANA.search(text):
        found.add("zh")
    known = [code for code in languages if base_of(code) in found]
    return known[0] if len(found) == len(known) == 1 else ""


@dataclass(frozen=True)
class Detected:
    """A detected language and its confidence in percent."""

    language: str
    confidence: float


class Detector:
    """Detects which served language a text is in; reads its tables at first use."""

    def __init__(self, languages: Sequence[str]) -> None:
        self.languages = tuple(languages)
        self._labels = {code: _LANGID_CODES.get(base_of(code), base_of(code)) for code in languages}

    def prepare(self) -> None:
        """Read the tables now if not yet read, so that later calls do not wait."""
        with _READING:
            _identifier()

    def detect(self, text: str) -> list[Detected]:
        """Rank all served languages, the most likely first; without any letters all confidences are 0.

        The confidence is the share among the served languages, scaled down by how much likelier an unserved language
        is.
        """
        probabilities = self._weighed(text[:ENOUGH]) if any(map(str.isalpha, text)) else {}
        served = {code: probabilities.get(label, 0.0) for code, label in self._labels.items()}
        most, total = max(probabilities.values(), default=0.0), sum(served.values())
        sure = max(served.values()) / most if total else 0.0
        shares = {code: round(100 * sure * weight / (total or 1), 1) for code, weight in served.items()}
        plain = plain_language(text, self.languages)
        if plain and max(shares.values()) < SURE:
            shares = {code: min(share, 100 - TOLD) for code, share in shares.items()} | {
                plain: max(shares[plain], TOLD)
            }
        return sorted((Detected(*entry) for entry in shares.items()), key=lambda entry: -entry.confidence)

    def _weighed(self, text: str) -> dict[str, float]:
        """Return the probability of every known language; an unserved one counts for its close relative."""
        probabilities: dict[str, float] = {}
        for label, weight in _identifier().rank(text):
            label = label if label in self._labels.values() else _KIN.get(label, label)
            probabilities[label] = max(weight, probabilities.get(label, 0.0))
        return probabilities


@cache
def _identifier() -> Any:
    """Load py3langid's tables, which takes a second, once per process."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
