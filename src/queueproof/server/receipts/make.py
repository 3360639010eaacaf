"""The receipt of an answer that has ended."""

from __future__ import annotations

from operator import index
from typing import Literal

from queueproof.contract.receipt import (
    FINISH_REASONS,
    Bias,
    Receipt,
    ReceiptAnswer,
    ReceiptSampling,
    answer_digest,
    bits_to_hex,
    prompt_digest,
    with_id,
)
from queueproof.server.extension import FinishedAnswer

Mode = Literal["full", "hash"]
"""full: with the ids of prompt and answer and the bits; hash: with their digests only."""

# A receipt holds integers as far as a JSON number does. No vocabulary has so many tokens: all are kept then.
_MAX_TOP_K = (1 << 53) - 1


def make_receipt(answer: FinishedAnswer, mode: Mode, build: str) -> Receipt | None:
    """None for an answer that was cut off or failed: there is nothing to compute again. build: version of the software."""
    choice, engine, output = answer.choice, answer.engine, answer.output
    if choice.finish_reason not in FINISH_REASONS:
        return None
    prompt = tuple(output.prompt_token_ids)
    token_ids = tuple(choice.token_ids)
    logprob_bits, lse_bits = (tuple(map(index, bits)) for bits in (choice.logprob_bits, choice.lse_bits))
    digest = answer_digest(token_ids, logprob_bits, lse_bits)
    if mode == "full":
        kept = ReceiptAnswer(
            choice.finish_reason,
            len(token_ids),
            digest,
            token_ids,
            bits_to_hex(logprob_bits),
            bits_to_hex(lse_bits),
        )
    else:
        kept = ReceiptAnswer(choice.finish_reason, len(token_ids), digest)
    receipt = Receipt(
        id="",
        response_id=answer.response_id,
        index=answer.index,
        created=answer.created,
        build=build,
        model=engine.model,
        arithmetic=engine.arithmetic,
        family=engine.family,
        class_=answer.class_,
        prompt_sha256=prompt_digest(prompt),
        prompt_tokens=len(prompt),
        sampling=_sampling(answer, len(prompt)),
        answer=kept,
        prompt_token_ids=prompt if mode == "full" else None,
    )
    return with_id(receipt)


def _sampling(answer: FinishedAnswer, prompt_tokens: int) -> ReceiptSampling:
    params, engine = answer.params, answer.engine
    return ReceiptSampling(
        temperature=params.temperature,
        top_k=min(params.top_k, _MAX_TOP_K),
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        seed=str(answer.choice.seed),
        max_tokens=engine.max_model_len - prompt_tokens if params.max_tokens is None else params.max_tokens,
        min_tokens=params.min_tokens,
        ignore_eos=params.ignore_eos,
        include_stop_str_in_output=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        stop=params.stops,
        stop_token_ids=tuple(sorted(params.stop_ids)),
        logit_bias=tuple(Bias(token, value) for token, value in sorted((params.logit_bias or {}).items())),
        guide=params.guide,
        guide_library=None if params.guide is None else engine.guide_library,
    )
