"""The pages as HTML: one frame around each, everything that is text escaped, no script or style inside.

Figure 1 of the paper is an SVG whose blocks can be clicked, on the left the encoder, on the right the decoder. /docs is
the API for people: every endpoint of the OpenAPI document with its fields, and a form to try it; what the document says
is English, the page around it is in the reader's language.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from transduce.inspection.paper import FIGURE_1
from transduce.server.answering import check_insider, state_of
from transduce.server.pages.texts import WORDS, language_of
from transduce.server.protocols.openapi import document, sentence
from transduce.server.state import ServerState
from transduce.text.languages import name_of

WIDE, LEFT, RIGHT = 150, 70, 330
# Each block: its key, its lines of text, its distance from the top, its kind (for its colour).
ENCODER = (
    ("encoder-norm-2", ("Add & Norm",), 270, "norm"),
    ("encoder-feed-forward", ("Feed", "Forward"), 305, "feed"),
    ("encoder-norm-1", ("Add & Norm",), 390, "norm"),
    ("encoder-attention", ("Multi-Head", "Attention"), 425, "attention"),
)
DECODER = (
    ("softmax", ("Softmax",), 50, "soft"),
    ("linear", ("Linear",), 95, "line"),
    ("decoder-norm-3", ("Add & Norm",), 150, "norm"),
    ("decoder-feed-forward", ("Feed", "Forward"), 185, "feed"),
    ("decoder-norm-2", ("Add & Norm",), 270, "norm"),
    ("decoder-cross", ("Multi-Head", "Attention"), 305, "attention"),
    ("decoder-norm-1", ("Add & Norm",), 390, "norm"),
    ("decoder-attention", ("Masked Multi-Head", "Attention"), 425, "attention"),
)
LINE = 20


def diagram(words: Mapping[str, str]) -> str:
    """The whole figure as SVG; each block a button with `data-block`."""
    blocks = "".join(_block(LEFT, *block) for block in ENCODER) + "".join(_block(RIGHT, *block) for block in DECODER)
    for x, side, name in ((LEFT, "input", ("Input", "Embedding")), (RIGHT, "output", ("Output", "Embedding"))):
        blocks += _block(x, side, name, 580, "embed") + _circle(x, f"{side}-positions")
    labels = (
        _label(LEFT + WIDE // 2, 660, words["inputs"])
        + _label(RIGHT + WIDE // 2, 660, words["outputs"])
        + _label(RIGHT + WIDE // 2, 22, words["probabilities"])
        + _label(LEFT - 44, 378, "N×")
        + _label(RIGHT + WIDE + 44, 318, "N×")
    )
    return (
        f'<svg viewBox="0 0 560 680" class="diagram" role="group" aria-label="{escape(words["figure"])}">'
        f"{_stacks()}{_arrows()}{blocks}{labels}</svg>"
    )


def _block(x: int, key: str, lines: tuple[str, ...], y: int, kind: str) -> str:
    height = LINE * len(lines) + 10
    middle = x + WIDE // 2
    text = " ".join(
        f'<tspan x="{middle}" y="{y + 20 + LINE * number}">{escape(line)}</tspan>' for number, line in enumerate(lines)
    )
    name = escape(" ".join(lines))
    return (
        f'<g class="block {kind}" role="button" tabindex="0" data-block="{key}" aria-label="{name}"'
        f' aria-pressed="false"><rect x="{x}" y="{y}" width="{WIDE}" height="{height}" rx="8"/><text>{text}</text></g>'
    )


def _circle(x: int, key: str) -> str:
    """The sum with the positions: a circle with a wave beside the line."""
    left = x == LEFT
    middle, wave = x + WIDE // 2, (x - 20 if left else x + WIDE + 20)
    return (
        f'<g class="block wave" role="button" tabindex="0" data-block="{key}" aria-label="Positional Encoding"'
        f' aria-pressed="false"><path class="plain" d="M{wave},535H{middle}"/>'
        f'<circle cx="{wave}" cy="535" r="20"/><path class="sine" d="M{wave - 13},535c4,-16 9,-16 13,0s9,16 13,0"/>'
        f'<circle cx="{middle}" cy="535" r="11"/><path class="plain" d="M{middle - 6},535h12M{middle},529v12"/></g>'
    )


def _label(x: int, y: int, text: str) -> str:
    return f'<text class="label" x="{x}" y="{y}">{escape(text)}</text>'


def _stacks() -> str:
    return (
        f'<rect class="stack" x="{LEFT - 24}" y="252" width="{WIDE + 48}" height="252" rx="18"/>'
        f'<rect class="stack" x="{RIGHT - 24}" y="132" width="{WIDE + 48}" height="372" rx="18"/>'
    )


def _arrows() -> str:
    """The arrows up and across, and the residual around every block."""
    left, right = LEFT + WIDE // 2, RIGHT + WIDE // 2
    ways = [
        f"M{left},645V630", f"M{left},580V546", f"M{left},524V475", f"M{left},390V355",
        f"M{left},270V236H{left + 115}V330H{RIGHT}",
        f"M{right},645V630", f"M{right},580V546", f"M{right},524V475", f"M{right},390V355", f"M{right},270V235",
        f"M{right},150V125", f"M{right},95V80", f"M{right},50V30",
    ]  # fmt: skip
    around = [
        (left, LEFT - 14, 512, 405), (left, LEFT - 14, 372, 285),
        (right, RIGHT + WIDE + 14, 512, 405), (right, RIGHT + WIDE + 14, 372, 285),
        (right, RIGHT + WIDE + 14, 252, 165),
    ]  # fmt: skip
    for middle, aside, low, high in around:
        edge = LEFT if aside < middle else RIGHT + WIDE
        ways.append(f"M{middle},{low}H{aside}V{high}H{edge}")
    marker = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        ' orient="auto-start-reverse"><path d="M0,0 8,4 0,8z"/></marker></defs>'
    )
    return marker + "".join(f'<path class="way" marker-end="url(#tip)" d="{way}"/>' for way in ways)


ICONS = {
    "swap": "M7 4 3 8l4 4M3 8h14M17 12l4 4-4 4M21 16H7",
    "copy": "M9 9h11v11H9zM5 15H4V4h11v1",
    "clear": "M5 5l14 14M19 5 5 19",
    "theme": "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18",
}


def icon(name: str) -> str:
    """An icon beside or instead of words; the words are the button's own label."""
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
    page_data = escape(json.dumps({**data, "language": language, "words": WORDS[language]}, ensure_ascii=False))
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
<body data-page="{page_data}">
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
    """An input for the API key, if one is needed."""
    if not state.keys.required:
        return ""
    return (
        f'<label class="key small">{escape(words["key"])}'
        ' <input class="field" id="key" type="password" autocomplete="off"></label>'
    )


async def translate(request: Request) -> Response:
    """The translation page: two panes, as people know them."""
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
    data = {"characters": state.settings.characters, "ways": ways, "models": models_as_json(state, language)}
    return frame(request, "translate", body, data)


async def explore(request: Request) -> Response:
    """The explorer, fed by this server."""
    state, language = state_of(request), language_of(request)
    w = {name: escape(text) for name, text in WORDS[language].items()}
    names = [(model.name, model.name) for model in state.models.served]
    query = request.query_params
    body = f"""<h1>{w["explore"]}</h1>
<p class="faint">{w["explore_about"]}</p>
<form id="ask" class="card ask">
<label class="wide">{w["sentence"]}<input class="field" id="text" required maxlength="1000" value="{escape(query.get("text", ""))}"></label>
<label class="wide">{w["another"]}<input class="field" id="another" maxlength="1000"></label>
<label>{w["model"]}<select class="select" id="model">{_options(names, query.get("model", ""))}</select></label>
<label>{w["to"]}<select class="select" id="to" data-chosen="{escape(query.get("to", ""))}"></select></label>
<label>{w["beam"]}<select class="select" id="beam">{_options([(str(n), str(n)) for n in (1, 2, 3, 4, 6, 8)], "4")}</select></label>
<label>{w["second_model"]}<select class="select" id="second">{_options([("", WORDS[language]["same"]), *names])}</select></label>
<button class="button main">{w["go"]}</button>
</form>
<p id="status" class="small faint" role="status"></p>
<div id="explorer"></div>
{key_field(state, WORDS[language])}"""  # noqa: E501 - lines of HTML
    return frame(request, "explore", body, {"models": models_as_json(state, language)})


async def learn(request: Request) -> Response:
    """The paper's figure 1 with live values."""
    state, language = state_of(request), language_of(request)
    w = {name: escape(text) for name, text in WORDS[language].items()}
    names = [(model.name, model.name) for model in state.models.served]
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
    return frame(request, "learn", body, {"models": models_as_json(state, language), "ideas": ideas})


def models_as_json(state: ServerState, language: str) -> list[dict[str, Any]]:
    """Each model with the target languages it has tags for, and a sentence to begin with, as JSON for a page."""
    return [
        {
            "name": model.name,
            "pairs": model.pairs,
            "to": [(code, name_of(code, language)) for code in sorted({target for _, target in model.pairs})],
            "tagged": sorted(model.tagged),
            "example": sentence(model),
        }
        for model in state.models.served
    ]


Schema = dict[str, Any]
_TYPES = {"string": "text", "integer": "integer", "boolean": "true or false", "array": "list"}
_LIMITS = (("minLength", "maxLength", " characters"), ("minItems", "maxItems", ""), ("minimum", "maximum", ""))


async def reference(request: Request) -> Response:
    """The API page: all endpoints, grouped by protocol."""
    await check_insider(request)
    state, language = state_of(request), language_of(request)
    words = WORDS[language]
    described = state.once("openapi", document)
    groups: dict[str, list[str]] = {"ours": [], "libretranslate": [], "deepl": [], "machines": []}
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            groups[_group(path)].append(_endpoint(method, path, operation, described["components"]["schemas"], words))
    sections = "".join(f"<h2>{escape(words[name])}</h2>{''.join(found)}" for name, found in groups.items())
    body = f"""<h1>{escape(words["api"])}</h1>
<p class="faint">{escape(words["api_about"])} {escape(words["for_programs"])} <a href="/v1/openapi.json">OpenAPI</a>, <a href="/spec">Swagger</a></p>
{key_field(state, words)}
{sections}"""  # noqa: E501 - a line of HTML
    return frame(request, "api", body, {})


def _group(path: str) -> str:
    if path.startswith(("/v1/", "/v2/")):
        return {"1": "ours", "2": "deepl"}[path[2]]
    return "machines" if path in ("/livez", "/readyz") else "libretranslate"


def _endpoint(method: str, path: str, operation: Schema, schemas: Schema, words: dict[str, str]) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    good = next(status for status in operation["responses"] if status.startswith("2"))
    answer = operation["responses"][good].get("content", {}).get("application/json", {}).get("schema", {})
    errors = [(status, error["description"]) for status, error in operation["responses"].items() if status != good]
    name = f"{method.upper()} {path}"
    return f"""<section class="card endpoint" id="{method}{escape(path)}">
<h3><span class="method">{method.upper()}</span> <code>{escape(path)}</code></h3>
<p lang="en">{escape(operation["summary"])}</p>
{_table([*_fields(body.get("schema", {}), schemas)], words)}
{_folded(words["answer"], name, _table([*_fields(answer, schemas)], words, of_request=False))}
{_folded(words["errors"], name, _pairs(errors))}
{_trial(method, path, body, words)}
</section>"""


def _trial(method: str, path: str, body: Schema, words: dict[str, str]) -> str:
    """A form that sends the example, or what a reader makes of it."""
    example, name = json.dumps(body.get("example", {}), ensure_ascii=False, indent=1), f"{method.upper()} {path}"
    editor = (
        f'<textarea class="field" spellcheck="false" rows="{example.count(chr(10)) + 1}"'
        f' aria-label="{escape(words["request"])}: {escape(name)}">{escape(example)}</textarea>'
    )
    return f"""<form class="try" data-method="{method.upper()}" data-path="{escape(path)}">{editor if body else ""}
<div><button class="button main" aria-label="{escape(words["send"])}: {escape(name)}">{escape(words["send"])}</button>
<span class="small faint" role="status"></span></div>
<pre class="came" tabindex="0" lang="en" hidden></pre>
{_folded(words["from_a_shell"], name, '<pre class="shell" tabindex="0"></pre>')}</form>"""


def _folded(title: str, name: str, inside: str) -> str:
    """A section folded by default; `name` tells a screen reader whose it is."""
    if not inside:
        return ""
    return f'<details><summary>{escape(title)}<span class="unseen">: {escape(name)}</span></summary>{inside}</details>'


def _table(fields: list[tuple[str, Schema, bool]], words: dict[str, str], of_request: bool = True) -> str:
    rows = []
    for name, schema, required in fields:
        needed = f' <span class="small needed">{escape(words["needed"])}</span>' if required and of_request else ""
        default = (
            f", {escape(words['default'])} <code>{escape(json.dumps(schema['default']))}</code>"
            if "default" in schema
            else ""
        )
        rows.append(
            f'<tr><th scope="row"><code>{escape(name).replace(".", ".<wbr>")}</code>{needed}</th>'
            f'<td lang="en">{escape(_kind(schema))}{default}</td>'
            f'<td lang="en">{escape(schema.get("description", ""))}</td></tr>'
        )
    heads = "".join(f'<th scope="col">{escape(words[name])}</th>' for name in ("field", "kind", "meaning"))
    return (
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        * bool(rows)
    )


def _pairs(pairs: list[tuple[str, str]]) -> str:
    rows = "".join(f'<tr><th scope="row">{escape(a)}</th><td>{escape(b)}</td></tr>' for a, b in pairs)
    return f'<table lang="en"><tbody>{rows}</tbody></table>' if rows else ""


def _fields(schema: Schema, schemas: Schema, before: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """Every field with its schema and whether it is required; nested ones are `outer.inner` and `list[].inner`."""
    for variant in (schema, *schema.get("anyOf", ())):
        if "$ref" in variant:
            variant = schemas[variant["$ref"].rpartition("/")[2]]
        if variant.get("type") == "array":
            yield from _fields(variant.get("items", {}), schemas, f"{before.removesuffix('.')}[].")
        for name, field in variant.get("properties", {}).items():
            yield before + name, field, name in variant.get("required", ())
            yield from _fields(field, schemas, f"{before}{name}.")


def _kind(schema: Schema) -> str:
    """The values of a schema in words."""
    if "$ref" in schema:
        return "object"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_kind, schema["anyOf"])))
    if "enum" in schema:
        return ", ".join(json.dumps(value) if not value else str(value) for value in schema["enum"])
    kinds = schema.get("type", "anything")
    name = " or ".join(_TYPES.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds))
    items = f" of {_kind(schema['items'])}" if schema.get("items") else ""
    limits = list(_limits(schema))
    return name + (f" ({', '.join(limits)})" if limits else "") + items


def _limits(schema: Schema) -> Iterator[str]:
    """The bounds of a value, in words."""
    for least, most, unit in _LIMITS:
        if least in schema and most in schema:
            yield f"{schema[least]} to {schema[most]}{unit}"
        elif least in schema:
            yield f"at least {schema[least]}{unit}"
        elif most in schema:
            yield f"at most {schema[most]}{unit}"
