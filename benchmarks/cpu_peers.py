"""Queueproof's server beside other servers on the same CPU in the same run: tokens/s, TTFT, TPOT, and how far the machine's
limits are.

    python benchmarks/cpu_peers.py --peers DIRECTORY --out FILE.json --plot FILE.svg
    python benchmarks/cpu_peers.py --only queueproof,llama.cpp --loads 1,prefill512 --rounds 1     (quick)
    python benchmarks/cpu_peers.py --show FILE.json --plot FILE.svg     (measures nothing: the table and the plot again)

All servers are up, one computes: in every round each load goes to each of them in turn, with the same texts, greedy, and
no answer ends early; the order moves on with each round, and texts are new each time, so that no cache of prefixes helps.
A server that computes while idle is stopped when it is not its turn. One that is not there, or does not start, is left out
with a note. What a peers' folder holds: benchmarks/peer_servers.py. What a load is: `parse_loads` of peer_loads.py.

Tokens/s: of all users, prefill included; for a prefill, prompt tokens by TTFT. Medians over rounds. `of memory`: the time in
which the machine could read the weights of the matrices once a step, over the time taken; `of FMA`: the same for their
multiply-adds (all layers' for every token, the head's only where a token is drawn), at the f32 FMA rate: more than 1 is possible where a CPU has a dot
instruction for bf16. Limits: read bandwidth and f32 FMA rate as `queueproof bench` measures
them, before the first and after every round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import sys
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.peer_loads import PROMPT, Load, LoadError, Target, measure, parse_loads
from benchmarks.peer_report import LIMITS, Report, disturbed, plot, show, summarise
from benchmarks.peer_servers import HOST, MODEL, SERVERS, Running, Server, Setup, started
from queueproof.cli import machine as limits
from queueproof.cli.bench import Work
from queueproof.cli.doctor import machine
from queueproof.cli.options import threads_in_use
from queueproof.contract.errors import QueueproofError

LOADS = "1,8,24,64,prefill512,prefill4096,mixed"


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=Path(os.environ.get("PEERS", ".peers")), help="their folder")
    parser.add_argument("--only", help=f"some of {', '.join(server.name for server in SERVERS)}; with commas")
    parser.add_argument(
        "--loads", default=LOADS, help="users, prefillTOKENS, mixed; with commas  [default: %(default)s]"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--threads", type=int, help="of every server  [default: the physical cores]")
    parser.add_argument("--port", type=int, default=8200, help="of the first server; the others take the next")
    parser.add_argument("--logs", type=Path, help="a folder for what the servers write  [default: a temporary one]")
    parser.add_argument("--out", type=Path, help="write the report here, after every measurement")
    parser.add_argument("--plot", type=Path, help="write an SVG here")
    parser.add_argument("--show", type=Path, help="a report that was written; nothing is measured")
    return parser


def chosen(only: str | None) -> list[Server]:
    """Raises ValueError for a name that is none."""
    known = {server.name: server for server in SERVERS}
    names = list(known) if only is None else only.split(",")
    for name in names:
        if name not in known:
            raise ValueError(f"there is no server {name!r}: there are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]


def work() -> Work:
    """The matrix products of the model, in bfloat16."""
    from queueproof.models.gguf_config import from_gguf
    from queueproof.models.store import resolve
    from queueproof.models.weights.gguf_file import read_gguf

    config = from_gguf(read_gguf(resolve(MODEL)), "bfloat16")
    return Work(config.trunk_weights, config.head_weights, 2)


def cpu_name() -> str:
    """As the system calls it, else the architecture."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def new_report(servers: list[Server], loads: list[Load], setup: Setup, tokens: int) -> Report:
    needed = work()
    values = needed.trunk_weights + needed.head_weights
    described = {key: value for key, value in machine().items() if key != "memory_available_bytes"}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {"name": cpu_name(), **described},
        "model": {"name": MODEL, "trunk_weights": needed.trunk_weights, "head_weights": needed.head_weights},
        "threads": setup.threads,
        "prompt_tokens": PROMPT,
        "answer_tokens": tokens,
        "loads": {load.name: asdict(load) | {"title": load.title} for load in loads},
        "servers": {
            server.name: {
                "weights": server.weights,
                "ours": server.ours,
                "bytes_per_weight": server.bytes_per_weight(values, setup.peers),
                "command": setup.shown(server),
                "note": None,
            }
            for server in servers
        },
        "limits": [],
        "measured": [],
    }


async def run(
    options: argparse.Namespace, servers: list[Server], loads: list[Load], setup: Setup, report: Report
) -> None:
    """Fills the report; what it has when this is cancelled was measured."""

    def keep() -> None:
        summarise(report)
        if options.out:
            scratch = options.out.with_suffix(".part")
            scratch.write_text(json.dumps(report, indent=1) + "\n")
            scratch.replace(options.out)

    async with AsyncExitStack() as stack:
        logs = options.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        logs.mkdir(parents=True, exist_ok=True)
        up = []
        for place, server in enumerate(servers):
            entry = report["servers"][server.name]
            if missing := setup.missing(server):
                leave_out(entry, server, missing)
                continue
            say(f"{server.name}: starting")
            one = None
            try:
                one = await stack.enter_async_context(started(server, setup, options.port + place, logs))
                entry["version"] = setup.version(server)
                await warm_up(one, loads, entry)
            except (QueueproofError, LoadError) as error:
                leave_out(entry, server, f"did not start: {error}")
                if one is not None:
                    one.freezes = True
                    one.rest()
                continue
            one.rest()
            up.append(one)
        keep()
        todo = [
            (turn, load, up[(turn + n) % len(up)])
            for turn in range(options.rounds)
            for load in loads
            for n in range(len(up))
            if up[(turn + n) % len(up)].server.takes(load)
        ]
        measure_limits(report, setup.threads)
        for done, (turn, load, one) in enumerate(todo, 1):
            entry = report["servers"][one.server.name]
            if entry["note"] is None:
                one.resume()
                where = f"[{done}/{len(todo)}] round {turn + 1}, {load.title}, {one.server.name}"
                try:
                    await measure(WARM, target(one), f"again {done}")
                    begun, others = time.perf_counter(), one.foreign_seconds()
                    found = await measure(load, target(one), f"round {turn}")
                    others = one.foreign_seconds() - others
                    found["foreign_cores"] = max(0.0, others / (time.perf_counter() - begun))
                except LoadError as error:
                    leave_out(entry, one.server, f"failed at {load.title}: {error}")
                    one.freezes = True  # it may still be at what it did not answer
                else:
                    spoiled = f" ({found['foreign_cores']:.2f} cores were at other work)" if disturbed(found) else ""
                    say(f"{where}: {found['tokens_per_s']:.1f} tokens/s{spoiled}")
                    report["measured"].append({"round": turn, "load": load.name, "server": one.server.name} | found)
                one.rest()
            if done == len(todo) or todo[done][0] != turn:
                measure_limits(report, setup.threads)
            keep()


WARM = Load("warm-up", 1, PROMPT, 8)


def target(one: Running) -> Target:
    return Target(HOST, one.port, one.body)


async def warm_up(one: Running, loads: list[Load], entry: dict[str, Any]) -> None:
    """The first token, then every shape of work once, with short answers; then what it does when it has nothing to do."""
    begun = time.perf_counter()
    await measure(Load("first", 1, PROMPT, 1), target(one), "first")
    entry["start_to_first_token_s"] = one.start_s + time.perf_counter() - begun
    for load in loads:
        if one.server.takes(load) and not load.arriving:
            short = Load(load.name, load.users, min(load.prompt, 1024), min(load.answer, 8))
            await measure(short, target(one), "warm-up")
    await one.watch()
    entry |= {"idle_cores": one.idle_cores, "stopped_when_idle": one.freezes, "memory_bytes": one.memory_bytes}


def measure_limits(report: Report, threads: int) -> None:
    found = limits.measure(threads)
    report["limits"].append({name: getattr(found, name) for name in LIMITS})
    say(f"this machine reads {found.read_bytes_per_s / 1e9:.1f} GB/s and does {found.of_products}")


def leave_out(entry: dict[str, Any], server: Server, why: str) -> None:
    entry["note"] = why.partition("; the end of ")[0]  # of a log, which is for the screen
    say(f"{server.name}: {why}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def until_ended(
    options: argparse.Namespace, servers: list[Server], loads: list[Load], setup: Setup, report: Report
) -> None:
    """`run`; SIGTERM ends it as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await run(options, servers, loads, setup, report)


def main(argv: list[str] | None = None) -> int:
    parser = arguments()
    options = parser.parse_args(argv)
    status = 0
    if options.show:
        report = json.loads(options.show.read_text())
        summarise(report)
    else:
        if options.rounds < 1 or options.tokens < 2:
            parser.error("--rounds must be at least 1, --tokens at least 2")
        try:
            servers, loads = chosen(options.only), parse_loads(options.loads, options.tokens)
        except ValueError as error:
            parser.error(str(error))
        users, length = max(load.users for load in loads), max(load.length for load in loads)
        # A token more for each, and room for a prompt that arrives: none of the servers is to be short of anything.
        seats = users + 2 if any(load.arriving for load in loads) else users
        setup = Setup(
            options.peers.resolve(), threads_in_use(options.threads), max(seats, 2), -(-(length + 8) // 64) * 64
        )
        report = new_report(servers, loads, setup, options.tokens)
        try:
            asyncio.run(until_ended(options, servers, loads, setup, report))
        except (KeyboardInterrupt, asyncio.CancelledError):
            say("interrupted: what follows was measured before")
            status = 130
        summarise(report)
        if options.out:
            options.out.write_text(json.dumps(report, indent=1) + "\n")
    show(report, Console(width=None if sys.stdout.isatty() else 150))
    if options.plot:
        options.plot.write_text(plot(report))
    return status


if __name__ == "__main__":
    sys.exit(main())
