"""Prompts from files that people have; what a file is, its content says.

- JSONL of our own: `{"prompt": "..."}` (a user's message; a list of numbers: token ids) or `{"messages": [...]}`, and `id`.
- OpenAI batch input: `{"custom_id", "method", "url", "body"}`, of chat completions and of completions. Sampling parameters
  of the body are left aside: an audit has its own.
- ShareGPT: `{"conversations": [{"from", "value"}]}`, a list or a line each; what a person said first, after what the system
  said, is asked. Conversations in which no person speaks are left out.
- Anything else is text, a prompt a line. Empty lines are nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from queueproof.audit.ask import Prompt
from queueproof.contract.errors import UsageError

MAX_BYTES = 256 << 20
MAX_PROMPTS = 10_000
_KIND = "file"
_ROLES = ("system", "developer", "user", "assistant")
_SHAREGPT = {"human": "user", "user": "user", "system": "system"}
_EXPECTED = "an object with `prompt` or `messages`, an OpenAI batch request, or a ShareGPT conversation"
_TEXT_HINT = "prompts that are text, one a line, and begin with { or [ belong into a file named .txt"
_Record = dict[str, Any]


def read_prompts(path: Path, limit: int = MAX_PROMPTS) -> tuple[Prompt, ...]:
    """The first `limit` prompts of a file, with unique keys. Raises UsageError that names the file, the line (or the item
    of a list) and what was expected there."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): name a file of prompts") from None
    if len(content) > MAX_BYTES:
        raise UsageError(f"{path} has more than {MAX_BYTES >> 20} MiB: prompts are read from at most so much")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{path}, line {line}: UTF-8 was expected, byte {error.object[error.start]:#04x} is none"
        ) from None
    found: list[Prompt] = []
    for prompt in _prompts(text, path):
        if len(found) == limit:
            break
        found.append(prompt)
    if not found:
        raise UsageError(f"{path} has no prompt in it")
    return _with_unique_keys(found)


def _prompts(text: str, path: Path) -> Iterator[Prompt]:
    begin = text.lstrip()[:1]
    if begin == "" or begin not in "{[" or path.suffix == ".txt":
        yield from _lines_of_text(text)
    elif begin == "[":
        yield from _items(_whole(text, path), path)
    else:
        yield from _json_lines(text, path)


def _lines_of_text(text: str) -> Iterator[Prompt]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield Prompt(f"line {number}", _KIND, messages=(("user", line.strip()),))


def _json_lines(text: str, path: Path) -> Iterator[Prompt]:
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: JSON's texts may hold U+2028
        if line.strip():
            where = f"{path}, line {number}"
            try:
                record = json.loads(line, object_pairs_hook=_object)
            except (ValueError, RecursionError) as error:
                raise UsageError(
                    f"{where}: {_EXPECTED} was expected, as JSON on one line: {error}; {_TEXT_HINT}"
                ) from None
            yield from _record(record, f"line {number}", where)


def _object(pairs: list[tuple[str, Any]]) -> _Record:
    """Raises ValueError where a key is there twice: one of its values would be left out without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def _whole(text: str, path: Path) -> list[Any]:
    try:
        items = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: a list in JSON was expected: {error}; {_TEXT_HINT}") from None
    if not isinstance(items, list):
        raise UsageError(f"{path}: a list in JSON was expected")
    return items


def _items(items: list[Any], path: Path) -> Iterator[Prompt]:
    for number, item in enumerate(items, 1):
        yield from _record(item, f"item {number}", f"{path}, item {number}")


def _record(record: object, key: str, where: str) -> Iterator[Prompt]:
    """The prompt of a record, none where a conversation has no question."""
    if not isinstance(record, dict):
        raise UsageError(f"{where}: {_EXPECTED} was expected, not {_short(record)}")
    read: Callable[[_Record, str, str], Prompt | None]
    if "conversations" in record:
        read = _sharegpt
    elif "body" in record and "url" in record:
        read = _batch
    elif ("prompt" in record) != ("messages" in record):
        read = _own
    else:
        raise UsageError(f"{where}: {_EXPECTED} was expected; there are: {', '.join(map(str, record)) or 'no keys'}")
    name = record.get("custom_id", record.get("id"))
    if name is not None and type(name) not in (str, int):
        raise UsageError(f"{where}: a text or a number was expected as id, not {_short(name)}")
    prompt = read(record, key if name is None or name == "" else str(name), where)
    if prompt is not None:
        yield prompt


def _own(record: _Record, key: str, where: str) -> Prompt:
    if "messages" in record:
        return Prompt(key, _KIND, messages=_messages(record["messages"], where))
    prompt = record["prompt"]
    if isinstance(prompt, str) and prompt:
        return Prompt(key, _KIND, messages=(("user", prompt),))
    return _ids(prompt, key, where)


def _batch(record: _Record, key: str, where: str) -> Prompt:
    body, url = record["body"], record["url"]
    if record.get("method", "POST") != "POST" or not isinstance(body, dict):
        raise UsageError(f"{where}: method POST and an object as body were expected")
    if url == "/v1/chat/completions":
        return Prompt(key, _KIND, messages=_messages(body.get("messages"), where))
    if url != "/v1/completions":
        raise UsageError(f"{where}: url /v1/chat/completions or /v1/completions was expected, not {_short(url)}")
    prompt = body.get("prompt")
    if isinstance(prompt, str) and prompt:
        return Prompt(key, _KIND, text=prompt)
    return _ids(prompt, key, where)


def _ids(prompt: object, key: str, where: str) -> Prompt:
    if not isinstance(prompt, list) or not prompt or not all(type(i) is int and i >= 0 for i in prompt):
        raise UsageError(f"{where}: a text or a list of token ids was expected as prompt, not {_short(prompt)}")
    return Prompt(key, _KIND, ids=tuple(prompt))


def _sharegpt(record: _Record, key: str, where: str) -> Prompt | None:
    turns = record["conversations"]
    if not isinstance(turns, list):
        raise UsageError(f"{where}: a list was expected as conversations, not {_short(turns)}")
    messages: list[tuple[str, str]] = []
    for number, turn in enumerate(turns, 1):
        if not isinstance(turn, dict) or not all(isinstance(turn.get(name), str) for name in ("from", "value")):
            raise UsageError(f"{where}, turn {number}: texts were expected as from and value, not {_short(turn)}")
        role = _SHAREGPT.get(turn["from"])
        if role is None or not turn["value"].strip():
            continue
        messages.append((role, turn["value"]))
        if role == "user":
            return Prompt(key, _KIND, messages=tuple(messages))
    return None


def _messages(messages: object, where: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(messages, list) or not messages:
        raise UsageError(f"{where}: a list of messages was expected, not {_short(messages)}")
    found = []
    for number, message in enumerate(messages, 1):
        here = f"{where}, message {number}"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in _ROLES:
            raise UsageError(
                f"{here}: an object whose role is one of {', '.join(_ROLES)} was expected, not {_short(message)}"
            )
        found.append((str(role), _content(message.get("content"), here)))
    return tuple(found)


def _content(content: object, where: str) -> str:
    """Of a message: a text, or a list of parts that are texts."""
    if isinstance(content, list):
        parts = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content
        ]
        if parts and all(isinstance(part, str) for part in parts):
            return "".join(map(str, parts))
    if not isinstance(content, str):
        raise UsageError(f"{where}: content was expected to be text, not {_short(content)}")
    return content


def _with_unique_keys(prompts: list[Prompt]) -> tuple[Prompt, ...]:
    """A key that was used before gets a number: `a`, `a #2`."""
    last: dict[str, int] = {}  # of each key, the number that it got last
    found = []
    for prompt in prompts:
        key = prompt.key
        while key in last:
            last[prompt.key] += 1
            key = f"{prompt.key} #{last[prompt.key]}"
        last[key] = 1
        found.append(replace(prompt, key=key))
    return tuple(found)


def _short(value: object) -> str:
    said = repr(value)
    return said if len(said) <= 80 else said[:79] + "…"
