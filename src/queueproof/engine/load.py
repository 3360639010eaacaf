"""What an engine is doing, for whoever watches it from another thread."""

from __future__ import annotations

from typing import NamedTuple

from queueproof.contract.load import Load, Member
from queueproof.engine.pipeline import Step


class Moment(NamedTuple):
    """The books of an engine between two steps; taken at every step, so only what costs nothing.

    load: but for its batch, which `load_of` reads off the step, the last one begun.
    """

    load: Load
    step: Step | None


def load_of(moment: Moment) -> Load:
    """In words for people and metrics. On any thread: what it reads of a step does not change, but for lengths that grow."""
    return moment.load if moment.step is None else moment.load._replace(batch=_members(moment.step))


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
