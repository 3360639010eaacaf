"""Steps of an executor by hand, and bitwise comparison of whole logits rows where the backend keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from queueproof.kernels.ops import Backend, Executor, Limits
from queueproof.kernels.registry import backend as backend_of
from tests.support.gpu_model import SyntheticModel
from tests.support.tiny import Sequence, step

Bits = Any  # i32 [R, V], a NumPy array or a torch tensor on any device
Part = tuple[Sequence, int]  # a sequence, and how many of its next tokens to compute


@dataclass(slots=True)
class Found:
    """What a check saw. compared: whole logits rows, or answers. witness: counts, each above 0 if the axis moved."""

    name: str
    compared: int = 0
    different: int = 0
    witness: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)  # of the first differences

    def count(self, what: str, compared: int, different: int) -> None:
        self.compared += compared
        self.different += different
        if different and len(self.examples) < 5:
            self.examples.append(f"{what}: {different} of {compared}")

    def rows(self, what: str, got: Bits, expected: Bits) -> None:
        """Compares row by row."""
        assert got.shape == expected.shape, (got.shape, expected.shape)
        self.count(what, len(got), int((got != expected).any(1).sum()))

    def saw(self, **counts: int) -> None:
        for name, count in counts.items():
            self.witness[name] = self.witness.get(name, 0) + count

    @property
    def inconclusive(self) -> bool:
        """Nothing was compared, or a witness is missing."""
        return self.compared == 0 or not self.witness or min(self.witness.values()) <= 0


def make_backend(arithmetic: str, device: str, graphs: bool = True) -> Backend:
    """The backend that the engine would take; graphs=False: every step launched kernel by kernel.

    `vendor` on "torch-cpu" is PyTorch on the processor, for tests of the tests.
    """
    if device == "torch-cpu":
        import torch

        from queueproof.kernels.vendor.cuda import CudaVendorBackend

        return CudaVendorBackend(torch.device("cpu"))
    if arithmetic == "tensorcore/1" and not graphs:
        from queueproof.kernels.triton.backend import TritonBackend

        return TritonBackend(graphs=False)
    return backend_of(arithmetic, device)


@cache
def _torch() -> Any:
    import torch

    return torch


def _settle(values: Any) -> None:
    """Waits for the card: the backend may compute on a stream of its own."""
    if not isinstance(values, np.ndarray) and values.is_cuda:
        _torch().cuda.synchronize()


def as_bits(logits: Any, rows: int) -> Bits:
    """The first rows as integers; a view."""
    logits = getattr(logits, "values", logits) if hasattr(logits, "tokens") else logits  # DeviceLogits, or an array
    _settle(logits)
    return logits[:rows].view(np.int32 if isinstance(logits, np.ndarray) else _torch().int32)


def kept(bits: Bits) -> Bits:
    copy = bits.copy() if isinstance(bits, np.ndarray) else bits.clone()
    _settle(copy)
    return copy


def joined(parts: list[Bits]) -> Bits:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else _torch().cat(parts)


class Driver:
    """One executor with its pool. Blocks are handed out in a shuffled order, so tables are not ascending."""

    def __init__(self, model: SyntheticModel, backend: Backend, limits: Limits, threads: int = 1) -> None:
        self.limits = limits
        self.executor: Executor = backend.executor(model.forward, limits, threads)
        self._free = np.random.default_rng(3).permutation(limits.num_blocks).tolist()

    def sequence(self, ids: list[int], shared: Sequence | None = None, shared_tokens: int = 0) -> Sequence:
        """Room for all of `ids`. shared: the first tokens, whole blocks of them, were computed in that sequence."""
        size = self.limits.block_size
        assert shared_tokens % size == 0
        blocks = [] if shared is None else shared.blocks[: shared_tokens // size]
        own = -(-len(ids) // size) - len(blocks)
        new = Sequence(ids, blocks + [self._free.pop() for _ in range(own)])
        new.done = shared_tokens
        return new

    def drop(self, sequence: Sequence, shared_tokens: int = 0) -> None:
        """Gives its blocks back, except for those that it shares."""
        self._free += sequence.blocks[shared_tokens // self.limits.block_size :]
        sequence.blocks = []

    @contextmanager
    def sequences(self, several: Iterable[list[int]]) -> Any:
        made = [self.sequence(ids) for ids in several]
        try:
            yield made
        finally:
            for sequence in made:
                self.drop(sequence)

    def run(self, parts: list[Part], rows: str = "last") -> Bits:
        """One step. rows: "last" of each part, or "all". Valid until the next call, unless `kept`."""
        batch = step(parts, self.limits.block_size)
        self.executor.forward(batch)
        wanted = batch.query_start[1:] - 1 if rows == "last" else np.arange(len(batch.token_ids), dtype=np.int32)
        most = self.limits.max_logit_rows
        pieces = [wanted[i : i + most] for i in range(0, len(wanted), most)]
        if len(pieces) == 1:
            return as_bits(self.executor.logits(wanted), len(wanted))
        return joined([kept(as_bits(self.executor.logits(piece), len(piece))) for piece in pieces])

    def fill(self, parts: list[Part]) -> None:
        """Computes all of it, in as many steps as the executor needs."""
        left = self.limits.max_tokens
        here: list[Part] = []
        for sequence, count in parts:
            if count > left or len(here) == self.limits.max_seqs:
                self.executor.forward(step(here, self.limits.block_size))
                here, left = [], self.limits.max_tokens
            here.append((sequence, count))
            left -= count
        if here:
            self.executor.forward(step(here, self.limits.block_size))

    @property
    def graph_replays(self) -> int:
        """Steps so far that were one launch of a CUDA graph; 0 for a backend without graphs."""
        return int(getattr(self.executor, "graph_replays", 0))

    def close(self) -> None:
        self.executor.close()
