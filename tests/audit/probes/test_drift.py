"""The drift probe: a new build, replicas that take turns, and an answer that is never the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queueproof.audit import names
from queueproof.audit.ask import Ask
from queueproof.audit.client.trouble import Failure, Kind
from queueproof.audit.endpoint import Trouble
from queueproof.audit.probes.drift import DriftProbe
from queueproof.audit.records import Verdict
from tests.support.scripted import Moment, Scripted, chat, result


def asked(endpoint: Scripted, moment: Moment) -> int:
    """How often this prompt has been asked, this time included."""
    return sum(ask.prompt == moment.ask.prompt for ask in endpoint.asks)


def test_what_did_not_change_holds_without_a_witness() -> None:
    found = result(DriftProbe(), Scripted())
    assert found.verdict is Verdict.HOLDS and [(g.name, g.compared) for g in found.groups] == [("unchanged", 8)]


@pytest.mark.parametrize(
    ("fault", "group"),
    [
        (lambda times: int(times > 1), names.FOR_GOOD),
        (lambda times: times % 2, names.BACK_AND_FORTH),
        (lambda times: times, "unstable"),
    ],
)
def test_changes_are_sorted_by_a_third_ask(fault: Callable[[int], int], group: str) -> None:
    endpoint = Scripted()
    endpoint.fault = lambda moment: fault(asked(endpoint, moment)) if moment.ask.prompt.key < "p4" else 0
    found = result(DriftProbe(), endpoint, chat(8))
    assert found.verdict is Verdict.CHANGES and found.requests == 8 + 8 + 4
    assert {g.name: (g.compared, g.changed) for g in found.groups} == {group: (4, 4), "unchanged": (4, 0)}


def test_a_change_counts_where_the_third_ask_fails() -> None:
    endpoint = Scripted()
    endpoint.fault = lambda moment: asked(endpoint, moment)

    def trouble(ask: Ask) -> Trouble | None:
        before = sum(other.prompt == ask.prompt for other in endpoint.asks)
        return Failure(Kind.SERVER_ERROR, "500") if before == 2 else None

    endpoint.trouble = trouble
    found = result(DriftProbe(), endpoint, chat(4))
    assert [(g.name, g.changed) for g in found.groups] == [("changed, not asked a third time", 4)]
    assert found.problems[0].count == 4


def test_another_build_is_noted_by_its_fingerprint() -> None:
    found = result(DriftProbe(), Scripted(fingerprint=lambda number: "new" if number > 8 else "old"))
    assert found.notes == ("fingerprint changed: old at first, new at the end",)
