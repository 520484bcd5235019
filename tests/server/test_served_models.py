"""Models and their languages: what a command line names, what folders tell, and the way from one to another."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Run, refused
from starlette.testclient import TestClient

import transduce
from transduce.cli.serving import split_settings
from transduce.core.errors import ConfigError
from transduce.server import Served, Settings, application
from transduce.server.answers import Refused
from transduce.server.models import Models, open_models, pairs_of
from transduce.text.languages import Detected, find, name_of, pair_of

EN_DE, DE_EN, EN_ZH = ("en", "de"), ("de", "en"), ("en", "zh")


def test_codes() -> None:
    assert pair_of("en-de") == ("en", "de")
    assert pair_of("zh-Hans-pt-BR") == ("zh-Hans", "pt-BR")
    assert pair_of("en") is None
    assert (find("EN-us", ["de", "en"]), find("zh", ["zh-Hans"]), find("pt-BR", ["pt-PT"])) == ("en", "zh-Hans", None)
    assert (name_of("de"), name_of("de", "zh"), name_of("pt-BR"), name_of("xx")) == (
        "German",
        "德语",
        "Portuguese (BR)",
        "xx",
    )


def test_ways(served_translator: transduce.Translator) -> None:
    models = Models(
        [Served("a", served_translator, (EN_DE, DE_EN)), Served("b", served_translator, (EN_DE, EN_ZH))], "en"
    )
    assert [(hop.served.name, hop.target, hop.to) for hop in models.route("en", "de")] == [("a", "de", "de")]
    assert [(hop.served.name, hop.target, hop.to) for hop in models.route("DE", "zh")] == [
        ("a", "en", ""),
        ("b", "zh", "zh"),
    ]
    assert models.route("en", "en-GB") == ()
    assert (models.sources, models.targets("de")) == (("de", "en"), ("en", "zh"))
    assert [(hop.served.name, hop.source, hop.target) for hop in models.shadowed] == [("b", "en", "de")]
    strict = Models(models.served)
    with pytest.raises(Refused, match=r"Chinese \(zh\) is not available as a target language from German \(de\)"):
        strict.route("de", "zh")
    with pytest.raises(Refused, match="no model is named 'c'; there are a, b"):
        models.named("c")


def test_what_is_no_set_of_models(served_translator: transduce.Translator) -> None:
    one = Served("a", served_translator, (EN_DE,))
    with pytest.raises(ConfigError, match="models: none is given"):
        Models([])
    with pytest.raises(ConfigError, match="models: two have the name 'a'"):
        Models([one, one])
    with pytest.raises(ConfigError, match="pivot: expected one of de, en, got 'fr'"):
        Models([one], "fr")
    with pytest.raises(ConfigError, match="name: expected letters, digits, dots and hyphens, got 'a b'"):
        Served("a b", served_translator, (EN_DE,))
    with pytest.raises(ConfigError, match="a: no languages are named; say which it translates"):
        Served("a", served_translator, ())
    with pytest.raises(ConfigError, match="a: expected pairs of two languages, got en-en; a text that is in"):
        Served("a", served_translator, (EN_DE, ("en", "en")))


def test_folders_and_their_languages(native_toy: Path, served_translator: transduce.Translator, tmp_path: Path) -> None:
    (one,) = open_models([f"en-de,en-zh={native_toy}"], transduce.load)
    assert (one.name, one.pairs, one.tagged) == ("toy", (EN_DE, EN_ZH), {"de", "zh"})
    assert pairs_of(native_toy, served_translator) == (("de", "zh"), ("zh", "de"))  # by its tags, each to each
    (tmp_path / "scores.json").write_text(json.dumps({"s": {"directions": [{"source": "en", "target": "de"}]}}))
    assert pairs_of(tmp_path, served_translator) == (EN_DE,)
    (tmp_path / "scores.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"scores.json: cannot be read"):
        pairs_of(tmp_path, served_translator)
    with pytest.raises(ConfigError, match="expected languages as en-de=FOLDER or en-de,de-en=FOLDER, got 'english'"):
        open_models(["english=x"], transduce.load)
    with pytest.raises(ConfigError, match="xx-yy=x: 'xx' is the code of no language; expected those of ISO 639, as in"):
        open_models(["xx-yy=x"], transduce.load)

    class Untagged:
        class tokenizers:
            class source:
                size = 0

                @staticmethod
                def pieces(tokens: Any) -> list[str]:
                    return []

    with pytest.raises(ConfigError, match="its languages are not stated there; state them"):
        pairs_of(tmp_path / "none", Untagged)  # type: ignore[arg-type]


def test_of_likely_languages_the_first_that_can_be_translated_is_taken(
    served_translator: transduce.Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = application([Served("a", served_translator, (DE_EN,)), Served("b", served_translator, (EN_ZH,))], Settings())
    likely = [Detected("de", 60.0), Detected("en", 40.0)]
    monkeypatch.setattr(app.state.transduce.detector, "detect", lambda text: likely)
    asked = {"q": "Hand", "source": "auto", "target": "zh"}
    found = TestClient(app, "http://localhost").post("/translate", json=asked).json()
    assert found["detectedLanguage"]["language"] == "en"


def test_what_is_certain_is_not_taken_for_another_language(served_translator: transduce.Translator) -> None:
    served = [Served("a", served_translator, (DE_EN, EN_DE)), Served("b", served_translator, (EN_ZH,))]
    asked = {"q": "Das ist ein deutscher Satz, und das kann jeder sehen.", "source": "auto", "target": "zh"}
    without = TestClient(application(served, Settings()), "http://localhost").post("/translate", json=asked)
    assert without.status_code == 400
    assert without.json() == {"error": "Chinese (zh) is not available as a target language from German (de)"}
    through = TestClient(application(served, Settings(pivot="en")), "http://localhost").post("/translate", json=asked)
    assert through.json()["detectedLanguage"]["language"] == "de"


def test_pivot_and_detection_over_http(served_translator: transduce.Translator) -> None:
    served = [Served("a", served_translator, (DE_EN, EN_DE)), Served("b", served_translator, (EN_ZH,))]
    client = TestClient(application(served, Settings(pivot="en")), "http://localhost")
    english = served_translator("fünf")
    found = client.post("/translate", json={"q": "fünf", "source": "auto", "target": "zh"}).json()
    assert found["translatedText"] == served_translator(english, to="zh")
    assert found["detectedLanguage"]["language"] == "de"
    (german, *_) = client.post("/detect", data={"q": "das ist ein deutscher Satz"}).json()
    assert german["language"] == "de"
    assert german["confidence"] > 50
    same = client.post("/translate", json={"q": " as it  is\n", "source": "en", "target": "EN"})
    assert same.json() == {"translatedText": " as it  is\n"}
    asked = {"source": "de", "target": "zh", "texts": ["x"], "translations": ["y"]}
    assert client.post("/v1/score", json=asked).json()["error"] == "no model translates directly from de to zh"
    aligned = {"text": "fünf", "source": "de", "target": "zh", "alignment": "words"}
    for more, error in (
        ({}, "alignment: expected none from de to zh, which goes through en: no model sees both sides; translate from"),
        ({"stream": True}, "alignment: expected none with stream, got words"),
    ):
        refusal = client.post("/v1/translate", json=aligned | more)
        assert (refusal.status_code, refusal.json()["error"][: len(error)]) == (422, error)
    assert client.post("/v1/translate", json=aligned | {"target": "en"}).json()["translations"][0]["alignment"]
    html = client.post("/translate", json={"q": "<b>fünf</b>", "source": "de", "target": "zh", "format": "html"})
    assert html.json()["translatedText"] == f"<b>{found['translatedText']}</b>"
    assert client.post("/v1/translate", json={"text": "five", "target": "zh", "model": "b"}).status_code == 200


def test_other_names_are_not_ours(served_translator: transduce.Translator) -> None:
    app = application([Served("a", served_translator, (EN_DE,))], Settings(hosts=("localhost",)))
    assert TestClient(app, "http://localhost:5000").get("/health").status_code == 200
    answer = TestClient(app, "http://evil.example").get("/health")
    assert (answer.status_code, answer.json()["error"][:42]) == (421, "this server does not go by that name; star")


def test_the_command_line_refuses(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native_toy: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transduce.translate.model_folder.SHIPPED", tmp_path)  # whatever this build carries
    assert refused(run("serve")).startswith("no model is named, and this build of transduce carries none")
    assert "gone: not a trained model" in refused(run("serve", "gone"))
    assert "characters: expected an integer, got" in refused(run("serve", "x", "characters=many"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused(run("serve", native_toy, "--engine", "torch", "--port", port))
    assert said == f"127.0.0.1:{port}: cannot listen there (Address already in use); give another --host or --port"
    Path("keys").write_text("# none\n")
    assert refused(run("serve", native_toy, "--api-keys", "keys")).startswith("keys: no API key in it")
    told = "none: the file of API keys cannot be read: No such file or directory; give --api-keys a file with one"
    assert refused(run("serve", native_toy, "--api-keys", "none")).startswith(told)
    os.mkfifo("pipe")
    for name, why in (("pipe", "not a regular file"), ("/dev/zero", "not a regular file")):
        told = f"{name}: the file of API keys cannot be read: {why}; give --api-keys a file with one key a line"
        assert refused(run("serve", native_toy, "--api-keys", name)) == told
    Path("long").write_bytes(b"x\n" * (1 << 20))
    assert "cannot be read: larger than 1,048,576 bytes" in refused(run("serve", native_toy, "--api-keys", "long"))
    for line in ("schlüssel", "key # mine", "a\x07"):
        Path("keys").write_text(f"# whose\nfirst\n\n{line}\n", encoding="utf-8")
        told = refused(run("serve", native_toy, "--api-keys", "keys"))
        assert told.startswith("keys:4: keys: expected visible ASCII characters without spaces, got a key that has")
        assert told.endswith("; give one key a line, and comments on lines of their own")


def test_a_word_that_is_nearly_a_setting_is_reported_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [field.name for field in dataclasses.fields(Settings)]
    with pytest.raises(ConfigError) as caught:
        split_settings(["charakters=3"], names)
    assert str(caught.value).startswith(
        "'charakters=3': no such setting; did you mean 'characters'?; settings here: characters, texts, "
    )
    assert str(caught.value).endswith("models are given as FOLDER or en-de=FOLDER")
    with pytest.raises(ConfigError, match="'foo=1': no such setting; settings here: characters, texts"):
        split_settings(["foo=1"], names)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b").mkdir()  # a folder all the same
    words = ["en-de=models/a", "models/b", "characters=3", "de-en,en-fr=models/c", "a=b"]
    folders = ["en-de=models/a", "models/b", "de-en,en-fr=models/c", "a=b"]
    assert split_settings(words, names) == (folders, ["characters=3"])
    assert split_settings(["patience=1"], names, ["patience"]) == ([], ["patience=1"])
