"""What `queueproof audit` shows: how far it is while it runs, and what it found at the end.

Names and messages come from servers and files: what would move other text, or the terminal, is written as its code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from queueproof.audit.records import AuditRecord, Cause, Certainty, Clause, ProbeResult, Verdict
from queueproof.audit.report import rows
from queueproof.audit.report.words import number, visible
from queueproof.cli.bars import Bars, line

_STYLES = {
    Verdict.HOLDS: "green",
    Verdict.CHANGES: "bold red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.NOT_RUN: "dim",
    Verdict.FAILED: "magenta",
}


class _Left(ProgressColumn):
    """What is left of the budget's time, or the time that has gone by where it has none."""

    budget: float | None = None

    def render(self, task: Task) -> Text:
        gone = task.elapsed or 0.0
        seconds = gone if self.budget is None else max(0.0, self.budget - gone)
        return Text(
            f"{seconds // 60:.0f}:{seconds % 60:02.0f} {'so far' if self.budget is None else 'left'}", style="dim"
        )


class Screen(Bars):
    """The watcher of a run: a bar on a terminal; elsewhere a line for each probe that has ended."""

    def __init__(self, console: Console) -> None:
        self._left = _Left()
        super().__init__(
            console,
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed:.0f} of {task.total:.0f} probes"),
            self._left,
        )
        self._task: TaskID | None = None
        self._probe = ""

    def planned(self, probes: Sequence[str], prompts: int, users: int, seconds: float | None) -> None:
        limit = "without a limit of time" if seconds is None else f"in at most {seconds:.0f} s"
        asked = f"{len(probes)} probe{'s' * (len(probes) != 1)} with {prompts} prompt{'s' * (prompts != 1)}"
        self.say(f"{asked} and up to {users} users, {limit}")
        self._left.budget = seconds
        self._task = self._bars.add_task("", total=len(probes))

    def began(self, probe: str) -> None:
        self._probe = probe
        self._describe(probe)

    def progress(self, compared: int, changed: int) -> None:
        self._describe(f"{self._probe}: {number(changed)} of {number(compared)} changed")

    def ended(self, result: ProbeResult) -> None:
        if self._task is not None:
            self._bars.advance(self._task)
        self._console.print(
            Text.assemble(
                f"{result.name:<11}", (f"{result.verdict:<13}", _STYLES[result.verdict]), visible(result.reason)
            ),
            soft_wrap=True,
        )

    def _describe(self, text: str) -> None:
        if self._task is not None:
            self._bars.update(self._task, description=text)


def show(record: AuditRecord, console: Console, folder: Path) -> None:
    """The summary: the verdict, who was asked, each probe, promises, causes, trouble, and where to read on."""
    who = record.endpoint
    version = f" {who.version}" if who.version else ""
    against = f", against {record.against.url}" if record.against is not None else ""
    line(console, rows.headline(record), "bold")
    line(console, f"{who.url}: {who.model} on {who.vendor}{version}{against}")
    for warning in rows.warnings(record):
        line(console, warning, "yellow")
    console.print(_probes(record))
    if record.clauses:
        console.print(_clauses(record.clauses))
        line(console, rows.promises(record.clauses), "bold")
    for cause in record.causes:
        console.print(_cause(cause))
    for problem in record.problems:
        line(console, f"trouble, {problem.kind}: {number(problem.count)} times, such as {problem.example}")
    line(console, f"report: {folder / 'report.html'}")


def _probes(record: AuditRecord) -> Table:
    table = Table("probe", "verdict", "changed", "share", "witness")
    for result, row in zip(record.probes, rows.rows(record), strict=True):
        changed = f"{row.changed}, {row.detail}" if row.detail else row.changed
        table.add_row(
            row.name,
            Text(row.verdict, style=_STYLES[row.verdict]),
            changed,
            row.share,
            Text(visible(row.witness if result.compared else row.reason)),
        )
    return table


def _clauses(clauses: Sequence[Clause]) -> Table:
    table = Table("promise", "verdict", "because")
    for clause in clauses:
        verdict = Text(rows.word(clause), style=_STYLES[clause.verdict])
        table.add_row(Text(visible(clause.name)), verdict, Text(visible(clause.reason)))
    return table


def _cause(cause: Cause) -> Panel:
    likely = "" if cause.certainty is Certainty.SHOWN else " (likely)"
    parts: list[RenderableType] = [Text(visible(cause.sentence))]
    parts += [Text(f"- {visible(said)}", style="dim") for said in cause.evidence]
    parts += [Text(f"→ {visible(step)}") for step in cause.next_steps]
    return Panel(Group(*parts), title=Text(f"{cause.name}{likely}"), title_align="left", border_style="red")
