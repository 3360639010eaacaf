"""A ServedEngine without a model, for tests of the server: one token per byte, answers that are a hash of the request.

An answer depends on the prompt, the seed and the index of the choice only; a test may script it instead. It keeps
account of who came and who left, and fails where it is told to.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from queueproof.contract.classes import DeterminismClass, arithmetic_class
from queueproof.contract.document import ContractDocument, Model, Offer
from queueproof.contract.errors import EngineError, InvalidParameter, NumericalError, RequestTooLong, UsageError
from queueproof.contract.receipt import ReceiptModel
from queueproof.engine.outputs import CompletionOutput, FinishReason, Logprob, RequestMetrics, RequestOutput
from queueproof.engine.sampling_params import SamplingParams
from queueproof.server.protocol import Load, Member, Params

BOS, EOS, VOCAB = 256, 257, 258
SPECIAL = {BOS: b"<bos>", EOS: b"<eos>"}
_LETTERS = b"etaoin shrdlu"

Script = Callable[[Sequence[int], Params, int], bytes]
"""The bytes of an answer, from prompt, params and the index of the choice. The answer ends after them."""


@dataclass(slots=True)
class Seen:
    """A request as the engine got it. ended: how it left: "finished", "aborted", "failed"; "" while it runs."""

    request_id: str
    prompt: list[int]
    params: Params
    cache_salt: str | None
    alone: bool
    made: int = 0
    ended: str = ""


@dataclass
class FakeEngine:
    """step: seconds for each output. tokens_per_output: more than one is what a slow reader gets.

    fail_at: the request whose prompt has this text in it gets an error: "nan" (a NumericalError of its first choice),
    "dead" (EngineError, and the engine has ended) or "refuse" (InvalidParameter); after `fail_after` tokens.
    hold: outputs wait while it is not set. cached: prompt tokens that are said to come from the prefix cache.
    """

    arithmetic: str = "ieee/1"
    script: Script | None = None
    step: float = 0.0
    tokens_per_output: int = 1
    max_model_len: int = 512
    max_num_seqs: int = 8
    device: str = "fake"
    family: str = "any"
    guide_library: str | None = None
    vocab_size: int = VOCAB
    running: bool = True
    cached: int = 0
    fail_at: dict[str, str] = field(default_factory=dict)
    fail_after: int = 2
    has_template: bool = True
    hold: asyncio.Event | None = None
    seen: list[Seen] = field(default_factory=list)
    resets: int = 0
    steps: int = 0

    @property
    def determinism_class(self) -> str:
        return arithmetic_class(self.arithmetic).value

    @property
    def model(self) -> ReceiptModel:
        return ReceiptModel("fake-model", "ab" * 32, "cd" * 32, "bfloat16")

    @property
    def active(self) -> list[Seen]:
        return [seen for seen in self.seen if not seen.ended]

    def params(self, **options: Any) -> SamplingParams:
        return SamplingParams(**options)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        try:
            return [BOS] * add_special_tokens + list(text.encode())
        except UnicodeEncodeError as e:
            raise InvalidParameter("text", text[e.start : e.end], "half of a surrogate pair is no Unicode text") from e

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        if not self.has_template:
            raise UsageError("this model has no chat template; give the prompt as plain text")
        unknown = set(options) - {"add_generation_prompt", "enable_thinking"}
        if unknown:
            name = sorted(unknown)[0]
            raise InvalidParameter(name, options[name], "this model's chat template takes enable_thinking")
        text = "".join(f"{m['role']}: {m['content']}\n" for m in messages)
        return [BOS, *(text + "assistant: " * options.get("add_generation_prompt", True)).encode()]

    def token_bytes(self, token_id: int) -> bytes:
        return SPECIAL[token_id] if token_id in SPECIAL else bytes([token_id])

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        kept = (t for t in ids if not (skip_special_tokens and t in SPECIAL))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")

    def load(self) -> Load:
        made = sum(seen.made for seen in self.seen)
        batch = tuple(Member(s.request_id, "decode", 1, len(s.prompt) + s.made) for s in self.active)
        prompts = sum(len(seen.prompt) for seen in self.seen)
        return Load(len(batch), 0, len(batch), 64, prompts, made, prompts, self.cached, 0, self.steps, batch)

    def reset_prefix_cache(self) -> None:
        self.resets += 1

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: Params,
        request_id: str,
        cache_salt: str | None = None,
        alone: bool = False,
    ) -> AsyncGenerator[RequestOutput, None]:
        prompt = list(prompt_token_ids)
        assert params.max_tokens is not None
        if not self.running:
            raise EngineError("the engine is closed")
        if any(not 0 <= token < VOCAB for token in prompt):
            raise InvalidParameter("prompt_token_ids", max(prompt), f"token ids must be integers from 0 to {VOCAB - 1}")
        if len(prompt) + params.max_tokens > self.max_model_len:
            raise RequestTooLong(f"{len(prompt)} + {params.max_tokens} tokens, the model has {self.max_model_len}")
        seen = Seen(request_id, prompt, params, cache_salt, alone)
        self.seen.append(seen)
        try:
            async for output in self._outputs(seen):
                yield output
            seen.ended = "finished"
        except (EngineError, InvalidParameter):
            seen.ended = "failed"
            raise
        finally:
            seen.ended = seen.ended or "aborted"

    async def _outputs(self, seen: Seen) -> AsyncGenerator[RequestOutput, None]:
        text = self.decode(seen.prompt)
        failure = next((how for marker, how in self.fail_at.items() if marker in text), None)
        if failure == "refuse":
            raise InvalidParameter("prompt", "...", "the fake engine refuses it")
        params = seen.params
        assert isinstance(params, SamplingParams)
        seed = params.seed if params.seed is not None else 7
        answers = [_answer(self, seen, i, seed) for i in range(params.n)]
        for made in range(self.tokens_per_output, 1 << 30, self.tokens_per_output):
            if self.hold is not None:
                await self.hold.wait()
            await asyncio.sleep(self.step)
            self.steps += 1
            choices = [_choice(self, seed, i, a, made) for i, a in enumerate(answers)]
            if failure is not None and made >= self.fail_after:
                if failure == "dead":
                    self.running = False
                    raise EngineError("the step loop failed: RuntimeError: scripted")
                error = NumericalError("the model's logits are NaN at position 2")
                choices[0] = replace(choices[0], finish_reason="error", error=error)
            seen.made = sum(len(choice.token_ids) for choice in choices)
            finished = all(choice.finished for choice in choices)
            yield RequestOutput(
                request_id=seen.request_id,
                prompt=None,
                prompt_token_ids=seen.prompt,
                prompt_logprobs=_prompt_logprobs(seen.prompt, params.prompt_logprobs),
                outputs=choices,
                finished=finished,
                num_cached_tokens=self.cached,
                arithmetic=self.arithmetic,
                determinism_class=self.determinism_class,
                metrics=RequestMetrics(0.0, 0.0, 0.0, None),
            )
            if finished:
                return


class _Answer:
    """A whole answer. end: bytes of its text. What outputs show of it is made once."""

    def __init__(
        self,
        params: SamplingParams,
        ids: list[int],
        finish_reason: FinishReason,
        stop_reason: str | int | None,
        end: int,
    ) -> None:
        self.ids, self.finish_reason, self.stop_reason, self.end = ids, finish_reason, stop_reason, end
        self.data = bytes(t for t in ids[:end] if t < 256)
        self.bits = np.array([chosen_logprob(t) for t in ids], np.float32).view(np.uint32)
        self.logprobs = None if params.logprobs is None else [position_logprobs(t, params.logprobs) for t in ids]
        # What could be a part of a stop string is held back, as the real engine does.
        self._held = max((len(s) - 1 for s in params.stops), default=0)

    def text(self, count: int) -> str:
        if count >= len(self.ids):
            return self.data.decode("utf-8", "replace")
        shown = self.data[: max(count, 0)].decode("utf-8", "ignore")
        return shown[: len(shown) - self._held] if self._held else shown


def _answer(engine: FakeEngine, seen: Seen, index: int, seed: int) -> _Answer:
    params = seen.params
    assert isinstance(params, SamplingParams) and params.max_tokens is not None
    if engine.script is not None:
        ids = [*engine.script(seen.prompt, params, index), *([] if params.ignore_eos else [EOS])]
    else:
        source = hashlib.sha256(repr((seen.prompt, seed + index if params.temperature else 0)).encode()).digest()
        ids = [_LETTERS[source[i % 32] % len(_LETTERS)] for i in range(params.max_tokens)]
    ids = ids[: params.max_tokens]
    for position, token in enumerate(ids):
        if position < params.min_tokens:
            continue
        if token == EOS or token in params.stop_ids:
            reason = None if token == EOS else token
            return _Answer(params, ids[: position + 1], "stop", reason, position)
        for stop in params.stops:
            text = bytes(t for t in ids[: position + 1] if t < 256)
            if text.endswith(stop.encode()):
                end = len(text) - (0 if params.include_stop_str_in_output else len(stop.encode()))
                return _Answer(params, ids[: position + 1], "stop", stop, end)
    return _Answer(params, ids, "length", None, len(ids))


def _choice(engine: FakeEngine, seed: int, index: int, answer: _Answer, made: int) -> CompletionOutput:
    finished = made >= len(answer.ids)
    text, before = answer.text(made), answer.text(made - engine.tokens_per_output)
    return CompletionOutput(
        index=index,
        text=text,
        delta_text=text[len(before) :],
        token_ids=answer.ids[:made],
        logprobs=None if answer.logprobs is None else answer.logprobs[:made],
        logprob_bits=answer.bits[:made],
        lse_bits=answer.bits[:made],
        seed=(seed + index) % (1 << 64),
        finish_reason=answer.finish_reason if finished else None,
        stop_reason=answer.stop_reason if finished else None,
        error=None,
    )


def chosen_logprob(token: int) -> float:
    """Of any chosen token: an f32, and no round decimal number."""
    return float(np.float32(-0.1 - token / 300))


def position_logprobs(token: int, count: int) -> dict[int, Logprob]:
    """The chosen token ranks second; the best ones are the letters a, b, c, ..., and the last is impossible."""
    best = [i for i in range(97, 97 + count) if i != token]
    ranks = [1, *range(3, 3 + count)]
    found = {token: Logprob(chosen_logprob(token), 2)}
    for rank, other in zip(ranks, best, strict=False):
        value = -math.inf if rank == count else float(np.float32(-0.05 * rank))
        found[other] = Logprob(value, rank)
    return found


def _prompt_logprobs(prompt: list[int], count: int | None) -> list[dict[int, Logprob] | None] | None:
    if count is None:
        return None
    return [None, *(position_logprobs(token, count) for token in prompt[1:])]


def contract_of(*engines: FakeEngine) -> ContractDocument:
    """Each engine's class and the weaker ones that no other engine gives."""
    offers = {}
    for engine in sorted(engines, key=lambda e: len(arithmetic_class(e.arithmetic).axes)):
        strongest = arithmetic_class(engine.arithmetic)
        for class_ in DeterminismClass:
            if strongest.satisfies(class_) and class_ not in offers and class_ is not DeterminismClass.BEST_EFFORT:
                offers[class_] = Offer.of(class_, engine.arithmetic)
        if strongest is DeterminismClass.BEST_EFFORT:
            offers[strongest] = Offer.of(strongest, engine.arithmetic)
    return ContractDocument(Model("fake-model", "bfloat16"), "fake", tuple(offers.values()))
