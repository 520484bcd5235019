"""The explorer, fed by a server and as a file, and the learner's page, in a real browser."""

from __future__ import annotations

import inspect as sources
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browsing import OpenPage, Site, until
from test_browser_translating import faults

from transduce.inspection.inspect import inspect
from transduce.inspection.page import page as page_of
from transduce.inspection.paper import FIGURE_1
from transduce.model.blocks import FeedForward
from transduce.translate.translator import Translator

if TYPE_CHECKING:
    from toy_model import Toy

pytestmark = pytest.mark.slow
TEXT = "sixty-two, eleven"
TABS = ("attention", "words", "beam", "steps", "lens", "heads")


def explored(open_page: OpenPage, **options: Any) -> Any:
    page = open_page(f"/explore?text={TEXT}&to=de", **options)
    page.wait_for_selector(".thumb")
    return page


def test_every_tab_shows_what_python_finds(open_page: OpenPage, toy: Toy) -> None:
    seen = inspect(toy.translator, TEXT, to="de", beam=4)
    page = explored(open_page)
    assert page.locator(".summary .into").inner_text() == seen.translation
    assert page.locator(".thumb").count() == 3  # one layer of two heads, and their mean
    assert page.locator(".lines .column").first.locator(".token").count() == len(seen.written)
    page.click("#tab-words")
    assert seen.alignment is not None
    assert page.locator(".lines .column").last.locator(".token").all_inner_texts() == list(seen.alignment.source)
    page.click("#tab-beam")
    assert seen.tree is not None
    assert page.locator("svg .node").count() == len(seen.tree.nodes)
    assert page.locator("svg .node.best").count() == len(seen.tree.best)
    page.uncheck("input[type=checkbox]")
    kept = [
        number
        for number, one in enumerate(seen.tree.nodes)
        if one.fate in ("kept", "finished") or number in seen.tree.best
    ]
    assert page.locator("svg .node").count() == len(kept)
    page.click("#tab-steps")
    assert page.locator("table.steps tbody tr:not(.answer)").count() == len(seen.steps)
    page.click("#tab-lens")
    assert page.locator("td.lens").count() == len(seen.written)
    page.click("#tab-heads")
    assert page.locator("tr.pick").count() == len(seen.heads)


def test_hover_marks_and_a_click_pins(open_page: OpenPage) -> None:
    page = explored(open_page)
    tokens = page.locator(".lines .column").first.locator(".token")
    tokens.nth(1).hover()
    assert "looks at: " in page.locator(".told").inner_text()
    tokens.nth(1).click()
    page.mouse.move(5, 5)
    assert tokens.nth(1).get_attribute("aria-pressed") == "true"
    pinned = page.locator(".told").inner_text()
    assert "looks at: " in pinned
    page.locator(".lines .column").last.locator(".token").first.focus()  # by keyboard the other way around
    assert "is looked at by: " in page.locator(".told").inner_text()


def test_the_matrix_is_walked_by_keys(open_page: OpenPage) -> None:
    page = explored(open_page)
    page.click("[data-value=matrix]")
    page.focus(".matrix canvas")
    page.keyboard.press("ArrowDown")
    first = page.locator(".told").inner_text()
    page.keyboard.press("ArrowRight")
    assert "→" in first
    assert page.locator(".told").inner_text() != first
    page.fill("input[type=range]", "20")
    assert page.evaluate("document.querySelector('.matrix canvas').clientWidth") > 100
    page.locator(".thumb").nth(2).click()
    assert page.locator(".detail h2").inner_text() == "Layer 0 · Head 1"


def test_heads_are_sorted_and_looked_at(open_page: OpenPage) -> None:
    page = explored(open_page)
    page.click("#tab-heads")
    page.click("th button:has-text('Entropy')")
    values = [float(text) for text in page.locator("tr.pick td:nth-child(4)").all_inner_texts()]
    assert values == sorted(values, reverse=True)
    page.click("th button:has-text('Entropy')")
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("Entropy")
    page.locator("tr.pick").first.click()
    assert page.locator("#tab-attention").get_attribute("aria-selected") == "true"


def test_what_if_it_had_said_this_instead(open_page: OpenPage, toy: Toy) -> None:
    page = explored(open_page)
    page.click("#tab-steps")
    first = page.locator("tbody tr").first
    other = first.locator(".chip:not(.own)").first
    other.click()
    page.wait_for_selector(".panes.two")
    seen = inspect(toy.translator, TEXT, to="de", beam=4)
    token = next(one for one in seen.steps[0].candidates if one.token != seen.tokens[0])
    instead = inspect(toy.translator, TEXT, to="de", beam=4, prefix=[token.token])
    assert page.locator(".summary .into").all_inner_texts() == [seen.translation, instead.translation]
    assert "forced beginning" in page.locator(".summary").nth(1).inner_text()


def test_two_sentences_and_two_models_side_by_side(open_page: OpenPage, toy: Toy) -> None:
    page = explored(open_page)
    page.fill("#another", "seven")
    page.select_option("#second", "twin")
    page.click("#ask .main")
    page.wait_for_selector(".panes.two")
    assert page.locator(".explorer-bar select").count() == 2
    assert "text=sixty" in page.url  # what was asked can be sent to others
    page.select_option(".explorer-bar select[aria-label=Right]", "3")
    right = page.locator(".summary").nth(1)
    assert right.locator(".into").inner_text() == toy.translator("seven", to="de", beam=4)
    assert right.inner_text().count("twin") == 1


@pytest.mark.parametrize("first", ["toy", "mono"])
def test_models_of_different_kinds_side_by_side(first: str, open_page: OpenPage, site: Site) -> None:
    """A model without a tag for the language is told none, the other its own, whichever comes first."""
    page = open_page(f"/explore?text={TEXT}&model={first}")
    page.wait_for_selector(".thumb")
    if first == "toy":
        page.select_option("#to", "zh")
    page.select_option("#second", "mono" if first == "toy" else "toy")
    site.requests.clear()
    page.click("#ask .main")
    page.wait_for_selector(".panes.two")
    assert page.locator("#status.error").count() == 0
    asked = {ask["model"]: ask["to"] for ask in (one.post_data_json for one in site.requests) if ask}
    assert asked == {"mono": "", "toy": "zh" if first == "toy" else ""}  # nobody has a tag for French


@pytest.mark.parametrize("path", ["/explore", "/learn"])
def test_on_a_narrow_screen_nothing_scrolls_sideways(path: str, open_page: OpenPage) -> None:
    page = open_page(f"{path}?text={TEXT}&to=de", width=360, height=700, color_scheme="dark", locale="zh-CN")
    page.wait_for_selector(".thumb, .tensor")
    wide = "document.documentElement.scrollWidth"
    assert page.evaluate(wide) <= 360
    if path == "/learn":
        for key in ("input", "decoder-cross", "linear"):
            page.locator(f"[data-block={key}]").dispatch_event("click")
            assert page.evaluate(wide) <= 360, key
        return
    for tab in TABS:
        page.click(f"#tab-{tab}")
        assert page.evaluate(wide) <= 360, tab
    page.click("#tab-attention")
    page.click("[data-value=matrix]")
    assert page.evaluate(wide) <= 360
    page.fill("#another", "seven")
    page.click("#ask .main")
    page.wait_for_selector(".panes.two")
    assert page.evaluate(wide) <= 360


def test_long_sentences_stay_usable(open_page: OpenPage, toy: Toy, tmp_path: Path) -> None:
    text = ", ".join(["sixty-two", "eleven"] * 20)
    patient = Translator(toy.engine, toy.translator.tokenizers, toy.translator.search, longest=512)
    seen = inspect(patient, text, to="de")
    assert len(seen.source) > 120
    (tmp_path / "long.html").write_text(page_of([seen]), encoding="utf-8")
    page = open_page(f"file://{tmp_path}/long.html")
    page.wait_for_selector(".thumb")
    for tab in TABS:
        begun = time.monotonic()
        page.click(f"#tab-{tab}")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => done(true)))")
        assert time.monotonic() - begun < 4, tab
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280, tab
    page.click("#tab-attention")
    page.click("[data-value=encoder]")
    page.click("[data-value=matrix]")
    assert page.evaluate("document.querySelector('.matrix canvas').clientWidth") >= 3 * len(seen.source)


def test_the_file_needs_no_server(open_page: OpenPage, site: Site, toy: Toy, tmp_path: Path) -> None:
    seen = inspect(toy.translator, TEXT, to="de", beam=3)
    (tmp_path / "page.html").write_text(page_of([seen, inspect(toy.translator, "seven", to="zh")]), encoding="utf-8")
    page = open_page(f"file://{tmp_path}/page.html", color_scheme="dark")
    page.wait_for_selector(".thumb")
    page.click("#tab-steps")
    branch = seen.branches[0]
    row = page.locator("tbody tr:not(.answer)").nth(branch.step)
    row.locator(f".chip:has-text('{branch.piece.replace('▁', '·')}')").first.click()
    assert branch.text in page.locator("tr.answer:not([hidden])").inner_text()
    page.click("text=Side by side")
    assert page.locator(".pane").count() == 2
    assert [request.url for request in site.requests if not request.url.startswith("file:")] == []


# -- learning ----------------------------------------------------------------------------------------------------------


def test_every_block_of_the_figure_tells_formula_code_and_tensors(open_page: OpenPage) -> None:
    page = open_page(f"/learn?text={TEXT}&to=zh")
    page.wait_for_selector(".tensor")
    assert page.input_value("#to") == "zh"
    for key, idea in FIGURE_1.items():
        page.locator(f"[data-block={key}]").dispatch_event("click")
        assert page.locator("#block h2").inner_text() == idea.title["en"], key
        assert page.locator("#block math").count() >= 1, key
        assert page.locator("#block .tensor").count() >= 1, key
        assert "def " in page.locator("#block pre").first.text_content(), key
    page.focus("[data-block=decoder-feed-forward]")
    page.keyboard.press("Enter")
    assert page.locator("#block pre").first.text_content() == sources.getsource(FeedForward)
    assert page.locator("#block summary").first.inner_text().startswith("transduce/model/blocks.py:")
    page.locator("#block canvas").first.hover()
    assert page.locator("[data-block=decoder-feed-forward]").get_attribute("aria-pressed") == "true"


def test_a_picture_says_which_part_of_a_tensor_it_shows(open_page: OpenPage) -> None:
    for language, said in (("en", "The picture shows {} of {} columns"), ("zh", "图中只显示 {} 列（共 {} 列）")):
        page = open_page(f"/learn?text={TEXT}&to=de&lang={language}")
        page.wait_for_selector(".tensor")
        assert page.locator("#block .part").count() == 0  # attention of a narrow model is shown as a whole
        page.locator("[data-block=softmax]").dispatch_event("click")
        with page.expect_response("**/page/learn") as answer:
            page.click("#ask .main")
        (one,) = answer.value.json()["blocks"]["softmax"]["tensors"]
        part = page.locator("#block .part").inner_text()
        assert part.startswith(said.format(len(one["columns"]), one["shape"][1])), part


def test_nobody_is_kept_out_of_the_explorer(open_page: OpenPage, axe: str) -> None:
    page = open_page("/explore?text=seven&to=de", bypass_csp=True)
    page.wait_for_selector(".thumb")
    page.select_option("#beam", "1")  # a small tree has every kind of node too
    page.click("#ask .main")
    until(page, "!document.querySelector('#status').textContent")
    page.evaluate(axe)
    assert faults(page) == []
    for tab in TABS:
        page.click(f"#tab-{tab}")
        assert faults(page, part="#explorer") == [], tab
    page.click("#theme")
    page.wait_for_timeout(300)  # colours take a moment
    for tab in TABS:
        page.click(f"#tab-{tab}")
        assert faults(page, "color-contrast", "#explorer") == [], tab
    page.goto(page.url.replace("/explore", "/learn"))
    page.wait_for_selector(".tensor")
    page.evaluate(axe)
    assert faults(page) == []
