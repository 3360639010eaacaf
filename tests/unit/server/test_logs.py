"""Log lines: JSON, one a request, and never a word of a prompt or an answer."""

from __future__ import annotations

import io
import json
import logging
import logging.config
from collections.abc import Iterator
from typing import Any

import pytest

from queueproof.server.logs import (
    MAX_PENDING,
    REQUEST_LOGGER,
    JsonFormatter,
    LogsExtension,
    trace_id,
    uvicorn_log_config,
)
from tests.support.records import RESPONSE_ID, exchange, record

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """The lines of the request log, read when the list is asked for."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger(REQUEST_LOGGER)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    class Lines(list[dict[str, Any]]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            return (json.loads(line) for line in stream.getvalue().splitlines())

    yield Lines()
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def test_a_request_is_one_line(lines: list[dict[str, Any]]) -> None:
    logs = LogsExtension()
    logs.finished(record(headers={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}))
    logs.exchange(exchange())
    [line] = lines
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "queueproof.request",
        "event": "request",
        "request_id": "req-1",
        "method": "POST",
        "route": "/v1/chat/completions",
        "status": 200,
        "duration_s": 1.05,
        "client": "127.0.0.1",
        "response_id": RESPONSE_ID,
        "class": "portable",
        "arithmetic": "ieee/1",
        "stream": True,
        "n": 1,
        "prompt_tokens": 12,
        "cached_tokens": 8,
        "completion_tokens": 5,
        "queue_s": 0.05,
        "ttft_s": 0.2,
        "e2e_s": 1.0,
        "finish_reasons": ["stop"],
        "receipts": 1,
        "outcome": "ok",
        "trace_id": TRACE,
    }


def test_a_request_without_an_answer(lines: list[dict[str, Any]]) -> None:
    LogsExtension().exchange(exchange(status=401, error="invalid_api_key"))
    [line] = lines
    assert line["status"] == 401 and line["error"] == "invalid_api_key" and "outcome" not in line


def test_lines_that_machines_cause_are_for_debugging(lines: list[dict[str, Any]]) -> None:
    logs = LogsExtension()
    logs.exchange(exchange(route="/health", method="GET"))
    logs.exchange(exchange(route="/health", method="GET", status=503))
    assert [line["status"] for line in lines] == [503]


def test_a_request_id_may_be_used_twice(lines: list[dict[str, Any]]) -> None:
    logs = LogsExtension()
    logs.finished(record(response_id="a"))
    logs.finished(record(response_id="b"))
    for _ in range(3):
        logs.exchange(exchange())
    assert [line.get("response_id") for line in lines] == ["a", "b", None]


def test_requests_whose_exchange_never_ends_are_forgotten() -> None:
    logs = LogsExtension()
    for i in range(MAX_PENDING + 10):
        logs.finished(record(request_id=str(i)))
    assert len(logs._pending) == MAX_PENDING


def test_a_line_stays_one_line() -> None:
    made = logging.LogRecord("x", logging.ERROR, "f", 1, 'a "quoted"\nsecond\u2028line \ud800', (), None)
    text = JsonFormatter().format(made)
    assert "\n" not in text and text.isascii()
    assert json.loads(text)["event"] == 'a "quoted"\nsecond\u2028line \ud800'


def test_an_exception_is_in_the_line() -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        made = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), (ValueError, error, error.__traceback__))
    assert "ValueError: why" in json.loads(JsonFormatter().format(made))["exception"]


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (f"00-{TRACE}-00f067aa0ba902b7-01", TRACE),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", None),
        (f"00-{TRACE.upper()}-00f067aa0ba902b7-01", None),
        ("", None),
        ("x\n", None),
    ],
)
def test_trace_ids(header: str, found: str | None) -> None:
    assert trace_id(header) == found


def test_uvicorn_writes_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    before = {name: logging.getLogger(name).handlers[:] for name in ("", "queueproof", "uvicorn", "uvicorn.access")}
    try:
        logging.config.dictConfig(uvicorn_log_config("info"))
        logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)
        logging.getLogger("uvicorn.access").info("GET /")
        logging.getLogger("some.library").info("chatter")
    finally:
        for name, handlers in before.items():
            logger = logging.getLogger(name)
            logger.handlers[:], logger.propagate = handlers, True
            logger.setLevel(logging.WARNING if name == "" else logging.NOTSET)
    [line] = capsys.readouterr().err.splitlines()
    assert json.loads(line)["event"] == "Started server process [7]"
