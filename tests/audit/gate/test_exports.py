"""JUnit XML, OpenSLO, and differences as text."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import yaml

from queueproof.audit import names
from queueproof.audit.gate.gate import hold_to
from queueproof.audit.gate.junit import junit_xml
from queueproof.audit.gate.openslo import openslo_yaml
from queueproof.audit.gate.texts import side_by_side
from queueproof.audit.records import AuditRecord, Problem, Unit, Verdict
from tests.support.gated import ENDPOINT, contract, difference, probe, record

# What Apache Ant's schema (testsuites) wants: children in this order, and these attributes; Jenkins's wants no others.
SUITE = {"name", "package", "id", "timestamp", "hostname", "tests", "failures", "errors", "skipped", "time"}
FOUND = record(
    probe(names.ALONE),
    probe(names.NEIGHBOURS, changed=7, differences=(difference(), difference(prompt="\x1b[31mred\x00"))),
    probe(names.ORDER, verdict=Verdict.INCONCLUSIVE, reason="not shown"),
    probe(names.CACHE, 0, verdict=Verdict.NOT_RUN, reason="no route"),
    probe(names.SEEDS, 0, verdict=Verdict.FAILED, reason="refused <&>"),
    endpoint=replace(ENDPOINT, model="a\x08\ud800\uffffb"),
    problems=(Problem("refused", 3, "ConnectError"),),
)


def parsed(found: AuditRecord) -> ElementTree.Element:
    """The suite, checked against what the schemas want."""
    text = junit_xml(found)
    assert text.encode("utf-8").startswith(b"<?xml")
    suites = ElementTree.fromstring(text.encode("utf-8"))
    assert suites.tag == "testsuites" and not suites.attrib
    (suite,) = suites
    assert set(suite.attrib) == SUITE
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
    cases = suite.findall("testcase")
    assert [child.tag for child in suite] == ["properties", *(c.tag for c in cases), "system-out", "system-err"]
    for case in cases:
        assert set(case.attrib) == {"name", "classname", "time"} and re.fullmatch(r"\d+\.\d{3}", case.attrib["time"])
        assert [child.tag for child in case] in ([], ["failure"], ["error"], ["skipped"])
        assert all(set(child.attrib) == {"message", "type"} for child in case)
    for tag, total in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        assert int(suite.attrib[total]) == len(suite.findall(f"testcase/{tag}"))
    assert int(suite.attrib["tests"]) == len(cases)
    return suite


def outcomes(suite: ElementTree.Element) -> dict[str, str]:
    return {c.attrib["name"]: c[0].tag if len(c) else "passed" for c in suite.findall("testcase")}


def test_a_run_without_a_contract_has_a_case_for_each_probe() -> None:
    suite = parsed(FOUND)
    assert outcomes(suite) == {
        "alone": "passed",
        "neighbours": "failure",
        "order": "skipped",
        "cache": "skipped",
        "seeds": "error",
    }
    failure = suite.find("testcase/failure")
    assert failure is not None and failure.text is not None
    assert failure.attrib == {"message": "7 of 100 answers changed", "type": "changes"}
    assert "The sky is grey." in failure.text and "and 5 more" in failure.text and "\\x1b[31mred\\x00" in failure.text
    model = suite.find("properties/property[@name='model']")
    assert model is not None and model.attrib["value"] == "a\\x08\\ud800\\uffffb"
    assert suite.findtext("system-err") == "refused (3): ConnectError"


def test_a_contract_has_a_case_for_each_clause_and_none_that_is_skipped() -> None:
    held = hold_to(contract("axes: [neighbours, order]\nalso: [seeds]"), FOUND)
    suite = parsed(replace(FOUND, clauses=held.clauses))
    assert outcomes(suite) == {"alone": "passed", "seeds": "error", "neighbours": "failure", "order": "error"}
    order = suite.find("testcase[@name='order']/error")
    assert order is not None and order.attrib["type"] == "inconclusive"
    failure = suite.findtext("testcase/failure") or ""
    assert failure.startswith("promised: the answer does not depend on neighbours") and "first difference" in failure


NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def test_openslo_has_an_indicator_and_an_objective_for_each_promise() -> None:
    objects = list(yaml.safe_load_all(openslo_yaml(FOUND, contract("axes: [neighbours]\nalso: [seeds]"))))
    kinds = [(o["kind"], o["metadata"]["displayName"]) for o in objects]
    assert kinds[0][0] == "Service"
    assert kinds[1:] == [
        (kind, f"{said}: {name}")
        for name in ("alone", "neighbours", "seeds")
        for kind, said in (("SLI", "Divergence rate"), ("SLO", "Answers unchanged"))
    ]
    for found in objects:
        assert found["apiVersion"] == "openslo/v1" and set(found) == {"apiVersion", "kind", "metadata", "spec"}
        assert NAME.fullmatch(found["metadata"]["name"]) and len(found["spec"]["description"]) <= 1050
    assert len({o["metadata"]["name"] for o in objects}) == len(objects)
    sli, slo = objects[3], objects[4]
    assert sli["spec"]["thresholdMetric"]["metricSource"] == {
        "type": "queueproof-audit",
        "spec": {
            "record": "audit.json",
            "changed": "$.probes[?@.name == 'neighbours'].changed",
            "total": "$.probes[?@.name == 'neighbours'].compared",
        },
    }
    spec = slo["spec"]
    assert spec["service"] == objects[0]["metadata"]["name"] and spec["indicatorRef"] == sli["metadata"]["name"]
    assert spec["timeWindow"] == [{"duration": "28d", "isRolling": True}] and spec["budgetingMethod"] == "Occurrences"
    (objective,) = spec["objectives"]  # one, with a thresholdMetric
    assert (objective["op"], objective["value"]) == ("lte", 0) and 0 <= objective["target"] < 1


def test_openslo_of_tokens_and_of_a_run_without_a_contract() -> None:
    tokens = openslo_yaml(FOUND, contract("axes: [neighbours]\ncompare: tokens"))
    assert "'neighbours'].tokens_changed" in tokens.replace("''", "'")
    kinds = [o["kind"] for o in yaml.safe_load_all(openslo_yaml(FOUND))]
    assert kinds == ["Service"] + ["SLI", "SLO"] * 3  # of those that compared something


def test_a_difference_side_by_side() -> None:
    assert side_by_side(difference(max_logprob_difference=0.25)).splitlines() == [
        "prompt 'sky', 8 users: the answers part at token 3, log-probabilities by up to 0.25 while the tokens agree; "
        "the best token led by 0.01 there (a near tie)",
        "    alone: The sky is blue.",
        "  8 users: The sky is grey.",
        "                      ^ the first difference",
    ]


def test_a_difference_far_into_a_text_and_at_its_end() -> None:
    a = "x" * 100 + "\n" + "é" * 100
    lines = side_by_side(difference(a, a[:101], unit=Unit.TEXT, position=101, near_tie=None, margin=None)).splitlines()
    assert lines[0].endswith("the answers part at character 101")
    assert lines[1] == "    alone: …" + "x" * 59 + "\\n" + "é" * 60 + "…"
    assert lines[2] == "  8 users: …" + "x" * 59 + "\\n" + "(ends here)"
    assert lines[3].index("^") == lines[2].index("(")


def test_a_difference_of_log_probabilities_alone() -> None:
    found = difference("same", "same", position=None, logprob_position=2, max_logprob_difference=1e-6, margin=None)
    assert side_by_side(replace(found, near_tie=None)) == (
        "prompt 'sky', 8 users: log-probabilities differ from token 2 on, log-probabilities by up to 1e-06 while the "
        "tokens agree"
    )
