"""The experiment of `queueproof demo`: every request alone, then once more along each axis, compared bit for bit.

An axis counts as tried only if its witness, a count taken from the engine, shows that something did move.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from queueproof.arithmetic.diff import AnswerDiff, compare_answers, same_bits
from queueproof.contract.axes import Axis
from queueproof.engine.config import MOST_TOKENS
from queueproof.engine.llm import LLM
from queueproof.engine.outputs import CompletionOutput, RequestOutput
from queueproof.engine.prompts import Prompt
from queueproof.engine.protocols import LoadedModel
from queueproof.engine.sampling_params import SamplingParams
from queueproof.engine.stats import EngineStats

SEED = 20  # of the shuffled arrival and of the random policy
BLOCK_SIZE = 16
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Plan:
    """One run over all requests. options: of the engine, beside the common ones. order: arrival.

    threads: None for the threads of the reference. warm: the prompts are computed once before. witness: how many
    times the axis moved, from the engine's counts, the arrival order and the threads in use.
    """

    axis: Axis
    what: str
    witness_of: str
    witness: Callable[[EngineStats], int]
    order: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    threads: int | None = None
    warm: bool = False


@dataclass(frozen=True)
class Answer:
    token_ids: list[int]
    logprobs: np.ndarray[Any, np.dtype[np.float32]]
    lse: np.ndarray[Any, np.dtype[np.float32]]

    @classmethod
    def of(cls, output: CompletionOutput) -> Answer:
        if output.error is not None:
            raise output.error
        return cls(list(output.token_ids), output.logprob_bits.view(np.float32), output.lse_bits.view(np.float32))


@dataclass(frozen=True)
class Change:
    """A request whose answer is not the one it got alone. diff: ids and log-probabilities, where they part."""

    request: int
    diff: AnswerDiff
    answer: Answer


@dataclass(frozen=True)
class RunResult:
    plan: Plan
    changes: tuple[Change, ...]
    witness: int
    stats: EngineStats
    seconds: float

    @property
    def tokens_changed(self) -> int:
        return sum(change.diff.first_id is not None for change in self.changes)

    @property
    def logprobs_changed(self) -> int:
        return len(self.changes)  # another token has another log-probability

    @property
    def max_logprob_difference(self) -> float:
        return max((change.diff.max_logprob_difference for change in self.changes), default=0.0)


@dataclass(frozen=True)
class Reference:
    """The answers that each request got alone."""

    answers: tuple[Answer, ...]
    tokens: int
    seconds: float


@dataclass(frozen=True)
class ArithmeticResult:
    arithmetic: str
    determinism_class: str
    reference: Reference
    runs: tuple[RunResult, ...]

    @property
    def changed(self) -> frozenset[int]:
        """Requests whose answer changed on any axis."""
        return frozenset(change.request for run in self.runs for change in run.changes)

    @property
    def tokens_per_s(self) -> float:
        """Answer tokens per second with all requests at once, prefill included."""
        run = next(r for r in self.runs if r.plan.axis is Axis.NEIGHBOURS)
        return run.stats.generated_tokens / run.seconds

    @property
    def tokens_per_s_alone(self) -> float:
        """The same with one request at a time."""
        return self.reference.tokens / self.reference.seconds

    @property
    def unmoved(self) -> tuple[str, ...]:
        """Axes whose witness is zero: about them the run says nothing."""
        return tuple(run.plan.axis.value for run in self.runs if run.witness == 0)


def plans(prompt_lengths: Sequence[int], max_tokens: int, threads: int) -> tuple[Plan, ...]:
    """The runs, cheapest explanation first. threads: of the reference."""
    n = len(prompt_lengths)
    arrival = tuple(range(n))
    shuffled = tuple(random.Random(SEED).sample(arrival, n))
    moved = sum(i != j for i, j in zip(arrival, shuffled, strict=True))
    other = max(1, threads // 2) if threads > 1 else 2
    # Room for two fifths of the prompts, so that several run and outgrow it, but always for the longest request.
    prompt_blocks = sum(-(-length // BLOCK_SIZE) for length in prompt_lengths)
    longest = -(-(max(prompt_lengths) + max_tokens) // BLOCK_SIZE)
    tight = max(longest + 1, 2 * prompt_blocks // 5)
    return (
        Plan(
            Axis.NEIGHBOURS,
            f"all {n} at once",
            "in the largest batch",
            lambda stats: stats.largest_batch if stats.largest_batch > 1 else 0,
            arrival,
            {"prefill_tokens_beside_decode": MOST_TOKENS},  # or the first have ended before the last begin
        ),
        Plan(
            Axis.ORDER,
            "shuffled, 8 at a time",
            "requests moved",
            lambda stats: moved if stats.largest_batch > 1 else 0,
            shuffled,
            {"max_num_seqs": 8, "policy": "random", "policy_seed": SEED},
        ),
        Plan(
            Axis.SCHEDULE,
            "small steps, little memory",
            "splits and preemptions, the fewer",
            lambda stats: min(stats.split_prefills, stats.preemptions),
            arrival,
            {"max_num_batched_tokens": 128, "num_blocks": tight},
        ),
        Plan(
            Axis.CACHE,
            "warm prefix cache",
            "prompt tokens found",
            lambda stats: stats.prefix_cache_hit_tokens,
            arrival,
            {"enable_prefix_caching": True},
            warm=True,
        ),
        Plan(
            Axis.PHASE,
            "4 tokens guessed ahead",
            "guesses accepted",
            lambda stats: stats.guesses_accepted,
            arrival,
            {"num_speculative_tokens": 4},
        ),
        Plan(
            Axis.PARALLELISM,
            f"{other} thread{'s' if other > 1 else ''}, not {threads}",
            "threads in use",
            lambda stats: other,
            arrival,
            threads=other,
        ),
    )


class Experiment:
    """Runs on one loaded model. open_llm and blas_threads are replaced in tests.

    blas_threads: a context in which the libraries' own kernels use that many threads; its value is how many they do.
    """

    def __init__(
        self,
        model: LoadedModel,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        threads: int,
        open_llm: Callable[..., LLM] = LLM,
        blas_threads: Callable[[int], AbstractContextManager[int | None]] | None = None,
    ) -> None:
        self.model, self.threads = model, threads
        self.prompts: list[Prompt] = [{"prompt_token_ids": list(p)} for p in prompts]
        self.params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        self.plans = plans([len(p) for p in prompts], max_tokens, threads)
        self._open, self._blas = open_llm, blas_threads or (lambda n: nullcontext(n))
        longest = max(len(p) for p in prompts) + max_tokens
        total = sum(-(-(len(p) + max_tokens) // BLOCK_SIZE) for p in prompts)
        self._options: dict[str, Any] = {
            "max_model_len": longest,
            "max_num_seqs": max(2, len(prompts)),
            "num_blocks": total + 1,
            "block_size": BLOCK_SIZE,
            "enable_prefix_caching": False,
        }

    def alone(self, progress: Progress) -> Reference:
        """Each request in an engine that has nothing else to do: no neighbours, no cache, no guesses."""
        answers: list[Answer] = []
        with self._blas(self.threads), self._open(self.model, threads=self.threads, **self._options) as llm:
            start = time.perf_counter()
            for i, prompt in enumerate(self.prompts):
                answers.append(_answers(llm.generate([prompt], self.params))[0])
                progress(i + 1, len(self.prompts))
            seconds = time.perf_counter() - start
        return Reference(tuple(answers), sum(len(a.token_ids) for a in answers), seconds)

    def along(self, plan: Plan, reference: Reference, progress: Progress) -> RunResult:
        """All requests again under a plan, compared with the reference."""
        threads = plan.threads or self.threads
        prompts = [self.prompts[i] for i in plan.order]
        with (
            self._blas(threads) as in_use,
            self._open(self.model, threads=threads, **self._options | plan.options) as llm,
        ):
            if plan.warm:
                llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=1))
            llm.reset_stats()
            start = time.perf_counter()
            answers = _answers(llm.generate(prompts, self.params, progress=progress))
            seconds = time.perf_counter() - start
            stats = llm.stats
        changes = (_change(i, reference.answers[i], a) for i, a in zip(plan.order, answers, strict=True))
        witness = plan.witness(stats)
        if plan.threads is not None and in_use != plan.threads:
            witness = 0  # a library that did not take the number
        ordered = sorted((c for c in changes if c is not None), key=lambda c: c.request)
        return RunResult(plan, tuple(ordered), witness, stats, seconds)


def _answers(outputs: Sequence[RequestOutput]) -> list[Answer]:
    return [Answer.of(output.outputs[0]) for output in outputs]


def _change(request: int, alone: Answer, now: Answer) -> Change | None:
    diff = compare_answers(alone.token_ids, alone.logprobs.tolist(), now.token_ids, now.logprobs.tolist())
    if diff.same and same_bits(alone.lse, now.lse):
        return None
    return Change(request, diff, now)
