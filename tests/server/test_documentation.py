"""docs/server.md names every route, field and error code there is, and no field that there is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.routing import Route

from queueproof.server.openai.chat import ChatFields
from queueproof.server.openai.completions import CompletionFields
from queueproof.server.openai.fields import HARMLESS, NEUTRAL
from tests.support.fake_engine import FakeEngine
from tests.support.serving import app_of

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([^`\n]+)`", TEXT))


def test_every_route_is_there() -> None:
    for route in app_of(FakeEngine(), admin=True).routes:
        assert isinstance(route, Route) and route.methods is not None
        path = route.path.replace("{model:path}", "{model}")
        assert any(f"{method} {path}" in NAMED for method in route.methods), path


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("fields", [ChatFields, CompletionFields], ids=["chat", "completions"])
def test_every_field_is_there(fields: type[ChatFields] | type[CompletionFields]) -> None:
    named = set(re.findall(r"`(\w+)`", section("Fields of requests")))
    assert set(fields.model_fields) <= named


def test_every_field_of_the_tables_exists() -> None:
    rows = re.findall(r"^\| (`[^|]*`) \|", section("Fields of requests"), re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert names == set(ChatFields.model_fields) | set(CompletionFields.model_fields)


def test_what_is_harmless_and_what_is_not_supported_is_there() -> None:
    text = section("Fields of requests")
    harmless = text.split("without influence:")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", harmless)) == set(HARMLESS)
    refused = set(re.findall(r"`(\w+)`", text.split("that says what to do:")[1]))
    # `echo` and `add_special_tokens` are fields of completions that chat does not have.
    assert refused == {name for table in NEUTRAL.values() for name in table} - set(CompletionFields.model_fields)


def test_every_code_of_an_error_is_there() -> None:
    source = ""
    for path in (ROOT / "src" / "queueproof" / "server").glob("*.py"):
        source += path.read_text(encoding="utf-8")
    codes = set(re.findall(r'ApiError\(\s*\d{3},\s*"(\w+)"', source)) - {"client_closed_request", "http"}
    assert len(codes) > 10 and codes <= NAMED
