"""JSON in and out: one compact form, never NaN or Infinity."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
dumps = _encoder.encode


def dump_bytes(value: Any) -> bytes:
    """UTF-8. Half of a surrogate pair, which no UTF-8 can hold, becomes a replacement character."""
    return dumps(value).encode("utf-8", "replace")


class JsonResponse(Response):
    media_type = "application/json"

    def __init__(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(dump_bytes(value), status, dict(headers) if headers else None)
