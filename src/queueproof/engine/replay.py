"""Computes the answer of a receipt again, alone, and says whether it is the same to the bit."""

from __future__ import annotations

from collections.abc import Sequence

from queueproof.contract.errors import CannotTell, UsageError
from queueproof.contract.receipt import Receipt, ReceiptModel
from queueproof.contract.verdict import Answer, Replayer, Verdict, judge, plan
from queueproof.engine.engine import Engine
from queueproof.engine.guide import library
from queueproof.engine.llm import LLM
from queueproof.engine.prompts import TokensPrompt, salt_of_its_own
from queueproof.engine.protocols import LoadedModel
from queueproof.engine.sampling_params import SamplingParams


def receipt_model(model: LoadedModel) -> ReceiptModel:
    """How receipts name a model. Reads all of its weights the first time."""
    return ReceiptModel(model.name, model.digest, model.tokenizer.digest, model.forward.dtype)


def replayer_of(engine: Engine) -> Replayer:
    """What this engine can say about receipts."""
    return Replayer(receipt_model(engine.model), engine.arithmetic, engine.model.backend.family, library())


def replay(llm: LLM, receipt: Receipt, prompt_token_ids: Sequence[int] | None = None) -> Verdict:
    """Runs the request of a receipt again: the same token ids, sampling parameters and seed, with nothing beside it and
    nothing from the prefix cache.

    prompt_token_ids: for receipts that do not hold the prompt. Raises EngineError.
    """
    replayer = replayer_of(llm.engine)
    try:
        todo = plan(receipt, replayer, prompt_token_ids)
        params = SamplingParams(**todo.options)
        prompt: TokensPrompt = {"prompt_token_ids": todo.prompt_token_ids, "cache_salt": salt_of_its_own()}
        (output,) = llm.generate(prompt, params)
    except CannotTell as error:
        return Verdict.unknown(str(error))
    except UsageError as error:
        return Verdict.unknown(f"the request of the receipt cannot be served here: {error}")
    decode = llm.engine.model.tokenizer.decode
    verdict = judge(receipt, Answer.of(output.outputs[0]), replayer)
    return verdict.with_text(lambda ids: decode(ids, skip_special_tokens=False))
