"""From a contract and results to clauses: what holds, what breaks, and what is not known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queueproof.audit import names
from queueproof.audit.gate.gate import Held, hold_to
from queueproof.audit.price.records import Comparison, Metric, Outcome, Plan, PriceResult, Side
from queueproof.audit.records import AuditRecord, Group, ProbeResult, Verdict, Witness
from queueproof.contract.axes import Axis
from tests.support.gated import ENDPOINT, RUN, contract, probe, record
from tests.support.zoo import Faults, Offer
from tests.support.zoo.audits import Small, audit

HOLDS, CHANGES, INCONCLUSIVE, FAILED = Verdict.HOLDS, Verdict.CHANGES, Verdict.INCONCLUSIVE, Verdict.FAILED
ALONE = probe(names.ALONE)
STILL = (Witness("1 ran at once", "/metrics", False, 1, 4),)


def held(text: str, found: AuditRecord) -> dict[str, Verdict]:
    return {clause.name: clause.verdict for clause in hold_to(contract(text), found).clauses}


def reason(text: str, found: AuditRecord, name: str) -> str:
    return next(clause.reason for clause in hold_to(contract(text), found).clauses if clause.name == name)


def test_a_class_is_its_axes_and_the_floor_under_them() -> None:
    probes = [probe(n) for n in ("alone", "neighbours", "order", "load", "lengths", "cache", "phase")]
    found = hold_to(contract("class: request"), record(*probes))
    assert [c.name for c in found.clauses] == ["alone", "neighbours", "order", "schedule", "cache", "phase"]
    assert found.verdict is HOLDS and found.exit_code == 0
    assert found.clauses[1].reason == "0 of 100 changed: at most 2.95% at 95%, by ids"


def test_one_change_breaks_a_promise() -> None:
    found = hold_to(contract("class: batch"), record(ALONE, probe(names.NEIGHBOURS, changed=1), probe(names.ORDER)))
    assert [c.verdict for c in found.clauses] == [HOLDS, CHANGES, HOLDS] and found.exit_code == 1


@pytest.mark.parametrize(
    "verdicts, worst, code",
    [
        ((HOLDS, HOLDS), HOLDS, 0),
        ((CHANGES, FAILED, INCONCLUSIVE), CHANGES, 1),
        ((FAILED, INCONCLUSIVE, HOLDS), FAILED, 4),
        ((INCONCLUSIVE, HOLDS), INCONCLUSIVE, 3),
    ],
)
def test_exit_codes(verdicts: tuple[Verdict, ...], worst: Verdict, code: int) -> None:
    made = {
        HOLDS: probe("x"),
        CHANGES: probe("x", changed=2),
        INCONCLUSIVE: probe("x", verdict=INCONCLUSIVE),
        FAILED: probe("x", 0, verdict=FAILED),
    }
    of = (names.ALONE, names.SEEDS, names.STREAM)
    results = [replace(made[verdict], name=name) for name, verdict in zip(of, verdicts, strict=False)]
    found = hold_to(contract(f"also: [{', '.join(of[: len(verdicts)])}]"), record(*results))
    assert (found.verdict, found.exit_code) == (worst, code)


@pytest.mark.parametrize(
    "result, says",
    [
        (probe("cache", verdict=INCONCLUSIVE, reason="not shown: it hit"), "not shown: it hit"),
        (probe("cache", 0, verdict=Verdict.NOT_RUN, reason="no route"), "was not run: no route"),
        (probe("cache", partial=True), "a larger --budget is needed"),
        (probe("cache", 58), "0 of 58 changed, which leaves room for 5.03%; to exclude 5% takes 59 comparisons"),
        (probe("cache", groups=(Group(names.COLD_AGAIN, 90, 0, 0, 0.0),)), "nothing but its control was compared"),
        (
            probe("cache", groups=(Group(names.COLD_AGAIN, 9, 2, 2, 0.0), Group(names.WHOLE, 90, 0, 0, 0.0))),
            "2 of 9 ch",
        ),
    ],
)
def test_what_is_not_shown_is_inconclusive(result: ProbeResult, says: str) -> None:
    found = record(ALONE, result)
    assert held("axes: [cache]", found) == {"alone": HOLDS, "cache": INCONCLUSIVE}
    assert says in reason("axes: [cache]", found, "cache")


def test_a_probe_that_is_not_in_the_run() -> None:
    assert reason("axes: [schedule]", record(ALONE, probe(names.LOAD)), "schedule").endswith("lengths: was not run")


def test_detect_is_the_share_that_may_stay_unseen() -> None:
    found = record(ALONE, probe(names.ORDER, 59))
    assert held("axes: [order]", found)["order"] is HOLDS
    assert held("axes: [order]\ndetect: 1%", found)["order"] is INCONCLUSIVE
    assert held("axes: [order]\ndetect: 12%", record(ALONE, probe(names.ORDER, 24)))["order"] is HOLDS


def test_what_changes_alone_too_is_not_blamed_on_an_axis() -> None:
    unstable = record(probe(names.ALONE, changed=30), probe(names.ORDER, changed=32), probe(names.CACHE, changed=90))
    assert held("axes: [order, cache]", unstable) == {"alone": CHANGES, "order": INCONCLUSIVE, "cache": CHANGES}
    assert "30 of 100 with nothing varied: not told apart" in reason("axes: [order, cache]", unstable, "order")


def test_what_changes_in_the_control_too_is_not_blamed_on_an_axis() -> None:
    groups = (Group(names.SHORT_BESIDE_SHORT, 20, 10, 10, 0.0), Group(names.SHORT_BESIDE_LONG, 20, 11, 11, 0.0))
    both = record(ALONE, probe(names.LOAD), probe(names.LENGTHS, groups=groups))
    assert held("axes: [schedule]", both)["schedule"] is INCONCLUSIVE
    clear = replace(groups[0], changed=0, tokens_changed=0), groups[1]
    assert (
        held("axes: [schedule]", record(ALONE, probe(names.LOAD), probe(names.LENGTHS, groups=clear)))["schedule"]
        is CHANGES
    )


def test_tokens_alone_may_be_promised() -> None:
    found = record(ALONE, probe(names.NEIGHBOURS, changed=40, tokens=0))
    assert held("axes: [neighbours]", found)["neighbours"] is CHANGES
    assert held("axes: [neighbours]\ncompare: tokens", found)["neighbours"] is HOLDS
    still = record(ALONE, probe(names.NEIGHBOURS, changed=40, tokens=0, witnesses=STILL))
    assert held("axes: [neighbours]\ncompare: tokens", still)["neighbours"] is INCONCLUSIVE
    some = record(ALONE, probe(names.NEIGHBOURS, changed=40, tokens=1))
    assert held("axes: [neighbours]\ncompare: tokens", some)["neighbours"] is CHANGES
    floor = record(probe(names.ALONE, changed=3, tokens=0, witnesses=()))
    assert held("also: [alone]\ncompare: tokens", floor)["alone"] is HOLDS
    phase = record(ALONE, probe(names.PHASE, changed=40, tokens=0))
    assert held("axes: [phase]\ncompare: tokens", phase)["phase"] is INCONCLUSIVE


def test_log_probabilities_that_are_not_there_are_not_promised() -> None:
    bare = record(ALONE, probe(names.ORDER), probe(names.LOGPROBS), endpoint=replace(ENDPOINT, abilities=("chat",)))
    text = "axes: [order]\nalso: [logprobs]"
    assert held(text, bare) == {"alone": INCONCLUSIVE, "logprobs": HOLDS, "order": INCONCLUSIVE}
    assert "there are no log-probabilities" in reason(text, bare, "order")
    assert set(held(text + "\ncompare: tokens", bare).values()) == {HOLDS}


def test_what_takes_two_endpoints() -> None:
    text = "axes: [parallelism, device]"
    one = record(ALONE)
    assert held(text, one) == {"alone": HOLDS, "parallelism": INCONCLUSIVE, "device": INCONCLUSIVE}
    assert "--against" in reason(text, one, "device")
    groups = (Group(names.THE_TWO, 80, 0, 0, 0.0), Group(names.THE_OTHER_TWICE, 20, 0, 0, 0.0))
    two = record(ALONE, probe(names.AGAINST, groups=groups), against=ENDPOINT)
    assert held(text, two) == {"alone": HOLDS, "parallelism": HOLDS, "device": HOLDS}
    bare = replace(two, against=replace(ENDPOINT, abilities=()))
    assert held(text, bare)["device"] is INCONCLUSIVE


PRICE = "price: {baseline: http://plain:8000, users: [1, 8], max_tpot_ratio: 1.5, min_throughput_ratio: 0.7}"


def priced(*comparisons: Comparison) -> PriceResult:
    side = Side("http://server:8000", "m", "vllm", "cache_salt")
    plan = Plan((1, 8), (0, 1), 3, 1, 16, 32, 0.95)
    return PriceResult("queueproof 0", RUN.started, 1.0, "a machine", side, side, plan, comparisons, (), False)


def compared(metric: Metric, users: int, low: float | None, high: float | None) -> Comparison:
    return Comparison(users, metric, Outcome.MEASURED, 1.0, 1.2, 1.2, 1.0, 6, low, high, 1.2)


def price_clauses(*comparisons: Comparison) -> dict[str, Any]:
    found: Held = hold_to(contract(PRICE), record(), priced(*comparisons))
    return {clause.name.removeprefix("price: "): (clause.verdict, clause.reason) for clause in found.clauses}


def test_a_price_ceiling_holds_where_the_whole_interval_is_within() -> None:
    found = price_clauses(
        compared(Metric.TPOT, 1, 1.1, 1.5),
        compared(Metric.TPOT, 8, 1.4, 1.6),
        compared(Metric.TOKENS_PER_S, 1, 0.5, 0.69),
        compared(Metric.TOKENS_PER_S, 8, None, None),
    )
    assert found == {
        "TPOT at 1 user": (HOLDS, "1.2 times (1.1 to 1.5)"),
        "TPOT at 8 users": (INCONCLUSIVE, "1.2 times (1.4 to 1.6): the limit is within the interval"),
        "throughput at 1 user": (CHANGES, "1.2 times (0.5 to 0.69)"),
        "throughput at 8 users": (INCONCLUSIVE, "1.2 times as seen; measured: no interval"),
    }
    assert price_clauses(compared(Metric.TPOT, 1, 1.51, 1.6))["TPOT at 1 user"][0] is CHANGES
    assert price_clauses(compared(Metric.TOKENS_PER_S, 1, 0.7, 0.9))["throughput at 1 user"][0] is HOLDS
    assert price_clauses(compared(Metric.TOKENS_PER_S, 1, 0.6, 0.7))["throughput at 1 user"][0] is INCONCLUSIVE


def test_a_price_that_was_not_measured() -> None:
    found = hold_to(contract(PRICE), record())
    assert found.exit_code == 3 and {c.reason for c in found.clauses} == {"was not measured"}
    assert found.clauses[0].promise == "TPOT at 1 user is at most 1.5 times that of http://plain:8000"


@pytest.mark.parametrize(
    "faults, offer, verdicts, code",
    [
        (Faults(), Offer(), [HOLDS, HOLDS, HOLDS, HOLDS], 0),
        (Faults(batch_from=2), Offer(), [HOLDS, CHANGES, CHANGES, HOLDS], 1),
        (Faults(), Offer(metrics=False, whole=True), [HOLDS, INCONCLUSIVE, INCONCLUSIVE, HOLDS], 3),
        (Faults(cache=True), Offer(), [HOLDS, HOLDS, HOLDS, CHANGES], 1),
    ],
)
def test_endpoints_of_the_zoo(faults: Faults, offer: Offer, verdicts: list[Verdict], code: int) -> None:
    text = "axes: [neighbours, order, cache]\ndetect: 25%"
    found = audit(faults, offer, plan=Small(names=contract(text).probes(), prompts=12))
    result = hold_to(contract(text), found)
    assert [clause.verdict for clause in result.clauses] == verdicts, result.clauses
    assert result.exit_code == code
    assert [clause.name for clause in result.clauses] == ["alone", Axis.NEIGHBOURS, Axis.ORDER, Axis.CACHE]
