"""What a request gives back, in vLLM's shape, with what a receipt needs beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from queueproof.contract.errors import NumericalError

FinishReason = Literal["stop", "length", "abort", "error"]
U32 = NDArray[np.uint32]


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
    log-sum-exp of the logits.
    seed: the one in use. stop_reason: the stop string or stop token id; None for the model's own end token.
    error: with finish_reason "error".
    """

    index: int
    text: str
    delta_text: str
    token_ids: list[int]
    logprobs: list[PositionLogprobs] | None
    logprob_bits: U32
    lse_bits: U32
    seed: int
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: NumericalError | None = None

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
    prompt_logprobs: list[PositionLogprobs | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int
    arithmetic: str
    determinism_class: str
    metrics: RequestMetrics
