"""What an engine did, counted. Tests and the demo use these as witnesses that something happened at all."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EngineStats:
    """Counts since the engine was built or `reset_stats` was called.

    largest_batch: most sequences in one step. mixed_steps: steps with prefill and decode.
    prompt_tokens: of admitted requests, once each. generated_tokens: tokens that became part of an answer.
    prefix_cache_*_tokens: prompt tokens looked up, and found, when a sequence is first admitted.
    preemptions: sequences that gave up their blocks and were computed again.
    split_prefills: chunks that ended before the prompt did.
    overlapped_steps: steps that were begun before the tokens of the one before were known. discarded_tokens: drawn in such
    a step for a sequence that turned out to have ended, or was aborted, meanwhile.
    """

    steps: int = 0
    largest_batch: int = 0
    mixed_steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_cache_query_tokens: int = 0
    prefix_cache_hit_tokens: int = 0
    preemptions: int = 0
    split_prefills: int = 0
    guesses_proposed: int = 0
    guesses_accepted: int = 0
    overlapped_steps: int = 0
    discarded_tokens: int = 0
