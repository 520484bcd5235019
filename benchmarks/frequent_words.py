"""Count the words of transduce/text/frequent_words.txt, by which languages are told apart.

    pip download --no-deps home-assistant-frontend==20250109.2 stopwordsiso==0.7.1, and unzip both
    python benchmarks/frequent_words.py DATA HOME_ASSISTANT STOPWORDS > transduce/text/frequent_words.txt

DATA holds tatoeba-*-en (CC BY 2.0 FR) and general/ (see its README; sets of CC BY-SA are left out): the words of
English, German, French, Spanish and Portuguese, each source with half the weight. HOME_ASSISTANT (Apache-2.0) holds
the interface in many languages, STOPWORDS (stopwordsiso, MIT) lists of function words. A language is one line: its
code, then its words, the most frequent first. BY_HAND are languages that none of these has.
"""

from __future__ import annotations

import argparse
import collections
import json
import lzma
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

WORDS = re.compile(r"[^\W\d_]+")
NOISE = re.compile(r"\{[^{}]*\}|<[^<>]*>|\S+\.\S+")
TATOEBA = {"en": "de-en/all", "de": "de-en/all", "fr": "fr-en/all", "es": "es-en/all", "pt": "pt-en/dev"}
OWN, NEAR, FAR, LINES = 2500, 600, 120, 5000  # words of ours, of their relatives, of others; lines a set
NEAREST = {"gl": 1000, "ca": 1000} | dict.fromkeys(["nl", "it", "lb", "fy", "af", "da", "no", "gsw", "nn", "eo"], NEAR)
HOUSEHOLD = {  # greetings and the like, which prose has seldom: taken for as frequent as the word of rank 200
    "en": "hello hi yes thanks morning evening night welcome sorry goodbye bye cat cats dog dogs house water book"
    " books friend friends today tomorrow yesterday school world",
    "de": "hallo guten danke tschüss nein abend nacht haus wasser buch katze katzen hund freund frau stadt straße"
    " schule welt gestern",
    "fr": "bonjour bonsoir salut merci oui plaît chien chiens eau livres ami amis femme homme enfant enfants jour nuit"
    " matin ville rue école monde",
    "es": "hola adiós buenos buenas gracias perros agua libros mujer hombre niño niños ciudad calle escuela",
    "pt": "sim olá obrigada obrigado tchau boa cachorro cão água livros mulher homem criança crianças cidade rua"
    " escola",
}
RANK = 200
SHARED = 14  # languages that have a word, from which on it is a name or English
BY_HAND = {
    "ast": """la y de el que los les en del un una a pa al con nun por se ye ta foi son tien hai pal pel pela polos
        poles nel na nos nes d l qu esti esta esto esos eses esa esi yera yeren tán tan tamién más munchu muncha
        munchos munches cuando onde como pero si non sí entá agora güei mañana ayeri equí ellí siempres enxamás nada
        daqué daquién naide dalgún dalguna dengún denguna otru otra otros otres cada tolos toles tou toa so sos mio to
        nuesu nuesa nueses vuesu dellos delles ser tar facer fai fexo faise dicir diz dixo dir va voi vien quier
        quiero pue puede puen pues puedes puedo tener tengo tienes tienen hebo habrá había sería xente xeneral xugar
        xuntu xunta xineru mesa día díes añu años tiempu mundu casa fía fíu fíos home homes muyer muyeres neña neñu
        llingua llibru llugar llista llargu llau lluna llunes mayor menor meyor peor bonu bona nuevu nueva grande
        pequeñu primeru primera usuariu contraseña ficheru páxina direición válidu válida introduz escueyi seleiciona
        camudar amestar llimpiar col cola colos coles sobre ente ensin hasta dende dempués enantes nengún""",
    "ia": """le de e un que in es del a pro non se con al per esser iste ha su como o si on ma te me nos vos illes illo
        ille illa anque plus sia sed qui quando ubi esseva haber habe pote poter debe deber vole voler face facer dice
        dicer vade tote toto omne alcun alicun necun nulle multe multo solmente jam ancora tunc nunc hodie ante post
        sin inter super sub trans usque proque perque secundo contra apud altere alteres mesme prime nove bon grande
        parve parola parolas lingua anno annos die dies homine homines femina vita tempore mundo loco numero nomine
        pagina libro usator selige elige adde deler cambiar monstra vostre nostre mi lor isto illac hic ci tanto tal
        assi etiam tamen dunque pois quo qual quales cata cosa cosas infra supra durante quia nihil semper nunquam
        sape forsan essera habera potera havite facite""",
    "io": """la e ed di en esas ne por ka kun me tu il el ol ni vi li to ta ca qua quo qui od o ma se ke da de a ad an
        esis esos esar esez havas havis havar povas povis povar mustas devas volas voli volez facar facas facis dicas
        irar irez nova bona granda mikra omna omni multa multi poka tre plu maxim sempre nultempe kande ube quale tale
        anke nur ja ankore tempe dum pos ante sub sur super inter tra per sen kontre til ek che pro lor lore nun hodie
        morge hiere mea tua sua nia via lia olia ilua elua singla altra altri kelka irga irgu nulu nula nulo ulu ula
        ulo homo homi viro muliero domo urbo dio dii yaro yari tempo linguo vorto vorti nomo nombro libro pagino uzar
        uzanto uzas skribar skribez elektar elektez chanjar adjuntar efacar montrar kreesar""",
    "nds": """de dat un is in en nich to mit den för op an von vun het hett he se ik du wi ji sik as so ok ook man aver
        oder wenn wat wo wer woans wa een eenen eene keen keene mien dien sien ehr uns jo jug juch sünd sund bün büst
        weer weren wesen west heff hebbt harr harrn hebben kann kannst köönt kunn kunnen schall schallst schüllt
        schull will wullt wüllt wull mutt möt möött muss mag mögt warrt ward worr wurr worrn wurrn deit doon doot dä
        maakt maken mook seggt seggen geiht gahn güng kummt kamen keem süht sehn seeg nee jo ja nu hüüt güstern morgen
        jümmers nie nix all allens veel wenig mehr good goot groot grote lütt lütte nieg niege ool ole lang ut över
        ünner ünnern achter vör twüschen bi na dör gegen ahn ahne üm dorüm dorbi dormit dorto daar dor hier dar tein
        twee dree veer fief söss söven acht negen johr johre dag daag tiet lüüd minsch minschen kinner fru froo mann
        huus stadt water book böker wöör wöörd spraak siet naam nummer bruker bruken ännern wiesen""",
    "oc": """de la e lo que los las un una en es per dins dels del al als amb a son pas sus se non mai aquò aqueste
        aquesta aquestes aquel aquela aqueles lor sieu sieus nòstre nòstra vòstre vòstra mon ton ma ta sa qui qual
        quala quals ont quand coma perque mas o ni ja encara tanben tanplan totjorn jamai uèi deman ièr fòrça plan
        pauc tròp tot tota totes totas cada autre autra autres autras qualques qualqu pòt pòdon pòdes podètz vòl vòls
        fa fan faire far fach èra èran serà foguèt estat aver ai an aviá auriá aguèt cal caliá dire ditz diguèt anar va
        vas vau venir ven prene saber sap metre donar sens contra sul cap fins aprèp abans entre jos jol sobre temps
        jorn jorns ans òme òmes femna femnas ostal vila mond lenga libre pagina nom nombre senhal fichièr""",
}


def read(path: Path) -> list[str]:
    """The lines of a compressed file."""
    return lzma.decompress(path.read_bytes()).decode().split("\n")[:-1]


def counted(texts: Iterable[str]) -> collections.Counter[str]:
    """Count the words of texts in Latin letters, in lower case."""
    words = (word for text in texts for word in WORDS.findall(NOISE.sub(" ", text).lower()))
    return collections.Counter(word for word in words if all(c < "\u0250" or "\u1e00" <= c <= "\u1eff" for c in word))


def own_words(data: Path, language: str) -> list[str]:
    """The most frequent words of one of our languages, of everyday sentences and of prose alike."""
    prose: list[str] = []
    for folder in sorted((data / "general").iterdir()):
        found = sorted(folder.glob(f"train.en-*.{language}.xz")) if folder.is_dir() else []
        if found and not folder.name.startswith(("sa-", "bible", "place", "osm", "cldr")):
            lines = read(found[0])
            random.Random(1).shuffle(lines)
            prose += lines[:LINES]
    total: collections.Counter[str] = collections.Counter()
    for texts in (read(data / f"tatoeba-{TATOEBA[language]}.{language}.xz"), prose):
        counts = counted(dict.fromkeys(texts))
        for word, count in counts.items():
            total[word] += count / counts.total()  # type: ignore[assignment]
    words = [word for word, _ in total.most_common(OWN)]
    return list(dict.fromkeys([*words[:RANK], *HOUSEHOLD[language].split(), *words[RANK:]]))


def interface_texts(folder: Path) -> dict[str, set[str]]:
    """The texts of Home Assistant's interface by language, without those that were left in English."""
    texts: dict[str, dict[str, str]] = collections.defaultdict(dict)
    for path in sorted(folder.rglob("static/translations/**/*.json")):
        texts[path.name.rsplit("-", 1)[0]].update(json.loads(path.read_text("utf-8")))
    english = texts["en"]
    return {
        {"nb": "no", "sr-Latn": "sr"}.get(code, code): {
            text for key, text in found.items() if isinstance(text, str) and text != english.get(key)
        }
        for code, found in texts.items()
        if code not in ("no", "sr") and not code.startswith(("en", "de", "fr", "es", "pt", "zh"))
    }


def lines(data: Path, interface: Path, stopwords: Path) -> Iterator[str]:
    """Yield the lines of the file."""
    for language in TATOEBA:
        yield " ".join([language, *own_words(data, language)])
    counts = {code: counted(texts) for code, texts in interface_texts(interface).items()}
    counts = {code: count for code, count in counts.items() if count.total() > 3000}
    languages = collections.Counter(word for count in counts.values() for word, times in count.items() if times > 1)
    listed = json.loads(next(stopwords.rglob("stopwords-iso.json")).read_text("utf-8"))
    for code in sorted({*counts, *listed, *BY_HAND} - {*TATOEBA, "zh", "ku", "st", "yo", "zu", "ha"}):
        count, most = counts.get(code, collections.Counter()), NEAREST.get(code, FAR)
        kept = [w for w, times in count.most_common(3 * most) if times > 2 and (languages[w] < SHARED or len(w) < 4)]
        function = counted(listed.get(code, ()))
        words = dict.fromkeys([*BY_HAND.get(code, "").split(), *kept[:most], *sorted(function)[: most // 2]])
        if len(words) >= 20:
            yield " ".join([code, *words])


def main() -> None:
    """Print the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("data", "home_assistant", "stopwords"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    print(*lines(given.data, given.home_assistant, given.stopwords), sep="\n")


if __name__ == "__main__":
    main()
