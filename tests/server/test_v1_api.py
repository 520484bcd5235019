"""Our own API: what it gives is what the translator gives, in the shapes that its document promises."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import transduce
from transduce.server import Served, Settings, application
from transduce.server.admission import Keys
from transduce.server.protocols import glossaries, schemas
from transduce.server.protocols.v1 import routes
from transduce.text.tokenizer import Tokenizer

ASKED = {"text": "sixty-two, eleven", "source": "en", "target": "de"}
PAIR = {"source": "en", "target": "de", "texts": ["five", "sixty"], "translations": ["fünf", "sechzig"]}


def test_a_translation_with_every_option(client: TestClient, served_translator: transduce.Translator) -> None:
    found = client.post("/v1/translate", json={**ASKED, "n_best": 3, "alignment": "words"}).json()
    schemas.TranslateAnswer.model_validate(found)
    (one,) = found["translations"]
    (expected,) = served_translator.translate(["sixty-two, eleven"], to="de", n_best=3, align="words")
    assert (one["text"], one["score"], one["log_prob"]) == (expected.text, expected.score, expected.log_prob)
    assert [other["text"] for other in one["alternatives"]] == [other.text for other in expected.alternatives]
    assert expected.alignment is not None
    (aligned,) = one["alignment"]  # of one sentence
    assert aligned.keys() == {"source", "target", "links"}
    assert (aligned["source"], aligned["target"]) == ([*expected.alignment.source], [*expected.alignment.target])
    assert [(s, t) for s, t, _ in aligned["links"]] == list(expected.alignment.links)
    for s, t, weight in aligned["links"]:
        assert weight == pytest.approx(expected.alignment.weights[t][s], abs=1e-6)
    assert one["detected"] is None


def test_a_text_is_tokenized_once(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenized: list[str] = []
    encode = Tokenizer.encode

    def counting(self: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        tokenized.extend(texts)
        return encode(self, texts)

    monkeypatch.setattr(Tokenizer, "encode", counting)
    for asked in ({}, {"alignment": "pieces"}, {"n_best": 2, "beam": 2}):
        tokenized.clear()
        assert client.post("/v1/translate", json={**ASKED, **asked, "protect": False}).status_code == 200
        assert tokenized == [ASKED["text"]]


def test_spans_that_are_no_language_are_kept_unless_asked(client: TestClient) -> None:
    def text(**asked: Any) -> str:
        answer = client.post("/v1/translate", json={**ASKED, "text": "six {name} two", **asked})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["translations"][0]["text"])

    assert text().count("{name}") == 1
    assert "{name}" not in text(protect=False)


def test_constraints_of_a_request(client: TestClient, served_translator: transduce.Translator) -> None:
    def text(**asked: Any) -> str:
        answer = client.post("/v1/translate", json={**ASKED, **asked})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["translations"][0]["text"])

    assert text(prefix="zwei").startswith("zwei")
    assert "elf" not in text(exclude=["elf"])
    assert "neun" in text(include=["neun"], beam=4)
    assert text(beam=3) == served_translator("sixty-two, eleven", to="de", beam=3)
    assert text(text="one! two?\n three", source="auto") == (
        "! ".join([served_translator("one!", to="de"), ""])[:-2]
        + " "
        + served_translator("two?", to="de")
        + "\n "
        + served_translator("three", to="de")
    )


def test_a_long_text_goes_through_in_parts(client: TestClient, served_translator: transduce.Translator) -> None:
    lines = [f"{word}! {word}" for word in ("one", "two", "three", "four") * 40]
    found = client.post("/v1/translate", json={**ASKED, "text": "\n".join(lines)}).json()["translations"][0]
    assert len(found["sentences"]) == 320
    assert found["text"] == "".join(one["text"] + one["space"] for one in found["sentences"])
    singles = {one["source"]: one["text"] for one in found["sentences"]}
    assert singles == {text: served_translator(text, to="de") for text in singles}
    assert found["text"].count("\n") == 159


MIXED = "Where are the five books? Привет, как дела? Ich habe das nicht gesehen. We have the six books."


def test_sentences_in_other_languages_go_their_own_way(
    client: TestClient, served_translator: transduce.Translator
) -> None:
    """The Russian sentence has no model, the German one is in the target already."""
    body = {"text": MIXED, "source": "auto", "target": "de"}
    (found,) = client.post("/v1/translate", json=body).json()["translations"]
    assert found["detected"]["language"] == "en"
    first, russian, german, last = [one["source"] for one in found["sentences"]]
    expected = [served_translator(first, to="de"), russian, german, served_translator(last, to="de")]
    assert [one["text"] for one in found["sentences"]] == expected
    assert found["text"] == " ".join(expected)
    html = {**body, "text": f"<p>{first}</p> <p>{russian} &amp; <b>Москва</b></p>", "format": "html"}
    (found,) = client.post("/v1/translate", json=html).json()["translations"]
    assert found["text"] == f"<p>{served_translator(first, to='de')}</p> <p>{russian} &amp; <b>Москва</b></p>"
    lines = [json.loads(line) for line in client.post("/v1/translate", json={**body, "stream": True}).text.splitlines()]
    assert [line["text"] for line in lines if "text" in line] == expected
    (insisted,) = client.post("/v1/translate", json={**body, "source": "en"}).json()["translations"]
    assert insisted["sentences"][1]["text"] == served_translator(russian, to="de")


def test_a_text_in_an_unknown_language_is_refused_with_its_name(client: TestClient) -> None:
    refused = client.post("/v1/translate", json={"text": "Привет, как дела?", "source": "auto", "target": "de"})
    assert refused.status_code == 400
    assert (refused.json()["code"], refused.json()["language"]) == ("source", "ru")


def test_a_sentence_is_translated_where_the_rest_stays(
    client: TestClient, served_translator: transduce.Translator
) -> None:
    text = "Ich habe das Buch nicht gesehen, und du auch nicht. Where are the books?"
    (found,) = client.post("/v1/translate", json={"text": text, "target": "de"}).json()["translations"]
    german, english = [one["source"] for one in found["sentences"]]
    assert [one["text"] for one in found["sentences"]] == [german, served_translator(english, to="de")]
    russian = "Привет, как у вас сегодня дела, мои дорогие друзья? Where are the books?"
    (found,) = client.post("/v1/translate", json={"text": russian, "target": "de"}).json()["translations"]
    assert found["detected"]["language"] == "ru"
    assert found["sentences"][1]["text"] == served_translator("Where are the books?", to="de")


def test_streaming(client: TestClient) -> None:
    asked = {**ASKED, "text": ["one! two", "three"]}
    plain = client.post("/v1/translate", json=asked).json()["translations"]
    answer = client.post("/v1/translate", json={**asked, "stream": True})
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.split("\n")[:-1]]
    assert lines.pop() == {"done": True}
    assert [(line["number"], line["sentence"], line["source"]) for line in lines] == [
        (0, 0, "one!"),
        (0, 1, "two"),
        (1, 0, "three"),
    ]
    assert "".join(line["text"] + line["space"] for line in lines if not line["number"]) == plain[0]["text"]
    failing = client.post("/v1/translate", json={**asked, "stream": True, "include": ["neun"]})
    assert "words that must appear need a beam search" in json.loads(failing.text.split("\n")[0])["error"]
    assert client.app.state.transduce.gate.held == 0  # type: ignore[attr-defined]


def test_no_space_and_no_text_is_lost(client: TestClient) -> None:
    """Whatever the languages are: what stands before the first sentence, and the rest, is the whole text."""
    texts = ["  one! two\n", " \n ", "\tthree"]
    for target in ("de", "en"):
        asked = {**ASKED, "text": texts, "target": target}
        plain = client.post("/v1/translate", json=asked).json()["translations"]
        answer = client.post("/v1/translate", json={**asked, "stream": True}).text
        lines = [json.loads(line) for line in answer.split("\n")[:-2]]
        for number, (text, one) in enumerate(zip(texts, plain, strict=True)):
            own = [line for line in lines if line["number"] == number]
            joined = "".join(line["before"] + line["text"] + line["space"] for line in own)
            assert joined == one["text"] == text if target == "en" else joined == one["text"] != ""
            told = one["before"] + "".join(part["text"] + part["space"] for part in one["sentences"])
            assert told == one["text"]
            assert one["before"] == own[0]["before"] == text[: len(text) - len(text.lstrip())]


def test_confidence_of_texts_and_sentences(client: TestClient, served_translator: transduce.Translator) -> None:
    def sure(source: str, read: Sequence[int], found: Any, written: Sequence[int], to: str = "") -> float:
        return 0.75 if source == "Five." else 0.25

    asked = {**ASKED, "text": "Five. Sixty-two, eleven."}
    assert client.post("/v1/translate", json=asked).json()["translations"][0]["confidence"] is None
    translator = copy(served_translator)
    translator.confidence = sure
    with TestClient(application([Served("a", translator, (("en", "de"),))]), "http://localhost") as sure_client:
        (one,) = sure_client.post("/v1/translate", json=asked).json()["translations"]
        assert 0.25 < one["confidence"] < 0.75
        lines = sure_client.post("/v1/translate", json={**asked, "stream": True}).text.split("\n")
        assert [json.loads(line).get("confidence") for line in lines[:2]] == [0.75, 0.25]
        html = {**asked, "text": "<p>Five.</p>", "format": "html"}
        assert sure_client.post("/v1/translate", json=html).json()["translations"][0]["confidence"] == 0.75


def test_confidence_through_two_models_is_that_of_both(served_translator: transduce.Translator) -> None:
    translator = copy(served_translator)
    translator.confidence = lambda source, read, found, written, to="": 0.5 if to == "zh" else 0.75
    served = [Served("a", translator, (("de", "en"),)), Served("b", translator, (("en", "zh"),))]
    with TestClient(application(served, Settings(pivot="en")), "http://localhost") as client:
        answer = client.post("/v1/translate", json={"text": "fünf", "source": "de", "target": "zh"}).json()
        assert answer["translations"][0]["confidence"] == 0.375


def test_html_has_the_scores_of_its_passages(client: TestClient, served_translator: transduce.Translator) -> None:
    asked = {**ASKED, "format": "html", "text": "<p> five</p> <ul><li>sixty-two, eleven</li></ul>"}
    (found,) = client.post("/v1/translate", json=asked).json()["translations"]
    parts = served_translator.translate(["five", "sixty-two, eleven"], to="de")
    assert found["score"] == pytest.approx(sum(one.score for one in parts))
    assert found["log_prob"] == pytest.approx(sum(one.log_prob for one in parts))
    assert found["log_prob"] < 0


def test_what_goes_wrong_is_an_answer_too(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(text: str) -> None:
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr(client.app.state.transduce.detector, "detect", fail)  # type: ignore[attr-defined]
    answer = client.post("/v1/detect", json={"text": "five"})
    said = {"error": "something went wrong here; the server's log says what", "code": "fault"}
    assert (answer.status_code, answer.json()) == (500, said)
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert 'transduce_requests_total{endpoint="/v1/detect",status="500"} 1.0' in client.get("/metrics").text
    assert "ZeroDivisionError: unforeseen" in caplog.text


def test_scores_alignments_and_attention(client: TestClient, served_translator: transduce.Translator) -> None:
    texts, translations = PAIR["texts"], PAIR["translations"]
    scores = client.post("/v1/score", json=PAIR).json()
    schemas.ScoreAnswer.model_validate(scores)
    expected = served_translator.score(texts, translations, "de")
    assert [one["log_prob"] for one in scores["scores"]] == [one.log_prob for one in expected]
    aligned = client.post("/v1/align", json={**PAIR, "unit": "pieces", "layer": -1}).json()
    schemas.AlignAnswer.model_validate(aligned)
    matrices = served_translator.align(texts, translations, "de", "pieces", -1)
    for one, matrix in zip(aligned["alignments"], matrices, strict=True):
        assert one.keys() == {"source", "target", "links"}
        assert [(s, t) for s, t, _ in one["links"]] == list(matrix.links)
        assert [weight for *_, weight in one["links"]] == pytest.approx(list(matrix.strengths), abs=1e-6)
    one = {**PAIR, "texts": texts[:1], "translations": translations[:1], "unit": "pieces", "layer": -1, "matrix": True}
    dense = client.post("/v1/align", json=one).json()
    schemas.AlignAnswer.model_validate(dense)
    assert dense["alignments"][0]["weights"] == [list(row) for row in matrices[0].weights]
    attention = client.post("/v1/attention", json=PAIR).json()
    schemas.AttentionAnswer.model_validate(attention)
    assert [len(one["layers"]) for one in attention["pairs"]] == [1, 1]
    assert attention["pairs"][0]["layers"][0] == dense["alignments"][0]["weights"]
    wrong = client.post("/v1/align", json={**PAIR, "layer": 7})
    assert (wrong.status_code, wrong.json()["error"][:6]) == (400, "layer:")


def test_what_is_served(client: TestClient) -> None:
    assert client.get("/v1/models").json() == [{"name": "toy", "pairs": [["en", "de"], ["en", "zh"]]}]
    assert client.get("/v1/languages").json() == [{"code": "en", "name": "English", "targets": ["de", "zh"]}]
    for text, first in (("Das sind deutsche Wörter", {"language": "de", "confidence": 100.0}),
                        ("12", {"language": "en", "confidence": 0.0})):  # fmt: skip
        found = client.post("/v1/detect", json={"text": text}).json()
        assert found[0] == first
        assert {one["language"] for one in found} == {"en", "de", "zh"}
    described = client.get("/v1/openapi.json").json()
    assert described["openapi"] == "3.1.0"
    limits = described["components"]["schemas"]["TranslateRequest"]["properties"]
    assert limits["n_best"]["maximum"] == 6
    aligned = described["components"]["schemas"]["AlignRequest"]["properties"]
    assert aligned["source"]["enum"] == ["de", "en", "zh"]
    assert (aligned["layer"]["anyOf"][0]["minimum"], aligned["layer"]["anyOf"][0]["maximum"]) == (-100, 100)
    for path in ("/translate", "/detect", "/v2/translate"):
        asked = described["paths"][path]["post"]
        assert asked["requestBody"]["required"]
        texts = [answer["description"] for answer in asked["responses"].values()]
        assert len(texts) == len({*texts}), "each status has its own reason"
    paths = {"/translate", "/detect", "/languages", "/frontend/settings", "/health", "/spec"}
    assert described["paths"].keys() >= paths | {"/v2/translate", "/v2/languages", "/v2/usage"}
    asked = described["paths"]["/translate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert asked["properties"]["alternatives"]["anyOf"][0] == {"type": "integer", "maximum": 5}
    for path, sent in (
        ("/translate", {"q": "five", "source": "auto", "target": "de", "alternatives": 1}),
        ("/v2/translate", {"text": ["five"], "target_lang": "DE"}),
    ):
        told = described["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        found = client.post(path, json=sent).json()
        if "translations" in found:
            told, found = told["properties"]["translations"]["items"], found["translations"][0]
        assert found.keys() == told["properties"].keys()


def test_every_endpoint_of_ours_is_described(client: TestClient) -> None:
    every = [*routes(), *glossaries.routes()]
    paths = {route.path for route in every} - {"/v1/openapi.json"}  # type: ignore[attr-defined]
    described = client.get("/v1/openapi.json").json()["paths"]
    assert paths == {path for path in described if path.startswith("/v1/")}
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    assert not [path for path in paths if f"`{path}`" not in page]


def test_examples_of_the_document_are_answered_and_shown(client: TestClient) -> None:
    described = client.get("/v1/openapi.json").json()
    page = html.unescape(client.get("/docs").text)
    for path, operations in described["paths"].items():
        for method in operations:
            assert f'data-method="{method.upper()}" data-path="{path}"' in page
        if "post" in operations:
            example = operations["post"]["requestBody"]["content"]["application/json"]["example"]
            assert client.post(path, json=example).status_code in (200, 201), path
            assert json.dumps(example, ensure_ascii=False, indent=1) in page
    assert "translations[].<wbr>alternatives[].<wbr>log_prob" in page
    assert "text (at most 5000 characters) or list (1 to 50) of text (at most 5000 characters)" in page
    assert "integer (1 to 6), default <code>1</code>" in page


@pytest.mark.parametrize(
    ("path", "changed", "status", "text"),
    [
        ("translate", {"target": None}, 422, "target: expected this field, which has no default, and found none"),
        ("translate", {"beem": 2}, 422, "beem: no such field; did you mean 'beam'?; fields here: text, source, "),
        ("translate", {"text": None, "tekst": "x"}, 422, "tekst: no such field; did you mean 'text'?"),
        ("translate", {"text": "x" * 5001}, 400, "text: expected at most 5000 characters, got 5001; send it in parts"),
        ("translate", {"text": ["x"] * 51}, 400, "text: expected at most 50 texts, got 51; send fewer at a time"),
        ("translate", {"prefix": "x" * 5001}, 400, "prefix: expected at most 5000 characters, got 5001; send it"),
        ("score", {"texts": ["x" * 5001]}, 400, "texts: expected at most 5000 characters, got 5001; send it in parts"),
        (
            "detect",
            {**dict.fromkeys(PAIR), "text": "x" * 5001},
            400,
            "text: expected at most 5000 characters, got 5001",
        ),
        ("translate", {"n_best": 7}, 422, "n_best: expected at most 6, got 7"),
        (
            "translate",
            {"n_best": 4, "beam": 2},
            422,
            "n_best: expected at most the beam's size (2), got 4; give a larger",
        ),
        ("translate", {"stream": True, "format": "html"}, 422, "stream: expected format text, got html"),
        ("translate", {"stream": True, "n_best": 2}, 422, "n_best: expected 1 with stream, got 2"),
        ("translate", {"stream": True, "alignment": "words"}, 422, "alignment: expected none with stream, got words"),
        ("translate", {"format": "html", "n_best": 3}, 422, "n_best: expected 1 with format=html, got 3"),
        ("translate", {"format": "html", "alignment": "pieces"}, 422, "alignment: expected none with format=html"),
        ("translate", {"n_best": "2"}, 422, 'n_best: expected an integer, got "2"'),
        ("translate", {"n_best": 0}, 422, "n_best: expected a number of at least 1, got 0"),
        ("translate", {"beam": 17}, 422, "beam: expected a number of at most 16, got 17"),
        ("translate", {"stream": "yes"}, 422, 'stream: expected true or false, got "yes"'),
        ("translate", {"text": 3}, 422, "text: expected a text or a list, got 3"),
        ("translate", {"text": {}}, 422, "text: expected a text or a list, got an object"),
        ("translate", {"text": ["five", 3]}, 422, "text[1]: expected a text, got 3"),
        ("translate", {"text": []}, 422, "text: expected a list of at least 1 item, got a list of 0 items"),
        ("translate", {"target": "d"}, 422, 'target: expected a text of at least 2 characters, got "d"'),
        ("translate", {"target": "d e"}, 422, "target: expected a code of letters, digits, _ and -, such as de, got"),
        ("translate", {"model": "a/b"}, 422, "model: expected a name of letters, digits, dots, _ and -, got"),
        ("translate", {"alignment": "x"}, 422, "alignment: expected 'words' or 'pieces', got \"x\""),
        ("translate", {"include": ["x"] * 17}, 422, "include: expected a list of at most 16 items, got a list of 17"),
        ("translate", {"include": ["six", " "]}, 422, 'include[1]: expected a word that can be seen, got " "'),
        ("translate", {"include": ["x" * 101]}, 422, "include[0]: expected a text of at most 100 characters, got"),
        ("align", {"layer": 1000}, 422, "layer: expected a number of at most 100, got 1000"),
        ("translate", {"model": "none"}, 404, "no model is named 'none'; there are toy"),
        ("translate", {"include": ["neun"]}, 400, "include: words that must appear need a beam search"),
        ("translate", {"target": "fr"}, 400, "fr is not supported as target; expected one of de, zh"),
        ("score", {"texts": ["five"]}, 422, "translations: expected one a text, got 1 texts and 2 translations"),
        ("score", {"source": "de"}, 400, "no model translates directly from de to de"),
        ("score", {"texts": ["five " * 900, "x"]}, 422, "texts: a pair of "),
        ("align", {"matrix": True}, 422, "matrix: expected one pair with it, got 2; ask for each alone"),
        ("translate", {"prefix": "fünf " * 900}, 422, "prefix: expected at most "),
        ("translate", {f"field {i}": i for i in range(30)}, 422, "field 0: no such field; fields here: text, source"),
    ],
)
def test_refusals(path: str, changed: dict[str, Any], status: int, text: str, client: TestClient) -> None:
    whole = {**(ASKED if path == "translate" else PAIR), **changed}
    answer = client.post(f"/v1/{path}", json={name: value for name, value in whole.items() if value is not None})
    assert (answer.status_code, answer.json()["error"][: len(text)]) == (status, text)
    assert answer.json()["code"]


def test_a_body_that_is_no_object_is_reported_without_names_of_classes(client: TestClient) -> None:
    for body, found in (([1], "a list of 1 item"), ("x", '"x"'), (3, "3")):
        answer = client.post("/v1/align", json=body)
        assert (answer.status_code, answer.json()["error"]) == (422, f"the body: expected a JSON object, got {found}")


def test_other_methods_are_told_which_are_allowed(client: TestClient) -> None:
    for method, path, allowed in (("GET", "/v1/translate", "POST"), ("POST", "/v1/models", "GET or HEAD")):
        answer = client.request(method, path)
        assert {*answer.headers["allow"].split(", ")} == {*allowed.split(" or ")}
        told = {"error": f"{path}: expected {allowed}, got {method}", "code": "http"}
        assert (answer.status_code, answer.json()) == (405, told)


def test_only_json_is_read(client: TestClient) -> None:
    answer = client.post("/v1/translate", data=ASKED)
    assert (answer.status_code, answer.json()["error"]) == (415, "content-type: expected application/json")


def test_a_full_server_says_when_to_come_again(client: TestClient) -> None:
    gate = client.app.state.transduce.gate  # type: ignore[attr-defined]
    gate.held = gate.most
    try:
        for path, told in (("/translate", "error"), ("/v2/translate", "message"), ("/v1/translate", "error")):
            answer = client.post(path, content=b"{")  # which nobody reads
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json()[told] == "this server is busy; try again later"
        assert {client.get(path).status_code for path in ("/livez", "/readyz", "/languages", "/")} == {200}
    finally:
        gate.held = 0
    assert client.post("/v1/translate", json=ASKED).status_code == 200


def test_a_deadline_ends_the_work(served_translator: transduce.Translator) -> None:
    """At once or in lines; then there is capacity again."""
    app = application([Served("toy", served_translator, (("en", "de"),))], Settings(seconds=0.05))
    client, gate = TestClient(app, "http://localhost"), app.state.transduce.gate
    asked = {"text": ["seven, eleven, " * 150] * 30, "source": "en", "target": "de", "beam": 16}
    answer = client.post("/v1/translate", json=asked)
    assert (answer.status_code, answer.headers["retry-after"]) == (504, "1")
    assert answer.json() == {"error": "the answer took longer than 0.05 s", "code": "deadline"}
    assert (gate.held, gate.requests) == (0, 0)
    streamed = client.post("/v1/translate", json={**asked, "stream": True})
    assert json.loads(streamed.text.split("\n")[-2]) == {"error": "the answer took too long", "code": "deadline"}
    assert (gate.held, gate.requests) == (0, 0)


def test_keys_and_their_rate(served_translator: transduce.Translator) -> None:
    settings = Settings(keys=("one", "two"), requests_a_minute=2)
    app = application([Served("toy", served_translator, (("en", "de"),))], settings)
    app.state.transduce.keys = Keys(settings.keys, settings.requests_a_minute, wrong_seconds=0.0)
    client = TestClient(app, "http://localhost", client=("127.0.0.1", 50000))

    def ask(key: str) -> tuple[int, str]:
        answer = client.post("/v1/translate", json=ASKED, headers={"Authorization": f"Bearer {key}"} if key else {})
        return answer.status_code, answer.json().get("error", "") + answer.headers.get("retry-after", "")

    assert ask("") == (400, "Please contact the server operator to get an API key")
    assert ask("three") == (403, "Invalid API key")
    assert [ask("one")[0] for _ in range(2)] == [200, 200]
    assert ask("one") == (429, "Slowdown: 2 requests a minute are allowed30")
    assert ask("two")[0] == 200
    libre = client.post("/translate", data={"q": "five", "source": "en", "target": "de", "api_key": "two"})
    assert libre.status_code == 200
    assert client.get("/frontend/settings").json()["keyRequired"] is True
    described = client.get("/v1/openapi.json").json()
    assert described["security"] == [{"key": []}]
    for path, operations in described["paths"].items():
        for method, operation in operations.items():  # who has no key is told what the document says is for all
            open_to_all = operation.get("security") == []
            assert client.request(method, path).is_success is open_to_all, path
    metrics = client.get("/metrics").text
    assert 'transduce_requests_total{endpoint="/v1/translate",status="200"} 3.0' in metrics
    assert not any(word in metrics for word in ('one"', 'two"', "sixty", "testclient", "127.0.0.1"))
