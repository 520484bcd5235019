"""The OpenAPI document of every JSON endpoint, from the pydantic models, with an example request for each.

server/pages/html.py shows it to people. The examples are made of a sentence that the served model can read.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from transduce import __version__
from transduce.server.models import Models, Served
from transduce.server.protocols import schemas as shapes
from transduce.server.state import ServerState
from transduce.text.languages import base_of

SENTENCES = {"en": "Cats like to sleep.", "de": "Katzen schlafen gern.", "zh": "猫喜欢睡觉。"}
GLOSSARY = {"name": "mine", "dictionaries": [{"source": "en", "target": "de", "entries": {"cat": "Katze*"}}]}
NUMBERS = ("four thousand two hundred and seventeen", "seven")


def sentence(served: Served) -> str:
    """An example sentence in a language of the model, short enough and without unknown tokens; else number words."""
    return _known(served)[1]


def requests(models: Models) -> dict[str, dict[str, Any]]:
    """An example JSON request for each path that takes one; `SENTENCES` serve as translations."""
    served = models.served[0]
    language, text = _known(served)
    source, target = next((pair for pair in served.pairs if base_of(pair[0]) == language), served.pairs[0])
    ways = {"source": source, "target": target}
    pairs = {**ways, "texts": [text], "translations": [SENTENCES.get(base_of(target), text)]}
    return {
        "/v1/translate": {"text": text, **ways, "n_best": 2, "alignment": "words"},
        "/v1/score": pairs,
        "/v1/align": {**pairs, "unit": "words"},
        "/v1/attention": pairs,
        "/v1/glossaries": GLOSSARY,
        "/v1/detect": {"text": text},
        "/translate": {"q": text, "source": "auto", "target": target, "format": "text", "alternatives": 1},
        "/detect": {"q": text},
        "/v2/translate": {"text": [text], "target_lang": target},
        "/v2/languages": {"type": "target"},
        "/v2/usage": {},
    }


def _known(served: Served) -> tuple[str, str]:
    tokenizer = served.translator.tokenizers.source
    read = {base_of(source) for source, _ in served.pairs}
    candidates = [(code, text) for code, text in SENTENCES.items() if code in read]
    for code, text in (*candidates, *(("en", text) for text in NUMBERS)):
        tokens = tokenizer.encode([text])[0]
        if tokenizer.symbols.unk not in tokens and len(tokens) + 1 < served.translator.longest:
            return code, text
    return "", ""


_OPEN: dict[str, Any] = {"security": []}  # endpoints without input are open to all, with a key or without
_ERRORS = {
    "400": "The request cannot be carried out.",
    "403": "The API key is wrong.",
    "408": "The body did not arrive in time.",
    "413": "The body is too long.",
    "415": "The body is not JSON.",
    "422": "A field is missing, superfluous, or has a wrong value.",
    "429": "Too many requests; Retry-After says when to retry.",
    "503": "The server is full or shutting down; Retry-After says when to retry.",
    "504": "The answer took too long.",
}
_OURS: dict[str, tuple[str, type[BaseModel] | None, type[BaseModel] | list[type[BaseModel]]]] = {
    "/v1/translate": ("Translate texts.", shapes.TranslateRequest, shapes.TranslateAnswer),
    "/v1/score": ("Score given translations.", shapes.PairsRequest, shapes.ScoreAnswer),
    "/v1/align": (
        "Align given translations: the source word of each target word.",
        shapes.AlignRequest,
        shapes.AlignAnswer,
    ),
    "/v1/attention": (
        "The attention of every decoder layer to the source.",
        shapes.PairsRequest,
        shapes.AttentionAnswer,
    ),
    "/v1/detect": ("Detect the language of a text, the likeliest first.", shapes.DetectRequest, [shapes.Detection]),
    "/v1/models": ("The models served.", None, [shapes.ModelShape]),
    "/v1/languages": ("Languages, and what each can be translated to.", None, [shapes.LanguageShape]),
    "/livez": ("Whether the process is alive.", None, shapes.StatusShape),
    "/readyz": ("Whether requests are accepted.", None, shapes.StatusShape),
}


def document(state: ServerState) -> dict[str, Any]:
    """Build the OpenAPI 3.1 document."""
    schemas = _schemas()
    _limit(schemas, state)
    paths: dict[str, Any] = {}
    for path, (summary, given, answer) in _OURS.items():
        paths[path] = {"post" if given else "get": _operation(path, summary, given, answer)}
    paths |= _glossaries() | _others(state)
    for path, example in requests(state.models).items():
        paths[path]["post"]["requestBody"]["content"]["application/json"]["example"] = example
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "transduce",
            "version": __version__,
            "description": "Translation by your own models. /translate and its neighbours implement LibreTranslate's"
            " protocol, /v2 a part of DeepL's; our own API is under /v1.",
        },
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Message": _object(message="string"), "Error": _object(error="string")},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        **({"security": [{"key": []}]} if state.keys.required else {}),
    }


def _schemas() -> dict[str, Any]:
    classes = [value for value in vars(shapes).values() if isinstance(value, type) and issubclass(value, BaseModel)]
    models = [model for model in classes if model not in (BaseModel, shapes.Strict)]
    _, found = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    schemas: dict[str, Any] = found["$defs"]
    return schemas


def _limit(schemas: dict[str, Any], state: ServerState) -> None:
    """Put this server's own limits into the schemas."""
    limits, codes = state.settings, sorted(state.models.languages)
    fields = schemas["TranslateRequest"]["properties"]
    text = {"type": "string", "maxLength": limits.characters}
    fields["text"]["anyOf"] = [text, {"type": "array", "items": text, "minItems": 1, "maxItems": limits.texts}]
    fields["prefix"] |= {"maxLength": limits.characters}
    fields["n_best"] |= {"maximum": limits.alternatives + 1}
    fields["source"] |= {"enum": ["auto", *codes]}
    fields["target"] |= {"enum": codes}
    for name in ("PairsRequest", "AlignRequest"):
        for side in ("source", "target"):
            schemas[name]["properties"][side] |= {"enum": codes}
        for field in ("texts", "translations"):
            schemas[name]["properties"][field] |= {"items": text, "maxItems": limits.texts}
    schemas["DetectRequest"]["properties"]["text"] |= {"maxLength": limits.characters}


def _reference(schema: Any) -> dict[str, Any]:
    if isinstance(schema, list):
        return {"type": "array", "items": _reference(schema[0])}
    return {"$ref": f"#/components/schemas/{schema.__name__}"}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _operation(path: str, summary: str, given: type[BaseModel] | None, answer: Any) -> dict[str, Any]:
    errors = _ERRORS if given else {"503": _ERRORS["503"]} if path == "/readyz" else {}
    failure = _reference(shapes.StatusShape if path == "/readyz" else shapes.Failure)
    answers: dict[str, Any] = {"200": {"description": summary, "content": _json(_reference(answer))}}
    if path == "/v1/translate":
        lines = {"description": "With stream: a line of JSON a sentence.", "type": "string"}
        answers["200"]["content"] |= {"application/x-ndjson": {"schema": lines}}
        errors = {**errors, "404": "There is no such model or glossary."}
    elif given and issubclass(given, shapes.PairsRequest):
        errors = {**errors, "404": "There is no such model."}
    for status, text in errors.items():
        answers[status] = {"description": text, "content": _json(failure)}
    found: dict[str, Any] = {"summary": summary, "responses": answers}
    return found | ({"requestBody": {"required": True, "content": _json(_reference(given))}} if given else _OPEN)


def _glossaries() -> dict[str, Any]:
    """Our own endpoints of glossaries, and DeepL's as far as a schema can describe them."""
    number = {"name": "number", "in": "path", "required": True, "schema": {"type": "string"}}
    one, every = _json(_reference(shapes.GlossaryShape)), _json(_reference(shapes.GlossariesAnswer))
    failure = _json(_reference(shapes.Failure))
    shown = {code: {"description": _ERRORS[code], "content": failure} for code in ("400", "403", "429", "503")}
    missing = {"404": {"description": "There is no such glossary.", "content": failure}}
    read = {code: {"description": text, "content": failure} for code, text in _ERRORS.items()}
    read["456"] = {"description": "Too many glossaries.", "content": failure}
    schema = {"schema": _reference(shapes.GlossaryRequest), "example": GLOSSARY}
    body = {"required": True, "content": {"application/json": schema}}

    def operation(summary: str, status: str, content: Any, errors: dict[str, Any], given: Any = None) -> dict[str, Any]:
        answer = {"description": summary, **({"content": content} if content else {})}
        found: dict[str, Any] = {"summary": summary, "responses": {status: answer, **errors}}
        if errors.keys() & missing.keys():
            found["parameters"] = [number]
        return found | ({"requestBody": given} if given else {})

    found: dict[str, Any] = {
        "/v1/glossaries": {
            "get": operation("The glossaries of this key.", "200", every, shown),
            "post": operation("Keep a glossary.", "201", one, read, body),
        },
        "/v1/glossaries/{number}": {
            "get": operation("A glossary with its entries.", "200", one, {**shown, **missing}),
            "put": operation("Replace a glossary.", "200", one, {**read, **missing}, body),
            "delete": operation("Delete a glossary.", "204", None, {**shown, **missing}),
        },
    }
    return found


def _object(**types: str) -> dict[str, Any]:
    properties = {name: {"type": kind} for name, kind in types.items()}
    return {"type": "object", "properties": properties, "required": [*types]}


def _others(state: ServerState) -> dict[str, Any]:
    """The endpoints of other protocols, as far as a schema can describe them."""
    item: dict[str, Any] = {"type": "string", "maxLength": state.settings.characters}
    text, many = {**item, "minLength": 1}, {"type": "array", "items": item, "minItems": 1}
    code = {"type": "string", "enum": sorted(state.models.languages)}
    source = {"type": "string", "enum": ["auto", *code["enum"]]}
    any_answer = {"type": "object"}
    texts = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    others = {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}}
    found: dict[str, Any] = {"type": "array", "items": _object(confidence="number", language="string")}
    translated = {
        "type": "object",
        "properties": {
            "translatedText": texts,
            "detectedLanguage": {"anyOf": [found["items"], found]},
            "alternatives": others,
        },
        "required": ["translatedText"],
    }
    known = {"type": "array", "items": _object(code="string", name="string", targets="array")}
    translate = {
        "type": "object",
        "properties": {
            "q": {"anyOf": [text, many]},
            "source": source,
            "target": code,
            "format": {"enum": ["text", "html", "", None]},
            # As text too, for that is how forms say it; a negative number is none.
            "alternatives": {
                "anyOf": [{"type": "integer", "maximum": state.settings.alternatives}, {"type": ["string", "null"]}]
            },
            "glossary": {
                "anyOf": [
                    {"type": ["string", "null"]},
                    {"type": "array", "items": {"type": "string"}},
                    {"type": "object", "additionalProperties": {"type": "string"}},
                ]
            },
        },
        "required": ["q", "source", "target"],
    }
    detect = {"type": "object", "properties": {"q": text}, "required": ["q"]}
    deepl = {
        "type": "object",
        "properties": {
            "text": {"anyOf": [item, many]},
            "target_lang": code,
            "source_lang": code,
            "glossary_id": {"type": "string"},
            "glossary_ids": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
        },
        "required": ["text", "target_lang"],
    }
    answer = _object(translations="array")
    answer["properties"]["translations"]["items"] = _object(
        detected_source_language="string", text="string", billed_characters="integer"
    )
    return {
        "/translate": {"post": _foreign("Translate, as LibreTranslate does.", translate, translated, "Error")},
        "/detect": {"post": _foreign("Detect, as LibreTranslate does.", detect, found, "Error")},
        "/languages": {"get": _foreign("Languages, as LibreTranslate has them.", None, known, "Error")},
        "/frontend/settings": {"get": _foreign("Settings for a page.", None, any_answer, "Error")},
        "/health": {"get": _operation("/readyz", "Whether requests are accepted.", None, shapes.StatusShape)},
        "/spec": {"get": _foreign("This document, as LibreTranslate has it.", None, any_answer, "Error")},
        "/v2/translate": {"post": _foreign("Translate, as DeepL does.", deepl, answer, "Message")},
        **_deepl_tables(),
    }


def _deepl_tables() -> dict[str, Any]:
    """DeepL's endpoints for GET or POST, with fields in the query or a body."""
    kind = {"enum": ["source", "target"]}
    kinds = {"type": "object", "properties": {"type": kind}}
    languages = {"type": "array", "items": _object(language="string", name="string")}
    usage = _object(character_count="integer", character_limit="integer")
    found: dict[str, Any] = {}
    for path, summary, answer, body in (
        ("/v2/languages", "Languages, as DeepL has them.", languages, kinds),
        ("/v2/usage", "Characters translated since the start, of this key.", usage, {"type": "object"}),
    ):
        post = _foreign(summary, body, answer, "Message")
        get = {name: value for name, value in post.items() if name != "requestBody"}
        post["requestBody"]["required"] = False
        found[path] = {"get": get, "post": post}
    found["/v2/languages"]["get"]["parameters"] = [{"name": "type", "in": "query", "schema": kind}]
    return found


def _foreign(summary: str, given: dict[str, Any] | None, answer: dict[str, Any], failure: str) -> dict[str, Any]:
    errors = {**_ERRORS, "404": "Not offered."} if given else {}
    answers = {"200": {"description": summary, "content": _json(answer)}}
    for status, text in errors.items():
        if status != "415":
            text = "The request needs more work than is allowed." if status == "422" else text
            answers[status] = {"description": text, "content": _json({"$ref": f"#/components/schemas/{failure}"})}
    if given:
        answers["415"] = {
            "description": "The body is compressed.",
            "content": _json({"$ref": f"#/components/schemas/{failure}"}),
        }
    found: dict[str, Any] = {"summary": summary, "responses": answers}
    return found | ({"requestBody": {"required": True, "content": _json(given)}} if given else _OPEN)
