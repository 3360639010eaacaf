"""The step loop: requests that cannot be, errors of one request, the prefix cache, siblings, counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from queueproof.contract.errors import EngineError, InvalidParameter, ModelError, NumericalError, RequestTooLong
from queueproof.engine.config import EngineConfig
from queueproof.engine.engine import Engine
from queueproof.engine.outputs import RequestOutput
from queueproof.engine.sampling_params import SamplingParams
from queueproof.kernels.ops import Limits, StepBatch
from tests.support.fake_backend import FakeExecutor, FakeLoaded, FakeRows, load_fake

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def engine(model: FakeLoaded | None = None, **options: Any) -> Engine:
    options = {"num_blocks": 64} | options
    return Engine(model or load_fake(), EngineConfig(**options))


def run(e: Engine, *prompts: Any, params: SamplingParams = GREEDY, **options: Any) -> list[RequestOutput]:
    requests = [e.add_request(prompt, params, **options) for prompt in prompts]
    while e.has_work:
        e.step()
        e.check_integrity()
    return [e.output(request) for request in requests]


def by_hand(model: FakeLoaded, prompt: list[int], params: SamplingParams) -> tuple[list[int], bytes, bytes]:
    """The answer from the executor itself, one sequence, the whole text computed anew for every token."""
    blocks = 32
    executor = FakeExecutor(model.forward, Limits(512, 1, 1, blocks, 16, 512))
    rows, text, logprobs, lses = FakeRows(), list(prompt), [], []
    for _ in range(params.max_tokens or 0):
        n = len(text)
        place = np.arange(n, dtype=np.int32)
        executor.forward(
            StepBatch(
                np.array(text, np.int32), place, place.astype(np.int64), np.array([0, n], np.int32),
                np.arange(blocks, dtype=np.int32)[None],
            )
        )  # fmt: skip
        logits = executor.logits(np.array([n - 1], np.int32))
        best, top, logz = rows.stats(logits)
        token = int(best[0])
        if params.temperature:
            assert params.seed is not None
            token = rows.sample(logits[0], params.temperature, params.top_k, params.top_p, params.min_p, params.seed, n)
        logprobs.append((logits[0, token] - top[0]) - logz[0])
        lses.append(top[0] + logz[0])
        text.append(token)
    return text[len(prompt) :], np.array(logprobs, np.float32).tobytes(), np.array(lses, np.float32).tobytes()


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_an_answer_is_what_the_definition_says(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_k=9, top_p=0.9, seed=11, max_tokens=30, ignore_eos=True)
    prompt = [5, 9, 13] * 7
    [output] = run(engine(num_speculative_tokens=2, max_num_batched_tokens=8), prompt, params=params)
    answer = output.outputs[0]
    assert (answer.token_ids, answer.logprob_bits.tobytes(), answer.lse_bits.tobytes()) == by_hand(
        load_fake(), prompt, params
    )
    assert answer.logprob_bits.dtype == answer.lse_bits.dtype == np.uint32
    assert answer.cumulative_logprob == sum(answer.logprob_bits.view(np.float32).tolist())


@pytest.mark.parametrize(
    "prompt",
    ["", [], {"prompt": ""}, {"prompt_token_ids": []}, None, 5, [1, -1], [1, 64], [True], [1.0], np.ones((2, 2), np.int32), np.ones(2), {"text": "x"}, {},
     {"prompt": "a", "prompt_token_ids": [1]}, {"prompt": [1]}, {"prompt_token_ids": "abc"}, {"prompt": "a", "x": 1},
     {"prompt": "a", "cache_salt": 3}],
)  # fmt: skip
def test_prompts_that_are_none(prompt: Any) -> None:
    with pytest.raises(InvalidParameter):
        engine().add_request(prompt, GREEDY)


def test_shapes_of_prompts() -> None:
    e = engine()
    outputs = run(
        e, "ab", {"prompt": "ab"}, [49, 50], {"prompt_token_ids": [49, 50], "cache_salt": "s"}, np.array([49, 50])
    )
    assert len({tuple(o.outputs[0].token_ids) for o in outputs}) == 1
    assert [o.prompt for o in outputs] == ["ab", "ab", None, None, None]
    assert all(o.prompt_token_ids == [49, 50] for o in outputs)


def test_what_can_never_fit_is_refused_with_the_reason() -> None:
    e = engine(max_model_len=100, num_blocks=5)
    with pytest.raises(
        RequestTooLong, match="prompt of 90 tokens and max_tokens=12 .* the KV cache of num_blocks=5 x "
    ):
        e.add_request([1] * 90, GREEDY)
    e = engine(max_model_len=100)
    with pytest.raises(RequestTooLong, match="prompt of 90 tokens and max_tokens=12 .* max_model_len=100.*raise"):
        e.add_request([1] * 90, GREEDY)
    with pytest.raises(RequestTooLong, match="prompt of 100 tokens and at least 1 more"):
        e.add_request([1] * 100, SamplingParams(max_tokens=None))
    with pytest.raises(RequestTooLong, match="at least 20 more"):
        e.add_request([1] * 90, SamplingParams(max_tokens=None, min_tokens=20))
    with pytest.raises(RequestTooLong, match="the model's context of 512"):
        engine().add_request([1] * 510, GREEDY)
    assert not e.has_work


@pytest.mark.parametrize(("prompt", "options"), [(88, {"max_model_len": 100}), (69, {"num_blocks": 5})])
def test_what_just_fits(prompt: int, options: dict[str, int]) -> None:
    [output] = run(engine(**options), [1] * prompt)
    assert len(output.outputs[0].token_ids) == 12
    with pytest.raises(RequestTooLong):
        engine(**options).add_request([1] * (prompt + 1), GREEDY)


def test_without_max_tokens_an_answer_may_fill_the_context() -> None:
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    for options, total in (({"max_model_len": 100}, 100), ({"num_blocks": 5}, 81)):
        [output] = run(engine(**options), [1] * 60, params=params)
        assert 60 + len(output.outputs[0].token_ids) == total and output.outputs[0].finish_reason == "length"


def test_ids_outside_the_vocabulary() -> None:
    for params in (SamplingParams(logit_bias={64: 1.0}), SamplingParams(stop_token_ids=[64])):
        with pytest.raises(InvalidParameter, match="64.*ends at 63"):
            engine().add_request([1], params)
    with pytest.raises(InvalidParameter, match="it must be a SamplingParams"):
        engine().add_request([1], {"n": 1})  # type: ignore[arg-type]


def test_one_id_one_request() -> None:
    e = engine()
    e.add_request([1], GREEDY, request_id="a")
    with pytest.raises(InvalidParameter, match="request_id='a'"):
        e.add_request([1], GREEDY, request_id="a")
    run(e)
    e.add_request([1], GREEDY, request_id="a")  # it has ended


def test_a_nan_ends_its_own_request_only() -> None:
    model = load_fake(nan_token=61)
    alone = run(engine(model), [7] * 20)[0]
    good, bad = run(engine(model), [7] * 20, [7] * 19 + [61])
    assert good.outputs[0].token_ids == alone.outputs[0].token_ids
    assert (good.outputs[0].logprob_bits == alone.outputs[0].logprob_bits).all()
    answer = bad.outputs[0]
    assert answer.finish_reason == "error" and answer.token_ids == [] and bad.finished
    assert isinstance(answer.error, NumericalError) and "position 19" in str(answer.error)


def test_a_nan_in_the_prompt_matters_to_those_who_ask_for_its_logprobs() -> None:
    model = load_fake(nan_token=61)
    [plain] = run(engine(model), [7, 61, 7])
    assert plain.outputs[0].finish_reason == "length"
    asks = SamplingParams(temperature=0, prompt_logprobs=0)
    [scored] = run(engine(model), [7, 61, 7], params=asks)
    assert scored.outputs[0].finish_reason == "error" and "position 1 " in str(scored.outputs[0].error)


@pytest.mark.parametrize("caching", [True, False])
def test_siblings_answer_as_requests_of_their_own(caching: bool) -> None:
    prompt = [3] * 40
    seeds = [(1 << 64) - 1, 0, 1]
    params = SamplingParams(n=3, seed=seeds[0], max_tokens=20, ignore_eos=True, logprobs=1)
    e = engine(enable_prefix_caching=caching)
    [together] = run(e, prompt, params=params)
    assert [o.seed for o in together.outputs] == seeds and [o.index for o in together.outputs] == [0, 1, 2]
    for seed, sibling in zip(seeds, together.outputs, strict=True):
        single = SamplingParams(seed=seed, max_tokens=20, ignore_eos=True, logprobs=1)
        own = run(engine(), prompt, params=single)[0].outputs[0]
        assert own.token_ids == sibling.token_ids and own.logprobs == sibling.logprobs and own.text == sibling.text
        assert (own.logprob_bits == sibling.logprob_bits).all()
    assert len({tuple(o.token_ids) for o in together.outputs}) == 3


def test_a_drawn_seed_is_reported_and_repeats_the_answer() -> None:
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    first, second = run(engine(), [1, 2], [1, 2], params=params)
    seed = first.outputs[0].seed
    assert seed != second.outputs[0].seed
    again = run(engine(), [1, 2], params=SamplingParams(max_tokens=20, ignore_eos=True, seed=seed))[0]
    assert again.outputs[0].token_ids == first.outputs[0].token_ids


def test_the_prefix_cache_and_its_salt() -> None:
    e = engine()
    prompt = [9] * 40
    (cold,) = run(e, prompt)
    (warm,) = run(e, prompt)
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 32)
    assert run(e, prompt, cache_salt="a")[0].num_cached_tokens == 0
    assert run(e, prompt, cache_salt="a")[0].num_cached_tokens == 32
    assert run(e, prompt, cache_salt="b")[0].num_cached_tokens == 0
    e.reset_prefix_cache()
    assert run(e, prompt)[0].num_cached_tokens == 0
    assert e.stats.prefix_cache_hit_tokens == 64 and e.stats.prefix_cache_query_tokens == 240
    off = engine(enable_prefix_caching=False)
    run(off, prompt)
    assert run(off, prompt)[0].num_cached_tokens == 0 and off.stats.prefix_cache_query_tokens == 0


def test_answers_are_cached_too() -> None:
    e = engine()
    [first] = run(e, [9] * 30, params=SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    longer = [9] * 30 + first.outputs[0].token_ids[:30]
    assert run(e, longer)[0].num_cached_tokens == 48


def test_prompt_logprobs_in_chunks_equal_those_at_once() -> None:
    prompt = list(range(50))
    params = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=2, logprobs=2)
    [whole] = run(engine(), prompt, params=params)
    e = engine(max_num_batched_tokens=7, max_num_seqs=2)
    [chunks] = run(e, prompt, params=params)
    [again] = run(e, prompt, params=params)  # the cache is warm, and must not leave any out
    scores = whole.prompt_logprobs
    assert scores is not None and len(scores) == 50 and scores[0] is None
    assert scores == chunks.prompt_logprobs == again.prompt_logprobs
    assert all(list(entry)[0] == token for entry, token in zip(scores[1:], prompt[1:], strict=True) if entry)
    # The logprob of a prompt token is that of the same token when it was drawn.
    text = prompt + whole.outputs[0].token_ids
    [scored] = run(engine(), text, params=params)
    assert scored.prompt_logprobs is not None
    assert scored.prompt_logprobs[50:] == whole.outputs[0].logprobs


def test_aborting() -> None:
    e = engine(max_num_seqs=1)
    running, waiting = e.add_request([1] * 20, GREEDY), e.add_request([2] * 20, GREEDY)
    e.step()
    e.step()
    for request in (waiting, running):
        assert e.abort(request.request_id) is request
        e.check_integrity()
    assert not e.has_work
    assert [len(e.output(r).outputs[0].token_ids) for r in (running, waiting)] == [2, 0]
    assert all(e.output(r).outputs[0].finish_reason == "abort" and r.finished for r in (running, waiting))
    assert e.abort("nobody") is None


def test_ends() -> None:
    model = load_fake(eos_ids=(0, 33))
    first = run(engine(model), [5, 6])[0].outputs[0].token_ids
    stop = first[4]
    [output] = run(engine(model), [5, 6], params=SamplingParams(temperature=0, stop_token_ids=[stop], ignore_eos=True))
    answer = output.outputs[0]
    assert answer.token_ids == first[: first.index(stop) + 1]
    assert answer.finish_reason == "stop" and answer.stop_reason == stop
    assert answer.text == model.tokenizer.decode(answer.token_ids[:-1])
    model = load_fake(eos_ids=(stop,))
    [output] = run(engine(model), [5, 6], params=SamplingParams(temperature=0))
    assert output.outputs[0].finish_reason == "stop" and output.outputs[0].stop_reason is None


def test_stop_tokens_in_the_text_if_asked_for() -> None:
    model = load_fake()
    first = run(engine(model), [5, 6])[0].outputs[0].token_ids
    params = SamplingParams(
        temperature=0,
        stop_token_ids=[first[4]],
        ignore_eos=True,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
    )
    answer = run(engine(model), [5, 6], params=params)[0].outputs[0]
    assert answer.text == model.tokenizer.decode(answer.token_ids, skip_special_tokens=False)


def test_min_tokens() -> None:
    first = run(engine(), [5, 6])[0].outputs[0].token_ids
    stop = first[2]
    params = SamplingParams(temperature=0, stop_token_ids=[stop], ignore_eos=True, min_tokens=6, max_tokens=12)
    answer = run(engine(), [5, 6], params=params)[0].outputs[0]
    assert answer.token_ids[:2] == first[:2] and stop not in answer.token_ids[:6] and len(answer.token_ids) > 6


def test_without_text() -> None:
    answer = run(engine(), [5, 6], params=SamplingParams(temperature=0, detokenize=False, logprobs=1))[0].outputs[0]
    assert answer.text == "" and answer.logprobs is not None
    assert all(entry.decoded_token is None for position in answer.logprobs for entry in position.values())


def test_counts_and_times() -> None:
    e = engine(max_num_batched_tokens=16)
    [output] = run(e, [1] * 40)
    assert e.stats.generated_tokens == 12 and e.stats.prompt_tokens == 40 and e.stats.split_prefills == 2
    assert e.stats.steps == 3 + 11 and e.stats.largest_batch == 1 and e.stats.mixed_steps == 0
    times = output.metrics
    scheduled, first = times.first_scheduled_time, times.first_token_time
    assert scheduled is not None and first is not None and times.finish_time is not None
    assert times.arrival_time <= scheduled <= first <= times.finish_time
    e.reset_stats()
    assert e.stats.steps == 0
    run(e, [2] * 4)
    assert e.stats.generated_tokens == 12


def test_a_guess_makes_no_prefill_of_a_decode() -> None:
    e = engine(num_speculative_tokens=2)
    run(e, [5, 9, 13] * 5, [7] * 15, params=SamplingParams(temperature=0, max_tokens=90, ignore_eos=True))
    assert e.stats.guesses_proposed > 0 and e.stats.mixed_steps == 0


def test_engines_share_a_model_and_nothing_else() -> None:
    model = load_fake()
    one, two = engine(model), engine(model, block_size=32)
    assert run(one, [1] * 40)[0].outputs[0].token_ids == run(two, [1] * 40)[0].outputs[0].token_ids
    assert len(model.backend.executors) == 2
    one.close()
    one.close()
    assert [executor.closed for executor in model.backend.executors] == [True, False]
    with pytest.raises(EngineError, match="closed"):
        one.add_request([1], GREEDY)
    with pytest.raises(EngineError, match="closed"):
        one.step()
    run(two, [1])


def test_a_second_thread_is_refused() -> None:
    e = engine()
    e.add_request([1], GREEDY)
    inner: list[BaseException] = []
    forward = e._runner.forward

    def meanwhile(step: Any) -> list[int]:
        try:
            e.step()
        except EngineError as error:
            inner.append(error)
        return forward(step)

    e._runner.forward = meanwhile  # type: ignore[method-assign]
    e.step()
    assert "another thread" in str(inner[0])
    e._runner.forward = forward  # type: ignore[method-assign]
    while e.has_work:
        e.step()


def test_a_tokenizer_of_another_model_is_found_out() -> None:
    model = load_fake()
    model.tokenizer.encode = lambda text: [1, 64]  # type: ignore[method-assign, assignment]
    with pytest.raises(ModelError, match="id 64.*ends at 63"):
        engine(model).add_request("text", GREEDY)


def test_any_string_is_a_salt() -> None:
    e = engine()
    run(e, [1] * 40, cache_salt="\ud800")
    assert run(e, [1] * 40, cache_salt="\ud800")[0].num_cached_tokens == 32
    assert run(e, [1] * 40, cache_salt="\ud801")[0].num_cached_tokens == 0
