"""The body of a request as JSON: size, type, encoding and depth are checked before anything looks at it."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

from queueproof.contract.canonical import repeated_key
from queueproof.server.errors import ApiError, bad_request, brief
from queueproof.server.limits import read_body
from queueproof.server.state import state_of

MAX_DEPTH = 64


async def read_object(request: Request) -> dict[str, Any]:
    """A JSON object. Raises ApiError: 400, 408, 413, 415, 429; ClientDisconnect."""
    value = await read_json(request)
    if not isinstance(value, dict):
        raise bad_request(f"the body must be a JSON object, not {brief(value)}", code="invalid_json")
    return value


async def read_json(request: Request) -> Any:
    """Any JSON value. Raises as `read_object`."""
    _check_type(request)
    state = state_of(request)
    return parse_json(await read_body(request, state.admission, state.config))


def parse_json(data: bytes) -> Any:
    """Strict: UTF-8, no NaN or Infinity, no half of a surrogate pair, no key twice in an object, nested at most
    MAX_DEPTH deep. Raises ApiError 400."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_request(f"the body is not UTF-8: {error.reason} at byte {error.start}", code="invalid_json") from None
    try:
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_object)
    except RecursionError:
        raise bad_request(f"the body is nested more than {MAX_DEPTH} deep", code="invalid_json") from None
    except ValueError as error:  # JSONDecodeError, and integers of thousands of digits
        raise bad_request(f"the body is not JSON: {error}", code="invalid_json") from None
    _check_depth(value)
    if "\\u" in text:
        _check_surrogates(value)
    return value


def _check_type(request: Request) -> None:
    given = request.headers.get("content-type", "")
    kind, *parameters = (part.strip().lower() for part in given.split(";"))
    charsets = [p.removeprefix("charset=").strip('"') for p in parameters if p.startswith("charset=")]
    if kind != "application/json" or any(charset not in ("utf-8", "utf8") for charset in charsets):
        raise ApiError(
            415,
            "unsupported_media_type",
            f"Content-Type is {brief(given)}; send the body as application/json in UTF-8",
            headers={"Connection": "close"},  # the body is not read
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise ApiError(
            415,
            "unsupported_media_type",
            f"Content-Encoding is {brief(encoding)}; send the body as it is",
            headers={"Connection": "close"},
        )


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError(f"the key {brief(repeated_key(pairs))} is there twice")
    return made


def _check_depth(value: Any) -> None:
    """Level by level, so that it needs no stack itself."""
    level = [value]
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                deeper += [v for v in item.values() if isinstance(v, dict | list)]
            elif isinstance(item, list):
                deeper += [v for v in item if isinstance(v, dict | list)]
        if not deeper:
            return
        level = deeper
    raise bad_request(f"the body is nested more than {MAX_DEPTH} deep", code="invalid_json")


def _check_surrogates(value: Any) -> None:
    """Escapes can say what UTF-8 cannot."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise bad_request(
            f"the body has {ascii(error.object[error.start])} alone, half of a surrogate pair, which is no Unicode text",
            code="invalid_json",
        ) from None
