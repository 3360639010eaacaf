"""`queueproof audit`: finds out of any OpenAI-compatible endpoint what changes its answers, and why."""

from __future__ import annotations

import asyncio
import os
import platform
import re
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from queueproof.cli import env
from queueproof.cli.exits import ExitCode, cancel_on_sigterm, err, guarded, out, print_json
from queueproof.cli.options import JsonOption
from queueproof.cli.quantities import parse_budget, parse_share
from queueproof.contract import codec
from queueproof.contract.errors import InvalidParameter, ServerError, UsageError
from queueproof.kernels.registry import machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queueproof.audit.ask import Prompt
    from queueproof.audit.budget import Budget
    from queueproof.audit.gate.contract_file import AuditContract, PriceCeiling
    from queueproof.audit.lab import Settings
    from queueproof.audit.price.records import PriceResult
    from queueproof.audit.records import AuditRecord
    from queueproof.audit.statistics import Detection
    from queueproof.cli.audit_screen import Screen

_ASKED, _BOUNDS, _RESULTS = "What is asked", "How much", "Results"
USERS = 24  # a crowd, where nothing is said


@guarded
def command(
    url: Annotated[
        str | None, typer.Argument(help="Address of the endpoint, with or without /v1.  [default: the contract's]")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Where the endpoint has several.", rich_help_panel=_ASKED)
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            help="Environment variable that holds the key.  [default: QUEUEPROOF_API_KEY]", rich_help_panel=_ASKED
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="JSONL, ShareGPT, OpenAI batch, or a prompt a line.  [default: the built-in set]",
            rich_help_panel=_ASKED,
        ),
    ] = None,
    probes: Annotated[
        str | None,
        typer.Option(
            help="Only these, with commas: alone, neighbours, order, load, lengths, cache, phase, seeds, stream, logprobs, "
            "drift.  [default: all]",
            rich_help_panel=_ASKED,
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="Address of a second endpoint, to be asked the same.", rich_help_panel=_ASKED),
    ] = None,
    against_model: Annotated[
        str | None, typer.Option(help="Of the second endpoint, where it has several.", rich_help_panel=_ASKED)
    ] = None,
    users: Annotated[
        int | None,
        typer.Option(
            help=f"The largest crowd. [default: {USERS}, or fewer where the budget is not enough for them]",
            show_default=False,
            min=2,
            max=10_000,
            rich_help_panel=_BOUNDS,
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Of an answer.", min=2, rich_help_panel=_BOUNDS)] = 32,
    budget: Annotated[
        str,
        typer.Option(help="Time (5m), requests (2000r), tokens (1Mt), with commas; or none.", rich_help_panel=_BOUNDS),
    ] = "5m",
    detect: Annotated[
        str | None,
        typer.Option(help="A share of changed answers, such as 1%, that no probe shall miss.", rich_help_panel=_BOUNDS),
    ] = None,
    confidence: Annotated[str, typer.Option(help="Of all intervals.", rich_help_panel=_BOUNDS)] = "95%",
    seed: Annotated[int, typer.Option(help="Of orders and arrivals.", rich_help_panel=_BOUNDS)] = 0,
    contract: Annotated[
        Path | None, typer.Option(help="A contract.yaml to hold the endpoint to.", rich_help_panel=_RESULTS)
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the results.  [default: audit-HOST-TIME]", rich_help_panel=_RESULTS),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out.", rich_help_panel=_RESULTS)
    ] = False,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML, too.", rich_help_panel=_RESULTS)] = None,
    openslo: Annotated[
        Path | None, typer.Option(help="Write an OpenSLO document, too.", rich_help_panel=_RESULTS)
    ] = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Ask an endpoint the same under different circumstances, and show which of them change its answers, and why.

    Exits with 0 if everything held, 1 if something changed (or a promise of
    the contract is broken), 2 if it cannot be asked so, 3 if nothing changed
    but not all could be shown, 4 if the endpoint failed.
    """
    from queueproof.audit.gate.contract_file import read_contract
    from queueproof.audit.journal import RECORD
    from queueproof.audit.statistics import detection
    from queueproof.cli.audit_screen import Screen, show

    held_to = read_contract(contract) if contract is not None else None
    address = url or (held_to.endpoint if held_to is not None else None)
    if address is None:
        raise UsageError("name the address of an endpoint, such as http://localhost:8000, or a --contract that does")
    if resume and folder is None:
        raise UsageError("--resume goes on with the run in a folder: name it with --out")
    level = parse_share(confidence, "confidence")
    share = held_to.detect if held_to is not None else None
    if detect is not None:
        share = parse_share(detect, "detect")
    if held_to is not None and probes is None:
        probes = ",".join(held_to.probes())
    asked = _prompts(prompts)
    wish = _Wish(
        url=address,
        model=model or (held_to.model if held_to is not None else None),
        api_key=env.api_key(api_key_env),
        prompts=asked,
        probes=None if probes is None else _names(probes, held_to is not None),
        against=against,
        against_model=against_model,
        settings=_settings(users or USERS, max_tokens, seed, level),
        fewer_users=users is None,
        budget=parse_budget(budget),
        detection=None if share is None else detection(share, level, len(asked)),
        resume=resume,
        contract=held_to,
    )
    where = folder or _new_folder(address)
    _must_be_writable(where, junit, openslo)
    if not resume and (where / RECORD).exists():
        raise UsageError(f"{where} holds a run already: go on with it by --resume, or name another --out")
    if resume and not (where / RECORD).exists():
        raise UsageError(f"{where} holds no run to go on with: name the --out of one, or begin without --resume")
    with Screen(err()) as screen:
        if wish.detection is not None:
            screen.say(str(wish.detection))
        record, price = asyncio.run(_audited(wish, where, screen))
    _keep(record, price, where, held_to, junit, openslo)
    if as_json:
        print_json(codec.to_plain(record))
    else:
        show(record, out(), where)
    if record.run.interrupted:
        err().print(f"interrupted: what was measured until then is in {where}; --resume goes on", markup=False)
        return ExitCode.INTERRUPTED
    cut = [result.name for result in record.probes if result.partial]
    if cut:
        err().print(
            f"the budget, {record.run.budget}, was spent before {', '.join(cut)} ended: "
            f"--out {where} --resume goes on with these, under a budget of its own",
            markup=False,
        )
    return _exit(record)


@dataclass(frozen=True, slots=True)
class _Wish:
    """What was asked for on the command line."""

    url: str
    model: str | None
    api_key: str | None
    prompts: Sequence[Prompt]
    probes: list[str] | None
    against: str | None
    against_model: str | None
    settings: Settings
    fewer_users: bool
    budget: Budget
    detection: Detection | None
    resume: bool
    contract: AuditContract | None


async def _audited(wish: _Wish, folder: Path, screen: Screen) -> tuple[AuditRecord, PriceResult | None]:
    """Raises ServerError, UsageError."""
    from queueproof.audit.client.http import HttpEndpoint
    from queueproof.audit.endpoint import BudgetSpent
    from queueproof.audit.gate.gate import hold_to
    from queueproof.audit.journal import Journal
    from queueproof.audit.plan import Plan, choose
    from queueproof.audit.probes import all_probes
    from queueproof.audit.probes.against import AgainstProbe
    from queueproof.audit.run import run_audit

    cancel_on_sigterm()
    async with AsyncExitStack() as stack:
        screen.say(f"looking at {wish.url} ...")
        try:
            client = await stack.enter_async_context(
                HttpEndpoint.open(wish.url, model=wish.model, api_key=wish.api_key, budget=wish.budget)
            )
            other, probe = None, None
            if wish.against is not None:
                other = await stack.enter_async_context(
                    HttpEndpoint.open(wish.against, model=wish.against_model, api_key=wish.api_key, budget=wish.budget)
                )
                probe = AgainstProbe(other, client.identity(), other.identity())
        except BudgetSpent as spent:
            if spent.late:
                raise ServerError(
                    f"{wish.url} had not answered the first questions when the budget, {wish.budget}, was over: see "
                    "whether it answers at all, or give more"
                ) from None
            raise UsageError(f"the budget, {wish.budget}, is spent before the first question; give more") from None
        wanted = wish.probes
        if wanted is not None and probe is not None and probe.name not in wanted:
            wanted = [*wanted, probe.name]
        chosen = choose(all_probes(*([probe] if probe is not None else [])), _possible(wanted, probe is not None))
        enough = None if wish.detection is None else wish.detection.comparisons
        plan = Plan(chosen, wish.settings, wish.budget, enough, wish.fewer_users)
        journal = stack.enter_context(Journal(folder))
        record = await run_audit(
            client, wish.prompts, plan, journal, screen, against=other, resume=wish.resume, machine=_machine()
        )
        price, unpriced = None, None
        if wish.contract is not None:
            if wish.contract.price is not None and not record.run.interrupted:
                try:
                    price = await _price(wish, wish.contract.price, screen)
                except ServerError as error:  # what was audited is kept
                    unpriced = str(error)
            record = replace(record, clauses=hold_to(wish.contract, record, price, unpriced).clauses)
            journal.write(record)
    return record, price


def _possible(names: list[str] | None, two: bool) -> list[str] | None:
    """A contract may need `against`, for which a second endpoint must be named: its clause says so then."""
    return names if names is None or two else [name for name in names if name != "against"]


async def _price(wish: _Wish, ceiling: PriceCeiling, screen: Screen) -> PriceResult:
    """What the promise costs against the contract's baseline. Raises ServerError."""
    from queueproof.audit.client.http import HttpEndpoint
    from queueproof.audit.client.trouble import Retries
    from queueproof.audit.price.measure import Wish, measure
    from queueproof.audit.price.sites import Standing
    from queueproof.cli.price_screen import Screen as PriceScreen

    screen.say(f"measuring the price against {ceiling.baseline} ...")
    async with AsyncExitStack() as stack:
        sites = []
        for url in (ceiling.baseline, wish.url):
            opened = HttpEndpoint.open(url, model=wish.model, api_key=wish.api_key, retries=Retries(count=1))
            sites.append(Standing(await stack.enter_async_context(opened), {}))
        watcher = stack.enter_context(PriceScreen(err()))
        return await measure(sites[0], sites[1], Wish(users=ceiling.users), watcher)


def _exit(record: AuditRecord) -> ExitCode:
    """Of the contract where there is one, else of the probes."""
    from queueproof.audit.records import Verdict

    found = [clause.verdict for clause in record.clauses] or [result.verdict for result in record.probes]
    if Verdict.CHANGES in found:
        return ExitCode.DIFFERENCE
    if Verdict.FAILED in found:
        return ExitCode.ENVIRONMENT
    never = any(result.partial and not result.compared for result in record.probes)  # the budget was spent before
    if Verdict.INCONCLUSIVE in found or Verdict.HOLDS not in found or (never and not record.clauses):
        return ExitCode.CANNOT_TELL
    return ExitCode.OK


def _keep(
    record: AuditRecord,
    price: PriceResult | None,
    folder: Path,
    contract: AuditContract | None,
    junit: Path | None,
    openslo: Path | None,
) -> None:
    from queueproof.audit.gate.junit import junit_xml
    from queueproof.audit.gate.openslo import openslo_yaml
    from queueproof.audit.report.html import page

    (folder / "report.html").write_text(page(record, price), encoding="utf-8")
    if price is not None:
        (folder / "price.json").write_text(price.to_json(), encoding="utf-8")
    for path, text in ((junit, junit_xml(record)), (openslo, openslo_yaml(record, contract))):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def _prompts(path: Path | None) -> Sequence[Prompt]:
    from queueproof.audit.prompts.builtin import builtin
    from queueproof.audit.prompts.files import read_prompts

    return builtin() if path is None else read_prompts(path)


def _settings(users: int, max_tokens: int, seed: int, confidence: float) -> Settings:
    from queueproof.audit.lab import Settings
    from queueproof.audit.plan import levels

    return Settings(max_tokens, users, levels(users), seed, confidence)


def _names(text: str, contract: bool) -> list[str]:
    """Raises InvalidParameter for none, unless a contract may have no need of any."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found and not contract:
        raise InvalidParameter("probes", text, "it must be names of probes, with commas, such as alone,neighbours")
    return found


def _must_be_writable(folder: Path, *files: Path | None) -> None:
    """Before anything is asked: what is found at its end only would cost the whole run. Raises UsageError."""
    for path, above in [(folder, folder), *((file, file.parent) for file in files if file is not None)]:
        if path is not folder and path.is_dir():
            raise UsageError(f"{path} is a folder: name a file in it")
        while not above.exists() and above != above.parent:
            above = above.parent
        if not above.is_dir():
            raise UsageError(f"{path} cannot be written: {above} is no folder; name another place")
        if not os.access(above, os.W_OK | os.X_OK):
            raise UsageError(f"{path} cannot be written: nothing may be added to {above}; name another place")


def _new_folder(url: str) -> Path:
    host = re.sub(r"[^A-Za-z0-9.-]+", "-", urlsplit(url if "//" in url else f"//{url}").netloc.rpartition("@")[2])
    return Path(f"audit-{host or 'endpoint'}-{datetime.now():%Y%m%d-%H%M%S}")


def _machine() -> str:
    return f"{machine('cpu')}, {os.cpu_count()} CPUs, {platform.system()} {platform.machine()}"
