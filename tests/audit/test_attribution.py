"""The decision table: each row by hand, causes together, and that nothing is ever named for nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queueproof.audit import names
from queueproof.audit.attribution import TABLE, attribute
from queueproof.audit.names import Cause
from queueproof.audit.records import Certainty, Difference, ProbeResult, Witness
from queueproof.audit.vendors import VENDORS, next_steps
from tests.support.audit_results import cache, chosen, clean, difference, floor, identity, neighbours, result, with_

Named = dict[str, str]


def named(results: list[ProbeResult], **endpoint: object) -> Named:
    """Cause to certainty."""
    return {cause.name: cause.certainty.value for cause in attribute(results, identity(**endpoint))}  # type: ignore[arg-type]


def order(first: int, last: int) -> ProbeResult:
    return result(names.ORDER, (names.FIRST_IN_LINE, first, 24), (names.LAST_IN_LINE, last, 24))


def lengths(short: int, beside: int, long: int = 0) -> ProbeResult:
    return result(
        names.LENGTHS,
        (names.SHORT_BESIDE_SHORT, short, 24),
        (names.SHORT_BESIDE_LONG, beside, 24),
        (names.LONG_BESIDE_SHORT, long, 12),
    )


def seeds(alone: int, crowd: int) -> ProbeResult:
    return result(names.SEEDS, (names.SAME_SEED, alone, 12), (names.SAME_SEED_CROWD, crowd, 12))


def drift(**groups: int) -> ProbeResult:
    changed = {name.replace("_", " "): n for name, n in groups.items()}
    rest = 12 - sum(changed.values())
    return result(names.DRIFT, ("unchanged", 0, rest), *((name, n, n) for name, n in changed.items()))


def small(name: str, group: str, changed: int) -> ProbeResult:
    return result(name, (group, changed, 12))


def flips(make: object, count: int) -> tuple[object, ...]:
    return tuple(make(f"p{i}") for i in range(count))  # type: ignore[operator]


SHOWN: list[tuple[str, list[ProbeResult], Cause]] = [
    ("neighbours at all levels", with_(neighbours(two=8, eight=9, top=11, top_again=12, two_again=8)), Cause.BATCH),
    ("neighbours at 8 and more", with_(neighbours(eight=9, top=11, top_again=11)), Cause.BATCH),
    ("neighbours, and all that only shares their batch", with_(
        neighbours(two=8, eight=9, top=11, top_again=12, two_again=9),
        order(10, 11),
        result(names.LOAD, ("random arrivals", 12, 24)),
        lengths(11, 12, 6),
        seeds(0, 6),
    ), Cause.BATCH),
    ("first crowds", with_(neighbours(two=9)), Cause.WARM_UP),
    ("first crowds of each size", with_(neighbours(two=9, eight=8, top=9)), Cause.WARM_UP),
    ("first asks", with_(floor(second=6)), Cause.WARM_UP),
    ("last in line", with_(order(0, 12), neighbours(two=11, eight=12, top=13, top_again=13, two_again=10)), Cause.ORDER),
    ("order without neighbours", with_(result(names.ORDER, ("turned round", 9, 24))), Cause.ORDER),
    ("beside long prefills", with_(lengths(0, 10)), Cause.CHUNKING),
    ("long prefills themselves", with_(lengths(0, 0, 8)), Cause.CHUNKING),
    ("whole and partial", with_(cache(whole=12, partial=6, at=(2, 3, 3))), Cause.CACHE),
    ("at the boundary", with_(cache(at=(0, 6, 0))), Cause.BOUNDARY),
    ("at and after the boundary, elsewhere by chance", with_(cache(whole=1, at=(0, 6, 6))), Cause.BOUNDARY),
    ("phase", with_(small(names.PHASE, "decode against prefill", 12)), Cause.PHASE),
    ("seed", with_(seeds(12, 12)), Cause.SEED),
    ("seed in a crowd", with_(seeds(0, 10)), Cause.SAMPLER),
    ("logprobs", with_(small(names.LOGPROBS, "asked against not asked", 8)), Cause.LOGPROBS),
    ("stream", with_(small(names.STREAM, "stream against whole", 8)), Cause.STREAM),
    ("drift for good", with_(drift(changed_for_good=9)), Cause.REPLICA),
    ("against", with_(result(names.AGAINST, (names.THE_TWO, 20, 24), (names.THE_OTHER_TWICE, 0, 4))), Cause.REPLICA),
    ("at random", with_(floor(12, 11), drift(unstable=6)), Cause.UNSTABLE),
    ("sampler alone", with_(floor(6, 7, differences=flips(chosen, 13))), Cause.SAMPLER),
]  # fmt: skip


@pytest.mark.parametrize(("results", "cause"), [row[1:] for row in SHOWN], ids=[row[0] for row in SHOWN])
def test_shown_and_nothing_else(results: list[ProbeResult], cause: Cause) -> None:
    assert named(results) == {cause.value: "shown"}


def test_clean_has_no_cause() -> None:
    assert attribute(clean(), identity()) == ()
    assert attribute([], identity()) == ()


def test_every_row_of_the_table_is_tried_by_a_case_above_or_below() -> None:
    assert {row.cause for row in TABLE} == set(Cause)


LIKELY: list[tuple[str, list[ProbeResult], dict[str, object], Cause]] = [
    ("one change among many", with_(neighbours(top=1, top_again=1)), {}, Cause.BATCH),
    ("no witness", with_(
        result(names.NEIGHBOURS, ("24 users", 12, 24, 24.0), witness=Witness("?", "none", False, 0.0, 1.0))
    ), {}, Cause.BATCH),
    ("no floor", with_(result(names.ALONE), neighbours(top=12, top_again=12)), {}, Cause.BATCH),
    ("load, without neighbours", with_(
        result(names.NEIGHBOURS), result(names.LOAD, ("random arrivals", 12, 24))
    ), {}, Cause.BATCH),
    ("load, where neighbours hold", with_(result(names.LOAD, ("random arrivals", 12, 24))), {}, Cause.CHUNKING),
    ("few first crowds", with_(neighbours(two=1)), {}, Cause.WARM_UP),
    ("few first crowds, and later ones", with_(neighbours(two=1), lengths(2, 2)), {}, Cause.BATCH),
    ("two builds seen", with_(neighbours(top=12, top_again=12)), {"fingerprints": ("a", "b")}, Cause.BATCH),
]  # fmt: skip


@pytest.mark.parametrize(("results", "endpoint", "cause"), [row[1:] for row in LIKELY], ids=[row[0] for row in LIKELY])
def test_likely_and_nothing_else(results: list[ProbeResult], endpoint: dict[str, object], cause: Cause) -> None:
    assert named(results, **endpoint) == {cause.value: "likely"}


def went(prompt: str, group: str, other: float = 0.01) -> Difference:
    """other: tells answers apart, as log-probabilities do."""
    return difference(prompt, group=group, max_logprob_difference=other)


def to_and_fro(end: float = 0.01) -> list[ProbeResult]:
    """Four prompts whose answers alone were A, B, A and, at the end of the run, one that is like B if `end` is as there."""
    four = [f"p{i}" for i in range(4)]
    alone = tuple(went(p, group) for group in (names.SECOND, names.THIRD) for p in four)
    back = tuple(went(p, names.BACK_AND_FORTH, end) for p in four)
    return [
        floor(4, 4, 8, differences=alone),
        result(names.DRIFT, ("unchanged", 0, 4), (names.BACK_AND_FORTH, 4, 4), differences=back),
    ]


def test_two_answers_that_take_turns_are_replicas_and_a_third_one_is_none() -> None:
    assert named(with_(*to_and_fro())) == {Cause.REPLICA.value: "likely"}
    assert named(with_(*to_and_fro(end=0.02))) == {Cause.UNSTABLE.value: "shown"}
    assert named(with_(to_and_fro()[0])) == {Cause.UNSTABLE.value: "shown"}  # B came once each time: by chance, maybe


def test_a_start_that_ends_within_the_second_asks_is_a_start() -> None:
    early, late = (
        tuple(went(f"e{i}", names.THIRD) for i in range(2)),
        tuple(went(f"l{i}", names.SECOND) for i in range(6)),
    )
    assert named(with_(floor(6, 2, 8, differences=late + early))) == {Cause.WARM_UP.value: "shown"}
    both = tuple(went(f"l{i}", names.THIRD, 0.02) for i in range(2))
    assert named(with_(floor(6, 2, 8, differences=late + both))) == {Cause.UNSTABLE.value: "shown"}


def test_replicas_by_fingerprints_take_the_floor_with_them() -> None:
    results = with_(
        floor(12, 12), neighbours(two=12, eight=12, top=12, top_again=12, two_again=12), drift(back_and_forth=6)
    )
    assert named(results, fingerprints=("a", "b")) == {Cause.REPLICA.value: "shown"}


def test_a_floor_that_moves_confounds_what_moves_no_more_than_it() -> None:
    noisy = [floor(6, 6), neighbours(two=6, eight=7, top=6, top_again=7, two_again=6), cache(whole=7, partial=3)]
    assert named(with_(*noisy, small(names.STREAM, "stream against whole", 4))) == {Cause.UNSTABLE.value: "shown"}
    clear = [floor(2, 2), neighbours(eight=24, top=24, top_again=24)]
    assert set(named(with_(*clear))) == {Cause.UNSTABLE.value, Cause.BATCH.value}


def test_a_build_that_changed_confounds_what_came_after() -> None:
    results = with_(
        drift(changed_for_good=8), small(names.STREAM, "stream against whole", 8), cache(whole=14, partial=8)
    )
    assert named(results) == {Cause.REPLICA.value: "shown"}


def test_where_nothing_forgets_the_cache_explains_first_asks() -> None:
    results = with_(floor(second=12), cache(whole=14, partial=7, at=(3, 4, 3)))
    assert named(results, cold_by=None) == {Cause.CACHE.value: "shown"}
    assert named(results) == {Cause.WARM_UP.value: "shown"}
    poisoned = with_(
        floor(second=12), neighbours(two=12, eight=12, top=12, top_again=12, two_again=12), cache(whole=12)
    )
    assert named(poisoned) == {Cause.WARM_UP.value: "shown"}


def test_independent_causes_are_named_together() -> None:
    results = with_(
        neighbours(two=8, eight=9, top=11, top_again=12, two_again=9),
        cache(whole=12, partial=6, at=(3, 3, 3)),
        seeds(12, 12),
        small(names.LOGPROBS, "asked against not asked", 8),
    )
    assert named(results) == dict.fromkeys(
        [c.value for c in (Cause.BATCH, Cause.CACHE, Cause.SEED, Cause.LOGPROBS)], "shown"
    )


def test_lengths_that_change_with_their_neighbours_are_not_chunking() -> None:
    results = with_(neighbours(two=8, eight=9, top=11, top_again=12, two_again=8), lengths(11, 12))
    assert set(named(results)) == {Cause.BATCH.value}
    beyond = with_(neighbours(two=2, eight=3, top=3, top_again=4, two_again=2), lengths(3, 24, 12))
    assert {Cause.BATCH.value, Cause.CHUNKING.value} <= set(named(beyond))


def test_boundaries_no_worse_than_the_rest_are_the_cache() -> None:
    assert set(named(with_(cache(whole=20, partial=10, at=(5, 6, 5))))) == {Cause.CACHE.value}


def test_a_cold_cache_that_does_not_repeat_is_not_the_cache_for_sure() -> None:
    found = named(with_(cache(whole=12, partial=6, at=(3, 3, 3), control=4)))
    assert found == {Cause.CACHE.value: "likely"}


def test_evidence_has_the_numbers() -> None:
    (cause,) = attribute(with_(neighbours(eight=9, top=11, top_again=12)), identity("vllm", version="0.31.0"))
    text = " | ".join(cause.evidence)
    assert "neighbours: 32 of 120 changed (19% to 36%)" in text
    assert "0 of 48 at 2 users, 9 of 24 at 8 users, 23 of 48 at 24 users; it begins between 2 and 8" in text
    assert "asked alone again: 0 of 48 changed (0% to 6.1%)" in text
    assert "24 requests ran at once" in text
    assert "VLLM_BATCH_INVARIANT=1" in cause.next_steps[0]
    assert "0.32.0" in cause.next_steps[1]


def test_steps_know_the_version() -> None:
    old = next_steps(Cause.BATCH, identity("vllm", version="0.31.2+cpu"))
    new = next_steps(Cause.BATCH, identity("vllm", version="v0.32.0"))
    unknown = next_steps(Cause.BATCH, identity("vllm", version=None))
    assert len(old) == len(unknown) == len(new) + 1


@pytest.mark.parametrize("vendor", [*VENDORS, "unknown", "never heard of"])
def test_every_cause_has_steps_at_every_server(vendor: str) -> None:
    for cause in Cause:
        steps = next_steps(cause, identity(vendor))
        assert steps
        assert all(step.strip().endswith((".", "!")) for step in steps)


def test_the_documentation_is_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "audit-causes.md").read_text(encoding="utf-8")
    for row in TABLE:
        when, unless, shown = (
            "; ".join(sign.means for sign in signs) or "—" for signs in (row.when, row.unless, row.shown)
        )
        assert f"| {when} | {unless} | **{row.cause.value}**: {row.sentence} | {shown} |" in text
    for vendor in (*VENDORS, "unknown"):
        for cause in Cause:
            for step in next_steps(cause, identity(vendor)):
                assert step in text, f"{vendor}, {cause}: {step}"


@st.composite
def any_result(draw: st.DrawFn, name: str) -> ProbeResult:
    known = next((r for r in clean() if r.name == name), None)
    group_names = [g.name for g in known.groups] if known is not None else ["this against the other"]
    chosen_names = draw(st.lists(st.sampled_from([*group_names, "another"]), unique=True, max_size=6))
    groups = []
    for group in chosen_names:
        compared = draw(st.integers(0, 30))
        groups.append((group, draw(st.integers(0, compared)), compared, float(draw(st.sampled_from([2, 8, 24])))))
    kinds = st.sampled_from([difference, chosen])
    differences = tuple(make(f"p{i % 3}") for i, make in enumerate(draw(st.lists(kinds, max_size=4))))
    witness = draw(
        st.sampled_from([None, Witness("?", "none", False, 0.0, 1.0), Witness("it moved", "/metrics", True, 2.0, 1.0)])
    )
    return result(name, *groups, witness=witness, differences=differences)


ALL = [r.name for r in clean()] + [names.AGAINST]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_never_raises_and_never_names_a_cause_for_nothing(data: st.DataObject) -> None:
    chosen_names = data.draw(st.lists(st.sampled_from(ALL), unique=True))
    results = [data.draw(any_result(name)) for name in chosen_names]
    endpoint = identity(
        data.draw(st.sampled_from([*VENDORS, "unknown"])),
        fingerprints=data.draw(st.sampled_from([(), ("a",), ("a", "b")])),
        cold_by=data.draw(st.sampled_from([None, "cache_salt", "unique prefix"])),
    )
    causes = attribute(results, endpoint)
    assert len({cause.name for cause in causes}) == len(causes)
    for cause in causes:
        assert cause.evidence and all(cause.evidence)
        assert any(re.search(r"\d", sentence) for sentence in cause.evidence)
        assert cause.next_steps and cause.sentence
    if not any(r.changed for r in results):
        assert causes == ()
    if not any(r.name == names.ALONE and r.compared for r in results):
        shown = [c.name for c in causes if c.certainty is Certainty.SHOWN]
        assert set(shown) <= {Cause.REPLICA.value, Cause.BOUNDARY.value, Cause.CHUNKING.value, Cause.ORDER.value,
                              Cause.WARM_UP.value, Cause.SAMPLER.value}  # these have controls of their own  # fmt: skip
