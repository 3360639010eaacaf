"""The step loop: schedule, forward, sample, stop. One thread at a time may use an engine; a second one is refused."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Several

import numpy as np

from queueproof.contract.classes import arithmetic_class
from queueproof.contract.errors import EngineError, InvalidParameter, NumericalError, RequestTooLong
from queueproof.engine.config import EngineConfig, limits_of, thread_count
from queueproof.engine.kv.pool import BlockPool
from queueproof.engine.kv.prefix_index import PrefixIndex, root_hash
from queueproof.engine.outputs import RequestOutput
from queueproof.engine.prompts import read_prompt
from queueproof.engine.protocols import LoadedModel
from queueproof.engine.request import Request, Sequence, Status
from queueproof.engine.runner import Runner
from queueproof.engine.sampler import LogitRows, Sampler
from queueproof.engine.sampling_params import SamplingParams
from queueproof.engine.scheduler.core import Scheduler
from queueproof.engine.scheduler.policies import make_policy
from queueproof.engine.stats import EngineStats
from queueproof.engine.stops import TextStream
from queueproof.kernels.registry import default_arithmetic


class Engine:
    """Answers requests by continuous batching. Engines on one model share its weights and nothing else.

    Raises InvalidParameter where model and config do not go together.
    """

    def __init__(self, model: LoadedModel, config: EngineConfig | None = None) -> None:
        backend = model.backend
        config = EngineConfig(arithmetic=backend.arithmetic, device=backend.device) if config is None else config
        arithmetic = default_arithmetic(config.device) if config.arithmetic is None else config.arithmetic
        if (arithmetic, config.device) != (backend.arithmetic, backend.device):
            have = f"{backend.arithmetic} on {backend.device}"
            asked = f"{arithmetic} on {config.device}"
            raise InvalidParameter("arithmetic", asked, f"the weights of {model.name} were packed for {have}")
        self.model, self.config = model, config
        self.limits = limits_of(config, model)
        self.arithmetic = arithmetic
        self.determinism_class: str = arithmetic_class(arithmetic).value
        threads = thread_count(config)
        try:
            self._runner = Runner(model.backend, model.forward, self.limits, threads)
        except MemoryError as error:
            raise EngineError(
                f"there is no memory for a KV cache of {self.limits.num_blocks} blocks and steps of "
                f"{self.limits.max_tokens} tokens ({error}); lower num_blocks or kv_cache_memory, "
                "max_num_batched_tokens or max_model_len"
            ) from error
        self._sampler = Sampler(model.backend.rows(threads), model.tokenizer)
        self._rows = model.backend.rows(threads)
        self._eos_ids = frozenset(model.config.eos_ids)
        # The index is this engine's own, so the name will do: a digest of the weights would mean to read them again.
        self._namespace = f"{model.name} {model.forward.dtype} {arithmetic}"
        self._ids = itertools.count()
        self._closed = False
        self.stats = EngineStats()
        self.abandon()

    def abandon(self) -> None:
        """Drops every request and the prefix cache, whatever state a failed step left them in."""
        self._stepping = threading.Lock()
        config, limits = self.config, self.limits
        index = PrefixIndex() if config.enable_prefix_caching else None
        self._requests: dict[str, Request] = {}
        self._pool = BlockPool(limits.num_blocks, limits.block_size, index)
        self._scheduler = Scheduler(
            self._pool,
            make_policy(config.policy, config.policy_seed),
            budget=limits.max_tokens,
            max_seqs=limits.max_seqs,
            guesses=config.num_speculative_tokens,
            stats=self.stats,
        )

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def capacity(self) -> int:
        """Tokens that one request may have, prompt and answer together. The last one's key is never stored."""
        return min(self.limits.max_model_len, self.limits.num_blocks * self.limits.block_size + 1)

    def make_request(
        self, prompt: object, params: SamplingParams, request_id: str | None = None, cache_salt: str | None = None
    ) -> Request:
        """Checks everything about a request; nothing is computed yet. Safe from any thread.

        Raises InvalidParameter, or RequestTooLong for one that could never fit.
        """
        if not isinstance(params, SamplingParams):
            raise InvalidParameter("sampling_params", params, "it must be a SamplingParams")
        vocab_size = self.model.config.vocab_size
        read = read_prompt(prompt, self.model.tokenizer, vocab_size)
        salt = read.cache_salt if cache_salt is None else cache_salt
        if salt is not None and not isinstance(salt, str):
            raise InvalidParameter("cache_salt", salt, "it must be a string")
        for name, ids in (("logit_bias", params.logit_bias or ()), ("stop_token_ids", params.stop_ids)):
            for token in ids:
                if token >= vocab_size:
                    raise InvalidParameter(name, token, f"the vocabulary of {self.model.name} ends at {vocab_size - 1}")
        request = Request(
            f"request-{next(self._ids)}" if request_id is None else request_id,
            read.text,
            read.token_ids,
            params,
            seed=secrets.randbits(64) if params.seed is None else params.seed,
            max_tokens=self._answer_room(len(read.token_ids), params),
            eos_ids=self._eos_ids,
            cache_root=root_hash(self._namespace, salt),
        )
        for index in range(params.n):
            stream = None
            if params.detokenize:
                decoder = self.model.tokenizer.stream(params.skip_special_tokens)
                stream = TextStream(decoder, params.stops, params.include_stop_str_in_output)
            request.sequences.append(Sequence(request, index, stream))
        return request

    def add(self, request: Request) -> Request:
        """Puts a request in the queue. Raises InvalidParameter if its id is in use, EngineError after `close`."""
        if self._closed:
            raise EngineError("the engine is closed")
        if request.request_id in self._requests:
            raise InvalidParameter("request_id", request.request_id, "a request of that id is running")
        self._requests[request.request_id] = request
        for sequence in request.sequences:
            self._scheduler.add(sequence)
        return request

    def add_request(
        self,
        prompt: object,
        params: SamplingParams | None = None,
        request_id: str | None = None,
        cache_salt: str | None = None,
    ) -> Request:
        """`make_request` and `add`."""
        return self.add(self.make_request(prompt, params or SamplingParams(), request_id, cache_salt))

    def output(self, request: Request) -> RequestOutput:
        """A snapshot of its answers."""
        return request.output(self.arithmetic, self.determinism_class)

    def abort(self, request_id: str) -> Request | None:
        """Ends a request between two steps with finish_reason "abort"; its blocks are free at once. None: not running."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        for sequence in request.sequences:
            if sequence.status is not Status.FINISHED:
                sequence.finish("abort")
                self._scheduler.remove(sequence)
        self._close_if_finished(request, time.monotonic())
        return request

    def step(self) -> list[Request]:
        """Computes one step. Returns the requests that have something new; none without work.

        Raises EngineError after `close`, and if another thread is in a step.
        """
        if self._closed:
            raise EngineError("the engine is closed")
        if not self._stepping.acquire(blocking=False):
            raise EngineError(
                "another thread is computing a step; use LLM or AsyncEngine, or an engine for each thread"
            )
        try:
            return self._step()
        finally:
            self._stepping.release()

    def _step(self) -> list[Request]:
        step = self._scheduler.schedule() if self._scheduler.has_work else []
        if not step:
            return []
        self._count(step)
        starts = self._runner.forward(step)
        self._score_prompts(step, starts)
        self._draw(step, starts)
        return self._conclude(step)

    def reset_stats(self) -> None:
        self.stats = self._scheduler.stats = EngineStats()

    def reset_prefix_cache(self) -> None:
        """No later request finds what earlier ones computed. Running ones go on."""
        self._pool.forget_prefixes()

    def check_integrity(self) -> None:
        """Raises AssertionError if the books of blocks and sequences do not agree. For tests, between steps."""
        self._scheduler.check_integrity()
        alive = {id(s) for r in self._requests.values() for s in r.sequences if s.status is not Status.FINISHED}
        assert alive == {id(s) for s in (*self._scheduler.running, *self._scheduler.waiting)}

    def close(self) -> None:
        """Frees the cache and the buffers. Safe to call twice; weights stay with the model."""
        if not self._closed:
            self._closed = True
            self.abandon()
            self._runner.close()

    def _answer_room(self, prompt_length: int, params: SamplingParams) -> int:
        """max_tokens in use. Raises RequestTooLong."""
        room = self.capacity - prompt_length
        least = 1 if params.max_tokens is None else params.max_tokens
        if room >= max(least, params.min_tokens):
            return room if params.max_tokens is None else params.max_tokens
        limits = self.limits
        if limits.max_model_len <= self.capacity:
            knob = f"max_model_len={limits.max_model_len}; shorten the prompt, lower max_tokens or raise max_model_len"
            if self.model.max_len <= limits.max_model_len:
                knob = f"the model's context of {limits.max_model_len}; shorten the prompt or lower max_tokens"
        else:
            knob = (
                f"the KV cache of num_blocks={limits.num_blocks} x block_size={limits.block_size}; shorten the prompt, "
                "lower max_tokens, or raise num_blocks or kv_cache_memory"
            )
        answer = (
            f"max_tokens={params.max_tokens}" if params.max_tokens else f"at least {max(1, params.min_tokens)} more"
        )
        raise RequestTooLong(f"a prompt of {prompt_length} tokens and {answer} can never fit in {knob}")

    def _count(self, step: list[Sequence]) -> None:
        stats = self.stats
        stats.steps += 1
        stats.largest_batch = max(stats.largest_batch, len(step))
        prefill = 0
        for sequence in step:
            pending = sequence.length - sequence.computed
            if pending > 1 or not sequence.answer_length:
                prefill += 1
                stats.split_prefills += sequence.scheduled < pending
            stats.guesses_proposed += sequence.guesses
        stats.mixed_steps += 0 < prefill < len(step)

    def _each_row(
        self, rows: list[int], owners: Several[Sequence], use: Callable[[Sequence, LogitRows, int], None]
    ) -> None:
        """Logits of token rows, as many at a time as there is room for; `use` gets each row of an unfinished owner."""
        most = self.limits.max_logit_rows
        for first in range(0, len(rows), most):
            here = np.array(rows[first : first + most], np.int32)
            logits = LogitRows(self._runner.logits(here), self._rows)
            for row, sequence in enumerate(owners[first : first + most]):
                if sequence.status is not Status.FINISHED:
                    use(sequence, logits, row)

    def _score_prompts(self, step: list[Sequence], starts: list[int]) -> None:
        """Log-probabilities of prompt tokens, for those who asked; each row scores the token after its own."""
        rows: list[int] = []
        owners: list[Sequence] = []
        for sequence, start in zip(step, starts, strict=True):
            request = sequence.request
            if sequence.index == 0 and request.prompt_logprobs is not None and request.needs_prompt_logits:
                first = len(request.prompt_logprobs) - 1  # after a preemption: where it had come to
                end = min(sequence.computed + sequence.scheduled, request.prompt_length - 1)
                rows += range(start + first - sequence.computed, start + end - sequence.computed)
                owners += [sequence] * max(0, end - first)
        if rows:
            self._each_row(rows, owners, self._score_one)

    def _score_one(self, sequence: Sequence, rows: LogitRows, row: int) -> None:
        request = sequence.request
        scored, most = request.prompt_logprobs, request.params.prompt_logprobs
        assert scored is not None and most is not None
        if rows.best[row] < 0:
            return _fail(sequence, len(scored) - 1)
        token = request.prompt_token_ids[len(scored)]
        scored.append(self._sampler.position_logprobs(rows, row, token, most, request.params.detokenize))

    def _draw(self, step: list[Sequence], starts: list[int]) -> None:
        """A token for each sequence whose last known token was computed, and for each guess that was right."""
        rows: list[int] = []
        owners: list[Sequence] = []
        for sequence, start in zip(step, starts, strict=True):
            sequence.accepted = 0
            guesses = sequence.guesses
            sequence.drawing = sequence.computed + sequence.scheduled - guesses == sequence.length
            if sequence.drawing:
                last = start + sequence.scheduled - guesses - 1
                if guesses:
                    rows += range(last, last + guesses + 1)
                    owners += [sequence] * (guesses + 1)
                else:
                    rows.append(last)
                    owners.append(sequence)
        if rows:
            self._each_row(rows, owners, self._draw_one)

    def _draw_one(self, sequence: Sequence, rows: LogitRows, row: int) -> None:
        if not sequence.drawing:
            return  # the row follows a guess that was wrong
        if rows.best[row] < 0:
            return _fail(sequence, sequence.length - 1)
        token = self._sampler.draw(sequence, rows, row)
        logprob = rows.best_logprobs[row] if token == rows.best[row] else rows.logprob(row, token)
        if sequence.logprobs is not None:
            params = sequence.request.params
            most = params.logprobs or 0
            sequence.logprobs.append(self._sampler.position_logprobs(rows, row, token, most, params.detokenize))
        # A guess stands where the token goes.
        if sequence.accepted < sequence.guesses and sequence.tokens[sequence.length] == token:
            sequence.accepted += 1
        else:
            sequence.drawing = False
        sequence.append(token, logprob, rows.lse[row])
        self.stats.generated_tokens += 1
        _stop_if_due(sequence, token)

    def _conclude(self, step: list[Sequence]) -> list[Request]:
        """Books what the step computed and lets go of what has ended."""
        now = time.monotonic()
        news: dict[str, Request] = {}
        for sequence in step:
            request = sequence.request
            if sequence.error is None:
                self.stats.guesses_accepted += sequence.accepted
                self._scheduler.advance(sequence, sequence.scheduled - sequence.guesses + sequence.accepted)
            if sequence.answer_length and request.first_token_time is None:
                request.first_token_time = now
            if sequence.status is Status.FINISHED:
                self._scheduler.remove(sequence)
                self._close_if_finished(request, now)
                news[request.request_id] = request
            elif sequence.computed == sequence.length - 1:
                news[request.request_id] = request
        return list(news.values())

    def _close_if_finished(self, request: Request, now: float) -> None:
        if not request.finished and all(s.status is Status.FINISHED for s in request.sequences):
            request.finish_time = now
            del self._requests[request.request_id]


def _fail(sequence: Sequence, position: int) -> None:
    name = sequence.request.request_id
    sequence.error = NumericalError(f"the model gave a NaN among the logits of position {position} of {name}")
    sequence.finish("error")


def _stop_if_due(sequence: Sequence, token: int) -> None:
    """Ends the answer if its newest token does: an end token, a stop string, or the last one allowed."""
    request = sequence.request
    may_stop = sequence.answer_length > request.params.min_tokens
    stream = sequence.stream
    if may_stop and (token in request.eos_ids or token in request.stop_ids):
        if stream is not None and request.params.include_stop_str_in_output:
            stream.push(token, may_stop=False)
        sequence.finish("stop", None if token in request.eos_ids else token)
        return
    found = stream.push(token, may_stop) if stream is not None else None
    if found is not None:
        sequence.finish("stop", found)
    elif sequence.length == sequence.answer_end:
        sequence.finish("length")
