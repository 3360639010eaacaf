"""The zoo and the virtual clock, on which the audit's tests stand."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from tests.support.virtual_time import run
from tests.support.zoo import PLANTED, Faults, Pace, Zoo
from tests.support.zoo.model import after, step, template, text_of, tokenize

ASK = {"model": "zoo", "messages": [{"role": "user", "content": "which way"}], "temperature": 0, "max_tokens": 24}


def test_the_clock_jumps_and_waits_for_nothing() -> None:
    async def main() -> float:
        async with asyncio.timeout(4000):
            await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(1800))
        return asyncio.get_running_loop().time()

    began = time.perf_counter()
    assert run(main()) == pytest.approx(3600)
    assert time.perf_counter() - began < 1.0


def test_the_clock_shows_timeouts() -> None:
    async def main() -> None:
        async with asyncio.timeout(5):
            await asyncio.sleep(6)

    with pytest.raises(TimeoutError):
        run(main())


def test_a_state_depends_on_the_tokens_and_not_on_how_they_came() -> None:
    ids = template([("user", "which way")])
    assert after(ids[3:], after(ids[:3], 1)) == after(ids, 1) != after(ids, 2)
    assert tokenize(text_of(step(5).ids[0])) == step(5).ids[:1]


def test_margins_have_near_ties_as_small_models_do() -> None:
    margins = [step(state).logprobs[0] - step(state).logprobs[1] for state in range(20_000)]
    assert 0.001 < sum(margin < 0.01 for margin in margins) / len(margins) < 0.005


async def answers(zoo: Zoo, count: int, **more: object) -> list[httpx.Response]:
    async with httpx.AsyncClient(transport=zoo, base_url="http://zoo") as client:
        asks = [client.post("/v1/chat/completions", json=ASK | more) for _ in range(count)]
        return list(await asyncio.gather(*asks))


def texts(zoo: Zoo, count: int, **more: object) -> set[str]:
    return {answer.json()["choices"][0]["message"]["content"] for answer in run(answers(zoo, count, **more))}


def test_a_crowd_gives_one_answer_unless_a_fault_is_planted() -> None:
    alone = texts(Zoo(), 1)
    zoo = Zoo()
    assert texts(zoo, 12) == alone and zoo.engines[0].most == 12
    assert texts(Zoo(Faults(batch_from=2, scale=3.0)), 12) != alone
    assert texts(Zoo(Faults(batch_from=13, scale=3.0)), 12) == alone
    assert len(texts(Zoo(PLANTED["replicas"][0]), 12)) == 2


def test_seeds() -> None:
    assert len(texts(Zoo(), 6, temperature=1.0, seed=7)) == 1
    assert len(texts(Zoo(), 6, temperature=1.0)) > 1
    assert len(texts(Zoo(Faults(seed_ignored=True)), 6, temperature=1.0, seed=7)) > 1


def test_slots_make_the_others_wait() -> None:
    zoo = Zoo(pace=Pace(slots=2))
    run(answers(zoo, 5))
    assert zoo.engines[0].most == 2


def test_a_request_that_is_given_up_leaves_its_slot() -> None:
    async def main() -> int:
        zoo = Zoo(pace=Pace(slots=1))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.03):
                await answers(zoo, 1)
        (answer,) = await answers(zoo, 1)
        return answer.status_code

    assert run(main()) == 200
