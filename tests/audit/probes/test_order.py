"""One crowd in two opposite orders."""

from __future__ import annotations

from queueproof.audit import names
from queueproof.audit.probes.order import TURNED, OrderProbe
from queueproof.audit.records import Verdict
from tests.support.zoo import PLANTED, Offer, Pace, Zoo
from tests.support.zoo.visits import chat, probed


def test_a_clean_endpoint_holds_and_the_order_was_turned() -> None:
    (found,) = probed(Zoo(), OrderProbe())
    assert found.verdict is Verdict.HOLDS
    assert {g.name: g.compared for g in found.groups} == {names.FIRST_IN_LINE: 12, names.LAST_IN_LINE: 12, TURNED: 24}
    assert [w.source for w in found.witnesses] == ["interleaved streams", "order of the first pieces"]


def test_a_fault_of_places_changes_the_last_and_not_the_first() -> None:
    (found,) = probed(Zoo(PLANTED["order"][0]), OrderProbe())
    changed = {g.name: g.changed for g in found.groups}
    assert changed[names.FIRST_IN_LINE] == 0 and changed[names.LAST_IN_LINE] > 9 and changed[TURNED] > 9


def test_a_fault_of_batches_changes_both_ends() -> None:
    (found,) = probed(Zoo(PLANTED["batch"][0]), OrderProbe())
    changed = {g.name: g.changed for g in found.groups}
    assert changed[names.FIRST_IN_LINE] > 9 and changed[names.LAST_IN_LINE] > 9


def test_without_company_or_pieces_it_is_inconclusive() -> None:
    for zoo in (Zoo(pace=Pace(slots=1)), Zoo(offer=Offer(whole=True))):
        (found,) = probed(zoo, OrderProbe(), prompts=chat(8), users=4)
        assert found.verdict is Verdict.INCONCLUSIVE


def test_two_users_are_a_crowd() -> None:
    (found,) = probed(Zoo(), OrderProbe(), prompts=chat(3), users=2)
    assert found.verdict is Verdict.HOLDS and TURNED not in {g.name for g in found.groups}
