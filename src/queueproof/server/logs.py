"""Structured logs: one JSON object a line, one line for each request. No prompt and no answer is ever in them."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any

from queueproof.server.extension import Exchange, Extension, GenerationRecord

REQUEST_LOGGER = "queueproof.request"
# Asked again and again by machines: their lines are for debugging.
QUIET_ROUTES = frozenset({"/health", "/metrics", "/page/events", "/page/state", "/page/receipts"})
MAX_PENDING = 8192
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: ts (UTC), level, logger, event, then `extra={"fields": {...}}` of the call."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # ASCII: a line stays a line, whatever reads it and in whatever encoding.
        return json.dumps(line, default=str)


def uvicorn_log_config(level: str = "info") -> dict[str, Any]:
    """`log_config` for uvicorn: its own messages, ours and warnings of libraries as JSON lines on stderr.

    Its access log is off: `LogsExtension` writes a line that says more.
    """
    level = level.upper()
    ours = {"handlers": ["stderr"], "level": level, "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": JsonFormatter}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json", "stream": sys.stderr}},
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {"queueproof": ours, "uvicorn": ours, "uvicorn.access": {"level": "CRITICAL"}},
    }


class LogsExtension(Extension):
    """Writes the line of a request when its HTTP exchange has ended, with what is known of its answer."""

    def __init__(self) -> None:
        self._logger = logging.getLogger(REQUEST_LOGGER)
        # By request id. A client may use one twice at once, and an exchange may never end: first in, first out, bounded.
        self._pending: OrderedDict[str, list[GenerationRecord]] = OrderedDict()

    def finished(self, record: GenerationRecord) -> None:
        self._pending.setdefault(record.request_id, []).append(record)
        if len(self._pending) > MAX_PENDING:
            self._pending.popitem(last=False)

    def exchange(self, exchange: Exchange) -> None:
        record = self._take(exchange.request_id)
        level = logging.DEBUG if exchange.route in QUIET_ROUTES and 0 < exchange.status < 400 else logging.INFO
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "request", extra={"fields": request_fields(exchange, record)})

    def _take(self, request_id: str) -> GenerationRecord | None:
        records = self._pending.get(request_id)
        if not records:
            return None
        record = records.pop(0)
        if not records:
            del self._pending[request_id]
        return record


def request_fields(exchange: Exchange, record: GenerationRecord | None) -> dict[str, Any]:
    """What a line says of a request. Times in seconds; what is unknown or does not apply is left out."""
    fields: dict[str, Any] = {
        "request_id": exchange.request_id,
        "method": exchange.method,
        "route": exchange.route,
        "status": exchange.status,
        "duration_s": round(exchange.seconds, 6),
        "client": exchange.client,
        "error": exchange.error,
    }
    if record is not None:
        first, last, scheduled = record.first_token, record.last_token, record.scheduled
        fields |= {
            "response_id": record.response_id,
            "class": record.class_.value,
            "arithmetic": record.arithmetic,
            "stream": record.stream,
            "n": record.n,
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "completion_tokens": record.generated_tokens,
            "queue_s": None if scheduled is None else round(scheduled - record.arrival, 6),
            "ttft_s": None if first is None else round(first - record.arrival, 6),
            "e2e_s": None if last is None else round(last - record.arrival, 6),
            "finish_reasons": record.finish_reasons or None,
            "receipts": len(record.receipts),
            "outcome": record.outcome,
            "error": record.error or exchange.error,
            "trace_id": trace_id(record.headers.get("traceparent", "")),
        }
    return {key: value for key, value in fields.items() if value is not None}


def trace_id(traceparent: str) -> str | None:
    """The trace id of a W3C traceparent header, None if it is malformed or all zeros."""
    match = _TRACEPARENT.fullmatch(traceparent)
    return match[1] if match and match[1].strip("0") else None
