"""What `queueproof demo` shows: a table that fills while it runs, and the report at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from queueproof.cli.demo_runs import ArithmeticResult, Change, Plan, Reference, RunResult

BUDGET_SECONDS = 180
ALONE = "alone"
Decode = Callable[[Sequence[int]], str]


class Screen:
    """The state of the experiment, drawn as a table: one row for each run, two columns for each arithmetic."""

    def __init__(self, arithmetics: Sequence[str], plans: Sequence[Plan], requests: int, full: bool = True) -> None:
        """full: the experiment that BUDGET_SECONDS is about, with the default model and settings."""
        self._arithmetics, self._plans, self._requests, self._full = arithmetics, plans, requests, full
        self._cells: dict[tuple[str, str], tuple[Text, str]] = {}
        self._spent = 0.0
        self._since: float | None = None
        self.doing = ""

    @property
    def seconds(self) -> float:
        """Time inside `live`: of the runs, without loading a model and compiling kernels."""
        return self._spent + (0.0 if self._since is None else time.monotonic() - self._since)

    @property
    def clock(self) -> str:
        """The time spent, beside the time to expect while that can still be true: for all prompts, on idle cores."""
        expected = f" of about {BUDGET_SECONDS} s" if self._full and self.seconds <= BUDGET_SECONDS else ""
        return f"{self.seconds:.0f} s{expected}"

    def start(self) -> None:
        self._since = time.monotonic()

    def stop(self) -> None:
        self._spent, self._since = self.seconds, None

    def running(self, arithmetic: str, row: str, done: int) -> None:
        self._cells[arithmetic, row] = Text(f"{done}/{self._requests} …", "cyan"), ""
        self.doing = f"{arithmetic}, {row}"

    def alone(self, arithmetic: str, reference: Reference) -> None:
        self._cells[arithmetic, ALONE] = Text("reference"), str(reference.tokens)

    def finished(self, arithmetic: str, result: RunResult) -> None:
        self._cells[arithmetic, result.plan.axis.value] = _verdict(result, self._requests), str(result.witness)

    def line(self, arithmetic: str, row: str) -> str:
        """A finished run as plain text, for logs."""
        verdict, witness = self._cells[arithmetic, row]
        return f"[{self.seconds:5.0f} s] {arithmetic:<7} {row:<12} {verdict.plain}  (witness: {witness})"

    def table(self) -> Table:
        """Draws the present state."""
        table = Table(
            title="Answers that differ from the same request alone (in brackets: other tokens)", title_justify="left"
        )
        table.add_column("axis", style="bold", no_wrap=True)
        table.add_column("how it is asked", overflow="fold")
        for arithmetic in self._arithmetics:
            table.add_column(arithmetic, justify="right", no_wrap=True)
        table.add_column("witness: it moved", style="dim", overflow="fold")
        rows = [(ALONE, "one request at a time", "answer tokens")]
        rows += [(plan.axis.value, plan.what, plan.witness_of) for plan in self._plans]
        for row, what, witness_of in rows:
            cells = [self._cells.get((a, row), (Text("·", "dim"), "")) for a in self._arithmetics]
            counts = " / ".join(count for _, count in cells if count)
            table.add_row(row, what, *(text for text, _ in cells), f"{counts} {witness_of}" if counts else "")
        return table

    def __rich__(self) -> RenderableType:
        footer = Text(f"{self.clock}   {self.doing}", "dim")
        return Group(self.table(), footer)


@contextmanager
def live(screen: Screen, console: Console) -> Iterator[None]:
    """Runs the clock, and redraws the screen on a terminal, while the block runs."""
    screen.start()
    try:
        if console.is_terminal:
            with Live(screen, console=console, refresh_per_second=4, transient=True):
                yield
        else:
            yield
    finally:
        screen.stop()


def _verdict(result: RunResult, requests: int) -> Text:
    if result.witness == 0:
        return Text("not moved", "yellow")
    if not result.changes:
        return Text(f"0 of {requests}", "green")
    return Text(f"{len(result.changes)} of {requests} ({result.tokens_changed})", "red")


def report(console: Console, screen: Screen, results: Sequence[ArithmeticResult], decode: Decode) -> None:
    """The end of the demo, for people."""
    console.print(screen.table())
    for result in results:
        example = _example(result)
        if example is not None:
            _show_example(console, result, *example, decode)
    table = Table(title="Summary", title_justify="left")
    table.add_column("")
    lines: list[tuple[str, Callable[[ArithmeticResult], str]]] = [
        ("answers changed on any axis", lambda r: f"{len(r.changed)} of {len(r.reference.answers)}"),
        ("largest log-probability difference", lambda r: f"{max_difference(r):.2g}"),
        ("tokens/s, all at once", lambda r: f"{r.tokens_per_s:.0f}"),
        ("tokens/s, one at a time", lambda r: f"{r.tokens_per_s_alone:.0f}"),
        ("class", lambda r: r.determinism_class),
    ]
    for result in results:
        table.add_column(result.arithmetic, justify="right")
    for title, value in lines:
        table.add_row(title, *(value(result) for result in results))
    console.print(table)
    console.print(screen.clock, style="dim")


def max_difference(result: ArithmeticResult) -> float:
    """Largest |logprob - logprob alone|, over all runs, while the tokens still agree (nats)."""
    return max((run.max_logprob_difference for run in result.runs), default=0.0)


def _example(result: ArithmeticResult) -> tuple[RunResult, Change, int] | None:
    """The change of tokens with the longest common beginning, so that there is something to compare."""
    found = [
        (change.diff.first_id, run, change)
        for run in result.runs
        for change in run.changes
        if change.diff.first_id is not None
    ]
    if not found:
        return None
    first, run, change = max(found, key=lambda item: item[0])
    return run, change, first


def _show_example(
    console: Console, result: ArithmeticResult, run: RunResult, change: Change, first: int, decode: Decode
) -> None:
    alone = result.reference.answers[change.request]

    def panel(title: str, ids: Sequence[int]) -> Panel:
        before = decode(ids[:first])
        text = Text(before, "dim").append(decode(ids)[len(before) :], "bold red")
        return Panel(text, title=title, title_align="left", width=min(58, max(30, console.width // 2 - 1)))

    console.print(
        f"{result.arithmetic}: request {change.request} got another token at position {first} "
        f"({run.plan.axis.value}: {run.plan.what})",
        markup=False,
    )
    console.print(Columns([panel("alone", alone.token_ids), panel(run.plan.axis.value, change.answer.token_ids)]))
