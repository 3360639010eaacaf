"""Requests on the wire: one try, several tries, and pages that a server may have or not."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx

from queueproof.audit.ask import Answer
from queueproof.audit.client import answers
from queueproof.audit.client.plain import ERROR_BYTES, LARGEST, connect, request_of
from queueproof.audit.client.requests import Route
from queueproof.audit.client.spending import Spending
from queueproof.audit.client.sse import DONE, events
from queueproof.audit.client.trouble import Failure, Kind, Retries, from_status, from_transport
from queueproof.audit.endpoint import BudgetSpent
from queueproof.audit.records import Problem
from queueproof.contract.errors import UsageError
from queueproof.version import __version__

_CONNECTIONS = 1024
_KEEP_SECONDS = 2.0  # servers close an idle connection after 5 s; a request that meets this moment would be lost
_AFTER_DONE = 1.0  # seconds for a server to end the body after [DONE]
_PAGE_BYTES = 16 << 20  # of a page beside the answers
_PAGE_SECONDS = 5.0
_OF_TRANSFER = frozenset({"content-encoding", "content-length", "transfer-encoding"})  # true of it as it was sent
Pieces = list[tuple[float, bytes]]  # of a body: when each came
RETRIED = " (retried)"  # ends the kind of a problem that another try got over, or tried to


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: to connect, from sending to the first piece, between pieces, and for a whole answer."""

    connect: float = 10.0
    first: float = 120.0
    between: float = 60.0
    whole: float = 600.0


def root_of(url: str) -> str:
    """A server's address without /v1 or a slash at its end. Raises UsageError."""
    full = url.strip() if "://" in url else f"http://{url.strip()}"
    for end in ("/chat/completions", "/completions"):
        full = full.rstrip("/").removesuffix(end)
    root = full.rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        parsed = httpx.URL(root)
    except httpx.InvalidURL as error:
        raise UsageError(f"{url} is no address of a server, such as http://localhost:8000: {error}") from None
    if parsed.userinfo:  # the address is in every report
        raise UsageError("an address with a user's name or a password in it is not taken: a key goes into a variable")
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        raise UsageError(f"{url} is no address of a server, such as http://localhost:8000")
    if parsed.port is not None and not 1 <= parsed.port <= 65535:
        raise UsageError(f"{url} is no address of a server: a port is a number from 1 to 65535")
    return root


def must_fit_a_header(api_key: str) -> None:
    """Raises UsageError for a key that cannot be sent. It does not show it."""
    if not re.fullmatch(r"[\x21-\x7e]+", api_key):
        raise UsageError("the API key has a space, a line end or another character in it that no HTTP header can hold")


class Wire:
    """One HTTP client of one server. Counts what goes wrong.

    The environment is not looked at: a proxy or a .netrc that it names would be part of what is measured, unseen.
    transport: what sends, for tests and for proxies: `httpx.AsyncHTTPTransport(proxy=...)`.
    """

    def __init__(
        self,
        root: str,
        api_key: str | None,
        spending: Spending,
        timeouts: Timeouts,
        retries: Retries,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {"User-Agent": f"queueproof/{__version__}", "Accept-Encoding": "identity"}
        if api_key is not None:
            must_fit_a_header(api_key)
            headers["Authorization"] = f"Bearer {api_key}"
        self.root, self.spending = root, spending
        self.api = f"{root}/v1"  # some hosts have another; see `vendor`
        self._timeouts, self._retries = timeouts, retries
        self._headers, self._plain = headers, transport is None
        self._clock = asyncio.get_running_loop().time
        self._jitter = random.Random(0)
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._client = httpx.AsyncClient(
            headers=headers,
            transport=transport,
            timeout=httpx.Timeout(None, connect=timeouts.connect),
            limits=httpx.Limits(max_connections=_CONNECTIONS, keepalive_expiry=_KEEP_SECONDS),
            trust_env=False,
            follow_redirects=False,  # a POST that is sent elsewhere is another endpoint
        )

    async def close(self) -> None:
        await self._client.aclose()
        await asyncio.sleep(0)  # connections that were dropped end in the loop's next turn

    def problem(self, kind: str, example: str) -> None:
        self._counts[kind] += 1
        self._examples.setdefault(kind, example)

    def problems(self) -> tuple[Problem, ...]:
        return tuple(Problem(kind, count, self._examples[kind]) for kind, count in self._counts.items())

    async def generate(
        self, route: Route, body: dict[str, Any], prompt: str, tokens: int, trying: bool = False
    ) -> Answer:
        """An answer, after retries where they are right. tokens: that it may need. trying: to be rejected is no problem.

        Raises Failure, BudgetSpent.
        """
        content = json.dumps(body).encode()
        tried = 0
        while True:
            self.spending.reserve(tokens)
            used = 0
            try:
                async with self._in_time():
                    answer = await self._once(route, body, content, prompt)
                used = (answer.prompt_tokens or 0) + (answer.completion_tokens or 0)
                return answer
            except Failure as failure:
                tried += 1
                wait = self._retries.wait(failure, tried)
                if wait is not None:
                    wait *= self._jitter.uniform(1.0, 1.25)  # those that failed together shall not come back together
                if wait is None or not self.spending.lasts(wait):
                    if not (trying and failure.kind == Kind.REJECTED):
                        self.problem(failure.kind, str(failure))
                    raise
                self.problem(failure.kind + RETRIED, str(failure))
            finally:
                self.spending.settle(tokens, used)
            await asyncio.sleep(wait)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """What is still waited for when the time is over is left. Raises BudgetSpent."""
        try:
            async with asyncio.timeout_at(self.spending.ends) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise BudgetSpent("a request was still without its answer when the time was over", late=True) from None

    async def _once(self, route: Route, body: dict[str, Any], content: bytes, prompt: str) -> Answer:
        """One try. Its bytes are kept with their times and read when they are all there."""
        started = self._clock()
        url = httpx.URL(self.api + route)
        carry = self._plainly if self._plain and url.scheme == "http" else self._by_httpx
        limits = self._timeouts
        if not body["stream"]:  # its first piece is the whole
            limits = replace(limits, first=limits.whole)
        pieces, streamed = await carry(url, content, started, limits)
        ended = pieces[-1][0] if pieces else self._clock()
        if streamed or _looks_streamed(pieces):
            return answers.from_stream(events(pieces), prompt, started, ended)
        return answers.from_whole(b"".join(data for _, data in pieces), prompt, started, ended, bool(body.get("echo")))

    async def _plainly(self, url: httpx.URL, content: bytes, started: float, limits: Timeouts) -> tuple[Pieces, bool]:
        """The body's pieces, and whether it says that it is a stream. Raises Failure."""
        received = await connect(url, request_of(url, self._headers, content), _over, limits.connect)
        try:
            while not received.finished.done():
                now = self._clock()
                answered = received.pieces[-1][0] if _answered(received.pieces) else None
                due = min(
                    started + limits.first if answered is None else answered + limits.between, started + limits.whole
                )
                if now >= due:
                    raise Failure(Kind.TIMEOUT, _waited(started, now, answered is not None, limits))
                await asyncio.wait([received.finished], timeout=due - now)
            if received.status not in (0, 200):
                raise from_status(received.status, received.headers, b"".join(data for _, data in received.pieces))
            if received.error is not None:
                raise received.error
            if "content-encoding" in received.headers:
                raise Failure(
                    Kind.BAD_ANSWER, f"an answer in {received.headers['content-encoding']}, which was not asked for"
                )
            return received.pieces, _says_stream(received.headers)
        finally:
            received.close()

    async def _by_httpx(self, url: httpx.URL, content: bytes, started: float, limits: Timeouts) -> tuple[Pieces, bool]:
        """As `_plainly`, through httpx."""
        latest = started + limits.whole
        pieces: Pieces = []
        began = answered = done = streamed = False
        size = 0
        try:
            async with asyncio.timeout_at(min(started + limits.first, latest)) as limit:
                headers = {"Content-Type": "application/json"}
                async with self._client.stream("POST", url, content=content, headers=headers) as response:
                    if response.status_code != 200:
                        raise from_status(response.status_code, response.headers, await _beginning(response))
                    began, streamed = True, _says_stream(response.headers)
                    async for data in response.aiter_bytes():
                        now = self._clock()
                        pieces.append((now, data))
                        size += len(data)
                        if size > LARGEST:
                            raise Failure(Kind.BAD_ANSWER, f"an answer of more than {LARGEST >> 20} MiB")
                        answered = answered or b"data:" in data  # comments do not count as an answer
                        done = _over(data)
                        if answered:
                            limit.reschedule(now + _AFTER_DONE if done else min(now + limits.between, latest))
        except TimeoutError:
            if not done:
                raise Failure(Kind.TIMEOUT, _waited(started, self._clock(), answered, limits)) from None
        except httpx.HTTPError as error:
            if not done:
                raise from_transport(error, began, str(url)) from None
        except (httpx.InvalidURL, httpx.StreamError) as error:
            raise Failure(Kind.BAD_ANSWER, f"{type(error).__name__}: {error}") from None
        return pieces, streamed

    async def fetch(self, url: str) -> httpx.Response:
        """A page that a server should have, of whatever status. Tried again where that is right. Raises Failure."""
        tried = 0
        while True:
            try:
                async with self._in_time(), asyncio.timeout(self._timeouts.connect + _PAGE_SECONDS):
                    response = await self._get(url)
                if response.status_code != 429 and response.status_code < 500:
                    return response
                failure = from_status(response.status_code, response.headers, response.content)
            except TimeoutError:
                failure = Failure(Kind.TIMEOUT, f"{url} did not answer in time")
            except httpx.HTTPError as error:
                failure = from_transport(error, False, url)
            tried += 1
            wait = self._retries.wait(failure, tried)
            if wait is None or not self.spending.lasts(wait):
                raise failure
            await asyncio.sleep(wait)

    async def page(
        self,
        path: str,
        method: str = "GET",
        body: dict[str, Any] | None = None,
        seconds: float = _PAGE_SECONDS,
    ) -> httpx.Response | None:
        """A page beside the answers, such as /metrics. None where it could not be had, for whatever reason."""
        try:
            async with asyncio.timeout(seconds):
                return await self._get(path if "://" in path else self.root + path, method, body)
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, Failure):
            return None

    async def _get(self, url: str, method: str = "GET", body: dict[str, Any] | None = None) -> httpx.Response:
        """A page of bearable size. Raises Failure, and what httpx does."""
        content = None if body is None else json.dumps(body).encode()  # httpx's own cannot write a lone surrogate
        headers = {} if body is None else {"Content-Type": "application/json"}
        found: list[bytes] = []
        left = _PAGE_BYTES
        async with self._client.stream(method, url, content=content, headers=headers) as response:
            async for data in response.aiter_bytes():
                found.append(data)
                left -= len(data)
                if left < 0:
                    raise Failure(Kind.BAD_ANSWER, f"{url}: a page of more than {_PAGE_BYTES >> 20} MiB")
        kept = [(name, value) for name, value in response.headers.multi_items() if name not in _OF_TRANSFER]
        return httpx.Response(response.status_code, headers=kept, content=b"".join(found), request=response.request)


def _over(data: bytes) -> bool:
    """Whether a stream's piece is its last. JSON cannot end so: a text in it would have its quotation mark after."""
    return data[-20:].rstrip().endswith(DONE)


def _answered(pieces: Pieces) -> bool:
    """Whether more came than comments, which servers send while a request waits."""
    return any(b"data:" in data for _, data in pieces)


def _says_stream(headers: httpx.Headers) -> bool:
    return bool(headers.get("content-type", "").startswith("text/event-stream"))


async def _beginning(response: httpx.Response) -> bytes:
    """As much of an error's body as can matter."""
    found = b""
    async for data in response.aiter_bytes():
        found += data
        if len(found) > ERROR_BYTES:
            break
    return found


def _looks_streamed(pieces: Pieces) -> bool:
    """Whether a body whose type does not say so is a stream of events."""
    return bool(pieces) and pieces[0][1].lstrip().startswith((b"data:", b":", b"event:"))


def _waited(started: float, now: float, answered: bool, limits: Timeouts) -> str:
    if now - started >= limits.whole:
        return f"the answer was not whole after {limits.whole:g} s"
    return f"nothing more came for {limits.between:g} s" if answered else f"no answer began within {limits.first:g} s"
