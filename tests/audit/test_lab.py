"""What was cut off is no company of what is asked next."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from queueproof.audit.ask import Answer, Ask
from queueproof.audit.book import Book
from queueproof.audit.client.trouble import Failure, Kind
from queueproof.audit.endpoint import Counters
from queueproof.audit.lab import Lab, Settings
from tests.support.scripted import Scripted, chat
from tests.support.virtual_time import run

STUBBORN = 4.0  # seconds in which the server goes on with what nobody waits for


class Deaf(Scripted):
    """Does not hear that a client is gone. The third ask takes long; alone: whether each that ended was alone."""

    def __init__(self, metrics: bool, trouble: bool) -> None:
        super().__init__()
        self.tells, self.fails = metrics, trouble
        self.until = 0.0
        self.number = 0
        self.alone: list[bool] = []

    async def ask(self, ask: Ask) -> Answer:
        now = asyncio.get_running_loop().time
        self.number += 1
        if self.number == 3:
            self.until = now() + STUBBORN
            if self.fails:
                raise Failure(Kind.TIMEOUT, "nothing came")
            await asyncio.sleep(60.0)
        began = now()
        await asyncio.sleep(STUBBORN + 0.5 if self.number == 1 else 0.1)
        self.alone.append(began >= self.until)
        answer = await super().ask(ask)
        return replace(answer, latency=now() - began)

    async def counters(self) -> Counters | None:
        busy = asyncio.get_running_loop().time() < self.until
        return Counters(running=float(busy)) if self.tells else None


@pytest.mark.parametrize("metrics", [True, False])
@pytest.mark.parametrize("trouble", [True, False])
def test_what_was_cut_off_is_no_company_of_what_is_asked_next(metrics: bool, trouble: bool) -> None:
    async def main() -> tuple[list[bool], float]:
        endpoint = Deaf(metrics, trouble)
        lab, book = Lab(endpoint, chat(6), Settings()), Book("test", "?", None)
        asks = [lab.greedy(prompt) for prompt in chat(6)]
        for ask in asks[:2]:
            await lab.alone(ask, "reference", book)
        try:
            async with asyncio.timeout(1.0):
                await lab.alone(asks[2], "reference", book)
        except TimeoutError:
            assert not trouble
        began = asyncio.get_running_loop().time()
        await lab.crowd(asks[3:5], "crowd", book)
        await lab.alone(asks[5], "reference", book)
        return endpoint.alone, asyncio.get_running_loop().time() - began

    alone, seconds = run(main())
    assert alone == [True] * 5 and 3.0 < seconds < 6.0


def test_a_server_that_never_rests_is_not_waited_for_without_end() -> None:
    async def main() -> float:
        endpoint = Deaf(metrics=True, trouble=True)
        lab, book = Lab(endpoint, chat(4), Settings()), Book("test", "?", None)
        for prompt in chat(3):
            await lab.alone(lab.greedy(prompt), "reference", book)
        endpoint.until = 1e9
        began = asyncio.get_running_loop().time()
        assert await lab.alone(lab.greedy(chat(4)[3]), "reference", book) is not None
        return asyncio.get_running_loop().time() - began

    assert 9.0 < run(main()) < 12.0
