"""Detection over all languages: what is in none of the served ones is told from them, little text decides little."""

from __future__ import annotations

import time

import pytest

from transduce.core.errors import UserError
from transduce.text import languages
from transduce.text.languages import LIKELY, OTHER, Detector, name_of
from transduce.translate import directions
from transduce.translate.directions import ChosenDirection, DirectionQuery

SIX = ("en", "de", "fr", "es", "pt", "zh")
PAIRS = tuple(pair for other in SIX[1:] for pair in (("en", other), (other, "en")))
RUSSIAN = "Привет, как дела? Мы давно не виделись."


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Cats like to sleep.", "en"),
        ("Ich habe Hunger, und du?", "de"),
        ("Elle est dans le jardin.", "fr"),
        ("¿Qué hay para comer?", "es"),
        ("Você não está em casa.", "pt"),
        ("猫喜欢睡觉。", "zh"),
        ("用 docker compose up 启动容器。", "zh"),  # Latin letters count less
        ("猫は眠るのが好きです。", "ja"),
        ("고양이는 자는 것을 좋아합니다.", "ko"),
        ("Η γάτα κοιμάται.", "el"),
        (RUSSIAN, "ru"),  # stands for all of its script
        ("De kat slaapt niet in het huis van mijn oma.", "nl"),
        ("The sign says “Привет”.", "en"),
        ("Gurken gedeihen vorzüglich.", ""),  # no such words
        ("Der Film is the best.", ""),  # of two languages
        ("12 + 7", ""),
    ],
)
def test_what_script_and_words_tell(text: str, language: str) -> None:
    assert Detector(SIX).plain(text) == language


def test_of_several_languages_in_a_script_one_that_is_served_is_left_to_the_tables() -> None:
    detector = Detector(("en", "ru"))
    assert detector.plain(RUSSIAN) == ""
    assert detector.detect(RUSSIAN)[0].language == "ru"
    assert detector.detect(RUSSIAN)[0].served


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Hello", "en"), ("Hello World", "en"), ("Thanks!", "en"), ("Hallo", "de"), ("Danke!", "de"), ("Merci", "fr"),
        ("bonjour", "fr"), ("¡Hola!", "es"), ("Gracias", "es"), ("Olá", "pt"), ("Obrigada", "pt"), ("你好", "zh"),
    ],
)  # fmt: skip
def test_a_word_is_enough_where_it_is_frequent(text: str, language: str) -> None:
    """The n-grams alone take "Hello" for Spanish."""
    first, second, *_ = Detector(SIX).detect(text)
    assert first.language == language
    assert first.confidence >= LIKELY > second.confidence


@pytest.mark.parametrize("text", ["OK", "Hotel", "Taxi", "pizza", "iPhone", "login", "Berlin", "GmbH", "12", "…"])
def test_what_is_a_word_everywhere_is_not_refused(text: str) -> None:
    assert not Detector(SIX).detect(text)[0].unsupported
    assert DirectionQuery(PAIRS, target="de").way(text).target == "de"


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (RUSSIAN, "ru"),
        ("Ciao, come stai? Io sto molto bene.", "it"),
        ("Dobrý den, jak se máte? Já se mám dobře.", "cs"),
        ("De kat slaapt niet in het huis van mijn oma.", "nl"),
        ("El gat dorm a casa amb els altres gats.", "ca"),
        ("Xin chào các bạn, hôm nay trời đẹp.", "vi"),
        ("Kedi uyumayı seviyor ve bugün evde kalıyor.", "tr"),
        ("Le catto dormi in le casa de mi matre e illo non vole exir.", "ia"),
        ("Привіт, як справи? Ми давно не бачилися.", "uk"),
    ],
)
def test_a_language_that_is_not_served_is_named(text: str, language: str) -> None:
    best, *served = Detector(SIX).detect(text)
    assert (best.language, best.unsupported) == (language, True)
    assert {found.language for found in served} == set(SIX)
    assert OTHER <= best.confidence <= 100


def test_frequent_words_of_ours_do_not_overrule_the_rest() -> None:
    """Polish "do" is Portuguese too, Dutch "is", "in" and "water" are English."""
    assert Detector(SIX).detect("Idę do domu na obiad, a ty?")[0].language == "pl"
    assert Detector(SIX).detect("Er is water in de kelder gelopen.")[0].language == "nl"


def test_what_is_no_language_is_not_examined() -> None:
    text = "Enter a valid value: https://example.com/this/that, %(value)s, {name}, <b>, me@example.com, some_name"
    assert languages.bare_words(text).split() == ["Enter", "a", "valid", "value:", ",", ",", ","]
    assert Detector(SIX).detect("%(full_name)s {first_name} https://example.com/the/and")[0].confidence == 0


def test_long_runs_take_no_time() -> None:
    started = time.monotonic()
    for text in (
        "a" * 100_000,
        "/" * 100_000,
        "a@" * 50_000,
        "<a" * 50_000,
        "{" * 100_000,
        "%(" * 50_000,
        "`" * 99_999,
    ):
        languages.bare_words(text)
    assert time.monotonic() - started < 2


def test_every_language_has_a_name_in_both_languages_of_the_interface() -> None:
    listed = {line.split()[0] for line in languages._WORDS_FILE.read_text("utf-8").split("\n")[:-1]}
    assert not [code for code in listed if name_of(code) == code or name_of(code, "zh") == code]
    assert name_of("nds") == "Low German"


def test_codes_are_the_models_own() -> None:
    assert Detector(("en-GB", "zh-Hans")).plain("Where is the station?") == "en-GB"
    assert Detector(("en-GB", "zh-Hans")).plain("猫喜欢睡觉。") == "zh-Hans"
    assert (
        Detector(("nb", "en"))
        .detect("Hva heter du, og hvor kommer du fra? Jeg vet ikke hva jeg skal gjøre nå.")[0]
        .language
        == "nb"
    )


def test_a_tag_names_its_language() -> None:
    assert [languages.language_of_tag(tag) for tag in ("<2de>", ">>zh<<", "de", "<s>")] == ["de", "zh", "", ""]


def test_no_table_is_read_for_what_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("tables were read")

    monkeypatch.setattr(languages, "_identifier", fail)
    assert DirectionQuery(PAIRS, target="zh").way("Cats like to sleep.") == ChosenDirection("en", "zh", True)
    assert DirectionQuery(PAIRS, target="en").way("猫喜欢睡觉。") == ChosenDirection("zh", "en", True)
    assert DirectionQuery(PAIRS, "de", "en").way("Ciao, come stai?") == ChosenDirection("de", "en")
    with pytest.raises(AssertionError, match="tables were read"):
        DirectionQuery(PAIRS, target="en").way("Gurken gedeihen vorzüglich.")


def test_nothing_is_read_where_the_source_was_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(languages, "_frequent_words", None)
    assert DirectionQuery(PAIRS, "de", "en").way(RUSSIAN) == ChosenDirection("de", "en")
    assert [run.left for run in DirectionQuery(PAIRS, "de", "en").parts(RUSSIAN, "en")] == [""]


def test_what_is_plain_and_wrong_is_refused() -> None:
    with pytest.raises(UserError, match=r"this seems to be English \(en\), which --to names too"):
        DirectionQuery(PAIRS, target="en").way("The cat is sleeping in the garden.")


@pytest.mark.parametrize("target", ["en", ""])
def test_a_language_that_the_model_does_not_know_is_refused_unless_insisted_on(target: str) -> None:
    message = (
        r"this looks like Russian \(ru\); the model translates English, German, French, Spanish, Portuguese, Chinese;"
        " if it is one of these, say so with --from"
    )
    with pytest.raises(UserError, match=message):
        DirectionQuery(PAIRS, target=target).way(RUSSIAN)
    with pytest.raises(UserError, match=r"this looks like Russian \(ru\)"):
        DirectionQuery((("de", "en"), ("fr", "en"))).way(RUSSIAN)  # a model of one target


def test_without_the_tables_script_and_words_refuse_what_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directions, "_can_detect", lambda: False)
    query = DirectionQuery(PAIRS, target="en")
    with pytest.raises(UserError, match=r"this looks like Russian \(ru\)"):
        query.way(RUSSIAN)
    with pytest.raises(UserError, match=r"this looks like Dutch \(nl\)"):
        query.way("De kat slaapt niet in het huis van mijn oma.")
    assert query.way("Gurken gedeihen vorzüglich.") == ChosenDirection("", "en")


def test_sentences_in_other_languages_are_named_and_the_rest_decides() -> None:
    query = DirectionQuery(PAIRS, target="en")
    text = "Guten Morgen, wie geht es dir? Wir sehen uns. Привет, как дела? The weather is very nice today."
    runs = query.parts(text, "en")
    assert [(run.piece.text, run.left[:16]) for run in runs] == [
        ("Guten Morgen, wie geht es dir? Wir sehen uns.", ""),
        ("Привет, как дела?", "this looks like "),
        ("The weather is very nice today.", "this is English "),
    ]
    assert "".join(run.piece.text + run.piece.space for run in runs) == text
    assert query.way(text) == ChosenDirection("de", "en", True)


def test_a_line_of_a_file_is_one_run_where_nothing_is_strange() -> None:
    for text in ("", "  ", "12", "Das ist gut. Das auch.", "OK\n", " Hotel. Taxi."):
        (run,) = DirectionQuery(PAIRS, target="en").parts(text, "en")
        assert (run.piece.text + run.piece.space, run.left) == (text, "")
