"""Names of arithmetics and devices to the backends that implement them here."""

from __future__ import annotations

import platform
from importlib import import_module
from pathlib import Path

from queueproof.contract.errors import InvalidParameter, UnsupportedArithmetic, UnsupportedDevice
from queueproof.kernels.ops import Backend

# (arithmetic, device): module and class. Of each device the first arithmetic is the default.
_BACKENDS = {
    ("ieee/1", "cpu"): ("queueproof.kernels.numba.backend", "NumbaBackend"),
    ("vendor", "cpu"): ("queueproof.kernels.vendor.backend", "VendorBackend"),
    ("tensorcore/1", "cuda"): ("queueproof.kernels.triton.backend", "TritonBackend"),
    ("vendor", "cuda"): ("queueproof.kernels.vendor.cuda", "CudaVendorBackend"),
}
SUPPORTED = tuple(_BACKENDS)
DEVICES = tuple(dict.fromkeys(device for _, device in SUPPORTED))
_OF_THE_EXTRA = ("torch", "triton")


def arithmetics_on(device: str) -> tuple[str, ...]:
    """The arithmetics of a device, its default first. Raises InvalidParameter for a device of another name."""
    if device not in DEVICES:
        raise InvalidParameter("device", device, f"it must be one of {', '.join(DEVICES)}")
    return tuple(a for a, d in SUPPORTED if d == device)


def default_arithmetic(device: str) -> str:
    """What is computed with where nothing else is asked for: `ieee/1` on "cpu", `tensorcore/1` on "cuda"."""
    return arithmetics_on(device)[0]


def machine(device: str) -> str:
    """What a device is called, for people. Raises UnsupportedDevice where there is none."""
    if device == "cuda":
        name: str = import_module("queueproof.kernels.triton.card").find_card().name
        return name
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    found = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return found or platform.processor() or platform.machine()


def backend(arithmetic: str | None, device: str = "cpu") -> Backend:
    """The backend of an arithmetic on a device; None: the default of the device.

    Raises UnsupportedArithmetic, naming what there is, and UnsupportedDevice where the packages of the extra `gpu` are
    missing or no card can be used. Imports lazily: a listing of names needs no compiler.
    """
    if arithmetic is None:
        arithmetic = default_arithmetic(device)
    try:
        module, name = _BACKENDS[arithmetic, device]
    except KeyError:
        raise UnsupportedArithmetic(arithmetic, device, supported=SUPPORTED) from None
    try:
        found: Backend = getattr(import_module(module), name)()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _OF_THE_EXTRA:
            raise
        raise UnsupportedDevice(
            f"{arithmetic} on device {device!r} needs {' and '.join(_OF_THE_EXTRA)}, and {package} is not installed: "
            'pip install "queueproof[gpu]", or use device \'cpu\''
        ) from error
    return found
