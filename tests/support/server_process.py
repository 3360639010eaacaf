"""`queueproof serve` as a process of its own: started, asked, measured, stopped and killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

COMMAND = (sys.executable, "-m", "queueproof", "serve")
_URL = re.compile(r"http://[0-9.]+:(\d+)")


class ServerProcess:
    """Started by `with`, on a free port; killed at its end if it still runs.

    log: gets all that the process writes. receipts: the file that keeps them; None is one beside the log.
    """

    def __init__(self, model: str | Path, *options: str, log: Path, receipts: Path | None = None) -> None:
        kept = receipts or log.with_suffix(".sqlite")
        self._command = [*COMMAND, str(model), "--port", "0", "--receipts-path", str(kept), *options]
        self.log = log
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def text(self) -> str:
        """What the process has written so far."""
        return self.log.read_text(errors="replace")

    def __enter__(self) -> Self:
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=os.environ
            )
        try:
            self._await_ready(120.0)
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def rss(self) -> int:
        """Bytes of memory that the process has in use."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def stop(self, seconds: float = 60.0) -> int:
        """Asks it to end, as an operator does; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def kill(self) -> None:
        """kill -9: nothing is flushed and nothing is said."""
        if self.alive:
            self.process.kill()
        self.process.wait()

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60.0, **options)

    def counters(self) -> dict[str, float]:
        """The values of /metrics, by name and labels, and by the name alone their sum."""
        found: dict[str, float] = {}
        with self.client() as client:
            text = client.get("/metrics").raise_for_status().text
        for line in text.splitlines():
            if line and not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                found[series] = float(value)
                name = series.partition("{")[0]
                if name != series:
                    found[name] = found.get(name, 0.0) + float(value)
        return found

    def _await_ready(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.alive, f"the server ended with {self.process.returncode}:\n{self.text}"
            match = _URL.search(self.text)
            if match is not None:
                self.port = int(match[1])
                try:
                    if httpx.get(f"{self.url}/health", timeout=5.0).status_code == 200:
                        return
                except httpx.TransportError:
                    pass  # said before it listens
            time.sleep(0.05)
        raise AssertionError(f"the server is not ready after {seconds} s:\n{self.text}")
