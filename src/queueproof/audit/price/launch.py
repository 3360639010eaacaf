"""A server started for a turn: its port checked, its log kept, awaited, and ended with all of its processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from queueproof.audit.client.wire import must_fit_a_header
from queueproof.contract.errors import ServerError, UsageError

_DYING = 5.0  # seconds that a killed process may take to be gone: it is writing a core, or waits for a disk
_LOOK = 0.05  # seconds between two looks at whether something happened
_ASK = 5.0  # seconds for one question whether it is ready
_TAIL = 20  # lines of a log that an error shows
_TAIL_BYTES, _LINE = 65536, 300  # of which these are looked for; characters of a line


@dataclass(frozen=True, slots=True)
class Launch:
    """command: for the shell. env: the whole environment of the process. url: where it will listen. ready: seconds that it
    may take to be ready; grace: seconds from the request to end until it is killed."""

    command: str
    env: Mapping[str, str]
    url: str
    ready: float = 600.0
    grace: float = 30.0
    api_key: str | None = None


@asynccontextmanager
async def running(launch: Launch, log: Path) -> AsyncIterator[None]:
    """The server, ready, and at the end its processes gone and its port free again.

    Raises UsageError if something listens on the port already; ServerError, with the end of the log, if the server ends
    by itself, is not ready in time, or leaves its port taken.
    """
    if await _listens(launch.url):
        raise UsageError(
            f"something listens at {launch.url} already: end it, or name another port in --launch and --url"
        )
    with log.open("wb") as file:
        process = subprocess.Popen(
            launch.command,
            shell=True,  # as the user would type it
            env=dict(launch.env),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own: Ctrl-C here is not its business, and all of it can be ended
        )
    try:
        try:
            await _ready(launch, process, log)
            try:
                yield
            except ServerError as error:
                await asyncio.sleep(_LOOK)  # that it ended may be seen later than that it does not answer
                if process.poll() is None:
                    raise
                raise _ended(launch, process, log) from error
        finally:
            await _end(launch, process)
    finally:
        _kill(process)  # nothing is left of it, even if this was cancelled a second time
    await _free(launch)


async def _ready(launch: Launch, process: subprocess.Popen[bytes], log: Path) -> None:
    if launch.api_key:
        must_fit_a_header(launch.api_key)
    headers = {"Authorization": f"Bearer {launch.api_key}"} if launch.api_key else {}
    try:
        async with (
            asyncio.timeout(launch.ready),
            httpx.AsyncClient(timeout=_ASK, trust_env=False, headers=headers) as client,
        ):
            while not await _answers(client, _base(launch.url)):
                if process.poll() is not None:
                    raise _ended(launch, process, log)
                await asyncio.sleep(_LOOK)
    except TimeoutError:
        text = f"the server is not ready after {launch.ready:g} s (--ready-timeout); {_end_of(log)}"
        raise ServerError(text) from None
    if process.poll() is not None:  # another process answers there
        raise _ended(launch, process, log)


async def _answers(client: httpx.AsyncClient, base: str) -> bool:
    """/health says so; where there is no such route, a list of models."""
    try:
        health = await client.get(f"{base}/health")
        if health.status_code not in (404, 405, 501):
            return health.is_success
        return (await client.get(f"{base}/v1/models")).is_success
    except httpx.HTTPError:
        return False


async def _end(launch: Launch, process: subprocess.Popen[bytes]) -> None:
    """Asks all processes of the group to end, and kills those that have not within the grace period."""
    _signal(process, signal.SIGTERM)
    with suppress(TimeoutError):
        async with asyncio.timeout(launch.grace):
            while process.poll() is None or _members(process.pid):
                await asyncio.sleep(_LOOK)
    _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None or _members(process.pid):
        _signal(process, signal.SIGKILL)
        process.wait()
        end = time.monotonic() + _DYING
        while _members(process.pid) and time.monotonic() < end:  # only the first of the group can be waited for
            time.sleep(_LOOK / 10)


async def _free(launch: Launch) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(launch.grace):
            while await _listens(launch.url):
                await asyncio.sleep(_LOOK)
            return
    raise ServerError(
        f"the server has ended, and something still listens at {launch.url}: a process that left its group?"
    )


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # all of it has ended
        os.killpg(process.pid, number)


def _members(group: int) -> bool:
    """Whether a process of that group runs. One that has ended and that nobody waits for does not count."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            state, _, its_group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False


async def _listens(url: str) -> bool:
    host, port = _address(url)
    try:
        async with asyncio.timeout(_ASK):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


def _address(url: str) -> tuple[str, int]:
    """Raises UsageError for what is no address."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise UsageError(f"{url!r} is no address of a server, such as http://127.0.0.1:8000: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise UsageError(f"{url!r} is no address of a server, such as http://127.0.0.1:8000")
    if parsed.port is not None and not 1 <= parsed.port <= 65535:
        raise UsageError(f"{url!r} is no address of a server: a port is a number from 1 to 65535")
    return parsed.host, parsed.port or (443 if parsed.scheme == "https" else 80)


def _base(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


def _ended(launch: Launch, process: subprocess.Popen[bytes], log: Path) -> ServerError:
    return ServerError(
        f"the server ended by itself, with status {process.returncode}: {launch.command}; {_end_of(log)}"
    )


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()[-_TAIL:]
    lines = [line if len(line) <= _LINE else f"{line[:_LINE]}…" for line in lines]
    return f"the end of {log}:\n" + "\n".join(lines) if lines else f"{log} is empty: it wrote nothing"
