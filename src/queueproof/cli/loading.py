"""A model for a command: fetched, packed and its kernels compiled, each shown as it goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from queueproof.cli.env import settings
from queueproof.kernels.registry import backend as backend_of
from queueproof.models.loader import LoadedModel, load_model


class Report(Protocol):
    """Called with what is being done, how far, and of how much."""

    def __call__(self, what: str, done: int = 0, total: int = 0) -> None: ...


@contextmanager
def shown(console: Console) -> Iterator[Report]:
    """Progress bars on a terminal; elsewhere one line for each thing that begins."""
    if not console.is_terminal:
        seen: set[str] = set()

        def line(what: str, done: int = 0, total: int = 0) -> None:
            if what not in seen:
                seen.add(what)
                console.print(f"{what} …", markup=False)

        yield line
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def bar(what: str, done: int = 0, total: int = 0) -> None:
            if what not in tasks:
                for earlier in tasks.values():
                    bars.update(earlier, visible=False)
                tasks[what] = bars.add_task(what, total=total or None)
            bars.update(tasks[what], completed=done, total=total or None)

        yield bar


def load(
    model: str,
    arithmetic: str | None,
    report: Report,
    dtype: str = "auto",
    max_len: int | None = None,
    device: str = "cpu",
) -> LoadedModel:
    """Loads a model by name, path or Hugging Face id for an arithmetic, None being the default of the device; compiles
    its kernels where needed."""
    cache = settings().cache
    return load_model(
        model, backend_of(arithmetic, device), dtype=dtype, progress=report, max_len=max_len, cache_dir=cache
    )
