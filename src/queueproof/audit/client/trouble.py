"""Kinds of trouble with an endpoint, which of them are worth another try, and when."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

import httpx

from queueproof.audit.endpoint import Trouble
from queueproof.audit.report.words import visible

_MESSAGE = 500  # characters of a server's message that are kept
_LONGEST = 1000  # of the whole that is said of a failure


class Kind(StrEnum):
    """REJECTED: the server says that the request is wrong. CUT: an answer began and did not end as answers do.

    BAD_ANSWER: what came is not as these APIs write it. OTHER_MODEL: another model's name is in the answer.
    NO_LOGPROBS: an answer without the log-probabilities that this endpoint gave before; it is used without them.
    """

    REFUSED = "refused"
    TIMEOUT = "timeout"
    UNAUTHORIZED = "unauthorized"
    RATE_LIMITED = "rate limited"
    SERVER_ERROR = "server error"
    CUT = "cut stream"
    BAD_ANSWER = "bad answer"
    OTHER_MODEL = "other model"
    REJECTED = "rejected"
    NO_LOGPROBS = "missing logprobs"


class Failure(Trouble):
    """One try that failed. again: another may do better; after: seconds that the server asks to wait before it.

    status: of the HTTP response, where there was one.
    """

    code = "endpoint_request"

    def __init__(
        self, kind: Kind, message: str, again: bool = False, after: float | None = None, status: int | None = None
    ) -> None:
        super().__init__(kind.value, message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…")
        self.again, self.after, self.status = again, after, status


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a request is tried again, and after how many seconds: `first`, then twice as long each time up to `most`.

    longest: a server that asks to wait longer than this is not waited for.
    """

    count: int = 3
    first: float = 0.5
    most: float = 8.0
    longest: float = 60.0

    def wait(self, failure: Failure, tried: int) -> float | None:
        """Seconds to wait before the next try, after `tried` tries that failed. None: there is none."""
        if not failure.again or tried > self.count:
            return None
        own = min(self.most, self.first * 2.0 ** (tried - 1))
        if failure.after is None:
            return own
        return max(own, failure.after) if failure.after <= self.longest else None


def from_status(status: int, headers: httpx.Headers, body: bytes) -> Failure:
    """What a response that is no success means."""
    said = message_of(body)
    message = f"{status}{': ' + said if said else ''}"
    again = headers.get("x-should-retry", "").lower() != "false"
    if status in (401, 403):
        return Failure(Kind.UNAUTHORIZED, message, status=status)
    if status == 429:
        after = retry_after(headers)
        if after is not None:
            message += f" (asks to wait {after:.0f} s)"
        return Failure(Kind.RATE_LIMITED, message, again, after, status)
    if status == 408:
        return Failure(Kind.TIMEOUT, message, again, status=status)
    if status in (500, 502, 503, 504):
        return Failure(Kind.SERVER_ERROR, message, again, retry_after(headers), status)
    if status >= 500:
        return Failure(Kind.SERVER_ERROR, message, status=status)
    if 400 <= status < 500:
        return Failure(Kind.REJECTED, message, status=status)
    if 300 <= status < 400 and "location" in headers:
        elsewhere = visible(headers["location"])
        return Failure(Kind.BAD_ANSWER, f"{message}; it sends to another address, {elsewhere}: give that one", status=status)
    return Failure(Kind.BAD_ANSWER, f"an answer was expected, not the status {message}", status=status)


# What someone can do about it who asks an endpoint for the first time.
_ADVICE = {
    Kind.REFUSED: "does a server listen there?",
    Kind.UNAUTHORIZED: "give its key in QUEUEPROOF_API_KEY, or in the variable that --api-key-env names",
    Kind.RATE_LIMITED: "wait, or ask with another key",
    Kind.SERVER_ERROR: "look at the server's log",
    Kind.BAD_ANSWER: "is it the address of an OpenAI-compatible API?",
}


def at_first(failure: Failure, url: str) -> Failure:
    """A failure that left an endpoint unopened, with its address and what can be done."""
    said = str(failure) if url in str(failure) else f"{url}: {failure}"
    advice = _ADVICE.get(Kind(failure.kind))
    said += f"; {advice}" if advice else ""
    return Failure(Kind(failure.kind), said, failure.again, failure.after, failure.status)


def from_error(error: Any) -> Failure:
    """What an error object inside a response of status 200 means: vLLM, llama.cpp, TGI and Queueproof end streams so."""
    code = error.get("code") if isinstance(error, dict) else None
    said = _said({"error": error}) or "an error without a message"
    message = f"error within the answer: {said}"
    if code in (401, 403):
        return Failure(Kind.UNAUTHORIZED, message)
    if code == 429:
        return Failure(Kind.RATE_LIMITED, message, again=True)
    if isinstance(code, int) and 400 <= code < 500:
        return Failure(Kind.REJECTED, message)
    return Failure(Kind.SERVER_ERROR, message, again=True)


def from_transport(error: httpx.HTTPError, began: bool, url: str) -> Failure:
    """What an error of the connection means. began: the response had."""
    said = f"{url}: {type(error).__name__}" + (f": {error}" if str(error) else "")
    if isinstance(error, httpx.TimeoutException):
        return Failure(Kind.TIMEOUT, said, again=isinstance(error, httpx.ConnectTimeout))
    if isinstance(error, httpx.ConnectError):
        return Failure(Kind.REFUSED, said, again=True)
    if isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
        where = "in the middle of the answer" if began else "before an answer"
        return Failure(Kind.CUT, f"the connection ended {where} ({said})", again=True)
    return Failure(Kind.BAD_ANSWER, said)


def retry_after(headers: httpx.Headers) -> float | None:
    """Seconds from a `Retry-After` (seconds or a date) or `retry-after-ms`. None where there is none that can be read."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if not math.isnan(seconds):
            return max(0.0, seconds)
    until = _date(headers, "retry-after")
    if until is None:
        return None
    now = _date(headers, "date") or datetime.now(UTC)  # the server's clock, where it says
    return max(0.0, (until - now).total_seconds())


def _date(headers: httpx.Headers, name: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(headers[name])
    except (KeyError, ValueError, OverflowError):
        return None
    return date.replace(tzinfo=date.tzinfo or UTC)


def message_of(body: bytes) -> str:
    """What a server's error says, in one line: its message where there is one, else how it begins."""
    try:
        said = _said(json.loads(body))
    except (ValueError, RecursionError):
        said = None
    return " ".join((said or body[:_MESSAGE].decode("utf-8", "replace")).split())[:_MESSAGE]


def _said(plain: Any) -> str | None:
    match plain:
        case {"error": {"message": str(said)}} | {"error": str(said)} | {"message": str(said)} | {"detail": str(said)}:
            return said
        case {"error": said} | {"detail": said}:
            return json.dumps(said, ensure_ascii=False)
    return None
