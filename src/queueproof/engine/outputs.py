"""What a request gives back, in vLLM's shape, with what a receipt needs beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from queueproof.contract.errors import QueueproofError

FinishReason = Literal["stop", "length", "abort", "error"]
U32 = NDArray[np.uint32]
T = TypeVar("T")


class Prefix(Sequence[T]):
    """The first `length` items of a list that may go on growing, without a copy of them. Equal to a list of the same items.

    An output is made at every step of every stream: copies would cost the square of an answer's length.
    """

    __slots__ = ("_items", "_length")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, items: list[T], length: int) -> None:
        self._items, self._length = items, length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if step > 0:
                return self._items[start:stop:step]
            return [self._items[i] for i in range(start, stop, step)]
        return self._items[range(self._length)[index]]

    def __iter__(self) -> Any:
        return islice(self._items, self._length)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | Prefix):
            return NotImplemented
        return len(other) == self._length and all(a == b for a, b in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Prefix, (list(self), self._length)


class AnswerState(NamedTuple):
    """What an output shows of an answer, as it was between two steps; `tokens` is how many it had."""

    tokens: int
    text: str
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    error: QueueproofError | None


class Snapshot(NamedTuple):
    """Where a request stood between two steps. All else only grows, so that lengths will do: it costs the same at any length,
    and another thread may make an output of it while the request goes on. prompt_scored: entries of prompt_logprobs."""

    finished: bool
    prompt_scored: int
    answers: tuple[AnswerState, ...]


@dataclass(frozen=True, slots=True)
class Logprob:
    """logprob: of the model itself, an exact f32 value. rank: 1 is the most likely token."""

    logprob: float
    rank: int
    decoded_token: str | None = None


PositionLogprobs = dict[int, Logprob]


@dataclass(frozen=True, slots=True, eq=False)
class CompletionOutput:
    """One answer, so far or finished. Two of them are compared field by field: `==` is identity.

    text: of token_ids, without a stop string or stop token unless asked for; while unfinished, only what no stop
    string can take back. delta_text: what `text` gained since the last output of a stream.
    logprob_bits, lse_bits: f32 bits as u32, one for each token: log-probability of the chosen token, and
    log-sum-exp of the logits. Of an answer that goes on these and token_ids and logprobs are views, of one that has ended
    lists and whole arrays.
    seed: the one in use. stop_reason: the stop string or stop token id; None for the model's own end token.
    error: with finish_reason "error".
    """

    index: int
    text: str
    delta_text: str
    token_ids: Sequence[int]
    logprobs: Sequence[PositionLogprobs] | None
    logprob_bits: U32
    lse_bits: U32
    seed: int
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: QueueproofError | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def cumulative_logprob(self) -> float:
        """Sum of the chosen log-probabilities, in f64, in order."""
        return float(sum(self.logprob_bits.view(np.float32).tolist()))


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Seconds on the clock of time.monotonic. first_scheduled_time: when the first of its sequences joined a batch."""

    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    finish_time: float | None


@dataclass(frozen=True, slots=True, eq=False)
class RequestOutput:
    """All answers to one prompt; `==` is identity. prompt_logprobs: one entry for each prompt token, the first None.

    num_cached_tokens: prompt tokens whose keys came from the prefix cache.
    arithmetic, determinism_class: how it was computed and what that promises (contract/classes.py).
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: Sequence[PositionLogprobs | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int
    arithmetic: str
    determinism_class: str
    metrics: RequestMetrics
