"""The offline interface, and the names at the top of the package."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest

import queueproof
from queueproof import LLM, SamplingParams
from queueproof.contract.errors import EngineError, InvalidParameter, RequestTooLong
from queueproof.engine.llm import _Bar
from tests.support.fake_backend import load_fake

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def llm(**options: Any) -> LLM:
    return LLM(load_fake(**options), num_blocks=64)


def test_outputs_are_in_the_order_of_the_prompts() -> None:
    prompts = ["abc", [1, 2, 3], {"prompt_token_ids": [4]}, {"prompt": "x"}]
    outputs = llm().generate(
        prompts, [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (4, 1, 3, 2)]
    )
    assert [len(o.outputs[0].token_ids) for o in outputs] == [4, 1, 3, 2]
    assert [o.prompt for o in outputs] == ["abc", None, None, "x"]
    assert all(o.finished and o.arithmetic == "ieee/1" and o.determinism_class == "portable" for o in outputs)


def test_one_prompt_needs_no_list() -> None:
    model = llm()
    for prompt in ("abc", [1, 2, 3], np.array([1, 2, 3]), {"prompt": "abc"}):
        assert len(model.generate(prompt, GREEDY)) == 1
    assert model.generate([], GREEDY) == []
    assert len(model.generate("abc")[0].outputs[0].token_ids) <= 16


def test_one_request_that_cannot_be_served_stops_all_before_they_start() -> None:
    model = llm()
    with pytest.raises(RequestTooLong):
        model.generate([[1], [1] * 600], GREEDY)
    with pytest.raises(InvalidParameter, match="must not be empty"):
        model.generate(["a", ""], GREEDY)
    with pytest.raises(InvalidParameter, match="1 of them.*or 2"):
        model.generate(["a", "b"], [GREEDY])
    assert model.stats.steps == 0 and not model.engine.has_work


def test_chat() -> None:
    model = llm()
    conversation = [{"role": "user", "content": "hi"}]
    [one] = model.chat(conversation, GREEDY)
    assert one.prompt_token_ids == load_fake().tokenizer.encode_chat(conversation)
    assert [o.outputs[0].token_ids for o in model.chat([conversation, conversation], GREEDY)] == [
        one.outputs[0].token_ids
    ] * 2
    with pytest.raises(InvalidParameter, match="must not be empty"):
        model.chat([], GREEDY)
    with pytest.raises(InvalidParameter, match="chat option"):
        model.chat(conversation, GREEDY, enable_thinking=True)


def test_progress_is_called_as_requests_end() -> None:
    calls: list[tuple[int, int]] = []
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 3, 3)]
    llm().generate(["a", "b", "c"], params, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 3), (3, 3)]


def test_a_bar_for_what_takes_long(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    model = llm()
    model.generate("a", GREEDY, use_tqdm=True)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr("queueproof.engine.llm._QUIET_SECONDS", 0.0)
    model.generate("a", GREEDY, use_tqdm=True)
    assert "1/1" in capsys.readouterr().out
    bar = _Bar(3)
    bar.close()


def test_after_a_failed_step_the_next_call_starts_anew() -> None:
    model = llm(crash_token=50)
    with pytest.raises(RuntimeError, match="crashed, as asked"):
        model.generate([[1] * 40, [50]], GREEDY)
    assert not model.engine.has_work
    model.engine.check_integrity()
    assert len(model.generate([[1] * 40], GREEDY)[0].outputs[0].token_ids) == 5


def test_stats_are_a_copy() -> None:
    model = llm()
    model.generate([1] * 40, GREEDY)
    before = model.stats
    model.generate([1] * 40, GREEDY)
    assert before.generated_tokens == 5 and model.stats.prefix_cache_hit_tokens == 32
    model.reset_stats()
    model.reset_prefix_cache()
    model.generate([1] * 40, GREEDY)
    assert model.stats.prefix_cache_hit_tokens == 0 and model.stats.prompt_tokens == 40


def test_closing() -> None:
    with llm() as model:
        model.generate("a", GREEDY)
    with pytest.raises(EngineError, match="closed"):
        model.generate("a", GREEDY)


def test_threads_take_turns() -> None:
    model = llm()
    prompts: list[list[int]] = [[i, i + 1, 3] * 7 for i in range(12)]
    alone = [model.generate(p, GREEDY)[0].outputs[0].token_ids for p in prompts]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(10):
            together = pool.map(lambda p: model.generate(p, GREEDY)[0].outputs[0].token_ids, prompts)
            assert list(together) == alone
    model.engine.check_integrity()


def test_closing_while_another_thread_generates_waits() -> None:
    model, started = llm(), Event()
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 300)]
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(model.generate, [[1], [2]], params, progress=lambda *_: started.set())
        assert started.wait(20)
        model.close()
        assert all(output.finished for output in answer.result(20))


def test_requests_that_are_dropped_are_no_answers() -> None:
    model = llm()
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 9)]
    with pytest.raises(EngineError, match="dropped"):
        model.generate([[1], [2]], params, progress=lambda *_: model.close())


def test_public_names() -> None:
    for name in queueproof.__all__:
        assert getattr(queueproof, name).__name__ == name
    assert set(queueproof.__all__) <= set(dir(queueproof))
    with pytest.raises(AttributeError, match="no attribute 'LMM'"):
        _ = queueproof.LMM


def test_the_package_is_imported_lazily() -> None:
    code = "import sys, queueproof; assert not {'numpy', 'numba', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("prompts", "params", "named"),
    [
        (None, None, "prompts"),
        (5, None, "prompts"),
        ("a", {"temperature": 0}, "sampling_params"),
        ("a", "greedy", "sampling_params"),
        ("a", [1], "sampling_params"),
    ],
)
def test_arguments_of_other_types_are_named(prompts: Any, params: Any, named: str) -> None:
    with LLM(load_fake(), num_blocks=8) as llm, pytest.raises(InvalidParameter) as caught:
        llm.generate(prompts, params)
    assert caught.value.name == named


@pytest.mark.parametrize("messages", ["hello", None, [], {"role": "user", "content": "a"}])
def test_a_conversation_is_a_list(messages: Any) -> None:
    with LLM(load_fake(), num_blocks=8) as llm, pytest.raises(InvalidParameter, match="messages"):
        llm.chat(messages)
