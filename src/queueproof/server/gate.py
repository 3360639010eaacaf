"""The outermost layer: gives every exchange an id, asks for the API key, and turns whatever fails into an error."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queueproof.server.errors import ApiError, api_error
from queueproof.server.extension import Exchange, Extensions

_log = logging.getLogger("queueproof.server")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


@dataclass(slots=True)
class ExchangeScope:
    """What the gate knows of an exchange: scope["queueproof"]. error: code of the error that was answered.

    held: what is given back when the exchange has ended.
    """

    request_id: str
    owner: str | None
    arrival: float
    error: str | None = None
    status: int = 0
    held: ExitStack = field(default_factory=ExitStack)


class Gate:
    """paths: the path pattern of each endpoint, for `Exchange.route`."""

    def __init__(self, app: ASGIApp, api_keys: Sequence[str], extensions: Extensions, paths: Mapping[Any, str]) -> None:
        self._app, self._extensions, self._paths = app, extensions, paths
        self._public = frozenset({"/health"}.union(*(e.public_paths for e in extensions.all)))
        self._owners = {_digest(key): _digest(key).hex() for key in api_keys}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000, "reason": "this server has no websockets"})
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        mine = ExchangeScope(given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex, None, time.monotonic())
        scope["queueproof"] = mine

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                mine.status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = mine.request_id
            await send(message)

        try:
            _check_length(headers)
            self._admit(scope, headers, mine)
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            mine.status, mine.error = mine.status or 499, "client_closed_request"
        except Exception as error:
            found = api_error(error)
            mine.error = found.code
            if not isinstance(error, ApiError):
                _log.exception("request %s failed", mine.request_id)
            if mine.status:
                raise  # an answer that has begun can only be cut off, which the server does for an error
            await found.response()(scope, receive, send_with_id)
        finally:
            mine.held.close()
            self._extensions.exchange(self._ended(scope, mine))

    def _admit(self, scope: Scope, headers: Headers, mine: ExchangeScope) -> None:
        if not self._owners:
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            mine.owner = self._owner(key.strip())
        if mine.owner is None and scope["path"] not in self._public:
            raise ApiError(
                401,
                "invalid_api_key",
                "this server asks for an API key; send the header Authorization: Bearer KEY with a key that it knows",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _owner(self, key: str) -> str | None:
        """All keys are compared, through digests of one length: the time tells nothing about them."""
        given = _digest(key)
        found = None
        for digest, owner in self._owners.items():
            if hmac.compare_digest(digest, given):
                found = owner
        return found

    def _ended(self, scope: Scope, mine: ExchangeScope) -> Exchange:
        client = scope.get("client")
        return Exchange(
            mine.request_id,
            scope["method"],
            self._paths.get(scope.get("endpoint"), ""),
            mine.status,
            time.monotonic() - mine.arrival,
            client[0] if client else "",
            mine.error,
        )


def _check_length(headers: Headers) -> None:
    """A body whose end two headers put in two places (RFC 9112, section 6.3): a proxy may have believed the other one, and
    have taken for a body what would be read as the next request here."""
    if "transfer-encoding" in headers and "content-length" in headers:
        raise ApiError(
            400,
            "ambiguous_length",
            "the request has Transfer-Encoding and Content-Length; send one of them",
            headers={"Connection": "close"},
        )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
