"""A real browser for the tests of the pages: the system's Chromium, driven by playwright; skipped where they are not.

`site` is the toy model behind a real server on a port of its own. `open_page(path)` opens a page of it and holds at the
end of the test that the page logged no error and that no request left the machine.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from toy_model import Toy

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PAIRS = (("en", "de"), ("en", "zh"), ("de", "en"))


@dataclass
class Site:
    """Where the server is, and all that its pages requested."""

    address: str
    requests: list[Any] = field(default_factory=list)


OpenPage = Callable[..., Any]


@pytest.fixture(scope="module")  # no longer: while it is open, nothing else may run an event loop
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the pages' tests need playwright (see .ci/run)")
    if CHROMIUM is None:
        pytest.skip("the pages' tests need a chromium of the system: apt-get install chromium (see .ci/run)")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def site(toy: Toy) -> Iterator[Site]:
    """The toy, served twice over so that two models can be compared, and as one that has no tag for its language."""
    pytest.importorskip("uvicorn", reason="pip install transduce[serve]")
    import uvicorn

    from transduce.server import Served, application

    pairs = {"toy": PAIRS, "twin": PAIRS, "mono": (("en", "fr"),)}
    app = application([Served(name, toy.translator, own) for name, own in pairs.items()])
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.02)
    assert server.started
    yield Site(f"http://127.0.0.1:{port}")
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def open_page(browser: Any, site: Site) -> Iterator[OpenPage]:
    """A page of the site, or a file, in a fresh browser."""
    contexts, wrong, expected = [], [], []
    site.requests.clear()

    def opened(path: str, width: int = 1280, height: int = 800, refused: str = "nothing", **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, **{"locale": "en-US", **options})
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=site.address)
        contexts.append(context)
        expected.append(refused)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("console", lambda line: wrong.append(line.text) if line.type in ("error", "warning") else None)
        page.on("request", lambda request: site.requests.append(request))
        page.goto(path if path.startswith("file:") else site.address + path)
        return page

    yield opened
    for context in contexts:
        context.close()
    found = [line for line in wrong if not any(one in line for one in expected)]
    assert found == [], found
    away = [request.url for request in site.requests if not request.url.startswith((site.address, "file:", "data:"))]
    assert away == [], "a request left the machine"


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """axe-core's script, which finds what keeps people out; fetched by npm, or from the folder AXE_CORE names."""
    named = os.environ.get("AXE_CORE")
    folder = Path(named) if named else tmp_path_factory.mktemp("npm")
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.is_file():
        if shutil.which("npm") is None:
            pytest.skip("accessibility is checked by axe-core, which npm would fetch: there is no npm")
        fetch = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), "axe-core@4"]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(fetch, timeout=60, check=False, capture_output=True)
    if not script.is_file():
        pytest.skip("accessibility is checked by axe-core, which npm could not fetch")
    return script.read_text(encoding="utf-8")


def until(page: Any, condition: str) -> None:
    """Wait for JavaScript to be true. The pages' policy forbids playwright's own way, which evaluates text in them."""
    deadline = time.monotonic() + 10
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(30)
