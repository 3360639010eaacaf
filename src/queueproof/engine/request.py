"""A request, and the sequences that answer it: the state that scheduler, runner and sampler share."""

from __future__ import annotations

import time
from enum import Enum

import numpy as np

from queueproof.contract.errors import QueueproofError
from queueproof.contract.receipt import MAX_SEED
from queueproof.engine.guide import Guide
from queueproof.engine.outputs import (
    AnswerState,
    CompletionOutput,
    FinishReason,
    PositionLogprobs,
    Prefix,
    RequestMetrics,
    RequestOutput,
    Snapshot,
)
from queueproof.engine.sampling_params import SamplingParams
from queueproof.engine.stops import TextStream
from queueproof.kernels.ops import F32, I32

_ROOM = 64  # tokens of an answer that there is room for at first; then it doubles


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """One answer in the making: a row of tokens and how far its keys are in the cache.

    tokens: i32, the first `length` are prompt and answer; guesses of the running step may stand behind them. answer: those
    of the answer once more, as a list that outputs show. logprob_values, lse_values: f32, the first `answer_length` count.
    last_token: the last known one. in_flight: tokens that are drawn already and not known yet, 0 or 1 between steps;
    draw_row: the newest of them is this row of the last draw, -1 if there is none.
    computed: tokens whose keys are in the cache, or will be when the steps under way have ended.
    length + in_flight - computed is 1 in decode, more in prefill or recompute.
    blocks: held blocks of the pool, in order; they cover `computed` and what is scheduled. row: its place in the arrays
    of runner and sampler while it is running, else -1.
    hashes: chain of whole blocks of known tokens, as far as computed. published: blocks offered to the index.
    scheduled, guesses: tokens of the newest step, the last `guesses` of them are guesses; `accepted` were right.
    guide: what the answer has to follow, if there is such a thing.
    top: how many of the best tokens to report at each position; -1: not even the rank.
    """

    __slots__ = (
        "accepted",
        "answer",
        "answer_end",
        "blocks",
        "computed",
        "draw_row",
        "error",
        "finish_reason",
        "guesses",
        "guide",
        "hashes",
        "in_flight",
        "index",
        "last_token",
        "length",
        "logprob_values",
        "logprobs",
        "lse_values",
        "published",
        "request",
        "row",
        "scheduled",
        "seed",
        "sent_text",
        "status",
        "stop_reason",
        "stream",
        "tokens",
        "top",
        "was_admitted",
    )

    def __init__(self, request: Request, index: int, stream: TextStream | None, guide: Guide | None = None) -> None:
        prompt = request.prompt_token_ids
        self.request, self.index = request, index
        self.seed = (request.seed + index) & MAX_SEED
        self.answer_end = len(prompt) + request.max_tokens
        room = min(request.max_tokens, _ROOM)  # max_tokens may be a whole context, for an answer of a few
        self.tokens: I32 = np.zeros(len(prompt) + room, np.int32)
        self.tokens[: len(prompt)] = prompt
        self.length, self.last_token = len(prompt), prompt[-1]
        self.in_flight, self.draw_row, self.row = 0, -1, -1
        self.computed = self.scheduled = self.guesses = self.accepted = self.published = 0
        self.was_admitted = False
        self.blocks: list[int] = []
        self.hashes: list[bytes] = []
        self.status = Status.WAITING
        self.answer: list[int] = []
        self.logprob_values: F32 = np.empty(room, np.float32)
        self.lse_values: F32 = np.empty(room, np.float32)
        self.logprobs: list[PositionLogprobs] | None = None if request.params.logprobs is None else []
        self.top = -1 if request.params.logprobs is None else request.params.logprobs
        self.stream, self.guide = stream, guide
        self.sent_text = 0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.error: QueueproofError | None = None

    @property
    def answer_length(self) -> int:
        return self.length - self.request.prompt_length

    def append(self, token: int, logprob: float, lse: float) -> None:
        """One more token of the answer. logprob and lse are exact f32 values. Pre: length < answer_end."""
        place = len(self.answer)
        if place == self.logprob_values.size:
            self._make_room(1)
        self.tokens[self.length] = self.last_token = token
        self.logprob_values[place], self.lse_values[place] = logprob, lse
        self.length += 1
        self.answer.append(token)

    def put_guesses(self, guesses: I32) -> None:
        """Guesses stand behind the known tokens; they are computed in the next step. Pre: length + their number < answer_end."""
        n = guesses.size
        if self.length + n > self.tokens.size:
            self._make_room(n)
        self.tokens[self.length : self.length + n] = guesses
        self.guesses = n
        self.scheduled += n

    def _make_room(self, more: int) -> None:
        """Earlier arrays stay as they are: outputs may be views of them."""
        size, most = self.logprob_values.size, self.request.max_tokens
        room = min(most, max(2 * size, self.answer_length + more))
        self.tokens = np.concatenate([self.tokens, np.zeros(room - size, np.int32)])
        self.logprob_values = np.concatenate([self.logprob_values, np.empty(room - size, np.float32)])
        self.lse_values = np.concatenate([self.lse_values, np.empty(room - size, np.float32)])

    def finish(self, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """Ends the answer, once; a stop string that only the last character completes still counts."""
        self.status, self.guide = Status.FINISHED, None
        if self.stream is not None:
            found = self.stream.finish(self.answer_length > self.request.params.min_tokens)
            if found is not None and reason == "length":
                reason, stop_reason = "stop", found
        self.finish_reason, self.stop_reason = reason, stop_reason

    def fail(self, error: QueueproofError) -> None:
        self.error = error
        self.finish("error")

    def state(self) -> AnswerState:
        text = "" if self.stream is None else self.stream.settled()
        return AnswerState(len(self.answer), text, self.finish_reason, self.stop_reason, self.error)

    def output(self, state: AnswerState) -> CompletionOutput:
        """Its delta_text starts where the text of the one before ended."""
        n, text, finish_reason, stop_reason, error = state
        sent, self.sent_text = self.sent_text, len(text)
        logprobs: list[PositionLogprobs] | Prefix[PositionLogprobs] | None = self.logprobs
        if logprobs is not None and finish_reason is None:
            logprobs = Prefix(self.logprobs, n)  # type: ignore[arg-type]
        return CompletionOutput(
            index=self.index,
            text=text,
            delta_text=text[sent:],
            token_ids=Prefix(self.answer, n) if finish_reason is None else self.answer,
            logprobs=logprobs,
            logprob_bits=self.logprob_values[:n].view(np.uint32),
            lse_bits=self.lse_values[:n].view(np.uint32),
            seed=self.seed,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            error=error,
        )


class Request:
    """A checked request. seed and max_tokens are the ones in use, stop_ids those that end an answer.

    edits: whether single logits may be changed before a token is drawn. needs_history: whether what may be drawn depends on
    the tokens before. prompt_scored: as prompt_logprobs will be long when the steps under way have ended.
    """

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        seed: int,
        max_tokens: int,
        eos_ids: frozenset[int],
        cache_root: bytes,
    ) -> None:
        self.request_id, self.prompt, self.prompt_token_ids, self.params = request_id, prompt, prompt_token_ids, params
        self.prompt_length = len(prompt_token_ids)
        self.seed, self.max_tokens = seed, max_tokens
        self.eos_ids = frozenset() if params.ignore_eos else eos_ids
        self.stop_ids = params.stop_ids
        self.banned_at_first: I32 = np.array(sorted(self.eos_ids | self.stop_ids), np.int32)
        self.cache_root = cache_root
        self.sequences: list[Sequence] = []
        self.prompt_logprobs: list[PositionLogprobs | None] | None = None
        if params.prompt_logprobs is not None:
            self.prompt_logprobs = [None]
        self.prompt_scored = 1  # the first token has no log-probability
        self.needs_history = params.has_penalties or params.guide is not None
        self.edits = params.has_penalties or params.logit_bias is not None or params.min_tokens > 0
        self.num_cached_tokens = 0
        self.arrival_time = time.monotonic()
        self.first_scheduled_time: float | None = None
        self.first_token_time: float | None = None
        self.finish_time: float | None = None

    @property
    def finished(self) -> bool:
        return self.finish_time is not None

    @property
    def needs_prompt_logits(self) -> bool:
        """True until every prompt token has its log-probabilities; a cached beginning would leave some out."""
        return self.prompt_logprobs is not None and self.prompt_scored < self.prompt_length

    def snapshot(self) -> Snapshot:
        scored = 0 if self.prompt_logprobs is None else len(self.prompt_logprobs)
        return Snapshot(self.finished, scored, tuple([sequence.state() for sequence in self.sequences]))

    def output(self, snapshot: Snapshot, arithmetic: str, determinism_class: str) -> RequestOutput:
        """Of one snapshot after another: each `delta_text` starts where the one before ended. On any thread, if on one only."""
        scores: list[PositionLogprobs | None] | Prefix[PositionLogprobs | None] | None = self.prompt_logprobs
        if self.prompt_logprobs is not None and snapshot.prompt_scored < self.prompt_length:
            scores = Prefix(self.prompt_logprobs, snapshot.prompt_scored)
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            prompt_logprobs=scores,
            outputs=[s.output(state) for s, state in zip(self.sequences, snapshot.answers, strict=True)],
            finished=snapshot.finished,
            num_cached_tokens=self.num_cached_tokens,
            arithmetic=arithmetic,
            determinism_class=determinism_class,
            metrics=RequestMetrics(
                self.arrival_time,
                self.first_scheduled_time,
                self.first_token_time,
                self.finish_time if snapshot.finished else None,
            ),
        )
