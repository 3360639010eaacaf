"""Alone again: what changes though nothing is varied."""

from __future__ import annotations

from queueproof.audit import names
from queueproof.audit.probes.floor import AloneProbe
from queueproof.audit.records import ProbeResult, Verdict
from tests.support.zoo import PLANTED, Faults, Offer, Zoo
from tests.support.zoo.visits import chat, probed


def counts(found: ProbeResult) -> dict[str, tuple[int, int]]:
    return {group.name: (group.compared, group.changed) for group in found.groups}


def test_a_clean_endpoint_holds() -> None:
    zoo = Zoo()
    (found,) = probed(zoo, AloneProbe())
    assert found.verdict is Verdict.HOLDS and counts(found) == {names.SECOND: (24, 0), names.THIRD: (8, 0)}
    assert zoo.engines[0].most == 1  # nothing ran beside anything


def test_without_log_probabilities_and_ids_texts_are_compared() -> None:
    (found,) = probed(Zoo(offer=Offer(ids=False, logprobs=False, strict=True)), AloneProbe())
    assert found.verdict is Verdict.HOLDS and found.unit == "text"


def test_answers_that_come_and_go_change_both_times() -> None:
    (found,) = probed(Zoo(Faults(unstable=0.5)), AloneProbe())
    assert found.verdict is Verdict.CHANGES and all(changed for _, changed in counts(found).values())
    assert any("third ask gave" in note for note in found.notes)


def test_two_replicas_are_seen_to_alternate() -> None:
    (found,) = probed(Zoo(PLANTED["replicas"][0]), AloneProbe())
    assert counts(found)[names.SECOND][1] > 4
    assert any(note.endswith("and another for 0") for note in found.notes)


def test_a_special_start_changes_the_second_ask_alone() -> None:
    (found,) = probed(Zoo(Faults(first_asks=10)), AloneProbe())
    assert counts(found)[names.SECOND] == (24, 10) and counts(found)[names.THIRD][1] == 0


def test_faults_of_crowds_and_caches_leave_it_alone() -> None:
    for fault in ("batch", "cache", "order", "mixed", "phase", "sampler", "whole"):
        assert probed(Zoo(PLANTED[fault][0]), AloneProbe(), prompts=chat(4))[0].verdict is Verdict.HOLDS, fault
