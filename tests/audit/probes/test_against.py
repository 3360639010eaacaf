"""The probe of two endpoints."""

from __future__ import annotations

from queueproof.audit import names
from queueproof.audit.ask import Cold
from queueproof.audit.probes.against import AgainstProbe
from queueproof.audit.records import EndpointIdentity, Unit, Verdict
from tests.support.scripted import Scripted, chat, result

HERE = EndpointIdentity("http://here", "words", "vllm", "0.32.0")
THERE = EndpointIdentity("http://there", "words", "vllm", "0.33.0")


def test_two_endpoints_that_agree_hold_and_their_difference_is_noted() -> None:
    other = Scripted(cold_by=Cold.FIELD)
    found = result(AgainstProbe(other, HERE, THERE), Scripted(), chat(6))
    assert found.verdict is Verdict.HOLDS and found.notes == ("version: 0.32.0 here, 0.33.0 there",)
    assert found.requests == 6 + 6 + 4 and len(other.asks) == 10
    assert [(g.name, g.compared) for g in found.groups] == [(names.THE_TWO, 6), (names.THE_OTHER_TWICE, 4)]


def test_another_arithmetic_there_changes_the_answers_but_not_its_own_floor() -> None:
    found = result(AgainstProbe(Scripted(fault=lambda m: 1), HERE, THERE), Scripted(), chat(6))
    assert {g.name: g.changed for g in found.groups} == {names.THE_TWO: 6, names.THE_OTHER_TWICE: 0}
    assert (found.differences[0].a_name, found.differences[0].b_name) == ("http://here", "http://there")


def test_one_endpoint_twice_is_no_comparison_of_two() -> None:
    found = result(AgainstProbe(Scripted(), HERE, HERE), Scripted(), chat(4))
    assert found.verdict is Verdict.INCONCLUSIVE and "they are one" in found.reason


def test_ids_are_compared_only_where_both_tell_them() -> None:
    other = Scripted(lacks=frozenset({"ids", "tokens", "logprobs"}))
    assert result(AgainstProbe(other, HERE, THERE), Scripted(), chat(4)).unit is Unit.TEXT
