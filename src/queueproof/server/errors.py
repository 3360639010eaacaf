"""Every error as OpenAI's clients know it: {"error": {"message", "type", "param", "code"}} with an HTTP status."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from queueproof.contract.errors import (
    EngineError,
    InvalidParameter,
    NumericalError,
    QueueproofError,
    RequestTooLong,
    UnsupportedClass,
    UsageError,
)
from queueproof.server.jsonio import JsonResponse

_MAX_MESSAGE = 4000
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An answer with an error. code: a stable name. param: the field at fault. extra: more keys of the error object."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
        self.message = message if len(message) <= _MAX_MESSAGE else message[:_MAX_MESSAGE] + "..."
        self.headers, self.extra = dict(headers or {}), dict(extra or {})

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status) or ("server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code} | self.extra}

    def response(self) -> JsonResponse:
        return JsonResponse(self.body, self.status, self.headers)


def bad_request(message: str, param: str | None = None, code: str = "invalid_parameter") -> ApiError:
    return ApiError(400, code, message, param)


def unsupported_field(name: str, given: object, supported: str, advice: str) -> ApiError:
    """What was given, what is supported, what to do."""
    return bad_request(f"{name}={brief(given)} is not supported: {supported}; {advice}", name, "unsupported_parameter")


def class_not_on_offer(error: UnsupportedClass, offers: Sequence[Mapping[str, Any]]) -> ApiError:
    return ApiError(422, error.code, str(error), "determinism", extra={"offers": list(offers)})


def api_error(error: Exception) -> ApiError:
    """The answer to an error that was raised on purpose, or to any other."""
    match error:
        case ApiError():
            return error
        case HTTPException():
            return _of_http(error)
        case RequestTooLong():
            return bad_request(str(error), "max_tokens", "context_length_exceeded")
        case InvalidParameter():
            return bad_request(str(error), error.name)
        case UnsupportedClass():
            return ApiError(422, error.code, str(error), "determinism")
        case UsageError():
            return bad_request(str(error), code=error.code)
        case NumericalError():
            # The same request gives the same NaN: OpenAI's clients shall not send it again.
            return ApiError(500, error.code, f"NumericalError: {error}", headers={"x-should-retry": "false"})
        case EngineError():
            return ApiError(503, error.code, f"the engine has ended: {error}; restart the server")
        case QueueproofError():
            return ApiError(500, error.code, f"{type(error).__name__}: {error}")
        case _:
            return ApiError(500, "internal", "an internal error; the server's log has the details")


def _of_http(error: HTTPException) -> ApiError:
    headers = error.headers or {}
    if error.status_code == 404:
        return ApiError(
            404, "unknown_route", "there is no such route; docs/server.md lists them, GET /v1/models is one"
        )
    if error.status_code == 405:
        return ApiError(
            405, "method_not_allowed", f"this route takes {headers.get('Allow', 'another method')}", None, headers
        )
    return ApiError(error.status_code, "http", error.detail, None, headers)


async def answer_error(request: Request, error: Exception) -> Response:
    """Starlette's handler of the errors that routes raise."""
    found = api_error(error)
    request.scope["queueproof"].error = found.code
    return found.response()


def brief(value: object, limit: int = 80) -> str:
    """What was given, short, whatever it is. Costs little for a value of megabytes."""
    text = _short.repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 3, 60, 60
        self.maxlist = self.maxdict = 4

    def repr_str(self, x: str, level: int) -> str:
        return repr(x) if len(x) <= self.maxstring else repr(x[: self.maxstring - 3])[:-1] + "..."

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() < 128 else f"an integer of {x.bit_length()} bits"


_short = _Short()
