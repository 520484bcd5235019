"""The web pages: translating at /, inspecting at /explore, learning at /learn, the API at /docs.

Pages are made on the server in English or Chinese; a few ES modules, served as they are, bring them to life and send
their requests to /page.
"""

from __future__ import annotations

from pathlib import Path

from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from transduce.inspection.page import FOLDER as EXPLORER
from transduce.server.pages import api, html
from transduce.server.pages.html import reference
from transduce.server.state import ServerState

STATIC = Path(__file__).parent / "static"


def routes(state: ServerState) -> list[BaseRoute]:
    """The routes of every page, their files, and their requests."""
    return [
        Route("/", html.translate, methods=["GET"]),
        Route("/explore", html.explore, methods=["GET"]),
        Route("/learn", html.learn, methods=["GET"]),
        Route("/docs", reference, methods=["GET"]),
        Route("/page/alternatives", api.alternatives, methods=["POST"]),
        Route("/page/inspect", api.inspect, methods=["POST"]),
        Route("/page/learn", api.learn, methods=["POST"]),
        Mount("/static/explorer", StaticFiles(directory=EXPLORER)),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
