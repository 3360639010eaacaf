"""Whole runs: what they write down, a budget, Ctrl-C in the middle, and going on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from queueproof.audit.ask import Prompt
from queueproof.audit.budget import Budget
from queueproof.audit.client.http import HttpEndpoint
from queueproof.audit.journal import ANSWERS, RECORD, Journal
from queueproof.audit.lab import Settings
from queueproof.audit.plan import LEAST_PROMPTS, Plan, choose
from queueproof.audit.probes import all_probes
from queueproof.audit.probes.against import AgainstProbe
from queueproof.audit.records import AuditRecord, ProbeResult, Verdict
from queueproof.audit.run import run_audit
from queueproof.contract.errors import UsageError
from tests.support.virtual_time import run
from tests.support.zoo import CLEAN, Faults, Offer, Zoo
from tests.support.zoo.audits import prompts

PROMPTS = prompts(8, 20, 0)
NAMES = ("alone", "neighbours", "stream", "drift")
SETTINGS = Settings(16, 4, (2, 4), 0)


class Watched:
    """A watcher that writes down, and may act when a probe begins or after a comparison."""

    def __init__(self, began: Callable[[str], None] = lambda name: None) -> None:
        self.said: list[str] = []
        self.results: list[ProbeResult] = []
        self._began = began

    def planned(self, probes: Sequence[str], prompts: int, users: int, seconds: float | None) -> None:
        self.said.append(f"{','.join(probes)}: {prompts}")

    def began(self, probe: str) -> None:
        self.said.append(probe)
        self._began(probe)

    def progress(self, compared: int, changed: int) -> None: ...

    def ended(self, result: ProbeResult) -> None:
        self.results.append(result)


def audit(
    folder: Path,
    watched: Watched | None = None,
    budget: Budget = Budget(None),  # noqa: B008 (immutable)
    resume: bool = False,
    zoo: Zoo | None = None,
    names: Sequence[str] = NAMES,
    offered: Sequence[Prompt] = PROMPTS,
    settings: Settings = SETTINGS,
    needed: int | None = None,
    fewer_users: bool = False,
) -> AuditRecord:
    async def main() -> AuditRecord:
        site = zoo or Zoo()
        plan = Plan(choose(all_probes(), names), settings, budget, needed, fewer_users)
        async with HttpEndpoint.open("http://zoo", transport=site, budget=budget) as client:
            with Journal(folder) as journal:
                record = await run_audit(client, offered, plan, journal, watched, resume=resume, machine="a test")
        await site.aclose()
        return record

    return run(main())


def test_a_run_leaves_its_record_and_every_answer(tmp_path: Path) -> None:
    watched = Watched()
    record = audit(tmp_path, watched)
    assert AuditRecord.from_json((tmp_path / RECORD).read_text()) == record
    assert [result.name for result in record.probes] == list(NAMES) == [r.name for r in watched.results]
    assert all(result.verdict is Verdict.HOLDS for result in record.probes), record.probes
    assert record.causes == () and not record.run.interrupted and record.run.prompts == len(PROMPTS)
    assert watched.said == ["alone,neighbours,stream,drift: 8", *NAMES]
    lines = [json.loads(line) for line in (tmp_path / ANSWERS).read_text().splitlines()]
    assert sum(line["role"] == "reference" for line in lines) >= len(PROMPTS)
    assert len(lines) >= sum(result.requests for result in record.probes)
    assert all(result.seconds > 0 and result.tokens > result.requests for result in record.probes)


def test_two_runs_of_one_seed_are_one(tmp_path: Path) -> None:
    records = [audit(tmp_path / name, zoo=Zoo(Faults(batch_from=2))) for name in "ab"]
    assert [r.probes for r in records][0] == [r.probes for r in records][1]


def test_ctrl_c_keeps_what_was_measured_and_a_second_run_goes_on(tmp_path: Path) -> None:
    def interrupt(name: str) -> None:
        task = asyncio.current_task()
        if name == "neighbours" and task is not None:
            asyncio.get_running_loop().call_later(0.2, task.cancel)

    record = audit(tmp_path, Watched(interrupt))
    assert record.run.interrupted and AuditRecord.from_json((tmp_path / RECORD).read_text()) == record
    verdicts = {result.name: result.verdict for result in record.probes}
    assert verdicts["alone"] is Verdict.HOLDS and verdicts["stream"] is verdicts["drift"] is Verdict.NOT_RUN
    middle = record.probes[1]
    assert middle.partial and any("interrupted" in note for note in middle.notes)

    watched = Watched()
    whole = audit(tmp_path, watched, resume=True)
    assert watched.said == ["neighbours,stream,drift: 8", "neighbours", "stream", "drift"]
    assert whole.run.seconds == pytest.approx(record.run.seconds + sum(result.seconds for result in watched.results))
    kept, measured = (replace(r.probes[0], corrected=None) for r in (whole, record))  # corrected for more probes now
    assert kept == measured and not whole.run.interrupted
    assert all(result.verdict is Verdict.HOLDS for result in whole.probes)
    roles = [json.loads(line)["role"] for line in (tmp_path / ANSWERS).read_text().splitlines()]
    assert roles.count("reference") == 8  # none was asked a second time


def test_going_on_finds_an_endpoint_that_changed_meanwhile(tmp_path: Path) -> None:
    audit(tmp_path, names=["alone"])
    record = audit(tmp_path, resume=True, zoo=Zoo(Faults(build_after=0, scale=0.5)), names=["alone", "neighbours", "drift"])
    assert [r.verdict for r in record.probes] == [Verdict.HOLDS, Verdict.CHANGES, Verdict.CHANGES]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"settings": replace(SETTINGS, seed=1)}, "seed 0 is now 1"),
        ({"settings": replace(SETTINGS, users=2, levels=(2,))}, "users 4 is now 2"),
        ({"offered": PROMPTS[:7]}, "prompts_digest"),
        ({"zoo": Zoo(CLEAN, Offer(version="2"))}, "version '0.0.1.zoo' is now '2'"),
    ],
)
def test_another_run_is_not_gone_on_with(tmp_path: Path, change: dict[str, object], named: str) -> None:
    audit(tmp_path, names=["alone"])
    before = (tmp_path / RECORD).read_bytes()
    with pytest.raises(UsageError, match=named):
        audit(tmp_path, resume=True, **change)  # type: ignore[arg-type]
    assert (tmp_path / RECORD).read_bytes() == before


def test_what_was_cut_off_is_kept_until_it_is_asked_again(tmp_path: Path) -> None:
    def after(seconds: float) -> Callable[[str], None]:
        def interrupt(name: str) -> None:
            task = asyncio.current_task()
            if name == "neighbours" and task is not None:
                asyncio.get_running_loop().call_later(seconds, task.cancel)

        return interrupt

    cut = audit(tmp_path, Watched(after(0.5))).probes[1]
    assert cut.partial and cut.compared
    again = audit(tmp_path, Watched(after(0.0)), resume=True)
    assert again.run.interrupted and again.probes[1].compared == cut.compared
    whole = audit(tmp_path, resume=True)
    assert not whole.probes[1].partial and whole.probes[1].compared > cut.compared


def test_a_second_endpoint_is_the_same_when_a_run_goes_on(tmp_path: Path) -> None:
    """Two sites behind one client each; the record names the second, and another one is no way to go on."""

    async def main(version: str | None, resume: bool) -> AuditRecord:
        sites = [Zoo(), Zoo(CLEAN, Offer(version=version or "1"))]
        async with (
            HttpEndpoint.open("http://zoo", transport=sites[0], budget=Budget(None)) as client,
            HttpEndpoint.open("http://other", transport=sites[1], budget=Budget(None)) as other,
        ):
            probe = AgainstProbe(other, client.identity(), other.identity())
            second = other if version is not None else None
            names = ["alone", probe.name] if version is not None else ["alone"]
            plan = Plan(choose(all_probes(probe), names), SETTINGS, Budget(None))
            with Journal(tmp_path) as journal:
                record = await run_audit(client, PROMPTS, plan, journal, against=second, resume=resume)
        for site in sites:
            await site.aclose()
        return record

    first = run(main("1", False))
    assert first.against is not None and first.against.version == "1"
    with pytest.raises(UsageError, match="version of --against '1' is now '2'"):
        run(main("2", True))
    alone = run(main(None, True))
    assert alone.against == first.against and [r.name for r in alone.probes][0] == "alone"


def test_a_budget_of_requests_ends_the_run_with_what_it_has(tmp_path: Path) -> None:
    record = audit(tmp_path, budget=Budget(None, requests=40))
    assert LEAST_PROMPTS <= record.run.prompts < len(PROMPTS)
    assert sum(result.requests for result in record.probes) <= 40
    verdicts = [result.verdict for result in record.probes]
    assert verdicts[0] is Verdict.HOLDS
    assert Verdict.NOT_RUN in verdicts or any(result.partial for result in record.probes)


def test_a_budget_of_time_leaves_some_to_every_probe(tmp_path: Path) -> None:
    record = audit(tmp_path, budget=Budget(6.0))
    assert record.run.seconds <= 7 and all(result.compared for result in record.probes)


@pytest.mark.parametrize("slow", [2.0, 3.0])
def test_a_server_slower_than_planned_is_asked_a_little_less_of_everything(tmp_path: Path, slow: float) -> None:
    """One that takes so many times longer than its first answers said, alone or in a crowd."""
    zoo = Zoo()
    (engine,) = zoo.engines
    once = engine.pace

    def tire(probe: str) -> None:
        times = {name: slow * getattr(once, name) for name in ("step", "prompt_token", "running")}
        engine.pace = replace(once, **times)

    names = [probe.name for probe in all_probes() if probe.name != "against"]
    record = audit(tmp_path, Watched(tire), Budget(60.0), zoo=zoo, names=names, offered=prompts(99, 20, 0))
    assert record.run.prompts < 99 and record.run.seconds <= 61
    assert {result.name: result.verdict for result in record.probes if not result.compared} == {}


def test_a_slow_server_gets_smaller_crowds_and_keeps_them_when_the_run_goes_on(tmp_path: Path) -> None:
    settings = Settings(16, 24, (2, 8, 24), 0)
    asked = {"offered": prompts(30, 20, 0), "settings": settings, "names": ["alone", "neighbours", "order"]}
    record = audit(tmp_path, budget=Budget(2.0), fewer_users=True, **asked)
    assert record.run.users == 6 and [series.name for series in record.probes[1].groups][:2] == ["2 users", "6 users"]
    whole = audit(tmp_path, budget=Budget(60.0), fewer_users=True, resume=True, **asked)
    assert whole.run.users == 6 and whole.run.prompts == record.run.prompts
    with pytest.raises(UsageError, match="users 6 is now 24"):
        audit(tmp_path, budget=Budget(60.0), resume=True, **asked)


def test_rounds_go_on_until_enough_is_compared(tmp_path: Path) -> None:
    record = audit(tmp_path, names=["alone", "neighbours"], needed=100)
    assert all(result.compared >= 100 and result.verdict is Verdict.HOLDS for result in record.probes)
    assert record.probes[0].interval is not None and record.probes[0].interval.high < 0.03


def test_an_endpoint_that_fails_is_no_difference(tmp_path: Path) -> None:
    class Broken(Zoo):
        async def handle_async_request(self, request):  # type: ignore[no-untyped-def]
            answer = await super().handle_async_request(request)
            if len(self.asks) > 20:
                answer.status_code = 500
            return answer

    record = audit(tmp_path, zoo=Broken())
    assert not any(result.changed for result in record.probes) and record.causes == ()
    assert Verdict.FAILED in [result.verdict for result in record.probes]
    assert sum(problem.count for problem in record.problems) > 0


def test_nothing_to_ask_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no prompt"):
        audit(tmp_path, offered=[])


def test_going_on_with_other_probes_keeps_what_was_found(tmp_path: Path) -> None:
    before = audit(tmp_path, names=["alone", "stream"])
    after = audit(tmp_path, resume=True, names=["drift"])
    assert [result.name for result in after.probes] == ["drift", "alone", "stream"]
    assert [replace(result, corrected=None) for result in after.probes[1:]] == [
        replace(result, corrected=None) for result in before.probes
    ]
