"""What a record says, as sentences and rows: for the page, and for the summary on a terminal."""

from __future__ import annotations

from typing import NamedTuple

from queueproof.audit import names
from queueproof.audit.records import (
    AuditRecord,
    Clause,
    EndpointIdentity,
    Interval,
    ProbeResult,
    Unit,
    Verdict,
    Witness,
)
from queueproof.audit.report.words import listed, number, percent, seconds

SUBJECTS = {
    names.ALONE: "asking again",
    names.NEIGHBOURS: "neighbours in the batch",
    names.ORDER: "arrival order",
    names.LOAD: "load",
    names.LENGTHS: "neighbours of other lengths",
    names.CACHE: "the prefix cache",
    names.PHASE: "prefill against decode",
    names.SEEDS: "a seed used again",
    names.STREAM: "streaming",
    names.LOGPROBS: "asking for log-probabilities",
    names.DRIFT: "time",
    names.AGAINST: "the other endpoint",
}
_UNITS = {Unit.IDS: "token ids", Unit.TOKENS: "tokens’ texts", Unit.TEXT: "whole text"}


class Row(NamedTuple):
    """A probe in a line. changed: `3 of 24`; share, corrected: an interval in words; witness: one, with its source;
    by: what was compared. Empty where there is none."""

    name: str
    question: str
    verdict: Verdict
    reason: str
    changed: str
    detail: str
    share: str
    corrected: str
    witness: str
    by: str
    partial: bool


def headline(record: AuditRecord) -> str:
    """The verdict in one sentence: what changes answers, what holds, and what could not be shown."""
    first, *others = findings(record)
    return "; ".join([first, *(other[0].lower() + other[1:] for other in others)]) + "."


def findings(record: AuditRecord) -> list[str]:
    """The parts of the headline, the weightiest first, each a sentence without its period."""
    changes, holds, open_, failed = (_subjects(record, v) for v in (_CHANGES, _HOLDS, _OPEN, Verdict.FAILED))
    found = []
    if changes:
        found.append(f"Answers change with {listed(changes)}")
    if holds:
        found.append(f"{'They hold' if changes else 'Answers hold'} against {listed(holds)}")
    if open_:
        found.append(
            f"{'Not shown' if found else 'No answer changed, but it is not shown to hold'} for {listed(open_)}"
        )
    if failed:
        found.append(f"The endpoint failed at {listed(failed)}")
    return found or ["Nothing was compared"]


_CHANGES, _HOLDS, _OPEN = Verdict.CHANGES, Verdict.HOLDS, Verdict.INCONCLUSIVE


def _subjects(record: AuditRecord, verdict: Verdict) -> list[str]:
    return [SUBJECTS.get(result.name, result.name) for result in record.probes if result.verdict is verdict]


def promises(clauses: tuple[Clause, ...]) -> str:
    """What became of a contract, in one sentence. Empty without one."""
    if not clauses:
        return ""
    broken = sum(clause.verdict is Verdict.CHANGES for clause in clauses)
    kept = sum(clause.verdict is Verdict.HOLDS for clause in clauses)
    if broken:
        return f"The contract is broken: {broken} of {len(clauses)} promises."
    if kept == len(clauses):
        return f"The contract holds: all {kept} promises." if kept > 1 else "The contract holds: its promise is kept."
    return f"The contract is not shown to hold: {kept} of {len(clauses)} promises are."


def word(clause: Clause) -> str:
    """A clause's verdict: a promise is broken, where a probe's answers change."""
    return "broken" if clause.verdict is Verdict.CHANGES else str(clause.verdict)


def interval(changed: int, found: Interval | None) -> str:
    """`12.5% (8.1% to 18%)` needs the share: here only the bounds, or `at most 1.2%` where nothing changed."""
    if found is None:
        return ""
    if not changed:
        return f"at most {percent(found.high, up=True)}"
    return f"{percent(found.low, up=False)} to {percent(found.high, up=True)}"


def share(result: ProbeResult) -> str:
    """The share of changed answers with its exact interval: `12.5% (8.1% to 18%)`, or `at most 1.2%` of 0."""
    bounds = interval(result.changed, result.interval)
    return f"{percent(result.changed / result.compared)} ({bounds})" if result.changed and result.compared else bounds


def changed(result: ProbeResult) -> str:
    """`3 of 24`. Empty where nothing was compared."""
    return f"{number(result.changed)} of {number(result.compared)}" if result.compared else ""


def detail(result: ProbeResult) -> str:
    """Of those that changed, how many in more than log-probabilities."""
    only = result.changed - result.tokens_changed
    if not only:
        return ""
    return "only in log-probabilities" if only == result.changed else f"{number(only)} only in log-probabilities"


def witness(result: ProbeResult) -> str:
    """The witness that decides, with its source: the first that did not move, else the first."""
    found = next((w for w in result.witnesses if not w.moved), None) or next(iter(result.witnesses), None)
    return told(found) if found is not None else ""


def told(found: Witness) -> str:
    """A witness and where it is from; of one that did not move, that it is not shown."""
    said = found.claim if found.source == "none" else f"{found.claim} ({found.source})"
    return said if found.moved else f"not shown: {said}"


def row(result: ProbeResult) -> Row:
    return Row(
        result.name,
        result.question,
        result.verdict,
        result.reason,
        changed(result),
        detail(result),
        share(result),
        interval(result.changed, result.corrected),
        witness(result),
        _UNITS[result.unit] if result.unit is not None else "",
        result.partial and bool(result.compared),
    )


def rows(record: AuditRecord) -> list[Row]:
    """A row for each probe, in the order in which they ran."""
    return [row(result) for result in record.probes]


def identity(who: EndpointIdentity) -> list[tuple[str, str]]:
    """Who answers: names and values. Only what is known."""
    known = [
        ("address", who.url),
        ("model", who.model),
        ("server", f"{who.vendor} {who.version}" if who.version else f"{who.vendor}, version not told"),
        ("fingerprints", ", ".join(who.fingerprints) or "none told"),
        ("cold cache by", who.cold_by or ""),
        ("KV block", f"{who.block_size} tokens" if who.block_size else ""),
        ("offers", ", ".join(who.abilities)),
    ]
    return [(name, value) for name, value in known if value]


def method(record: AuditRecord) -> list[tuple[str, str]]:
    """How it was measured: names and values."""
    run = record.run
    known = [
        ("by", run.tool),
        ("started", run.started),
        ("took", seconds(run.seconds)),
        ("budget", run.budget),
        ("asked", _asked(record)),
        ("largest crowd", f"{run.users} users"),
        ("answers", f"at most {number(run.max_tokens)} tokens"),
        ("seed", str(run.seed)),
        ("confidence", percent(run.confidence)),
        ("prompts’ SHA-256", run.prompts_digest),
        ("left out", _left_out(run.left_out)),
        ("machine", run.machine),
    ]
    return [(name, value) for name, value in known if value]


def _asked(record: AuditRecord) -> str:
    requests, tokens = (sum(getattr(p, name) for p in record.probes) for name in ("requests", "tokens"))
    return f"{number(record.run.prompts)} prompts, {number(requests)} requests, {number(tokens)} tokens"


def _left_out(keys: tuple[str, ...]) -> str:
    """Empty where none was."""
    prompts = "1 prompt" if len(keys) == 1 else f"{number(len(keys))} prompts"
    return f"{prompts}, too long for the budget: {_some(keys)}" if keys else ""


def _some(keys: tuple[str, ...], most: int = 6) -> str:
    return ", ".join(keys[:most]) + (" …" if len(keys) > most else "")


def warnings(record: AuditRecord) -> list[str]:
    """What a reader has to know before anything else: that the run is not whole."""
    found = []
    if record.run.interrupted:
        found.append("The run was interrupted: what is here was measured until then.")
    early = [result.name for result in record.probes if result.partial and result.compared]
    if early:
        found.append(f"Ended early, so their counts are smaller than planned: {listed(early)}.")
    never = [result.name for result in record.probes if result.partial and not result.compared]
    if never:
        found.append(f"Not reached: {listed(never)}.")
    return found
