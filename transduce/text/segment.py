"""Sentence splitting, splitting of texts too long for a model, and grouping by length. Imports no torch.

`split_long` cuts at sentence ends first, then at commas and the like, then at spaces, then anywhere.

`sentences` splits by rules, not a model: stops end a sentence unless the word before them is an abbreviation, an
initial or an ordinal of the language (`SentenceRules`), or the text continues in lower case. It keeps everything
between sentences: line breaks, indents, spaces. benchmarks/sentences.py measures it.

In both, joining the parts with their spaces restores the text exactly.

`group_by_length` batches sentences of similar length under a budget of padded tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

# Each pattern matches up to a cut point and the white space that follows. A run of stops is matched once, from its
# start and without backtracking: ten thousand dots in a row take no longer than other text.
_PLACES = (
    re.compile(r"(?:(?<![.!?…])[.!?…]++[\"'”’»)\]]*+\s+|[。！？]+[”’」』）]*\s*)"),
    re.compile(r"(?:[,;:–—]\s+|[，；：、]\s*)"),
    re.compile(r"\s+"),
)


@dataclass(frozen=True)
class TextPiece:
    """A piece of text, and the white space after it."""

    text: str
    space: str


def split_long(text: str, fits: Callable[[str], bool]) -> list[TextPiece]:
    """Split `text` into parts that each fit, packed greedily; the whole text if it fits."""
    return _pack(text, "", fits, level=0)


def _pack(text: str, space: str, fits: Callable[[str], bool], level: int) -> list[TextPiece]:
    if fits(text):
        return [TextPiece(text, space)]
    pieces = _pieces(text, level) if level < len(_PLACES) else _halves(text)
    if len(pieces) == 1:
        return [TextPiece(text, space)] if len(text) < 2 else _pack(text, space, fits, level + 1)
    parts: list[TextPiece] = []
    for piece in pieces:
        if parts and fits(parts[-1].text + parts[-1].space + piece.text):
            last = parts.pop()
            parts.append(TextPiece(last.text + last.space + piece.text, piece.space))
        else:
            # A single piece that is too long is cut at the next weaker kind of boundary.
            deeper = level if level == len(_PLACES) else level + 1
            parts += _pack(piece.text, piece.space, fits, deeper)
    return [*parts[:-1], TextPiece(parts[-1].text, parts[-1].space + space)]


def _pieces(text: str, level: int) -> list[TextPiece]:
    pieces: list[TextPiece] = []
    begin = 0
    for match in _PLACES[level].finditer(text):
        chunk = text[begin : match.end()]
        bare = chunk.rstrip()
        if bare and match.end() < len(text):
            pieces.append(TextPiece(bare, chunk[len(bare) :]))
            begin = match.end()
    return [*pieces, TextPiece(text[begin:], "")]


def _halves(text: str) -> list[TextPiece]:
    middle = len(text) // 2
    return [TextPiece(text[:middle], ""), TextPiece(text[middle:], "")] if middle else [TextPiece(text, "")]


@dataclass(frozen=True)
class SentenceRules:
    """What a stop after a word means in a language; all words in lower case, abbreviations without their last stop.

    `titles` never end a sentence, `numbered` do unless a number follows, `closing` ("etc.") where a capital follows,
    `others` ("U.S.") where a word of `starters` does: these begin sentences, and are no names. A number is an ordinal
    behind a word of `before_ordinals` or before one of `after_ordinals`; a single letter is an initial of a name unless
    it stands behind a word of `before_letters` ("plan B").
    """

    titles: frozenset[str]
    numbered: frozenset[str] = frozenset()
    closing: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    starters: frozenset[str] = frozenset()
    before_letters: frozenset[str] = frozenset()
    before_ordinals: frozenset[str] = frozenset()
    after_ordinals: frozenset[str] = frozenset()

    @classmethod
    def read(cls, **words: str) -> SentenceRules:
        """Make rules of words separated by spaces."""
        return cls(**{name: frozenset(listed.split()) for name, listed in words.items()})

    @classmethod
    def joined(cls, rules: Sequence[SentenceRules]) -> SentenceRules:
        """Rules for a text of any of these languages."""
        return cls(*(frozenset().union(*(getattr(one, field.name) for one in rules)) for field in fields(cls)))


_RULES = {
    "en": SentenceRules.read(
        titles="""
            dr mr mrs ms prof rev hon gen col capt lt sgt gov sen rep st vs e.g i.e cf viz approx dept univ assn est mt
            ft ave blvd incl excl max min avg temp tel ext
        """,
        numbered="no nos p pp vol vols fig figs ch sec art ed eds c ca op",
        closing="etc",
        others="""
            jr sr inc ltd co corp bros a.m p.m u.s u.k u.n e.u d.c ph.d m.d b.c a.d jan feb mar apr jun jul aug sep
            sept oct nov dec mon tue wed thu fri sat sun al
        """,
        starters="""
            the a an i you he she it we they this that these those there here in on at if when while and but or so as
            for from to with not no yes what who how why where which after before then now my your his her our their
            its one some many all each most please let do does did is are was were can could will would should nobody
            everybody might must have has had be by of although because since however also both every few more only
            other such than though through under until use see click note today just never maybe perhaps once several
            two three
        """,
        before_letters="""
            option options plan vitamin type class group section step part appendix version level point case line
            column row grade hepatitis drive key variant schedule exhibit table figure team model side platform gate
            hall room building block series category question answer choice phase stage test site zone player
        """,
        before_ordinals="the",
    ),
    "de": SentenceRules.read(
        titles="""
            dr hr fr frl mr mrs prof dipl ing st z.b d.h u.a s.o s.u i.d.r o.ä u.ä bzw ca ggf vgl evtl inkl exkl zzgl
            bspw sog insb max min mind etwa geb gest hrsg abt tel str allg jr sen mio mrd tsd vs e.v i.a i.v u.u v.a
            o.g
        """,
        numbered="nr nrn s abb art abs bd bde kap ziff tab fig ff f anm az §",
        closing="usw etc usf",
        others="jan feb mär mrz apr jun jul aug sep sept okt nov dez mo di mi do fr sa so n.chr v.chr u.s gmbh ag co",
        starters="""
            der die das den dem des ein eine einen einem einer ich du er sie es wir ihr man dies diese dieser dieses
            diesem diesen jene jeder jede hier dort da dann doch aber und oder denn wenn als ob weil während nach vor
            bei mit von zu im in am an auf aus für um über unter durch gegen ohne seit bis auch nur noch nicht kein
            keine so wie was wer wo warum wann wieso welche welcher mein meine dein deine sein seine ihre unser unsere
            jetzt heute gestern morgen danach damit dazu dabei daher deshalb darum außerdem allerdings jedoch bitte ja
            nein alle viele einige beide sowohl zum zur beim vom ins klicken wählen geben siehe nun hat ist sind war
            kann können wird muss zwei drei
        """,
        before_ordinals="""
            am der den dem des die das im vom zum zur bis ab seit und jeden jeder jedes ein eine einen einem einer ihr
            ihre sein seine unser mein dein
        """,
        after_ordinals="""
            januar jänner februar märz april mai juni juli august september oktober november dezember jahrhundert
            jahrhunderts jahrtausend auflage klasse platz stock kapitel geburtstag weltkrieg
        """,
        before_letters="""
            option plan vitamin typ klasse gruppe schritt teil anhang abschnitt punkt variante fall spalte zeile taste
            hepatitis phase version ebene tabelle frage antwort kategorie modell tor halle block zone test
        """,
    ),
    "fr": SentenceRules.read(
        titles="""
            m mm mme mmes mlle mlles dr pr me mgr st ste p.ex ex av bd boul cf env approx tél c.-à-d c.à.d max min éd
            dir prof gén col
        """,
        numbered="no n° p pp art chap fig vol t al",
        closing="etc",
        others="janv févr avr juil sept oct nov déc j.-c s.a cie u.e u.s",
        starters="""
            le la les un une des du de au aux l d je j tu il elle on nous vous ils elles ce c cet cette ces cela ça
            ceci qui que qu quand si s mais et ou donc or ni car comme dans en à par pour avec sans sous sur chez après
            avant depuis pendant ici là y mon ma mes ton ta tes son sa ses notre nos votre vos leur leurs tout tous
            toute toutes chaque plusieurs certains alors ainsi aussi cependant toutefois puis enfin non oui pas ne n
            quel quelle comment pourquoi où est sont a ont deux trois voir cliquez
        """,
        before_letters="""
            option plan vitamine type classe groupe section étape partie annexe version niveau point cas ligne colonne
            touche hépatite phase tableau question réponse catégorie modèle porte salle bloc zone test équipe
        """,
    ),
    "es": SentenceRules.read(
        titles="""
            sr sra sres srta dr dra d dña prof lic ing arq gral cnel p.ej ej aprox av avda máx mín vs pág tel ud uds vd
            vds sto sta fray mons
        """,
        numbered="núm nro n.º p pp págs art arts cap fig vol t no",
        closing="etc",
        others="ene feb mar abr may jun jul ago sept oct nov dic a.m p.m ee.uu s.a s.l a.c d.c u.e cía ltda",
        starters="""
            el la los las un una unos unas lo yo tú él ella ello nosotros ellos ellas usted ustedes este esta estos
            estas esto ese esa eso esos esas aquel aquella que quien quién qué cuando cuándo donde dónde como cómo si
            pero y e o u ni porque pues aunque mientras en a al de del con sin sobre por para según desde hasta entre
            tras ante mi tu su sus nuestro nuestra todo todos toda todas cada algunos muchos así también además
            entonces luego ahora hoy ayer aquí allí no sí se me te le les nos hay es son era fue está están ha han
            puede pueden bajo dos tres
        """,
        before_letters="""
            opción plan vitamina tipo clase grupo sección paso parte anexo versión nivel punto caso línea columna fila
            tecla hepatitis fase tabla pregunta respuesta categoría modelo puerta sala bloque zona prueba equipo
        """,
    ),
    "pt": SentenceRules.read(
        titles="sr sra srs sras srta dr dra d prof profa eng arq p.ex ex aprox av máx mín vs tel v.exa sto sta",
        numbered="núm n.º nº p pp pág págs art arts cap fig vol no",
        closing="etc",
        others="jan fev mar abr mai jun jul ago set out nov dez s.a ltda a.c d.c e.u.a u.e cia",
        starters="""
            o a os as um uma uns umas eu tu ele ela nós vós eles elas você vocês este esta estes estas isto esse essa
            esses essas isso aquele aquela aquilo que quem quando onde como se mas e ou nem porque pois embora enquanto
            em no na nos nas de do da dos das ao à aos às com sem sobre por pelo pela para segundo desde até entre após
            meu minha seu sua seus suas nosso nossa todo todos toda todas cada alguns muitos assim também além então
            depois agora hoje ontem aqui ali lá não sim há é são era foi está estão tem têm pode podem dois duas três
            clique
        """,
        before_letters="""
            opção plano vitamina tipo classe grupo seção passo parte anexo versão nível ponto caso linha coluna tecla
            hepatite fase tabela pergunta resposta categoria modelo porta sala bloco zona teste equipe
        """,
    ),
}
_ANY = SentenceRules.joined(list(_RULES.values()))

# Stops of many scripts, with closing quotes and brackets. Western stops must be followed by a space, or stand in
# Chinese or Japanese text, a full stop between two of its letters.
_CLOSING = r"(?:[\"'”’“‘»«)\]*]|[ \u00a0\u202f]»)*+"
_ENDS = re.compile(
    rf"(?<![.!?…])[.!?…]++{_CLOSING}(?=\s)"
    r"|[。！？｡]++[”’」』）\"')\]]*+"
    r"|(?<![.!?…])[!?]++[”’」』）\"')\]]*+(?=[\u3040-\u30ff\u3400-\u9fff])"
    r"|(?<=[\u3040-\u30ff\u3400-\u9fff])\.(?=[\u3040-\u30ff\u3400-\u9fff])"
)
_SAID = re.compile(r"[^，。！？“「]{0,4}[说問问道喊叫答]|と")  # behind a quotation that its sentence goes on from
_LINE = re.compile(r"[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")  # every line break of str.splitlines
_NEXT = re.compile(r"[\s\"'“”„«»‚‘(\[¿¡*_–—-]*+([^\W_]+)(\.?)")
_OPENING = "(\"'“„«‚‘[¿¡*_"
_CAMEL = re.compile(r"[^\W\d_]+?(?<=[a-z])[A-Z]")
_INITIALS = re.compile(r"(?:\w\.)*\w")


def sentences(text: str, language: str = "") -> list[TextPiece]:
    """Split a text into sentences, each with the white space after it; leading space is a part without text.

    With a language its own rules are used, with "" or another one those of all languages that have any.
    """
    rules = _RULES.get(language.partition("-")[0].lower(), _ANY)
    spans = [span for line in _LINE.finditer(text) for span in _spans(text, *line.span(), rules)]
    begins = [begin for begin, _ in spans] + [len(text)]
    parts = [TextPiece("", text[: begins[0]])] if begins[0] else []
    return parts + [
        TextPiece(text[begin:end], text[end:after]) for (begin, end), after in zip(spans, begins[1:], strict=True)
    ]


def _spans(text: str, begin: int, end: int, rules: SentenceRules) -> Iterator[tuple[int, int]]:
    """Yield the span of each sentence in a line, without surrounding space."""
    for stop in _ENDS.finditer(text, begin, end):
        if _ends(text, begin, end, stop, rules):
            yield from _bare_span(text, begin, stop.end())
            begin = stop.end()
    yield from _bare_span(text, begin, end)


def _bare_span(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    bare = text[begin:end].strip()
    if bare:
        start = text.index(bare, begin)
        yield start, start + len(bare)


def _ends(text: str, begin: int, end: int, stop: re.Match[str], rules: SentenceRules) -> bool:
    """Whether the sentence from `begin` ends at these stops, in a line up to `end`."""
    marks = stop[0]
    if marks[0] in "。！？｡":
        return marks[-1] not in "”」』" or not _SAID.match(text, stop.end(), min(end, stop.end() + 5))
    after = text[stop.end() : min(end, stop.end() + 80)]
    if not after[:1].isspace():  # in Chinese or Japanese text
        return True
    following = after.lstrip()
    goes_on = following[:1].islower() and not _CAMEL.match(following)
    if marks[0] in "!?":
        return marks[-1] in "!?" or not following.lstrip("-–— ")[:1].islower()  # "Why?" he asked.
    if goes_on or marks != ".":
        return not goes_on
    return _ends_at_word(text[max(begin, stop.start() - 60) : stop.start()], after, rules)


def _ends_at_word(before: str, after: str, rules: SentenceRules) -> bool:
    """Whether a single full stop behind these words, with no small letter after it, ends their sentence."""
    words = before.split()
    if not words or before[-1:].isspace():
        return True
    word, last = words[-1].lstrip(_OPENING), words[-2] if len(words) > 1 else ""
    match = _NEXT.match(after)
    name, stopped = (match[1], bool(match[2])) if match else ("", False)
    starts = name.lower() in rules.starters and not (stopped and len(name) == 1)
    known = _ends_at_abbreviation(word.lower(), last.lower(), name, starts, rules)
    if known is not None:
        return known
    if word.isdigit() and len(word) <= 3:
        return not _is_ordinal(last, name, starts, rules)
    if _INITIALS.fullmatch(word) and word[-1].isalpha():
        return _ends_at_initial(word, last, name, stopped, starts, rules)
    return True


def _ends_at_abbreviation(word: str, last: str, name: str, starts: bool, rules: SentenceRules) -> bool | None:
    """Whether a sentence ends at an abbreviation; None for other words."""
    number = name[:1].isdigit() or (name.isupper() and set(name) <= set("IVXLC") and not starts)
    if last.endswith(".") and f"{last}{word}" in rules.titles:
        return False  # z. B.
    if word in rules.titles or (word in rules.numbered and number):
        return False
    if word in rules.closing or (word in rules.numbered and len(word) > 1):
        return not number
    return starts if word in rules.others else None


def _is_ordinal(last: str, name: str, starts: bool, rules: SentenceRules) -> bool:
    """Whether a number is one as in "am 3. Mai", or counts what follows: "1. Introduction", "(2. Auflage)"."""
    if not last or last[-1:] in ":;–—" or name.lower() in rules.after_ordinals:
        return True
    return last.lower().lstrip(_OPENING) in rules.before_ordinals and not starts and name[:1].isupper()


def _ends_at_initial(word: str, last: str, name: str, stopped: bool, starts: bool, rules: SentenceRules) -> bool:
    """Whether a sentence ends at a single letter ("Plan B.") or at several (U.S.), which may be a name's (J. Smith)."""
    if starts:
        return True
    if not name[:1].isupper() or (stopped and len(name) == 1):
        return not name or not (name[:1].isdigit() or stopped)
    return last.lower().strip(_OPENING) in rules.before_letters and len(word) == 1 and word.isupper()


def group_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield indices of sentences in groups, the longest first; a sentence over the budget is a group of its own."""
    group: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if group and (len(group) + 1) * lengths[group[0]] > budget:
            yield group
            group = []
        group.append(i)
    if group:
        yield group
