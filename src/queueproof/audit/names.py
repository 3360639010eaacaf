"""The names that probes, attribution and reports share: of probes, of the groups that tell causes apart, and of causes."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """Why answers change. The value is what reports print."""

    BATCH = "batch composition"
    ORDER = "order"
    CHUNKING = "chunking"
    CACHE = "cache path"
    BOUNDARY = "block boundary"
    PHASE = "prefill against decode"
    SAMPLER = "sampler"
    SEED = "seed ignored"
    REPLICA = "replica or build change"
    WARM_UP = "warm-up only"
    LOGPROBS = "logprob request"
    STREAM = "stream path"
    UNSTABLE = "unstable alone"


ALONE, NEIGHBOURS, ORDER, LOAD, LENGTHS = "alone", "neighbours", "order", "load", "lengths"
CACHE, PHASE, SEEDS, STREAM, LOGPROBS = "cache", "phase", "seeds", "stream", "logprobs"
DRIFT, AGAINST = "drift", "against"

AGAIN = " again"  # ends the name of a group that repeats the group of the name before it, on the same scale x


def users(count: int) -> str:
    """The group of a crowd of that many, in `neighbours`."""
    return f"{count} users"


# alone: the second ask against the first (the reference), and the third against the second. Where only the first of these
# changes, what was asked first was special: a cold start, or a cold cache where the endpoint cannot forget.
SECOND, THIRD = "second against first", "third against second"
# order: a prompt sent as the first and as the last of a crowd, each against its reference. Where only the last changes, it is
# the place that does it, not the company.
FIRST_IN_LINE, LAST_IN_LINE = "first in line", "last in line"
# lengths: a short prompt in a crowd of as many other short ones (the control), and beside long prefills; a long prompt
# whose prefill shares its steps with short answers.
SHORT_BESIDE_SHORT, SHORT_BESIDE_LONG, LONG_BESIDE_SHORT = (
    "short beside short",
    "short beside long",
    "long beside short",
)
# cache: the control (cold against cold), then warm against cold: the whole prompt, a part of it, and a prefix of k·b + x
# tokens at the block boundary k·b, for x = -1, 0, 1.
COLD_AGAIN, WHOLE, PARTIAL = "cold again", "whole prompt", "part of the prompt"
# seeds: one seed twice alone, twice in crowds; and how often another seed, or none, gave another answer (not a change).
SAME_SEED, SAME_SEED_CROWD = "same seed", "same seed in a crowd"
# drift: the reference's ask at the end of the run, and once more.
LATER, LATER_AGAIN = "later", "later again"


def boundary(offset: int) -> str:
    """The group of a cached prefix that ends `offset` tokens after a block boundary, in `cache`; x is the offset."""
    return f"boundary {offset:+d}"
