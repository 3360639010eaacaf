"""Trouble on real connections, read both ways: by callbacks, and through httpx. No test waits longer than a blink."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx
import pytest

from queueproof.audit.ask import Answer
from queueproof.audit.budget import Budget
from queueproof.audit.client import plain as plain_module
from queueproof.audit.client import wire
from queueproof.audit.client.requests import Route
from queueproof.audit.client.spending import Spending
from queueproof.audit.client.trouble import Failure, Kind, Retries
from queueproof.audit.client.wire import Timeouts, Wire, root_of
from queueproof.audit.endpoint import BudgetSpent
from queueproof.contract.errors import UsageError

Writer = asyncio.StreamWriter
Reply = Callable[[Writer], Awaitable[None]]
FREE = Budget(seconds=None)
TIMES = Timeouts(connect=20.0, first=20.0, between=20.0, whole=60.0)  # a busy machine is no server that hangs
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY: dict[str, Any] = {"messages": [], "stream": True}


def framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: Any, end: bytes = b"\n") -> bytes:
    return b"data: " + json.dumps(value).encode() + end + end


def token(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None, **more}]}


def plain(status: str, headers: str = "", body: bytes = b'{"error": {"message": "why"}}') -> Reply:
    async def reply(writer: Writer) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        writer.write(head.encode() + body)

    return reply


def raw(*pieces: bytes, pause: float = 0.0, hang: bool = False) -> Reply:
    """Writes the pieces one by one, then ends the connection, or hangs until the client has left."""

    async def reply(writer: Writer) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        while hang and not writer.is_closing():
            await asyncio.sleep(0.01)

    return reply


WHOLE = (token("a"), token("b", finish_reason="stop"))
GOOD = raw(OK, *(framed(event(chunk)) for chunk in WHOLE), framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
CRLF = raw(
    OK, *(framed(b": wait\r\n\r\n" + event(c, b"\r\n")) for c in WHOLE), framed(b"data: [DONE]\r\n\r\n") + b"0\r\n\r\n"
)
HALVES = raw(OK, *(framed(event(c)[i : i + 9]) for c in WHOLE for i in range(0, len(event(c)), 9)), b"0\r\n\r\n")
CUT = raw(OK, framed(event(token("a"))))


class Server:
    """Gives one reply after another, the last again and again. left: connections that clients closed in the middle."""

    def __init__(self, *replies: Reply) -> None:
        self.replies, self.asked, self.left = list(replies), 0, 0
        self.url = ""
        self._work: list[Any] = []

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        self._work.append(asyncio.current_task())
        try:
            await self._answer(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)
        reply = self.replies[min(self.asked, len(self.replies) - 1)]
        self.asked += 1
        work, gone = asyncio.ensure_future(reply(writer)), asyncio.create_task(reader.read())
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            self.left += not work.done()
        finally:
            work.cancel()
            gone.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)


@pytest.fixture(params=["callbacks", "httpx"])
def through(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


def wire_to(url: str, through: str, budget: Budget = FREE, times: Timeouts = TIMES) -> Wire:
    transport = httpx.AsyncHTTPTransport() if through == "httpx" else None
    return Wire(url, "key", Spending(budget), times, Retries(first=0.01), transport)


class Steady(asyncio.SelectorEventLoop):
    """Its clock goes on by at most 20 ms a look, so a machine that stops this process for a while lets no limit pass."""

    def __init__(self) -> None:
        super().__init__()
        self._real = self._shown = super().time()

    def time(self) -> float:
        real = super().time()
        self._shown += min(real - self._real, 0.02)
        self._real = real
        return self._shown


def ask(
    through: str, *replies: Reply, body: dict[str, Any] = BODY, times: Timeouts = TIMES
) -> tuple[Answer | Failure, Wire, Server]:
    """One request to a server with these replies."""

    async def run() -> tuple[Answer | Failure, Wire, Server]:
        async with Server(*replies) as server:
            wire = wire_to(server.url, through, times=times)
            try:
                return await wire.generate(Route.CHAT, body, "p", 10), wire, server
            except Failure as failure:
                return failure, wire, server
            finally:
                await wire.close()

    with asyncio.Runner(loop_factory=Steady) as runner:
        return runner.run(run())


def kinds(wire: Wire) -> dict[str, int]:
    return {problem.kind: problem.count for problem in wire.problems()}


@pytest.mark.parametrize("reply", [GOOD, CRLF, HALVES])
def test_a_whole_answer(through: str, reply: Reply) -> None:
    answer, wire, server = ask(through, reply)
    assert isinstance(answer, Answer) and (answer.text, answer.finish_reason) == ("ab", "stop")
    assert answer.ttft is not None and 0 <= answer.ttft <= answer.latency and len(answer.arrivals) == 2
    assert (server.asked, wire.problems()) == (1, ())


def test_an_answer_that_is_not_streamed(through: str) -> None:
    choice = {"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}
    answer, _, _ = ask(
        through, plain("200 OK", body=json.dumps({"choices": [choice]}).encode()), body={"stream": False}
    )
    assert isinstance(answer, Answer) and (answer.text, answer.ttft, answer.arrivals) == ("hi", None, ())


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (plain("500 Oh"), Kind.SERVER_ERROR),
        (plain("503 Busy"), Kind.SERVER_ERROR),
        (plain("429 Slow", "Retry-After: 0\r\n"), Kind.RATE_LIMITED),
        (CUT, Kind.CUT),
        (raw(OK, framed(event(token("a"))), b"0\r\n\r\n"), Kind.CUT),
        (raw(OK, framed(event(token("a")) + b'data: {"cho'), b"0\r\n\r\n"), Kind.CUT),
        (raw(), Kind.CUT),
        (raw(OK, framed(b"data: {what}\n\n"), b"0\r\n\r\n"), Kind.BAD_ANSWER),
        (
            raw(OK, framed(event(token("a")) + event({"error": {"message": "x", "code": 500}})), b"0\r\n\r\n"),
            Kind.SERVER_ERROR,
        ),
    ],
)
def test_trouble_that_another_try_gets_over(through: str, reply: Reply, kind: Kind) -> None:
    answer, wire, server = ask(through, reply, reply, GOOD)
    assert isinstance(answer, Answer) and answer.text == "ab"
    assert (server.asked, kinds(wire)) == (3, {f"{kind} (retried)": 2})


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (plain("401 No"), Kind.UNAUTHORIZED),
        (plain("403 No"), Kind.UNAUTHORIZED),
        (plain("400 Bad"), Kind.REJECTED),
        (plain("404 Where"), Kind.REJECTED),
        (plain("429 Slow", "Retry-After: 3600\r\n"), Kind.RATE_LIMITED),
        (plain("500 Oh", "x-should-retry: false\r\n"), Kind.SERVER_ERROR),
        (plain("307 There", "Location: http://127.0.0.1:9/\r\n"), Kind.BAD_ANSWER),
        (raw(OK, framed(event({"error": {"message": "why", "code": 400}})), b"0\r\n\r\n"), Kind.REJECTED),
    ],
)
def test_trouble_that_another_try_would_not_get_over(through: str, reply: Reply, kind: Kind) -> None:
    failure, wire, server = ask(through, reply, GOOD)
    assert isinstance(failure, Failure) and failure.kind == kind and "why" in str(failure)
    assert (server.asked, kinds(wire)) == (1, {kind: 1})


def test_tries_end(through: str) -> None:
    failure, wire, server = ask(through, plain("500 Oh"))
    assert isinstance(failure, Failure) and failure.kind == Kind.SERVER_ERROR
    assert (server.asked, kinds(wire)) == (4, {"server error (retried)": 3, "server error": 1})


@pytest.mark.parametrize(
    ("reply", "limit", "said"),
    [
        (raw(hang=True), "first", "no answer began within 0.3 s"),
        (raw(OK, hang=True), "first", "no answer began within 0.3 s"),
        (raw(OK, *[framed(b": waiting\n\n")] * 9, pause=0.05, hang=True), "first", "no answer began within 0.3 s"),
        (raw(OK, framed(event(token("a"))), hang=True), "between", "nothing more came for 0.3 s"),
        (raw(OK, *[framed(event(token("a")))] * 30, pause=0.03, hang=True), "whole", "not whole after 0.3 s"),
    ],
)
def test_a_server_that_hangs_is_left(through: str, reply: Reply, limit: str, said: str) -> None:
    # The pause after a first piece is looked at when the first piece would have been due.
    failure, wire, server = ask(through, reply, times=replace(TIMES, **({"first": 3.0} | {limit: 0.3})))
    assert isinstance(failure, Failure) and failure.kind == Kind.TIMEOUT and said in str(failure)
    assert (server.asked, kinds(wire)) == (1, {Kind.TIMEOUT: 1})


def test_a_body_that_goes_on_after_done_is_not_waited_for(through: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queueproof.audit.client.wire._AFTER_DONE", 0.05)
    answer, _, _ = ask(through, raw(OK, framed(event(WHOLE[1]) + b"data: [DONE]\n\n"), hang=True))
    assert isinstance(answer, Answer) and answer.text == "b"


def test_nobody_listens(through: str) -> None:
    async def run() -> None:
        async with Server(GOOD) as server:
            url = server.url
        await asyncio.sleep(0)
        wire = wire_to(url, through)
        with pytest.raises(Failure, match=url) as caught:
            await wire.generate(Route.CHAT, BODY, "p", 1)
        assert caught.value.kind == Kind.REFUSED and kinds(wire) == {"refused (retried)": 3, "refused": 1}
        with pytest.raises(Failure, match=url):
            await wire.fetch(url)
        assert await wire.page("/metrics") is None
        await wire.close()

    asyncio.run(run())


def test_who_stops_waiting_closes_the_stream(through: str) -> None:
    async def run() -> None:
        async with Server(raw(OK, framed(event(token("a"))), hang=True)) as server:
            wire = wire_to(server.url, through)
            task = asyncio.create_task(wire.generate(Route.CHAT, BODY, "p", 1))
            while not server.asked:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.02)
            assert server.left == 1
            await wire.close()

    asyncio.run(run())


def test_a_budget_of_requests_counts_tries_and_none_is_sent_beyond_it(through: str) -> None:
    async def run() -> None:
        async with Server(plain("500 Oh")) as server:
            wire = wire_to(server.url, through, Budget(seconds=None, requests=2))
            with pytest.raises(Failure, match="500"):
                await wire.generate(Route.CHAT, BODY, "p", 1)
            with pytest.raises(BudgetSpent, match="2 requests"):
                await wire.generate(Route.CHAT, BODY, "p", 1)
            assert server.asked == wire.spending.requests == 2
            await wire.close()

    asyncio.run(run())


def test_budgets_of_tokens_and_seconds() -> None:
    async def run() -> None:
        spending = Spending(Budget(seconds=None, tokens=100))
        spending.reserve(60)
        with pytest.raises(BudgetSpent, match="100 tokens"):
            spending.reserve(60)
        spending.settle(60, 20)
        spending.reserve(60)
        assert (spending.tokens, spending.requests) == (20, 2)
        short = Spending(Budget(seconds=0.0))
        with pytest.raises(BudgetSpent, match="0 s"):
            short.reserve(1)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://h/v1/", "http://h"),
        ("https://h/openai/v1", "https://h/openai"),
        ("http://h/v1/chat/completions", "http://h"),
        (" http://h/v1beta/openai/ ", "http://h/v1beta/openai"),
    ],
)
def test_addresses(url: str, root: str) -> None:
    assert root_of(url) == root


@pytest.mark.parametrize("url", ["", "ftp://h", "http://", "http://h?x=1", "http://h:port", "h:99999", "http://h:0"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="no address of a server"):
        root_of(url)


def test_an_address_with_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(UsageError, match="a key goes into a variable") as raised:
        root_of("http://user:secret@h")
    assert "secret" not in str(raised.value)


def test_an_answer_is_not_waited_for_when_the_time_is_over(through: str) -> None:
    async def run() -> BudgetSpent:
        async with Server(raw(OK, framed(event(token("a"))), hang=True)) as server:
            wire = wire_to(server.url, through, Budget(seconds=0.05))
            try:
                with pytest.raises(BudgetSpent) as raised:
                    await wire.generate(Route.CHAT, BODY, "p", 10)
                return raised.value
            finally:
                await wire.close()

    assert asyncio.run(run()).late


def test_an_answer_without_an_end_is_left(through: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (wire, plain_module):
        monkeypatch.setattr(module, "LARGEST", 1 << 16)
    failure, _, server = ask(through, raw(OK, *[framed(event(token("x" * 10_000)))] * 50, hang=True))
    assert isinstance(failure, Failure) and failure.kind == Kind.BAD_ANSWER and "an answer of more than" in str(failure)


def test_comments_are_no_answer_however_many_come() -> None:
    comments = [(0.0, b": wait\n\n")] * 80
    assert not wire._answered(comments) and wire._answered([*comments, (1.0, b"data: {}\n\n")])


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_page_without_an_end_is_none(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_PAGE_BYTES", 1 << 20)
    content = b" " * (8 << 20)
    body = gzip.compress(content) if encoding == "gzip" else content
    response = httpx.Response(200, headers={"content-encoding": encoding}, content=body)

    async def run() -> tuple[object, Failure]:
        transport = httpx.MockTransport(lambda request: response)
        found = Wire("http://x", None, Spending(FREE), TIMES, Retries(count=0), transport)
        with pytest.raises(Failure, match="a page of more than 1 MiB") as raised:
            await found.fetch("http://x/v1/models")
        return await found.page("/metrics"), raised.value

    page, _ = asyncio.run(run())
    assert page is None


def test_a_page_is_asked_for_with_any_text() -> None:
    async def run() -> bytes:
        transport = httpx.MockTransport(lambda request: httpx.Response(200, content=request.content))
        page = await Wire("http://x", None, Spending(FREE), TIMES, Retries(), transport).page("/x", "POST", {"a": "\ud800"})
        assert page is not None
        return page.content

    assert json.loads(asyncio.run(run())) == {"a": "\ud800"}


@pytest.mark.parametrize("key", ["a\r\nX: y", "a b", "\N{SNOWMAN}", "\udcff", ""])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(key: str) -> None:
    async def run() -> None:
        Wire("http://x", key, Spending(FREE), TIMES, Retries())

    with pytest.raises(UsageError) as raised:
        asyncio.run(run())
    assert not key or key not in str(raised.value)
