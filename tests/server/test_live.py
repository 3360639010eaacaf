"""A real server on a socket: clients that leave, read slowly, send slowly, send nonsense, or come in thousands."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from queueproof.contract.errors import UsageError
from queueproof.server.config import ServerConfig
from queueproof.server.run import listen
from tests.support.fake_engine import FakeEngine
from tests.support.serving import CHAT, COMPLETIONS, HELLO, NumberedReceipts, error_of, events, live, run, wait_until

MEBIBYTE = 1 << 20


_open: list[socket.socket] = []


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    while _open:
        _open.pop().close()


def raw(port: int, data: bytes, receive_buffer: int | None = None) -> socket.socket:
    connection = socket.socket()
    _open.append(connection)
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(20)
    connection.connect(("127.0.0.1", port))
    connection.sendall(data)
    return connection


def head(path: str, length: int, method: str = "POST") -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def asking(path: str, **body: Any) -> bytes:
    data = json.dumps(body).encode()
    return head(path, len(data)) + data


def all_of(connection: socket.socket) -> bytes:
    found = b""
    while data := connection.recv(65536):
        found += data
    return found


def healthy(url: str) -> bool:
    return httpx.get(url + "/health", timeout=10).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "body", [{"messages": HELLO, "n": 2}, {"prompt": ["a", "b", "c"]}], ids=["chat", "completions"]
)
def test_a_client_that_leaves_ends_its_request(body: dict[str, Any], stream: bool) -> None:
    engine, receipts = FakeEngine(step=0.01), NumberedReceipts()
    with live(engine, receipts=receipts) as server:
        path = CHAT if "messages" in body else COMPLETIONS
        connection = raw(server.port, asking(path, stream=stream, max_tokens=400, **body))
        wait_until(lambda: len(engine.active) == len(body.get("prompt", "x")) and engine.steps > 3)
        connection.close()
        wait_until(lambda: not engine.active)
        assert {seen.ended for seen in engine.seen} == {"aborted"} and not receipts.kept
        assert max(seen.made for seen in engine.seen) < 400
        assert healthy(server.url)


def test_a_client_that_leaves_the_queue_ends_its_request() -> None:
    engine = FakeEngine(hold=asyncio.Event())
    with live(engine) as server:
        for stream in (False, True):
            connection = raw(server.port, asking(CHAT, messages=HELLO, stream=stream))
            wait_until(lambda: len(engine.active) == 1)
            connection.close()
            wait_until(lambda: not engine.active)


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_request() -> None:
    engine = FakeEngine()
    with live(engine) as server:
        raw(server.port, head(CHAT, 1000) + b'{"messages"').close()
        raw(server.port, b"POST /v1/chat/comp").close()
        assert healthy(server.url) and not engine.seen


def large() -> tuple[FakeEngine, bytes]:
    """An engine whose answer is many times what sockets and transports hold, and the request for it."""
    tokens = 4000
    engine = FakeEngine(max_model_len=tokens + 50, script=lambda *_: b"x" * (tokens - 1))
    return engine, asking(CHAT, messages=HELLO, stream=True, logprobs=True, top_logprobs=20)


def test_a_slow_reader_costs_no_memory_and_gets_everything() -> None:
    engine, request = large()
    with live(engine) as server:
        connection = raw(server.port, request, receive_buffer=4096)
        wait_until(lambda: bool(engine.seen) and engine.seen[0].made > 10)
        made = -1
        while made != engine.seen[0].made:  # until nothing moves any more
            made = engine.seen[0].made
            time.sleep(0.5)
        assert made < 3900, "nothing held the server back"
        assert healthy(server.url)
        tail, count = b"", 0
        while b"[DONE]" not in tail:
            data = connection.recv(1 << 20)
            assert data
            count += (tail[-20:] + data).count(b'"content":"x"') - tail[-20:].count(b'"content":"x"')
            tail = tail[-20:] + data
        assert count == 3999


def test_a_reader_that_never_reads_is_cut_off_at_the_deadline() -> None:
    engine, request = large()
    with live(engine, deadline=1.5) as server:
        connection = raw(server.port, request, receive_buffer=4096)
        wait_until(lambda: bool(engine.seen) and not engine.active)
        assert engine.seen[0].ended == "aborted"
        wait_until(lambda: not server.server.server_state.connections)
        assert b"[DONE]" not in all_of(connection)


def test_heads_and_bodies_that_do_not_come_are_given_up() -> None:
    with live(FakeEngine(), body_timeout=0.3) as server:
        silent = raw(server.port, b"")
        half_head = raw(server.port, b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
        half_body = raw(server.port, head(CHAT, 1000) + b"{")
        assert b"408" in all_of(half_body).split(b"\r\n")[0]
        assert all_of(silent) == all_of(half_head) == b""
        # One that keeps its connection may use it for as long as it likes, and then has to begin the next head in time.
        kept = raw(server.port, asking(CHAT, messages=HELLO, max_tokens=1))
        answer = b""
        while b"receipt" not in answer:
            answer += kept.recv(65536)
        kept.sendall(b"GET /hea")
        assert all_of(kept) == b""
        for connection in (silent, half_head, half_body, kept):
            connection.close()
        wait_until(lambda: not server.server.server_state.connections)


def test_an_answer_may_take_longer_than_a_head() -> None:
    engine = FakeEngine(step=0.05, script=lambda *_: b"x" * 12)
    with live(engine, body_timeout=0.2) as server:
        got = httpx.post(server.url + CHAT, json={"messages": HELLO, "stream": True})
        assert events(got.text)[-1] == "[DONE]"


def test_ten_megabytes_are_413_at_once() -> None:
    engine = FakeEngine()
    with live(engine) as server:
        connection = raw(server.port, head(CHAT, 10_000_000) + b" " * 1000)
        answer = all_of(connection)
        assert b" 413 " in answer.split(b"\r\n")[0] and b"body_too_large" in answer
        connection.close()
        connection = raw(
            server.port,
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode(),
        )
        sent = 0
        try:
            while sent < 30_000_000:
                connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
                sent += 65536
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert sent < 30_000_000
        connection.close()
        got = httpx.post(server.url + CHAT, content=b" " * 10_000_000, headers={"Content-Type": "application/json"})
        error_of(got, 413)
        assert healthy(server.url) and not engine.seen


def test_what_is_no_http_is_an_error() -> None:
    with live(FakeEngine()) as server:
        for data in (
            b"\x16\x03\x01\x02\x00\x01\xfc\n\n",
            b"GET\r\n\r\n",
            b"\x00" * 100_000,
            b"GET /" + b"a" * 70_000,
        ):
            try:
                answer = all_of(raw(server.port, data))
            except ConnectionResetError:
                continue
            assert b" 400 " in answer.split(b"\r\n")[0]
        assert healthy(server.url)


def test_thousands_of_tiny_requests_leave_nothing_behind() -> None:
    async def work(url: str, count: int) -> dict[int, int]:
        statuses: dict[int, int] = {}
        users = asyncio.Semaphore(32)
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:

            async def ask(number: int) -> None:
                path, body = [
                    (CHAT, {"messages": HELLO, "max_tokens": 2}),
                    (COMPLETIONS, {"prompt": str(number), "max_tokens": 1, "stream": True}),
                    (CHAT, {"messages": HELLO, "n": 0}),
                ][number % 3]
                async with users:
                    status = (await client.post(path, json=body)).status_code
                statuses[status] = statuses.get(status, 0) + 1

            await asyncio.gather(*(ask(number) for number in range(count)))
        return statuses

    engine = FakeEngine()
    with live(engine) as server:
        run(work(server.url, 300))
        engine.seen.clear()
        before = psutil.Process().memory_info().rss
        assert run(work(server.url, 1500)) == {200: 1000, 400: 500}
        assert psutil.Process().memory_info().rss - before < 64 * MEBIBYTE
        assert not engine.active
        wait_until(lambda: not server.server.server_state.tasks)


def test_more_connections_than_the_limit_are_turned_away() -> None:
    with live(FakeEngine(), max_connections=8) as server:
        held = [raw(server.port, b"") for _ in range(10)]
        wait_until(lambda: len(server.server.server_state.connections) == 10)
        answer = raw(server.port, head("/health", 0, "GET")).recv(65536)
        assert b" 503 " in answer.split(b"\r\n")[0]
        for connection in held:
            connection.close()
        wait_until(lambda: len(server.server.server_state.connections) < 8)
        assert healthy(server.url)


def test_a_stop_lets_answers_end() -> None:
    engine = FakeEngine(step=0.02, script=lambda *_: b"x" * 20)
    server = live(engine)
    with server:
        connection = raw(server.port, asking(CHAT, messages=HELLO, stream=True))
        wait_until(lambda: engine.steps > 2)
        server.stop()
        assert b"[DONE]" in all_of(connection)
        connection.close()
        with pytest.raises(ConnectionRefusedError):
            raw(server.port, b"")
    assert engine.seen[0].ended == "finished"


def test_a_stop_ends_answers_that_take_longer_than_the_grace_period() -> None:
    engine = FakeEngine(step=0.02, max_model_len=2000, script=lambda *_: b"x" * 1900)
    server = live(engine, grace=0.3)
    with server:
        whole = raw(server.port, asking(CHAT, messages=HELLO))
        stream = raw(server.port, asking(CHAT, messages=HELLO, stream=True))
        wait_until(lambda: len(engine.active) == 2 and engine.steps > 4)
        begun = time.monotonic()
        server.stop()
        assert time.monotonic() - begun < 5
        assert b" 503 " in all_of(whole).split(b"\r\n")[0]
        text = all_of(stream)
        assert b"shutting_down" in text and b"[DONE]" not in text
        whole.close()
        stream.close()
    assert [seen.ended for seen in engine.seen] == ["aborted"] * 2


def test_a_stream_comes_as_it_is_made() -> None:
    engine = FakeEngine(step=0.05, script=lambda *_: b"x" * 8)
    with (
        live(engine) as server,
        httpx.stream("POST", server.url + CHAT, json={"messages": HELLO, "stream": True}) as got,
    ):
        times = [time.monotonic() for line in got.iter_lines() if '"content":"x"' in line]
    gaps = [b - a for a, b in zip(times, times[1:], strict=False)]
    assert len(times) == 8 and min(gaps) > 0.02


def test_a_long_wait_is_filled_with_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queueproof.server.openai.stream._FIRST_SIGN", 0.05)
    engine = FakeEngine(step=0.2, script=lambda *_: b"xy")
    with live(engine) as server:
        got = httpx.post(server.url + CHAT, json={"messages": HELLO, "stream": True})
        assert got.text.startswith(": waiting\n\n: waiting\n\n") and events(got.text)[-1] == "[DONE]"
        engine.fail_at, engine.fail_after = {"hello": "nan"}, 1
        got = httpx.post(server.url + CHAT, json={"messages": HELLO, "stream": True})
        assert [event["error"]["code"] for event in events(got.text)] == ["numerical"]


def test_an_address_that_is_taken_is_an_error_that_says_so() -> None:
    with listen(ServerConfig(model_names=("m",), build="0", port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port}.*--port"):
            listen(ServerConfig(model_names=("m",), build="0", port=port))
    with pytest.raises(UsageError, match="--host"):
        listen(ServerConfig(model_names=("m",), build="0", host="203.0.113.7", port=0))


def test_the_limit_of_open_files_is_not_the_end() -> None:
    """More connections than descriptors: those that got none wait, and the server goes on when there are some again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with live(FakeEngine()) as server:
        used = psutil.Process().num_fds()
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 12, hard))
        try:
            held = []
            try:
                for _ in range(20):
                    held.append(raw(server.port, b""))
            except OSError:
                pass
            assert held
            time.sleep(0.2)
            for connection in held:
                connection.close()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        wait_until(lambda: healthy(server.url))
