"""`queueproof doctor`: the machine, the versions, the canary of each arithmetic, and the classes on offer."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from queueproof import __version__
from queueproof.cli.env import settings
from queueproof.cli.exits import ExitCode, err, guarded, out, print_json
from queueproof.cli.options import JsonOption, threads_in_use
from queueproof.contract.axes import Axis
from queueproof.contract.classes import DeterminismClass, arithmetic_class
from queueproof.contract.errors import UnsupportedDevice

if TYPE_CHECKING:
    from queueproof.kernels.canary import CanaryResult

PACKAGES = ("numpy", "numba", "llvmlite", "tokenizers", "safetensors", "gguf")
FEATURES = ("sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512bf16", "neon", "sve")


@guarded
def command(as_json: JsonOption = False) -> ExitCode:
    """Check this machine: the canary of each arithmetic, and which classes can be offered.

    Exits with 1 if an arithmetic does not give its recorded bits here.
    """
    from queueproof.kernels.canary import check
    from queueproof.kernels.registry import SUPPORTED

    console = err()
    canaries: list[CanaryResult] = []
    missing: list[dict[str, str]] = []
    for arithmetic, device in SUPPORTED:
        if console.is_terminal:
            what = f"canary of {arithmetic} on {device} (kernels are compiled the first time) …"
            console.print(what, style="dim", markup=False)
        try:
            canaries.append(check(arithmetic, device))
        except UnsupportedDevice as error:
            missing.append({"arithmetic": arithmetic, "device": device, "reason": str(error)})
    report = {
        "machine": machine(),
        "versions": {"queueproof": __version__, "python": platform.python_version()}
        | {name: version(name) for name in PACKAGES},
        "folders": folders(),
        "canaries": [_canary(result) for result in canaries],
        "missing": missing,
        "classes": classes(canaries),
    }
    if as_json:
        print_json(report)
    else:
        show(report)
    failed = any(_failed(result) for result in canaries)
    return ExitCode.DIFFERENCE if failed else ExitCode.OK


def machine() -> dict[str, Any]:
    """What runs the kernels. Memory in bytes."""
    import psutil
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": str(binding.get_host_cpu_name()),
        "features": [name for name in FEATURES if features.get(name)],
        "cores": psutil.cpu_count(logical=False),
        "threads": threads_in_use(None),
        "memory_bytes": psutil.virtual_memory().total,
        "memory_available_bytes": psutil.virtual_memory().available,
    }


def folders() -> dict[str, str]:
    """Where models and compiled kernels are kept."""
    from queueproof.kernels.numba.jit import CACHE_DIR
    from queueproof.models.store import default_cache_dir

    return {"models": str(settings().cache or default_cache_dir()), "kernels": str(CACHE_DIR)}


def classes(canaries: list[CanaryResult]) -> list[dict[str, Any]]:
    """Each class, weakest first: which arithmetic gives it here, or why none does."""
    sound = {r.arithmetic: arithmetic_class(r.arithmetic) for r in canaries if not _failed(r)}
    rows = []
    for wanted in DeterminismClass:
        able = [(given, name) for name, given in sound.items() if given.satisfies(wanted)]
        given, arithmetic = min(able, key=lambda pair: len(pair[0].axes), default=(None, None))
        broken = [f"{r.arithmetic}: {r.detail}" for r in canaries if _failed(r)]
        rows.append(
            {
                "class": wanted.value,
                "axes": [axis.value for axis in Axis if axis in wanted.axes],
                "offered": given is not None,
                "given_as": None if given is None else given.value,
                "arithmetic": arithmetic,
                "reason": None if given is not None else "; ".join(broken) or "no arithmetic here keeps it",
            }
        )
    return rows


def _failed(result: CanaryResult) -> bool:
    """Whether a promise is not kept; an arithmetic that promises nothing cannot fail."""
    return not result.ok and _promises(result.arithmetic)


def _promises(arithmetic: str) -> bool:
    return arithmetic_class(arithmetic) is not DeterminismClass.BEST_EFFORT


def _canary(result: CanaryResult) -> dict[str, Any]:
    return {
        "arithmetic": result.arithmetic,
        "device": result.device,
        "ok": result.ok,
        "digest": result.digest or None,
        "expected": result.expected,
        "detail": result.detail,
    }


def show(report: dict[str, Any]) -> None:
    """The report for people."""
    console, m = out(), report["machine"]
    about = Table.grid(padding=(0, 2))
    about.add_row("machine", f"{m['system']}, {m['cpu']}, {m['cores']} cores, {m['memory_bytes'] / 2**30:.1f} GiB")
    about.add_row("features", " ".join(m["features"]) or "none of those known")
    about.add_row("threads", str(m["threads"]))
    about.add_row("versions", ", ".join(f"{name} {number}" for name, number in report["versions"].items()))
    for name, folder in report["folders"].items():
        about.add_row(name, folder)
    console.print(about)

    table = Table(title="Canaries: the bits of a fixed problem", title_justify="left")
    for heading in ("arithmetic", "device", "result", "digest", "detail"):
        table.add_column(heading, overflow="fold")
    for c in report["canaries"]:
        result = "[green]ok[/]" if c["ok"] else "[red]FAILED[/]" if _promises(c["arithmetic"]) else "no promise"
        table.add_row(c["arithmetic"], c["device"], result, (c["digest"] or "")[:16], c["detail"])
    for c in report["missing"]:
        table.add_row(c["arithmetic"], c["device"], "not here", "", escape(c["reason"]))
    console.print(table)

    table = Table(title="Classes", title_justify="left")
    for heading in ("class", "cannot change an answer", "here"):
        table.add_column(heading, overflow="fold")
    for row in report["classes"]:
        stronger = "" if row["given_as"] == row["class"] else f", as {row['given_as']}"
        here = f"by {row['arithmetic']}{stronger}" if row["offered"] else f"not offered: {row['reason']}"
        table.add_row(row["class"], ", ".join(row["axes"]) or "nothing is promised", here)
    console.print(table)
