"""A run's folder: what was written comes back, and a killed run's half line does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queueproof.audit.ask import Answer, Ask, Cache, Prompt
from queueproof.audit.journal import ANSWERS, Journal
from queueproof.contract.errors import ContractError, UsageError

PROMPT = Prompt("p1", "chat", messages=(("user", "\N{SNOWMAN}?"),))
ASK = Ask(PROMPT, 8, temperature=0.5, seed=2**63, cache=Cache.WARM, namespace="n")
ANSWER = Answer(
    "p1", "x\N{SNOWMAN}", "stop", 0.25, 1.5, ids=(1, 2), logprobs=(-0.5, None), cached_tokens=0, arrivals=(0.5, 0.75)
)


def test_a_reference_comes_back_as_it_was(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal:
        journal.answered(ANSWER, ASK, "reference")
        journal.answered(ANSWER, ASK, "crowd of 8")
    (tmp_path / "run" / "audit.json").write_text("{}")
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


def test_two_runs_do_not_write_into_one_folder(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(UsageError, match="another audit writes into"):
        Journal(tmp_path)
    Journal(tmp_path).close()


@pytest.mark.parametrize("path", ["file", "file/below", "/proc/none"])
def test_a_folder_that_cannot_be_one_is_named(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=f"{path} cannot hold the results .*: name another folder"):
        Journal(tmp_path / path)


def test_answers_of_a_run_without_a_record_are_put_aside(tmp_path: Path) -> None:
    """They may be of another endpoint: as references they would be differences that there are not."""
    for count in (0, 1, 2):
        with Journal(tmp_path) as journal:
            assert list(journal.references([PROMPT])) == []
            journal.answered(ANSWER, ASK, "reference")
        assert len(list(tmp_path.glob("answers-*.jsonl"))) == count


def test_a_killed_run_has_all_its_answers(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.answered(ANSWER, ASK, "reference")
    assert (tmp_path / ANSWERS).read_text(encoding="utf-8").endswith("}\n")
    journal.close()


def test_texts_that_are_no_unicode_come_back(tmp_path: Path) -> None:
    prompt = Prompt("\ud800", "chat", messages=(("user", "\udfff"),))
    answer = Answer("\ud800", "\N{SNOWMAN}\udc00", "stop", 0.0, 1.0, model="\udfff")
    with Journal(tmp_path) as journal:
        journal.answered(answer, Ask(prompt, 8), "reference")
        assert list(journal.references([prompt])) == [(Ask(prompt, 8), answer)]


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000])
def test_files_that_cannot_be_read_back_are_named(tmp_path: Path, content: bytes) -> None:
    with Journal(tmp_path) as journal:
        (tmp_path / "audit.json").write_bytes(content)
        with pytest.raises(ContractError, match="audit.json is no record to go on from"):
            journal.record()
        (tmp_path / ANSWERS).write_bytes(content)
        with pytest.raises(ContractError, match="answers.jsonl, line 1 is no answer"):
            list(journal.references([PROMPT]))
