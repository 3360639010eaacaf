"""Audits of the zoo: every planted fault is found and rightly named, the clean endpoint raises no alarm, and where nothing
shows that a thing varied, nothing is said to hold."""

from __future__ import annotations

import random
import re

import pytest

from queueproof.audit import names
from queueproof.audit.names import Cause
from queueproof.audit.records import AuditRecord, ProbeResult, Verdict
from tests.support.zoo import CLEAN, PLANTED, Faults, Offer, Pace
from tests.support.zoo.audits import Small, audit

TEXT_ONLY = Offer(
    vendor="local", metrics=False, cached_tokens=False, ids=False, logprobs=False, prompt_logprobs=False, echo=False,
    salt=False, reset=False, tokenize=False, strict=True, id_prompts=False,
)  # fmt: skip
FINE = Pace(burst=1)  # each token is a piece, so that who began first can be seen


def found(record: AuditRecord) -> dict[str, str]:
    """Cause to certainty."""
    return {cause.name: cause.certainty.value for cause in record.causes}


def probe(record: AuditRecord, name: str) -> ProbeResult:
    return next(result for result in record.probes if result.name == name)


def groups(record: AuditRecord, name: str) -> dict[str, tuple[int, int]]:
    return {group.name: (group.changed, group.compared) for group in probe(record, name).groups}


def evidence(record: AuditRecord, cause: Cause) -> str:
    return " | ".join(next(c for c in record.causes if c.name == cause.value).evidence)


# The clean one


def test_everything_holds_at_the_clean_one_each_with_its_witness() -> None:
    record = audit(CLEAN, pace=FINE, plan=Small(max_tokens=24))
    assert {r.name: (r.verdict, r.reason) for r in record.probes if r.verdict is not Verdict.HOLDS} == {}
    assert all(w.moved for r in record.probes for w in r.witnesses)
    assert record.causes == () and record.problems == ()


def _any_offer(rng: random.Random) -> Offer:
    """What the endpoint tells is not what it is."""
    if rng.random() < 0.1:
        return TEXT_ONLY
    return Offer(
        metrics=rng.random() < 0.7,
        usage=rng.random() < 0.8,
        cached_tokens=rng.random() < 0.7,
        ids=rng.random() < 0.7,
        logprobs=rng.random() < 0.8,
        prompt_logprobs=rng.random() < 0.7,
        salt=rng.random() < 0.6,
        reset=rng.random() < 0.5,
        tokenize=rng.random() < 0.7,
        whole=rng.random() < 0.1,
        caching=rng.random() < 0.8,
    )


@pytest.mark.slow
@pytest.mark.parametrize("block", range(8))
def test_no_false_alarm_on_the_clean_one_in_200_seeded_runs(block: int) -> None:
    for seed in range(25 * block, 25 * block + 25):
        rng = random.Random(seed)
        plan = Small(3, rng.randint(4, 60), rng.randint(6, 10), rng.choice([2, 3, 4, 6]))
        pace = Pace(
            step=rng.uniform(0.002, 0.05),
            burst=rng.randint(2, 4),
            budget=rng.choice([64, 256, 1024]),
            slots=rng.choice([2, 4, 64]),
            block=rng.choice([8, 16, 32]),
        )
        record = audit(CLEAN, _any_offer(rng), pace, plan, seed)
        alarms = [(r.name, r.reason) for r in record.probes if r.verdict in (Verdict.CHANGES, Verdict.FAILED)]
        assert (alarms, record.causes) == ([], ()), f"seed {seed}"


# Planted faults

# A start that is special is over before the floor is: with as many prompts as the requests that it lasts.
PLANS = {"first asks": Small(prompts=24)}


@pytest.mark.parametrize("name", PLANTED)
def test_every_planted_fault_is_found_and_rightly_named(name: str) -> None:
    faults, cause = PLANTED[name]
    record = audit(faults, plan=PLANS.get(name, Small()), seed=1)
    assert list(found(record)) == [cause.value]
    assert all(step for c in record.causes for step in c.next_steps)
    if name != "replicas untold":  # nothing but the answers tells these
        assert found(record) == {cause.value: "shown"}


def test_a_fault_from_8_at_once_is_not_seen_below_and_said_to_begin_there() -> None:
    record = audit(Faults(batch_from=8), plan=Small(users=24, prompts=12))
    assert groups(record, names.NEIGHBOURS)["2 users"] == (0, 12)
    assert groups(record, names.NEIGHBOURS)["8 users"][0] > 0
    assert "it begins between 2 and 8" in evidence(record, Cause.BATCH)


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_a_fault_at_a_boundary_is_found_at_that_distance(offset: int) -> None:
    record = audit(Faults(boundary=(offset,)))
    hot = {
        name for name, (changed, _) in groups(record, names.CACHE).items() if changed and name.startswith("boundary")
    }
    assert hot == {f"boundary {offset:+d}" if offset else "boundary 0"}
    assert list(found(record)) == [Cause.BOUNDARY.value]
    assert f"end {offset:+d} tokens from the boundary of a block of 16 tokens" in evidence(record, Cause.BOUNDARY)


def test_a_fault_of_the_first_crowds_is_gone_when_the_same_number_comes_again() -> None:
    record = audit(Faults(first_crowds=1), plan=Small(users=24, prompts=12))
    by_name = groups(record, names.NEIGHBOURS)
    assert by_name["2 users"][0] > 0 and by_name["24 users"][0] > 0
    assert by_name["2 users again"][0] == by_name["24 users again"][0] == 0
    assert found(record) == {Cause.WARM_UP.value: "shown"}


@pytest.mark.parametrize(
    "pair",
    [("batch", "cache"), ("batch of 8", "seed"), ("boundary", "whole"), ("mixed", "phase"), ("cache", "logprobs")],
)
def test_two_faults_are_both_found(pair: tuple[str, str]) -> None:
    (first, one), (second, other) = (PLANTED[name] for name in pair)
    changed = {
        f: getattr(x, f) for x in (first, second) for f in Faults.__slots__ if getattr(x, f) != getattr(CLEAN, f)
    }
    assert set(found(audit(Faults(**changed), seed=3))) == {one.value, other.value}


@pytest.mark.parametrize("name", ["batch", "cache", "seed", "whole", "replicas", "unstable"])
def test_faults_are_found_by_text_alone(name: str) -> None:
    faults, cause = PLANTED[name]
    loud = Faults(**{f: getattr(faults, f) for f in Faults.__slots__} | {"scale": 2.0})  # a text shows tokens alone
    assert list(found(audit(loud, TEXT_ONLY, plan=Small(prompts=12), seed=4))) == [cause.value]


# Witnesses


def _told_by_nothing(name: str) -> AuditRecord:
    """An endpoint in which that probe's thing does vary, but which shows nothing of it."""
    if name == names.CACHE:
        still = Offer(cached_tokens=False, metrics=False)
        return audit(CLEAN, still, Pace(prompt_token=0.0, budget=4096), Small(names=[name]))
    return audit(CLEAN, Offer(metrics=False, whole=True), plan=Small(names=[name]))


WITNESSED = [names.NEIGHBOURS, names.ORDER, names.LOAD, names.LENGTHS, names.CACHE, names.SEEDS, names.STREAM]


@pytest.mark.parametrize("name", WITNESSED)
def test_where_the_witness_is_withheld_it_is_inconclusive(name: str) -> None:
    result = probe(_told_by_nothing(name), name)
    assert result.compared > 0 and result.changed == 0
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "not shown" in result.reason


@pytest.mark.parametrize("name", [names.NEIGHBOURS, names.ORDER, names.LOAD, names.LENGTHS])
def test_a_server_that_takes_one_after_another_is_no_proof_of_anything(name: str) -> None:
    record = audit(CLEAN, pace=Pace(slots=1), plan=Small(names=[name]))
    assert probe(record, name).verdict is Verdict.INCONCLUSIVE


def test_a_cache_that_is_switched_off_is_not_said_to_hold() -> None:
    record = audit(CLEAN, Offer(caching=False), plan=Small(names=[names.CACHE]))
    result = probe(record, names.CACHE)
    assert result.verdict is Verdict.INCONCLUSIVE and "not shown" in result.reason


def test_a_change_counts_without_a_witness_but_its_cause_is_only_likely() -> None:
    record = audit(Faults(batch_from=2), Offer(metrics=False, whole=True), plan=Small())
    assert probe(record, names.NEIGHBOURS).verdict is Verdict.CHANGES
    assert found(record)[Cause.BATCH.value] == "likely"


def test_evidence_tells_numbers_of_the_record() -> None:
    record = audit(Faults(cache=True), seed=5)
    told = re.findall(r"(\d+) of (\d+) changed", evidence(record, Cause.CACHE))
    cache = probe(record, names.CACHE)
    warm = [g for g in cache.groups if g.name != names.COLD_AGAIN]
    assert (str(sum(g.changed for g in warm)), str(sum(g.compared for g in warm))) in told
