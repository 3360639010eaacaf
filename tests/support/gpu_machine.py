"""What a figure was measured on."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import queueproof


def machine(device: str) -> dict[str, Any]:
    """Names and versions, for a result that is kept."""
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "queueproof": queueproof.__version__,
        "versions": {name: _version(name) for name in ("numpy", "torch", "triton", "transformers")},
        "gpu": None,
    }
    if device == "cuda":
        import torch

        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = properties.name
        found["gpu_memory_bytes"] = properties.total_memory
        found["cuda"] = torch.version.cuda
    return found


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def measure_limits() -> dict[str, float]:
    """What the card can do at most, best of some tries. copy_bytes_per_s: read and written. bf16_flops_per_s: of one
    large product, two operations for each multiply-add."""
    import torch

    source, target = (torch.empty(1 << 31, dtype=torch.uint8, device="cuda") for _ in range(2))
    seconds = _best_seconds(lambda: target.copy_(source))
    n = 8192
    a, b = (torch.randn(n, n, device="cuda").bfloat16() for _ in range(2))
    product = _best_seconds(lambda: torch.mm(a, b.t()))
    return {"copy_bytes_per_s": 2.0 * (1 << 31) / seconds, "bf16_flops_per_s": 2.0 * n**3 / product}


def _best_seconds(work: Callable[[], Any]) -> float:
    import torch

    best = float("inf")
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3)
    return best
