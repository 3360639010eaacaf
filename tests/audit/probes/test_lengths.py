"""A long prompt that is read while short answers are written."""

from __future__ import annotations

from queueproof.audit import names
from queueproof.audit.probes.lengths import LONG, LONGER, LengthsProbe
from queueproof.audit.records import ProbeResult, Verdict
from tests.support.zoo import PLANTED, Offer, Pace, Zoo
from tests.support.zoo.visits import chat, probed


def changed(found: ProbeResult) -> dict[str, int]:
    return {group.name: group.changed for group in found.groups}


def test_a_clean_endpoint_holds_and_the_long_ones_came_in_the_middle() -> None:
    zoo = Zoo()
    (found,) = probed(zoo, LengthsProbe())
    assert found.verdict is Verdict.HOLDS and [w.moved for w in found.witnesses] == [True]
    compared = {group.name: group.compared for group in found.groups}
    assert compared == {names.SHORT_BESIDE_SHORT: 24, names.SHORT_BESIDE_LONG: 24, names.LONG_BESIDE_SHORT: 8}
    sizes = [len(ask["messages"][0]["content"].split()) for ask in zoo.asks if "messages" in ask]
    assert max(sizes) > LONGER and any(LONG < size < LONG + 100 for size in sizes)


def test_steps_that_mix_change_short_answers_beside_long_prompts_only() -> None:
    found = changed(probed(Zoo(PLANTED["mixed"][0]), LengthsProbe())[0])
    assert found[names.SHORT_BESIDE_SHORT] == 0 and found[names.SHORT_BESIDE_LONG] > 12


def test_a_prompt_that_is_cut_otherwise_changes_its_own_answer_only() -> None:
    found = changed(probed(Zoo(PLANTED["split"][0]), LengthsProbe())[0])
    assert found == {names.SHORT_BESIDE_SHORT: 0, names.SHORT_BESIDE_LONG: 0, names.LONG_BESIDE_SHORT: 8}


def test_a_fault_of_batches_changes_the_control_too() -> None:
    assert all(changed(probed(Zoo(PLANTED["batch"][0]), LengthsProbe())[0]).values())


def test_long_prompts_that_wait_prove_nothing() -> None:
    for zoo in (Zoo(pace=Pace(slots=3)), Zoo(pace=Pace(slots=1)), Zoo(offer=Offer(whole=True))):
        (found,) = probed(zoo, LengthsProbe(), prompts=chat(8))
        assert found.verdict is Verdict.INCONCLUSIVE and "while 0 of" in found.reason


def test_an_endpoint_that_cannot_forget_compares_short_answers_only() -> None:
    (found,) = probed(Zoo(offer=Offer(salt=False, reset=False)), LengthsProbe(), prompts=chat(8))
    assert names.LONG_BESIDE_SHORT not in changed(found) and any("cannot forget" in note for note in found.notes)


def test_two_users_are_enough() -> None:
    (found,) = probed(Zoo(), LengthsProbe(), prompts=chat(4), users=2)
    assert found.verdict is Verdict.HOLDS
