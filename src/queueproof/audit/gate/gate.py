"""From a contract and what a run found to clauses, a verdict and an exit code.

A promise holds where its probes moved what they vary, no answer changed, and the interval does not reach above `detect`.
One changed answer breaks it, unless answers change as often without anything being varied: then the floor is what is broken,
and nothing is said of the axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from queueproof.audit import names
from queueproof.audit.findings import Count, Findings, p_value, total
from queueproof.audit.gate.contract_file import PROBES, Also, AuditContract, Compare, PriceCeiling
from queueproof.audit.price.records import Comparison, Metric, PriceResult
from queueproof.audit.records import AuditRecord, Clause, ProbeResult, Verdict
from queueproof.audit.statistics import clopper_pearson, needed
from queueproof.contract.axes import Axis

_LOGPROBS = "logprobs"  # the ability's name, see client.abilities
_WORST_FIRST = (Verdict.CHANGES, Verdict.FAILED, Verdict.INCONCLUSIVE, Verdict.HOLDS)
_EXIT = {Verdict.HOLDS: 0, Verdict.CHANGES: 1, Verdict.INCONCLUSIVE: 3, Verdict.FAILED: 4}
_NO_WITNESS = (names.ALONE, names.DRIFT)
# Groups in which a probe varies nothing: the control that its other groups are held against.
CONTROLS = {
    names.CACHE: (names.COLD_AGAIN, names.WARM_AGAIN),
    names.LENGTHS: (names.SHORT_BESIDE_SHORT,),
    names.AGAINST: (names.THE_OTHER_TWICE,),
}
_PROMISES = {
    Also.ALONE: "the same request, asked alone again, has the same answer",
    Also.SEEDS: "a sampled request with a seed has the same answer again, alone and in a crowd",
    Also.STREAM: "a streamed answer is the same as a whole one",
    Also.LOGPROBS: "asking for log-probabilities does not change the tokens",
    Also.DRIFT: "the same requests have the same answers at the end of the run",
}


@dataclass(frozen=True, slots=True)
class Held:
    """What became of a contract. verdict: the worst of its clauses, broken before failed before inconclusive."""

    clauses: tuple[Clause, ...]
    verdict: Verdict

    @property
    def exit_code(self) -> int:
        """0 holds, 1 broken, 3 inconclusive, 4 the endpoint failed."""
        return _EXIT[self.verdict]


def hold_to(
    contract: AuditContract, record: AuditRecord, price: PriceResult | None = None, unpriced: str | None = None
) -> Held:
    """Every promise of the contract as a clause. price: of the endpoint (candidate) against the contract's baseline.

    unpriced: why there is no price, where a server failed at it.
    """
    judge = _Judge(contract, record)
    also = (*([Also.ALONE] if contract.axes else []), *contract.also)
    clauses = [judge.also(promise) for promise in dict.fromkeys(also)]
    clauses += [judge.axis(axis) for axis in contract.axes]
    if contract.price is not None:
        clauses += _price_clauses(contract.price, price, unpriced)
    return Held(tuple(clauses), _worst(clause.verdict for clause in clauses))


class _Judge:
    def __init__(self, contract: AuditContract, record: AuditRecord) -> None:
        self._contract, self._record = contract, record
        tokens = contract.compare is Compare.TOKENS
        self._results = [_tokens_only(r) if tokens else r for r in record.probes]
        self._findings = Findings(self._results, record.endpoint)

    def also(self, promise: Also) -> Clause:
        verdict, reason = self._probes((promise,))
        return Clause(promise, _PROMISES[promise], verdict, reason)

    def axis(self, axis: Axis) -> Clause:
        promise = f"the answer does not depend on {axis}. {axis.meaning}"
        if axis in (Axis.PARALLELISM, Axis.DEVICE):
            if not any(result.name == names.AGAINST for result in self._results):
                why = "one endpoint cannot be made to vary it from outside: give a second one that differs in it (--against)"
                return Clause(axis, promise, Verdict.INCONCLUSIVE, why)
            promise += f" The other endpoint differs in {axis} by the word of who gave it."
        verdict, reason = self._probes(PROBES[axis])
        return Clause(axis, promise, verdict, reason)

    def _probes(self, wanted: Sequence[str]) -> tuple[Verdict, str]:
        found = {result.name: result for result in self._results}
        said = [self._probe(found[n]) if n in found else (Verdict.INCONCLUSIVE, "was not run") for n in wanted]
        worst = _worst(verdict for verdict, _ in said)
        if len(said) == 1:
            return worst, said[0][1]
        return worst, "; ".join(f"{name}: {why}" for name, (_, why) in zip(wanted, said, strict=True))

    def _probe(self, result: ProbeResult) -> tuple[Verdict, str]:
        """One probe's part in a promise."""
        controls = CONTROLS.get(result.name, ())
        varied = total(group for group in result.groups if group.name not in controls)
        control = total(group for group in result.groups if group.name in controls)
        if result.verdict is Verdict.FAILED:
            return Verdict.FAILED, result.reason
        if result.verdict is Verdict.NOT_RUN:
            return Verdict.INCONCLUSIVE, f"was not run: {result.reason}"
        if varied.changed:
            return self._changed(result, varied, control)
        if result.verdict is Verdict.CHANGES:
            return Verdict.INCONCLUSIVE, f"{_of(control)} changed where nothing was varied"
        if result.verdict is not Verdict.HOLDS:
            return Verdict.INCONCLUSIVE, result.reason
        return self._held(result, varied)

    def _changed(self, result: ProbeResult, varied: Count, control: Count) -> tuple[Verdict, str]:
        said, findings = f"{_of(varied)} changed", self._findings
        if result.name != names.ALONE and not findings.more(result.name):
            anyway = findings.floor if findings.floor.changed else findings.count(names.DRIFT)
            return Verdict.INCONCLUSIVE, f"{said}, and so did {_of(anyway)} with nothing varied: not told apart"
        if control.changed and p_value(varied, control) > findings.alpha:
            return Verdict.INCONCLUSIVE, f"{said}, and so did {_of(control)} of its control: not told apart"
        return Verdict.CHANGES, said

    def _held(self, result: ProbeResult, varied: Count) -> tuple[Verdict, str]:
        """Nothing changed and its witnesses moved: is that enough?"""
        said = f"{_of(varied)} changed"
        if not varied.compared:
            return Verdict.INCONCLUSIVE, "nothing but its control was compared"
        if result.partial:
            return Verdict.INCONCLUSIVE, f"{said}, but it was ended early: a larger --budget is needed"
        endpoints = [self._record.endpoint]
        if result.name == names.AGAINST and self._record.against is not None:
            endpoints.append(self._record.against)
        if (
            self._contract.compare is Compare.LOGPROBS
            and result.name != names.LOGPROBS
            and not all(_LOGPROBS in endpoint.abilities for endpoint in endpoints)
        ):
            return (
                Verdict.INCONCLUSIVE,
                f"{said}, of tokens: there are no log-probabilities (compare: tokens asks for none)",
            )
        detect, level = self._contract.detect, self._record.run.confidence
        high = clopper_pearson(0, varied.compared, level).high
        if high > detect:
            return Verdict.INCONCLUSIVE, (
                f"{said}, which leaves room for {_percent(high)}; to exclude {_percent(detect)} takes "
                f"{needed(detect, level)} comparisons (--detect {_percent(detect)}, and the budget for it)"
            )
        return Verdict.HOLDS, f"{said}: at most {_percent(high)} at {_percent(level)}, by {result.unit}"


def _tokens_only(result: ProbeResult) -> ProbeResult:
    """The result as if log-probabilities had not been compared."""
    groups = tuple(replace(group, changed=group.tokens_changed) for group in result.groups)
    verdict, reason = result.verdict, result.reason
    if verdict is Verdict.CHANGES and not result.tokens_changed:
        proven = all(w.moved for w in result.witnesses) and (result.witnesses or result.name in _NO_WITNESS)
        if result.name == names.PHASE:
            verdict, reason = Verdict.INCONCLUSIVE, "log-probabilities changed, and it compares no tokens"
        elif proven:
            verdict, reason = Verdict.HOLDS, "log-probabilities changed, tokens did not"
        else:
            verdict, reason = Verdict.INCONCLUSIVE, "no token changed, and nothing shows that anything varied"
    return replace(result, changed=result.tokens_changed, groups=groups, verdict=verdict, reason=reason)


class _Bound(StrEnum):
    MOST, LEAST = "at most", "at least"


def _price_clauses(ceiling: PriceCeiling, price: PriceResult | None, unpriced: str | None) -> list[Clause]:
    bounds = (
        ("TPOT", Metric.TPOT, _Bound.MOST, ceiling.max_tpot_ratio),
        ("TTFT", Metric.TTFT, _Bound.MOST, ceiling.max_ttft_ratio),
        ("throughput", Metric.TOKENS_PER_S, _Bound.LEAST, ceiling.min_throughput_ratio),
    )
    clauses = []
    for users in ceiling.users:
        for said, metric, bound, limit in bounds:
            if limit is None:
                continue
            found = price.at(metric, users) if price is not None else None
            verdict, reason = _priced(found, bound, limit)
            if found is None and unpriced is not None:
                verdict, reason = Verdict.FAILED, unpriced
            name = f"{said} at {users} user{'s' if users > 1 else ''}"
            promise = f"{name} is {bound} {limit:g} times that of {ceiling.baseline}"
            clauses.append(Clause(f"price: {name}", promise, verdict, reason))
    return clauses


def _priced(found: Comparison | None, bound: _Bound, limit: float) -> tuple[Verdict, str]:
    """Holds where the whole interval of the ratio is within the limit, is broken where none of it is."""
    if found is None:
        return Verdict.INCONCLUSIVE, "was not measured"
    if found.low is None or found.high is None:
        return Verdict.INCONCLUSIVE, f"{found.seen:.3g} times as seen; {found.outcome}: no interval"
    said = f"{found.seen:.3g} times ({found.low:.3g} to {found.high:.3g})"
    low, high = found.low, found.high
    within, beyond = (high <= limit, low > limit) if bound is _Bound.MOST else (low >= limit, high < limit)
    if within:
        return Verdict.HOLDS, said
    return (Verdict.CHANGES, said) if beyond else (Verdict.INCONCLUSIVE, f"{said}: the limit is within the interval")


def _worst(verdicts: Iterable[Verdict]) -> Verdict:
    found = set(verdicts)
    return next((verdict for verdict in _WORST_FIRST if verdict in found), Verdict.INCONCLUSIVE)


def _of(count: Count) -> str:
    return f"{count.changed} of {count.compared}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
