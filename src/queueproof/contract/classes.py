"""The determinism classes: best-effort ⊂ batch ⊂ request ⊂ portable. A class is a set of axes."""

from __future__ import annotations

from enum import StrEnum

from queueproof.contract.axes import Axis
from queueproof.contract.errors import UnsupportedArithmetic, UnsupportedClass


class DeterminismClass(StrEnum):
    """A named set of axes that cannot change an answer. Declared weakest first; each holds all axes of those before."""

    BEST_EFFORT = "best-effort"
    BATCH = "batch"
    REQUEST = "request"
    PORTABLE = "portable"

    @property
    def axes(self) -> frozenset[Axis]:
        """The axes that this class promises to be without effect."""
        return _AXES[self]

    def satisfies(self, asked: DeterminismClass) -> bool:
        """True if an answer of this class keeps every promise of `asked`."""
        return self.axes >= asked.axes


_BATCH = frozenset({Axis.NEIGHBOURS, Axis.ORDER})
_REQUEST = _BATCH | {Axis.SCHEDULE, Axis.CACHE, Axis.PHASE}
_PORTABLE = _REQUEST | {Axis.PARALLELISM, Axis.DEVICE}
_AXES: dict[DeterminismClass, frozenset[Axis]] = {
    DeterminismClass.BEST_EFFORT: frozenset(),
    DeterminismClass.BATCH: _BATCH,
    DeterminismClass.REQUEST: _REQUEST,
    DeterminismClass.PORTABLE: _PORTABLE,
}

# The strongest class that an arithmetic can keep. `vendor` is whatever the libraries do: it promises nothing.
_OF_ARITHMETIC = {
    "ieee/1": DeterminismClass.PORTABLE,
    "tensorcore/1": DeterminismClass.REQUEST,
    "vendor": DeterminismClass.BEST_EFFORT,
}


def parse_class(name: str) -> DeterminismClass:
    """The class of that name. Raises UnsupportedClass, naming those that exist."""
    try:
        return DeterminismClass(name)
    except ValueError:
        known = ", ".join(c.value for c in DeterminismClass)
        raise UnsupportedClass(f"there is no determinism class {name!r}; the classes are: {known}") from None


def arithmetic_class(arithmetic: str) -> DeterminismClass:
    """The strongest class that answers of an arithmetic have. Raises UnsupportedArithmetic for an unknown name."""
    try:
        return _OF_ARITHMETIC[arithmetic]
    except KeyError:
        raise UnsupportedArithmetic(arithmetic, "any device", [(a, "some device") for a in _OF_ARITHMETIC]) from None
