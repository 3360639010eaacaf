"""The step loop: schedule, begin, collect. One thread at a time may use an engine; a second one is refused."""

from __future__ import annotations

import itertools
import secrets
import threading
import time

from queueproof.contract.classes import arithmetic_class
from queueproof.contract.errors import EngineError, InvalidParameter, RequestTooLong
from queueproof.contract.load import Load
from queueproof.engine.config import EngineConfig, limits_of, prefill_beside_decode, thread_count
from queueproof.engine.guide import Guides
from queueproof.engine.kv.pool import BlockPool
from queueproof.engine.kv.prefix_index import PrefixIndex, root_hash
from queueproof.engine.load import Moment
from queueproof.engine.outputs import RequestOutput, Snapshot
from queueproof.engine.pipeline import Pipeline, Step
from queueproof.engine.prompts import read_prompt
from queueproof.engine.protocols import LoadedModel
from queueproof.engine.request import Request, Sequence, Status
from queueproof.engine.runner import Runner
from queueproof.engine.sampler import Sampler
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
        self._prefill_beside_decode = prefill_beside_decode(config, model)
        self.arithmetic = arithmetic
        self.determinism_class: str = arithmetic_class(arithmetic).value
        threads = thread_count(config)
        try:
            self._runner = Runner(backend, model.forward, self.limits, threads)
        except MemoryError as error:
            raise EngineError(
                f"there is no memory for a KV cache of {self.limits.num_blocks} blocks and steps of "
                f"{self.limits.max_tokens} tokens ({error}); lower num_blocks or kv_cache_memory, "
                "max_num_batched_tokens or max_model_len"
            ) from error
        self._sampler = Sampler(model.tokenizer, model.config.vocab_size, self.limits.max_seqs)
        self._rows = backend.rows(threads)
        # A guess is verified before the next step is known, so steps with guesses cannot overlap.
        self._overlap = backend.asynchronous and config.async_scheduling and not config.num_speculative_tokens
        self._eos_ids = frozenset(model.config.eos_ids)
        self.guides = Guides(model.tokenizer, model.config.vocab_size, self._eos_ids)
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
            beside_decode=self._prefill_beside_decode,
            max_seqs=limits.max_seqs,
            guesses=config.num_speculative_tokens,
            stats=self.stats,
        )
        self._pipeline = Pipeline(self._runner, self._rows, self._sampler, self._scheduler, limits.max_logit_rows)
        self._under_way: Step | None = None  # begun and not collected
        self._last: Step | None = None  # begun last

    @property
    def has_work(self) -> bool:
        """Whether a step would do something: also while tokens of the last one are to be collected."""
        return self._under_way is not None or self._scheduler.has_work

    @property
    def capacity(self) -> int:
        """Tokens that one request may have, prompt and answer together. The last one's key is never stored."""
        return min(self.limits.max_model_len, self.limits.num_blocks * self.limits.block_size + 1)

    def make_request(
        self, prompt: object, params: SamplingParams, request_id: str | None = None, cache_salt: str | None = None
    ) -> Request:
        """Checks everything about a request; nothing is computed yet. Safe from any thread.

        Raises InvalidParameter, RequestTooLong for one that could never fit, or UsageError for a guide without its library.
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
        guide = None if params.guide is None else self.guides.start(params.guide)
        for index in range(params.n):
            stream = None
            if params.detokenize:
                decoder = self.model.tokenizer.stream(params.skip_special_tokens)
                stream = TextStream(decoder, params.stops, params.include_stop_str_in_output)
            own = guide if guide is None or index == 0 else guide.fork()
            request.sequences.append(Sequence(request, index, stream, own))
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

    def output(self, request: Request, snapshot: Snapshot | None = None) -> RequestOutput:
        """Its answers as they are, or as they were when `Request.snapshot` was taken."""
        return request.output(snapshot or request.snapshot(), self.arithmetic, self.determinism_class)

    def abort(self, request_id: str) -> Request | None:
        """Ends a request between two steps with finish_reason "abort"; its blocks are free at once, and what a step
        under way gives for it is dropped. None: not running."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        going = [sequence for sequence in request.sequences if sequence.status is not Status.FINISHED]
        for sequence in going:
            sequence.finish("abort")
        self._scheduler.remove(going)
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
        """Begins a step and collects one: the one before if steps may overlap, else the same."""
        scheduler, pipeline, earlier = self._scheduler, self._pipeline, self._under_way
        self._under_way = None
        news: dict[str, Request] = {}
        step = scheduler.schedule(settled=earlier is None) if scheduler.has_work else []
        if earlier is not None and (step is None or pipeline.needs_tokens(step)):
            self._collect(earlier, news)
            earlier = None
            # Who has ended by now is left out; the others go on as it was decided.
            step = scheduler.schedule() if step is None else [s for s in step if s.status is Status.RUNNING]
        if step:
            begun = self._last = pipeline.begin(step)
            self.stats.overlapped_steps += earlier is not None
            if self._overlap and begun.can_stay:
                self._under_way = begun
        if earlier is not None:
            self._collect(earlier, news)
        if step and self._under_way is None:
            self._collect(begun, news)
        return list(news.values())

    def _collect(self, step: Step, news: dict[str, Request]) -> None:
        found = self._pipeline.collect(step)
        self._scheduler.remove(found.ended)
        for sequence in found.ended:
            self._close_if_finished(sequence.request, found.time)
        news.update(found.news)

    def moment(self) -> Moment:
        """For who watches. Between two steps, on the thread that computes them."""
        scheduler, pool, stats = self._scheduler, self._pool, self.stats
        load = Load(
            len(scheduler.running),
            len(scheduler.waiting),
            pool.num_blocks - pool.free,
            pool.num_blocks,
            stats.prompt_tokens,
            stats.generated_tokens,
            stats.prefix_cache_query_tokens,
            stats.prefix_cache_hit_tokens,
            stats.preemptions,
            stats.steps,
            (),
        )
        return Moment(load, self._last if scheduler.running else None)

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
        most = 0 if self._under_way is None else 1
        assert all(s.in_flight <= most for s in self._scheduler.running)

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

    def _close_if_finished(self, request: Request, now: float) -> None:
        if not request.finished and all(s.status is Status.FINISHED for s in request.sequences):
            request.finish_time = now
            del self._requests[request.request_id]
