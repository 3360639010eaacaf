"""The cache probe on endpoints with a cache, with a fault in it, without one, and on those that say little."""

from __future__ import annotations

import random

import pytest

from queueproof.audit import names
from queueproof.audit.ask import Cache, Cold
from queueproof.audit.client.trouble import Failure, Kind
from queueproof.audit.probes.cache import CacheProbe
from queueproof.audit.records import ProbeResult, Verdict
from tests.support.scripted import Moment, Scripted, chat, result

WAYS = [Cold.SALT, Cold.FIELD, Cold.RESET, Cold.PREFIX, None]
MINUS, ZERO, PLUS = (f"boundary {offset}" for offset in ("-1", "0", "+1"))
UNTOLD = frozenset({"cached_tokens"})


def groups(found: ProbeResult) -> dict[str, tuple[int, int]]:
    return {group.name: (group.compared, group.changed) for group in found.groups}


@pytest.mark.parametrize("cold_by", WAYS)
@pytest.mark.parametrize("counts", [True, False])
def test_a_cache_that_changes_nothing_holds_with_hits_as_witness(cold_by: Cold | None, counts: bool) -> None:
    found = result(CacheProbe(), Scripted(cold_by=cold_by, counts=counts))
    control = names.COLD_AGAIN if cold_by in WAYS[:3] else names.WARM_AGAIN
    assert found.verdict is Verdict.HOLDS
    assert groups(found) == {
        names.WHOLE: (10, 0),
        control: (4, 0),
        names.PARTIAL: (4, 0),
        MINUS: (3, 0),
        ZERO: (3, 0),
        PLUS: (3, 0),
    }
    (witness,) = found.witnesses
    assert witness.source == "cached_tokens" and witness.value == 23
    assert [(s.name, s.unit, len(s.values)) for s in found.series] == [("TTFT cold", "s", 19), ("TTFT warm", "s", 19)]
    assert max(found.series[1].values) < max(found.series[0].values)


@pytest.mark.parametrize("cold_by", WAYS)
def test_a_fault_of_every_hit_changes_all_warm_groups_and_not_the_control(cold_by: Cold | None) -> None:
    found = result(CacheProbe(), Scripted(cold_by=cold_by, fault=lambda m: m.hit // 16))
    assert found.verdict is Verdict.CHANGES
    for name, (compared, changed) in groups(found).items():
        assert changed == (0 if name in (names.COLD_AGAIN, names.WARM_AGAIN) else compared), name


def test_a_fault_at_a_boundary_is_seen_there_alone() -> None:
    for offset, group in ((-1, MINUS), (0, ZERO), (1, PLUS)):

        def fault(moment: Moment, offset: int = offset) -> int:
            return int(moment.hit > 0 and (moment.length - offset) % 16 == 0)

        found = groups(result(CacheProbe(), Scripted(fault=fault), chat(8, words=30)))
        assert {name for name, (_, changed) in found.items() if changed} == {group}
        assert found[group] == (3, 3)


def test_where_the_block_is_a_guess_boundaries_of_larger_blocks_are_tried_too() -> None:
    lengths: set[int] = set()

    def look(moment: Moment) -> int:
        if moment.ask.prompt.kind == "boundary":
            lengths.add(moment.length)
        return 0

    found = result(CacheProbe(), Scripted(block_size=None, fault=look))
    assert {k * 16 + offset for k in (4, 8, 16) for offset in (-1, 0, 1)} <= lengths
    assert any("16 tokens (assumed)" in note for note in found.notes)


def test_prompts_too_short_for_a_block_are_made_longer() -> None:
    found = result(CacheProbe(), Scripted(block_size=128))
    assert found.verdict is Verdict.HOLDS and groups(found)[names.WHOLE] == (10, 0) and found.witnesses[0].value == 23


def test_hits_are_known_by_counters_where_answers_do_not_tell() -> None:
    found = result(CacheProbe(), Scripted(metrics=True, lacks=UNTOLD))
    assert found.verdict is Verdict.HOLDS and found.witnesses[0].source == "/metrics" and found.witnesses[0].value == 23


@pytest.mark.parametrize(("caching", "verdict"), [(True, Verdict.HOLDS), (False, Verdict.INCONCLUSIVE)])
def test_long_prompts_are_timed_where_nothing_tells_of_hits(caching: bool, verdict: Verdict) -> None:
    found = result(CacheProbe(), Scripted(caching=caching, lacks=UNTOLD), chat(4))
    assert found.verdict is verdict and groups(found)[names.WHOLE_LONG] == (8, 0)
    (witness,) = found.witnesses
    assert witness.source == "TTFT" and witness.needed == 1.3 and (witness.value > 5) is caching


def test_a_cache_that_is_off_is_inconclusive_and_soon_given_up() -> None:
    found = result(CacheProbe(), Scripted(caching=False))
    assert found.verdict is Verdict.INCONCLUSIVE and "prefix caching is off" in found.reason
    assert set(groups(found)) == {names.COLD_AGAIN, names.WHOLE_LONG} and found.requests < 32


def test_a_warm_ask_without_a_hit_counts_as_cold() -> None:
    """An unstable endpoint whose cache is off must not be said to have a fault in its cache."""
    found = groups(result(CacheProbe(), Scripted(caching=False, fault=lambda m: m.number)))
    assert found[names.COLD_AGAIN][1] > 0 and names.WHOLE not in found and names.PARTIAL not in found


def test_an_endpoint_that_says_nothing_is_compared_by_text_and_inconclusive() -> None:
    lacks = frozenset({"cached_tokens", "ids", "tokens", "logprobs", "margins", "prompt_tokens", "prompt_ids", "ttft"})
    found = result(CacheProbe(), Scripted(cold_by=None, block_size=None, lacks=lacks), chat(5))
    assert found.verdict is Verdict.INCONCLUSIVE and "neither cached_tokens nor counters" in found.reason
    assert any("does not tell how long a prompt is" in note for note in found.notes)
    assert any("no way to forget" in note for note in found.notes)


def test_rounds_and_runs_never_begin_alike() -> None:
    endpoint = Scripted(cold_by=Cold.PREFIX)
    result(CacheProbe(), endpoint, rounds=2)
    found = result(CacheProbe(), endpoint)
    assert found.verdict is Verdict.HOLDS and names.COLD_AGAIN not in groups(found)
    salted = Scripted()
    result(CacheProbe(), salted, rounds=2)
    primes = [ask for ask in salted.asks if ask.max_tokens == 1 and ask.cache is Cache.WARM]
    assert len({ask.namespace for ask in primes}) == len(primes) > 30


def test_trouble_is_counted_and_no_difference() -> None:
    endpoint = Scripted(trouble=lambda ask: Failure(Kind.REFUSED, "nobody listens"))
    found = result(CacheProbe(), endpoint)
    assert found.verdict is Verdict.FAILED and found.problems[0].kind == "refused" and not found.changed


def test_a_length_that_the_endpoint_counts_otherwise_is_mended_or_left_out() -> None:
    """A tokenizer that makes two tokens of some words: the answers' counts are what says the length."""

    for counts in (True, False):
        lengths: list[int] = []

        def look(moment: Moment, lengths: list[int] = lengths) -> int:
            if moment.ask.prompt.kind == "boundary" and moment.hit:
                lengths.append(moment.length)
            return 0

        endpoint = Scripted(fault=look, counts=counts, two_tokens=frozenset({"the", "word"}))
        found = groups(result(CacheProbe(lambda: random.Random(1)), endpoint, chat(24)))
        compared = {name: pair[0] for name, pair in found.items() if name.startswith(names.BOUNDARY)}
        assert sum(compared.values()) >= (18 if counts else 6)
        assert {(length + 8) % 16 - 8 for length in lengths} <= {-1, 0, 1}
