"""How commands end: exit codes, and errors as one line.

0 done; 1 a difference was found or a check failed; 2 the request cannot be served as asked, or its input is bad;
3 cannot tell; 4 the environment failed (network, disk, engine); 70 a defect of Queueproof; 130 interrupted.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NoReturn

import typer
from rich.console import Console

from queueproof.audit.report.words import visible
from queueproof.cli.env import settings
from queueproof.contract.errors import (
    CanaryError,
    CannotTell,
    ContractError,
    ModelError,
    NumericalError,
    QueueproofError,
    UsageError,
)


class ExitCode(IntEnum):
    OK = 0
    DIFFERENCE = 1
    BAD_INPUT = 2
    CANNOT_TELL = 3
    ENVIRONMENT = 4
    DEFECT = 70
    INTERRUPTED = 130


def exit_code(error: QueueproofError) -> ExitCode:
    """The exit code of an error that nothing caught."""
    if isinstance(error, CanaryError):
        return ExitCode.DIFFERENCE
    if isinstance(error, CannotTell):
        return ExitCode.CANNOT_TELL
    if isinstance(error, UsageError | ModelError | ContractError | NumericalError):
        return ExitCode.BAD_INPUT
    return ExitCode.ENVIRONMENT


class _Results(Console):
    def on_broken_pipe(self) -> None:
        """rich would exit with 1, which here means that a difference was found."""
        raise BrokenPipeError


def out() -> Console:
    """Standard output, for results. Made when it is used: tests and shells replace it."""
    return _Results(highlight=False)


def err() -> Console:
    """Standard error, for progress and errors."""
    return Console(stderr=True, highlight=False)


def print_json(value: object) -> None:
    """One JSON value on standard output. NaN and infinities must have been dealt with."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # a terminal without these characters, or a file name that is no text
        text = json.dumps(value, allow_nan=False)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def guarded(command: Callable[..., ExitCode | None]) -> Callable[..., None]:
    """A command that ends with an exit code and a line instead of a traceback. Its option `as_json` is looked at."""

    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> None:
        as_json = bool(options.get("as_json"))
        try:
            code = command(*args, **options) or ExitCode.OK
            sys.stdout.flush()
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except (KeyboardInterrupt, asyncio.CancelledError):  # the latter: a request to end, see cancel_on_sigterm
            fail("interrupted", "interrupted", ExitCode.INTERRUPTED, as_json)
        except QueueproofError as error:
            fail(error.code, str(error), exit_code(error), as_json)
        except BrokenPipeError:
            # The reader has left. Nothing more may be written, not even by the interpreter when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(ExitCode.ENVIRONMENT) from None
        except OSError as error:
            fail("os", str(error), ExitCode.ENVIRONMENT, as_json)
        except Exception as error:
            if settings().traceback:
                traceback.print_exc()
            message = f"{type(error).__name__}: {error} (a defect; QUEUEPROOF_TRACEBACK=1 shows where)"
            fail("defect", message, ExitCode.DEFECT, as_json)
        if code:
            raise typer.Exit(code)

    return run


def cancel_on_sigterm() -> None:
    """A request to end cancels the task that runs now, as Ctrl-C does. To be called in a coroutine."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def fail(code: str, message: str, exit_with: ExitCode, as_json: bool) -> NoReturn:
    """One line on standard error, and with --json an object on standard output; then the exit."""
    line = visible(" ".join(message.split()))  # it may quote a server or a file
    sys.stderr.write("interrupted\n" if code == "interrupted" else f"queueproof: {line}\n")
    if as_json:
        print_json({"error": {"code": code, "message": line}})
    raise typer.Exit(exit_with)
