"""What an engine is doing, in numbers: engines say it and servers show it, and neither imports the other."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Member(NamedTuple):
    """A sequence of the running batch. phase: of its last step. tokens: in that step. length: prompt and answer so far."""

    request_id: str
    phase: Literal["prefill", "decode"]
    tokens: int
    length: int


class Load(NamedTuple):
    """What an engine is doing. Counts of tokens, preemptions and steps are since it was built."""

    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks: int
    prompt_tokens: int
    generated_tokens: int
    prefix_cache_query_tokens: int
    prefix_cache_hit_tokens: int
    preemptions: int
    steps: int
    batch: tuple[Member, ...]
