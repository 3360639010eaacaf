"""Responses of HTTP/1.1 read by the callbacks, however the network cuts them."""

import asyncio

import httpx
import pytest

from queueproof.audit.client import plain
from queueproof.audit.client.plain import Received, request_of
from queueproof.audit.client.trouble import Kind

CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"9\r\ndata: a\n\n\r\nA;x=y\r\ndata: bb\n\n\r\n0\r\nTrailer: t\r\n\r\n"
)
COUNTED = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbodyHTTP/1.1 500 not ours"
UNTIL_CLOSED = b"HTTP/1.0 503 Busy\r\nRetry-After: 3\r\n\r\nlater"


def received(pieces: list[bytes], over: bytes = b"\0") -> Received:
    """What comes of these bytes and the end of the connection after them."""

    async def run() -> Received:
        loop = asyncio.get_running_loop()
        ticks = iter(range(10_000))
        found = Received(b"", lambda data: over in data, lambda: float(next(ticks)), loop.create_future())
        for piece in pieces:
            found.data_received(piece)
        found.connection_lost(None)
        assert found.finished.done()
        return found

    return asyncio.run(run())


def cuts(whole: bytes) -> list[list[bytes]]:
    return [[whole[i : i + size] for i in range(0, len(whole), size)] for size in (1, 2, 3, 5, 7, 11, 64, len(whole))]


@pytest.mark.parametrize(
    ("whole", "status", "body"),
    [(CHUNKED, 200, b"data: a\n\ndata: bb\n\n"), (COUNTED, 200, b"body"), (UNTIL_CLOSED, 503, b"later")],
)
def test_any_cut_gives_the_same(whole: bytes, status: int, body: bytes) -> None:
    for pieces in cuts(whole):
        found = received(pieces)
        assert (found.status, b"".join(data for _, data in found.pieces), found.error) == (status, body, None)


def test_headers() -> None:
    assert received([UNTIL_CLOSED]).headers["retry-after"] == "3"
    assert received([CHUNKED]).headers["content-type"] == "text/event-stream"


def test_each_piece_has_its_time() -> None:
    head, first, rest = CHUNKED.partition(b"\r\n0\r\n")[0].partition(b"9\r\n")
    assert [at for at, _ in received([head, first + rest[:9], rest[9:]]).pieces] == [1.0, 2.0]


def test_no_more_is_waited_for_than_wanted() -> None:
    found = received([CHUNKED[:-15]], over=b"bb")
    assert found.error is None and found.finished.done()


@pytest.mark.parametrize("length", range(len(CHUNKED) - 20))
def test_a_chunked_body_that_ends_early_is_cut(length: int) -> None:
    found = received([CHUNKED[:length]])
    assert found.error is not None and (found.error.kind, found.error.again) == (Kind.CUT, True)


def test_a_counted_body_that_ends_early_is_cut() -> None:
    error = received([COUNTED[:40]]).error
    assert error is not None and error.kind == Kind.CUT and "in the middle" in str(error)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 what\r\n\r\n",
        b"x" * 70_000,
        CHUNKED.replace(b"A;x", b"zz"),
        CHUNKED.replace(b"A;x", b"-5;x"),
    ],
)
def test_what_is_no_http(nonsense: bytes) -> None:
    error = received([nonsense]).error
    assert error is not None and error.kind == Kind.BAD_ANSWER


def test_the_request() -> None:
    sent = request_of(httpx.URL("http://[::1]:8000/v1/x?y=1"), {"A": "b"}, b"{}")
    head, _, body = sent.partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[:3] == [b"POST /v1/x?y=1 HTTP/1.1", b"Host: [::1]:8000", b"A: b"]
    assert b"Content-Length: 2" in head and body == b"{}"


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_an_answer_without_a_body_ends_with_its_head(status: bytes) -> None:
    found = received([b"HTTP/1.1 " + status + b"\r\n\r\n"])
    assert found.error is None and found.pieces == []


@pytest.mark.parametrize("head", [b"\r\n", b"Transfer-Encoding: chunked\r\n\r\n"])
def test_a_body_without_an_end_does_not_fill_the_memory(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "LARGEST", 1 << 20)
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n" if head.startswith(b"T") else b"x" * 65536
    found = received([b"HTTP/1.1 200 OK\r\n" + head, *[piece] * 40])
    assert found.error is not None and found.error.kind == Kind.BAD_ANSWER and "more than 1 MiB" in str(found.error)
    assert sum(len(data) for _, data in found.pieces) <= (1 << 20) + 65536


def test_of_an_error_only_the_beginning_is_read() -> None:
    found = received([b"HTTP/1.1 500 Oops\r\n\r\n", *[b"x" * 65536] * 9])
    assert found.error is None and found.status == 500 and len(found.pieces) == 2
