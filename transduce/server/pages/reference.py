"""/docs, the API for people: every endpoint of the OpenAPI document with its fields, and a place to try it.

What the document says is English; the page around it is in the reader's language.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from transduce.server.answering import check_insider, state_of
from transduce.server.openapi import document
from transduce.server.pages.shown import frame, key_field
from transduce.server.pages.texts import WORDS, language_of

Schema = dict[str, Any]
_TYPES = {"string": "text", "integer": "whole number", "boolean": "true or false", "array": "list"}
_LIMITS = (("minLength", "maxLength", " characters"), ("minItems", "maxItems", ""), ("minimum", "maximum", ""))


async def reference(request: Request) -> Response:
    """All endpoints, by whose protocol they speak."""
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
    asked = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    told = operation["responses"]["200"]["content"]["application/json"]["schema"]
    refusals = [(status, one["description"]) for status, one in operation["responses"].items() if status != "200"]
    name = f"{method.upper()} {path}"
    return f"""<section class="card endpoint" id="{method}{escape(path)}">
<h3><span class="method">{method.upper()}</span> <code>{escape(path)}</code></h3>
<p lang="en">{escape(operation["summary"])}</p>
{_table([*_fields(asked.get("schema", {}), schemas)], words)}
{_folded(words["answer"], name, _table([*_fields(told, schemas)], words, asked=False))}
{_folded(words["refusals"], name, _pairs(refusals))}
{_trial(method, path, asked, words)}
</section>"""


def _trial(method: str, path: str, asked: Schema, words: dict[str, str]) -> str:
    """A form that sends the example, or what a reader makes of it."""
    example, name = json.dumps(asked.get("example", {}), ensure_ascii=False, indent=1), f"{method.upper()} {path}"
    room = (
        f'<textarea class="field" spellcheck="false" rows="{example.count(chr(10)) + 1}"'
        f' aria-label="{escape(words["request"])}: {escape(name)}">{escape(example)}</textarea>'
    )
    return f"""<form class="try" data-method="{method.upper()}" data-path="{escape(path)}">{room if asked else ""}
<div><button class="button main" aria-label="{escape(words["send"])}: {escape(name)}">{escape(words["send"])}</button>
<span class="small faint" role="status"></span></div>
<pre class="came" tabindex="0" lang="en" hidden></pre>
{_folded(words["from_a_shell"], name, '<pre class="shell" tabindex="0"></pre>')}</form>"""


def _folded(title: str, name: str, inside: str) -> str:
    """What is read by few; `name` tells a screen reader whose it is."""
    if not inside:
        return ""
    return f'<details><summary>{escape(title)}<span class="unseen">: {escape(name)}</span></summary>{inside}</details>'


def _table(fields: list[tuple[str, Schema, bool]], words: dict[str, str], asked: bool = True) -> str:
    rows = []
    for name, schema, required in fields:
        needed = f' <span class="small needed">{escape(words["needed"])}</span>' if required and asked else ""
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
    """Every field with its schema and whether it is needed; within others they are `outer.inner` and `list[].inner`."""
    for one in (schema, *schema.get("anyOf", ())):
        if "$ref" in one:
            one = schemas[one["$ref"].rpartition("/")[2]]
        if one.get("type") == "array":
            yield from _fields(one.get("items", {}), schemas, f"{before.removesuffix('.')}[].")
        for name, own in one.get("properties", {}).items():
            yield before + name, own, name in one.get("required", ())
            yield from _fields(own, schemas, f"{before}{name}.")


def _kind(schema: Schema) -> str:
    """What values it takes, in words."""
    if "$ref" in schema:
        return "object"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_kind, schema["anyOf"])))
    if "enum" in schema:
        return ", ".join(json.dumps(one) if not one else str(one) for one in schema["enum"])
    kinds = schema.get("type", "anything")
    name = " or ".join(_TYPES.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds))
    items = f" of {_kind(schema['items'])}" if schema.get("items") else ""
    limits = []
    for least, most, unit in _LIMITS:
        if least in schema and most in schema:
            limits.append(f"{schema[least]} to {schema[most]}{unit}")
        elif least in schema or most in schema:
            limits.append(f"at least {schema[least]}{unit}" if least in schema else f"at most {schema[most]}{unit}")
    return name + (f" ({', '.join(limits)})" if limits else "") + items
