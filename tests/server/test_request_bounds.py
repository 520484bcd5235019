"""What one request may cost: alignments in links, sentence by sentence; bounds that are checked before work begins."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

import transduce
from transduce.server import Served, Settings, application
from transduce.server.admission import CELLS_A_TOKEN, MOST_EXCLUDED, MOST_INCLUDED, width_of
from transduce.server.answers import CHUNK, LARGE, pieces, rendered
from transduce.server.translating import MOST_TASKS, LoopTurns, together

ASKED = {"source": "en", "target": "de"}
PAIR = {**ASKED, "texts": ["five"], "translations": ["fünf"]}


def served(translator: transduce.Translator, **settings: Any) -> TestClient:
    return TestClient(
        application([Served("toy", translator, (("en", "de"),))], Settings(**settings)), "http://localhost"
    )


@pytest.fixture
def unmoved(served_translator: transduce.Translator, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of the model: none, where a request is refused before work begins."""
    calls: list[str] = []
    for name in ("search", "score", "attend"):
        whole = getattr(served_translator.engine, name)
        monkeypatch.setattr(
            served_translator.engine, name, lambda *args, name=name, whole=whole: (calls.append(name), whole(*args))[1]
        )
    return calls


def test_an_alignment_is_links_sentence_by_sentence(client: TestClient) -> None:
    """Its size follows the length of a text, not its square."""
    sizes = {}
    for lines in (20, 40):
        text = "five! seven\n" * lines
        answer = client.post("/v1/translate", json={**ASKED, "text": text, "alignment": "pieces"})
        (one,) = answer.json()["translations"]
        assert len(one["alignment"]) == len(one["sentences"]) == 2 * lines
        for aligned, sentence in zip(one["alignment"], one["sentences"], strict=True):
            assert "".join(aligned["source"]).replace("▁", " ").replace("<0x21>", "!").strip() == sentence["source"]
            assert {t for _, t, _ in aligned["links"]} <= set(range(len(aligned["target"])))
            assert all(0 < weight <= 1.0001 for *_, weight in aligned["links"])
        sizes[lines] = len(answer.content)
    assert sizes[40] < 2.1 * sizes[20]


def test_a_sentence_cut_into_parts_has_links_too(client: TestClient, served_translator: transduce.Translator) -> None:
    text = "five, seven, " * 60  # longer than the model reads at once
    (one,) = client.post("/v1/translate", json={**ASKED, "text": text, "alignment": "words"}).json()["translations"]
    (aligned,) = one["alignment"]
    (expected,) = served_translator.translate([text.strip()], to="", align="words")
    assert expected.parts > 1
    assert expected.alignment is not None
    assert expected.alignment.weights == ()
    assert aligned["source"] == text.split()
    assert len(aligned["links"]) == len(aligned["target"])


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/translate", {**ASKED, "text": "five\n" * 40}),
        ("/v1/translate", {**ASKED, "text": "five\n" * 40, "stream": True}),
        ("/v1/translate", {**ASKED, "text": "five\n" * 20, "alignment": "words"}),
        ("/v1/translate", {**ASKED, "text": "five\n" * 20, "n_best": 6}),
        ("/v1/translate", {**ASKED, "text": "five\n" * 10, "beam": 16}),
        ("/v1/translate", {**ASKED, "text": "<b>five</b><br>" * 15, "format": "html"}),
        ("/v1/translate", {**ASKED, "text": ["five"] * 10, "prefix": "fünf, " * 10}),
        ("/translate", {**ASKED, "q": "five\n" * 40}),
        ("/v2/translate", {"text": ["five\n" * 40], "target_lang": "DE", "source_lang": "EN"}),
        ("/v1/score", {**PAIR, "texts": ["five " * 6] * 10, "translations": ["fünf"] * 10}),
        ("/v1/align", {**PAIR, "texts": ["five " * 6] * 10, "translations": ["fünf"] * 10}),
    ],
)
def test_too_much_work_is_refused_before_it_begins(
    path: str, asked: Any, served_translator: transduce.Translator, unmoved: list[str]
) -> None:
    client = served(served_translator, request_tokens=100)
    answer = client.post(path, json=asked)
    told = answer.json()
    text = told.get("message") or told["error"]
    assert answer.status_code == 422, text
    assert "tokens of work, and at most 100 are allowed" in text
    assert text.endswith("send fewer texts at a time")
    assert unmoved == []
    assert client.app.state.transduce.gate.admitted == 0  # type: ignore[attr-defined]


def test_attention_has_a_bound(served_translator: transduce.Translator, unmoved: list[str]) -> None:
    client = served(served_translator, cells=50)
    assert client.post("/v1/attention", json=PAIR).status_code == 200
    unmoved.clear()
    many = {**PAIR, "texts": ["five"] * 20, "translations": ["fünf"] * 20}
    answer = client.post("/v1/attention", json=many)
    assert answer.status_code == 422
    assert "attention weights, and at most 50 are allowed; send shorter texts" in answer.json()["error"]
    for path in ("align", "attention", "score"):
        answer = client.post(f"/v1/{path}", json={**PAIR, "texts": ["five " * 9], "translations": ["fünf " * 9]})
        assert answer.status_code == 422
        assert answer.json()["error"].startswith("a pair of ")
    assert unmoved == []
    assert client.post("/v1/align", json=many).status_code == 200  # links grow with the texts alone


def test_cells_count_at_the_gate(served_translator: transduce.Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    client = served(served_translator)
    gate = client.app.state.transduce.gate  # type: ignore[attr-defined]
    asked: list[int] = []
    admit = gate.admit
    monkeypatch.setattr(gate, "admit", lambda tokens: (asked.append(tokens), admit(tokens))[1])
    long = {**PAIR, "texts": ["five " * 12], "translations": ["fünf " * 12]}
    assert client.post("/v1/score", json=long).status_code == 200
    assert client.post("/v1/align", json=long).status_code == 200
    tokens, aligned = asked
    assert aligned >= tokens + 12 * 12 // CELLS_A_TOKEN


def test_wider_searches_cost_more() -> None:
    asked = ((1, 0), (1, 4), (3, 5), (6, 0), (1, 16), (6, 16), (1, 0, 6), (1, 0, 40), (1, 16, 12))
    assert [width_of(*one) for one in asked] == [1, 1, 1, 3, 4, 4, 1, 10, 4]


def test_words_that_must_appear_are_bounded_before_work_begins(
    served_translator: transduce.Translator, unmoved: list[str]
) -> None:
    """A search keeps a hypothesis for each of their tokens: 16 long words took a gigabyte."""
    client = served(served_translator)
    asked = {**ASKED, "beam": 4, "text": "five"}
    words = [
        f"{'sieben neun ' * 7}{last}"
        for last in ("acht", "zwei", "drei", "eins", "vier", "sechs", "zehn", "elf", "null", "hundert")
    ]
    answer = client.post("/v1/translate", json={**asked, "include": words})
    assert answer.status_code == 422
    assert answer.json()["error"].startswith(f"include: expected words of at most {MOST_INCLUDED} tokens in all, got ")
    assert client.post("/v1/translate", json={**asked, "include": words[:1]}).status_code == 200
    long = {**asked, "text": "five, " * 30, "include": words[:4]}
    answer = served(served_translator, batch_tokens=100).post("/v1/translate", json=long)
    assert answer.status_code == 422
    assert "tokens are too many for a text of 91 tokens" in answer.json()["error"]
    assert answer.json()["error"].endswith("give fewer words, or shorter texts")
    assert unmoved == ["search"]


def test_words_that_must_not_appear_are_bounded(client: TestClient, unmoved: list[str]) -> None:
    words = [f"{'sieben neun ' * 8}{number}" for number in range(64)]
    answer = client.post("/v1/translate", json={**ASKED, "text": "five", "exclude": words})
    assert answer.status_code == 422
    told = f"exclude: expected words of at most {MOST_EXCLUDED} characters in all, got {sum(map(len, words))}"
    assert answer.json()["error"] == told
    assert unmoved == []
    few = client.post("/v1/translate", json={**ASKED, "text": "five", "exclude": ["acht", "neun"] * 32})
    assert few.status_code == 200


def test_words_that_must_appear_count_as_work(served_translator: transduce.Translator) -> None:
    client = served(served_translator, request_tokens=60)
    asked = {**ASKED, "beam": 4, "text": ["five"] * 10}
    assert client.post("/v1/translate", json=asked).status_code == 200
    answer = client.post("/v1/translate", json={**asked, "include": ["sieben neun acht zwei drei eins " * 3]})
    assert answer.status_code == 422
    assert "tokens of work" in answer.json()["error"]


def test_large_answers_are_written_in_a_thread_and_alike() -> None:
    tree = {
        "a": [1, 2.5, None, True, 'ü\n"', []],
        "empty": {},
        "rows": [[i / 7 for i in range(40)] for _ in range(3)],
        "flat": list(range(3 * CHUNK + 1)),
        "links": [(1, 2, 0.5), (3, 4, 0.25)],
        "deep": [{"x": [{"y": ()}]}, "text"],
        "text": "猫",
    }
    plain = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
    assert "".join(pieces(tree)) == plain
    assert max(map(len, pieces(tree))) < 10 * CHUNK
    where: list[threading.Thread] = []

    def make() -> Any:
        where.append(threading.current_thread())
        return tree

    async def run(size: int) -> bytes:
        return bytes((await rendered(make, size)).body)

    assert asyncio.run(run(LARGE - 1)) == asyncio.run(run(LARGE)) == plain.encode()
    assert [one is threading.main_thread() for one in where] == [True, False]


def test_few_sentences_are_begun_at_a_time() -> None:
    begun = most = made = 0

    async def one(number: int) -> int:
        nonlocal begun, most
        begun += 1
        most = max(most, begun)
        await asyncio.sleep(0)
        begun -= 1
        return number

    def work() -> Iterator[Any]:
        nonlocal made
        for number in range(1000):
            made += 1
            assert made <= most + MOST_TASKS + 1 + number
            yield one(number)

    assert asyncio.run(together(work(), 10)) == list(range(1000))
    assert most == 10


def test_a_server_cuts_batches_of_its_own(served_translator: transduce.Translator) -> None:
    state = served(served_translator, batch_tokens=100).app.state.transduce  # type: ignore[attr-defined]
    assert state.batchers["toy"].translator.batch_tokens == 100 < served_translator.batch_tokens


def test_work_that_is_never_begun_is_never_made() -> None:
    made = 0

    async def one() -> None:
        raise ValueError("the first fails")

    def work() -> Iterator[Any]:
        nonlocal made
        for _ in range(10_000):
            made += 1
            yield one()

    with pytest.raises(ValueError, match="the first fails"):
        asyncio.run(together(work(), 10))
    assert made <= 12


def test_one_goes_on_in_each_turn_of_the_loop() -> None:
    """Forty passages with tags, whose sentences come back together, are put together one by one."""

    async def run() -> list[int]:
        turn, seen, loops = LoopTurns(), [], 0

        async def one() -> None:
            await turn.come()
            seen.append(loops)

        tasks = [asyncio.ensure_future(one()) for _ in range(40)]
        while not all(task.done() for task in tasks):
            loops += 1
            await asyncio.sleep(0)
        return seen

    seen = asyncio.run(run())
    assert len(set(seen)) == len(seen) == 40
