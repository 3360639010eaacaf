"""What the audit's client costs: tokens/s of a server with it, beside a client that reads and drops, in turns.

    python benchmarks/audit_overhead.py                      # a server that only writes, 64 streams as fast as it can
    python benchmarks/audit_overhead.py --pace 0.1           # ... a chunk of each stream every 100 ms
    python benchmarks/audit_overhead.py --url http://127.0.0.1:8000 --tokens 64 --json FILE

Both clients send the same requests, all at once, from this process. CPU is this process's: per chunk, all that a client does
for it, from the bytes to the Answer. The share of tokens/s is that of medians over the rounds; the first is for warm-up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from queueproof.audit.ask import Ask, Prompt
from queueproof.audit.client.http import HttpEndpoint
from queueproof.audit.client.requests import route_of

TOPICS = ("rivers", "bread", "clouds", "trains", "maps", "glass", "bees", "salt")


def chunk(i: int, model: str) -> bytes:
    """One token as vLLM writes it when log-probabilities and ids are asked for."""
    token = f" word{i % 97}"
    tops = [
        {"token": t, "logprob": -0.1234567890123 - n, "bytes": list(t.encode())} for n, t in enumerate((token, " a"))
    ]
    entry = {**tops[0], "top_logprobs": tops}
    choice = {"index": 0, "delta": {"content": token}, "logprobs": {"content": [entry]}, "finish_reason": None}
    head = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1, "model": model}
    return event({**head, "choices": [{**choice, "token_ids": [i % 5000]}], "usage": None})


def event(value: Any) -> bytes:
    return framed(b"data: " + json.dumps(value).encode() + b"\n\n")


def framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


CHUNKS = [chunk(i, "fake") for i in range(97)]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pace: float) -> None:
    """Requests of one connection, one after another."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            break
        length = next((int(x[15:]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length:")), 0)
        body = await reader.readexactly(length)
        if head.startswith(b"GET /v1/models"):
            page = b'{"data":[{"id":"fake"}]}'
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(page) + page)
        elif not head.startswith(b"POST /v1/chat/completions"):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        else:
            tokens = json.loads(body)["max_tokens"]
            writer.write(HEAD)
            due = time.perf_counter()
            for i in range(tokens):
                due += pace
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                writer.write(CHUNKS[i % 97])
                await writer.drain()
            usage = {"prompt_tokens": 9, "completion_tokens": tokens}
            end = {"index": 0, "delta": {}, "finish_reason": "length"}
            writer.write(event({"model": "fake", "choices": [end]}) + event({"choices": [], "usage": usage}))
            writer.write(framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()
    writer.close()


async def be_server(pace: float) -> None:
    server = await asyncio.start_server(lambda r, w: answer(r, w, pace), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@dataclass(slots=True)
class Dropped(asyncio.Protocol):
    """The client that does as little as can be."""

    request: bytes
    done: asyncio.Future[None]
    transport: Any = None
    tail: bytes = b""
    pieces: int = field(default=0)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.pieces += 1
        self.tail = (self.tail + data)[-32:] if len(data) < 32 else data[-32:]
        if b"data: [DONE]" in self.tail:
            self.transport.close()
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError("the stream ended early"))


async def drop(endpoint: HttpEndpoint, asks: list[Ask]) -> None:
    """The requests of the asks, as the endpoint would send them, with nothing done with the answers."""
    loop, where = asyncio.get_running_loop(), urlsplit(endpoint.identity().url)
    streams = []
    for ask in asks:
        content = json.dumps(endpoint.body(ask)).encode()
        head = f"POST /v1{route_of(ask.prompt)} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
        stream = Dropped(request, loop.create_future())
        await loop.create_connection(lambda stream=stream: stream, where.hostname, where.port)
        streams.append(stream)
    await asyncio.gather(*(stream.done for stream in streams))


async def read(endpoint: HttpEndpoint, asks: list[Ask]) -> None:
    answers = await asyncio.gather(*(endpoint.ask(ask) for ask in asks))
    assert all(a.completion_tokens == ask.max_tokens for a, ask in zip(answers, asks, strict=True))


def asks_of(round_: int, users: int, tokens: int) -> list[Ask]:
    """Each round has its own prompts, both clients the same."""
    texts = [f"Write about {TOPICS[i % len(TOPICS)]}, number {round_} of {i}, at length." for i in range(users)]
    prompts = [Prompt(f"p{i}", "chat", messages=(("user", text),)) for i, text in enumerate(texts)]
    return [Ask(prompt, tokens, exact_tokens=True) for prompt in prompts]


async def measure(url: str, users: int, tokens: int, rounds: int) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {"drop": [], "read": []}
    async with AsyncExitStack() as stack:
        endpoint = await stack.enter_async_context(HttpEndpoint.open(url))
        for number in range(rounds + 1):
            turns = [("drop", drop), ("read", read)]
            for name, client in turns if number % 2 else reversed(turns):
                asks = asks_of(number, users, tokens)
                began, cpu = time.perf_counter(), time.process_time()
                await client(endpoint, asks)
                seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
                if number:
                    count = users * tokens
                    found[name].append({"tokens_per_s": count / seconds, "cpu_us_per_token": 1e6 * cpu / count})
    medians = {name: {key: statistics.median(r[key] for r in rows) for key in rows[0]} for name, rows in found.items()}
    share = medians["read"]["tokens_per_s"] / medians["drop"]["tokens_per_s"]
    return {"users": users, "tokens": tokens, "share": share, "medians": medians, "rounds": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--url", help="a running server; without one, a server that computes nothing is started")
    parser.add_argument(
        "--pace", type=float, default=0.0, help="seconds from chunk to chunk of a stream (without --url)"
    )
    parser.add_argument("--users", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(be_server(options.pace))
        return
    url, server = options.url, None
    try:
        if url is None:
            command = [sys.executable, __file__, "--serve", "--pace", str(options.pace)]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert server.stdout is not None
            url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        found = asyncio.run(measure(url, options.users, options.tokens, options.rounds))
    finally:
        if server is not None:
            server.terminate()
            server.wait(10)
    print(json.dumps({key: value for key, value in found.items() if key != "rounds"}, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
