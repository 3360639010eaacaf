"""A zoo of fake endpoints: continuous batchers in this process, clean or with planted faults, for the audit's tests."""

from tests.support.zoo.endpoint import Offer, Zoo
from tests.support.zoo.engine import Pace
from tests.support.zoo.faults import CLEAN, PLANTED, Faults

__all__ = ["CLEAN", "PLANTED", "Faults", "Offer", "Pace", "Zoo"]
