"""The two kinds of places where a side is asked: a server that runs already, and one that is started for each turn."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from queueproof.audit.endpoint import Endpoint
from queueproof.audit.price.launch import Launch, running
from queueproof.audit.price.records import Side
from queueproof.audit.records import EndpointIdentity, Problem


class Client(Endpoint, Protocol):
    """An endpoint that can say who it is and what trouble there was in all."""

    def identity(self) -> EndpointIdentity: ...

    def problems(self) -> tuple[Problem, ...]: ...


Opener = Callable[[], AbstractAsyncContextManager[Client]]


class Standing:
    """A server that runs, and an open client of it. body: the fields that the client adds to each request."""

    fresh = False

    def __init__(self, client: Client, body: Mapping[str, Any] | None = None) -> None:
        self._client, self._body = client, body

    @asynccontextmanager
    async def visit(self) -> AsyncIterator[Endpoint]:
        yield self._client

    def side(self) -> Side:
        return side_of(self._client.identity(), self._body)

    def problems(self) -> tuple[Problem, ...]:
        return self._client.problems()


class Launched:
    """A server started for each turn, and ended after it. name: of its logs in `folder`. env: what it has beyond the
    environment of the other side, as NAME=value."""

    fresh = True

    def __init__(
        self,
        launch: Launch,
        connect: Opener,
        folder: Path,
        name: str,
        env: tuple[str, ...] = (),
        body: Mapping[str, Any] | None = None,
    ) -> None:
        self._launch, self._connect, self._folder, self._name = launch, connect, folder, name
        self._body = body
        self._starts = 0
        self._problems: tuple[Problem, ...] = ()
        self._client: Client | None = None
        self._side = Side(launch.url, "unknown", "unknown", "unknown", None, _text(body), launch.command, env)

    @asynccontextmanager
    async def visit(self) -> AsyncIterator[Endpoint]:
        self._starts += 1
        log = self._folder / f"{self._name}-{self._starts}.log"
        async with running(self._launch, log), self._connect() as client:
            self._client = client
            try:
                yield client
            finally:
                self._client = None
                found = side_of(client.identity(), self._body)
                self._side = replace(found, command=self._side.command, env=self._side.env)
                self._problems += client.problems()

    def side(self) -> Side:
        return self._side

    def problems(self) -> tuple[Problem, ...]:
        return self._problems + (self._client.problems() if self._client is not None else ())


def side_of(identity: EndpointIdentity, body: Mapping[str, Any] | None) -> Side:
    """What a result says of an endpoint."""
    cold = identity.cold_by or "unique prefix"
    return Side(identity.url, identity.model, identity.vendor, cold, identity.version, _text(body))


def _text(body: Mapping[str, Any] | None) -> str | None:
    return json.dumps(body, ensure_ascii=False, sort_keys=True) if body else None
