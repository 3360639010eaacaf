"""`queueproof diff`: two runs of an evaluation, answer by answer, and which scores moved because an answer did."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queueproof.cli.exits import ExitCode, err, guarded, out, print_json
from queueproof.cli.options import JsonOption
from queueproof.contract import codec
from queueproof.contract.errors import InvalidParameter, UsageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.text import Text

    from queueproof.audit.runs.diff import Report
    from queueproof.audit.runs.record import Difference, DiffRecord

_KEPT = 50  # differences in the record
_BEFORE, _AFTER = 120, 240  # characters shown on either side of where two texts part
_WIDE = 110  # columns of a terminal that has room for all of a table
_PATIENCE = 1.0  # seconds without a word


@guarded
def command(
    run_a: Annotated[Path, typer.Argument(help="A file or a folder.")],
    run_b: Annotated[Path, typer.Argument(help="The run it is compared with, of the same format or another.")],
    format: Annotated[
        str | None,
        typer.Option(
            help="lm-eval, inspect, audit, openai-batch, vllm-bench, guidellm or plain.  [default: by content]"
        ),
    ] = None,
    format_b: Annotated[str | None, typer.Option(help="Of RUN_B, where it has another.")] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="What samples are joined by: document (its hash), id, prompt or position.  [default: the best]"
        ),
    ] = None,
    show: Annotated[int, typer.Option(min=0, help="Differences to show.")] = 5,
    every: Annotated[bool, typer.Option("--all", help="A sample without a partner is a difference too.")] = False,
    page: Annotated[Path | None, typer.Option("--out", help="Also write a page, FILE.html.")] = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Compare two runs of an evaluation answer by answer, token by token where the files have tokens.

    Reads samples of lm-eval, logs of Inspect, output of OpenAI batches, saved
    results of vllm bench serve and guidellm, answers of an audit, and plain
    JSON lines. Exits with 0 for same, 1 for different, 3 if nothing could be
    compared.
    """
    from queueproof.audit.runs.diff import diff
    from queueproof.audit.runs.join import By
    from queueproof.audit.runs.record import Outcome

    if by is not None and by not in list(By):
        raise InvalidParameter("by", by, f"one of {', '.join(By)}")
    if page is not None and page.suffix != ".html":
        raise UsageError(f"--out writes a page: {page} must end in .html")
    with _progress(err()) as report:
        record = diff(
            run_a,
            run_b,
            format,
            format_b or format,
            by=None if by is None else By(by),
            kept=max(show, _KEPT),
            report=report,
        )
    if page is not None:
        _write(page, record)
    if as_json:
        print_json(codec.to_plain(record))
    else:
        _show(record, out(), show)
    if record.outcome is Outcome.NOTHING:
        return ExitCode.CANNOT_TELL
    alone = every and (record.join.only_a or record.join.only_b)
    return ExitCode.DIFFERENCE if record.outcome is Outcome.DIFFERENT or alone else ExitCode.OK


def _write(page: Path, record: DiffRecord) -> None:
    from queueproof.audit.runs.page import page as written

    try:
        page.write_bytes(written(record).encode())
    except OSError as error:
        raise UsageError(f"{page} cannot be written: {error.strerror}") from None


@contextmanager
def _progress(console: Console) -> Iterator[Report]:
    """Bars on a terminal, once it takes longer than a second."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    begun = time.monotonic()
    bars: Progress | None = None

    def report(what: str, done: int, total: int) -> None:
        nonlocal bars
        if bars is None:
            if not console.is_terminal or time.monotonic() - begun < _PATIENCE:
                return
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
            bars = Progress(*columns, console=console, transient=True)
            bars.start()
            bars.add_task(what)
        (task,) = bars.tasks
        bars.update(task.id, description=what, completed=done, total=total or None)

    try:
        yield report
    finally:
        if bars is not None:
            bars.stop()


def _show(record: DiffRecord, console: Console, show: int) -> None:
    from queueproof.audit.runs import words

    console.print(words.headline(record), markup=False, soft_wrap=True, style="bold")
    for line in words.paragraphs(record):
        console.print(words.visible(line), markup=False, soft_wrap=True)
    if len(record.tasks) > 1:
        console.print(_table(words.TASKS, words.task_rows(record.tasks), 1))
    if record.metrics:
        columns = len(words.METRICS) if console.width >= _WIDE else len(words.METRICS) - 2
        rows = (row[:columns] for row in words.metric_rows(record.metrics))
        console.print(_table(words.METRICS[:columns], rows, 2))
    for found in record.differences[:show]:
        console.print()
        console.print(words.visible(words.title(found)), markup=False, soft_wrap=True, style="bold")
        console.print(_sides(found))
    total = record.total.changed + record.total.logprobs_changed
    if total > show and record.differences:
        console.print(
            f"\n{min(show, len(record.differences))} shown; --show N shows more, --out FILE.html writes a page"
        )


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]], left: int) -> RenderableType:
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    from queueproof.audit.runs.words import visible

    table = Table(box=SIMPLE)
    for i, name in enumerate(head):
        table.add_column(name, justify="left" if i < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    return table


def _sides(found: Difference) -> RenderableType:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, expand=True, padding=(0, 1))
    for name, where in (("A", found.where_a), ("B", found.where_b)):
        table.add_column(f"{name}, {where}".replace("[", r"\["), ratio=1, overflow="fold")
    table.add_row(_excerpt(found.a, found, "red"), _excerpt(found.b, found, "green"))
    return table


def _excerpt(text: str, found: Difference, colour: str) -> Text:
    """A text around the first difference, which begins at the mark."""
    from rich.text import Text

    from queueproof.audit.runs.record import Change, Unit
    from queueproof.audit.runs.words import visible

    if found.unit is Unit.OPTIONS or found.change is not Change.ANSWER:
        return Text(visible(text[: _BEFORE + _AFTER]))
    start = max(0, found.split - _BEFORE)
    shown = Text("…" if start else "", style="dim")
    shown.append(visible(text[start : found.split]), style="dim")
    shown.append("▸", style="bold")
    shown.append(visible(text[found.split : found.split + _AFTER]), style=colour)
    shown.append("…" if len(text) > found.split + _AFTER else "")
    return shown
