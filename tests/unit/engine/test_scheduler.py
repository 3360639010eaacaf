"""The scheduler by itself: budget, chunks, admission, preemption, policies."""

from __future__ import annotations

from typing import Any

import pytest

from queueproof.contract.errors import EngineError
from queueproof.engine.kv.pool import BlockPool
from queueproof.engine.kv.prefix_index import PrefixIndex
from queueproof.engine.request import Request, Sequence, Status
from queueproof.engine.sampling_params import SamplingParams
from queueproof.engine.scheduler.core import Scheduler
from queueproof.engine.scheduler.policies import make_policy
from queueproof.engine.stats import EngineStats


def sequence(prompt: int | list[int], max_tokens: int = 8, **params: Any) -> Sequence:
    ids = list(range(prompt)) if isinstance(prompt, int) else prompt
    request = Request(
        "r",
        None,
        ids,
        SamplingParams(max_tokens=max_tokens, **params),
        seed=0,
        max_tokens=max_tokens,
        eos_ids=frozenset(),
        cache_root=b"root",
    )
    request.sequences.append(Sequence(request, 0, None))
    return request.sequences[0]


def scheduler(
    num_blocks: int = 100,
    *,
    budget: int = 64,
    beside_decode: int = 64,
    max_seqs: int = 8,
    guesses: int = 0,
    policy: str = "fcfs",
    cache: bool = True,
) -> Scheduler:
    pool = BlockPool(num_blocks, 16, PrefixIndex() if cache else None)
    return Scheduler(
        pool,
        make_policy(policy, 0),
        budget=budget,
        beside_decode=beside_decode,
        max_seqs=max_seqs,
        guesses=guesses,
        stats=EngineStats(),
    )


def run_step(s: Scheduler) -> list[int]:
    """One step in which every guess is wrong and token 1 is drawn; how much was scheduled for each sequence."""
    step = s.schedule()
    assert step is not None
    scheduled = [sequence.scheduled for sequence in step]
    for each in step:
        ends = each.computed + each.scheduled - each.guesses == each.length
        each.computed += each.scheduled - each.guesses
        if ends:
            each.append(1, -1.0, 1.0)
        s.publish(each)
    s.check_integrity()
    return scheduled


def end(s: Scheduler, each: Sequence) -> None:
    each.finish("length")
    s.remove([each])
    s.check_integrity()


def test_long_prompts_are_cut_and_share_a_step_with_decode() -> None:
    s = scheduler(budget=10)
    s.add(sequence(4))
    s.add(sequence(25))
    assert run_step(s) == [4, 6]
    assert run_step(s) == [1, 9]
    assert run_step(s) == [1, 9]
    assert run_step(s) == [1, 1]


def test_decodes_come_before_prefill() -> None:
    s = scheduler(budget=4)
    s.add(sequence(30))
    s.add(sequence(1))
    s.running.append(s.waiting.pop(1))  # as if it had been admitted first
    first = s.running[0]
    first.status, first.blocks, first.row = Status.RUNNING, s.pool.allocate(1), s._free_rows.pop()
    assert run_step(s) == [1, 3]


def test_no_more_sequences_than_asked_for() -> None:
    s = scheduler(max_seqs=2)
    for _ in range(3):
        s.add(sequence(4))
    assert run_step(s) == [4, 4]
    assert len(s.waiting) == 1


def test_a_budget_below_the_number_of_sequences() -> None:
    s = scheduler(budget=2)
    for _ in range(3):
        s.add(sequence(1))
    assert run_step(s) == [1, 1]
    assert run_step(s) == [1, 1]
    assert len(s.running) == 2 and len(s.waiting) == 1


def test_admission_waits_for_blocks_of_the_whole_prompt() -> None:
    s = scheduler(num_blocks=4, cache=False)
    s.add(sequence(40))
    s.add(sequence(17))
    assert run_step(s) == [40]
    end(s, s.running[0])
    assert run_step(s) == [17]


def test_the_last_admitted_gives_way_and_comes_first_again() -> None:
    s = scheduler(num_blocks=4, cache=False)
    first, second, third = sequence(31), sequence(31), sequence(3)
    for each in (first, second, third):
        s.add(each)
    assert run_step(s) == [31, 31]
    assert run_step(s) == [1, 1]  # the blocks are full now
    assert run_step(s) == [1]
    assert s.stats.preemptions == 1
    assert s.waiting == [second, third] and not second.blocks and second.computed == 0 and second.length == 33
    end(s, first)
    assert run_step(s) == [33, 3]


def test_guesses_never_take_blocks_from_others() -> None:
    text = [1, 2, 3, 4] * 4
    s = scheduler(num_blocks=2, guesses=4, cache=False)
    s.add(sequence(text[:14], max_tokens=10))
    s.add(sequence(text[:14], max_tokens=10))
    for each in s.waiting:
        each.tokens[:14] = text[:14]
    run_step(s)
    for each in s.running:  # as if 3 had been drawn, so that 4, 1, 2, 3 is the guess
        each.tokens[14] = 3
    assert [(q.scheduled, q.guesses) for q in s.schedule() or ()] == [(1, 0), (1, 0)]
    assert s.stats.preemptions == 0


def test_guesses_stop_before_the_last_token() -> None:
    s = scheduler(guesses=8)
    s.add(sequence([1, 1, 1, 1], max_tokens=3))
    run_step(s)
    s.schedule()
    assert s.running[0].guesses == 1  # one token is there, one will be drawn, one more after a right guess


def test_a_cached_beginning_is_not_computed_again() -> None:
    s = scheduler()
    s.add(sequence(40))
    assert run_step(s) == [40]
    s.add(sequence(40))
    assert run_step(s) == [1, 8]
    assert s.running[1].blocks[:2] == s.running[0].blocks[:2]
    assert s.stats.prefix_cache_hit_tokens == 32 and s.stats.prefix_cache_query_tokens == 80


def test_the_last_token_is_always_computed() -> None:
    s = scheduler()
    s.add(sequence(32))
    run_step(s)
    s.add(sequence(32))
    assert run_step(s) == [1, 16]


def test_prompt_logprobs_need_the_whole_prompt() -> None:
    s = scheduler()
    s.add(sequence(40))
    run_step(s)
    s.add(sequence(40, prompt_logprobs=1))
    assert run_step(s) == [1, 40]


@pytest.mark.parametrize(("policy", "order"), [("fcfs", [5, 9, 3]), ("longest-first", [9, 5, 3])])
def test_policies(policy: str, order: list[int]) -> None:
    s = scheduler(policy=policy)
    for length in (5, 9, 3):
        s.add(sequence(length))
    assert run_step(s) == order


def test_prompts_are_read_slowly_beside_decodes_and_fast_without() -> None:
    s = scheduler(num_blocks=64, budget=64, beside_decode=8, cache=False)
    s.add(sequence(100))
    assert run_step(s) == [64] and run_step(s) == [36]
    s.add(sequence(30))
    s.add(sequence(3))
    assert run_step(s) == [1, 8] and run_step(s) == [1, 8]  # what is admitted first is read first
    assert run_step(s) == [1, 8] and run_step(s) == [1, 6, 2]
    assert run_step(s) == [1, 1, 1]


def test_as_many_tokens_of_prompts_as_decodes() -> None:
    s = scheduler(num_blocks=64, budget=64, beside_decode=2, cache=False)
    for _ in range(6):
        s.add(sequence(4))
    s.add(sequence(40))
    assert run_step(s) == [4] * 6 + [40]
    s.add(sequence(40))
    assert run_step(s) == [1] * 7 + [7]
    assert run_step(s) == [1] * 7 + [7]


def test_random_order_is_drawn_from_the_seed() -> None:
    orders = []
    for seed in (1, 1, 2, 3):
        s = Scheduler(
            BlockPool(100, 16, None),
            make_policy("random", seed),
            budget=640,
            beside_decode=640,
            max_seqs=20,
            guesses=0,
            stats=EngineStats(),
        )
        for length in range(1, 16):
            s.add(sequence(length))
        orders.append(run_step(s))
    assert orders[0] == orders[1] and len({tuple(order) for order in orders}) == 3
    assert sorted(orders[0]) == list(range(1, 16))


def test_a_sequence_that_cannot_fit_is_an_error_and_not_a_deadlock() -> None:
    s = scheduler(num_blocks=1)
    s.add(sequence(17))
    with pytest.raises(EngineError, match="nothing to do"):
        s.schedule()


def fly(step: list[Sequence] | None) -> None:
    """A step begins: each of its sequences in decode has a token under way, which is row `i` of the draw."""
    assert step is not None
    for i, each in enumerate(step):
        each.computed += each.scheduled
        if each.computed == each.length + each.in_flight:
            each.in_flight, each.draw_row = each.in_flight + 1, i


def land(step: list[Sequence] | None) -> None:
    for each in step or ():
        each.in_flight -= 1
        each.draw_row = each.draw_row if each.in_flight else -1
        each.append(1, -1.0, 1.0)


def test_a_step_is_scheduled_while_another_is_under_way() -> None:
    s = scheduler()
    s.add(sequence(4, max_tokens=3))
    first = s.schedule()
    fly(first)
    second = s.schedule(settled=False)
    assert second is not None and [each.scheduled for each in second] == [1]
    fly(second)
    land(first)
    s.check_integrity()
    fly(s.schedule(settled=False))
    land(second)
    # Two tokens are known and the third, the last, is under way: nothing is left to compute.
    assert s.schedule(settled=False) == [] and s.has_work
    assert s.running[0].length == 6 and s.running[0].in_flight == 1
    s.check_integrity()


def test_no_one_is_preempted_while_a_step_is_under_way() -> None:
    s = scheduler(num_blocks=4, cache=False)
    s.add(sequence(31))
    s.add(sequence(31))
    first = s.schedule()
    fly(first)
    second = s.schedule(settled=False)
    fly(second)
    land(first)
    assert s.schedule(settled=False) is None and s.stats.preemptions == 0
    s.check_integrity()
    land(second)
    assert [each.scheduled for each in s.schedule() or ()] == [1] and s.stats.preemptions == 1


def test_only_blocks_of_known_tokens_are_published() -> None:
    s = scheduler()
    s.add(sequence(15))
    first = s.schedule()
    fly(first)
    fly(s.schedule(settled=False))  # computes the 16th token, whose id is under way
    [each] = s.running
    s.publish(each)
    assert each.computed == 16 and not each.published
    land(first)
    s.publish(each)
    assert each.published == 1
