"""Who is admitted, and under which name: hosts, pages of other sites, proxies, wrong keys, and what is for insiders."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import HTTPConnection
from starlette.testclient import TestClient

import transduce
from transduce.core.errors import ConfigError
from transduce.server import Served, Settings, application
from transduce.server.admission import MOST_WRONG, Keys
from transduce.server.answering import DrainingResponse, failed
from transduce.server.answers import Refused
from transduce.server.settings import Proxies

FORM = {"q": "five", "source": "en", "target": "de"}


def served(translator: transduce.Translator, peer: str = "127.0.0.1", **settings: Any) -> TestClient:
    app = application([Served("toy", translator, (("en", "de"),))], Settings(**settings))
    keys = app.state.transduce.settings.keys
    app.state.transduce.keys = Keys(keys, 0, wrong_seconds=0.0)
    return TestClient(app, "http://localhost", client=(peer, 50000))


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        (["localhost"], 200),
        (["LOCALHOST:5000"], 200),
        (["[::1]:5000"], 200),
        (["evil.example"], 421),
        (["localhost", "evil.example"], 400),
        (["localhost", "localhost"], 400),
        (["[::1]evil.example"], 400),
        (["[::1]:5000evil.example"], 400),
        (["localhost:5000@evil.example"], 400),
        (["localhost evil.example"], 400),
        (["[::1"], 400),
    ],
)
def test_hosts(hosts: list[str], status: int, served_translator: transduce.Translator) -> None:
    client = served(served_translator, hosts=("localhost", "[::1]"))
    answer = client.get("/livez", headers=[("host", host) for host in hosts])
    assert answer.status_code == status
    if status == 400:
        assert answer.json()["error"].startswith("host: expected one name with or without a port, got ")
        anywhere = served(served_translator).get("/livez", headers=[("host", host) for host in hosts])
        assert anywhere.status_code == 400  # whatever names are allowed


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site"])
def test_pages_of_other_sites_send_no_forms(site: str, client: TestClient) -> None:
    answer = client.post("/translate", data=FORM, headers={"Sec-Fetch-Site": site})
    assert (answer.status_code, answer.json()["error"]) == (
        403,
        "pages of other sites may not send requests to this server",
    )
    assert client.get("/languages", headers={"Sec-Fetch-Site": site}).status_code == 200  # a link may lead here
    for own in ("same-origin", "none"):
        assert client.post("/translate", data=FORM, headers={"Sec-Fetch-Site": own}).status_code == 200
    deepl = client.post("/v2/usage", headers={"Sec-Fetch-Site": site})
    assert deepl.json() == {"message": "pages of other sites may not send requests to this server"}


def asked_from(peer: str, *forwarded: str, name: str = "x-forwarded-for") -> HTTPConnection:
    headers = [(name.encode(), one.encode()) for one in forwarded]
    return HTTPConnection({"type": "http", "client": (peer, 1), "headers": headers})


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("8.8.8.8", ["1.2.3.4"], "8.8.8.8"),  # no proxy of ours: what it says is not believed
        ("127.0.0.1", ["1.2.3.4"], "1.2.3.4"),
        ("127.0.0.1", ["6.6.6.6, 1.2.3.4"], "1.2.3.4"),  # whatever the client itself had written
        ("127.0.0.1", ["6.6.6.6", "1.2.3.4, 10.1.1.1"], "1.2.3.4"),  # through two proxies of ours
        ("127.0.0.1", ["10.1.1.1"], "10.1.1.1"),
        ("127.0.0.1", ["nonsense"], "127.0.0.1"),
        ("127.0.0.1", [], "127.0.0.1"),
        ("10.9.9.9", ["2001:db8::1"], "2001:db8::1"),
    ],
)
def test_only_trusted_proxies_say_who_asks(peer: str, forwarded: list[str], expected: str) -> None:
    proxies = Proxies(["127.0.0.1", "10.0.0.0/8"])
    assert proxies.address(asked_from(peer, *forwarded)) == expected
    assert Proxies().address(asked_from(peer, *forwarded)) == peer


def test_who_is_local() -> None:
    assert Proxies().is_local(asked_from("127.0.0.1"))
    assert Proxies().is_local(asked_from("::1"))
    assert not Proxies().is_local(asked_from("8.8.8.8"))
    assert not Proxies().is_local(asked_from("testclient"))
    for name in ("x-forwarded-for", "forwarded", "x-real-ip"):  # somebody asks for another
        assert not Proxies().is_local(asked_from("127.0.0.1", "127.0.0.1", name=name))
    trusted = Proxies(["127.0.0.1"])
    assert not trusted.is_local(asked_from("127.0.0.1"))
    assert not trusted.is_local(asked_from("127.0.0.1", "127.0.0.1"))


def test_proxies_are_addresses() -> None:
    with pytest.raises(ConfigError, match=r"proxies: expected addresses or networks such as 127.0.0.1 or .* 'localho"):
        Settings(proxies=("localhost",))


@pytest.mark.parametrize("path", ["/metrics", "/docs", "/v1/openapi.json"])
def test_what_tells_of_the_server_needs_a_key_or_this_machine(
    path: str, served_translator: transduce.Translator
) -> None:
    assert served(served_translator, "8.8.8.8").get(path).status_code == 200  # no keys, no secrets
    far, near = (served(served_translator, peer, keys=("one",)) for peer in ("8.8.8.8", "127.0.0.1"))
    assert far.get(path).status_code == 400
    assert far.get(path, headers={"Authorization": "Bearer two"}).status_code == 403
    assert far.get(path, headers={"Authorization": "Bearer one"}).status_code == 200
    assert far.get(path, params={"api_key": "one"}).status_code == 200  # as a browser can
    assert near.get(path).status_code == 200
    assert near.get(path, headers={"X-Forwarded-For": "8.8.8.8"}).status_code == 400
    proxied = served(served_translator, "127.0.0.1", keys=("one",), proxies=("127.0.0.1",))
    assert proxied.get(path).status_code == 400
    assert far.get("/livez").status_code == far.get("/languages").status_code == 200


def test_usage_is_counted_for_each_key(served_translator: transduce.Translator) -> None:
    client = served(served_translator, keys=("one", "two"))

    def used(key: str) -> int:
        answer = client.get("/v2/usage", headers={"Authorization": f"DeepL-Auth-Key {key}"})
        return int(answer.json()["character_count"])

    asked = {"source": "en", "target": "de"}
    for key, path, tree in (
        ("one", "/v2/translate", {"text": ["five", "six"], "target_lang": "DE"}),
        ("one", "/translate", {"q": "five", **asked}),
        ("two", "/v1/translate", {"text": "eleven", **asked}),
        ("two", "/v1/translate", {"text": "one! two", "stream": True, **asked}),
    ):
        answer = client.post(path, json=tree, headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == 200
    assert (used("one"), used("two")) == (11, 14)
    everybody = served(served_translator)
    everybody.post("/translate", data=FORM)
    assert everybody.get("/v2/usage").json()["character_count"] == 4


def test_wrong_keys_wait_and_right_ones_do_not() -> None:
    async def run() -> None:
        keys = Keys(("right",), 0, wrong_seconds=3600.0)
        waiting = [asyncio.ensure_future(keys.admit(f"wrong {i}", "1.1.1.1")) for i in range(MOST_WRONG)]
        await asyncio.sleep(0)
        assert not any(one.done() for one in waiting)
        await keys.admit("right", "2.2.2.2")  # nobody else waits,
        with pytest.raises(Refused, match="Too many wrong API keys from this address") as refused:
            await keys.admit("right", "1.1.1.1")  # and an address that tries many is not looked at:
        assert (refused.value.status, refused.value.retry_after) == (429, 3600)
        for one in waiting:  # clients that go away
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await keys.admit("right", "1.1.1.1")
        assert not keys._wrong  # nothing is kept of them
        quick = Keys(("right",), 0, wrong_seconds=0.0)
        with pytest.raises(Refused, match="Invalid API key") as refused:
            await quick.admit("wrong", "1.1.1.1")
        assert refused.value.status == 403
        assert await quick.admit("right", "1.1.1.1") != await Keys((), 0).admit("", "1.1.1.1")

    asyncio.run(run())


def test_a_wrong_key_waits_a_second_unless_a_test_says_otherwise() -> None:
    assert Keys(["key"], 0)._wrong_seconds == 1  # docs/serving.md


def test_of_a_body_that_is_too_long_the_rest_is_read_for_a_while() -> None:
    """Else a client that is still sending sees a reset, and no answer."""
    long = Refused(413, "too long", "limit", close=True)
    answer = failed("/translate", long, 2.0)
    assert isinstance(answer, DrainingResponse)
    assert answer.seconds == 2.0
    assert not isinstance(failed("/translate", long), DrainingResponse)


def test_a_wrong_key_takes_no_capacity_at_the_gate(served_translator: transduce.Translator) -> None:
    client = served(served_translator, keys=("one",))
    state = client.app.state.transduce  # type: ignore[attr-defined]
    for path, asked in (("/translate", FORM), ("/v1/translate", {"text": "five", "source": "en", "target": "de"})):
        answer = client.post(path, json=asked, headers={"Authorization": "Bearer two"})
        assert (answer.status_code, answer.json()["error"]) == (403, "Invalid API key")
    assert (state.gate.admitted, state.gate.held) == (0, 0)


def test_keys_are_replaced_while_requests_are_in_flight() -> None:
    keys = Keys(("old",), 0)
    asker = keys.check("old", "a")
    keys.replace(("old", "new"))
    assert keys.check("old", "a") == asker != keys.check("new", "a")
    keys.replace(("new",))
    with pytest.raises(Refused, match="Invalid API key"):
        keys.check("old", "a")
