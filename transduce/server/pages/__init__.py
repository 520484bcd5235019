"""The web pages: translating at /, looking inside at /explore, learning at /learn, the API at /docs, and what they ask
under /page.

Pages are made on the server in English or Chinese; a few ES modules, served as they are, bring them to life.
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
    """Every page, their files, and what they ask for."""
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
