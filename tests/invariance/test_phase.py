"""A position's log-probabilities have the same bits in decode, in one prefill, in chunks, and when teacher-forced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from queueproof.engine.llm import LLM
from queueproof.engine.sampling_params import SamplingParams
from tests.invariance.test_schedules import MODELS, load
from tests.support.tiny import TinyConfig

LENGTHS = (1, 15, 16, 17, 63, 64, 65, 500, 511, 512, 513)  # of the prompts: the answers cross blocks and the split
ANSWER = 24


def teacher_forced_differences(arithmetic: str, config: TinyConfig, **options: Any) -> tuple[int, int]:
    """(positions whose prompt log-probability differs from that of decoding, positions compared)."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1, 60, n).tolist() for n in LENGTHS]
    model: Any = load(arithmetic, config)
    with LLM(model, max_num_seqs=1, enable_prefix_caching=False, threads=1) as alone:
        params = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True, logprobs=0)
        decoded = [o.outputs[0] for o in alone.generate([{"prompt_token_ids": p} for p in prompts], params)]
    with LLM(model, enable_prefix_caching=False, **options) as llm:
        whole = [{"prompt_token_ids": p + a.token_ids} for p, a in zip(prompts, decoded, strict=True)]
        forced = llm.generate(whole, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0))
    differ = compared = 0
    for prompt, answer, again in zip(prompts, decoded, forced, strict=True):
        assert again.prompt_logprobs is not None
        bits = answer.logprob_bits.view(np.float32)
        for i, token in enumerate(answer.token_ids):
            scored = again.prompt_logprobs[len(prompt) + i]
            assert scored is not None
            compared += 1
            differ += np.float32(scored[token].logprob).view(np.uint32) != bits[i].view(np.uint32)
    return differ, compared


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 33, "block_size": 32}, {"max_num_seqs": 3, "threads": 2}])
def test_decode_equals_teacher_forced(name: str, options: dict[str, int]) -> None:
    assert teacher_forced_differences("ieee/1", MODELS[name], **options) == (0, len(LENGTHS) * ANSWER)


def test_vendor_kernels_are_caught() -> None:
    """Negative control. (16-bit logits, as the vendor's models have them, hide many of the differences.)"""
    differ, compared = teacher_forced_differences("vendor", MODELS["llama"])
    assert differ > compared // 20
