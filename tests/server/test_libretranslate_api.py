"""LibreTranslate's API: its shapes in JSON, forms and query strings, its status codes and its error texts."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

import transduce

ASKED = {"q": "five", "source": "en", "target": "de"}


def test_a_text_by_every_road(client: TestClient, served_translator: transduce.Translator) -> None:
    expected = {"translatedText": served_translator("five", to="de")}
    parts = {name: (None, value) for name, value in ASKED.items()}
    for answer in (
        client.post("/translate", json=ASKED),
        client.post("/translate", data=ASKED),
        client.post("/translate", params=ASKED),
        client.post("/translate", params={"q": "nine"}, data=ASKED),  # the body overrules
        client.post("/translate", files=parts),
        client.post("/translate", json={**ASKED, "format": None, "alternatives": None, "api_key": None}),
        client.post("/translate", json=ASKED, headers={"content-type": "application/vnd.api+json"}),
        client.post(
            "/translate", json={**ASKED, "source": "EN", "target": "de-AT", "format": "text", "api_key": "any"}
        ),
    ):
        assert (answer.status_code, answer.json()) == (200, expected)
        assert answer.headers["content-type"] == "application/json"


def test_lists_alternatives_and_detection(client: TestClient, served_translator: transduce.Translator) -> None:
    texts = ["five", "sixty-two, eleven"]
    asked = {"q": texts, "source": "auto", "target": "zh", "alternatives": 2}
    found = client.post("/translate", json=asked).json()
    expected = served_translator.translate(texts, to="zh", n_best=3)
    assert found["translatedText"] == [one.text for one in expected]
    for own, one in zip(found["alternatives"], expected, strict=True):
        assert own == list(dict.fromkeys(other.text for other in one.alternatives if other.text != one.text))
    assert [one["language"] for one in found["detectedLanguage"]] == ["en", "en"]
    assert client.post("/translate", json={**ASKED, "q": "", "source": "auto"}).status_code == 400
    single = client.post("/translate", data={**ASKED, "source": "auto", "alternatives": "1"}).json()
    assert isinstance(single["alternatives"], list)
    assert single["detectedLanguage"]["language"] == "en"
    assert 0 <= single["detectedLanguage"]["confidence"] <= 100


def test_what_else_there_is(client: TestClient) -> None:
    assert client.get("/languages").json() == [
        {"code": "de", "name": "German", "targets": ["de"]},
        {"code": "en", "name": "English", "targets": ["de", "en", "zh"]},
        {"code": "zh", "name": "Chinese", "targets": ["zh"]},
    ]
    # Some clients send a form with this GET.
    assert client.request("GET", "/languages", data={"api_key": ""}).status_code == 200
    refused = client.post("/languages")
    assert (refused.status_code, {*refused.headers["allow"].split(", ")}) == (405, {"GET", "HEAD"})
    found = client.post("/detect", data={"q": "These are five English words"}).json()
    assert found[0]["language"] == "en"
    assert 99 < found[0]["confidence"] <= 100
    assert {one["language"] for one in found} == {"de", "en", "zh"}
    settings = client.get("/frontend/settings").json()
    assert settings["charLimit"] == 5000
    assert settings["language"]["source"] == {"code": "en", "name": "English"}
    assert {"frontendTimeout", "apiKeys", "keyRequired", "suggestions", "filesTranslation"} < settings.keys()
    assert client.get("/health").json() == {"status": "ok"}
    described = client.get("/spec").json()
    assert described["swagger"] == "2.0"
    needed = {one["name"] for one in described["paths"]["/translate"]["post"]["parameters"] if one["required"]}
    assert needed == {"q", "source", "target"}
    assert client.post("/translate_file").status_code == 404
    suggested = client.post("/suggest", data={**ASKED, "s": "fünf"})
    assert (suggested.status_code, suggested.json()) == (403, {"error": "Suggestions are disabled on this server."})


def test_a_text_already_in_the_language_comes_back(client: TestClient) -> None:
    for language in ("en", "de"):
        asked = {"q": " as it  is\n", "source": language, "target": language}
        assert client.post("/translate", json=asked).json() == {"translatedText": " as it  is\n"}
    for text, language in ((" Ein Mann  schläft.\n", "de"), ("一个男人在睡觉。", "zh")):
        found = client.post("/translate", json={"q": text, "source": "auto", "target": language}).json()
        assert found["translatedText"] == text
        assert found["detectedLanguage"]["language"] == language
        assert 99 < found["detectedLanguage"]["confidence"] <= 100


def test_who_is_not_sure_translates(client: TestClient, served_translator: transduce.Translator) -> None:
    """What may be of the target language, or of any other, is taken for what a model reads."""
    for text in ("Handball", "Taxi"):
        found = client.post("/translate", json={"q": text, "source": "auto", "target": "de"}).json()
        assert found["translatedText"] == served_translator(text, to="de")
        assert found["detectedLanguage"]["language"] == "en"


def test_a_language_that_no_model_knows_is_named(client: TestClient, served_translator: transduce.Translator) -> None:
    french = "Et maintenant une phrase un peu plus longue"
    refused = client.post("/translate", json={"q": french, "source": "auto", "target": "de"})
    assert refused.status_code == 400
    assert refused.json()["error"] == (
        "This looks like French (fr), which is not supported as source; expected one of en; if it is one of these,"
        " say which instead of auto"
    )
    insisted = client.post("/translate", json={"q": french, "source": "en", "target": "de"}).json()
    assert insisted["translatedText"] == served_translator(french, to="de")
    first, *served = client.post("/detect", data={"q": french}).json()
    assert (first["language"], [one["confidence"] for one in served]) == ("fr", [0.0] * len(served))


def test_of_several_texts_one_in_an_unknown_language_stays_as_it_is(
    client: TestClient, served_translator: transduce.Translator
) -> None:
    texts = ["Where are the five books?", "Et maintenant une phrase un peu plus longue"]
    found = client.post("/translate", json={"q": texts, "source": "auto", "target": "de"}).json()
    assert found["translatedText"] == [served_translator(texts[0], to="de"), texts[1]]
    assert [one["language"] for one in found["detectedLanguage"]] == ["en", "fr"]


@pytest.mark.parametrize(
    ("changed", "status", "text"),
    [
        ({"q": None}, 400, "Invalid request: missing q parameter"),
        ({"q": ""}, 400, "Invalid request: missing q parameter"),
        ({"q": []}, 400, "Invalid request: missing q parameter"),
        ({"q": ["five", 5]}, 400, "Invalid request: q parameter is not a text or a list of texts"),
        ({"q": {"a": 1}}, 400, "Invalid request: q parameter is not a text or a list of texts"),
        ({"source": None}, 400, "Invalid request: missing source parameter"),
        ({"target": ""}, 400, "Invalid request: missing target parameter"),
        ({"target": 5}, 400, "Invalid request: target parameter is not a text"),
        ({"target": "zz"}, 400, "zz is not supported as target; expected one of de, zh"),
        ({"source": "xx"}, 400, "xx is not supported as source; expected one of en"),
        ({"source": "zh"}, 400, "German (de) is not available as a target language from Chinese (zh)"),
        ({"format": "pdf"}, 400, "pdf format is not supported"),
        ({"alternatives": "abc"}, 400, "Invalid request: alternatives parameter is not a number"),
        ({"alternatives": -1}, 400, "Invalid request: alternatives parameter must be >= 0, got -1"),
        ({"alternatives": 6}, 400, "Invalid request: alternatives parameter must be <= 5"),
        ({"q": "x" * 5001}, 400, "Invalid request: request (5001) exceeds text limit (5000)"),
        ({"q": ["x"] * 51}, 400, "Invalid request: request (51) exceeds text limit (50)"),
    ],
)
def test_refusals(changed: dict[str, Any], status: int, text: str, client: TestClient) -> None:
    asked = {name: value for name, value in {**ASKED, **changed}.items() if value is not None}
    answer = client.post("/translate", json=asked)
    assert (answer.status_code, answer.json()) == (status, {"error": text})


def test_bodies_that_are_not_read(client: TestClient) -> None:
    def post(body: bytes, kind: str = "application/json", **headers: str) -> tuple[int, str]:
        answer = client.post("/translate", content=body, headers={"content-type": kind, **headers})
        return answer.status_code, answer.json()["error"]

    assert post(b"{") == (
        400,
        "Invalid request: the body is no JSON (Expecting property name enclosed in double quotes: line 1 column 2"
        " (char 1))",
    )
    assert post(b"[]") == (400, "Invalid request: expected a JSON object")
    assert post(b'{"q": NaN}')[0] == 400
    assert post(b"[" * 60000)[1] == "Invalid request: the body is no JSON (it is nested too deeply)"
    assert post(b"\xff\xfe")[0] == 400
    assert post(b"x" * (128 * 1024 + 1)) == (413, "the body is longer than 131072 bytes")
    many = "&".join(f"a{i}=" for i in range(2000)).encode()
    text = "Invalid request: expected a form of at most 1000 fields in UTF-8"
    assert post(many, "application/x-www-form-urlencoded") == (400, text)
    assert post(b"--x", "multipart/form-data")[0] == 400
    assert post(b"", **{"content-encoding": "gzip"}) == (
        415,
        "content-encoding: expected none, since compressed bodies are not read",
    )
    lone = client.post("/translate", content=b'{"q": "\\ud800", "source": "en", "target": "de"}',
                       headers={"content-type": "application/json"})  # fmt: skip
    assert lone.status_code == 200  # lone surrogates are no text, and become one character that says so
