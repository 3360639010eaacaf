"""Each format from a log that its tool wrote, and what is said of files that are none."""

from __future__ import annotations

import gzip
import json
import math
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from queueproof.audit.runs.model import About, Sample
from queueproof.audit.runs.readers import NAMES, open_run
from queueproof.contract.errors import ContractError, UsageError

DATA = Path(__file__).parent / "data"


def read(path: Path, format: str | None = None) -> tuple[About, list[Sample]]:
    about, samples = open_run(path, format)
    return about, list(samples)


def lines(path: Path, *values: Any) -> Path:
    path.write_text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values), encoding="utf-8")
    return path


def test_lm_eval_generated() -> None:
    about, samples = read(DATA / "lm_eval_alone")
    assert about.format == "lm-eval" and list(about.models) == ["smollm2"]
    assert len(samples) == 12 and {s.variant for s in samples} == {"first-word", "whole"}
    german = samples[1]
    assert german.task == "tiny_qa" and german.id == "1" and german.target == "Wien"
    assert german.prompt == "Wie heißt die Hauptstadt von Österreich?"
    assert german.answers[0].text.startswith("Die Hauptstadt von Österreich")
    assert [(s.name, s.value) for s in german.scores] == [("exact_match,first-word", 0.0)]
    assert german.document is not None and german.document.startswith("8a097dee")
    assert about.reported["tiny_qa", "exact_match,whole"] == 0.0


def test_lm_eval_options_and_whole_texts() -> None:
    about, samples = read(DATA / "lm_eval_choice_a")
    choice = next(s for s in samples if s.task == "tiny_mc")
    assert [o.text for o in choice.options] == [" blue", " green", " made of cheese"]
    assert choice.options[0].logprob == -0.10905784593110368 and choice.options[0].greedy is False
    assert [(s.name, s.value) for s in choice.scores] == [("acc", 1.0), ("acc_norm", 1.0)]
    rolling = next(s for s in samples if s.task == "tiny_ppl")
    assert rolling.options[0].logprob == -0.5756510141648885 and not rolling.answers
    assert rolling.scores[0].value is None and rolling.scores[0].text == "[-0.5756510141648885, 8]"
    assert about.reported["tiny_mc", "acc"] == 0.25


def test_lm_eval_newest_of_each_task(tmp_path: Path) -> None:
    shutil.copytree(DATA / "lm_eval_alone", tmp_path / "run" / "model")
    source = next((DATA / "lm_eval_crowd").glob("samples_*"))
    shutil.copy(source, tmp_path / "run" / "model" / source.name)
    about, samples = read(tmp_path / "run")
    assert len(samples) == 12 and about.files == [str(tmp_path / "run" / "model" / source.name)]
    assert about.notes == ["1 older file of the same tasks left out: the newest of each was read"]
    shutil.copytree(DATA / "lm_eval_alone", tmp_path / "run" / "other")
    with pytest.raises(UsageError, match="several folders.*model, other"):
        read(tmp_path / "run")


def test_lm_eval_of_an_older_version(tmp_path: Path) -> None:
    old = {"doc_id": 3, "arguments": [["2+2=", {"until": ["\n"]}]], "resps": [["4", "5"]], "em": 1, "doc_hash": "ab"}
    _, (sample,) = read(lines(tmp_path / "old.jsonl", old))
    assert [a.text for a in sample.answers] == ["4", "5"]
    assert [(s.name, s.value) for s in sample.scores] == [("em", 1.0)]


@pytest.mark.parametrize("name", ["alone.eval", "alone.json.gz"])
def test_inspect(name: str) -> None:
    about, samples = read(DATA / name)
    assert about.format == "inspect" and list(about.models) == ["openai-api/llama/smollm2"] and not about.notes
    first = samples[0]
    assert (first.task, first.epoch) == ("tiny_qa", 1)
    assert {s.name for s in first.scores} == {"includes", "match"}
    (answer,) = first.answers
    assert answer.tokens is not None and answer.logprobs is not None and answer.margins is not None
    assert answer.text.startswith("".join(answer.tokens[:5])) and answer.finish_reason == "length"
    assert ("tiny_qa", "includes: accuracy") in about.reported


def test_inspect_epochs_and_letters() -> None:
    _, samples = read(DATA / "alone.eval")
    assert [(s.id, s.epoch) for s in samples] == [("q1", 1), ("q3", 1), ("q1", 2), ("q3", 2)]
    correct = next(s for s in samples if s.id == "q3").scores[0]
    assert (correct.name, correct.text, correct.value) == ("includes", "C", 1.0)


def test_inspect_unfinished() -> None:
    about, samples = read(DATA / "unfinished.eval")
    assert samples == [] and about.notes == ["unfinished.eval was not finished: the samples that it has were read"]


INSPECTED = {
    "id": 7,
    "epoch": 2,
    "input": [{"role": "user", "content": "attachment://" + "0" * 32}],
    "target": ["a", "b"],
    "messages": [
        {"role": "user", "content": "attachment://" + "0" * 32},
        {"role": "assistant", "id": "m1", "content": "", "tool_calls": [{"function": "add", "arguments": {"x": 1}}]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "id": "m2", "content": [{"type": "reasoning", "reasoning": "hm"}, {"text": "three"}]},
    ],
    "output": {
        "choices": [
            {
                "message": {"id": "m2", "role": "assistant", "content": [{"reasoning": "hm"}, {"text": "three"}]},
                "stop_reason": "stop",
            }
        ]
    },
    "scores": {"grade": {"value": {"style": 3, "truth": "P"}}, "odd": {"value": math.nan}},
    "attachments": {"0" * 32: "What is 1 + 2?"},
}
LOG = {"version": 2, "status": "success", "eval": {"task": "sums", "model": "m"}, "samples": [INSPECTED]}


def test_inspect_agents_attachments_and_scores(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(LOG, indent=2))
    _, (sample,) = read(path)
    assert sample.prompt == "What is 1 + 2?" and sample.epoch == 2 and sample.target == "ab"
    assert [a.text for a in sample.answers] == ['[call of add: {"x": 1}]', "<think>hm</think>\nthree"]
    assert [(s.name, s.value) for s in sample.scores[:2]] == [("grade.style", 3.0), ("grade.truth", 0.5)]
    assert math.isnan(sample.scores[2].value or 0)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_inspect_other_compression(method: int, tmp_path: Path) -> None:
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("samples/7_epoch_2.json", json.dumps(INSPECTED | {"error": {"message": "no luck"}}))
        archive.writestr("header.json", json.dumps({k: v for k, v in LOG.items() if k != "samples"}))
    _, (sample,) = read(path)
    assert sample.failed == "no luck" and sample.answers == ()


def test_inspect_damaged(tmp_path: Path) -> None:
    whole = (DATA / "alone.eval").read_bytes()
    path = tmp_path / "log.eval"
    path.write_bytes(whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:])
    with pytest.raises(ContractError, match="is damaged"):
        read(path)
    path.write_bytes(whole[:5000])
    with pytest.raises(ContractError, match="is damaged"):
        read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "b")
    with pytest.raises(ContractError, match=r"no log of Inspect.*a\.txt"):
        read(path)


def test_openai_batch() -> None:
    about, samples = read(DATA / "batch_alone.jsonl.gz")
    assert about.format == "openai-batch" and len(samples) == 5
    chat, completion = samples[0].answers[0], samples[1].answers[0]
    assert chat.text.startswith("The sun had set") and completion.text.startswith("\n\nThe answer is:")
    for answer in (chat, completion):
        assert answer.ids is not None and len(answer.ids) == len(answer.logprobs or ()) == 12
        assert answer.finish_reason == "length" and answer.prompt_tokens is not None
    assert samples[-1].failed == "HTTP 400: bad prompt" and samples[-1].id == "request-6"


def test_openai_batch_other_forms(tmp_path: Path) -> None:
    completion = {
        "choices": [
            {"index": 1, "text": "b", "finish_reason": "stop"},
            {
                "index": 0,
                "text": "a c",
                "logprobs": {
                    "tokens": ["a", " c"],
                    "token_logprobs": [-0.5, -9999.0],
                    "top_logprobs": [{"a": -0.5, "b": -1.5}, None],
                },
                "token_ids": [5, 6],
            },
        ]
    }
    rows = [
        {"custom_id": "one", "response": {"status_code": 200, "body": completion}, "error": None},
        {"custom_id": "two", "response": None, "error": {"code": "batch_expired", "message": "too late"}},
    ]
    _, (one, two) = read(lines(tmp_path / "out.jsonl", *rows))
    first, second = one.answers
    assert (first.text, first.ids, first.logprobs, first.margins) == ("a c", (5, 6), (-0.5, None), (1.0, None))
    assert second.text == "b" and two.failed == "error: too late"
    with pytest.raises(ContractError, match="input of a batch"):
        read(lines(tmp_path / "in.jsonl", {"custom_id": "one", "method": "POST", "url": "/v1", "body": {}}))
    bad = {"custom_id": "one", "response": {"status_code": 200, "body": {"object": "list"}}}
    with pytest.raises(ContractError, match=r"bad\.jsonl, line 1: an answer has choices.*object"):
        read(lines(tmp_path / "bad.jsonl", bad))


def test_vllm_bench(tmp_path: Path) -> None:
    about, samples = read(DATA / "vllm_bench_alone.json")
    assert about.format == "vllm-bench" and list(about.models) == ["smollm2"] and len(samples) == 6
    assert samples[2].failed is not None and samples[2].answers == ()
    assert samples[0].answers[0].prompt_tokens == 42
    brief = {"request_throughput": 1.0, "total_token_throughput": 2.0}
    with pytest.raises(ContractError, match="--save-detailed"):
        read(lines(tmp_path / "brief.json", brief))
    twice = lines(tmp_path / "twice.json", *[{"generated_texts": ["a", "b"]}] * 2)
    assert [(s.epoch, s.answers[0].text) for s in read(twice)[1]] == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]


def test_guidellm(tmp_path: Path) -> None:
    about, samples = read(DATA / "guidellm_alone.json.gz")
    assert about.format == "guidellm" and list(about.models) == ["smollm2"] and len(samples) == 6
    assert samples[1].prompt == "Wie heißt die Hauptstadt von Österreich?" and samples[1].id is None
    report = json.loads(gzip.decompress((DATA / "guidellm_alone.json.gz").read_bytes()))
    (benchmark,) = report["benchmarks"]
    benchmark["requests"]["errored"] = [benchmark["requests"]["successful"].pop()]
    other = benchmark | {"config": {"strategy": {"type_": "concurrent", "streams": 8}}}
    path = lines(tmp_path / "two.json", report | {"benchmarks": [benchmark, other]})
    _, samples = read(path)
    assert {s.task for s in samples} == {"concurrent streams 1", "concurrent streams 8"}
    assert [s.failed for s in samples[5:6]] == ["errored request"]


def test_answers_of_an_audit(tmp_path: Path) -> None:
    line = {
        "role": "reference",
        "prompt": "chat-1",
        "text": "ab",
        "ids": [1, 2],
        "tokens": ["a", "b"],
        "logprobs": [-1.0, None],
        "finish_reason": "stop",
        "ask": {"max_tokens": 32, "temperature": 0.0, "seed": None},
    }
    hot = line | {"role": "same seed", "ask": {"max_tokens": 32, "temperature": 0.8, "seed": 4}}
    lines(tmp_path / "answers.jsonl", line, hot)
    for path in (tmp_path, tmp_path / "answers.jsonl"):
        about, (cold, warm) = read(path)
        assert about.format == "audit"
        assert (cold.task, cold.id, cold.answers[0].ids) == ("reference", "chat-1, 32 tokens", (1, 2))
        assert warm.id == "chat-1, 32 tokens, temperature 0.8, seed 4"


def test_plain(tmp_path: Path) -> None:
    rows = [
        {"id": "ä", "prompt": "naïve? 猫", "answer": "\u202e🤖\x1b[31m", "scores": {"em": True, "f1": math.nan}},
        {"question": [{"role": "user", "content": "hi"}], "output": ["a", "b"], "expected": "a", "epoch": 2},
        {"id": 3, "response": {"choices": [{"message": {"content": "c"}}]}, "score": 0.5},
        {"key": "x", "text": "t", "token_ids": [1], "tokens": ["t"], "logprobs": [-2], "correct": False},
        {"id": 5, "error": "timeout"},
    ]
    expected = ["ä", None, "3", "x", "5"]
    for path in (lines(tmp_path / "a.jsonl", *rows), tmp_path / "a.json", tmp_path / "a.jsonl.gz"):
        if path.suffix == ".json":
            path.write_text(json.dumps(rows, indent=1))
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
        about, samples = read(path)
        assert about.format == "plain" and [s.id for s in samples] == expected
        assert samples[0].answers[0].text == "\u202e🤖\x1b[31m" and samples[0].scores[0].value == 1.0
        assert samples[1].prompt == "hi" and len(samples[1].answers) == 2 and samples[1].target == "a"
        assert samples[2].answers[0].text == "c" and samples[2].scores[0].value == 0.5
        assert samples[3].answers[0].ids == (1,) and samples[3].answers[0].logprobs == (-2.0,)
        assert samples[4].failed == "timeout"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"id": 1, "answer": "a"}\n{"id": 2, "ans', "run, line 2 is not JSON.*may have been cut"),
        (b'{"id": 1, "answer": "a"}\n{"id": 2}\n', "run, line 2: a sample has one of answer, text"),
        (b'{"id": 1, "answer": "a"}\n[3]\n', r"run, line 2: a sample is an object; found \[3\]"),
        (b'{"id": 1, "answer": {"x": 1}, "scores": [1]}\n', "scores is an object"),
        (b'{"id": 1, "answer": "a", "ids": ["x"]}\n', "ids is a list"),
        (b'{"id": 1, "answer": "a", "epoch": "one"}\n', "an epoch is a number"),
        (b'{"id": 1, "answer": "\xff"}\n', "not text in UTF-8"),
        (b"hello\nworld\n", "neither JSON nor JSON lines.*hello"),
        (b'{"a": 1}\n', "line 1 is of no known format: an object with a. Known are lm-eval: "),
        (b"[1, 2]", "item 1 is of no known format: 1"),
        (b'{"results": {}, "configs": {}}', "results of lm-eval without its samples"),
        (b'{"doc_id": 1, "resps": 3}\n', "resps is a list"),
        (b'{"doc_id": 1, "resps": [[["x", "True"]]]}\n', "a log-likelihood is a number"),
        (b'{"role": 1, "ask": {}, "prompt": "p", "text": "t", "ids": 3}\n', "not an answer as an audit writes it"),
        (b"\x1f\x8b\x08junk", "cannot be read"),
        (b"[" * 100_000, "neither JSON nor JSON lines"),
    ],
)
def test_malformed(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(content)
    with pytest.raises((ContractError, UsageError), match=said):
        read(tmp_path / "run")


def test_empty(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("\n\n")
    about, samples = read(path)
    assert samples == [] and about.format == "empty" and about.notes == ["empty.jsonl is empty"]


def test_what_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not there"):
        read(tmp_path / "none")
    with pytest.raises(UsageError, match="folder without a run.*it has nothing"):
        read(tmp_path)
    with pytest.raises(UsageError, match="no format 'csv'; known are: lm-eval"):
        read(tmp_path, "csv")


def test_a_forced_format(tmp_path: Path) -> None:
    path = lines(tmp_path / "run.jsonl", {"custom_id": "a", "response": "b", "error": None})
    with pytest.raises(ContractError, match="response is an object"):
        read(path)
    _, (sample,) = read(path, "plain")
    assert (sample.id, sample.answers[0].text) == ("a", "b")
    for name in NAMES:
        if name != "plain":
            with pytest.raises(ContractError):
                read(path, name)


@pytest.mark.parametrize(
    "value",
    [
        {"role": "reference", "prompt": "a", "text": "b", "ask": {}, "ids": [1], "logprobs": [-(10**400)]},
        {"benchmarks": [{"requests": 5}]},
        {"eval": {"task": "t"}, "samples": 5},
    ],
)
def test_a_value_of_another_type_is_named_with_its_place(tmp_path: Path, value: dict[str, Any]) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(value))
    _, samples = open_run(path)
    with pytest.raises(ContractError, match="run.json, line 1"):
        list(samples)
