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
# cache: the controls (cold against cold, or warm against warm where it cannot be cold again), then warm against cold: the
# whole prompt, a part of it, and prompts of k·b + x tokens for blocks of b, x = -1, 0, 1, whose groups begin with BOUNDARY.
COLD_AGAIN, WARM_AGAIN = "cold again", "warm again"
WHOLE, WHOLE_LONG, PARTIAL, BOUNDARY = "whole", "whole, long", "partial", "boundary "
# seeds: one seed twice alone, and once in a crowd.
SAME_SEED, SAME_SEED_CROWD = "same seed alone", "same seed in a crowd"
# drift: the references' asks at the end of the run, sorted by what a third ask gave: the second answer, the first, another.
FOR_GOOD, BACK_AND_FORTH = "changed for good", "back and forth"
# against: the two endpoints, and the other one twice.
THE_TWO, THE_OTHER_TWICE = "this against the other", "the other, alone twice"
