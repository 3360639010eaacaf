"""Random arrivals of requests of mixed lengths."""

from __future__ import annotations

from queueproof.audit.probes.load import HEAVY, LIGHT, LoadProbe
from queueproof.audit.records import Verdict
from tests.support.zoo import PLANTED, Offer, Pace, Zoo
from tests.support.zoo.visits import chat, probed


def test_a_clean_endpoint_holds_while_others_come_and_go() -> None:
    zoo = Zoo(pace=Pace(slots=16))
    (found,) = probed(zoo, LoadProbe())
    assert found.verdict is Verdict.HOLDS and {g.name: g.compared for g in found.groups} == {LIGHT: 24, HEAVY: 24}
    assert all(w.moved and w.source == "interleaved streams" for w in found.witnesses)
    assert zoo.engines[0].most == 16  # there was a queue
    asked = zoo.asks[-36:]
    assert len({ask["max_tokens"] for ask in asked}) > 3 and sum(bool(ask.get("ignore_eos")) for ask in asked) == 12


def test_faults_of_batches_and_of_mixed_steps_change_answers() -> None:
    for fault in ("batch", "mixed", "sampler"):
        (found,) = probed(Zoo(PLANTED[fault][0]), LoadProbe())
        assert found.verdict is Verdict.CHANGES, fault


def test_requests_one_after_another_prove_nothing() -> None:
    for zoo in (Zoo(pace=Pace(slots=1)), Zoo(offer=Offer(whole=True, metrics=False))):
        (found,) = probed(zoo, LoadProbe(), prompts=chat(8), users=4)
        assert found.verdict is Verdict.INCONCLUSIVE


def test_two_rounds_arrive_otherwise() -> None:
    zoo = Zoo()
    (found,) = probed(zoo, LoadProbe(), prompts=chat(6), users=4, rounds=2)
    assert found.compared == 24 and len(found.witnesses) == 2
    first, second = zoo.asks[-36:-18], zoo.asks[-18:]
    assert [ask["messages"] for ask in first] != [ask["messages"] for ask in second]
