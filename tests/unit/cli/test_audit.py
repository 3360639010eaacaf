"""`queueproof audit` as it is typed, against endpoints of the zoo: what it leaves behind, and how it ends."""

from __future__ import annotations

import asyncio
import json
import xml.etree.ElementTree as ET
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from queueproof.audit.client.http import HttpEndpoint
from queueproof.audit.probes import all_probes
from queueproof.audit.records import AuditRecord
from queueproof.cli.main import app
from tests.support.zoo import CLEAN, Faults, Offer, Zoo
from tests.support.zoo.engine import Pace

QUICK = Pace(step=1e-3, prompt_token=0.0, running=0.0)
FEW = ("--users", "4", "--max-tokens", "12", "--probes", "alone,neighbours", "--budget", "60s")
BATCH = Faults(batch_from=2)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("".join(f"question number {i} about rivers and boats\n" for i in range(6)))
    return path


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUEUEPROOF_API_KEY", raising=False)


def serve(monkeypatch: pytest.MonkeyPatch, faults: Faults = CLEAN, offer: Offer | None = None) -> Zoo:
    zoo = Zoo(faults, offer, QUICK)
    monkeypatch.setattr(HttpEndpoint, "open", partial(HttpEndpoint.open, transport=zoo))
    return zoo


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, arguments)])


def test_what_holds_ends_with_0_and_leaves_a_folder(
    monkeypatch: pytest.MonkeyPatch, prompts: Path, tmp_path: Path
) -> None:
    serve(monkeypatch)
    result = call("http://zoo", *FEW, "--prompts", prompts, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "Answers hold against" in result.stdout and "report.html" in result.stdout
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["answers.jsonl", "audit.json", "report.html"]
    record = AuditRecord.from_json((tmp_path / "run" / "audit.json").read_text())
    assert [probe.name for probe in record.probes] == ["alone", "neighbours"] and record.run.machine


def test_what_changes_ends_with_1_and_names_the_cause(
    monkeypatch: pytest.MonkeyPatch, prompts: Path, tmp_path: Path
) -> None:
    serve(monkeypatch, BATCH)
    arguments = (
        "http://zoo",
        *FEW,
        "--prompts",
        prompts,
        "--out",
        tmp_path / "run",
        "--junit",
        tmp_path / "a" / "j.xml",
    )
    result = call(*arguments, "--openslo", tmp_path / "slo.yaml", "--json")
    assert result.exit_code == 1, result.output
    record = json.loads(result.stdout)
    assert [cause["name"] for cause in record["causes"]] == ["batch composition"]
    suite = ET.parse(tmp_path / "a" / "j.xml").getroot()
    assert len(suite.findall(".//testcase")) == 2 and len(suite.findall(".//failure")) == 1
    assert list(yaml.safe_load_all((tmp_path / "slo.yaml").read_text()))


def test_without_a_witness_it_ends_with_3(monkeypatch: pytest.MonkeyPatch, prompts: Path, tmp_path: Path) -> None:
    serve(monkeypatch, offer=Offer(metrics=False, whole=True))
    result = call("http://zoo", *FEW, "--prompts", prompts, "--out", tmp_path / "run")
    assert result.exit_code == 3 and "inconclusive" in result.stdout, result.output


def test_what_the_budget_did_not_reach_is_not_said_to_hold(
    monkeypatch: pytest.MonkeyPatch, prompts: Path, tmp_path: Path
) -> None:
    serve(monkeypatch)
    arguments = ("http://zoo", "--users", "4", "--max-tokens", "12", "--prompts", prompts, "--out", tmp_path / "run")
    result = call(*arguments, "--probes", "alone,drift", "--budget", "16r")
    assert result.exit_code == 3 and "not run" in result.stdout, result.output
    said = " ".join(result.stderr.split())
    assert "was spent before alone, drift ended: --out" in said and "--resume goes on with these" in said
    result = call(*arguments, "--probes", "alone,drift", "--resume")
    assert result.exit_code == 0 and "was spent" not in result.stderr, result.output


@pytest.mark.parametrize(("faults", "code"), [(CLEAN, 0), (BATCH, 1)])
def test_a_contract_is_held_to(
    monkeypatch: pytest.MonkeyPatch, prompts: Path, tmp_path: Path, faults: Faults, code: int
) -> None:
    serve(monkeypatch, faults)
    contract = tmp_path / "contract.yaml"
    contract.write_text(
        "schema: queueproof/audit-contract/1\nendpoint: http://zoo\naxes: [neighbours]\ndetect: 20%\n", encoding="utf-8"
    )
    arguments = ("--contract", contract, "--prompts", prompts, "--out", tmp_path / "run")
    result = call(*arguments, "--users", "4", "--max-tokens", "12", "--budget", "60s", "--json")
    assert result.exit_code == code, result.output
    verdicts = {clause["name"]: clause["verdict"] for clause in json.loads(result.stdout)["clauses"]}
    assert verdicts == {"alone": "holds", "neighbours": "changes" if code else "holds"}
    written = AuditRecord.from_json((tmp_path / "run" / "audit.json").read_text())
    assert len(written.clauses) == 2, "the file has what was printed"


def test_a_second_endpoint_is_compared(monkeypatch: pytest.MonkeyPatch, prompts: Path, tmp_path: Path) -> None:
    serve(monkeypatch)
    arguments = ("http://zoo", "--against", "http://other", "--probes", "against", "--budget", "60s", "--json")
    result = call(*arguments, "--max-tokens", "12", "--prompts", prompts, "--out", tmp_path / "run")
    record = json.loads(result.stdout)
    assert record["against"]["url"] == "http://other" and [p["name"] for p in record["probes"]] == ["against"]
    assert record["probes"][0]["compared"] > 0 and record["probes"][0]["changed"] == 0, result.output


def test_going_on_asks_only_what_is_missing(monkeypatch: pytest.MonkeyPatch, prompts: Path, tmp_path: Path) -> None:
    arguments = ("http://zoo", *FEW, "--prompts", prompts, "--out", tmp_path / "run")
    serve(monkeypatch)
    assert call(*arguments).exit_code == 0
    again = call(*arguments)
    assert again.exit_code == 2 and "--resume" in again.stderr
    zoo = serve(monkeypatch)
    assert call(*arguments, "--resume").exit_code == 0
    assert len(zoo.asks) < 12, "no more than it takes to look at the endpoint"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name the address of an endpoint"),
        (("http://zoo", "--resume"), "name it with --out"),
        (("http://zoo", "--resume", "--out", "no-such-run"), "holds no run to go on with"),
        (("http://zoo", "--probes", "alone,luck"), "probes='luck'"),
        (("http://zoo", "--budget", "soon"), "budget='soon'"),
        (("http://zoo", "--detect", "2"), "detect='2'"),
        (("http://zoo", "--confidence", "sure"), "confidence='sure'"),
        (("http://zoo", "--api-key-env", "NO_SUCH_KEY"), "api-key-env='NO_SUCH_KEY'"),
        (("http://zoo", "--model", "other"), "does not take the model 'other'"),
        (("ftp://zoo",), "no address"),
    ],
)
def test_what_cannot_be_asked_is_one_line_and_2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    serve(monkeypatch)
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert result.exit_code == 2 and said in result.stderr, result.output
    assert len(result.stderr.strip().splitlines()) <= 2 and not list(tmp_path.iterdir()), "nothing is left behind"


def test_the_help_names_the_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = " ".join(call("--help").stdout.replace("│", " ").split())
    assert ", ".join(probe.name for probe in all_probes()) in text


def test_an_endpoint_that_is_not_there_ends_with_4(tmp_path: Path) -> None:
    result = call("http://127.0.0.1:9", "--out", tmp_path / "run")
    assert result.exit_code == 4 and "127.0.0.1:9" in result.stderr, result.output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--out", "file"), "cannot be written: file is no folder"),
        (("--out", "file/below"), "cannot be written: file is no folder"),
        (("--out", "run", "--junit", "file/j.xml"), "cannot be written: file is no folder"),
        (("--out", "run", "--openslo", "folder"), "folder is a folder: name a file in it"),
        (("--out", "run", "--prompts", "none"), "none cannot be read"),
        (("--out", "run", "--contract", "folder"), "folder cannot be read"),
        (("--out", "run", "--probes", " , "), "it must be names of probes"),
        (("--out", "run", "--budget", "0.5r"), "one request or token, at least"),
        (("--out", "run", "--budget", "9" * 400 + "r"), "it must be a time"),
    ],
)
def test_what_cannot_be_used_is_found_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    zoo = serve(monkeypatch)
    result = call("http://zoo", *more)
    assert result.exit_code == 2 and said in result.stderr and result.stderr.count("\n") == 1
    assert not zoo.asks and not (tmp_path / "run").exists()


def test_an_endpoint_that_hangs_ends_with_the_budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Hanging(Zoo):
        async def _answer(self, body: dict[str, Any], chat: bool) -> httpx.Response:
            await asyncio.sleep(3600)
            raise AssertionError

    monkeypatch.setattr(HttpEndpoint, "open", partial(HttpEndpoint.open, transport=Hanging()))
    result = call("http://zoo", "--budget", "0.3s", "--out", tmp_path / "run")
    assert (
        result.exit_code == 4
        and "had not answered the first questions when the budget, 0.3 s, was over" in result.stderr
    )


def test_a_baseline_that_fails_costs_nothing_that_was_measured(
    monkeypatch: pytest.MonkeyPatch, prompts: Path, tmp_path: Path
) -> None:
    serve(monkeypatch)
    opened = HttpEndpoint.open

    def open_(url: str, **options: Any) -> Any:
        refusing = {"transport": httpx.MockTransport(lambda request: httpx.Response(400))}
        return opened(url, **options | (refusing if "plain" in url else {}))

    monkeypatch.setattr(HttpEndpoint, "open", open_)
    contract = tmp_path / "contract.yaml"
    contract.write_text(
        "schema: queueproof/audit-contract/1\nendpoint: http://zoo\nmodel: zoo\nalso: [alone]\n"
        "price: {baseline: 'http://plain', users: 1, max_tpot_ratio: 2}\n"
    )
    result = call(
        "--contract", contract, "--prompts", prompts, "--out", tmp_path / "run", "--budget", "20s", "--users", "4"
    )
    assert result.exit_code == 4, result.output
    record = AuditRecord.from_json((tmp_path / "run" / "audit.json").read_text())
    assert [clause.verdict for clause in record.clauses][1:] == ["failed"] and "http://plain" in record.clauses[
        1
    ].reason
    assert (tmp_path / "run" / "report.html").exists()
