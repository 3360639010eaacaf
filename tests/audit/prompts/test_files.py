"""Prompts from files: what is one, by its content, and what is said of a bad one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from queueproof.audit.ask import Prompt
from queueproof.audit.prompts import files
from queueproof.audit.prompts.files import read_prompts
from queueproof.contract.errors import UsageError


def user(text: str) -> tuple[tuple[str, str], ...]:
    return (("user", text),)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "prompts.jsonl"


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    return path


def test_own_lines(path: Path) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello\u2028there"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "one, "}, {"type": "text", "text": "two"}]}]
    found = read_prompts(
        lines(
            path,
            {"prompt": "Why?"},
            {"messages": chat, "id": "greeting"},
            {"prompt": [5, 0, 7], "id": 3},
            {"messages": parts},
        )
    )
    assert found == (
        Prompt("line 1", "file", messages=user("Why?")),
        Prompt("greeting", "file", messages=(("system", "Be brief."), ("user", "Hello\u2028there"))),
        Prompt("3", "file", ids=(5, 0, 7)),
        Prompt("line 4", "file", messages=user("one, two")),
    )


def test_batch_lines_are_asked_by_their_route(path: Path) -> None:
    def request(name: str, url: str, **body: Any) -> dict[str, Any]:
        return {"custom_id": name, "method": "POST", "url": url, "body": {"model": "m", "temperature": 0.7, **body}}

    chat = [{"role": "user", "content": "Hi"}]
    found = read_prompts(
        lines(
            path,
            request("a", "/v1/chat/completions", messages=chat),
            request("b", "/v1/completions", prompt="Once"),
            request("c", "/v1/completions", prompt=[1, 2]),
        )
    )
    assert found == (
        Prompt("a", "file", messages=user("Hi")),
        Prompt("b", "file", text="Once"),
        Prompt("c", "file", ids=(1, 2)),
    )


def sharegpt(name: str, *turns: tuple[str, str]) -> dict[str, Any]:
    return {"id": name, "conversations": [{"from": role, "value": value} for role, value in turns]}


@pytest.mark.parametrize("as_list", [True, False])
def test_sharegpt_asks_what_a_person_said_first(path: Path, as_list: bool) -> None:
    records = (
        sharegpt("x", ("system", "Be kind."), ("human", "Tides?"), ("gpt", "The Moon."), ("human", "Two a day?")),
        sharegpt("cut", ("gpt", "…and so on.")),
        sharegpt("y", ("gpt", "Well."), ("user", "Go on")),
    )
    if as_list:
        path.write_text(json.dumps(records, indent=1))
    else:
        lines(path, *records)
    assert read_prompts(path) == (
        Prompt("x", "file", messages=(("system", "Be kind."), ("user", "Tides?"))),
        Prompt("y", "file", messages=user("Go on")),
    )


def test_text_is_a_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "questions"
    path.write_bytes("\ufeffWhy?\r\n\r\n  Wie weit ist es nach Köln?\n".encode())
    assert [(p.key, p.messages) for p in read_prompts(path)] == [
        ("line 1", user("Why?")),
        ("line 3", user("Wie weit ist es nach Köln?")),
    ]
    named = tmp_path / "templates.txt"
    named.write_text("[INST] hi\n{name}, hello\n")
    assert [p.messages for p in read_prompts(named)] == [user("[INST] hi"), user("{name}, hello")]


def test_keys_become_unique(path: Path) -> None:
    named = [{"prompt": "p", "id": name} for name in ("a", "a", "a #2", "a")]
    assert [p.key for p in read_prompts(lines(path, *named))] == ["a", "a #2", "a #2 #2", "a #3"]


def test_the_first_ones_up_to_a_limit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines(path, *({"prompt": str(i)} for i in range(5)), {"nothing": 1})
    assert [p.messages for p in read_prompts(path, limit=2)] == [user("0"), user("1")]
    monkeypatch.setattr(files, "MAX_BYTES", 10)
    with pytest.raises(UsageError, match=r"prompts\.jsonl has more than 0 MiB"):
        read_prompts(path)


@pytest.mark.parametrize(
    "line, says",
    [
        ('{"prompt": "x"', "as JSON on one line"),
        ('{"prompt": ""}', "a text or a list of token ids was expected as prompt, not ''"),
        ('{"prompt": [1, -2]}', "a list of token ids was expected"),
        ('{"prompt": [true]}', "a list of token ids was expected"),
        ('{"prompt": "x", "messages": []}', "there are: prompt, messages"),
        ('{"question": "x"}', "there are: question"),
        ("{}", "there are: no keys"),
        ("7", "an object with `prompt` or `messages`, .* was expected, not 7"),
        ('{"prompt": "x", "id": [1]}', r"a text or a number was expected as id, not \[1\]"),
        ('{"messages": []}', "a list of messages was expected"),
        ('{"messages": [{"role": "robot", "content": "x"}]}', "message 1: an object whose role is one of system"),
        ('{"messages": [{"role": "user"}]}', "message 1: content was expected to be text, not None"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "content was expected to be text"),
        ('{"conversations": {}}', "a list was expected as conversations"),
        ('{"conversations": [{"from": "human"}]}', "turn 1: texts were expected as from and value"),
        ('{"custom_id": "a", "method": "GET", "url": "/v1/completions", "body": {}}', "method POST"),
        ('{"custom_id": "a", "url": "/v1/embeddings", "body": {}}', "url /v1/chat/completions or /v1/completions"),
        ('{"custom_id": "a", "url": "/v1/chat/completions", "body": {}}', "a list of messages was expected, not None"),
        ('{"custom_id": "a", "url": "/v1/completions", "body": {}}', "as prompt, not None"),
    ],
)
def test_an_error_names_the_line_and_what_was_expected(path: Path, line: str, says: str) -> None:
    path.write_text('{"prompt": "good"}\n\n' + line + "\n")
    with pytest.raises(UsageError, match=rf"prompts\.jsonl, line 3.*{says}"):
        read_prompts(path)


@pytest.mark.parametrize(
    "content, says",
    [
        (b"", "has no prompt in it"),
        (b"\n \n", "has no prompt in it"),
        (b"[]", "has no prompt in it"),
        (b"[1]", "item 1: .* was expected, not 1"),
        (b'["a", ', "a list in JSON was expected"),
        (b"[INST] hello", "belong into a file named .txt"),
        (b"[" * 100_000, "a list in JSON was expected"),
        (b"one\ntwo \xff\n", "line 2: UTF-8 was expected, byte 0xff is none"),
    ],
)
def test_a_file_without_prompts(path: Path, content: bytes, says: str) -> None:
    path.write_bytes(content)
    with pytest.raises(UsageError, match=says):
        read_prompts(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match="cannot be read .*: name a file of prompts"):
            read_prompts(path)


def test_a_file_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 1 << 20)
    with pytest.raises(UsageError, match="/dev/zero has more than 1 MiB"):
        read_prompts(Path("/dev/zero"))


@pytest.mark.parametrize("text", ['{"prompt": "a", "prompt": "b"}', '[{"id": 1, "id": 2, "prompt": "b"}]'])
def test_a_key_that_is_there_twice(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(UsageError, match="the key '(prompt|id)' is there twice"):
        read_prompts(path)
