"""Options that several commands have, spelled and explained once."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from queueproof.cli.env import settings
from queueproof.engine.config import EngineConfig, thread_count

ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", help="A known name, a path, or a Hugging Face id.  [default: smollm2-135m]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", min=1, max=4 * (os.cpu_count() or 1), help="Threads.  [default: the physical cores]"),
]
ArithmeticOption = Annotated[str, typer.Option(help="ieee/1, or vendor: the libraries' own kernels, no promise.")]
DeviceOption = Annotated[str, typer.Option(help="cpu, or cuda: an NVIDIA card, with the extra gpu installed.")]
DeviceArithmeticOption = Annotated[
    str | None,
    typer.Option(
        "--arithmetic",
        help="vendor: the libraries' own kernels, no promise.  [default: ieee/1 on cpu, tensorcore/1 on cuda]",
    ),
]


def model_name(given: str | None) -> str:
    """The model asked for, or that of QUEUEPROOF_MODEL, or the default."""
    return given or settings().model


def threads_in_use(given: int | None) -> int:
    """The threads asked for, or those of QUEUEPROOF_THREADS, or the physical cores."""
    return thread_count(EngineConfig(threads=given or settings().threads))
