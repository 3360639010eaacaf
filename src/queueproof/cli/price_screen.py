"""How `queueproof price` shows what it does and what it found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from queueproof.audit.price import words
from queueproof.cli.bars import Bars, line

if TYPE_CHECKING:
    from queueproof.audit.price.records import PriceResult, Run


class Screen(Bars):
    """The watcher of a measurement: a bar on a terminal; elsewhere a line for each stage."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            console,
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self._task: TaskID | None = None

    def stage(self, text: str) -> None:
        if self._console.is_terminal:
            self._bars.update(self._bar(), description=text)
        else:
            self.say(f"{text} …")

    def planned(self, rounds: int, runs: int, seconds: float) -> None:
        self.say(f"{rounds} round{'s' if rounds > 1 else ''}, {runs} runs: about {_time(seconds)} from now on")
        self._bars.update(self._bar(), total=runs)

    def ran(self, run: Run) -> None:
        self._bars.update(self._bar(), advance=1)

    def _bar(self) -> TaskID:
        if self._task is None:
            self._task = self._bars.add_task("", total=None)
        return self._task


def show(result: PriceResult, console: Console) -> None:
    """The table, and in sentences what it means."""
    table = Table()
    for i, heading in enumerate(words.HEADINGS):
        table.add_column(heading, justify="right" if i in (0, 2, 3, 5) else "left", overflow="fold")
    last = ""
    for row in words.rows(result):
        cells = list(row[:-1])
        if row.users == last:
            cells[0] = ""
        elif last:
            table.add_section()
        last = row.users
        table.add_row(*cells, style="dim" if row.refused else None)
    for name, side in (("baseline ", result.baseline), ("candidate", result.candidate)):
        line(console, f"{name}  {words.who(side)}")
    if result.comparisons:
        console.print(table)
    line(console, words.summary(result))
    for said in (words.method(result), *result.notes, *words.troubles(result)):
        line(console, f"  {said}", "dim")


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
