"""Measurements of servers whose price, drift and noise are known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from queueproof.audit.ask import Cache, Cold
from queueproof.audit.price.measure import PriceFailed, Site, Wish, measure
from queueproof.audit.price.records import Metric, Outcome, PriceResult, Role
from queueproof.audit.records import Problem
from queueproof.contract.errors import ServerError
from tests.audit.price.simulated import PREFILL, STEP, Diary, Server
from tests.support import virtual_time

WISH = Wish(users=(1, 4), rounds=2, max_tokens=8, prompt_words=5)


def busy(users: int, now: float) -> float:
    return 1 + 0.1 * users


def priced(baseline: Server, candidate: Server, wish: Wish = WISH, diary: Diary | None = None) -> PriceResult:
    return virtual_time.run(measure(baseline, candidate, wish, diary or Diary()))


def price(result: PriceResult, metric: Metric, users: int) -> float:
    found = result.at(metric, users)
    assert found is not None and found.price is not None and found.low is not None and found.high is not None
    assert found.outcome is Outcome.MEASURED and found.low <= found.price <= found.high
    return found.price


def test_a_planted_price_is_found_at_each_number_of_users() -> None:
    slow = Server(lambda users, now: busy(users, now) * (1.5 if users == 1 else 1.25))
    result = priced(Server(busy), slow)
    assert result.told and not result.interrupted and result.notes == () and result.problems == ()
    for users, factor in ((1, 1.5), (4, 1.25)):
        assert price(result, Metric.TOKENS_PER_S, users) == pytest.approx(1 / factor)
        assert price(result, Metric.TTFT, users) == pytest.approx(factor)
        assert price(result, Metric.TPOT, users) == pytest.approx(factor)
    alone = result.at(Metric.TTFT, 1)
    assert alone is not None and alone.baseline == pytest.approx((PREFILL + STEP) * 1.1)
    assert PriceResult.from_json(result.to_json()) == result


def test_one_metric_alone_may_cost() -> None:
    """A slower prefill is in TTFT and not in TPOT, and in tokens/s by its share."""

    class LatePrefill(Server):
        async def ask(self, ask):  # type: ignore[no-untyped-def]
            answer = await super().ask(ask)
            await asyncio.sleep(PREFILL)
            late = tuple(at + PREFILL for at in answer.arrivals)
            return replace(answer, ttft=answer.ttft + PREFILL, arrivals=late, latency=answer.latency + PREFILL)

    result = priced(Server(), LatePrefill())
    assert price(result, Metric.TPOT, 1) == pytest.approx(1.0)
    assert price(result, Metric.TTFT, 1) == pytest.approx((2 * PREFILL + STEP) / (PREFILL + STEP))
    assert price(result, Metric.TOKENS_PER_S, 1) == pytest.approx((PREFILL + 8 * STEP) / (2 * PREFILL + 8 * STEP))


@pytest.mark.parametrize("seed", range(5))
def test_with_noise_the_interval_holds_the_price(seed: int) -> None:
    baseline, candidate = Server(noise=0.05), Server(lambda users, now: 1.4, noise=0.05)
    baseline._random.seed(seed)
    candidate._random.seed(seed + 100)
    result = priced(baseline, candidate, replace(WISH, rounds=4))
    found = result.at(Metric.TPOT, 4)
    assert found is not None and found.low is not None and found.high is not None
    assert found.low < 1.4 < found.high and found.high / found.low < 1.5


def test_a_server_that_becomes_slower_has_no_price() -> None:
    def tired(users: int, now: float) -> float:
        return 1 + 0.02 * now

    result = priced(Server(tired), Server(lambda users, now: 1.03 * tired(users, now)))
    found = result.at(Metric.TOKENS_PER_S, 4)
    assert found is not None and found.outcome is Outcome.NOISE and found.price is None and not result.told
    assert found.drift < 0.97, "what it became slower by is shown"
    assert found.seen == pytest.approx(1 / 1.03, abs=0.02)
    assert found.low is not None and found.high is not None and found.low < 1 / 1.03 < found.high
    much = priced(Server(tired), Server(lambda users, now: 4 * tired(users, now)))
    assert price(much, Metric.TPOT, 1) == pytest.approx(4.0, rel=0.05), "far above that"


def test_a_server_that_is_very_noisy_has_a_wide_interval_or_no_price() -> None:
    result = priced(Server(noise=0.4), Server(lambda users, now: 1.02, noise=0.4))
    found = result.at(Metric.TOKENS_PER_S, 1)
    assert found is not None and found.low is not None and found.high is not None
    assert found.high / found.low > 1.2 and found.low < 1 / 1.02 < found.high


def test_the_turns() -> None:
    baseline, candidate, diary = Server(), Server(), Diary()
    result = priced(baseline, candidate, diary=diary)
    assert [run.turn for run in result.runs] == [t for t in range(5) for _ in range(4)]
    assert all((run.role is Role.CANDIDATE) == bool(run.turn % 2) for run in result.runs)
    assert [(run.seed, run.users) for run in result.runs[:4]] == [(0, 1), (0, 4), (1, 1), (1, 4)]
    assert (baseline.visits, candidate.visits) == (4, 3), "a warm-up each, and three turns, two turns"
    assert diary.stages[:3] == ["warming up the baseline", "warming up the candidate", "baseline, turn 1 of 5"]
    ((rounds, runs, seconds),) = diary.plans
    assert (rounds, runs) == (2, 20) and len(diary.runs) == 20
    assert seconds == pytest.approx(sum(run.seconds for run in result.runs), rel=0.01)
    assert result.seconds == pytest.approx(seconds * 24 / 20, rel=0.01), "the warm-up is in neither"


def test_what_is_asked() -> None:
    baseline, candidate = Server(), Server()
    priced(baseline, candidate)
    assert len(baseline.asked) == (3 * 2 + 1) * 8, "at least four answers a run"
    asks = baseline.asked + candidate.asked
    assert all(a.exact_tokens and not a.logprobs and a.stream and a.cache is Cache.COLD for a in asks)
    texts = [a.prompt.messages[0][1] for a in asks if a.prompt.messages]
    assert len({text.split(":")[0] for text in texts}) == len(texts), "no two begin alike: nothing is in a cache"
    bodies = [text.split(":")[-1] for text in texts]
    assert {len(text.split()) for text in texts} == {8 + 7 + 5}
    assert set(bodies[:56]) == set(bodies[56:]), "the same words to both"


def test_a_cache_that_a_route_empties_is_emptied_before_each_run() -> None:
    baseline = Server(cold_by=Cold.RESET)
    priced(baseline, Server())
    assert baseline.forgot == (3 * 2 + 1) * 2
    free = Server(cold_by=None)
    priced(free, Server())
    assert {ask.cache for ask in free.asked} == {Cache.FREE} and free.forgot == 0


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 2), (13.0, 5), (1e6, 8)])
def test_there_are_as_many_rounds_as_there_is_time_for(seconds: float, rounds: int) -> None:
    """A turn of either side is 4 x 0.1 s and 0.1 s, twice."""
    diary = Diary()
    result = priced(Server(), Server(), replace(WISH, rounds=None, seconds=seconds), diary)
    assert result.plan.rounds == rounds and diary.plans[0][0] == rounds
    assert any("are the least" in stage for stage in diary.stages) == (seconds == 0.0)


def test_servers_that_are_started_for_each_turn() -> None:
    baseline, candidate, diary = Server(starts=30.0), Server(lambda users, now: 2.0, starts=30.0), Diary()
    result = priced(baseline, candidate, replace(WISH, rounds=None, repeats=3), diary)
    assert (baseline.visits, candidate.visits) == (2, 1) and result.plan.rounds == 1
    assert diary.stages[:2] == ["warming up the baseline", "baseline, turn 1 of 3"]
    assert diary.stages.count("warming up the baseline") == 2, "after each start"
    assert price(result, Metric.TOKENS_PER_S, 4) == pytest.approx(0.5)
    found = result.at(Metric.TPOT, 1)
    assert found is not None and found.pairs == 6
    assert any("one round" in note for note in result.notes)
    assert diary.plans[0][:2] == (1, 36) and diary.plans[0][2] > 60.0


def test_a_start_that_goes_otherwise_is_in_the_interval() -> None:
    """The second start of the baseline is 10% slower, whatever the reason: the price is no surer than that."""
    baseline = Server(starts=1.0)
    baseline.slower = lambda users, now: 1.1 if baseline.visits > 1 else 1.0
    result = priced(baseline, Server(lambda users, now: 1.5, starts=1.0), replace(WISH, rounds=1))
    found = result.at(Metric.TPOT, 1)
    assert found is not None and found.low is not None and found.high is not None
    assert found.drift == pytest.approx(1.1) and found.low < 1.5 / 1.1 and found.high > 1.5
    assert found.outcome is Outcome.MEASURED


def test_a_run_with_trouble_is_made_again() -> None:
    baseline = Server(fails=lambda number: number == 20)
    result = priced(baseline, Server(lambda users, now: 2.0))
    assert result.told and any("1 times a run met trouble" in note for note in result.notes)
    assert [(p.kind, p.count) for p in result.problems] == [("500", 1)]
    assert price(result, Metric.TPOT, 4) == pytest.approx(2.0)


def test_a_run_in_which_the_client_had_to_send_again_is_made_again() -> None:
    class Limited(Server):
        """Answers all; its client was told to wait, in the first two of these runs."""

        def problems(self) -> tuple[Problem, ...]:
            return (Problem("429", sum(len(self.asked) >= number for number in (20, 24)), "slow down"),)

    result = priced(Limited(), Server(lambda users, now: 2.0))
    assert any("1 times a run met trouble" in note for note in result.notes)
    assert any("1 runs met trouble again" in note for note in result.notes) and len(result.runs) == 20
    assert [(p.kind, p.count) for p in result.problems] == [("429", 2)]


def test_a_server_that_fails_for_good() -> None:
    """Before the first run it is an error; later, one with what was measured."""
    with pytest.raises(ServerError, match="it said 500") as early:
        priced(Server(fails=lambda number: True), Server())
    assert not isinstance(early.value, PriceFailed)
    with pytest.raises(PriceFailed, match="it said 500") as late:
        priced(Server(), Server(lambda users, now: 2.0, fails=lambda number: number > 30))
    result = late.value.result
    assert result.interrupted and price(result, Metric.TPOT, 1) == pytest.approx(2.0) and result.problems != ()
    assert "ended early" in result.notes[0] and result.at(Metric.TPOT, 1).pairs == 2  # type: ignore[union-attr]


def test_interrupted_it_keeps_what_was_measured() -> None:
    baseline, candidate = Server(), Server(lambda users, now: 2.0)

    async def main(seconds: float) -> PriceResult:
        task = asyncio.create_task(measure(baseline, candidate, replace(WISH, rounds=6), Diary()))
        await asyncio.sleep(seconds)
        task.cancel()
        return await task

    result = virtual_time.run(main(12.0))
    assert result.interrupted and result.told and 12 < len(result.runs) < 52
    found = result.at(Metric.TPOT, 4)
    assert found is not None and found.pairs in (4, 6, 8)
    with pytest.raises(asyncio.CancelledError):
        virtual_time.run(main(0.5))


def test_answers_that_end_early_and_those_of_one_piece_are_said() -> None:
    result = priced(Server(length=5), Server(lambda users, now: 2.0, length=5))
    assert any("80 of 80 answers ended before 8 tokens" in note for note in result.notes)
    whole = priced(Server(pieces=False), Server(lambda users, now: 2.0, pieces=False))
    assert any("in one piece" in note for note in whole.notes) and whole.at(Metric.TTFT, 1) is None
    assert price(whole, Metric.TOKENS_PER_S, 1) == pytest.approx(0.5)


def test_another_model_is_said() -> None:
    result = priced(Server(), Server(lambda users, now: 2.0, name="other"))
    assert any("the model m, the candidate other" in note for note in result.notes)


def test_answers_without_a_token() -> None:
    class Mute(Server):
        async def ask(self, ask):  # type: ignore[no-untyped-def]
            return replace(await super().ask(ask), completion_tokens=0)

    with pytest.raises(ServerError, match="empty"):
        priced(Mute(), Server())


def test_the_simulated_server_is_a_site() -> None:
    site: Callable[[], Site] = Server
    assert not site().fresh
