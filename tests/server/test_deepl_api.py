"""The part of DeepL's API v2 that is offered: shapes, codes of languages, and error texts."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

import transduce
from transduce.server import Served, Settings, application


def test_translating(client: TestClient, served_translator: transduce.Translator) -> None:
    texts = ["five", "sixty"]
    expected = [
        {"detected_source_language": "EN", "text": text, "billed_characters": len(source)}
        for source, text in zip(texts, served_translator(texts, to="de"), strict=True)
    ]
    asked = {"text": texts, "target_lang": "DE", "show_billed_characters": True, "formality": "less"}
    assert client.post("/v2/translate", json=asked).json() == {"translations": expected}
    form = {"text": texts, "target_lang": "de", "source_lang": "en", "split_sentences": "0"}
    assert client.post("/v2/translate", data=form).json() == {"translations": expected}
    assert client.get("/v2/usage").json() == {"character_count": 18, "character_limit": 10**12}


def test_languages(served_translator: transduce.Translator) -> None:
    pairs = (("en", "de"), ("de", "en"), ("en", "zh"))
    client = TestClient(application([Served("toy", served_translator, pairs)]), "http://localhost")
    assert client.get("/v2/languages").json() == [
        {"language": "DE", "name": "German"},
        {"language": "EN", "name": "English"},
    ]
    for answer in (
        client.get("/v2/languages", params={"type": "target"}),
        client.request("GET", "/v2/languages", data={"type": "target"}),
    ):
        assert [one["language"] for one in answer.json()] == ["DE", "EN-GB", "EN-US", "ZH"]
    found = client.post("/v2/translate", json={"text": ["fünf"], "source_lang": "DE", "target_lang": "EN-US"})
    assert found.status_code == 200


@pytest.mark.parametrize(
    ("changed", "status", "text"),
    [
        ({"text": []}, 400, "Parameter 'text' not specified."),
        ({"text": [1]}, 400, "Value for 'text' not supported."),
        ({"text": ["x"] * 51}, 400, "Too many texts: 51, and 50 are allowed."),
        ({"text": ["x" * 5001]}, 400, "Text too long: 5001 characters, and 5000 are allowed."),
        ({"target_lang": ""}, 400, "Parameter 'target_lang' not specified."),
        ({"target_lang": "XX"}, 400, "Value for 'target_lang' not supported."),
        ({"source_lang": "XX"}, 400, "Value for 'source_lang' not supported."),
        ({"formality": ["x"], "tag_handling": []}, 400, "Value for 'tag_handling' not supported."),
        ({"tag_handling": "markdown"}, 400, "Value for 'tag_handling' not supported."),
        ({"glossary_id": "g", "source_lang": "EN"}, 404, "Glossary not found"),
    ],
)
def test_refusals(changed: dict[str, Any], status: int, text: str, client: TestClient) -> None:
    answer = client.post("/v2/translate", json={"text": ["five"], "target_lang": "DE", **changed})
    assert (answer.status_code, answer.json()) == (status, {"message": text})


def test_what_is_not_offered(client: TestClient) -> None:
    for path in ("/v2/document", "/v3/style_rules"):
        answer = client.post(path)
        assert (answer.status_code, answer.json()) == (404, {"message": f"{path}: there is nothing here"})
    for kind in ("both", ""):
        wrong = client.get("/v2/languages", params={"type": kind})
        assert (wrong.status_code, wrong.json()) == (400, {"message": "Value for 'type' not supported."})


def test_tags(client: TestClient, served_translator: transduce.Translator) -> None:
    for handling in ("html", "XML"):
        asked = {"text": "<p>five</p>", "target_lang": "DE", "tag_handling": handling}
        (found,) = client.post("/v2/translate", json=asked).json()["translations"]
        assert found["text"] == f"<p>{served_translator('five', to='de')}</p>"


def test_keys(served_translator: transduce.Translator) -> None:
    settings = Settings(keys=("secret",))
    client = TestClient(application([Served("toy", served_translator, (("en", "de"),))], settings), "http://localhost")
    asked = {"text": ["five"], "target_lang": "DE"}
    for headers in ({}, {"Authorization": "DeepL-Auth-Key wrong"}):
        refused = client.post("/v2/translate", json=asked, headers=headers)
        assert (refused.status_code, refused.json()) == (403, {"message": "Authorization failure, check auth_key"})
    found = client.post("/v2/translate", json=asked, headers={"Authorization": "DeepL-Auth-Key secret"})
    assert found.status_code == 200


def test_a_language_that_no_model_knows_is_named(client: TestClient, served_translator: transduce.Translator) -> None:
    """As a message for one text; of several it is the detected language, and the text stays."""
    russian = "Привет, как дела?"
    refused = client.post("/v2/translate", json={"text": [russian], "target_lang": "DE"})
    assert refused.status_code == 400
    assert refused.json()["message"].startswith("This looks like Russian (ru), which is not supported as source;")
    both = client.post(
        "/v2/translate", json={"text": ["Where are the five books?", russian], "target_lang": "DE"}
    ).json()
    assert [(one["detected_source_language"], one["text"]) for one in both["translations"]] == [
        ("EN", served_translator("Where are the five books?", to="de")),
        ("RU", russian),
    ]
    insisted = {"text": [russian], "source_lang": "EN", "target_lang": "DE"}
    (found,) = client.post("/v2/translate", json=insisted).json()["translations"]
    assert (found["detected_source_language"], found["text"]) == ("EN", served_translator(russian, to="de"))
