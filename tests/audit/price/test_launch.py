"""Servers that are started for a measurement: real processes, of the standard library."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from queueproof.audit.price.launch import Launch, running
from queueproof.contract.errors import ServerError, UsageError

SERVER = Path(__file__).parents[2] / "support" / "fake_server.py"


@pytest.fixture
def port() -> int:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def launch(port: int) -> Callable[..., Launch]:
    def make(*options: str, before: str = "", ready: float = 20.0, grace: float = 10.0) -> Launch:
        command = f"{before}{sys.executable} -I {SERVER} {port} {' '.join(options)}"
        return Launch(command, {"PATH": os.defpath}, f"http://127.0.0.1:{port}", ready, grace)

    return make


def started(launch: Launch, log: Path, inside: Callable[[], None] = lambda: None) -> None:
    async def run() -> None:
        async with running(launch, log):
            inside()

    asyncio.run(run())


def gone(pid: int) -> bool:
    """Ended, or at least no more than a name that nobody has asked for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def test_a_server_is_awaited_and_ended(launch: Callable[..., Launch], tmp_path: Path) -> None:
    log = tmp_path / "log"
    asked: list[int] = []
    it = launch("ready=0.3")
    began = time.monotonic()
    started(it, log, lambda: asked.append(httpx.get(it.url + "/health").status_code))
    assert asked == [200] and time.monotonic() - began > 0.3
    assert "starting with a step of 0.001 s" in log.read_text()
    with pytest.raises(httpx.ConnectError):
        httpx.get(it.url)
    started(it, log)  # its port is free for the next one


def test_the_environment_is_the_one_given(launch: Callable[..., Launch], tmp_path: Path) -> None:
    it = launch()
    started(replace(it, env={"FAKE_STEP": "0.25"}), tmp_path / "log")
    assert "step of 0.25 s" in (tmp_path / "log").read_text()


def test_a_server_without_a_health_route_is_ready_when_it_lists_models(
    launch: Callable[..., Launch], tmp_path: Path
) -> None:
    started(launch("health=0"), tmp_path / "log")


def test_a_server_that_ends_at_its_start(launch: Callable[..., Launch], tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"(?s)ended by itself, with status 3: .*no such weights"):
        started(launch("dies=start"), tmp_path / "log")
    with pytest.raises(ServerError, match="status 127.*log:"):
        started(replace(launch(), command="no-such-program"), tmp_path / "log")
    with pytest.raises(ServerError, match="status 0.*is empty: it wrote nothing"):
        started(replace(launch(), command="true"), tmp_path / "log")


def test_a_server_that_is_never_ready(launch: Callable[..., Launch], tmp_path: Path) -> None:
    it = launch("ready=60", ready=0.4)
    with pytest.raises(ServerError, match=r"(?s)not ready after 0.4 s \(--ready-timeout\).*starting"):
        started(it, tmp_path / "log")
    with pytest.raises(httpx.ConnectError):
        httpx.get(it.url)


def test_a_port_that_is_taken(launch: Callable[..., Launch], tmp_path: Path, port: int) -> None:
    with closing(socket.create_server(("127.0.0.1", port))), pytest.raises(UsageError, match="listens at .* already"):
        started(launch(), tmp_path / "log")
    assert not (tmp_path / "log").exists(), "nothing was started"


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://[::1"])
def test_what_is_no_address(url: str, launch: Callable[..., Launch], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no address of a server"):
        started(replace(launch(), url=url), tmp_path / "log")


def test_a_server_that_ignores_the_request_to_end_is_killed(launch: Callable[..., Launch], tmp_path: Path) -> None:
    it = launch("stubborn=1", grace=0.3)
    began = time.monotonic()
    started(it, tmp_path / "log")
    assert time.monotonic() - began > 0.3
    with pytest.raises(httpx.ConnectError):
        httpx.get(it.url)


def test_no_process_of_the_group_is_left(launch: Callable[..., Launch], tmp_path: Path) -> None:
    """A shell between, and a child that stays when its parent has ended."""
    log = tmp_path / "log"
    started(launch("child=1", before="true; ", grace=0.3), log)
    (line,) = [line for line in log.read_text().splitlines() if line.startswith("child")]
    assert gone(int(line.split()[1]))


def test_a_server_that_ends_in_the_midst(launch: Callable[..., Launch], tmp_path: Path) -> None:
    it = launch("dies=0")

    def ask() -> None:
        with pytest.raises(httpx.HTTPError):
            httpx.post(it.url + "/v1/chat/completions", json={})
        raise ServerError("cannot be asked")

    with pytest.raises(ServerError, match=r"(?s)ended by itself, with status 7.*out of memory, or so"):
        started(it, tmp_path / "log", ask)


def test_trouble_with_a_server_that_runs_is_no_end_of_it(launch: Callable[..., Launch], tmp_path: Path) -> None:
    def fail() -> None:
        raise ServerError("answers nonsense")

    with pytest.raises(ServerError, match="answers nonsense"):
        started(launch(), tmp_path / "log", fail)


@pytest.mark.parametrize("times", [1, 2])
def test_interrupted_it_is_ended_too(times: int, launch: Callable[..., Launch], tmp_path: Path) -> None:
    """The first time it may end in peace, the second time it is killed."""
    it = launch("stubborn=1", grace=0.3 if times == 1 else 60.0)

    async def serve() -> None:
        async with running(it, tmp_path / "log"):
            await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(serve())
        while b"ok" not in await asyncio.to_thread(answer_of, it.url):
            await asyncio.sleep(0.02)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.1)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    with pytest.raises(httpx.ConnectError):
        httpx.get(it.url)


def answer_of(url: str) -> bytes:
    try:
        return httpx.get(url + "/health").content
    except httpx.ConnectError:
        return b""


def test_of_a_long_log_only_the_end_is_read(launch: Callable[..., Launch], tmp_path: Path) -> None:
    command = f"{sys.executable} -c \"print('x' * 5_000_000); print('the end'); raise SystemExit(3)\""
    with pytest.raises(ServerError, match="status 3") as raised:
        asyncio.run(_run(replace(launch(), command=command), tmp_path / "log"))
    assert len(str(raised.value)) < 2000 and str(raised.value).endswith("the end")


async def _run(made: Launch, log: Path) -> None:
    async with running(made, log):
        pass
