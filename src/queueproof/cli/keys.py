"""`queueproof keys`: keys that sign receipts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queueproof.cli.exits import ExitCode, guarded, out, print_json
from queueproof.cli.options import JsonOption

app = typer.Typer(no_args_is_help=True, help="Keys that sign receipts.")


@app.callback()
def _group() -> None:
    """Keeps `new` a command of its own: without it a lone command would be the group."""


@app.command("new")
@guarded
def new(
    path: Annotated[Path, typer.Argument(help="Where the private key goes; the public one is put beside it, as .pub.")],
    as_json: JsonOption = False,
) -> ExitCode:
    """Make an Ed25519 key. Give the private one to `queueproof serve --signing-key`, the public one to anybody."""
    from queueproof.server.receipts.signing import new_key

    key_id, public = new_key(path)
    if as_json:
        print_json({"key_id": key_id, "private_key": str(path), "public_key": str(public)})
    else:
        out().print(f"key {key_id}: {path} signs, {public} verifies", markup=False, soft_wrap=True)
    return ExitCode.OK
