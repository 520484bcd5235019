"""The model that comes with the package, where a build carries one: number words here, put in by its one name.

What translate, inspect, serve and demo do where no model is named, with it and without it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from fnmatch import fnmatch
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import toy_model
from cli_runner import Run, refused
from no_torch import call, command
from rich.console import Console
from starlette.testclient import TestClient

import transduce
from transduce.core.errors import ConfigError, UserError
from transduce.engines.native.library import built
from transduce.exchange import convert
from transduce.text import languages
from transduce.translate import model_folder
from transduce.translate.directions import DirectionQuery, directions_of
from transduce.workflows.tour import EVERYDAY, tour

ROOT = Path(__file__).parents[2]
DIRECTIONS = ("en-de", "de-en", "en-zh", "zh-en")
LONG, GERMAN = "four hundred and twenty-one", "vierhunderteinundzwanzig"
FEW = ["training.steps=60", "validation.every=60", "training.learning_rate.rate=8e-3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the card stage of a pipeline leaves it: converted, with tokenizer, card and scores."""
    place = tmp_path_factory.mktemp("shipped")
    toy = toy_model.make(place / "toy", DIRECTIONS, FEW)
    if built() is None:
        found = shutil.copytree(toy.model, place / "everyday", ignore=shutil.ignore_patterns("checkpoints"))
    else:
        found = convert.convert(toy.model, place / "everyday")
    measured = [dict(zip(("source", "target"), name.split("-"), strict=True), bleu=12.5) for name in DIRECTIONS]
    (found / "scores.json").write_text(json.dumps({"teacher": {"directions": []}, "int8": {"directions": measured}}))
    return found


@pytest.fixture
def translator(folder: Path, monkeypatch: pytest.MonkeyPatch) -> transduce.Translator:
    """A build that carries the model."""
    monkeypatch.setattr(model_folder, "SHIPPED", folder)
    return transduce.load(folder)


# -- a build that carries none -----------------------------------------------------------------------------------------


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(model_folder, "SHIPPED", tmp_path / "none")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("bare")
def test_without_a_model_all_say_what_to_do(run: Run) -> None:
    told = "and this build of transduce carries none to use instead; give the folder of a trained or converted model"
    for words in (["translate"], ["translate", "--to", "zh"], ["serve"], ["inspect", "five"]):
        assert refused(run(*words)).startswith(f"no model is named, {told}"), words
    text = refused(run("translate", "--to", "zh", "Cats like to sleep."))
    assert text.startswith(f"'Cats like to sleep.' is no folder of a model, {told}")
    assert text.endswith("or train a small one with `transduce demo` (it will be in runs/demo/model)")
    with pytest.raises(UserError, match="no model is named, and this build of transduce carries none"):
        transduce.load()


@pytest.mark.usefixtures("bare")
def test_demo_trains_where_no_model_is_carried(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr("transduce.workflows.demo.demo", asked.append)
    assert run("demo").code == run("demo", "--train", "-o", "here").code == 0
    assert asked == [Path("runs/demo"), Path("here")]


def test_a_wheel_carries_the_folder() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["transduce"]
    inside = model_folder.SHIPPED.relative_to(ROOT / "transduce")
    for name in ("config.toml", "model.native", "native.json", "scores.json", "README.md", "tokenizer/source.model"):
        assert any(fnmatch(f"{inside}/{name}", pattern) for pattern in patterns), name


# -- translate ---------------------------------------------------------------------------------------------------------


def test_no_model_named_translates_with_ours(translator: transduce.Translator, run: Run) -> None:
    expected = translator([LONG, "five"], to="zh")
    assert transduce.load()([LONG, "five"], to="zh") == expected
    assert run("translate", "--to", "zh", LONG, "five").lines == expected
    assert run("translate", "--to", "ZH-cn", "--from", "EN", LONG, "five").lines == expected
    assert run("translate", "--to", "zh", stdin=f"{LONG}\nfive\n".encode()).lines == expected
    assert run("translate", "--from", "zh", stdin="五\n".encode()).lines == [translator("五", to="en")]


def test_the_language_decides_where_it_can(translator: transduce.Translator, run: Run) -> None:
    ran = run("translate", GERMAN, "四百二十一")
    assert ran.lines == [translator(GERMAN, to="en"), translator("四百二十一", to="en")]
    assert ran.err.startswith("recognised as German (de): to English (en)\nrecognised as Chinese (zh): to English (en)")
    assert "recognised" not in run("translate", "--from", "de", GERMAN).err


RUSSIAN = "Привет, как дела?"
LEFT = "is left as it is: this looks like Russian (ru); the model translates"


def test_a_text_in_an_unknown_language_is_refused_unless_insisted_on(
    translator: transduce.Translator, run: Run
) -> None:
    for options in ([], ["--to", "de"]):
        assert refused(run("translate", *options, RUSSIAN)).startswith(
            f"'{RUSSIAN}': this looks like Russian (ru); the"
        )
    assert run("translate", "--from", "en", "--to", "de", RUSSIAN).lines == [translator(RUSSIAN, to="de")]


def test_lines_in_unknown_languages_stay_and_are_named(
    translator: transduce.Translator, run: Run, tmp_path: Path
) -> None:
    """One line out for each line in, whatever is left as it is."""
    expected = [translator("five", to="de"), RUSSIAN, "", translator("six", to="de"), RUSSIAN]
    given = f"five\n{RUSSIAN}\n\nsix\n{RUSSIAN}\n".encode()
    ran = run("translate", "--to", "de", stdin=given)
    assert ran.lines == expected
    assert [f"line {number} {LEFT}" in ran.err for number in (1, 2, 3, 4, 5)] == [False, True, False, False, True]
    assert run("translate", "--to", "de", "--from", "en", stdin=given).lines[1] == translator(RUSSIAN, to="de")
    links = tmp_path / "links.txt"
    assert run("translate", "--to", "de", "--alignments", links, stdin=given).lines == expected
    assert len(links.read_text().split("\n")) == 6
    many = run("translate", "--to", "de", stdin=f"{RUSSIAN}\n".encode() * 5)
    assert many.err.count(LEFT) == 3
    assert "5 parts of lines were left as they are" in many.err


def test_sentences_of_a_line_that_are_no_source_stay(translator: transduce.Translator, run: Run) -> None:
    german = "Ich habe das Buch nicht gesehen."
    text = f"Where are the five books? {RUSSIAN} {german} These are the six."
    expected = f"{translator('Where are the five books?', to='de')} {RUSSIAN} {german} "
    expected += translator("These are the six.", to="de")
    for ran in (run("translate", "--to", "de", stdin=f"{text}\n".encode()), run("translate", "--to", "de", text)):
        assert ran.lines == [expected]
        assert "this is German (de) already" in ran.err
    ran = run("translate", "--to", "de", text, "five", "--n-best", "2")  # of the whole text
    assert ran.out.decode().split("\t")[2].split("\n")[0] == translator(text, to="de")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            [LONG],
            f"'{LONG}': this seems to be English (en), which the model translates to de, zh; pick one with --to; if",
        ),
        (
            ["--to", "de", GERMAN],
            f"'{GERMAN}': this seems to be German (de), which --to names too; give another language to"
            " translate to; if it is something else, say so with --from",
        ),
        (
            ["--to", "zh", GERMAN],
            f"'{GERMAN}': this seems to be German (de), which the model translates to en only; if",
        ),
        (["--to", "zh", "--from", "de"], "--from de: German (de), which the model translates to en only"),
        (["--from", "de", "--to", "de", "x"], "--from de: German (de), which --to names too; give another"),
        (["--from", "en"], "--from en: English (en), which the model translates to de, zh; pick one with --to"),
        (["--to", "sv", "x"], "--to sv: the model does not know this language; it knows en, de, zh"),
        (["12 + 7"], "'12 + 7': too little to tell which language it is in; say what to translate it to with --to"),
        ([], "--to: not given; which of de, en, zh is it to be translated to?"),
        (["--to", "de", "five", "-i", "file"], "texts and --input file were given; give one of them"),
    ],
)
@pytest.mark.usefixtures("translator")
def test_ways_that_are_refused(words: list[str], expected: str, run: Run) -> None:
    assert refused(run("translate", *words)).startswith(expected)


def test_what_may_be_a_path_is_one(
    translator: transduce.Translator, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    for word in ("runs/mistyped", "notes", "notes/my model", str(tmp_path)):
        assert f"{word}: not a trained model" in refused(run("translate", word, "five", "--to", "de")), word
    for text in ("tea and/or coffee", "https://example.org/five", "five. " * 60):
        assert run("translate", "--from", "en", "--to", "de", text).lines == [translator(text, to="de")]


def test_a_named_model_takes_the_directions_it_is_given(
    translator: transduce.Translator, folder: Path, run: Run, tmp_path: Path
) -> None:
    assert run("translate", folder, GERMAN, "--to", "de").lines == [translator(GERMAN, to="de")]
    assert run("translate", folder, GERMAN).lines == [translator(GERMAN)]
    assert run("translate", folder, GERMAN, "--from", "de").lines == [translator(GERMAN, to="en")]
    by_tags = directions_of(tmp_path, translator.tokenizers.source)  # where there are no scores
    assert sorted(by_tags) == sorted(permutations(["en", "de", "zh"], 2))


def test_a_folder_that_tells_no_languages(
    translator: transduce.Translator, folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.translate.directions.directions_of", lambda folder, tokenizer: ())
    assert refused(run("translate", folder, "five", "--from", "en")) == (
        f"--from en: {folder} does not tell which languages it translates; leave it out"
    )


def test_without_a_detector(translator: transduce.Translator, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid", None)
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    monkeypatch.setattr(languages, "_identifier", languages._identifier.__wrapped__)  # it may be read already
    assert run("translate", "--to", "de", GERMAN).lines == [translator(GERMAN, to="de")]
    assert refused(run("translate", GERMAN)) == (
        "without --to, telling which language a text is in needs py3langid: pip install 'transduce[serve]'"
    )


def test_scores_that_are_none(tmp_path: Path, translator: transduce.Translator) -> None:
    for text in ("[]", "{", '{"a": {"directions": [{"source": 1, "target": "de"}]}}'):
        (tmp_path / "scores.json").write_text(text)
        with pytest.raises(ConfigError, match="expected what the card stage of `transduce pipeline` writes"):
            directions_of(tmp_path, translator.tokenizers.source)


def test_a_model_of_one_target_needs_no_direction() -> None:
    assert DirectionQuery((("de", "en"), ("fr", "en"))).way("Guten Morgen").target == "en"
    with pytest.raises(UserError, match="which the model does not translate from"):
        DirectionQuery((("de", "en"), ("en", "de"), ("en", "fr")), "fr").way()


# -- inspect, serve, demo ----------------------------------------------------------------------------------------------


def test_inspect_and_serve_take_ours(
    translator: transduce.Translator, folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = run("inspect", GERMAN).out.decode()
    assert translator(GERMAN, to="en") in shown
    assert "everyday " in shown
    served: list[Any] = []
    monkeypatch.setattr("transduce.server.running.serve", lambda application, *rest: served.append(application))
    assert run("serve").code == 0
    with TestClient(served[0], "http://localhost") as client:
        found = client.post("/translate", json={"q": GERMAN, "source": "de", "target": "en"}).json()
        assert found["translatedText"] == translator(GERMAN, to="en")
        assert sorted(one["code"] for one in client.get("/languages").json()) == ["de", "en", "zh"]
        through = client.post("/translate", json={"q": GERMAN, "source": "de", "target": "zh"}).json()
        assert through["translatedText"] == translator(translator(GERMAN, to="en"), to="zh")


def test_demo_is_a_tour_of_ours(translator: transduce.Translator, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = run("demo")
    assert (ran.code, ran.err) == (0, "")
    shown = ran.out.decode()
    assert "\x1b" not in shown
    text = EVERYDAY["en"][0]
    for part in (
        "Translations, into every language that it has",
        "Where it looked when it wrote ",
        "The score: it finds its translation ",
        "BLEU on sentences that it never saw: en-de 12.5, de-en 12.5",
        f'transduce translate --to de "{text}"',
        f'transduce inspect "{text}" --to de --output page.html',
        "transduce demo --train",
    ):
        assert part in shown, part
    for begin, texts in EVERYDAY.items():
        ends = [name[-2:] for name in DIRECTIONS if name.startswith(begin)]
        for sentence in texts if ends else ():
            for words in (sentence, *translator([sentence] * len(ends), to=ends)):
                assert "".join(words.split()) in "".join(shown.split()), words


@pytest.mark.skipif(built() is None, reason="the core is not built: make native")
def test_neither_demo_nor_translate_needs_torch(translator: transduce.Translator, folder: Path, tmp_path: Path) -> None:
    shipped = f"transduce.translate.model_folder.SHIPPED = pathlib.Path({str(folder)!r})"
    put = f"import pathlib, transduce.translate.model_folder\n{shipped}\n"
    ran = call(put + command("demo"), tmp_path, stand_in=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "Now you:" in ran.stdout
    ran = call(put + command("translate", "--to", "zh", LONG), tmp_path, stand_in=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, translator(LONG, to="zh") + "\n", "")


def test_the_tour_shows_attention_alternatives_and_scores(translator: transduce.Translator, folder: Path) -> None:
    with (folder.parent / "shown").open("w+", encoding="utf-8") as file:
        tour(translator, folder, {"fr": ("x",), "en": ("forty-two, seven",)}, Console(file=file, width=100))
        file.seek(0)
        shown = file.read()
    texts = {to: translator("forty-two, seven", to=to) for to in ("de", "zh")}
    to, said = max(texts.items(), key=lambda one: len(one[1].split()))  # the one with the most words is looked at
    (scored,) = translator.score(["forty-two, seven"], [said], to)
    assert f"the log-probability {scored.log_prob:.2f} in all" in " ".join(shown.split())
    drawn = shown.split("the other.\n\n")[1].split("\n\n")[0]
    assert all(letter in drawn for letter in said)
    assert f"Where it looked when it wrote {said}" in shown
    assert any(shade in drawn for shade in "░▒▓█")
    assert "What it could have said after" in shown
    assert f"transduce serve {folder} " in shown
    assert "French" not in shown
