"""Glossaries over HTTP: DeepL's v2 and v3, our own, and terms in translations; kept by key, and on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import transduce
from transduce.core.errors import RunError
from transduce.server import Served, Settings, application
from transduce.server.admission import PASSES_TERMS
from transduce.server.answers import Refused
from transduce.server.glossaries import GlossaryStore
from transduce.text.terms import Term

FORM = {"name": "mine", "source_lang": "EN", "target_lang": "de", "entries_format": "tsv", "entries": "five\tzwölf\n"}
ENGLISH = {"source_lang": "en", "target_lang": "de", "entries": "five\tzwölf", "entries_format": "tsv"}
GERMAN = {"source_lang": "de", "target_lang": "en", "entries": "acht,eight", "entries_format": "csv"}
NOBODY = "01234567-0123-0123-0123-0123456789ab"


def served(translator: transduce.Translator, **settings: Any) -> TestClient:
    return TestClient(
        application([Served("toy", translator, (("en", "de"),))], Settings(**settings)), "http://localhost"
    )


def made(client: TestClient, **changed: Any) -> dict[str, Any]:
    answer = client.post("/v2/glossaries", data={**FORM, **changed})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


# -- DeepL ------------------------------------------------------------------------------------------------------------


def test_v2_makes_lists_shows_and_deletes(client: TestClient) -> None:
    one = made(client)
    expected = {"name": "mine", "ready": True, "source_lang": "en", "target_lang": "de", "entry_count": 1}
    assert {name: value for name, value in one.items() if name in expected} == expected
    path = f"/v2/glossaries/{one['glossary_id']}"
    assert client.get(path).json() == one
    assert client.get("/v2/glossaries").json() == {"glossaries": [one]}
    entries = client.get(f"{path}/entries")
    assert (entries.text, entries.headers["content-type"]) == (
        "five\tzwölf\n",
        "text/tab-separated-values; charset=utf-8",
    )
    deleted = client.delete(path)
    assert (deleted.status_code, deleted.content) == (204, b"")
    for gone in (client.get(path), client.delete(path), client.get(f"{path}/entries")):
        assert (gone.status_code, gone.json()) == (404, {"message": "Glossary not found"})
    assert client.get("/v2/glossaries").json() == {"glossaries": []}


def test_pairs_of_languages(client: TestClient) -> None:
    pairs = [{"source_lang": "en", "target_lang": target} for target in ("de", "zh")]
    assert client.get("/v2/glossary-language-pairs").json() == {"supported_languages": pairs}


def test_v3_has_several_dictionaries_which_can_be_edited(client: TestClient) -> None:
    one = client.post("/v3/glossaries", json={"name": "v3", "dictionaries": [ENGLISH, GERMAN]}).json()
    path = f"/v3/glossaries/{one['glossary_id']}"
    counts = [("en", "de", 1), ("de", "en", 1)]
    assert [tuple(found.values()) for found in one["dictionaries"]] == counts
    more = {**ENGLISH, "entries": "five\telf\nsix\tsechs*"}
    changed = client.patch(path, json={"name": "new", "dictionaries": [more]}).json()
    assert (changed["name"], changed["dictionaries"][0]["entry_count"]) == ("new", 2)
    pair = {"source_lang": "en", "target_lang": "de"}
    (entries,) = client.get(f"{path}/entries", params=pair).json()["dictionaries"]
    assert entries == {**pair, "entries": "five\telf\nsix\tsechs*\n", "entries_format": "tsv"}
    assert client.put(f"{path}/dictionaries", json=ENGLISH).json() == {**pair, "entry_count": 1}
    assert client.delete(f"{path}/dictionaries", params=pair).status_code == 204
    missing = client.get(f"{path}/entries", params=pair)
    assert (missing.status_code, missing.json()["message"]) == (404, "No dictionary found for language pair en to de")
    last = client.delete(f"{path}/dictionaries", params={"source_lang": "de", "target_lang": "en"})
    assert (last.status_code, last.json()["message"]) == (
        400,
        "This is the glossary's only dictionary; delete the glossary.",
    )
    assert client.get("/v3/glossaries").json()["glossaries"] == [client.get(path).json()]
    assert client.get(path.replace("v3", "v2")).json()["source_lang"] == "de", "v2 shows the first dictionary"
    assert client.delete(path).status_code == 204


def test_forms_list_dictionaries_by_number(client: TestClient) -> None:
    form = {
        f"dictionaries[{n}].{name}": value for n, one in enumerate((ENGLISH, GERMAN)) for name, value in one.items()
    }
    one = client.post("/v3/glossaries", data={"name": "form", **form})
    assert [tuple(found.values())[:2] for found in one.json()["dictionaries"]] == [("en", "de"), ("de", "en")]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": ""}, "Parameter 'name' not specified."),
        ({"name": " "}, "Value for 'name' not supported: expected 1 to 1024 characters."),
        ({"source_lang": "english"}, "Value for 'source_lang' not supported."),
        ({"target_lang": "EN-GB"}, "Value for 'target_lang' not supported: it is that of 'source_lang'."),
        ({"entries_format": "xml"}, "Value for 'entries_format' not supported: expected tsv or csv."),
        ({"entries": "five"}, "Invalid glossary entries provided: entries:1: expected a source term and a target"),
        ({"entries": "\n"}, "Invalid glossary entries provided: a dictionary without entries."),
        ({"entries": "a\tb\na\tc"}, "Invalid glossary entries provided: entries:2: 'a' has the target 'b' already"),
    ],
)
def test_what_is_no_glossary(changed: dict[str, str], message: str, client: TestClient) -> None:
    answer = client.post("/v2/glossaries", data={**FORM, **changed})
    assert answer.status_code == 400
    assert answer.json()["message"].startswith(message)


@pytest.mark.parametrize(
    ("dictionaries", "message"),
    [
        ([], "Parameter 'dictionaries' not specified."),
        ("x", "Value for 'dictionaries' not supported."),
        ([ENGLISH, ENGLISH], "Value for 'dictionaries' not supported: a language pair is given twice."),
        ([{**ENGLISH, "entries": 3}], "Parameter 'entries' not specified."),
    ],
)
def test_what_are_no_dictionaries(dictionaries: Any, message: str, client: TestClient) -> None:
    answer = client.post("/v3/glossaries", json={"name": "x", "dictionaries": dictionaries})
    assert (answer.status_code, answer.json()) == (400, {"message": message})


def deepl(client: TestClient, **given: Any) -> Any:
    return client.post("/v2/translate", json={"text": ["five"], "target_lang": "DE", "source_lang": "EN", **given})


def test_deepl_translations_keep_terms(client: TestClient) -> None:
    one = made(client)["glossary_id"]
    other = made(client, entries="five\tacht\nsix\tneun")["glossary_id"]
    assert "zwölf" in deepl(client, glossary_id=one).json()["translations"][0]["text"]
    assert "acht" in deepl(client, glossary_ids=[other, one]).json()["translations"][0]["text"]
    assert "zwölf" in deepl(client, glossary_ids=f"{one},{other}").json()["translations"][0]["text"]
    assert deepl(client).json() == deepl(client, glossary_ids=[]).json()


@pytest.mark.parametrize(
    ("given", "status", "message"),
    [
        ({"glossary_id": NOBODY}, 404, "Glossary not found"),
        ({"glossary_ids": [NOBODY] * 6}, 400, "Value for 'glossary_ids' not supported: at most 5 are allowed, got 6."),
        ({"glossary_ids": [3]}, 400, "Value for 'glossary_ids' not supported."),
        (
            {"glossary_id": "a", "glossary_ids": ["a"]},
            400,
            "Parameters 'glossary_id' and 'glossary_ids' cannot be comb",
        ),
        ({"glossary_id": "a", "source_lang": ""}, 400, "Parameter 'source_lang' is required if using a glossary."),
    ],
)
def test_glossaries_that_cannot_be_used(given: Any, status: int, message: str, client: TestClient) -> None:
    answer = deepl(client, **given)
    assert answer.status_code == status
    assert answer.json()["message"].startswith(message)


def test_a_glossary_of_other_languages(client: TestClient) -> None:
    one = made(client, source_lang="de", target_lang="en")["glossary_id"]
    answer = deepl(client, glossary_id=one)
    assert (answer.status_code, answer.json()) == (400, {"message": "No dictionary found for language pair en to de."})


# -- our own, and LibreTranslate --------------------------------------------------------------------------------------


def test_our_own_glossaries(client: TestClient) -> None:
    given = {"name": "mine", "dictionaries": [{"source": "en", "target": "de", "entries": {"five": "zwölf*"}}]}
    one = client.post("/v1/glossaries", json=given)
    assert one.status_code == 201
    path = f"/v1/glossaries/{one.json()['id']}"
    assert one.json()["dictionaries"] == [{"source": "en", "target": "de", "count": 1}]
    assert client.get(path).json()["dictionaries"][0]["entries"] == {"five": "zwölf*"}
    assert client.get("/v1/glossaries").json() == {"glossaries": [one.json()]}
    given["name"] = "new"
    assert client.put(path, json=given).json() == {**one.json(), "name": "new"}
    assert client.delete(path).status_code == 204
    assert client.get(path).json() == {"error": "Glossary not found", "code": "glossary"}


@pytest.mark.parametrize(
    ("dictionary", "message"),
    [
        ({"target": "en"}, "dictionaries: expected two different languages, got en to en"),
        ({"entries": {}}, "dictionaries"),
        ({"entries": {"a": " "}}, "entries: a blank term was given; give both sides of each entry"),
    ],
)
def test_our_own_errors(dictionary: Any, message: str, client: TestClient) -> None:
    whole = {"source": "en", "target": "de", "entries": {"a": "b"}, **dictionary}
    answer = client.post("/v1/glossaries", json={"name": "x", "dictionaries": [whole]})
    assert answer.status_code == 422
    assert answer.json()["error"].startswith(message)


@pytest.mark.parametrize("path", ["/v1/translate", "/translate"])
def test_terms_by_id_and_brought_along(path: str, client: TestClient) -> None:
    field = "text" if path == "/v1/translate" else "q"

    def asked(glossary: Any) -> Any:
        return client.post(path, json={field: "five", "source": "en", "target": "de", "glossary": glossary})

    number = made(client)["glossary_id"]
    for glossary in (number, [number], {"five": "zwölf"}):
        assert "zwölf" in asked(glossary).text
    assert asked("").text == asked([]).text == asked({}).text
    assert asked(NOBODY).status_code == 404
    many = asked({f"a{n}": "b" for n in range(101)})
    assert "glossary: expected at most 100 terms, got 101; keep them as a glossary" in many.json()["error"]
    assert asked({"a": ""}).status_code == (422 if path == "/v1/translate" else 400)


def test_libretranslate_says_what_a_glossary_is(client: TestClient) -> None:
    answer = client.post("/translate", json={"q": "five", "source": "en", "target": "de", "glossary": [3]})
    assert answer.json()["error"] == "Invalid request: glossary parameter is not an id, a list of ids, or terms"
    number = made(client)["glossary_id"]
    form = {"q": "five", "source": "en", "target": "de", "glossary": f"{number}, {number}"}
    assert "zwölf" in client.post("/translate", data=form).json()["translatedText"]


def test_terms_in_html_lists_and_streams(client: TestClient) -> None:
    given = {"source": "en", "target": "de", "glossary": {"five": "zwölf"}}
    html = client.post("/v1/translate", json={**given, "text": "<p>six, <b>five</b></p>", "format": "html"}).json()
    assert "zwölf" in html["translations"][0]["text"]
    assert html["translations"][0]["missing_terms"] == []
    both = client.post("/v1/translate", json={**given, "text": ["five", "six"]}).json()["translations"]
    plain = client.post("/v1/translate", json={"source": "en", "target": "de", "text": "six"}).json()["translations"]
    assert "zwölf" in both[0]["text"]
    assert both[1] == plain[0]
    assert "zwölf" in client.post("/v1/translate", json={**given, "text": "five", "stream": True}).text


def test_terms_cost_what_placing_them_may_take(served_translator: transduce.Translator) -> None:
    client = served(served_translator, request_tokens=PASSES_TERMS * 5)
    given = {"source": "en", "target": "de", "text": "five"}
    assert client.post("/v1/translate", json=given).status_code == 200
    long = client.post("/v1/translate", json={**given, "glossary": {"five": "zwölf und elf und zehn und neun"}})
    assert long.status_code == 422
    assert "tokens of work" in long.json()["error"]


# -- keeping them -----------------------------------------------------------------------------------------------------


def test_a_key_sees_its_own_alone(served_translator: transduce.Translator) -> None:
    client = served(served_translator, keys=("one", "two"))
    mine, other = ({"authorization": f"DeepL-Auth-Key {key}"} for key in ("one", "two"))
    number = client.post("/v2/glossaries", data=FORM, headers=mine).json()["glossary_id"]
    assert client.get("/v3/glossaries", headers=other).json() == {"glossaries": []}
    path = f"/v3/glossaries/{number}"
    assert client.get(path, headers=mine).status_code == 200
    for answer in (client.get(path, headers=other), client.delete(path, headers=other)):
        assert answer.status_code == 404
    asked = {"text": ["five"], "target_lang": "DE", "source_lang": "EN", "glossary_id": number}
    assert client.post("/v2/translate", json=asked, headers=other).status_code == 404
    assert client.get("/v1/glossaries").status_code == 400
    assert client.get("/v2/glossaries").json() == {"message": "Authorization failure, check auth_key"}


def test_limits_on_number_and_size(served_translator: transduce.Translator) -> None:
    client = served(served_translator, glossaries=1, glossary_bytes=1024)
    number = made(client)["glossary_id"]
    full = client.post("/v2/glossaries", data=FORM)
    assert (full.status_code, full.json()["message"]) == (
        456,
        "Quota exceeded: at most 1 glossaries are kept for a key; delete one first",
    )
    large = {**ENGLISH, "entries": "".join(f"term {n}\tBegriff {n}\n" for n in range(100))}
    answer = client.put(f"/v3/glossaries/{number}/dictionaries", json=large)
    assert answer.status_code == 413
    assert "a glossary may have 1,024 bytes and 100,000 entries, got" in answer.json()["message"]
    assert client.get(f"/v2/glossaries/{number}/entries").text == "five\tzwölf\n", "as it was"


def store(folder: Path | str, **settings: Any) -> GlossaryStore:
    return GlossaryStore(Settings(data=str(folder) if folder else "", **settings))


TERMS: dict[tuple[str, str], list[Term]] = {("en", "de"): [Term("file", "Datei", True)]}


def test_glossaries_survive_a_restart(tmp_path: Path) -> None:
    first = store(tmp_path / "data")
    kept = [first.create(owner, "mine", TERMS) for owner in (b"", b"key")]
    gone = first.create(b"", "other", TERMS)
    first.delete(b"", gone.id)
    with pytest.raises(RunError, match="another process is using this folder"):
        store(tmp_path / "data")
    first.close()
    second = store(tmp_path / "data")
    for owner, one in zip((b"", b"key"), kept, strict=True):
        (found,) = second.all(owner)
        assert (found.id, found.name, found.created, found.dictionaries) == (
            one.id,
            "mine",
            one.created,
            {("en", "de"): (Term("file", "Datei", True),)},
        )
    assert second.named(b"key", [kept[1].id])[0].name == "mine"
    with pytest.raises(Refused, match="Glossary not found"):
        second.get(b"", kept[1].id)
    second.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-5],
        lambda text: text.replace("Datei", ""),
        lambda text: text.replace('"name"', '"no"'),
        lambda text: text.replace('"id": "', '"id": "../'),
    ],
)
def test_a_file_that_is_no_glossary_is_named(tmp_path: Path, damage: Callable[[str], str]) -> None:
    first = store(tmp_path)
    one = first.create(b"", "mine", TERMS)
    first.close()
    path = tmp_path / "glossaries" / "_" / f"{one.id}.json"
    path.write_text(damage(path.read_text().replace("Datei*", "Datei")))
    with pytest.raises(RunError, match=r"not a glossary that this server kept .*; move it out of the data folder"):
        store(tmp_path)


def test_a_data_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="making the folder of glossaries failed"):
        store(tmp_path / "file")
