"""One POST over a plain TCP connection of its own, read with as little work as possible.

A client that shares a machine with a CPU server takes from it whatever it spends on each token. httpx spends 0.15 to 0.2 ms
on each read (locks, timeouts and events in three layers), which cost a server of 64 users 7% of its tokens/s. Here a read is
a callback that keeps the bytes and the time, and the task that asked is woken once, at the end. Encrypted connections, and
transports that are given, go through httpx: there the server is on another machine, or is no server.

A connection serves one request, so none is ever lost to a server that closes an idle one at that moment, and a balancer in
front of several replicas places each request anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import httpx

from queueproof.audit.client.trouble import Failure, Kind

_HEAD_BYTES = 65536
LARGEST = 64 << 20  # bytes of an answer: more is no answer, and would fill the memory
ERROR_BYTES = 65536  # of an error's body: as much as can matter
_CUT = "the connection ended {} ({})"


@dataclass(slots=True)
class Received(asyncio.Protocol):
    """A response as it comes. pieces: of the body, (time of arrival, bytes). status is 0 before the head is there.

    over: tells from a piece that no more is wanted. error: what ended the connection too early.
    """

    request: bytes
    over: Callable[[bytes], bool]
    clock: Callable[[], float]
    finished: asyncio.Future[None]
    status: int = 0
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    error: Failure | None = None
    _rest: bytes = b""  # not understood yet
    _chunked: bool = False
    _size: int = 0  # bytes of the body so far
    _left: int | None = None  # bytes to come: of the body, or of a chunk and its line end; None: until the end
    _transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self.finished.done():
            return
        now = self.clock()
        try:
            if not self.status:
                self._rest += data
                if not self._take_head():
                    return
                data, self._rest = self._rest, b""
            body = self._dechunked(data) if self._chunked else self._counted(data)
        except ValueError as error:
            self._end(Failure(Kind.BAD_ANSWER, f"this is no HTTP: {error}"))
            return
        if body:
            self.pieces.append((now, body))
            self._size += len(body)
            if self.over(body) or (self.status != 200 and self._size > ERROR_BYTES):
                self._end()
            elif self._size > LARGEST:
                self._end(Failure(Kind.BAD_ANSWER, f"an answer of more than {LARGEST >> 20} MiB"))
        if self.finished.done():
            self.close()  # nothing more is read, not even to be dropped

    def connection_lost(self, error: Exception | None) -> None:
        if self.status and not self._chunked and self._left is None and error is None:
            self._end()  # a body without a length goes on to here
        else:
            where = "in the middle of the answer" if self.pieces else "before an answer"
            why = repr(error) if error is not None else "closed by the server"
            self._end(Failure(Kind.CUT, _CUT.format(where, why), again=True))

    def close(self) -> None:
        """Drops the connection, in whatever state it is: the server sees that nobody waits."""
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: Failure | None = None) -> None:
        if not self.finished.done():
            self.error = error
            self.finished.set_result(None)

    def _take_head(self) -> bool:
        """Reads the head, if it is all there. What follows it stays in the rest."""
        while not self.status:
            head, found, rest = self._rest.partition(b"\r\n\r\n")
            if not found:
                if len(self._rest) > _HEAD_BYTES:
                    raise ValueError("a head without an end")
                return False
            first, *lines = head.split(b"\r\n")
            version, _, status = first.partition(b" ")
            if not version.startswith(b"HTTP/1."):
                raise ValueError(repr(first[:80]))
            self._rest = rest
            if 100 <= int(status[:3]) < 200:  # tells that an answer will come
                continue
            self.status = int(status[:3])
            pairs = [line.split(b":", 1) for line in lines]
            self.headers = httpx.Headers([(name.strip(), value.strip()) for name, value in pairs])
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        if self.status in (204, 304):  # have no body, and no length of it
            self._end()
        elif self._chunked:
            self._left = 0
        elif "content-length" in self.headers:
            self._left = int(self.headers["content-length"])
            if self._left < 0:
                raise ValueError(f"a body of {self._left} bytes")
            if self._left == 0:
                self._end()
        return True

    def _counted(self, data: bytes) -> bytes:
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
            if self._left == 0 and data:
                self.pieces.append((self.clock(), data))
                self._end()
                return b""
        return data

    def _dechunked(self, data: bytes) -> bytes:
        """The bytes of the body in these of the wire. Ends at the chunk of length 0; what follows it is dropped."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        found: list[bytes] = []
        at, left = 0, self._left or 0
        while at < len(data):
            if left > 2:  # within a chunk; its line end is in the count, and no part of it
                piece = data[at : at + left - 2]
                found.append(piece)
                at, left = at + len(piece), left - len(piece)
            elif left:
                skipped = min(left, len(data) - at)
                at, left = at + skipped, left - skipped
            else:
                end = data.find(b"\r\n", at)
                if end < 0:
                    self._rest = data[at:]
                    if len(self._rest) > _HEAD_BYTES:
                        raise ValueError("a chunk without a length")
                    break
                size = int(data[at:end].split(b";", 1)[0], 16)
                if size < 0:
                    raise ValueError(f"a chunk of {size} bytes")
                if size == 0:
                    self._finish(found)
                    return b""
                at, left = end + 2, size + 2
        self._left = left
        return found[0] if len(found) == 1 else b"".join(found)

    def _finish(self, found: list[bytes]) -> None:
        if found:
            self.pieces.append((self.clock(), b"".join(found)))
        self._end()


def request_of(url: httpx.URL, headers: Mapping[str, str], content: bytes) -> bytes:
    """A POST of JSON, head and body."""
    lines = [f"POST {url.raw_path.decode('ascii')} HTTP/1.1", f"Host: {url.netloc.decode('ascii')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += ["Accept: */*", "Connection: close", "Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + content


async def connect(url: httpx.URL, request: bytes, over: Callable[[bytes], bool], seconds: float) -> Received:
    """Sends a request. The response arrives in what is returned, which must be closed. Raises Failure."""
    loop = asyncio.get_running_loop()
    received = Received(request, over, loop.time, loop.create_future())
    try:
        async with asyncio.timeout(seconds):
            await loop.create_connection(lambda: received, url.host, url.port or 80)
    except TimeoutError:
        raise Failure(Kind.TIMEOUT, f"{url}: no connection within {seconds:g} s", again=True) from None
    except OSError as error:
        raise Failure(Kind.REFUSED, f"{url}: no connection: {error}", again=True) from None
    except asyncio.CancelledError:
        received.close()
        raise
    return received
