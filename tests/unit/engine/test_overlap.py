"""Steps that begin before the tokens of the one before are known: the same answers, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from queueproof.contract.errors import EngineError
from queueproof.engine.async_engine import AsyncEngine
from queueproof.engine.config import EngineConfig
from queueproof.engine.engine import Engine
from queueproof.engine.llm import LLM
from queueproof.engine.outputs import RequestOutput
from queueproof.engine.protocols import LoadedModel
from queueproof.engine.sampling_params import SamplingParams
from tests.support.fake_backend import load_fake
from tests.support.hasty import wait_for_no_token
from tests.support.late_backend import load_late
from tests.support.simulation import Found, answers, fake_alone, late_model, simulate

pytestmark = pytest.mark.xdist_group("schedules")  # they share the answers computed alone
GREEDY = SamplingParams(temperature=0, seed=0, max_tokens=12, ignore_eos=True)
KINDS = pytest.mark.parametrize("eager", [False, True], ids=["late", "eager"])


def search(seeds: Iterable[int], model: LoadedModel) -> Found:
    """Random schedules of an asynchronous model against the synchronous one, a request at a time."""
    found = Found()
    for seed in seeds:
        simulate(seed, model, fake_alone(), found)
    return found


@KINDS
@pytest.mark.parametrize(
    "seeds",
    [range(0, 40), *(pytest.param(range(i, i + 80), marks=pytest.mark.slow) for i in (40, 120))],
    ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}",
)
def test_every_answer_equals_the_one_computed_alone(seeds: range, eager: bool) -> None:
    model = late_model(eager)
    found = search(seeds, model)
    assert not found.differences, "\n".join(found.differences[:3])
    # Witnesses: what the draws are meant to try did happen, and in steps that overlap.
    stats = found.stats
    assert found.compared > 150
    assert stats.overlapped_steps > 300
    assert stats.discarded_tokens > 8
    assert stats.preemptions >= 4
    assert stats.mixed_steps > 100
    assert stats.prefix_cache_hit_tokens > 300
    assert stats.guesses_accepted > 5
    assert found.aborted > 5 and found.siblings > 10 and found.stopped > 20 and found.nan_errors > 0
    assert sum(executor.referred for executor in model.backend.executors) > 1000
    assert (model.backend.waits > 1000) == (not eager)


@pytest.mark.parametrize("bug", ["stale", "shifted", "dropped"])
def test_a_device_that_takes_another_token_is_caught(bug: str) -> None:
    """Negative control."""
    found = search(range(16), late_model(bug=bug))
    assert len(found.differences) > found.compared // 10


def test_an_engine_that_does_not_wait_for_penalties_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    wait_for_no_token(monkeypatch)
    assert search(range(20), late_model()).differences


def engine(eager: bool = False, model: dict[str, Any] | None = None, **options: Any) -> Engine:
    return Engine(load_late(eager, **(model or {})), EngineConfig(**({"num_blocks": 64} | options)))


def run(e: Engine, *prompts: Any, params: SamplingParams = GREEDY) -> list[RequestOutput]:
    requests = [e.add_request(prompt, params) for prompt in prompts]
    while e.has_work:
        e.step()
        e.check_integrity()
    return [e.output(request) for request in requests]


def synchronous(*prompts: Any, params: SamplingParams = GREEDY, **options: Any) -> list[RequestOutput]:
    return run(Engine(load_fake(), EngineConfig(**({"num_blocks": 64} | options))), *prompts, params=params)


def same(one: list[RequestOutput], other: list[RequestOutput]) -> bool:
    scores = [[o.prompt_logprobs for o in outputs] for outputs in (one, other)]
    return [answers(o) for o in one] == [answers(o) for o in other] and scores[0] == scores[1]


@KINDS
def test_only_the_last_tokens_are_waited_for(eager: bool) -> None:
    e = engine(eager)
    outputs = run(e, [1] * 20, [2] * 30)
    assert same(outputs, synchronous([1] * 20, [2] * 30))
    # An end that can be foreseen costs nothing: no step is computed in vain.
    assert e.stats.steps == 12 and e.stats.overlapped_steps == 11 and e.stats.discarded_tokens == 0


@KINDS
def test_an_end_token_under_way_costs_one_step(eager: bool) -> None:
    end = synchronous([5, 6])[0].outputs[0].token_ids[3]
    params = SamplingParams(temperature=0, seed=0, max_tokens=12, stop_token_ids=[end], ignore_eos=True)
    e = engine(eager)
    outputs = run(e, [5, 6], params=params)
    assert same(outputs, synchronous([5, 6], params=params)) and outputs[0].outputs[0].finish_reason == "stop"
    assert e.stats.steps == 5 and e.stats.discarded_tokens == 1 and e.stats.generated_tokens == 4


@KINDS
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, seed=0, repetition_penalty=1.5, max_tokens=12, ignore_eos=True),
        SamplingParams(seed=1, frequency_penalty=0.5, presence_penalty=0.5, max_tokens=12, ignore_eos=True),
    ],
)
def test_penalties_wait_for_the_tokens_they_count(eager: bool, params: SamplingParams) -> None:
    e = engine(eager)
    assert same(run(e, [5, 6], [7] * 20, params=params), synchronous([5, 6], [7] * 20, params=params))
    assert e.stats.overlapped_steps == 0


@KINDS
def test_bias_bans_and_log_probabilities_do_not_wait(eager: bool) -> None:
    params = SamplingParams(
        temperature=0.7, seed=4, logit_bias={3: 4.0}, min_tokens=5, logprobs=3, prompt_logprobs=2, max_tokens=12
    )
    e = engine(eager)
    assert same(run(e, [5, 6], [7] * 20, params=params), synchronous([5, 6], [7] * 20, params=params))
    assert e.stats.overlapped_steps > 5


def test_a_step_of_several_draws_is_collected_at_once() -> None:
    params = SamplingParams(temperature=0, seed=0, prompt_logprobs=1, max_tokens=5, ignore_eos=True)
    e = engine(max_num_seqs=4)
    outputs = run(e, [5] * 3, [7] * 30, params=params)  # 31 rows to score, room for 4 at a time
    assert same(outputs, synchronous([5] * 3, [7] * 30, params=params))
    assert e.stats.steps == 5 and e.stats.overlapped_steps == 3


@KINDS
def test_more_sequences_than_fit_in_a_step(eager: bool) -> None:
    prompts = [[i] * 5 for i in range(10)]
    e = engine(eager, max_num_seqs=4, max_num_batched_tokens=3)
    assert same(run(e, *prompts), synchronous(*prompts))
    assert e.stats.overlapped_steps > 30


@KINDS
def test_no_one_is_preempted_for_blocks_that_a_step_under_way_sets_free(eager: bool) -> None:
    """The first sequence ends with the 16th token, when the second one needs another block."""
    short = SamplingParams(temperature=0, seed=0, max_tokens=3, ignore_eos=True)
    e = engine(eager, num_blocks=3, enable_prefix_caching=False)
    requests = [e.add_request([1] * 14, short), e.add_request([2] * 15, GREEDY)]
    while e.has_work:
        e.step()
        e.check_integrity()
    assert e.stats.preemptions == 0
    alone = [synchronous([1] * 14, params=short)[0], synchronous([2] * 15)[0]]
    assert same([e.output(r) for r in requests], alone)


@KINDS
def test_aborting_what_is_under_way(eager: bool) -> None:
    e = engine(eager)
    going, other = e.add_request([1] * 20, GREEDY), e.add_request([2] * 20, GREEDY)
    for _ in range(3):
        e.step()
    assert e.abort(going.request_id) is going
    e.check_integrity()
    known = e.output(going).outputs[0]
    assert known.finish_reason == "abort" and len(known.token_ids) == 2  # the third is under way
    again = e.add_request([1] * 20, GREEDY, request_id=going.request_id)  # takes over the blocks
    while e.has_work:
        assert going not in e.step()
        e.check_integrity()
    assert e.stats.discarded_tokens == 1
    assert same([e.output(again), e.output(other)], synchronous([1] * 20, [2] * 20))


def test_work_is_left_until_all_is_collected() -> None:
    e = engine()
    request = e.add_request([1] * 20, GREEDY)
    assert e.step() == [] and e.has_work
    e.abort(request.request_id)
    e.check_integrity()
    assert e.has_work  # a step is under way, for nobody
    assert e.step() == [] and not e.has_work and e.stats.discarded_tokens == 1


@pytest.mark.parametrize("end", ["close", "abandon"])
def test_ending_with_a_step_under_way(end: str) -> None:
    e = engine()
    e.add_request([1] * 20, GREEDY)
    e.step()
    e.step()
    getattr(e, end)()
    assert not e.has_work
    if end == "abandon":
        assert same(run(e, [1] * 20), synchronous([1] * 20))
    else:
        with pytest.raises(EngineError, match="closed"):
            e.step()


def test_it_can_be_switched_off() -> None:
    e = engine(async_scheduling=False)
    assert same(run(e, [1] * 20), synchronous([1] * 20)) and e.stats.overlapped_steps == 0
    e = engine(num_speculative_tokens=2)
    params = SamplingParams(temperature=0, seed=0, max_tokens=90, ignore_eos=True)
    outputs = run(e, [5, 9, 13], params=params)
    assert same(outputs, synchronous([5, 9, 13], params=params)) and e.stats.overlapped_steps == 0
    assert e.stats.guesses_proposed > 0


def test_the_cache_is_of_use_to_the_next_step_already() -> None:
    """Blocks are published once their ids are known; their keys may still be on the way."""
    prompt = [9] * 40
    e = engine()
    first = e.add_request(prompt, GREEDY)
    e.step()
    e.step()
    second = e.add_request(prompt, GREEDY)
    while e.has_work:
        e.step()
    assert e.output(second).num_cached_tokens == 32
    assert same([e.output(first), e.output(second)], synchronous(prompt, prompt))


def test_a_crash_on_the_device_shows_where_it_is_waited_for() -> None:
    expected = synchronous([1] * 20)
    answer = set(expected[0].outputs[0].token_ids)
    fatal = next(token for token in range(2, 60) if token not in answer)
    llm = LLM(load_late(crash_token=fatal), num_blocks=64)
    with pytest.raises(RuntimeError, match="crashed"):
        llm.generate([[1, fatal]], GREEDY)
    assert same(llm.generate([[1] * 20], GREEDY), expected)


@KINDS
def test_streams(eager: bool) -> None:
    async def main() -> list[list[RequestOutput]]:
        async with AsyncEngine(engine(eager)) as e:

            async def stream(prompt: list[int]) -> list[RequestOutput]:
                return [output async for output in e.generate(prompt, GREEDY)]

            return await asyncio.gather(*(stream([i] * 20) for i in (1, 2, 3)))

    streams = asyncio.run(main())
    assert same([outputs[-1] for outputs in streams], synchronous(*([i] * 20 for i in (1, 2, 3))))
    for outputs in streams:
        lengths = [len(output.outputs[0].token_ids) for output in outputs]
        assert lengths == sorted(set(lengths)) and lengths[-1] == 12
        assert "".join(o.outputs[0].delta_text for o in outputs) == outputs[-1].outputs[0].text
