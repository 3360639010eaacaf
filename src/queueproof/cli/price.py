"""`queueproof price`: what a mode of a server costs there, against the same server without it."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queueproof.audit.report.words import visible
from queueproof.cli import env
from queueproof.cli.exits import ExitCode, cancel_on_sigterm, err, guarded, out, print_json
from queueproof.cli.options import JsonOption
from queueproof.cli.quantities import parse_budget
from queueproof.contract import codec
from queueproof.contract.errors import InvalidParameter, ServerError, UsageError

if TYPE_CHECKING:
    from queueproof.audit.client.http import HttpEndpoint
    from queueproof.audit.price.measure import Site, Wish
    from queueproof.audit.price.records import PriceResult
    from queueproof.cli.price_screen import Screen

_URL = "http://127.0.0.1:8000"
_REPEATS = 3  # of a run in a turn of a server that is started for it: starts are dear
_SIDES, _LOAD = "The two sides", "The load"


@dataclass(frozen=True, slots=True)
class _Sides:
    """What differs. launch: the commands of both sides; None where servers run already."""

    baseline: str
    candidate: str
    model: str | None
    api_key: str | None
    bodies: tuple[dict[str, Any], dict[str, Any]]
    launch: tuple[str, str] | None
    env: tuple[str, ...]
    ready: float
    grace: float


@guarded
def command(
    baseline: Annotated[
        str | None, typer.Option(help="Address of a server that runs, without the mode.", rich_help_panel=_SIDES)
    ] = None,
    candidate: Annotated[
        str | None,
        typer.Option(help="Address of one that runs with it.  [default: the baseline's]", rich_help_panel=_SIDES),
    ] = None,
    launch: Annotated[
        str | None,
        typer.Option(help="Command that starts the server: without --env, with it, without.", rich_help_panel=_SIDES),
    ] = None,
    variable: Annotated[
        list[str] | None,
        typer.Option(
            "--env", help="NAME=VALUE that the candidate is started with; repeatable.", rich_help_panel=_SIDES
        ),
    ] = None,
    candidate_launch: Annotated[
        str | None,
        typer.Option(help="Command that starts the candidate, where flags differ.", rich_help_panel=_SIDES),
    ] = None,
    url: Annotated[str, typer.Option(help="Where the started server listens.", rich_help_panel=_SIDES)] = _URL,
    baseline_field: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE in each request to the baseline; repeatable.", rich_help_panel=_SIDES),
    ] = None,
    candidate_field: Annotated[
        list[str] | None,
        typer.Option(help="The same for the candidate: determinism=portable.", rich_help_panel=_SIDES),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Name to ask for.  [default: the one that is served]")
    ] = None,
    api_key_env: Annotated[str | None, typer.Option(help="Variable that holds the key of the servers.")] = None,
    users: Annotated[
        str, typer.Option(help="Numbers of users at once, with commas.", rich_help_panel=_LOAD)
    ] = "1,8,32",
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each answer.", rich_help_panel=_LOAD)] = 48,
    prompt_words: Annotated[
        int, typer.Option(min=1, help="Words of each prompt, about a token each.", rich_help_panel=_LOAD)
    ] = 64,
    seed: Annotated[int, typer.Option(help="Of the prompts; the next one is used too.", rich_help_panel=_LOAD)] = 0,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Rounds of baseline, candidate, baseline.  [default: what --budget allows; 1 with --launch]",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(min=1, help=f"Runs in a turn.  [default: 1; {_REPEATS} with --launch]", rich_help_panel=_LOAD),
    ] = None,
    budget: Annotated[str, typer.Option(help="Time for servers that run: 90s, 4m.", rich_help_panel=_LOAD)] = "4m",
    ready_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds for a started server to be ready.", rich_help_panel=_SIDES)
    ] = 600.0,
    grace: Annotated[
        float, typer.Option(min=0.1, help="Seconds for it to end, before it is killed.", rich_help_panel=_SIDES)
    ] = 30.0,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for price.json, price.html and the servers' logs.")
    ] = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Measure what a mode of a server costs there: TTFT, TPOT and tokens/s, with it and without, by turns.

    Either two servers run (--baseline, --candidate), or one does that takes
    the mode with a request (--candidate-field), or it is started without,
    with, and without again (--launch, --env).
    Exits with 0 for a price, 3 where noise hides it, 4 if a server failed.
    """
    from queueproof.audit.price.measure import PriceFailed, Wish
    from queueproof.cli.price_screen import Screen, show

    wish = Wish(
        users=_users(users),
        seeds=(seed, seed + 1),
        rounds=rounds,
        repeats=repeats or (_REPEATS if launch else 1),
        max_tokens=max_tokens,
        prompt_words=prompt_words,
        seconds=_seconds(budget),
    )
    bodies = (_fields("baseline-field", baseline_field or []), _fields("candidate-field", candidate_field or []))
    commands = (launch, candidate_launch or launch) if launch else None
    first, second = (url, url) if launch else (baseline or "", candidate or baseline or "")
    variables = tuple(variable or ())
    key = env.api_key(api_key_env)
    sides = _Sides(first, second, model, key, bodies, commands, variables, ready_timeout, grace)
    _must_differ(sides, baseline, candidate, candidate_launch)
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"--out {folder} cannot hold the results ({error.strerror}): name another folder"
            ) from None
    failed: ServerError | None = None
    with Screen(err()) as screen:
        try:
            result = asyncio.run(_measured(sides, wish, folder, screen))
        except PriceFailed as error:
            failed, result = _short(error), error.result
        except ServerError as error:
            raise _short(error) from None
    _keep(result, folder)
    if failed is not None:
        if not as_json:
            show(result, out())
        raise failed
    if as_json:
        print_json(codec.to_plain(result))
    else:
        show(result, out())
    if result.interrupted:
        err().print("interrupted: what was measured until then is above", markup=False)
        return ExitCode.INTERRUPTED
    return ExitCode.OK if result.told else ExitCode.CANNOT_TELL


async def _measured(sides: _Sides, wish: Wish, folder: Path | None, screen: Screen) -> PriceResult:
    """Ctrl-C, and a request to end, cancel it; servers that it started are ended then as always."""
    from queueproof.audit.price.measure import measure

    cancel_on_sigterm()
    async with AsyncExitStack() as stack:
        if sides.launch is None:
            baseline, candidate = await _standing(sides, stack)
        else:
            baseline, candidate = _launched(sides, folder, screen)
        return await measure(baseline, candidate, wish, screen)


async def _standing(sides: _Sides, stack: AsyncExitStack) -> tuple[Site, Site]:
    """Raises ServerError, UsageError."""
    from queueproof.audit.price.sites import Standing

    sites: list[Site] = []
    for url, body in zip((sides.baseline, sides.candidate), sides.bodies, strict=True):
        try:
            client = await stack.enter_async_context(_client(sides, url, body))
        except ServerError as error:
            raise ServerError(str(error)) from error
        sites.append(Standing(client, body))
    return sites[0], sites[1]


def _client(sides: _Sides, url: str, body: dict[str, Any]) -> AbstractAsyncContextManager[HttpEndpoint]:
    from queueproof.audit.client.http import HttpEndpoint
    from queueproof.audit.client.trouble import Retries

    # Hardly any tries: a run in which one was needed is made again anyway.
    return HttpEndpoint.open(url, model=sides.model, api_key=sides.api_key, extra_body=body, retries=Retries(count=1))


def _launched(sides: _Sides, folder: Path | None, screen: Screen) -> tuple[Site, Site]:
    from queueproof.audit.price.launch import Launch
    from queueproof.audit.price.sites import Launched

    assert sides.launch is not None
    logs = folder or Path(tempfile.mkdtemp(prefix="queueproof-price-"))
    screen.say(f"The server is started once for each turn; its logs are in {logs}")
    own = env.inherited()
    added = dict(entry.split("=", 1) for entry in sides.env)
    without = {name: value for name, value in own.items() if name not in added}
    sites: list[Site] = []
    for name, command_, body, environment in (
        ("baseline", sides.launch[0], sides.bodies[0], without),
        ("candidate", sides.launch[1], sides.bodies[1], own | added),
    ):
        launch = Launch(command_, environment, sides.baseline, sides.ready, sides.grace, sides.api_key)
        shown = sides.env if name == "candidate" else ()
        sites.append(Launched(launch, partial(_client, sides, sides.baseline, body), logs, name, shown, body))
    return sites[0], sites[1]


def _short(error: ServerError) -> ServerError:
    """The first line; what follows, the end of a log, is shown as it is."""
    line, _, log = str(error).partition("\n")
    if log:
        err().print(visible(log), markup=False, soft_wrap=True, style="dim")
    return ServerError(line)


def _keep(result: PriceResult, folder: Path | None) -> None:
    if folder is None:
        return
    from queueproof.audit.price.page import page

    (folder / "price.json").write_text(result.to_json(), encoding="utf-8")
    (folder / "price.html").write_text(page(result), encoding="utf-8")


def _must_differ(sides: _Sides, baseline: str | None, candidate: str | None, candidate_launch: str | None) -> None:
    """Raises UsageError for what is no comparison of two things."""
    if sides.launch is not None and (baseline or candidate):
        raise UsageError("--launch starts both sides; --baseline and --candidate are for servers that run already")
    if sides.launch is None and (candidate_launch or sides.env):
        raise UsageError("--env and --candidate-launch need --launch: the command that starts the server")
    if sides.launch is None and not baseline:
        raise UsageError("name two servers with --baseline and --candidate, or a command to start one with --launch")
    for entry in sides.env:
        if not entry.partition("=")[1] or entry.startswith("="):
            raise InvalidParameter("env", entry, "it must be NAME=VALUE")
    same = sides.bodies[0] == sides.bodies[1] and not sides.env
    if same and (sides.launch is None or sides.launch[0] == sides.launch[1]) and sides.baseline == sides.candidate:
        raise UsageError(
            "baseline and candidate are the same: give --candidate, --candidate-field, --env or --candidate-launch"
        )


def _fields(option: str, entries: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE each; a value that is JSON is read as JSON. Raises InvalidParameter."""
    found: dict[str, Any] = {}
    for entry in entries:
        name, equals, text = entry.partition("=")
        if not name or not equals or name in found:
            raise InvalidParameter(option, entry, "it must be NAME=VALUE, each name once")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def _users(text: str) -> tuple[int, ...]:
    """Raises InvalidParameter."""
    from queueproof.audit.price.load import MOST_USERS

    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1 or max(found) > MOST_USERS or len(set(found)) != len(found):
        allowed = f"it must be different numbers from 1 to {MOST_USERS}, with commas: 1,8,32"
        raise InvalidParameter("users", text, allowed)
    return tuple(sorted(found))


def _seconds(text: str) -> float:
    """Raises InvalidParameter."""
    found = parse_budget(text)
    if found.seconds is None or found.requests is not None or found.tokens is not None:
        raise InvalidParameter("budget", text, "it must be a time, such as 90s or 4m")
    return found.seconds
