"""Receipts of answers that an LLM gave."""

from __future__ import annotations

import dataclasses

from queueproof.contract.classes import DeterminismClass
from queueproof.contract.receipt import Bias, Receipt, ReceiptSampling, prompt_digest
from queueproof.contract.verdict import Answer
from queueproof.engine.llm import LLM
from queueproof.engine.outputs import RequestOutput
from queueproof.engine.replay import receipt_model
from queueproof.engine.sampling_params import SamplingParams
from tests.support.receipts import a_receipt


def receipt_of(
    llm: LLM, output: RequestOutput, params: SamplingParams, index: int = 0, digests_only: bool = False
) -> Receipt:
    """The receipt of an answer of an LLM."""
    choice, engine = output.outputs[index], llm.engine
    answer = Answer.of(choice)
    prompt = output.prompt_token_ids
    names = {f.name for f in dataclasses.fields(ReceiptSampling)} - {"seed", "logit_bias", "guide_library"}
    options = {name: getattr(params, name) for name in names if hasattr(params, name)}
    return a_receipt(
        answer,
        digests_only,
        sampling=options
        | {
            "seed": str(choice.seed),
            "max_tokens": params.max_tokens or engine.capacity - len(prompt),
            "logit_bias": tuple(Bias(token, value) for token, value in sorted((params.logit_bias or {}).items())),
        },
        index=index,
        model=receipt_model(engine.model),
        arithmetic=output.arithmetic,
        family=engine.model.backend.family,
        class_=DeterminismClass(output.determinism_class),
        prompt_sha256=prompt_digest(prompt),
        prompt_tokens=len(prompt),
        prompt_token_ids=None if digests_only else tuple(prompt),
    )
