"""The page that translates, in a real browser: what people do there, by pointer and by keyboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from browsing import OpenPage, Site, until

if TYPE_CHECKING:
    from toy_model import Toy

pytestmark = pytest.mark.slow
TEXT = "sixty-two, eleven"


def typed(page: Any, text: str = TEXT, source: str = "en", target: str = "de") -> Any:
    """Choose languages and type; gives the output once it is there."""
    page.select_option("#source", source)
    page.select_option("#target", target)
    page.fill("#text", text)
    page.wait_for_selector("#output .word, #output:not(:empty)")
    return page.locator("#output")


def test_it_translates_as_one_types_and_counts(open_page: OpenPage, toy: Toy) -> None:
    page = open_page("/")
    output = typed(page)
    assert output.inner_text() == toy.translator(TEXT, to="de")
    assert page.locator("#count").inner_text() == f"{len(TEXT)} / 5000"
    assert page.locator("#spoken").inner_text() == output.inner_text()  # for who cannot see it
    page.fill("#text", "five\n\nsix")
    until(page, "document.querySelector('#output').textContent.includes('\\n\\n')")
    assert output.inner_text().split() == [toy.translator(word, to="de") for word in ("five", "six")]
    page.fill("#text", "😀" * 3000)
    assert page.locator("#count:not(.error)").inner_text() == "3000 / 5000"
    page.fill("#text", "x" * 5001)
    page.wait_for_selector("#status.error")
    assert "at most 5000 characters" in page.locator("#status").inner_text()
    page.click("#clear")
    until(page, "!document.querySelector('#output').textContent")
    assert page.evaluate("document.activeElement.id") == "text"


def test_what_is_typed_over_is_not_waited_for(open_page: OpenPage, site: Site, toy: Toy) -> None:
    page = open_page("/")
    page.select_option("#source", "en")
    page.select_option("#target", "de")
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(request.post_data))
    hold = []
    page.route(
        "**/v1/translate", lambda route: hold.append(route) if "five" in route.request.post_data else route.continue_()
    )
    page.fill("#text", "five")
    page.wait_for_timeout(400)  # longer than the page waits for the next letter
    page.fill("#text", "six")
    page.wait_for_selector(".word")
    assert page.locator("#output").inner_text() == toy.translator("six", to="de")
    assert len(failed) == 1
    assert '"five"' in failed[0]


def test_copying_and_the_way_to_the_explorer(open_page: OpenPage) -> None:
    page = open_page("/")
    output = typed(page).inner_text()
    page.click("#copy")
    until(page, "document.querySelector('#status').textContent === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == output
    page.click("#look")
    page.wait_for_selector(".thumb")
    assert page.input_value("#text") == TEXT
    assert page.input_value("#to") == "de"


def test_languages_are_swapped_with_their_texts(open_page: OpenPage) -> None:
    page = open_page("/")
    output = typed(page).inner_text()
    page.keyboard.press("Control+Shift+S")
    assert (page.input_value("#source"), page.input_value("#target")) == ("de", "en")
    assert page.input_value("#text") == output
    page.select_option("#source", "en")
    assert page.locator("#target option[value=en]").is_disabled()  # nobody translates from English into English
    page.reload()
    assert page.input_value("#source") == "en"  # remembered


def test_there_is_nothing_to_swap_where_no_way_leads_back(open_page: OpenPage) -> None:
    page = open_page("/")
    typed(page)
    assert page.locator("#swap").is_enabled()
    page.select_option("#target", "zh")  # which nobody here reads
    assert page.locator("#swap").is_disabled()
    page.keyboard.press("Control+Shift+S")
    assert (page.input_value("#source"), page.input_value("#target")) == ("en", "zh")
    page.select_option("#target", "de")
    assert page.locator("#swap").is_enabled()
    page.select_option("#source", "auto")  # nothing has been found out yet
    assert page.locator("#swap").is_disabled()


def test_space_before_the_first_word_is_kept(open_page: OpenPage, toy: Toy) -> None:
    """In the pane, the clipboard and the way back."""
    page = open_page("/")
    typed(page, " \n  five\n")
    expected = f" \n  {toy.translator('five', to='de')}\n"
    assert page.locator("#output").text_content() == expected
    page.click("#copy")
    until(page, "document.querySelector('#status').textContent === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == expected
    page.click("#swap")
    assert page.input_value("#text") == expected


def test_the_language_is_found_out(open_page: OpenPage) -> None:
    page = open_page("/")
    typed(page, "this is the number forty-two and nothing else", source="auto")
    until(page, "document.querySelector('#status').textContent.startsWith('detected: ')")
    assert page.locator("#swap").is_enabled()


def test_text_in_the_target_language_goes_to_another(open_page: OpenPage) -> None:
    """Nobody wants English in English; who chooses just that has it."""
    page = open_page("/")
    english = "this is the number forty-two and nothing else"
    page.select_option("#source", "de")  # of which there is one translation
    page.select_option("#source", "auto")
    assert page.input_value("#target") == "en"
    page.fill("#text", english)
    until(page, "document.querySelector('#target').value !== 'en' && document.querySelector('#output .word')")
    assert page.input_value("#target") in ("de", "zh")
    page.select_option("#target", "en")
    until(page, f"document.querySelector('#output').textContent === '{english}'")
    assert page.input_value("#target") == "en"


def test_other_words_by_pointer_rewrite_the_rest(open_page: OpenPage) -> None:
    page = open_page("/")
    output = typed(page, f"seven\n{TEXT}")
    before = output.inner_text()
    word = page.locator("[data-sentence='1'].word").last
    begin = word.get_attribute("data-place")
    word.click()
    page.wait_for_selector("[role=option], .menu li.faint:has-text('No other')")
    option = page.locator("[role=option]").first
    chosen = option.locator("strong").inner_text()
    option.click()
    after = output.inner_text()
    assert after != before
    first = page.locator("[data-sentence='0']").all_inner_texts()
    assert after.startswith(first[0])  # the other sentence is left as it was
    assert chosen.split()[0][:3] in after
    assert page.locator(".menu").count() == 0
    assert page.evaluate("document.activeElement.dataset.place") is not None
    assert begin is not None


def test_marking_text_opens_no_menu(open_page: OpenPage) -> None:
    page = open_page("/")
    output = typed(page)
    page.locator(".word").first.dblclick()  # marks the word
    assert page.evaluate("getSelection().toString().trim()") == page.locator(".word").first.inner_text()
    assert page.locator(".menu").count() == 0
    assert output.get_attribute("lang") == "de"


def test_other_words_by_keyboard(open_page: OpenPage) -> None:
    page = open_page("/")
    typed(page, "sixty-two\n\neleven")  # two lines have two words at least, whatever the toy makes of them
    page.locator(".word").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement === document.querySelectorAll('.word')[1]")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=option]")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "option"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Escape")
    assert page.locator(".menu").count() == 0
    assert page.evaluate("document.activeElement.className").startswith("word")


def test_in_chinese_narrow_and_dark(open_page: OpenPage) -> None:
    page = open_page("/", width=360, height=700, locale="zh-CN", color_scheme="dark")
    typed(page, target="zh")
    assert page.evaluate("document.documentElement.lang") == "zh-Hans"
    assert page.get_by_role("link", name="翻译").get_attribute("aria-current") == "page"
    assert page.get_by_label("要翻译的文本").input_value() == TEXT
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.click("#theme")
    page.wait_for_timeout(300)  # colours take a moment
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.click("a[hreflang=en]")
    page.wait_for_selector("text=Translate")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"  # remembered


def test_the_first_view_weighs_little(open_page: OpenPage, site: Site) -> None:
    for path in ("/", "/explore", "/learn", "/docs"):
        site.requests.clear()
        page = open_page(path)
        page.wait_for_load_state("networkidle")
        own = [request for request in site.requests if request.method == "GET"]
        weight = sum(len(request.response().body()) for request in own)
        assert 5_000 < weight < 100_000, path
        policy = own[0].response().headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy


def test_a_server_that_is_gone_is_reported(open_page: OpenPage) -> None:
    page = open_page("/", refused="400 (Bad Request)")
    page.route("**/v1/translate", lambda route: route.fulfill(status=400, json={"error": "what the server says"}))
    page.fill("#text", "five")
    page.wait_for_selector("#status.error")
    assert page.locator("#status").inner_text() == "what the server says"
    page.evaluate("() => { window.fetch = () => Promise.reject(new TypeError('no network')); }")
    page.fill("#text", "six")
    until(page, "document.querySelector('#status').textContent.startsWith('The server cannot be reached')")


def test_nobody_is_kept_out(open_page: OpenPage, axe: str) -> None:
    page = open_page("/", bypass_csp=True)
    page.evaluate(axe)
    typed(page)
    page.locator(".word").first.click()
    page.wait_for_selector("[role=option]")
    assert faults(page) == []
    page.click("#theme")
    page.wait_for_timeout(300)  # colours take a moment
    assert faults(page, "color-contrast") == []


def faults(page: Any, rule: str = "", part: str = "body") -> list[str]:
    """What axe finds serious or worse in a part of the page, by all its rules or by one."""
    asked = "([part, rule]) => axe.run(part, rule ? {runOnly: [rule]} : {})"
    found = page.evaluate(asked, [part, rule])["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:150]}" for one in found if one["impact"] in ("serious", "critical")
    ]
