"""`queueproof model`: fetch, list and find models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queueproof.cli.env import settings
from queueproof.cli.exits import ExitCode, err, guarded, out, print_json
from queueproof.cli.options import JsonOption
from queueproof.contract.errors import ModelError

app = typer.Typer(no_args_is_help=True, help="Fetch, list and find models.")
NameArgument = Annotated[str, typer.Argument(help="A known name, a path, or a Hugging Face id.")]


@app.command("fetch")
@guarded
def fetch(name: NameArgument, as_json: JsonOption = False) -> ExitCode:
    """Download a model if it is not there yet, and print where it is."""
    from queueproof.cli.loading import shown
    from queueproof.models.store import resolve

    with shown(err()) as report:
        path = resolve(name, progress=report, cache_dir=settings().cache)
    _print(name, path, as_json)
    return ExitCode.OK


@app.command("path")
@guarded
def path(name: NameArgument, as_json: JsonOption = False) -> ExitCode:
    """Print where a model is, without the network. Exits with 2 if it has not been fetched."""
    found = _local(name)
    if found is None:
        raise ModelError(f"{name} has not been fetched; run: queueproof model fetch {name}")
    _print(name, found, as_json)
    return ExitCode.OK


@app.command("list")
@guarded
def list_(as_json: JsonOption = False) -> ExitCode:
    """List the known names and the fetched models."""
    from queueproof.models.store import NAMED

    cache = _cache()
    found: dict[str, Path | None] = {name: _local(name) for name in NAMED}
    for folder in sorted((cache / "huggingface").glob("models--*--*")):
        name = folder.name.removeprefix("models--").replace("--", "/")
        found[name] = folder
    if as_json:
        models = [{"name": n, "path": None if p is None else str(p)} for n, p in found.items()]
        print_json({"cache": str(cache), "models": models})
        return ExitCode.OK
    for name, where in found.items():
        out().print(f"{name}  {where or 'not fetched'}", markup=False, soft_wrap=True)
    return ExitCode.OK


def _cache() -> Path:
    from queueproof.models.store import default_cache_dir

    return settings().cache or default_cache_dir()


def _local(name: str) -> Path | None:
    """Where a known name or a path is on this machine."""
    from queueproof.models.store import NAMED, resolve

    if name in NAMED:
        path = _cache() / name / NAMED[name].file_name
        return path if path.is_file() else None
    snapshots = _cache() / "huggingface" / f"models--{name.replace('/', '--')}" / "snapshots"
    if not Path(name).exists() and snapshots.is_dir():
        newest = max(snapshots.iterdir(), key=lambda p: p.stat().st_mtime, default=None)
        if newest is not None:
            return newest
    return resolve(Path(name))


def _print(name: str, path: Path, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "path": str(path)})
    else:
        out().print(str(path), markup=False, soft_wrap=True)
