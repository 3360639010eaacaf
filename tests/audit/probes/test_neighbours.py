"""Crowds of several sizes against answers alone."""

from __future__ import annotations

from queueproof.audit import names
from queueproof.audit.probes.neighbours import NeighboursProbe
from queueproof.audit.records import ProbeResult, Verdict
from tests.support.zoo import PLANTED, Faults, Offer, Pace, Zoo
from tests.support.zoo.visits import chat, probed


def changed(found: ProbeResult) -> dict[str, int]:
    return {group.name: group.changed for group in found.groups}


def test_a_clean_endpoint_holds_with_a_witness_for_each_level() -> None:
    zoo = Zoo()
    (found,) = probed(zoo, NeighboursProbe())
    assert found.verdict is Verdict.HOLDS and found.compared == 5 * 24
    assert list(changed(found)) == ["2 users", "8 users", "24 users", "24 users again", "2 users again"]
    assert [w.source for w in found.witnesses] == ["interleaved streams"] * 3
    assert zoo.engines[0].most == 24


def test_each_level_shows_from_how_many_on_it_changes() -> None:
    (found,) = probed(Zoo(PLANTED["batch"][0]), NeighboursProbe())
    assert all(changed(found).values())
    (found,) = probed(Zoo(PLANTED["batch of 8"][0]), NeighboursProbe())
    assert [bool(count) for count in changed(found).values()] == [False, True, True, True, False]


def test_what_happens_to_the_first_crowds_only_does_not_come_again() -> None:
    (found,) = probed(Zoo(PLANTED["first crowds"][0]), NeighboursProbe())
    assert [bool(count) for count in changed(found).values()] == [True, True, True, False, False]


def test_texts_alone_change_too_where_rounding_reaches_a_near_tie() -> None:
    offer = Offer(ids=False, logprobs=False, metrics=False, strict=True)
    (found,) = probed(Zoo(Faults(batch_from=2, scale=0.05), offer), NeighboursProbe())
    assert found.verdict is Verdict.CHANGES and found.unit == "text" and found.changed == found.tokens_changed


def test_requests_one_after_another_prove_nothing() -> None:
    (found,) = probed(Zoo(PLANTED["batch"][0], pace=Pace(slots=1)), NeighboursProbe(), prompts=chat(4), users=4)
    assert found.verdict is Verdict.INCONCLUSIVE and "were written beside others" in found.reason


def test_answers_in_one_piece_are_proven_by_the_servers_numbers_or_not_at_all() -> None:
    (found,) = probed(Zoo(offer=Offer(whole=True, metrics=False)), NeighboursProbe(), prompts=chat(4), users=4)
    assert found.verdict is Verdict.INCONCLUSIVE
    pace = Pace(step=0.1)  # slow enough to be looked at while it runs
    (found,) = probed(Zoo(offer=Offer(whole=True), pace=pace), NeighboursProbe(), prompts=chat(4), users=4)
    assert found.verdict is Verdict.HOLDS and {w.source for w in found.witnesses} == {"/metrics"}


def test_few_slots_are_said() -> None:
    (found,) = probed(Zoo(pace=Pace(slots=4)), NeighboursProbe())
    assert found.verdict is Verdict.HOLDS
    assert "of 24 users, no more than 4 were seen at once" in found.notes


def test_where_nothing_can_be_forgotten_a_fault_of_the_cache_is_not_taken_for_one_of_neighbours() -> None:
    offer = Offer(salt=False, reset=False)
    (found,) = probed(Zoo(PLANTED["cache"][0], offer), NeighboursProbe(), prompts=chat(8, first=40), users=8)
    assert found.verdict is Verdict.HOLDS


def test_more_rounds_add_up() -> None:
    (found,) = probed(Zoo(), NeighboursProbe(), prompts=chat(6), users=4, rounds=3)
    assert found.compared == 3 * (6 + 8 + 8 + 6) and len(found.witnesses) == 2
    assert found.groups[0].name == names.users(2) and found.groups[0].compared == 18
