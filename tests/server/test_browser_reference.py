"""/docs in a real browser: every endpoint can be tried there, by pointer and keyboard, on narrow screens too."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from browsing import OpenPage, Site, until
from test_browser_translating import faults

if TYPE_CHECKING:
    from toy_model import Toy

pytestmark = pytest.mark.slow
TRANSLATE = '.try[data-method="POST"][data-path="/v1/translate"]'


def test_every_endpoint_is_tried_with_its_example(open_page: OpenPage, site: Site) -> None:
    page = open_page("/docs")
    forms = page.locator(".try").all()
    paths = page.request.get(f"{site.address}/v1/openapi.json").json()["paths"]
    assert len(forms) == sum(map(len, paths.values()))  # one for each method
    for form in forms:
        path = form.get_attribute("data-path") or ""
        if "{" in path:  # of a glossary that has been made
            continue
        form.get_by_role("button").click()
        form.locator(".came").wait_for()
        made = (path, form.get_attribute("data-method")) == ("/v1/glossaries", "POST")
        expected = "201 Created · " if made else "200 OK · "
        assert form.locator("[role=status]").inner_text().startswith(expected), path
        json.loads(form.locator(".came").inner_text())


def test_what_is_written_is_sent_and_shown_for_a_shell(open_page: OpenPage, toy: Toy) -> None:
    page = open_page("/docs", refused="422 (Unprocessable")
    form = page.locator(TRANSLATE)
    form.locator("textarea").fill('{"text": "it\'s five",\n "source": "en", "target": "de"}')
    form.locator("summary").click()
    shell = f"curl -s {page.url.removesuffix('/docs')}/v1/translate --json"
    assert (
        form.locator(".shell").inner_text() == shell + """ '{"text": "it'\\''s five","source": "en", "target": "de"}'"""
    )
    form.get_by_role("button").press("Enter")
    form.locator(".came").wait_for()
    found = json.loads(form.locator(".came").inner_text())
    assert found["translations"][0]["text"] == toy.translator("it's five", to="de")
    form.locator("textarea").fill('{"text": 5, "target": "de"}')
    form.get_by_role("button").click()
    until(page, f"document.querySelector('{TRANSLATE} [role=status]').textContent.startsWith('422')")
    assert form.locator("[role=status].error").count() == 1
    assert "text" in json.loads(form.locator(".came").inner_text())["error"]


def test_on_a_narrow_screen_nothing_scrolls_sideways(open_page: OpenPage) -> None:
    page = open_page("/docs", width=360, height=700, color_scheme="dark", locale="zh-CN")
    assert "必填" in page.locator("main").inner_text()
    for summary in page.locator("summary").all():
        summary.dispatch_event("click")
    for form in page.locator(".try").all()[:4]:
        form.get_by_role("button").click()
        form.locator(".came").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_nobody_is_kept_out(open_page: OpenPage, axe: str) -> None:
    page = open_page("/docs", bypass_csp=True)
    page.evaluate(axe)
    for summary in page.locator("summary").all():
        summary.dispatch_event("click")
    page.locator(TRANSLATE).get_by_role("button").click()
    page.locator(TRANSLATE).locator(".came").wait_for()
    assert faults(page) == []
    page.click("#theme")
    page.wait_for_timeout(300)  # colours take a moment
    assert faults(page, "color-contrast") == []
