"""Which card there is, and to which family of matrix units it belongs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from queueproof.contract.errors import UnsupportedDevice

LEAST_CAPABILITY = (8, 0)  # bfloat16 in the matrix units


@dataclass(frozen=True, slots=True)
class Card:
    """name: as the driver has it. family: of matrix units, e.g. "sm90"; bits are promised within one family.

    processors: streaming multiprocessors. pdl: whether kernels can be set up while the one before them runs.
    """

    device: torch.device
    name: str
    family: str
    processors: int
    pdl: bool


def find_card(index: int = 0) -> Card:
    """The CUDA card of that index among the visible ones. Raises UnsupportedDevice, saying what is missing."""
    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = f"PyTorch {torch.__version__} was built without CUDA" if built is None else "the driver shows no card"
        raise UnsupportedDevice(
            f"device 'cuda' is not usable here: {why}. Install a CUDA build of PyTorch on a machine with an NVIDIA card, "
            "check it with `nvidia-smi`, or use device 'cpu'"
        )
    if index >= torch.cuda.device_count():
        raise UnsupportedDevice(f"there is no card {index}: {torch.cuda.device_count()} visible")
    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    if capability < LEAST_CAPABILITY:
        raise UnsupportedDevice(
            f"{properties.name} has compute capability {capability[0]}.{capability[1]}; tensorcore/1 needs 8.0 or later "
            "(bfloat16 matrix units). Use device 'cpu'"
        )
    return Card(
        torch.device("cuda", index),
        properties.name,
        f"sm{capability[0]}{capability[1]}",
        properties.multi_processor_count,
        capability >= (9, 0),
    )


def interpreted_card() -> Card:
    """The processor in the place of a card, for kernels in Triton's interpreter: slow, and the same code."""
    return Card(torch.device("cpu"), "interpreter", "sm90", 4, pdl=False)
