"""A real server among clients that are slow, broken, hostile or too many, and one that is killed.

It stays up, its memory stays bounded, each gets its error, and the answers of others are what they always are. The long
version is benchmarks/server_soak.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queueproof.contract.receipt import read_document
from tests.support.checkpoints import checkpoint, write_hf
from tests.support.flood import flood
from tests.support.raw_http import connect, exchange, head, post
from tests.support.server_process import ServerProcess
from tests.support.serving import wait_until
from tests.support.soak import Sizes, Soak, draw_pool
from tests.support.witness import QUESTION, Witness

pytestmark = pytest.mark.xdist_group("faults")  # one server for all of them

MB = 1 << 20
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MEMORY = 200 * MB  # beyond what it had when it was ready, whatever is done to it


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(checkpoint(), tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def shared(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with ServerProcess(model, "--max-num-seqs", "8", "--threads", "1", log=log) as process:
        yield process


@pytest.fixture
def server(shared: ServerProcess) -> Iterator[ServerProcess]:
    """Still up, healthy and of the same size afterwards, with nothing left of what was asked."""
    with Witness(shared.url):  # whatever is allocated once, is
        pass
    before = shared.rss()
    yield shared
    assert shared.alive, shared.text
    with shared.client() as client:
        assert client.get("/health").status_code == 200
    wait_until(lambda: idle(shared))
    assert shared.rss() - before < MEMORY
    assert "Traceback" not in shared.text, shared.text


def idle(server: ServerProcess) -> bool:
    counters = server.counters()
    return counters["queueproof_num_requests_running"] == counters["queueproof_num_requests_waiting"] == 0


BAD: dict[str, tuple[bytes, int, str | None]] = {
    "ten megabytes": (post(COMPLETIONS, {"prompt": "a" * (10 * MB)}), 413, "body_too_large"),
    "ten megabytes in chunks": (
        head(COMPLETIONS, "Transfer-Encoding: chunked") + (b"100000\r\n" + b" " * MB + b"\r\n") * 10 + b"0\r\n\r\n",
        413,
        "body_too_large",
    ),
    "no UTF-8": (post(COMPLETIONS, b'{"prompt": "\xff\xfe"}'), 400, "invalid_json"),
    "deep lists": (post(COMPLETIONS, b"[" * MB), 400, "invalid_json"),
    "deep objects": (post(COMPLETIONS, b'{"prompt":' * 100_000), 400, "invalid_json"),
    "deep and closed": (post(COMPLETIONS, b"[" * 500 + b"]" * 500), 400, "invalid_json"),
    "wide": (post(COMPLETIONS, b'{"prompt": [' + b"[]," * 500_000 + b"[]]}"), 400, None),
    "a text that never fits": (post(COMPLETIONS, {"prompt": "a b" * 300_000}), 400, "context_length_exceeded"),
    "half a pair": (post(COMPLETIONS, b'{"prompt": "\\ud800"}'), 400, "invalid_json"),
    "nothing": (post(COMPLETIONS, b""), 400, "invalid_json"),
    "NaN": (post(COMPLETIONS, b'{"prompt": "a", "temperature": NaN}'), 400, "invalid_json"),
    "beyond doubles": (post(COMPLETIONS, b'{"prompt": "a", "temperature": 1e999}'), 400, "invalid_parameter"),
    "4000 digits": (post(COMPLETIONS, b'{"prompt": "a", "seed": ' + b"9" * 4000 + b"}"), 400, "invalid_parameter"),
    "a million digits": (post(COMPLETIONS, b'{"prompt": "a", "seed": ' + b"9" * MB + b"}"), 400, "invalid_json"),
    "a key twice": (post(COMPLETIONS, b'{"prompt": "a", "prompt": "b"}'), 400, "invalid_json"),
    "one key of a megabyte": (post(COMPLETIONS, b'{"' + b"k" * MB + b'": 1}'), 400, "unknown_parameter"),
    "a million prompts that are none": (post(COMPLETIONS, {"prompt": [None] * 500_000}), 400, "invalid_parameter"),
    "a hundred thousand biases": (
        post(COMPLETIONS, {"prompt": "a", "logit_bias": {str(i): 1.0 for i in range(100_000)}}),
        400,
        "invalid_parameter",
    ),
    "ten thousand stops": (post(COMPLETIONS, {"prompt": "a", "stop": ["s"] * 10_000}), 400, "invalid_parameter"),
    "n times prompts": (post(COMPLETIONS, {"prompt": ["a"] * 100, "n": 100}), 400, "invalid_parameter"),
    "messages that are none": (post(CHAT, {"messages": [{}] * 300_000}), 400, "invalid_parameter"),
    "a model with a long name": (post(COMPLETIONS, {"prompt": "a", "model": "m" * MB}), 404, "model_not_found"),
    "another type": (
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
        415,
        "unsupported_media_type",
    ),
    "a replay of junk": (
        post("/v1/replay", {"receipt": {"schema": "queueproof/receipt/1", "x": [None] * 500_000}}),
        400,
        None,
    ),
}


def test_each_bad_request_gets_its_error_and_nobody_else_hears_of_it(server: ServerProcess) -> None:
    wrong = []
    with Witness(server.url) as witness:
        for name, (data, status, code) in BAD.items():
            reply = exchange(server.port, data)
            if reply is None or reply.status != status or reply.code is None or code not in (None, reply.code):
                wrong.append((name, reply))
            elif len(reply.body) > 8192:
                wrong.append((name, len(reply.body)))
    assert not wrong
    witness.check()
    assert witness.longest_wait < 5.0


NO_HTTP = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "two lengths": head(COMPLETIONS, "Content-Length: 4", length=2) + b"{}{}",
    "a length that is none": head(COMPLETIONS, "Content-Length: 2e1") + b"{}",
    "a negative length": head(COMPLETIONS, "Content-Length: -2") + b"{}",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "a header of a megabyte": head(COMPLETIONS, "X: " + "a" * MB, length=2) + b"{}",
    "a name with a space": b"GET /health HTTP/1.1\r\nHost : a\r\n\r\n",
    "an encoding nobody knows": head(COMPLETIONS, "Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n",
    "chunks that are none": head(COMPLETIONS, "Transfer-Encoding: chunked") + b"zz\r\n{}\r\n0\r\n\r\n",
}


def test_what_is_no_http_is_refused(server: ServerProcess) -> None:
    """With an error, or a closed connection where the server has heard enough."""
    replies = {name: exchange(server.port, data) for name, data in NO_HTTP.items()}
    assert not {name: reply for name, reply in replies.items() if reply and reply.status not in (400, 501)}


def test_a_length_beside_chunks_hides_no_second_request(server: ServerProcess) -> None:
    """A proxy may have believed the length, and have seen one request where there are two."""
    smuggled = b"GET /version HTTP/1.1\r\nHost: a\r\n\r\n"
    inner = post(COMPLETIONS, QUESTION | {"stream": False}).partition(b"\r\n\r\n")[2]
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner)
    data = head(COMPLETIONS, "Transfer-Encoding: chunked", length=len(chunks) + len(smuggled)) + chunks + smuggled
    with connect(server.port) as connection:
        connection.sendall(data)
        connection.settimeout(3.0)
        heard = b""
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            while data := connection.recv(65536):
                heard += data
    assert heard.startswith(b"HTTP/1.1 400 ") and heard.count(b"HTTP/1.1 ") == 1, heard


def test_connections_that_say_half_of_it_cost_next_to_nothing(server: ServerProcess) -> None:
    """The time they are given is a matter of test_live.py."""
    whole = post(COMPLETIONS, QUESTION)
    beginnings = [b"", b"P", whole[:40], whole[:-1], head(COMPLETIONS, length=3 * MB) + b" " * 1000]
    before = server.rss()
    with contextlib.ExitStack() as stack:
        for i in range(400):
            stack.enter_context(connect(server.port)).sendall(beginnings[i % len(beginnings)])
        with Witness(server.url) as witness:
            time.sleep(1.0)
        assert server.rss() - before < 64 * MB
    witness.check()
    assert witness.longest_wait < 5.0


def test_readers_that_read_nothing_hold_up_nobody(server: ServerProcess) -> None:
    """Their answers come to an end in the engine, and what they do not take is not piled up."""
    long = QUESTION | {"max_tokens": 250, "n": 4, "temperature": 1.0, "logprobs": 20}
    before, generated = server.rss(), server.counters()["queueproof_generation_tokens_total"]
    with contextlib.ExitStack() as stack:
        readers: list[socket.socket] = [stack.enter_context(connect(server.port, 4096)) for _ in range(4)]
        for reader in readers:
            reader.sendall(post(COMPLETIONS, long))
        with Witness(server.url) as witness:
            wait_until(lambda: server.counters()["queueproof_generation_tokens_total"] - generated >= 4 * 4 * 250)
            wait_until(lambda: server.counters()["queueproof_num_requests_running"] <= 1)  # that of the witness
        assert server.rss() - before < 64 * MB
    witness.check()
    assert witness.longest_wait < 5.0


def test_hundreds_of_tiny_requests(server: ServerProcess) -> None:
    with Witness(server.url) as witness:
        statuses = asyncio.run(flood(server.port, requests=600, connections=40))
    assert statuses == {200: 600}
    witness.check()


def test_a_killed_server_loses_no_receipt_that_anybody_was_told_of(model: Path, tmp_path: Path) -> None:
    sizes = Sizes(vocabulary=288, longest_prompt=64, longest_answer=16, pool=40, rate=20.0, classes=("portable",))
    file = tmp_path / "receipts.sqlite"
    with ServerProcess(model, "--threads", "1", log=tmp_path / "log", receipts=file) as server:
        soak = Soak(server.url, draw_pool(0, sizes), sizes, clients=16, seed=0)
        timer = threading.Timer(1.5, server.kill)
        timer.start()
        asyncio.run(soak.run(2.0))
        timer.join()
    assert any(error.startswith(("Read", "Remote", "Connect")) for error in soak.errors), soak.errors
    told = {str(answer.receipt) for item in soak.asked for answer in item.answers}
    assert len(told) > 40
    with contextlib.closing(sqlite3.connect(file)) as db:  # which takes in what the log beside it has
        documents = [read_document(text) for (text,) in db.execute("SELECT document FROM receipts")]  # each is checked
    kept = {document.receipt.id for document in documents}
    assert told <= kept
    with (
        ServerProcess(model, "--threads", "2", log=tmp_path / "log2", receipts=file) as server,
        server.client() as client,
    ):
        for receipt_id in sorted(told)[:20]:
            answer: Any = client.post("/v1/replay", json={"id": receipt_id}).json()
            assert answer["verdict"] == "same", answer
