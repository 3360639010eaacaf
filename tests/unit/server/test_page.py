"""The page's files and headers, what it may read without a key, and its stream of events."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import resources
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from queueproof.contract.axes import Axis
from queueproof.server import timeline
from queueproof.server.app import make_app
from queueproof.server.config import ServerConfig
from queueproof.server.routes.page import PageExtension
from queueproof.server.timeline import label_of
from tests.support.fake_engine import FakeEngine, contract_of
from tests.support.serving import CHAT, HELLO, live

FILES = sorted(
    entry.name for entry in resources.files("queueproof.server").joinpath("page").iterdir() if "." in entry.name
)
DATA = ("/live/state", "/live/events")
KEY = {"authorization": "Bearer sesame"}


def client_of(engine: FakeEngine, *keys: str) -> tuple[TestClient, PageExtension]:
    page = PageExtension([engine])
    config = ServerConfig(model_names=("m",), build="1.2.3", api_keys=keys)
    return TestClient(make_app(config, [engine], contract_of(engine), None, [page])), page


@pytest.fixture
def client() -> Iterator[TestClient]:
    made, _ = client_of(FakeEngine(), "sesame")
    with made:
        yield made


@pytest.mark.parametrize("path", ["/", *(f"/page/{name}" for name in FILES)])
def test_files_are_open_and_guarded_by_headers(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200 and answer.content
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "set-cookie" not in answer.headers
    again = client.get(path, headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304 and not again.content
    assert again.headers["content-security-policy"] == answer.headers["content-security-policy"]


def test_types(client: TestClient) -> None:
    kinds = {name: client.get(f"/page/{name}").headers["content-type"] for name in ("app.js", "style.css", "icon.svg")}
    assert kinds["app.js"].startswith("text/javascript") and kinds["style.css"].startswith("text/css")
    assert kinds["icon.svg"].startswith("image/svg+xml")


@pytest.mark.parametrize("name", ["nothing.js", "..%2fapp.py", "__init__.py", "%00", "app.js/x"])
def test_there_are_no_other_files(client: TestClient, name: str) -> None:
    assert client.get(f"/page/{name}").status_code == 401
    assert client.get(f"/page/{name}", headers=KEY).status_code == 404


@pytest.mark.parametrize("path", DATA)
def test_data_needs_the_key(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 401
    assert client.get(path, headers={"authorization": "Bearer other"}).status_code == 401


def test_the_state(client: TestClient) -> None:
    answer = client.get("/live/state", headers=KEY)
    assert answer.headers["cache-control"] == "no-store"
    state, timeline = answer.json()["about"], answer.json()["timeline"]
    assert state["build"] == "1.2.3" and state["model"] == "m" and state["chat"] is True
    assert state["default_class"] == "portable" and state["receipts"] == "off"
    assert [offer["class"] for offer in state["contract"]["offers"]] == ["batch", "request", "portable"]
    assert [axis["name"] for axis in state["axes"]] == [axis.value for axis in Axis]
    [engine] = state["engines"]
    assert engine["arithmetic"] == "ieee/1" and engine["max_num_seqs"] == 8 and engine["running"] is True
    assert timeline["samples"] and not timeline["ended"]


def test_a_model_without_a_chat_template() -> None:
    made, _ = client_of(FakeEngine(has_template=False))
    with made:
        assert made.get("/live/state").json()["about"]["chat"] is False


def read_events(lines: Iterator[str], wanted: str) -> list[tuple[str, dict[str, Any]]]:
    """Up to the first event of a kind."""
    found, kind = [], ""
    for line in lines:
        if line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("data: "):
            found.append((kind, json.loads(line[6:])))
            if kind == wanted:
                break
    return found


class _Markup(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.labels: set[str | None] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "label":
            self.labels.add(dict(attrs).get("for"))


def source(name: str) -> str:
    return resources.files("queueproof.server").joinpath("page", name).read_text(encoding="utf-8")


def test_the_markup_keeps_the_policy_and_names_every_field() -> None:
    markup = _Markup()
    markup.feed(source("index.html"))
    for tag, attributes in markup.tags:
        assert "style" not in attributes and not any(name.startswith("on") for name in attributes)
        for name in ("src", "href"):
            assert not re.match(r"[a-z]+:|/", attributes.get(name) or ""), "only what lies beside the page"
        if tag in ("input", "select", "textarea"):
            assert attributes["id"] in markup.labels
        if tag == "script":
            assert attributes["src"]
    identifiers = [attributes["id"] for _, attributes in markup.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    used = {name for file in FILES if file.endswith(".js") for name in re.findall(r'byId\("([^"]+)"\)', source(file))}
    assert used <= {*identifiers}


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith((".js", ".css", ".svg"))])
def test_files_ask_for_nothing_outside_and_write_no_markup(name: str) -> None:
    text = source(name)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "cookie"):
        assert way not in text, way
    assert len(text.splitlines()) <= 500


def test_events_arrive_while_an_answer_is_made_and_no_id_is_among_them() -> None:
    engine = FakeEngine(step=0.01)
    with live(engine, extensions=[PageExtension([engine])], api_keys=("sesame",)) as server:
        with httpx.stream("GET", f"{server.url}/live/events", headers=KEY) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["cache-control"] == "no-store"
            asked = {"messages": HELLO, "max_tokens": 30}
            made = httpx.post(server.url + CHAT, json=asked, headers=KEY | {"x-request-id": "mine"}).json()
            found = read_events(answer.iter_lines(), "ended")
        own = label_of(made["id"])
        ended = found[-1][1]
        assert ended["label"] == own and ended["largest"] == 1 and ended["generated"] == 30
        batches = [event["engines"][0]["members"] for kind, event in found if kind == "sample"]
        assert any(member[:2] == [own, "d"] for members in batches for member in members)
        state = httpx.get(server.url + "/live/state", headers=KEY)
        for text in (json.dumps(found), state.text):
            assert made["id"] not in text and "mine" not in text and "hello" not in text


def test_a_server_that_stops_does_not_wait_for_those_who_watch() -> None:
    engine = FakeEngine()
    with live(engine, extensions=[PageExtension([engine])]) as server:
        with httpx.stream("GET", f"{server.url}/live/events", timeout=20) as answer:
            read_events(lines := answer.iter_lines(), "second")
            start = time.monotonic()
            server.ask_to_stop()
            list(lines)
        assert time.monotonic() - start < 5


def test_one_watcher_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_LISTENERS", 0)
    made, _ = client_of(FakeEngine())
    with made:
        answer = made.get("/live/events")
    assert answer.status_code == 429 and answer.headers["retry-after"]
