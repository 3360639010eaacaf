"""The whole path, HTTP client included, on servers of the zoo whose paces are known."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from queueproof.audit.client.http import HttpEndpoint
from queueproof.audit.price.measure import Wish, measure
from queueproof.audit.price.records import Metric, Outcome, PriceResult
from queueproof.audit.price.sites import Standing
from tests.audit.price.simulated import Diary
from tests.support.virtual_time import VirtualLoop, run
from tests.support.zoo import Offer, Pace, Zoo

WISH = Wish(users=(1, 6), rounds=3, max_tokens=13, prompt_words=20)


class Varying:
    """A pace whose step is not always the same. step(now): seconds."""

    def __init__(self, step: Callable[[float], float]) -> None:
        self._step, self._rest = step, Pace()

    @property
    def step(self) -> float:
        return self._step(clock())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rest, name)


def clock() -> float:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop.time()


def priced(baseline: Zoo, candidate: Zoo, body: dict[str, Any] | None = None, wish: Wish = WISH) -> PriceResult:
    async def main() -> PriceResult:
        async with AsyncExitStack() as stack:
            sites = []
            for zoo, extra in ((baseline, None), (candidate, body)):
                client = HttpEndpoint.open("http://zoo", transport=zoo, extra_body=extra)
                sites.append(Standing(await stack.enter_async_context(client), extra))
            return await measure(sites[0], sites[1], wish, Diary())

    return run(main())


async def opening(zoo: Zoo) -> None:
    """What a client does before it is asked for anything."""
    async with HttpEndpoint.open("http://zoo", transport=zoo):
        pass


def varying(step: Callable[[float], float]) -> Zoo:
    return Zoo(pace=Varying(step))  # type: ignore[arg-type]


def test_a_slower_step_is_found() -> None:
    """TPOT is a step for each burst of tokens, so its ratio is that of the steps and what each request adds to them."""
    result = priced(Zoo(pace=Pace(0.012, prompt_token=0.0)), Zoo(pace=Pace(0.024, prompt_token=0.0)))
    assert result.told and result.notes == ()
    for users in (1, 6):
        tpot, rate = result.at(Metric.TPOT, users), result.at(Metric.TOKENS_PER_S, users)
        assert tpot is not None and rate is not None and tpot.price is not None and rate.price is not None
        added = 1e-4 * users
        assert tpot.price == pytest.approx((0.024 + added) / (0.012 + added), rel=0.02)
        assert rate.price == pytest.approx(1 / tpot.price, rel=0.02)
    assert (result.baseline.vendor, result.baseline.cold_by, result.baseline.model) == ("vllm", "cache_salt", "zoo")


def test_a_slower_prefill_is_in_the_time_to_the_first_token() -> None:
    result = priced(Zoo(pace=Pace(prompt_token=1e-4)), Zoo(pace=Pace(prompt_token=1e-3)))
    ttft, tpot = result.at(Metric.TTFT, 1), result.at(Metric.TPOT, 1)
    assert ttft is not None and tpot is not None and ttft.price is not None and ttft.price > 1.5
    assert tpot.seen == pytest.approx(1.0, abs=0.01)


def test_nothing_is_in_the_cache_and_answers_are_of_one_length() -> None:
    zoo, opened = Zoo(), Zoo()
    run(opening(opened))
    result = priced(zoo, Zoo(pace=Pace(step=0.03)), {"determinism": "portable"})
    assert result.candidate.body == '{"determinism": "portable"}'
    assert zoo.engines[0].hits == opened.engines[0].hits and zoo.engines[0].most == 6
    assert sum(run.short for run in result.runs) == 0
    assert all(run.tokens == run.requests * 13 and run.prompt_tokens > 20 * run.requests for run in result.runs)


def test_fields_of_a_side_are_in_each_of_its_requests() -> None:
    baseline, candidate = Zoo(), Zoo(pace=Pace(step=0.03))
    priced(baseline, candidate, {"determinism": "portable"}, Wish(users=(1,), rounds=1, max_tokens=4, prompt_words=2))
    assert all(body.get("determinism") == "portable" for body in candidate.asks)
    assert not any("determinism" in body for body in baseline.asks)


def test_a_machine_that_becomes_slower_gives_no_price() -> None:
    result = priced(varying(lambda now: 0.012 + 0.0005 * now), varying(lambda now: 0.0124 + 0.0005 * now))
    found = result.at(Metric.TOKENS_PER_S, 6)
    assert found is not None and found.outcome is Outcome.NOISE and found.drift < 0.95 and not result.told


def test_a_noisy_machine_gives_an_interval_that_holds_the_price() -> None:
    """Each second of it goes otherwise than the one before."""

    def noisy(factor: float) -> Callable[[float], float]:
        return lambda now: factor * 0.012 * (1 + 0.3 * random.Random(int(now)).random())

    result = priced(varying(noisy(1.0)), varying(noisy(2.0)))
    found = result.at(Metric.TPOT, 1)
    assert found is not None and found.low is not None and found.high is not None
    assert found.low < 2.0 < found.high and found.high / found.low > 1.05


def test_a_server_that_cannot_go_on_beyond_the_end() -> None:
    offer = Offer(vendor="transformers", strict=True, salt=False, reset=False, logprobs=False, ids=False)
    result = priced(Zoo(offer=offer), Zoo(offer=offer, pace=Pace(step=0.03)))
    assert any("answers ended before 13 tokens" in note for note in result.notes)
    assert result.baseline.cold_by == "unique prefix"
