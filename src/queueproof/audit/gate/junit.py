"""A run as JUnit XML: what CI systems show. Valid by the schemas of Apache Ant's and Jenkins's JUnit reports."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple
from xml.etree import ElementTree

from queueproof.audit.gate.contract_file import PROBES, Also
from queueproof.audit.gate.texts import side_by_side
from queueproof.audit.records import AuditRecord, Clause, ProbeResult, Verdict
from queueproof.contract.axes import Axis

_SHOWN = 5  # differences, of each probe
_ALLOWED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # the others: no XML 1.0
# An inconclusive clause must be seen: CI systems show what was skipped in green. A probe that nobody asked for may be.
_OF_CLAUSE = {Verdict.CHANGES: "failure", Verdict.INCONCLUSIVE: "error", Verdict.FAILED: "error"}
_OF_PROBE = {
    Verdict.CHANGES: "failure",
    Verdict.INCONCLUSIVE: "skipped",
    Verdict.NOT_RUN: "skipped",
    Verdict.FAILED: "error",
}


class _Case(NamedTuple):
    """outcome: the element that says it; None: passed."""

    group: str
    name: str
    seconds: float
    outcome: str | None
    verdict: Verdict
    message: str
    details: str


def junit_xml(record: AuditRecord) -> str:
    """One test case for each clause of the contract; of a run without one, for each probe."""
    if record.clauses:
        name, cases = "queueproof contract", [_of_clause(clause, record) for clause in record.clauses]
    else:
        name, cases = "queueproof audit", [_of_probe(result) for result in record.probes]
    outcomes = [case.outcome for case in cases]
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        suites,
        "testsuite",
        {
            "name": name,
            "package": "queueproof",
            "id": "0",
            "timestamp": record.run.started[:19],  # the schema wants no time zone
            "hostname": "localhost",
            "tests": str(len(cases)),
            "failures": str(outcomes.count("failure")),
            "errors": str(outcomes.count("error")),
            "skipped": str(outcomes.count("skipped")),
            "time": f"{record.run.seconds:.3f}",
        },
    )
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in _properties(record):
        ElementTree.SubElement(properties, "property", {"name": key, "value": _clean(value)})
    for case in cases:
        _add(suite, case)
    ElementTree.SubElement(suite, "system-out").text = _clean(
        "\n".join(f"{case.name}: {case.verdict}: {case.message}" for case in cases)
    )
    ElementTree.SubElement(suite, "system-err").text = _clean(
        "\n".join(f"{p.kind} ({p.count}): {p.example}" for p in record.problems)
    )
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _add(suite: ElementTree.Element, case: _Case) -> None:
    seconds = f"{case.seconds:.3f}"
    attributes = {"name": _clean(case.name), "classname": f"queueproof.{case.group}", "time": seconds}
    element = ElementTree.SubElement(suite, "testcase", attributes)
    if case.outcome is not None:
        said = {"message": _clean(case.message), "type": case.verdict.replace(" ", "-")}
        ElementTree.SubElement(element, case.outcome, said).text = _clean(case.details)


def _of_clause(clause: Clause, record: AuditRecord) -> _Case:
    probes = _probes_of(clause, record)
    details = "\n\n".join(
        [f"promised: {clause.promise}", *(_differences(result) for result in probes if result.changed)]
    )
    seconds = sum(result.seconds for result in probes)
    outcome = _OF_CLAUSE.get(clause.verdict)
    return _Case("contract", clause.name, seconds, outcome, clause.verdict, clause.reason, details)


def _of_probe(result: ProbeResult) -> _Case:
    details = "\n\n".join([result.question, *([_differences(result)] if result.changed else [])])
    outcome = _OF_PROBE.get(result.verdict)
    return _Case("probe", result.name, result.seconds, outcome, result.verdict, result.reason, details)


def _probes_of(clause: Clause, record: AuditRecord) -> list[ProbeResult]:
    wanted: Sequence[str] = ()
    if clause.name in list(Axis):
        wanted = PROBES[Axis(clause.name)]
    elif clause.name in list(Also):
        wanted = (clause.name,)
    return [result for result in record.probes if result.name in wanted]


def _differences(result: ProbeResult) -> str:
    shown = [side_by_side(difference) for difference in result.differences[:_SHOWN]]
    if result.changed > len(shown):
        shown.append(f"and {result.changed - len(shown)} more")
    return "\n".join(shown)


def _properties(record: AuditRecord) -> list[tuple[str, str]]:
    endpoint, run = record.endpoint, record.run
    found = [
        ("tool", run.tool),
        ("endpoint", endpoint.url),
        ("model", endpoint.model),
        ("vendor", endpoint.vendor),
        ("version", endpoint.version or "unknown"),
        ("seed", str(run.seed)),
        ("prompts", str(run.prompts)),
        ("prompts_digest", run.prompts_digest),
        ("interrupted", str(run.interrupted).lower()),
    ]
    return found + [("cause", f"{cause.name} ({cause.certainty}): {cause.sentence}") for cause in record.causes]


def _clean(text: str) -> str:
    """Characters that XML 1.0 cannot hold, written as in Python."""
    return _ALLOWED.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)
