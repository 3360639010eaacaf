"""What an engine is doing, for whoever watches it from another thread."""

from __future__ import annotations

from typing import NamedTuple

from queueproof.contract.load import Load, Member
from queueproof.engine.pipeline import Step


class Moment(NamedTuple):
    """The books of an engine between two steps; taken at every step, so only what costs nothing. step: the last one begun."""

    running: int
    waiting: int
    free_blocks: int
    blocks: int
    prompt_tokens: int
    generated_tokens: int
    prefix_cache_query_tokens: int
    prefix_cache_hit_tokens: int
    preemptions: int
    steps: int
    step: Step | None


def load_of(moment: Moment) -> Load:
    """In words for people and metrics. On any thread: what it reads of a step does not change, but for lengths that grow."""
    return Load(
        moment.running,
        moment.waiting,
        moment.blocks - moment.free_blocks,
        moment.blocks,
        moment.prompt_tokens,
        moment.generated_tokens,
        moment.prefix_cache_query_tokens,
        moment.prefix_cache_hit_tokens,
        moment.preemptions,
        moment.steps,
        () if moment.step is None else _members(moment.step),
    )


def _members(step: Step) -> tuple[Member, ...]:
    prefills = frozenset(step.prefills)
    return tuple(
        Member(
            sequence.request.request_id,
            "prefill" if i in prefills else "decode",
            step.starts[i + 1] - step.starts[i],
            sequence.length,
        )
        for i, sequence in enumerate(step.sequences)
    )
