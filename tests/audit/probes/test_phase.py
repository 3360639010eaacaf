"""The phase probe: an answer's log-probabilities by decode against those of the same tokens in a prompt."""

from __future__ import annotations

import pytest

from queueproof.audit.client.abilities import Ability
from queueproof.audit.client.trouble import Failure, Kind
from queueproof.audit.probes.phase import PhaseProbe
from queueproof.audit.records import Unit, Verdict
from tests.support.scripted import Scripted, result


def test_equal_phases_hold_with_the_positions_as_witness() -> None:
    endpoint = Scripted()
    found = result(PhaseProbe(), endpoint)
    assert (found.verdict, found.compared, found.unit) == (Verdict.HOLDS, 8, Unit.IDS)
    assert found.witnesses[0].value == 8 * 6
    forced = endpoint.asks[1]
    assert forced.prompt_logprobs and not forced.stream and forced.max_tokens == 1 and forced.prompt.ids is not None


def test_a_decode_that_computes_otherwise_is_a_change_of_logprobs_alone() -> None:
    found = result(PhaseProbe(), Scripted(fault=lambda m: 0 if m.ask.prompt_logprobs else 1))
    assert (found.verdict, found.changed, found.tokens_changed) == (Verdict.CHANGES, 8, 0)
    assert found.differences[0].logprob_position == 2 and found.differences[0].position is None
    assert (found.differences[0].a_name, found.differences[0].b_name) == ("decode", "prefill")


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        (Scripted(offered=frozenset({Ability.CHAT})), "log-probabilities of a prompt's own tokens"),
        (Scripted(lacks=frozenset({"logprobs"})), "no log-probabilities of an answer's tokens"),
        (Scripted(lacks=frozenset({"ids"})), "token ids of the answer"),
        (Scripted(lacks=frozenset({"prompt_ids"})), "token ids of the prompt"),
        (Scripted(lacks=frozenset({"prompt_logprobs"})), "without the log-probabilities of its prompt"),
        (
            Scripted(trouble=lambda ask: Failure(Kind.REJECTED, "400: no ids") if ask.prompt_logprobs else None),
            "rejects a prompt of token ids with prompt_logprobs (400: no ids)",
        ),
    ],
)
def test_where_it_cannot_be_it_says_why(endpoint: Scripted, said: str) -> None:
    found = result(PhaseProbe(), endpoint)
    assert found.verdict is Verdict.NOT_RUN and said in found.reason and not found.problems


def test_trouble_is_not_a_lack() -> None:
    found = result(
        PhaseProbe(), Scripted(trouble=lambda ask: Failure(Kind.TIMEOUT, "late") if ask.prompt_logprobs else None)
    )
    assert found.verdict is Verdict.FAILED and found.problems[0].kind == "timeout" and found.problems[0].count == 8


def test_a_prompt_that_is_read_as_other_tokens_does_not_line_up() -> None:
    endpoint = Scripted(extra_prompt_token=True)
    found = result(PhaseProbe(), endpoint)
    assert found.verdict is Verdict.NOT_RUN and "do not line up" in found.reason
