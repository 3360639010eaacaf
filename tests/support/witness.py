"""A user among bad company: asks the same question again and again and looks whether the answer changes."""

from __future__ import annotations

import json
import threading
import time
from types import TracebackType
from typing import Any, Self

import httpx

QUESTION: dict[str, Any] = {
    "prompt": "the queue is no part of the answer",
    "max_tokens": 24,
    "temperature": 0,
    "ignore_eos": True,
    "logprobs": 2,
    "return_token_ids": True,
    "stream": True,
}
Answer = list[tuple[Any, Any]]


class Witness:
    """Asks on a thread of its own while the block runs. The answer before the block is the right one.

    longest_wait: seconds between two events of its streams, or until the first, at most.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self._options: dict[str, Any] = {"base_url": url, "timeout": 60.0}
        if key is not None:
            self._options["headers"] = {"Authorization": f"Bearer {key}"}
        self.different: list[Answer] = []
        self.errors: list[str] = []
        self.answers = 0
        self.longest_wait = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="witness")

    def __enter__(self) -> Self:
        with httpx.Client(**self._options) as client:
            self._right = self._ask(client)
        self.longest_wait = 0.0
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(60.0)

    def check(self) -> None:
        """After the block: it was asked at least once, and every answer was the right one."""
        assert not self.errors, self.errors
        assert not self.different, (self._right, self.different[0])
        assert self.answers

    def _run(self) -> None:
        with httpx.Client(**self._options) as client:
            while not self._stop.is_set():
                try:
                    answer = self._ask(client)
                except Exception as error:
                    self.errors.append(f"{type(error).__name__}: {error}")
                    return
                self.answers += 1
                if answer != self._right:
                    self.different.append(answer)
                self._stop.wait(0.02)

    def _ask(self, client: httpx.Client) -> Answer:
        found: Answer = []
        last = time.monotonic()
        with client.stream("POST", "/v1/completions", json=QUESTION) as response:
            if response.status_code != 200:
                raise AssertionError(f"{response.status_code} {response.read()!r}")
            for line in response.iter_lines():
                now = time.monotonic()
                self.longest_wait, last = max(self.longest_wait, now - last), now
                if line.startswith("data: {"):
                    for choice in json.loads(line.removeprefix("data: "))["choices"]:
                        logprobs = (choice["logprobs"] or {}).get("token_logprobs", [])
                        found += zip(choice.get("token_ids", []), logprobs, strict=True)
        assert len(found) == QUESTION["max_tokens"], found
        return found
