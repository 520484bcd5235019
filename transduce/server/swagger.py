"""The Swagger 2 document of the LibreTranslate API, which some of its clients and tools read at /spec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transduce import __version__

_ERRORS = {
    "400": "Invalid request", "403": "Not allowed", "429": "Slow down", "500": "Translation error", "503": "Busy",
}  # fmt: skip


def document(languages: Sequence[str]) -> dict[str, Any]:
    """All endpoints with their parameters."""
    text = {"type": "string"}
    detected = {"type": "object", "properties": {"confidence": {"type": "number"}, "language": text}}
    language = {"type": "object", "properties": {"code": text, "name": text, "targets": _list(text)}}
    key = _field("api_key", "API key", required=False)
    translating = [
        _field("q", "Text to translate"),
        _field("source", "Source language code, or auto", ["auto", *languages]),
        _field("target", "Target language code", [*languages]),
        _field("format", "Format of the text", ["text", "html"], required=False),
        {**_field("alternatives", "Further translations wanted", required=False), "type": "integer", "default": 0},
        key,
    ]
    translation = {"type": "object", "properties": {"translatedText": text}}
    return {
        "swagger": "2.0",
        "info": {"title": "transduce (LibreTranslate API)", "version": __version__},
        "basePath": "/",
        "paths": {
            "/translate": {"post": _operation("Translate text", translating, translation)},
            "/detect": {"post": _operation("Detect a language", [_field("q", "Text"), key], _list(detected))},
            "/languages": {"get": _operation("Languages served", [], _list(language))},
            "/frontend/settings": {"get": _operation("Settings for a web page", [], {"type": "object"})},
            "/health": {"get": _operation("Whether requests are taken", [], {"type": "object"})},
        },
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _field(name: str, text: str, words: Sequence[str] = (), required: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": name,
        "in": "formData",
        "type": "string",
        "required": required,
        "description": text,
    }
    return {**found, "enum": [*words]} if words else found


def _operation(summary: str, parameters: list[dict[str, Any]], schema: dict[str, Any]) -> dict[str, Any]:
    error = {"type": "object", "properties": {"error": {"type": "string"}}}
    answers = {"200": {"description": summary, "schema": schema}}
    answers |= {code: {"description": text, "schema": error} for code, text in _ERRORS.items()}
    return {"summary": summary, "parameters": parameters, "responses": answers}
