from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from queueproof.cli import loading
from queueproof.cli.main import app
from queueproof.kernels.registry import default_arithmetic
from tests.support.fake_backend import load_fake

run = CliRunner().invoke


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(model: str, arithmetic: str | None, report: Any, device: str) -> Any:
        return load_fake(arithmetic=arithmetic or default_arithmetic(device))

    monkeypatch.setattr(loading, "load", load)


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded before the request was checked")

    monkeypatch.setattr(loading, "load", refuse)


def test_a_prompt_is_streamed_and_is_the_answer() -> None:
    text = run(app, ["generate", "Hello", "--max-tokens", "9"])
    record = json.loads(run(app, ["generate", "Hello", "--max-tokens", "9", "--json"]).stdout)
    assert text.exit_code == 0
    assert text.stdout == record["outputs"][0]["text"] + "\n"
    assert len(record["outputs"][0]["token_ids"]) == len(record["outputs"][0]["logprob_bits"]) == 9
    assert (record["arithmetic"], record["class"]) == ("ieee/1", "portable")


def test_the_prompt_may_come_from_standard_input() -> None:
    assert run(app, ["generate", "-"], input="Hello").stdout == run(app, ["generate", "Hello"]).stdout


def test_chat_uses_the_template() -> None:
    plain, chat = (json.loads(run(app, ["generate", "hi", "--json", *o]).stdout) for o in ([], ["--chat"]))
    with_system = json.loads(run(app, ["generate", "hi", "--json", "--chat", "--system", "be kind"]).stdout)
    lengths = [len(r["prompt_token_ids"]) for r in (plain, chat, with_system)]
    assert lengths == sorted(set(lengths))


def test_sampling_options_arrive() -> None:
    options = ["--temperature", "2", "--seed", "7", "--top-k", "40", "--json"]
    record = json.loads(run(app, ["generate", "Hello", *options]).stdout)
    assert record["outputs"][0]["seed"] == 7
    greedy = json.loads(run(app, ["generate", "Hello", "--json"]).stdout)
    assert record["outputs"][0]["token_ids"] != greedy["outputs"][0]["token_ids"]


def test_a_file_is_answered_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text(
        '{"prompt": "Hello", "max_tokens": 3}\n\n'
        '{"messages": [{"role": "user", "content": "hi"}], "temperature": 1.0, "seed": 5, "n": 2}\n'
        '{"prompt_token_ids": [1, 2, 3], "logprobs": 2, "cache_salt": "a"}\n'
    )
    result = run(app, ["generate", "--file", str(file), "--max-tokens", "6", "--json"])
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [r["line"] for r in records] == [1, 3, 4]
    assert [len(r["outputs"]) for r in records] == [1, 2, 1]
    assert [len(r["outputs"][0]["token_ids"]) for r in records] == [3, 6, 6]
    assert [o["seed"] for o in records[1]["outputs"]] == [5, 6]


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no request"),
        ("{", "line 1 is not JSON"),
        ("[]", "line 1 must be an object"),
        ('{"max_tokens": 3}', "exactly one of prompt, prompt_token_ids, messages"),
        ('{"prompt": "a", "prompt_token_ids": [1]}', "exactly one of"),
        ('{"prompt": "a"}\n{"prompt": "a", "temperatur": 1}', "there is no such sampling parameter"),
        ('{"prompt": "a"}\n{"prompt": "a", "max_tokens": -1}', "line 2"),
        ('{"prompt": "a", "temperature": NaN}', "temperature"),
    ],
)
def test_a_bad_file_is_exit_2_before_anything_is_loaded(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text(content)
    result = run(app, ["generate", "--file", str(file)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either a prompt or --file"),
        (["a", "--file", "b"], "give either a prompt or --file"),
        (["a", "--system", "b"], "--system needs --chat"),
        ([""], "must not be empty"),
        (["a", "--max-tokens", "-1"], "max_tokens=-1"),
        (["a", "--temperature", "nan"], "temperature=nan"),
        (["a", "--top-p", "0"], "top_p=0.0"),
        (["--file", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
    ],
)
def test_bad_input_is_exit_2_before_anything_is_loaded(arguments: list[str], message: str) -> None:
    result = run(app, ["generate", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr and result.stderr.count("\n") == 1


def test_a_prompt_over_the_context_is_exit_2() -> None:
    result = run(app, ["generate", "x" * 600])
    assert result.exit_code == 2
    assert "can never fit" in result.stderr


def test_a_nan_from_the_model_is_an_error_and_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load", lambda *_, **__: load_fake(nan_token=1))
    result = run(app, ["generate", "1", "--json"])
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["code"] == "numerical"
