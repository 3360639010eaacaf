"""Names of arithmetics to the backends that implement them here."""

from __future__ import annotations

from queueproof.contract.errors import UnsupportedArithmetic
from queueproof.kernels.ops import Backend

ARITHMETICS = ("ieee/1", "vendor")


def backend(arithmetic: str, device: str = "cpu") -> Backend:
    """The backend of an arithmetic on a device.

    Raises UnsupportedArithmetic, naming what there is. Imports lazily: a listing of names needs no compiler.
    """
    if device != "cpu" or arithmetic not in ARITHMETICS:
        raise UnsupportedArithmetic(arithmetic, device, supported=[(a, "cpu") for a in ARITHMETICS])
    if arithmetic == "vendor":
        from queueproof.kernels.vendor.backend import VendorBackend

        return VendorBackend()
    from queueproof.kernels.numba.backend import NumbaBackend

    return NumbaBackend()
