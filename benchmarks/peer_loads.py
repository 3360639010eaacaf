"""What benchmarks/cpu_peers.py asks of a server, and how: streams of /v1/completions over plain sockets.

While a load runs, the client only stores packets with the time of their arrival; they are read when the load is over, so
that the processor is the server's. All servers get the same texts, of words that are a token each.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import h11
import numpy as np

# Each is one token of SmolLM2's vocabulary, with a space before it and without; answers say whether it is so.
_WORDS = """
water house river music paper light stone winter summer mother father doctor market forest city street school church bridge
train ship horse bird fish tree flower grass corn bread salt milk fire iron gold glass cloth chair table door window wall
floor road field hill lake ocean storm cloud rain snow wind sun moon star night letter story song picture book word number
name voice hand heart head face blood bone hair king teacher worker child friend
"""
WORDS = _WORDS.split()
PROMPT = 30  # tokens, of a user who then reads an answer
ARRIVING, EVERY = 1024, 2.0  # of `mixed`: tokens of the prompts that arrive, and least seconds between them
_LIMIT = 600.0  # seconds for a load


class LoadError(Exception):
    """A server did not answer as asked."""


@dataclass(frozen=True, slots=True)
class Load:
    """users at once, prompts and answers of so many tokens. times: one after another in a round. arriving: tokens of
    prompts that arrive meanwhile."""

    name: str
    users: int
    prompt: int
    answer: int
    times: int = 1
    arriving: int = 0

    @property
    def prefill(self) -> bool:
        return self.answer == 1

    @property
    def title(self) -> str:
        if self.prefill:
            return f"prefill of {self.prompt}"
        users = f"{self.users} user{'s' if self.users > 1 else ''}"
        return f"{users}, prompts of {self.arriving} arrive" if self.arriving else users

    @property
    def length(self) -> int:
        """Tokens of the longest request."""
        return max(self.prompt + self.answer, self.arriving + 1)


def parse_loads(text: str, tokens: int) -> list[Load]:
    """`1,8,prefill512,mixed`: so many users with answers of `tokens`; a prompt of 512; both. Raises ValueError."""
    made = []
    for part in text.split(","):
        if part == "mixed":
            made.append(Load(part, 8, PROMPT, 3 * tokens, arriving=ARRIVING))
        elif part.startswith("prefill") and 16 <= _number(part.removeprefix("prefill")) <= 8000:
            length = _number(part.removeprefix("prefill"))
            made.append(Load(part, 1, length, 1, times=3 if length <= 1024 else 1))
        elif 1 <= _number(part) <= 64:
            made.append(Load(part, _number(part), PROMPT, tokens, times=3 if part == "1" else 1))
        else:
            raise ValueError(f"{part!r} is no load: 1 to 64 (users), prefill16 to prefill8000 (tokens), and mixed are")
    return made


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def prompt(length: int, *key: Any) -> str:
    """A text of so many tokens. Texts of different keys have no beginning of useful length in common."""
    return " ".join(random.Random("/".join(map(str, key))).choices(WORDS, k=length))


@dataclass(frozen=True, slots=True)
class Answer:
    """times: of the arrival of each chunk that has text, in seconds from the sending of the request. end: of the last
    chunk. Tokens are as the server counts them; where it does not, prompt_tokens is None, and a chunk is a token."""

    begun: float
    times: tuple[float, ...]
    end: float
    prompt_tokens: int | None
    output_tokens: int

    @property
    def ttft(self) -> float:
        return self.times[0] if self.times else self.end  # a token may be half a character, which is no text yet

    @property
    def tpot(self) -> float | None:
        """After the first token; None where there is one only."""
        return (self.times[-1] - self.times[0]) / (self.output_tokens - 1) if self.output_tokens > 1 else None


@dataclass(slots=True)
class _Packets(asyncio.Protocol):
    request: bytes
    done: asyncio.Future[None]
    first: asyncio.Event = field(default_factory=asyncio.Event)  # an answer has begun
    begun: float = 0.0
    packets: list[tuple[float, bytes]] = field(default_factory=list)

    def connection_made(self, transport: Any) -> None:
        self.begun = time.perf_counter()
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.packets.append((time.perf_counter(), data))
        self.first.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.first.set()
        if not self.done.done():
            self.done.set_result(None)


def http_request(host: str, port: int, body: Mapping[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = ("POST /v1/completions HTTP/1.1", f"Host: {host}:{port}", "Content-Type: application/json")
    lines = (*head, f"Content-Length: {len(data)}", "Connection: close", "", "")
    return "\r\n".join(lines).encode() + data


def read_answer(begun: float, packets: Sequence[tuple[float, bytes]]) -> Answer:
    """packets: a whole response as it came, with times of the same clock as begun. Raises LoadError."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("Host", "x"), ("Content-Length", "0")]))
    connection.send(h11.EndOfMessage())
    status, rest, whole = 0, b"", False
    chunks: list[tuple[float, dict[str, Any]]] = []
    for at, packet in [*packets, (packets[-1][0] if packets else begun, b"")]:
        connection.receive_data(packet)
        while (event := _next(connection)) not in (h11.NEED_DATA, h11.PAUSED) and not isinstance(
            event, h11.ConnectionClosed
        ):
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                *lines, rest = (rest + event.data).split(b"\n")
                if status == 200:
                    chunks += [(at, chunk) for line in lines if (chunk := _chunk(line)) is not None]
                else:
                    rest = b"\n".join([*lines, rest])
            elif isinstance(event, h11.EndOfMessage):
                whole = True
    if status != 200 or not whole:
        raise LoadError(f"status {status or 'missing'}, {'whole' if whole else 'cut'}: {rest[:300]!r}")
    return _answer(begun, chunks)


def _next(connection: h11.Connection) -> Any:
    try:
        return connection.next_event()
    except h11.RemoteProtocolError as error:
        raise LoadError(f"the answer is not HTTP, or was cut: {error}") from None


def _chunk(line: bytes) -> dict[str, Any] | None:
    """Of a stream's line; None for one without data."""
    text = line.strip().removeprefix(b"data:").strip()
    if not line.startswith(b"data:") or text in (b"", b"[DONE]"):
        return None
    chunk: dict[str, Any] = json.loads(text)
    if "error" in chunk:
        raise LoadError(f"the server says: {str(chunk['error'])[:300]}")
    return chunk


def _answer(begun: float, chunks: Sequence[tuple[float, dict[str, Any]]]) -> Answer:
    if not chunks:
        raise LoadError("the answer is empty")
    times = [at - begun for at, chunk in chunks if any(choice.get("text") for choice in chunk.get("choices") or ())]
    usage: dict[str, Any] = next((chunk["usage"] for _, chunk in reversed(chunks) if chunk.get("usage")), {})
    output = usage.get("completion_tokens")
    end = chunks[-1][0] - begun
    return Answer(begun, tuple(times), end, usage.get("prompt_tokens"), len(times) if output is None else output)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server listens, and what its requests have besides the common."""

    host: str
    port: int
    body: Mapping[str, Any]

    async def open(self, text: str, answer: int) -> _Packets:
        """Sends a request."""
        body = {"prompt": text, "max_tokens": answer, "temperature": 0, "stream": True} | dict(self.body)
        loop = asyncio.get_running_loop()
        stream = _Packets(http_request(self.host, self.port, body), loop.create_future())
        try:
            await loop.create_connection(lambda: stream, self.host, self.port)
        except OSError as error:
            raise LoadError(f"no connection: {error}") from None
        return stream


async def ask(target: Target, prompts: Sequence[str], answer: int) -> list[_Packets]:
    """All at once, to their ends."""
    streams = await asyncio.gather(*(target.open(text, answer) for text in prompts))
    await asyncio.gather(*(stream.done for stream in streams))
    return list(streams)


async def measure(load: Load, target: Target, key: str) -> dict[str, float]:
    """The figures of a load. key: another key asks with other texts. Raises LoadError."""
    try:
        async with asyncio.timeout(_LIMIT):
            runs = [await _run(load, target, f"{key}/{load.name}/{n}") for n in range(load.times)]
    except TimeoutError:
        raise LoadError(f"{load.title}: not done after {_LIMIT:g} s") from None
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


async def _run(load: Load, target: Target, key: str) -> dict[str, float]:
    prompts = [prompt(load.prompt, key, user) for user in range(load.users)]
    if not load.arriving:
        answers = [read_answer(s.begun, s.packets) for s in await ask(target, prompts, load.answer)]
        _check(answers, load.prompt)
        return prefill_figures(answers[0], load.prompt) if load.prefill else decode_figures(answers)
    streams = await asyncio.gather(*(target.open(text, load.answer) for text in prompts))
    await asyncio.gather(*(stream.first.wait() for stream in streams))
    ends: asyncio.Future[Any] = asyncio.gather(*(stream.done for stream in streams))
    arrived: list[_Packets] = []
    while not ends.done():
        arrived.append(await target.open(prompt(load.arriving, key, "arriving", len(arrived)), 1))
        await asyncio.wait([ends], timeout=EVERY)
        # A queue of prompts would grow without end at a server that is slower than they arrive.
        await asyncio.wait([ends, arrived[-1].done], return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*(stream.done for stream in arrived))
    readers = [read_answer(s.begun, s.packets) for s in streams]
    others = [read_answer(s.begun, s.packets) for s in arrived]
    _check(readers, load.prompt)
    _check(others, load.arriving)
    return decode_figures(readers) | gap_figures(readers, others)


def _check(answers: Sequence[Answer], asked: int) -> None:
    counted = {n for answer in answers if (n := answer.prompt_tokens) is not None and n != asked}
    if counted:
        raise LoadError(f"prompts of {asked} tokens were counted as {sorted(counted)}: it reads other texts")


def decode_figures(answers: Sequence[Answer]) -> dict[str, float]:
    """tokens_per_s: of all users, from the first request to the last token, prefill included. TTFT, TPOT: medians.
    Raises LoadError where there is no TPOT."""
    begun = min(answer.begun for answer in answers)
    end = max(answer.begun + (answer.times[-1] if answer.times else answer.end) for answer in answers)
    output = sum(answer.output_tokens for answer in answers)
    tpots = [tpot for answer in answers if (tpot := answer.tpot) is not None]
    if not tpots:
        raise LoadError("no answer has more than a token")
    return {
        "tokens_per_s": output / (end - begun),
        "ttft_ms": 1e3 * statistics.median(answer.ttft for answer in answers),
        "tpot_ms": 1e3 * statistics.median(tpots),
        "output_tokens": output,
    }


def prefill_figures(answer: Answer, length: int) -> dict[str, float]:
    return {"tokens_per_s": length / answer.ttft, "ttft_ms": 1e3 * answer.ttft}


def gap_figures(readers: Sequence[Answer], others: Sequence[Answer]) -> dict[str, float]:
    """Gaps between chunks of the readers, from when the first of the others was sent until the last one was answered."""
    first, last = min(o.begun for o in others), max(o.begun + o.end for o in others)
    gaps = [
        later - earlier
        for reader in readers
        for earlier, later in zip(reader.times, reader.times[1:], strict=False)
        if reader.begun + later > first and reader.begun + earlier < last
    ]
    if not gaps:
        raise LoadError("no answer was under way while the prompts arrived")
    median, p99 = np.percentile(gaps, [50, 99])
    return {
        "gap_median_ms": 1e3 * float(median),
        "gap_p99_ms": 1e3 * float(p99),
        "p99_by_median": float(p99 / median),
        "arrivals": len(others),
        "arriving_ttft_ms": 1e3 * statistics.median(o.ttft for o in others),
    }
