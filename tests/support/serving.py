"""Ways to ask an application: in this process without a socket, and over a real one."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from starlette.applications import Starlette

from queueproof.server.app import make_app
from queueproof.server.config import ServerConfig
from queueproof.server.extension import Extension, FinishedAnswer, Receipts
from queueproof.server.run import listen, make_server, new_event_loop
from tests.support.fake_engine import FakeEngine, contract_of

T = TypeVar("T")
MODEL = "fake"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


class NumberedReceipts(Receipts):
    """Receipts "rcpt-0", "rcpt-1", ..., and what each was made of."""

    def __init__(self) -> None:
        self.kept: list[FinishedAnswer] = []

    async def keep(self, answer: FinishedAnswer) -> str:
        self.kept.append(answer)
        return f"rcpt-{len(self.kept) - 1}"


def app_of(
    *engines: FakeEngine,
    receipts: Receipts | None = None,
    extensions: Sequence[Extension] = (),
    **config: Any,
) -> Starlette:
    options = {"model_names": (MODEL,), "build": "1.2.3"} | config
    return make_app(ServerConfig(**options), engines, contract_of(*engines), receipts, extensions)


@asynccontextmanager
async def client_of(app: Starlette, **options: Any) -> AsyncGenerator[httpx.AsyncClient, None]:
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server", **options) as client:
            yield client


def request(app: Starlette, method: str, path: str, **options: Any) -> httpx.Response:
    """One request to an application that starts for it and ends after it."""

    async def run() -> httpx.Response:
        async with client_of(app) as client:
            return await client.request(method, path, **options)

    return asyncio.run(run())


def post(app: Starlette, path: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    return request(app, "POST", path, json=body, headers=headers)


def answer(app: Starlette, path: str, **body: Any) -> dict[str, Any]:
    """The JSON of an answer that must be one."""
    got = post(app, path, **body)
    assert got.status_code == 200, got.text
    found: dict[str, Any] = got.json()
    return found


def error(app: Starlette, path: str, status: int, **body: Any) -> dict[str, Any]:
    """The error object of an answer that must be one of that status."""
    return error_of(post(app, path, **body), status)


def error_of(got: httpx.Response, status: int) -> dict[str, Any]:
    assert got.status_code == status, got.text
    found: dict[str, Any] = got.json()["error"]
    assert set(found) >= {"message", "type", "param", "code"} and found["message"] and found["code"]
    assert got.headers["content-type"] == "application/json"
    return found


def events(text: str) -> list[Any]:
    """What a stream said: JSON values and "[DONE]". Comments are left out."""
    found: list[Any] = []
    for block in text.split("\n\n"):
        if block and not block.startswith(":"):
            assert block.startswith("data: ") and "\n" not in block, block
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


def streamed(app: Starlette, path: str, **body: Any) -> list[Any]:
    """The chunks of a stream that must be complete, without its [DONE]."""
    got = post(app, path, stream=True, **body)
    assert got.status_code == 200, got.text
    assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, done = events(got.text)
    assert done == "[DONE]"
    return chunks


class Live:
    """A real uvicorn on a socket of its own, in a thread of its own."""

    def __init__(self, app: Starlette) -> None:
        self.app = app
        self._socket = listen(app.state.queueproof.config)
        self.host, self.port = self._socket.getsockname()[:2]
        self.url = f"http://{self.host}:{self.port}"
        self.server = make_server(app)
        self._thread = threading.Thread(target=self._run, name="live-server")

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(self.server.serve([self._socket]))

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self.server.started or not self._thread.is_alive())
        assert self.server.started
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()

    def ask_to_stop(self) -> None:
        self.server.should_exit = True


def live(*engines: FakeEngine, **options: Any) -> Live:
    return Live(app_of(*engines, **({"port": 0} | options)))


def wait_until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Raises TimeoutError: whatever is waited for has to come."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError("it did not come")
        time.sleep(0.005)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)
