"""The command `queueproof`."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from queueproof import __version__
from queueproof.cli import audit, bench, demo, diff, doctor, generate, keys, model, price, replay, serve
from queueproof.cli.exits import ExitCode, out

app = typer.Typer(
    name="queueproof",
    help="LLM inference whose answer depends on the request alone, and the proof of it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.command)
app.command("serve")(serve.command)
app.command("generate")(generate.command)
app.command("audit")(audit.command)
app.command("replay")(replay.command)
app.command("doctor")(doctor.command)
app.command("diff")(diff.command)
app.command("bench")(bench.command)
app.command("price")(price.command)
app.add_typer(model.app, name="model")
app.add_typer(keys.app, name="keys")


def _version(wanted: bool) -> None:
    if wanted:
        out().print(f"queueproof {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """LLM inference whose answer depends on the request alone, and the proof of it."""


def main() -> None:
    """Entry point of the console script."""
    if sys.stdout is None:  # `>&-`
        if sys.stderr is not None:
            sys.stderr.write("queueproof: standard output is closed\n")
        raise SystemExit(ExitCode.ENVIRONMENT)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):  # an answer may hold characters that the terminal's encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except KeyboardInterrupt:  # before or after a command: while modules load, or while output is flushed
        sys.stderr.write("interrupted\n")
        raise SystemExit(ExitCode.INTERRUPTED) from None


if __name__ == "__main__":
    main()
