"""What can be wrong with an endpoint of the zoo, each fault alone or with others, and what an audit should name it."""

from __future__ import annotations

from dataclasses import dataclass

from queueproof.audit.names import Cause


@dataclass(frozen=True, slots=True)
class Faults:
    """scale: how far log-probabilities move, at most, where a fault moves them.

    batch_from: they move with the number of requests that are computed together, where it is at least that; 0 never.
    order: with the place in the batch, but not at the first. first_crowds: so many steps of batches larger than all
    before (by powers of two) are computed otherwise; first_asks: so many requests from the first are. cache: any hit
    moves them; boundary: a hit does, where the prompt's length minus a multiple of the block is one of these. split: a long prompt
    that is not cut where it is alone; mixed: a step that has a piece of a long prompt beside other requests. phase: in a
    prompt they are not what they are in an answer. logprobs: where they are asked for; whole: where an answer is not
    streamed.
    sampler: among others, a greedy request sometimes takes the second-best token, from equal log-probabilities.
    seed_load: a seed is not all that a sample depends on, among others; seed_ignored: it does not depend on the seed.
    unstable: the share of requests that are computed somehow.
    replicas: servers with other weights that share the address; build_after: from that request on the weights are others.
    told: these have another system_fingerprint.
    """

    scale: float = 0.01
    batch_from: int = 0
    order: bool = False
    first_crowds: int = 0
    first_asks: int = 0
    cache: bool = False
    boundary: tuple[int, ...] = ()
    split: bool = False
    mixed: bool = False
    phase: bool = False
    logprobs: bool = False
    whole: bool = False
    sampler: bool = False
    seed_load: bool = False
    seed_ignored: bool = False
    unstable: float = 0.0
    replicas: int = 1
    build_after: int | None = None
    told: bool = True


CLEAN = Faults()

# Under a name for a test: the fault, and the cause that an audit should find.
PLANTED: dict[str, tuple[Faults, Cause]] = {
    "batch": (Faults(batch_from=2), Cause.BATCH),
    "batch of 8": (Faults(batch_from=8), Cause.BATCH),
    "first crowds": (Faults(first_crowds=6), Cause.WARM_UP),
    "first asks": (Faults(first_asks=24), Cause.WARM_UP),
    "cache": (Faults(cache=True), Cause.CACHE),
    "boundary": (Faults(boundary=(0,)), Cause.BOUNDARY),
    "after the boundary": (Faults(boundary=(1,)), Cause.BOUNDARY),
    "split": (Faults(split=True), Cause.CHUNKING),
    "mixed": (Faults(mixed=True), Cause.CHUNKING),
    "phase": (Faults(phase=True), Cause.PHASE),
    "sampler": (Faults(sampler=True), Cause.SAMPLER),
    "sampler's seed among others": (Faults(seed_load=True), Cause.SAMPLER),
    "seed": (Faults(seed_ignored=True), Cause.SEED),
    "replicas": (Faults(replicas=2), Cause.REPLICA),
    "replicas untold": (Faults(replicas=2, told=False), Cause.REPLICA),
    "build": (Faults(build_after=150), Cause.REPLICA),
    "build untold": (Faults(build_after=150, told=False), Cause.REPLICA),
    "logprobs": (Faults(scale=3.0, logprobs=True), Cause.LOGPROBS),  # only tokens can be compared
    "whole": (Faults(whole=True), Cause.STREAM),
    "order": (Faults(order=True), Cause.ORDER),
    "unstable": (Faults(unstable=0.3), Cause.UNSTABLE),
}
