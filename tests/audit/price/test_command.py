"""`queueproof price`: with a real process, of the standard library, as the server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from queueproof.audit.price.records import Metric, PriceResult
from queueproof.cli.main import app

SERVER = Path(__file__).parents[2] / "support" / "fake_server.py"
QUICK = ("--users", "1,2", "--max-tokens", "8", "--prompt-words", "4")


@pytest.fixture
def port() -> int:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def command(port: int, *options: str) -> str:
    return f"{sys.executable} -I {SERVER} {port} {' '.join(options)}"


def price(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["price", *arguments])


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Starts a server that runs until the end of the test; its address."""
    processes = []

    def start(port: int, step: float) -> str:
        env = {**os.environ, "FAKE_STEP": str(step)}
        processes.append(
            subprocess.Popen([sys.executable, "-I", str(SERVER), str(port)], env=env, stdout=subprocess.DEVNULL)
        )
        url = f"http://127.0.0.1:{port}"
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                httpx.get(url + "/health")
                return url
            except httpx.ConnectError:
                time.sleep(0.02)
        raise AssertionError("it does not listen")

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_a_server_started_without_with_and_without_again(port: int, tmp_path: Path) -> None:
    launch = ("--launch", command(port), "--env", "FAKE_STEP=0.008", "--url", f"http://127.0.0.1:{port}")
    result = price(*launch, *QUICK, "--repeats", "1", "--out", str(tmp_path), "--json")
    assert result.exit_code in (0, 3), result.output
    found = PriceResult.from_json((tmp_path / "price.json").read_text())
    assert json.loads(result.stdout) == json.loads(found.to_json())
    slower = found.at(Metric.TPOT, 1)
    assert slower is not None and slower.seen > 3, "8 ms a token, where it was 1 ms"
    assert found.candidate.env == ("FAKE_STEP=0.008",) and found.baseline.env == ()
    logs = [(tmp_path / f"{name}.log").read_text() for name in ("baseline-1", "candidate-1", "baseline-2")]
    assert ["step of 0.008 s" in log for log in logs] == [False, True, False]
    assert "about" in result.stderr and "3 turns" not in result.stderr
    assert "<svg" in (tmp_path / "price.html").read_text()


def test_two_servers_that_run(serve: Callable[..., str], port: int) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        other = int(free.getsockname()[1])
    urls = ("--baseline", serve(port, 0.001), "--candidate", serve(other, 0.008))
    result = price(*urls, *QUICK, "--rounds", "2")
    assert result.exit_code in (0, 3), result.output
    assert "TPOT" in result.stdout and "2 rounds" in result.stdout
    assert "The candidate's tokens/s / the baseline's:" in result.stdout


def test_a_server_that_cannot_be_asked(port: int) -> None:
    result = price("--baseline", f"http://127.0.0.1:{port}", "--candidate-field", "a=1", *QUICK)
    assert result.exit_code == 4 and "127.0.0.1" in result.stderr


def test_a_server_that_does_not_start(port: int, tmp_path: Path) -> None:
    launch = ("--launch", command(port, "dies=start"), "--env", "A=1", "--url", f"http://127.0.0.1:{port}")
    result = price(*launch, *QUICK, "--out", str(tmp_path))
    assert result.exit_code == 4 and "no such weights" in result.stderr


def test_a_server_that_dies_in_the_midst_leaves_what_was_measured(port: int, tmp_path: Path) -> None:
    launch = ("--launch", command(port, "dies=40"), "--env", "A=1", "--url", f"http://127.0.0.1:{port}")
    result = price(*launch, *QUICK, "--out", str(tmp_path))
    assert result.exit_code == 4 and "out of memory, or so" in result.stderr
    found = PriceResult.from_json((tmp_path / "price.json").read_text())
    assert found.interrupted and found.runs


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_shows_what_there_is_and_ends_the_server(number: int, port: int, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{port}"
    arguments = ["--launch", command(port), "--env", "A=1", "--url", url, *QUICK, "--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "queueproof", "price", *arguments, "--repeats", "500"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "turn 1 of 3" in line:
            break
    time.sleep(0.5)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "interrupted" in err and "ended early" in out
    assert PriceResult.from_json((tmp_path / "price.json").read_text()).interrupted
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name two servers"),
        (("--baseline", "http://a"), "are the same"),
        (("--baseline", "http://a", "--baseline-field", "a=1", "--candidate-field", "a=1"), "are the same"),
        (("--baseline", "http://a", "--env", "A=1"), "need --launch"),
        (("--launch", "x"), "are the same"),
        (("--launch", "x", "--baseline", "http://a", "--env", "A=1"), "starts both"),
        (("--launch", "x", "--env", "A"), "NAME=VALUE"),
        (("--baseline", "http://a", "--candidate-field", "a"), "NAME=VALUE"),
        (("--baseline", "http://a", "--candidate-field", "a=1", "--candidate-field", "a=2"), "each name once"),
        (("--baseline", "http://a", "--candidate", "http://b", "--users", "0"), "users"),
        (("--baseline", "http://a", "--candidate", "http://b", "--users", "2,x"), "users"),
        (("--baseline", "http://a", "--candidate", "http://b", "--users", "9" * 20), "from 1 to 10000"),
        (("--baseline", "http://a", "--candidate", "http://b", "--out", "/proc/none"), "name another folder"),
        (("--launch", "x", "--env", "A=1", "--url", "http://localhost:99999"), "a port is a number"),
        (("--baseline", "http://a", "--candidate", "http://b", "--budget", "5r"), "a time"),
    ],
)
def test_what_is_no_comparison(arguments: tuple[str, ...], message: str) -> None:
    result = price(*arguments)
    assert result.exit_code == 2 and message in result.stderr
