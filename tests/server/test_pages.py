"""The pages as the server makes them, and what they ask of it: without a browser."""

from __future__ import annotations

import html
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("starlette", reason="pip install transduce[serve]")
from starlette.testclient import TestClient

from transduce.engines.native import library
from transduce.inspection.alternatives import alternatives
from transduce.inspection.inspect import inspect
from transduce.inspection.paper import FIGURE_1
from transduce.server import Served, Settings, application
from transduce.server.pages.html import diagram
from transduce.server.pages.texts import WORDS

if TYPE_CHECKING:
    from toy_model import Toy

PAIRS = (("en", "de"), ("en", "zh"))
ASKED = {"text": "sixty-two, eleven", "model": "toy", "to": "de"}


@pytest.fixture(scope="module")
def pages(toy: Toy) -> Iterator[TestClient]:
    """A server whose model is opened with torch, so that it can be looked into."""
    with TestClient(application([Served("toy", toy.translator, PAIRS)]), "http://localhost") as client:
        yield client


def told(text: str) -> Any:
    return json.loads(html.unescape(re.findall(r'data-page="([^"]*)"', text)[0]))


@pytest.mark.skipif(library.built() is None, reason="the core is not built: make native")
def test_a_converted_model_is_open_to_both_pages(client: TestClient) -> None:
    """By its own weights in torch, and it says so."""
    learned, seen = (client.post(f"/page/{page}", json=ASKED).json() for page in ("learn", "inspect"))
    assert learned["layers"] == 1
    assert all(block["tensors"] for block in learned["blocks"].values())
    assert learned["notes"] == seen["notes"] == ["Inside are the converted weights, which were not rounded."]
    assert [one["name"] for one in seen["maps"]] == ["encoder.0.self", "decoder.0.self", "decoder.0.cross"]
    assert all((seen["heads"], seen["lens"], seen["tree"]["nodes"], seen["steps"][0]["candidates"]))


@pytest.mark.parametrize("path", ["/", "/explore", "/learn", "/docs"])
def test_pages_hold_no_script_and_no_style_of_their_own(path: str, pages: TestClient) -> None:
    answer = pages.get(path)
    assert answer.status_code == 200
    assert re.findall(r"<script(?! (?:type=\"module\" )?src=\"/static/)", answer.text) == []
    assert "style=" not in answer.text
    assert re.findall(r" on\w+=", answer.text) == []
    assert answer.headers["vary"] == "Accept-Language"
    for name in re.findall(r'(?:src|href)="(/static/[^"]*)"', answer.text):
        assert pages.get(name).status_code == 200, name
    own = told(answer.text)
    if path != "/docs":
        assert own["models"][0]["name"] == "toy"
        assert own["models"][0]["tagged"] == ["de", "zh"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", path) for path in ("/", "/explore", "/learn", "/docs", "/metrics", "/nothing", "/static/nothing", "/spec")]
    + [("POST", "/translate"), ("PUT", "/translate"), ("OPTIONS", "/v1/translate"), ("POST", "/v2/document")],
)
def test_no_answer_leaves_a_browser_free(method: str, path: str, pages: TestClient) -> None:
    """Pages and refusals alike: nothing from elsewhere in them, and no page of elsewhere reads them."""
    answer = pages.request(method, path, headers={"origin": "https://elsewhere.example"})
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", answer.text) == []


def test_pages_speak_english_or_chinese(pages: TestClient) -> None:
    assert WORDS["en"].keys() == WORDS["zh"].keys()
    for asked, language in (("zh-CN,zh;q=0.9", "zh-Hans"), ("fr, zh;q=0.5", "zh-Hans"), ("fr", "en"), ("", "en")):
        assert f'<html lang="{language}">' in pages.get("/", headers={"accept-language": asked}).text
    text = pages.get("/?lang=zh", headers={"accept-language": "en"}).text
    assert "检测语言" in text
    assert "德语" in text


def test_text_in_the_address_is_escaped(pages: TestClient) -> None:
    text = pages.get("/explore", params={"text": '"><script>alert(1)</script>', "lang": "<x>"}).text
    assert "<script>alert" not in text
    assert html.escape('"><script>alert(1)</script>') in text


def test_other_words_are_those_of_the_library(pages: TestClient, toy: Toy) -> None:
    asked = {"text": "sixty-two, eleven", "source": "en", "target": "de", "before": "zwei, "}
    found = pages.post("/page/alternatives", json=asked).json()["alternatives"]
    expected = alternatives(toy.translator, "sixty-two, eleven", "zwei, ", to="de")
    assert [(one["word"], one["text"]) for one in found] == [(one.word, one.text) for one in expected]
    assert pages.post("/page/alternatives", json={**asked, "target": "fr"}).status_code == 400


def test_the_present_word_is_not_among_the_other_words(pages: TestClient) -> None:
    asked = {"text": "sixty-two, eleven", "source": "en", "target": "de", "before": "zwei, "}
    found = pages.post("/page/alternatives", json=asked).json()["alternatives"]
    others = pages.post("/page/alternatives", json={**asked, "current": found[0]["text"]}).json()["alternatives"]
    assert found[0]["word"] not in [one["word"] for one in others]
    assert pages.post("/page/alternatives", json={**asked, "current": "zwei " * 3000}).status_code in (400, 413)


def test_looks_are_those_of_the_library(pages: TestClient, toy: Toy) -> None:
    found = pages.post("/page/inspect", json={**ASKED, "beam": 3}).json()
    expected = json.loads(json.dumps(inspect(toy.translator, ASKED["text"], to="de", beam=3, model="toy").as_json()))
    assert {**found, "branches": []} == {**expected, "branches": []}
    token = found["steps"][0]["candidates"][1]["token"]
    forced = pages.post("/page/inspect", json={**ASKED, "prefix": [token]}).json()
    assert (forced["tokens"][0], forced["forced"]) == (token, 1)


def test_the_learner_s_page_has_every_block(pages: TestClient) -> None:
    found = pages.post("/page/learn", json=ASKED).json()
    assert found["blocks"].keys() == FIGURE_1.keys() == told(pages.get("/learn").text)["ideas"].keys()
    text = pages.get("/learn").text
    assert set(re.findall(r'data-block="([^"]*)"', text)) == FIGURE_1.keys()


def test_arrows_of_the_figure_end_at_blocks() -> None:
    """Every block has its arrow from below, every Add & Norm its residual from outside."""
    drawn = diagram(defaultdict(str))
    boxes = {
        key: tuple(map(int, place))
        for key, *place in re.findall(
            r'data-block="([^"]*)"[^>]*><rect x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"', drawn
        )
    }
    boxes |= {"sum 1": (134, 524, 22, 22), "sum 2": (394, 524, 22, 22)}
    ways = [[*map(int, re.findall(r"\d+", way))] for way in re.findall(r'class="way"[^>]* d="([^"]*)"', drawn)]
    up = {(way[0], way[2]) for way in ways if len(way) == 3}  # M x, y V y
    middles = {(x + wide // 2, y + high) for x, y, wide, high in boxes.values()}
    assert up - {(405, 30)} <= middles  # above the last are the probabilities
    norms = {key: box for key, box in boxes.items() if "norm" in key}
    sides = [(way[0], way[4], way[2]) for way in ways if len(way) == 5]  # M x, y H aside V y H edge
    ends = {(middle, edge, aside < edge) for middle, edge, aside in sides}
    assert len(sides) == len(norms) == 5
    assert ends == {(145, 70, True), (405, 480, False)}
    assert {way[3] for way in ways if len(way) == 5} == {y + high // 2 for _, y, _, high in norms.values()}
    assert set(re.findall(r"M(\d+),535H", drawn)) == {"50", "500"}  # on the outside of both
    lines = re.findall(r'y="(\d+)" width="\d+" height="(\d+)" rx="8"/><text><tspan x="\d+" y="(\d+)"', drawn)
    assert all(int(y) + 20 == int(text) for y, _, text in lines)  # the first line of a block's words


@pytest.mark.parametrize(
    ("path", "asked", "status", "words"),
    [
        ("inspect", {"model": "none"}, 404, "no model is named 'none'"),
        ("inspect", {"to": "fr"}, 400, "to: toy has no tag for 'fr'"),
        ("inspect", {"text": " "}, 400, "the text is blank"),
        ("inspect", {"text": "x" * 5001}, 400, "the text is longer than 5000 characters"),
        ("inspect", {"text": "one " * 400}, 413, "at most 200 are looked into here"),
        ("inspect", {"prefix": [10**6]}, 400, "prefix: expected tokens from 0 to"),
        ("inspect", {"beam": 99}, 422, "beam"),
        ("inspect", {"text": 1}, 422, "text"),
        ("learn", {"layer": 7}, 400, "layer: this model has layers 0 to 0, and not 7"),
    ],
)
def test_what_is_refused(path: str, asked: dict[str, Any], status: int, words: str, pages: TestClient) -> None:
    answer = pages.post(f"/page/{path}", json={**ASKED, **asked})
    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_a_server_without_torch_says_what_learning_needs(pages: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transduce.inspection.figure_one", None)
    answer = pages.post("/page/learn", json=ASKED)
    assert answer.status_code == 501
    assert "pip install 'transduce[train]'" in answer.json()["error"]


def test_a_key_is_requested_where_there_are_any(toy: Toy) -> None:
    app = application([Served("toy", toy.translator, PAIRS)], Settings(keys=("secret",)))
    with TestClient(app, "http://localhost") as client:
        assert 'id="key"' in client.get("/").text
        assert client.post("/page/inspect", json=ASKED).status_code == 400
        allowed = client.post("/page/inspect", json=ASKED, headers={"authorization": "Bearer secret"})
        assert allowed.status_code == 200
