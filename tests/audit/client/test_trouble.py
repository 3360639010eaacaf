"""What failures mean, and when another try is right."""

import httpx
import pytest

from queueproof.audit.client.trouble import (
    Failure,
    Kind,
    Retries,
    at_first,
    from_error,
    from_status,
    from_transport,
    message_of,
    retry_after,
)


@pytest.mark.parametrize(
    ("status", "kind", "again"),
    [
        (400, Kind.REJECTED, False),
        (401, Kind.UNAUTHORIZED, False),
        (403, Kind.UNAUTHORIZED, False),
        (404, Kind.REJECTED, False),
        (408, Kind.TIMEOUT, True),
        (422, Kind.REJECTED, False),
        (429, Kind.RATE_LIMITED, True),
        (500, Kind.SERVER_ERROR, True),
        (501, Kind.SERVER_ERROR, False),
        (502, Kind.SERVER_ERROR, True),
        (503, Kind.SERVER_ERROR, True),
        (504, Kind.SERVER_ERROR, True),
        (302, Kind.BAD_ANSWER, False),
    ],
)
def test_statuses(status: int, kind: Kind, again: bool) -> None:
    failure = from_status(status, httpx.Headers(), b'{"error": {"message": "why"}}')
    assert (failure.kind, failure.again, failure.status) == (kind, again, status)
    assert str(failure) == f"{status}: why" or str(failure).endswith(f"the status {status}: why")


def test_a_server_may_say_that_another_try_is_of_no_use() -> None:
    assert not from_status(500, httpx.Headers({"x-should-retry": "false"}), b"").again


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "a\\n b"}}', "a b"),
        (b'{"error": "text"}', "text"),
        (b'{"message": "m"}', "m"),
        (b'{"detail": "Unexpected fields"}', "Unexpected fields"),
        (b'{"detail": [{"loc": ["body", "x"]}]}', '[{"loc": ["body", "x"]}]'),
        (b"<html>\nBad Gateway", "<html> Bad Gateway"),
        (b"\xff", "\ufffd"),
        (b"", ""),
    ],
)
def test_messages(body: bytes, said: str) -> None:
    assert message_of(body) == said


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "2"}, 2.0),
        ({"Retry-After": "-1"}, 0.0),
        ({"retry-after-ms": "1500", "Retry-After": "9"}, 1.5),
        ({"Retry-After": "Wed, 02 Dec 2026 10:00:07 GMT", "Date": "Wed, 02 Dec 2026 10:00:00 GMT"}, 7.0),
        ({"Retry-After": "Wed, 02 Dec 2026 10:00:00 GMT", "Date": "Wed, 02 Dec 2026 10:00:07 GMT"}, 0.0),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, float("inf")),
        ({"Retry-After": "Fri, 31 Dec 99999999999999999999 23:59:59 GMT"}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(httpx.Headers(headers)) == seconds


def test_waits_grow_and_end() -> None:
    retries, failure = Retries(count=3, first=1.0, most=3.0), Failure(Kind.SERVER_ERROR, "", again=True)
    assert [retries.wait(failure, n) for n in (1, 2, 3, 4)] == [1.0, 2.0, 3.0, None]
    assert retries.wait(Failure(Kind.REJECTED, ""), 1) is None


def test_a_server_is_waited_for_as_long_as_it_asks_within_reason() -> None:
    retries = Retries(longest=10.0)
    assert retries.wait(Failure(Kind.RATE_LIMITED, "", True, 7.0), 1) == 7.0
    assert retries.wait(Failure(Kind.RATE_LIMITED, "", True, 0.0), 1) == 0.5
    assert retries.wait(Failure(Kind.RATE_LIMITED, "", True, 11.0), 1) is None


@pytest.mark.parametrize(
    ("error", "kind", "again"),
    [
        (httpx.ConnectError("no"), Kind.REFUSED, True),
        (httpx.ConnectTimeout("no"), Kind.TIMEOUT, True),
        (httpx.ReadTimeout("no"), Kind.TIMEOUT, False),
        (httpx.ReadError("no"), Kind.CUT, True),
        (httpx.RemoteProtocolError("no"), Kind.CUT, True),
        (httpx.UnsupportedProtocol("no"), Kind.BAD_ANSWER, False),
    ],
)
def test_errors_of_connections(error: httpx.HTTPError, kind: Kind, again: bool) -> None:
    failure = from_transport(error, True, "http://x")
    assert (failure.kind, failure.again) == (kind, again) and "http://x" in str(failure)


def test_what_a_server_says_is_cut() -> None:
    assert len(str(from_error({"message": "x" * 100_000}))) < 1100


def test_an_endpoint_that_was_not_opened_is_named_with_what_to_do() -> None:
    failure = at_first(from_status(401, httpx.Headers(), b"no"), "http://x")
    assert str(failure).startswith("http://x: 401: no; give its key in QUEUEPROOF_API_KEY") and failure.status == 401
    assert str(at_first(Failure(Kind.REFUSED, "http://x: no"), "http://x")) == "http://x: no; does a server listen there?"
