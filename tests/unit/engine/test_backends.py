"""The engine over real kernels: a tiny model, the oracle one request at a time, the kernels under pressure."""

from __future__ import annotations

import random
from typing import Any

from queueproof.arithmetic.oracle.backend import OracleBackend
from queueproof.engine.llm import LLM
from queueproof.engine.outputs import RequestOutput
from queueproof.engine.sampling_params import SamplingParams
from queueproof.kernels.registry import backend
from tests.support.fake_backend import FakeConfig, FakeLoaded, FakeTokenizer
from tests.support.tiny import TinyConfig, build

CONFIG = TinyConfig()


def tiny_llm(door: Any, **options: Any) -> LLM:
    vocab = CONFIG.vocab_size
    model: Any = FakeLoaded(FakeConfig(vocab, (0,)), build(door, CONFIG), FakeTokenizer(vocab), door, CONFIG.max_len)
    return LLM(model, **options)


def bits(outputs: list[RequestOutput]) -> list[tuple[Any, ...]]:
    return [
        (o.token_ids, o.logprob_bits.tobytes(), o.lse_bits.tobytes(), o.logprobs, output.prompt_logprobs)
        for output in outputs
        for o in output.outputs
    ]


def test_kernels_under_pressure_give_the_oracles_answers() -> None:
    rng = random.Random(0)
    shared = [rng.randrange(97) for _ in range(48)]
    prompts = [
        shared[:n] + [rng.randrange(97) for _ in range(m)] for n, m in ((0, 5), (48, 3), (48, 20), (32, 1), (0, 30))
    ]
    params = [
        SamplingParams(
            temperature=0.7 * (i % 2), top_p=0.9, seed=i, max_tokens=24, ignore_eos=True, logprobs=2, presence_penalty=i / 8,
            prompt_logprobs=1 if i == 2 else None,
        )
        for i in range(len(prompts))
    ]  # fmt: skip
    with tiny_llm(OracleBackend(), max_num_seqs=1, num_blocks=8, enable_prefix_caching=False) as oracle:
        expected = bits(oracle.generate(prompts, params))
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 20, "num_blocks": 8, "num_speculative_tokens": 2}
    for threads in (1, 2):
        with tiny_llm(backend("ieee/1"), threads=threads, **options) as llm:
            assert bits(llm.generate(prompts, params)) == expected
            assert bits(llm.generate(prompts, params)) == expected  # with what is left in the cache
            stats = llm.stats
        assert stats.preemptions > 0 and stats.mixed_steps > 0 and stats.split_prefills > 0
        assert stats.prefix_cache_hit_tokens > 0 and stats.guesses_accepted > 0
    with tiny_llm(backend("vendor"), **options) as vendor:  # negative control: other sums, other bits
        assert bits(vendor.generate(prompts, params)) != expected
