"""The axes: what may vary around a request. A class promises that some of them never change the answer.

An answer is the token ids and the log-probabilities, compared bit for bit.
"""

from __future__ import annotations

from enum import StrEnum


class Axis(StrEnum):
    """Something that may vary without changing an answer. The value is the name on the wire."""

    NEIGHBOURS = "neighbours"
    ORDER = "order"
    SCHEDULE = "schedule"
    CACHE = "cache"
    PHASE = "phase"
    PARALLELISM = "parallelism"
    DEVICE = "device"

    @property
    def meaning(self) -> str:
        """What varies, in one sentence."""
        return _MEANINGS[self]


_MEANINGS = {
    Axis.NEIGHBOURS: "Which and how many other requests share the batch.",
    Axis.ORDER: "The position in the batch and the order of arrival.",
    Axis.SCHEDULE: "Admission policy, chunk boundaries of a prefill, preemption and recompute, and timing.",
    Axis.CACHE: "A prefix-cache hit, partial hit or miss, the KV block size, and offload and restore.",
    Axis.PHASE: "Whether a position is computed in prefill, in decode or as a speculative guess.",
    Axis.PARALLELISM: "Threads, number of SMs, tensor-parallel degree and replica.",
    Axis.DEVICE: "CPU or GPU, and which model of either.",
}
