"""What follows from the measurements of benchmarks/cpu_peers.py, as tables and as an SVG file that needs no page around it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup, escape
from rich.console import Console
from rich.table import Table

from queueproof.audit.report.svg import WIDTH, Line, Point, lines
from queueproof.cli.bench import Work
from queueproof.cli.machine import MachineLimits

Report = dict[str, Any]
KINDS = "abcdef"
DISTURBED = 0.1  # cores at other work: figures measured beside so much are not those of a server alone
_HEIGHT, _GAP, _HEAD = 210, 24, 66  # of a panel; between panels; titles and keys above them
_STYLE = """
svg { --page: #fff; --ink: #17202b; --soft: #566270; --line: #dde2e8;
  --a: #0b6bc0; --b: #c75000; --c: #6b7683; --d: #2e7d32; --e: #8e3aa8; --f: #a08000; }
@media (prefers-color-scheme: dark) { svg { --page: #0f1318; --ink: #e6ebf1; --soft: #9ba8b6; --line: #2b343f;
  --a: #5aaaf5; --b: #ff9850; --c: #98a4b1; --d: #74c578; --e: #d08ee6; --f: #d8bd4a; } }
.page { fill: var(--page); } text { fill: var(--soft); font: 11px system-ui, sans-serif; } .strong { fill: var(--ink); font-weight: 600; }
.mid { text-anchor: middle; } .end { text-anchor: end; } .grid { stroke: var(--line); }
.line { fill: none; stroke: var(--c0); stroke-width: 1.5; opacity: .6; } .dot { fill: var(--c0); stroke: var(--c0); }
"""


LIMITS = ("read_bytes_per_s", "flops_per_s", "dot_flops_per_s")


def summarise(report: Report) -> None:
    """Adds what follows from the measurements: `limit` (medians), and `results`: for each load and server the medians of
    its figures, `rounds`, the shares of both limits, and for ours the ratio to each peer of the same weights and to the
    best of them."""
    found = report["limits"]
    limit = {name: statistics.median(one[name] for one in found) for name in LIMITS} if found else None
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for name, load in report["loads"].items():
        for server, entry in report["servers"].items():
            rows = [row for row in report["measured"] if row["load"] == name and row["server"] == server]
            if rows:
                figures = {
                    k: statistics.median(r[k] for r in rows) for k in rows[0] if k not in ("load", "server", "round")
                }
                shares = (
                    {} if limit is None else limit_shares(report["model"], entry, load, figures["tokens_per_s"], limit)
                )
                results.setdefault(name, {})[server] = figures | {"rounds": len(rows)} | shares
        for server, figures in results.get(name, {}).items():
            if report["servers"][server]["ours"]:
                figures |= ratios(server, results[name], report["servers"])
    report |= {"limit": limit, "results": results}


def limit_shares(
    model: dict[str, Any], entry: dict[str, Any], load: dict[str, Any], rate: float, limit: dict[str, float]
) -> dict[str, float]:
    """of_memory, of_fma. rate: tokens/s of the load; a step of decode is a token of each user, a prefill draws one."""
    needed = Work(model["trunk_weights"], model["head_weights"], 1)
    machine_limits = MachineLimits(**limit, threads=0)
    steps = rate / (load["prompt"] if load["answer"] == 1 else load["users"])
    drawn = steps if load["answer"] == 1 else rate
    read, compute = needed.seconds_at_least(machine_limits, steps=steps, tokens=rate, drawn=drawn)
    return {"of_memory": read * entry["bytes_per_weight"], "of_fma": compute}


def ratios(server: str, results: dict[str, dict[str, Any]], servers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """`times`: tokens/s over those of each peer that keeps the same weights; `times_best`: over the best of them."""
    weights, own = servers[server]["weights"], results[server]["tokens_per_s"]
    peers = [n for n in results if not servers[n]["ours"] and servers[n]["weights"] == weights]
    times = {name: own / results[name]["tokens_per_s"] for name in peers}
    return {"times": times, "times_best": min(times.values())} if times else {}


def show(report: Report, console: Console) -> None:
    where, limit = report["machine"], report["limit"]
    text = f"{where['name']}, {where['cores']} cores, {', '.join(where['features'])}; {report['threads']} threads"
    if limit:
        text += (
            f"; reads {limit['read_bytes_per_s'] / 1e9:.1f} GB/s, "
            f"{MachineLimits(**limit, threads=report['threads']).of_products}"
        )
    console.print(text, markup=False, soft_wrap=True)
    for weights in dict.fromkeys(entry["weights"] for entry in report["servers"].values()):
        names = [name for name, entry in report["servers"].items() if entry["weights"] == weights]
        for table in (speeds(report, weights, names), latencies(report, weights, names)):
            if table.row_count:
                console.print(table)
    if spoiled := sum(map(disturbed, report["measured"])):
        text = f"{spoiled} of {len(report['measured'])} measurements had other work beside them (foreign_cores)"
        console.print(text, markup=False, soft_wrap=True)
    for name, entry in report["servers"].items():
        if entry["note"]:
            console.print(f"{name}: {entry['note']}", markup=False, soft_wrap=True)


def speeds(report: Report, weights: str, names: list[str]) -> Table:
    ours = [name for name in names if report["servers"][name]["ours"]]
    table = Table(
        title=f"tokens/s, {weights} weights (ours over theirs); shares of the limits: {', '.join(ours or names)}"
    )
    for heading in ("load", *names, "over the best", "of memory", "of FMA"):
        table.add_column(heading, justify="left" if heading == "load" else "right")
    for load, results in report["results"].items():
        if not any(name in results for name in names):
            continue
        times: dict[str, float] = {}
        for name in ours:
            times |= results.get(name, {}).get("times", {})
        cells = []
        for name in names:
            rate = f"{results[name]['tokens_per_s']:.1f}" if name in results else "-"
            cells.append(f"{rate} ({times[name]:.2f}x)" if name in times else rate)
        of = [results[name] for name in (ours or names) if name in results]
        best = [f"{found['times_best']:.2f}x" for found in of if "times_best" in found]
        shares = [" ".join(f"{found[key]:.2f}" for found in of if key in found) for key in ("of_memory", "of_fma")]
        table.add_row(report["loads"][load]["title"], *cells, " ".join(best), *shares)
    return table


def latencies(report: Report, weights: str, names: list[str]) -> Table:
    table = Table(
        title=f"TTFT / TPOT in ms, {weights} weights; where prompts arrive, 99th percentile of gaps / their median"
    )
    for heading in ("load", *names):
        table.add_column(heading, justify="left" if heading == "load" else "right")
    for load, results in report["results"].items():
        if any(name in results for name in names):
            cells = [latency(results[name]) if name in results else "-" for name in names]
            table.add_row(report["loads"][load]["title"], *cells)
    return table


def disturbed(found: dict[str, Any]) -> bool:
    """Whether other work took part of the machine meanwhile."""
    return bool(found.get("foreign_cores", 0.0) > DISTURBED)


def latency(found: dict[str, Any]) -> str:
    if "p99_by_median" in found:
        p99, median = found["gap_p99_ms"], found["gap_median_ms"]
        return f"{p99:.1f} / {median:.1f} = {found['p99_by_median']:.2f}"
    return f"{found['ttft_ms']:.1f}" + (f" / {found['tpot_ms']:.2f}" if "tpot_ms" in found else "")


def plot(report: Report) -> str:
    """Tokens/s of every server, by users and by the length of a prompt. Raises ValueError for a report without figures."""
    loads, results = report["loads"], report["results"]
    measured = [name for name in loads if name in results]
    users = [name for name in measured if loads[name]["answer"] > 1 and not loads[name]["arriving"]]
    prefills = [name for name in measured if loads[name]["answer"] == 1]
    servers = [name for name in report["servers"] if any(name in results[load] for load in measured)]
    shown = (("Decode: tokens/s of all users", "users at once", "users", users),
             ("Prefill: tokens/s of a prompt", "tokens of the prompt", "prompt", prefills))  # fmt: skip
    panels = [panel for panel in shown if panel[3]]
    if not panels:
        raise ValueError("there is nothing to plot: neither a decode nor a prefill was measured")
    width = len(panels) * WIDTH + (len(panels) - 1) * _GAP
    parts = [Markup('<rect class="page" width="{}" height="{}"/>').format(width, _HEAD + _HEIGHT)]
    parts += _keys(servers)
    for n, (title, scale, key, names) in enumerate(panels):
        x = n * (WIDTH + _GAP)
        labels = [str(loads[name][key]) for name in names]
        drawn = [_line(server, kind, names, results) for server, kind in zip(servers, KINDS, strict=False)]
        said = "; ".join(point.title for line in drawn for point in line.points)
        inner = lines(title, said, labels, [line for line in drawn if line.points], scale, lambda v: f"{v:g}")
        parts.append(Markup('<text class="strong" x="{}" y="{}">{}</text>').format(x + 8, _HEAD - 10, title))
        place = f'<svg x="{x}" y="{_HEAD}" width="{WIDTH}" height="{_HEIGHT}" '
        parts.append(Markup(str(inner).replace("<svg ", place, 1)))
    colours = "".join(f".{kind} {{ --c0: var(--{kind}); }} " for kind in KINDS)
    name = escape(f"{report['model']['name']} on {report['machine']['name']}, {report['threads']} threads")
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEAD + _HEIGHT}" width="{width}" role="img">'
    )
    return f"{head}<title>{name}</title><style>{_STYLE}{colours}</style>{Markup('').join(parts)}</svg>\n"


def _line(server: str, kind: str, names: Sequence[str], results: dict[str, Any]) -> Line:
    points = [
        Point(
            i, results[name][server]["tokens_per_s"], f"{server}, {name}: {results[name][server]['tokens_per_s']:.1f}"
        )
        for i, name in enumerate(names)
        if server in results[name]
    ]
    return Line(server, kind, tuple(points))


def _keys(servers: Sequence[str]) -> list[Markup]:
    made, x = [], 12.0
    for server, kind in zip(servers, KINDS, strict=False):
        key = Markup('<g class="{}"><circle class="dot" cx="{:g}" cy="18" r="4.5"/></g><text x="{:g}" y="22">{}</text>')
        made.append(key.format(kind, x, x + 9, server))
        x += 30 + 6.4 * len(server)
    return made
