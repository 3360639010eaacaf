"""From what the probes found to why answers change: a table whose rows are tried one by one.

A row names a cause where all its signs hold and none of those that explain the same otherwise; it is SHOWN where the
controls beside them hold too, else LIKELY. Several rows may hold at once: causes are independent. Each sign that held
says its numbers, and these are the evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from queueproof.audit import names
from queueproof.audit.findings import Findings
from queueproof.audit.names import Cause as Name
from queueproof.audit.records import Cause, Certainty, EndpointIdentity, ProbeResult
from queueproof.audit.signs import (
    Sign,
    alternating,
    boundary_clearly,
    boundary_only,
    certain,
    changed,
    crowd_seeds_only,
    drift_stays,
    drifted,
    fingerprints,
    first_asks_clearly,
    first_asks_only,
    first_crowds_clearly,
    first_crowds_only,
    floor,
    held,
    last_in_line_clearly,
    last_in_line_only,
    levels,
    long_clearly,
    long_only,
    more,
    more_or_floor,
    not_compared,
    one_build,
    proven,
    sampled,
    sampled_clearly,
    sampled_in,
    warm,
    warm_clearly,
    warm_without_cold,
)
from queueproof.audit.vendors import next_steps


@dataclass(frozen=True, slots=True)
class Row:
    """when: all must hold. unless: none may. shown: with all of these too it is SHOWN. also: told where they hold."""

    cause: Name
    sentence: str
    when: tuple[Sign, ...]
    unless: tuple[Sign, ...] = ()
    shown: tuple[Sign, ...] = ()
    also: tuple[Sign, ...] = ()


_BATCH = "Answers depend on which or how many other requests are computed together with them."
_CHUNKING = "Answers depend on how prefills are cut into chunks, or on whose steps they share."
_CACHE = "Answers computed on a cached prefix differ from those that compute the whole prompt."
_REPLICA = (
    "Not always the same server answers: replicas that differ, or a build, model or setting that changed meanwhile."
)
_SAMPLER = (
    "Equal log-probabilities, and another token: the choice of tokens depends on something other than the request."
)
_WARM_UP = "What is asked first is answered otherwise than what is asked later."

TABLE: tuple[Row, ...] = (
    Row(
        Name.SAMPLER,
        _SAMPLER,
        when=(sampled(),),
        shown=(sampled_clearly(),),
        also=(floor(),),
    ),
    Row(
        Name.SAMPLER,
        _SAMPLER,
        when=(crowd_seeds_only(), held(names.NEIGHBOURS)),
        shown=(certain(names.SEEDS),),
    ),
    Row(
        Name.REPLICA,
        _REPLICA,
        when=(fingerprints(), more_or_floor()),
        shown=(fingerprints(),),
    ),
    Row(
        Name.REPLICA,
        _REPLICA,
        when=(alternating(),),
        unless=(sampled_in(names.ALONE), first_asks_only()),
    ),
    Row(
        Name.REPLICA,
        _REPLICA,
        when=(drifted(),),
        unless=(sampled_in(names.DRIFT),),
        shown=(certain(names.DRIFT), drift_stays()),
        also=(floor(), drift_stays()),
    ),
    Row(
        Name.REPLICA,
        "The two endpoints do not answer alike.",
        when=(more(names.AGAINST),),
        shown=(certain(names.AGAINST),),
        also=(floor(),),
    ),
    Row(
        Name.WARM_UP,
        _WARM_UP,
        when=(first_asks_only(),),
        unless=(warm_without_cold(),),
        shown=(first_asks_clearly(),),
    ),
    Row(
        Name.WARM_UP,
        _WARM_UP,
        when=(first_crowds_only(),),
        unless=(sampled_in(names.NEIGHBOURS),),
        shown=(first_crowds_clearly(),),
        also=(floor(),),
    ),
    Row(
        Name.UNSTABLE,
        "The same request, asked alone twice, is not answered alike.",
        when=(changed(names.ALONE),),
        unless=(sampled_in(names.ALONE), fingerprints(), alternating(), first_asks_only()),
        shown=(one_build(),),
    ),
    Row(
        Name.ORDER,
        "Answers depend on the place in the batch or in the queue, not only on the company.",
        when=(last_in_line_only(),),
        unless=(sampled_in(names.ORDER),),
        shown=(last_in_line_clearly(), one_build()),
    ),
    Row(
        Name.ORDER,
        "Answers depend on the place in the batch or in the queue, not on the company.",
        when=(more(names.ORDER), held(names.NEIGHBOURS)),
        unless=(sampled_in(names.ORDER),),
        shown=(certain(names.ORDER), proven(names.NEIGHBOURS), one_build()),
    ),
    Row(
        Name.BATCH,
        _BATCH,
        when=(more(names.NEIGHBOURS),),
        unless=(sampled_in(names.NEIGHBOURS), first_crowds_only(), last_in_line_clearly()),
        shown=(certain(names.NEIGHBOURS), proven(names.NEIGHBOURS), one_build()),
        also=(levels(), floor()),
    ),
    Row(
        Name.BATCH,
        _BATCH,
        when=(more(names.LOAD), not_compared(names.NEIGHBOURS)),
        unless=(sampled_in(names.LOAD),),
        also=(floor(),),
    ),
    Row(
        Name.CHUNKING,
        _CHUNKING,
        when=(long_only(),),
        unless=(sampled_in(names.LENGTHS),),
        shown=(long_clearly(), one_build()),
        also=(floor(),),
    ),
    Row(
        Name.CHUNKING,
        _CHUNKING,
        when=(more(names.LOAD), held(names.NEIGHBOURS)),
        unless=(sampled_in(names.LOAD), last_in_line_only()),
        also=(floor(),),
    ),
    Row(
        Name.BOUNDARY,
        "Answers change where a cached prefix ends at a certain distance from a block's boundary.",
        when=(boundary_only(),),
        unless=(sampled_in(names.CACHE),),
        shown=(boundary_clearly(), one_build()),
        also=(held(names.CACHE, names.COLD_AGAIN),),
    ),
    Row(
        Name.CACHE,
        _CACHE,
        when=(warm(),),
        unless=(sampled_in(names.CACHE),),
        shown=(warm_clearly(), one_build()),
        also=(held(names.CACHE, names.COLD_AGAIN), floor()),
    ),
    Row(
        Name.PHASE,
        "A token's log-probability depends on whether it was read as a part of the prompt or written.",
        when=(more(names.PHASE),),
        shown=(certain(names.PHASE), one_build()),
        also=(floor(),),
    ),
    Row(
        Name.SEED,
        "The same seed does not give the same answer, though the same greedy request does.",
        when=(more(names.SEEDS), changed(names.SEEDS, names.SAME_SEED)),
        unless=(sampled_in(names.ALONE),),
        shown=(certain(names.SEEDS), held(names.ALONE), one_build()),
        also=(floor(),),
    ),
    Row(
        Name.LOGPROBS,
        "Answers change when log-probabilities are asked for.",
        when=(more(names.LOGPROBS),),
        shown=(certain(names.LOGPROBS), one_build()),
        also=(floor(),),
    ),
    Row(
        Name.STREAM,
        "A streamed answer differs from one that comes whole.",
        when=(more(names.STREAM),),
        unless=(sampled_in(names.STREAM),),
        shown=(certain(names.STREAM), one_build()),
        also=(floor(),),
    ),
)


def attribute(results: Sequence[ProbeResult], identity: EndpointIdentity) -> tuple[Cause, ...]:
    """The causes of what changed, shown ones first, each with its evidence and the next steps for this server.

    Nothing changed: no cause. Results are best given `judged` (near ties told), else `sampler` is not found.
    """
    findings = Findings(results, identity)
    named: dict[Name, Cause] = {}
    for row in TABLE:
        cause = _try(row, findings)
        if cause is not None:
            named[row.cause] = _merged(named[row.cause], cause) if row.cause in named else cause
    return tuple(sorted(named.values(), key=lambda cause: cause.certainty is not Certainty.SHOWN))


def _try(row: Row, findings: Findings) -> Cause | None:
    when = [sign.test(findings) for sign in row.when]
    if None in when or any(sign.test(findings) is not None for sign in row.unless):
        return None
    controls = [sign.test(findings) for sign in row.shown]
    shown = bool(row.shown) and None not in controls
    told = [*when, *controls, *(sign.test(findings) for sign in row.also)]
    evidence = tuple(dict.fromkeys(sentence for sentence in told if sentence))
    certainty = Certainty.SHOWN if shown else Certainty.LIKELY
    return Cause(row.cause.value, certainty, row.sentence, evidence, next_steps(row.cause, findings.identity))


def _merged(first: Cause, second: Cause) -> Cause:
    """Two rows for one cause: the surer of them speaks, with the evidence of both."""
    surer = second if second.certainty is Certainty.SHOWN and first.certainty is not Certainty.SHOWN else first
    evidence = tuple(dict.fromkeys(first.evidence + second.evidence))
    return Cause(surer.name, surer.certainty, surer.sentence, evidence, surer.next_steps)
