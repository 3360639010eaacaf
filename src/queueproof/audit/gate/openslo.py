"""A contract as OpenSLO v1: for each promise an SLI, the share of changed answers, and an SLO that it is none.

Objects: a Service, and for each probe an SLI (a thresholdMetric) and an SLO with one objective. The metric is read from
audit.json, by JSONPath (RFC 9535): `changed` divided by `total`.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import yaml

from queueproof.audit.gate.contract_file import AuditContract, Compare
from queueproof.audit.records import AuditRecord, ProbeResult
from queueproof.contract.axes import Axis

API_VERSION = "openslo/v1"
WINDOW = "28d"  # rolling
TARGET = 0.99  # of the audits in a window; the specification wants less than 1
_NAME, _DESCRIPTION = 63, 1050  # characters that the specification allows


def openslo_yaml(record: AuditRecord, contract: AuditContract | None = None) -> str:
    """YAML documents. Of a contract, what it promises; without one, every probe that compared something."""
    promised = contract.probes() if contract is not None else ()
    probes = [p for p in record.probes if (p.name in promised if contract is not None else p.compared)]
    tokens = contract is not None and contract.compare is Compare.TOKENS
    service = _name(f"llm-{urlsplit(record.endpoint.url).netloc}")
    objects = [_service(record, service)]
    for probe in probes:
        objects += [_sli(probe, tokens), _slo(probe, service, tokens)]
    written: str = yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True, width=120, explicit_start=True)
    return written


def _service(record: AuditRecord, name: str) -> dict[str, Any]:
    endpoint = record.endpoint
    said = f"{endpoint.model} at {endpoint.url} ({endpoint.vendor} {endpoint.version or 'of unknown version'})"
    return _object("Service", name, endpoint.model, {"description": said[:_DESCRIPTION]})


def _sli(probe: ProbeResult, tokens: bool) -> dict[str, Any]:
    path = f"$.probes[?@.name == '{probe.name}']"
    source = {
        "type": "queueproof-audit",
        "spec": {
            "record": "audit.json",
            "changed": f"{path}.{'tokens_changed' if tokens else 'changed'}",
            "total": f"{path}.compared",
        },
    }
    description = f"{probe.question} Changed answers divided by compared ones, of one audit."
    spec = {"description": description[:_DESCRIPTION], "thresholdMetric": {"metricSource": source}}
    return _object("SLI", _sli_name(probe), f"Divergence rate: {probe.name}", spec)


def _slo(probe: ProbeResult, service: str, tokens: bool) -> dict[str, Any]:
    axis: Axis | None = probe.axis
    promise = axis.meaning if axis is not None else probe.question
    changed = probe.tokens_changed if tokens else probe.changed
    seen = f"{changed} of {probe.compared} answers changed in the audit that this was written after."
    spec = {
        "description": f"No answer changes. {promise} {seen}"[:_DESCRIPTION],
        "service": service,
        "indicatorRef": _sli_name(probe),
        "timeWindow": [{"duration": WINDOW, "isRolling": True}],
        "budgetingMethod": "Occurrences",
        "objectives": [{"displayName": "No answer changed", "op": "lte", "value": 0, "target": TARGET}],
    }
    return _object(
        "SLO", _name(f"queueproof-{probe.name}-unchanged-{service}"), f"Answers unchanged: {probe.name}", spec
    )


def _object(kind: str, name: str, display: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "displayName": display}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def _sli_name(probe: ProbeResult) -> str:
    return _name(f"queueproof-{probe.name}-divergence")


def _name(text: str) -> str:
    """An RFC 1123 name: lowercase letters, digits and `-`, at most 63 characters."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:_NAME].strip("-")
