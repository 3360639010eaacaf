"""What the screens of long commands share: a bar on a terminal, and lines that stay."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn
from rich.text import Text

from queueproof.audit.report.words import visible


class Bars:
    """A context manager. columns: of the bar, which a console that is no terminal does not get."""

    def __init__(self, console: Console, *columns: ProgressColumn) -> None:
        self._console = console
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        """A line that stays. What would act on the terminal is written as its code."""
        line(self._console, text)


def line(console: Console, text: str, style: str = "") -> None:
    """A line of text from anywhere: nothing in it is markup, and nothing acts on the terminal."""
    console.print(Text(visible(text), style=style), soft_wrap=True)
