"""API keys: without one nothing but health is open, and what is kept belongs to a key."""

from __future__ import annotations

import hashlib

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from queueproof.server.extension import Extension
from queueproof.server.jsonio import JsonResponse
from queueproof.server.state import owner_of
from tests.support.fake_engine import FakeEngine
from tests.support.serving import CHAT, HELLO, NumberedReceipts, app_of, error_of, post, request

KEYS = ("sk-first", "sk-second")


class Page(Extension):
    public_paths = frozenset({"/", "/page/app.js"})

    def routes(self) -> list[BaseRoute]:
        return [Route(path, self._who) for path in ("/", "/page/app.js", "/page/state")]

    async def _who(self, request: Request) -> Response:
        return JsonResponse({"owner": owner_of(request)})


def with_key(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_every_route_asks_for_the_key() -> None:
    app = app_of(FakeEngine(), api_keys=KEYS, admin=True, extensions=[Page()])
    paths = {route.path for route in app.routes if isinstance(route, Route)}
    assert {"/v1/chat/completions", "/v1/contract", "/reset_prefix_cache", "/tokenize"} <= paths
    for path in sorted(paths - {"/health", "/", "/page/app.js"}) + ["/nowhere", "/health/", "/health2"]:
        for method in ("GET", "POST", "OPTIONS", "HEAD"):
            got = request(app, method, path.replace("{model:path}", "fake"))
            assert got.status_code == 401 and got.headers["www-authenticate"] == "Bearer", (method, path)
            if method != "HEAD":
                assert error_of(got, 401)["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/health", "/", "/page/app.js"])
def test_what_holds_no_data_is_open(path: str) -> None:
    app = app_of(FakeEngine(), api_keys=KEYS, extensions=[Page()])
    assert request(app, "GET", path).status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer sk-firs",
        "Bearer sk-firstt",
        "Basic sk-first",
        "sk-first",
        "Bearer sk-first sk-second",
    ],
)
def test_wrong_keys(header: str) -> None:
    app = app_of(FakeEngine(), api_keys=KEYS)
    error_of(request(app, "GET", "/v1/models", headers={"Authorization": header}), 401)
    odd = request(app, "GET", "/v1/models", headers=[(b"Authorization", b"Bearer \xff\xfe")])
    error_of(odd, 401)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER "])
def test_any_of_the_keys_opens(key: str, scheme: str) -> None:
    app = app_of(FakeEngine(), api_keys=KEYS)
    assert request(app, "GET", "/v1/models", headers={"Authorization": f"{scheme} {key}"}).status_code == 200


def test_receipts_belong_to_the_key() -> None:
    receipts = NumberedReceipts()
    app = app_of(FakeEngine(), api_keys=KEYS, receipts=receipts)
    for key in KEYS:
        assert post(app, CHAT, headers=with_key(key), messages=HELLO, max_tokens=1).status_code == 200
    assert [kept.owner for kept in receipts.kept] == [hashlib.sha256(key.encode()).hexdigest() for key in KEYS]
    open_receipts = NumberedReceipts()
    post(app_of(FakeEngine(), receipts=open_receipts), CHAT, headers=with_key("any"), messages=HELLO, max_tokens=1)
    assert [kept.owner for kept in open_receipts.kept] == [None]


def test_no_other_page_may_call_unless_it_is_allowed() -> None:
    asking = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    for app in (app_of(FakeEngine()), app_of(FakeEngine(), allowed_origins=("http://good.example",))):
        got = request(app, "OPTIONS", CHAT, headers=asking)
        assert got.status_code != 200 and "access-control-allow-origin" not in got.headers
    allowed = app_of(FakeEngine(), api_keys=KEYS, allowed_origins=("http://good.example",))
    got = request(allowed, "OPTIONS", CHAT, headers=asking | {"Origin": "http://good.example"})
    assert got.status_code == 200 and got.headers["access-control-allow-origin"] == "http://good.example"
    # A page that is not allowed cannot send JSON without asking, and text is not taken.
    plain = {"Content-Type": "text/plain", "Origin": "http://evil.example"}
    assert request(app_of(FakeEngine()), "POST", CHAT, content=b"{}", headers=plain).status_code == 415


def test_users_with_keys_of_their_own_share_no_prefix_cache() -> None:
    engine = FakeEngine()
    app = app_of(engine, api_keys=KEYS)
    for key in KEYS:
        for salt in ({}, {"cache_salt": "s"}):
            assert post(app, CHAT, with_key(key), messages=HELLO, max_tokens=1, **salt).status_code == 200
    assert len({seen.cache_salt for seen in engine.seen}) == 4 and None not in {seen.cache_salt for seen in engine.seen}


def test_one_key_shares_what_no_key_shares() -> None:
    engine = FakeEngine()
    post(app_of(engine, api_keys=KEYS[:1]), CHAT, with_key(KEYS[0]), messages=HELLO, max_tokens=1)
    assert [seen.cache_salt for seen in engine.seen] == [None]
