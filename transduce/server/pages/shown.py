"""The pages as HTML: one frame around each, everything that is text escaped, no script or style inside."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from transduce.inspection.paper import FIGURE_1
from transduce.languages import name_of
from transduce.server.answering import state_of
from transduce.server.examples import sentence
from transduce.server.pages.diagram import diagram
from transduce.server.pages.texts import WORDS, language_of
from transduce.server.state import ServerState

ICONS = {
    "swap": "M7 4 3 8l4 4M3 8h14M17 12l4 4-4 4M21 16H7",
    "copy": "M9 9h11v11H9zM5 15H4V4h11v1",
    "clear": "M5 5l14 14M19 5 5 19",
    "theme": "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18",
}


def icon(name: str) -> str:
    """A drawing beside or instead of words; the words are the button's own label."""
    return f'<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d="{ICONS[name]}"/></svg>'


def frame(request: Request, page: str, body: str, data: dict[str, Any]) -> Response:
    """A page: its head, the bar with its links, `body`, and `data` for its module, which is static/{page}.js."""
    language = language_of(request)
    words = {name: escape(text) for name, text in WORDS[language].items()}
    links = "".join(
        f'<a href="{path}?lang={language}"{" aria-current=page" if name == page else ""}>{words[name]}</a>'
        for path, name in (("/", "translate"), ("/explore", "explore"), ("/learn", "learn"), ("/docs", "api"))
    )
    other = {"en": "zh", "zh": "en"}[language]
    told = escape(json.dumps({**data, "language": language, "words": WORDS[language]}, ensure_ascii=False))
    explorer = '<link rel="stylesheet" href="/static/explorer/explorer.css">' if page == "explore" else ""
    text = f"""<!doctype html>
<html lang="{"zh-Hans" if language == "zh" else "en"}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{words[page]} · transduce</title>
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/explorer/base.css">{explorer}
<link rel="stylesheet" href="/static/{page}.css">
<script src="/static/theme.js"></script>
<script type="module" src="/static/{page}.js"></script>
</head>
<body data-page="{told}">
<a class="skip" href="#content">{words["skip"]}</a>
<header class="bar">
<a class="name" href="/?lang={language}">transduce</a>
<nav aria-label="{words["pages"]}">{links}</nav>
<div class="right"><a class="button plain" href="?lang={other}" lang="{other}" hreflang="{other}" title="{"中文" if other == "zh" else "English"}">{"中文" if other == "zh" else "EN"}</a>
<button type="button" class="button round plain" id="theme" aria-label="{words["theme"]}" title="{words["theme"]}">{icon("theme")}</button></div>
</header>
<main id="content" class="page">
{body}
<noscript><p class="error">{words["noscript"]}</p></noscript>
</main>
</body>
</html>
"""  # noqa: E501 - a line of HTML
    return HTMLResponse(text, headers={"Vary": "Accept-Language"})


def _options(choices: list[tuple[str, str]], chosen: str = "") -> str:
    return "".join(
        f'<option value="{escape(value)}"{" selected" if value == chosen else ""}>{escape(text)}</option>'
        for value, text in choices
    )


def key_field(state: ServerState, words: dict[str, str]) -> str:
    """Where an API key is typed, if one is needed."""
    if not state.keys.required:
        return ""
    return (
        f'<label class="key small">{escape(words["key"])}'
        ' <input class="field" id="key" type="password" autocomplete="off"></label>'
    )


async def translate(request: Request) -> Response:
    """Two panes, as people know them."""
    state, language = state_of(request), language_of(request)
    words, models = WORDS[language], state.models
    sources = [(code, name_of(code, language)) for code in models.sources]
    targets = sorted({target for source in models.sources for target in models.targets(source)})
    into = models.targets(models.sources[0])[0]
    w = {name: escape(text) for name, text in words.items()}
    body = f"""<h1 class="unseen">{w["translate"]}</h1>
<div class="languages">
<select id="source" class="select" aria-label="{w["from"]}">{_options([("auto", words["detect"]), *sources])}</select>
<button type="button" id="swap" class="button round" aria-label="{w["swap"]}" title="{w["swap"]}">{icon("swap")}</button>
<select id="target" class="select" aria-label="{w["into"]}">{_options([(code, name_of(code, language)) for code in targets], into)}</select>
</div>
<div class="panes">
<section class="card side">
<textarea id="text" dir="auto" aria-label="{w["text"]}" placeholder="{w["placeholder"]}" rows="7" spellcheck="false" autofocus></textarea>
<footer><span class="small faint" id="count">0 / {state.settings.characters}</span>
<button type="button" id="clear" class="button round plain" aria-label="{w["clear"]}" title="{w["clear"]}" hidden>{icon("clear")}</button></footer>
</section>
<section class="card side" aria-label="{w["translation"]}">
<div id="output" class="output" dir="auto" role="group" aria-label="{w["translation"]}"></div>
<footer><span class="small faint" id="status" role="status"></span>
<a id="look" class="button plain" href="/explore?lang={language}" hidden>{w["look"]}</a>
<button type="button" id="copy" class="button round plain" aria-label="{w["copy"]}" title="{w["copy"]}" hidden>{icon("copy")}</button></footer>
</section>
</div>
<p class="unseen" id="spoken" aria-live="polite"></p>
<p class="small faint hint">{w["hint"]} {w["shortcuts"]} {w["private"]}</p>
{key_field(state, words)}"""  # noqa: E501 - lines of HTML
    ways = {source: list(models.targets(source)) for source in models.sources}
    data = {"characters": state.settings.characters, "ways": ways, "models": models_told(state, language)}
    return frame(request, "translate", body, data)


async def explore(request: Request) -> Response:
    """The explorer, fed by this server."""
    state, language = state_of(request), language_of(request)
    w = {name: escape(text) for name, text in WORDS[language].items()}
    names = [(one.name, one.name) for one in state.models.served]
    asked = request.query_params
    body = f"""<h1>{w["explore"]}</h1>
<p class="faint">{w["explore_about"]}</p>
<form id="ask" class="card ask">
<label class="wide">{w["sentence"]}<input class="field" id="text" required maxlength="1000" value="{escape(asked.get("text", ""))}"></label>
<label class="wide">{w["another"]}<input class="field" id="another" maxlength="1000"></label>
<label>{w["model"]}<select class="select" id="model">{_options(names, asked.get("model", ""))}</select></label>
<label>{w["to"]}<select class="select" id="to" data-chosen="{escape(asked.get("to", ""))}"></select></label>
<label>{w["beam"]}<select class="select" id="beam">{_options([(str(n), str(n)) for n in (1, 2, 3, 4, 6, 8)], "4")}</select></label>
<label>{w["second_model"]}<select class="select" id="second">{_options([("", WORDS[language]["same"]), *names])}</select></label>
<button class="button main">{w["go"]}</button>
</form>
<p id="status" class="small faint" role="status"></p>
<div id="explorer"></div>
{key_field(state, WORDS[language])}"""  # noqa: E501 - lines of HTML
    return frame(request, "explore", body, {"models": models_told(state, language)})


async def learn(request: Request) -> Response:
    """The paper's figure 1, alive."""
    state, language = state_of(request), language_of(request)
    w = {name: escape(text) for name, text in WORDS[language].items()}
    names = [(one.name, one.name) for one in state.models.served]
    body = f"""<h1>{w["learn"]}</h1>
<p class="faint">{w["learn_about"]}</p>
<form id="ask" class="card ask">
<label class="wide">{w["sentence"]}<input class="field" id="text" required maxlength="500" value="{escape(request.query_params.get("text", ""))}"></label>
<label>{w["model"]}<select class="select" id="model">{_options(names)}</select></label>
<label>{w["to"]}<select class="select" id="to" data-chosen="{escape(request.query_params.get("to", ""))}"></select></label>
<label>{w["layer"]}<select class="select" id="layer"><option>0</option></select></label>
<button class="button main">{w["run"]}</button>
</form>
<p id="status" class="small faint" role="status"></p>
<div class="lesson">
<figure class="card figure">{diagram(WORDS[language])}<figcaption class="small faint">{w["figure"]}</figcaption></figure>
<section class="card block" id="block" aria-live="polite"><p class="faint">{w["choose"]}</p></section>
</div>
{key_field(state, WORDS[language])}"""  # noqa: E501 - lines of HTML
    ideas = {
        name: {
            "title": idea.title[language],
            "about": idea.about[language],
            "formula": idea.formula,
            "section": idea.section,
        }
        for name, idea in FIGURE_1.items()
    }
    return frame(request, "learn", body, {"models": models_told(state, language), "ideas": ideas})


def models_told(state: ServerState, language: str) -> list[dict[str, Any]]:
    """Each model with the languages it can be told to translate into, and a sentence to begin with."""
    return [
        {
            "name": one.name,
            "pairs": one.pairs,
            "to": [(code, name_of(code, language)) for code in sorted({target for _, target in one.pairs})],
            "tagged": sorted(one.tagged),
            "example": sentence(one),
        }
        for one in state.models.served
    ]
