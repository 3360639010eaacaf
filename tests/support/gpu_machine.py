"""What a figure was measured on."""

from __future__ import annotations

import datetime
import os
import platform
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
