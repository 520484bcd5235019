"""Any JSON to every endpoint: never a 500, always an answer in the shape that its protocol promises."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.routing import Route
from starlette.testclient import TestClient

from transduce.server.protocols import schemas

ANSWERS = {
    "/v1/translate": schemas.TranslateAnswer,
    "/v1/score": schemas.ScoreAnswer,
    "/v1/align": schemas.AlignAnswer,
    "/v1/attention": schemas.AttentionAnswer,
}
WORDS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["en", "de", "zh", "auto", "xx", "five", "<b>six</b> seven", "\ud800", "one! two\n", "\U00010400"]),
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), WORDS)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4), max_leaves=12
)
FIELDS = {
    **dict.fromkeys(("text", "texts", "translations", "q", "include", "exclude", "prefix", "before"), WORDS),
    **dict.fromkeys(
        ("source", "target", "target_lang", "source_lang", "to"), st.sampled_from(["en", "de", "auto", ""])
    ),
    "format": st.sampled_from(["text", "html", "pdf"]),
    "alignment": st.sampled_from(["words", "pieces", None]),
    "unit": st.sampled_from(["words", "pieces"]),
    **dict.fromkeys(("n_best", "beam", "alternatives", "layer"), st.integers(-3, 20)),
    **dict.fromkeys(("stream", "matrix"), st.booleans()),
    "tag_handling": st.sampled_from(["html", "xml", "no"]),
    "split_sentences": st.sampled_from(["0", "1"]),
    "model": st.sampled_from(["toy", "none", ""]),
}


def near(name: str) -> st.SearchStrategy[Any]:
    """A value as a client would send it, a list of such, or anything."""
    return st.one_of(FIELDS[name], st.lists(FIELDS[name], max_size=3), FIELDS[name], SCALARS)


BODIES = st.one_of(
    TREES,
    st.fixed_dictionaries({}, optional={name: near(name) for name in FIELDS}),
    st.fixed_dictionaries(
        {"source": st.just("en"), "target": st.just("de")},
        optional={name: near(name) for name in FIELDS if name not in ("source", "target")},
    ),
)


def paths_of(client: TestClient) -> list[str]:
    routes = client.app.routes  # type: ignore[attr-defined]
    return sorted(one.path for one in routes if isinstance(one, Route) and "POST" in (one.methods or ()))


def check_failure(path: str, told: Any) -> None:
    """The words of the protocol that was spoken."""
    expected = (
        {"message"} if path.startswith(("/v2", "/v3")) else {"error", "code"} if path.startswith("/v1") else {"error"}
    )
    assert told.keys() == expected
    assert all(isinstance(text, str) and text for text in told.values())


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_json_to_every_endpoint(client: TestClient, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(paths_of(client)))
    # Clients drop the fields of other protocols; half of the time so do we.
    body = data.draw(BODIES)
    if path in ANSWERS and isinstance(body, dict) and data.draw(st.booleans()):
        known = schemas.TranslateRequest if path == "/v1/translate" else schemas.AlignRequest
        body = {name: value for name, value in body.items() if name in known.model_fields}
    sent = json.dumps(body).encode()  # lone surrogates as \\ud800, which is JSON
    answer = client.post(path, content=sent, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400, 403, 404, 413, 422, 501), (answer.status_code, answer.text)
    if answer.headers["content-type"] == "application/x-ndjson":
        assert answer.text.endswith("\n")
        return
    assert answer.headers["content-type"] == "application/json"
    told = answer.json()
    if answer.status_code != 200:
        check_failure(path, told)
    elif path in ANSWERS:
        ANSWERS[path].model_validate(told)
    gate = client.app.state.transduce.gate  # type: ignore[attr-defined]
    assert (gate.held, gate.requests) == (0, 0)


def test_every_endpoint_is_tried(client: TestClient) -> None:
    assert set(paths_of(client)) >= {*ANSWERS, "/translate", "/detect", "/suggest", "/v2/translate", "/page/inspect"}
