"""The probes that vary one field of a request: streamed or not, log-probabilities asked for or not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queueproof.audit.ask import Answer, Ask, Cold
from queueproof.audit.probes.logprobs import LogprobsProbe
from queueproof.audit.probes.stream import StreamProbe
from queueproof.audit.records import Unit, Verdict
from tests.support.scripted import Scripted, result

POOR = frozenset({"ids", "tokens", "logprobs", "margins", "prompt_ids", "prompt_tokens", "cached_tokens"})


@pytest.mark.parametrize("probe", [StreamProbe(), LogprobsProbe()], ids=lambda probe: probe.name)
def test_a_field_that_changes_nothing_holds(probe: StreamProbe | LogprobsProbe) -> None:
    found = result(probe, Scripted())
    assert (found.verdict, found.compared, found.unit) == (Verdict.HOLDS, 8, Unit.IDS)


@pytest.mark.parametrize("probe", [StreamProbe(), LogprobsProbe()], ids=lambda probe: probe.name)
def test_without_a_way_to_forget_both_sides_are_warm(probe: StreamProbe | LogprobsProbe) -> None:
    """A fault of the cache is not one of the field."""
    found = result(probe, Scripted(cold_by=Cold.PREFIX, fault=lambda m: m.hit))
    assert found.verdict is Verdict.HOLDS and found.requests == 24


def test_a_stream_that_differs_is_found() -> None:
    found = result(StreamProbe(), Scripted(fault=lambda m: int(m.ask.stream)))
    assert found.verdict is Verdict.CHANGES and found.tokens_changed == 8 and found.differences[0].position == 2


def test_streams_are_compared_by_text_where_there_is_no_more() -> None:
    found = result(StreamProbe(), Scripted(lacks=POOR))
    assert found.verdict is Verdict.HOLDS and found.unit is Unit.TEXT


@pytest.mark.parametrize(("whole", "which"), [(True, "whole"), (False, "streamed")])
def test_a_last_token_that_only_one_form_lists_is_no_difference_and_said(whole: bool, which: str) -> None:
    class Listed(Scripted):
        async def ask(self, ask: Ask) -> Answer:
            answer = await super().ask(ask)
            told = replace(answer, finish_reason="stop", completion_tokens=len(answer.ids or ()) + 1)
            return told if ask.stream == whole else replace(told, ids=(*(told.ids or ()), 0))

    found = result(StreamProbe(), Listed())
    assert (found.verdict, found.compared) == (Verdict.HOLDS, 8)
    assert [note for note in found.notes if f"only {which} answers list the token that ended them" in note]


def test_a_stream_that_comes_in_one_piece_shows_nothing() -> None:
    found = result(StreamProbe(), Scripted(lacks=frozenset({"arrivals"})))
    assert found.verdict is Verdict.INCONCLUSIVE and "several pieces" in found.reason


def test_asking_for_logprobs_that_changes_tokens_is_found_by_ids_or_text() -> None:
    for lacks, unit in ((frozenset[str](), Unit.IDS), (frozenset({"ids"}), Unit.TEXT)):
        found = result(LogprobsProbe(), Scripted(fault=lambda m: int(m.ask.logprobs), lacks=lacks))
        assert (found.verdict, found.tokens_changed, found.unit) == (Verdict.CHANGES, 8, unit)


def test_logprobs_that_are_never_given_leave_nothing_to_vary() -> None:
    found = result(LogprobsProbe(), Scripted(lacks=POOR))
    assert found.verdict is Verdict.NOT_RUN and "no log-probabilities, asked or not" in found.reason
