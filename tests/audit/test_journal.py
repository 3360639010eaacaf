"""A run's folder: what was written comes back, and a killed run's half line does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queueproof.audit.ask import Answer, Ask, Cache, Prompt
from queueproof.audit.journal import ANSWERS, Journal
from queueproof.contract.errors import ContractError

PROMPT = Prompt("p1", "chat", messages=(("user", "\N{SNOWMAN}?"),))
ASK = Ask(PROMPT, 8, temperature=0.5, seed=2**63, cache=Cache.WARM, namespace="n")
ANSWER = Answer(
    "p1", "x\N{SNOWMAN}", "stop", 0.25, 1.5, ids=(1, 2), logprobs=(-0.5, None), cached_tokens=0, arrivals=(0.5, 0.75)
)


def test_a_reference_comes_back_as_it_was(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal:
        journal.answered(ANSWER, ASK, "reference")
        journal.answered(ANSWER, ASK, "crowd of 8")
    with (tmp_path / "run" / ANSWERS).open("a") as file:
        file.write('{"role": "reference", "pro')
    with Journal(tmp_path / "run") as again:
        assert list(again.references([PROMPT])) == [(ASK, ANSWER)]
        assert list(again.references([Prompt("p2", "chat", text="y")])) == []
        again.answered(ANSWER, ASK, "reference")
    lines = (tmp_path / "run" / ANSWERS).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["role"] for line in lines] == ["reference", "crowd of 8", "reference"]


@pytest.mark.parametrize(
    "line", ["[]", "{}", "nonsense", '{"role": "reference", "prompt": "p1", "ask": {"cache": "lukewarm"}}']
)
def test_a_line_that_is_no_answer_is_named(tmp_path: Path, line: str) -> None:
    with Journal(tmp_path) as journal:
        (tmp_path / ANSWERS).write_text(line + "\n")
        with pytest.raises(ContractError, match="line 1"):
            list(journal.references([PROMPT]))


def test_there_is_no_record_at_first_and_a_strange_one_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        assert journal.record() is None
        (tmp_path / "audit.json").write_text("{}")
        with pytest.raises(ContractError, match="schema"):
            journal.record()
