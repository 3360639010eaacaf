"""The probes: each varies one thing and compares answers. See `base.Probe`."""

from __future__ import annotations

from queueproof.audit.probes.base import Probe
from queueproof.audit.probes.cache import CacheProbe
from queueproof.audit.probes.drift import DriftProbe
from queueproof.audit.probes.floor import AloneProbe
from queueproof.audit.probes.lengths import LengthsProbe
from queueproof.audit.probes.load import LoadProbe
from queueproof.audit.probes.logprobs import LogprobsProbe
from queueproof.audit.probes.neighbours import NeighboursProbe
from queueproof.audit.probes.order import OrderProbe
from queueproof.audit.probes.phase import PhaseProbe
from queueproof.audit.probes.seeds import SeedsProbe
from queueproof.audit.probes.stream import StreamProbe


def all_probes(against: Probe | None = None) -> tuple[Probe, ...]:
    """New ones of all, in the order in which they run. against: for a second endpoint, where there is one."""
    return (
        AloneProbe(),
        NeighboursProbe(),
        OrderProbe(),
        LoadProbe(),
        LengthsProbe(),
        CacheProbe(),
        PhaseProbe(),
        SeedsProbe(),
        StreamProbe(),
        LogprobsProbe(),
        *(() if against is None else (against,)),
        DriftProbe(),  # last: it asks for the end of the run
    )
