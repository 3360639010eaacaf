"""Receipts of answers from a busy engine, run again alone on another one."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import pytest

from queueproof.contract.receipt import ReceiptAnswer, read_document, with_id
from queueproof.contract.verdict import Outcome, What
from queueproof.engine.guide import library
from queueproof.engine.llm import LLM
from queueproof.engine.replay import receipt_model, replay
from queueproof.engine.sampling_params import SamplingParams
from queueproof.kernels.registry import backend
from tests.support.fake_backend import FakeConfig, FakeLoaded, FakeTokenizer, load_fake
from tests.support.replays import receipt_of
from tests.support.tiny import TinyConfig, build

CONFIG = TinyConfig()


def tiny_llm(door: Any, config: TinyConfig = CONFIG, **options: Any) -> LLM:
    model: Any = FakeLoaded(
        FakeConfig(97, (0,)), build(door, config), FakeTokenizer(97, pieces={5: b"ab"}), door, config.max_len
    )
    return LLM(model, **options)


PARAMS = [
    SamplingParams(max_tokens=20, temperature=0.0),
    SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True, frequency_penalty=0.7, presence_penalty=0.25),
    SamplingParams(max_tokens=24, temperature=8.0, seed=(1 << 64) - 1, ignore_eos=True, n=2),
    SamplingParams(max_tokens=24, temperature=9.5, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.2, seed=2),
    SamplingParams(
        max_tokens=90, temperature=8.0, stop=["ab", "Q"], min_tokens=3, include_stop_str_in_output=True, seed=3
    ),
    SamplingParams(
        max_tokens=90, temperature=8.0, stop_token_ids=[7, 9, 11, 30], logit_bias={7: 0.5, 60: -3.0}, seed=4
    ),
    SamplingParams(max_tokens=None, temperature=8.0, logprobs=2, top_k=1 << 40, seed=5),
    SamplingParams(max_tokens=30, temperature=8.0, skip_special_tokens=False, detokenize=False, ignore_eos=True),
]


@pytest.fixture(scope="module")
def receipts() -> list[Any]:
    """Of a batch on 2 threads, with chunks, preemption, guesses and a prefix cache that has been used."""
    rng = random.Random(1)
    shared = [rng.randrange(97) for _ in range(40)]
    prompts = [shared[: 8 * i] + [rng.randrange(97) for _ in range(1 + 5 * i)] for i in range(len(PARAMS))]
    options = {"max_num_seqs": 5, "max_num_batched_tokens": 48, "num_speculative_tokens": 2}
    made = []
    with tiny_llm(backend("ieee/1"), threads=2, max_model_len=256, num_blocks=13, **options) as llm:
        llm.generate(prompts, SamplingParams(max_tokens=1))
        outputs = llm.generate(prompts, PARAMS)
        assert llm.stats.preemptions > 0 and llm.stats.prefix_cache_hit_tokens > 0 and llm.stats.largest_batch > 3
        for output, params in zip(outputs, PARAMS, strict=True):
            made += [receipt_of(llm, output, params, choice.index) for choice in output.outputs]
    reasons = {receipt.answer.finish_reason for receipt in made}
    assert reasons == {"stop", "length"} and len({r.sampling.seed for r in made}) == len(made)
    return made


@pytest.fixture(scope="module")
def alone() -> Iterator[LLM]:
    with tiny_llm(backend("ieee/1"), threads=1, max_num_seqs=1, block_size=32) as llm:
        yield llm


def test_receipts_replay_on_another_engine(receipts: list[Any], alone: LLM) -> None:
    for receipt in receipts:
        read = read_document(receipt.to_json()).receipt
        assert replay(alone, read).outcome is Outcome.SAME, read.sampling
    assert alone.stats.largest_batch == 1 and alone.stats.prefix_cache_hit_tokens == 0


def test_digests_are_enough_where_the_prompt_is_given(receipts: list[Any], alone: LLM) -> None:
    whole = receipts[3]
    answer = ReceiptAnswer(whole.answer.finish_reason, whole.answer.tokens, whole.answer.sha256)
    receipt = with_id(dataclasses.replace(whole, prompt_token_ids=None, answer=answer))
    assert "does not hold the prompt" in (replay(alone, receipt).reason or "")
    assert replay(alone, receipt, whole.prompt_token_ids).outcome is Outcome.SAME
    other = with_id(dataclasses.replace(receipt, sampling=dataclasses.replace(receipt.sampling, seed="1")))
    found = replay(alone, other, whole.prompt_token_ids)
    assert found.outcome is Outcome.DIFFERENT and found.difference is not None and found.difference.step is None


@pytest.mark.parametrize(
    "change",
    [{"seed": "1"}, {"temperature": 20.0}, {"top_k": 3}, {"repetition_penalty": 1.5}, {"frequency_penalty": 1.5}],
    ids=str,
)
def test_every_parameter_is_used(receipts: list[Any], alone: LLM, change: dict[str, Any]) -> None:
    """Negative control: a receipt whose parameters are not those of its answer."""
    receipt = receipts[4]
    lie = with_id(dataclasses.replace(receipt, sampling=dataclasses.replace(receipt.sampling, **change)))
    verdict = replay(alone, lie)
    assert verdict.outcome is Outcome.DIFFERENT and verdict.difference is not None
    assert verdict.difference.what is What.TOKEN
    assert verdict.difference.receipt.token and verdict.difference.replay.token


def test_other_arithmetic_is_different(receipts: list[Any]) -> None:
    """Negative control: the libraries' own sums, under a false name."""
    door: Any = backend("vendor")
    with tiny_llm(door) as llm:
        assert "of the arithmetic ieee/1, this is vendor" in (replay(llm, receipts[0]).reason or "")
    door.arithmetic = "ieee/1"
    with tiny_llm(door) as llm:
        verdicts = [replay(llm, receipt) for receipt in receipts]
    assert all(v.outcome is Outcome.DIFFERENT for v in verdicts)
    assert any(v.difference is not None and v.difference.what in (What.LOGPROB, What.LSE) for v in verdicts)


def test_another_model_cannot_tell(receipts: list[Any]) -> None:
    with tiny_llm(backend("ieee/1"), TinyConfig(seed=1)) as llm:
        verdict = replay(llm, receipts[0])
    assert verdict.outcome is Outcome.UNKNOWN and "another model" in (verdict.reason or "")


def test_what_does_not_fit_cannot_be_told(receipts: list[Any]) -> None:
    with tiny_llm(backend("ieee/1"), num_blocks=1) as llm:
        verdict = replay(llm, receipts[4])
    assert verdict.outcome is Outcome.UNKNOWN and "can never fit" in (verdict.reason or "")


def test_a_smaller_context_is_enough_for_an_answer_that_ended_early() -> None:
    params = SamplingParams(max_tokens=None, temperature=0.0, stop=["Q", "3", "b", "o", "9"])
    with LLM(load_fake(max_len=512)) as llm:
        receipt = receipt_of(llm, llm.generate([1, 2, 3], params)[0], params)
    assert receipt.sampling.max_tokens == 509 and receipt.answer.tokens < 100
    with LLM(load_fake(max_len=512), max_model_len=receipt.answer.tokens + 4) as llm:
        assert replay(llm, receipt).outcome is Outcome.SAME


def test_an_answer_that_becomes_nan_is_different() -> None:
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    with LLM(load_fake()) as llm:
        receipt = receipt_of(llm, llm.generate([1, 2, 3], params)[0], params)
    assert receipt.answer.token_ids is not None
    with LLM(load_fake(nan_token=receipt.answer.token_ids[3])) as llm:
        receipt = with_id(dataclasses.replace(receipt, model=receipt_model(llm.engine.model)))
        verdict = replay(llm, receipt)
    assert verdict.outcome is Outcome.DIFFERENT and verdict.difference is not None


def test_a_difference_in_best_effort_proves_nothing() -> None:
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    with LLM(load_fake(arithmetic="vendor", broken=True)) as llm:
        outputs = llm.generate([[1, 2, 3], [4, 5, 6]], params)
        receipt = receipt_of(llm, outputs[0], params)
        verdict = replay(llm, receipt)
    assert verdict.outcome is Outcome.UNKNOWN and verdict.difference is not None
    assert "proves nothing" in (verdict.reason or "")


def test_a_guided_answer_is_guided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llguidance")
    pieces = {i + 1: text.encode() for i, text in enumerate('{}":, 0123456789ab')}
    model = load_fake(eos_ids=(0,), pieces=pieces)
    schema = '{"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"], "additionalProperties": false}'
    params = SamplingParams(max_tokens=60, temperature=1.0, guide=schema, seed=1)
    with LLM(model, max_num_seqs=4) as llm:
        outputs = llm.generate([[1, 2, 3], [4, 5, 6], [7, 8]], params)
        made = [receipt_of(llm, output, params) for output in outputs]
        receipts = [
            with_id(dataclasses.replace(r, sampling=dataclasses.replace(r.sampling, guide_library=library())))
            for r in made
        ]
    assert all(receipt.answer.finish_reason == "stop" for receipt in receipts)
    with LLM(model, max_num_seqs=1) as llm:
        assert all(replay(llm, receipt).outcome is Outcome.SAME for receipt in receipts)
        other = with_id(dataclasses.replace(made[0], sampling=dataclasses.replace(made[0].sampling, guide='{"const": 9}')))
        verdict = replay(llm, other)
        assert verdict.outcome is Outcome.UNKNOWN and "may allow other tokens" in (verdict.reason or "")
        monkeypatch.setattr("queueproof.engine.replay.library", lambda: None)
        assert "not installed here" in (replay(llm, receipts[0]).reason or "")
