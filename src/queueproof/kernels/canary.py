"""The canary: do the kernels on this machine, in this process, give the recorded bits of their arithmetic?

A fixed small model with fixed weights is run whole, in chunks, in a batch, and token by token, over a context that crosses
blocks and a split. All must agree, and the SHA-256 over logits, log-sum-exps and sampled tokens must be the recorded one.
Half of the head's rows are subnormal, so a process whose threads flush subnormals to zero (a library built with
-ffast-math can switch that on) is found out as well.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queueproof.arithmetic.bits import round16_bits
from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.rope import rope_table
from queueproof.contract.classes import DeterminismClass, arithmetic_class
from queueproof.contract.errors import CanaryError
from queueproof.kernels.ops import (
    Act,
    Backend,
    DrawBatch,
    Drawn,
    Dtype,
    Executor,
    KVShape,
    Limits,
    Ops,
    Packer,
    RowOps,
    StepBatch,
)

# By arithmetic and `Backend.family`. That of `ieee/1` is the oracle's, which tests/golden computes again. Another value
# for a family that is here already is a new version of the arithmetic.
EXPECTED = {
    ("ieee/1", "any"): "f561e3ee6ab4e204009e094a9c6f9dd92e9b325dae8624f36f0a73cf15289381",
    # On an H200, where the kernels and the oracle, with the card's exp2, gave the same.
    ("tensorcore/1", "sm90"): "f693797f4e86a537fee211d77e341d2ef3ab76af2578fd9da6574e4c5b90e9c6",
}

VOCAB, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 131, 72, 100, 4, 2, 24, 2
LENGTH, PAGE, WINDOW = 600, 16, 90
ROWS_KEPT = (0, 1, 15, 16, 63, 64, 65, 127, 511, 512, 513, 599)


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """`expected` is None where no digest is recorded: `ok` then says whether the schedules agree with each other, and
    is False for an arithmetic that promises nothing, so that no class is backed."""

    arithmetic: str
    device: str
    ok: bool
    digest: str
    expected: str | None
    detail: str


def _numbers(name: str, shape: tuple[int, ...], scale: float) -> NDArray[np.float32]:
    """f32 in (-scale, scale) from a 64-bit mixing function (splitmix64), the same with any NumPy."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    x = np.arange(int(np.prod(shape)), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    unit = (x >> np.uint64(40)).astype(np.float64) / 2.0**23 - 1.0
    return (unit * scale).astype(np.float32).reshape(shape)


class CanaryModel:
    """Every operation of the door: biases, q/k norms, a sliding window in one of two layers, an untied head."""

    def __init__(self, packer: Packer, dtype: Dtype) -> None:
        self.dtype: Dtype = dtype
        self.vocab_size = VOCAB
        self.kv_shape = KVShape(LAYERS, KV_HEADS, HEAD_DIM)

        def matrix(name: str, n: int, k: int, bias: bool = False, tail: float = 1.0) -> Any:
            w = _numbers(name, (n, k), 1.7 * k**-0.5)
            w[n // 2 :] *= np.float32(tail)
            return packer.matrix(n, k, [round16_bits(w, dtype)], _numbers(name + ".bias", (n,), 0.5) if bias else None)

        def norm(name: str, n: int) -> Any:
            return packer.vector(1 + _numbers(name, (n,), 0.2))

        self._embed = matrix("embed", VOCAB, HIDDEN)
        self._layers = [
            (
                norm(f"{i}.norm1", HIDDEN),
                matrix(f"{i}.qkv", (HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN, bias=True),
                norm(f"{i}.q", HEAD_DIM),
                norm(f"{i}.k", HEAD_DIM),
                matrix(f"{i}.out", HIDDEN, HEADS * HEAD_DIM),
                norm(f"{i}.norm2", HIDDEN),
                matrix(f"{i}.gate_up", 2 * INTERMEDIATE, HIDDEN),
                matrix(f"{i}.down", HIDDEN, INTERMEDIATE),
            )
            for i in range(LAYERS)
        ]
        self._norm = norm("norm", HIDDEN)
        subnormal = 2.0**-128 if dtype == "bfloat16" else 2.0**-16
        self._head = matrix("head", VOCAB, HIDDEN, tail=subnormal)
        self._rope = packer.rope(*rope_table(HEAD_DIM, 10000.0, LENGTH, None))

    def trunk(self, ops: Ops) -> Act:
        h, delta = ops.embed(self._embed), None
        for i, (norm1, qkv, q_norm, k_norm, out, norm2, gate_up, down) in enumerate(self._layers):
            x = ops.rms_norm(h, norm1, 1e-5, delta)
            q = ops.rope_and_cache(ops.linear(x, qkv), self._rope, i, HEADS, q_norm, k_norm, 1e-6)
            delta = ops.linear(ops.attention(q, i, HEADS, WINDOW if i else None), out)
            x = ops.rms_norm(h, norm2, 1e-5, delta)
            delta = ops.linear(ops.gated_linear(x, gate_up), down)
        return ops.add(h, delta)

    def head(self, ops: Ops, h: Act) -> Act:
        return ops.linear(ops.rms_norm(ops.take_logit_rows(h), self._norm, 1e-5), self._head)


def _token_ids() -> NDArray[np.int32]:
    return (np.abs(_numbers("tokens", (LENGTH,), 1.0)) * VOCAB).astype(np.int32) % VOCAB


def _step(pieces: list[tuple[int, int, int]]) -> StepBatch:
    """Pieces (sequence, first, last + 1); sequence s owns pool blocks s, s + 3, s + 6, …"""
    ids, width = _token_ids(), -(-LENGTH // PAGE)
    tables = np.array([[s + 3 * j for j in range(width)] for s, _, _ in pieces], np.int32)
    positions = np.concatenate([np.arange(a, b, dtype=np.int32) for _, a, b in pieces])
    slots = [tables[i, np.arange(a, b) // PAGE].astype(np.int64) * PAGE + np.arange(a, b) % PAGE for i, (_, a, b) in enumerate(pieces)]  # fmt: skip
    starts = np.cumsum([0] + [b - a for _, a, b in pieces]).astype(np.int32)
    return StepBatch(ids[positions], positions, np.concatenate(slots), starts, tables)


def _run(
    executor: Executor, rows: RowOps, steps: list[list[tuple[int, int, int]]], sequence: int
) -> NDArray[np.float32]:
    """Logits of ROWS_KEPT of one sequence."""
    kept: dict[int, NDArray[np.float32]] = {}
    for pieces in steps:
        executor.forward(_step(pieces))
        start = 0
        for s, a, b in pieces:
            wanted = [p for p in ROWS_KEPT if s == sequence and a <= p < b]
            if wanted:
                logits = executor.logits(np.array([start + p - a for p in wanted], np.int32))
                kept.update(zip(wanted, rows.host(logits), strict=True))
            start += b - a
    return np.stack([kept[p] for p in ROWS_KEPT])


SCHEDULES: dict[str, tuple[list[list[tuple[int, int, int]]], int]] = {
    "whole": ([[(0, 0, LENGTH)]], 0),
    "in chunks, beside others": (
        [[(1, 0, 40), (0, 0, 7)], [(0, 7, 130), (2, 0, 65), (1, 40, 41)], [(1, 41, 42), (0, 130, 511)], [(0, 511, LENGTH)]],
        0,
    ),
    "token by token at the end": ([[(1, 0, 505)]] + [[(1, p, p + 1)] for p in range(505, LENGTH)], 1),
}


def _draw(executor: Executor, rows: RowOps, temperature: float) -> Drawn:
    """One token for each of ROWS_KEPT, after the step that computed all of them."""
    n = len(ROWS_KEPT)
    batch = DrawBatch(
        tokens=np.full(n, -1, np.int32),
        temperature=np.full(n, temperature, np.float32),
        top_k=np.full(n, 40, np.int32),
        top_p=np.full(n, 0.95, np.float32),
        min_p=np.zeros(n, np.float32),
        seed=np.full(n, 7, np.uint64),
        position=np.arange(n, dtype=np.int64),
    )
    return rows.draw(executor.logits(np.array(ROWS_KEPT, np.int32)), batch).result()


def digest(backend: Backend, threads: int = 1) -> tuple[str, str]:
    """(SHA-256 over everything, "" or the schedule that disagreed with the whole prefill)."""
    h, rows = hashlib.sha256(), backend.rows(threads)
    for dtype in ("bfloat16", "float16"):
        model = CanaryModel(backend.packer(dtype), dtype)
        executor = backend.executor(model, Limits(640, 3, len(ROWS_KEPT), 120, PAGE, LENGTH), threads)
        try:
            reference = _run(executor, rows, *SCHEDULES["whole"])
            best, sampled = _draw(executor, rows, 0.0), _draw(executor, rows, 0.8)
            for name, (steps, sequence) in SCHEDULES.items():
                if name != "whole" and not same_bits(reference, _run(executor, rows, steps, sequence)):
                    return "", name
        finally:
            executor.close()
        # The best token's log-probability is (max - max) - logz, which is -logz to the last bit.
        top = np.take_along_axis(reference, np.maximum(best.tokens, 0)[:, None], axis=1)
        for part in (reference, best.tokens, top, -best.logprobs, sampled.tokens):
            h.update(np.ascontiguousarray(part).tobytes())
    return h.hexdigest(), ""


@cache
def check(arithmetic: str, device: str = "cpu") -> CanaryResult:
    """Runs the canary once per process. Compiles kernels on a machine's first use."""
    from queueproof.kernels.registry import backend

    if arithmetic_class(arithmetic) is DeterminismClass.BEST_EFFORT:
        return CanaryResult(arithmetic, device, False, "", None, "promises no bits, so there is nothing to compare")
    found = backend(arithmetic, device)
    expected = EXPECTED.get((arithmetic, found.family))
    got, disagreed = digest(found)
    agreed = f"{len(SCHEDULES)} schedules x 2 weight types agree"
    if disagreed:
        detail = f"the same prompt gave other bits when computed {disagreed}"
    elif expected is None:
        detail = f"{agreed} with each other; no bits are recorded for cards of the family {found.family}"
    elif got != expected:
        detail = "kernels agree with each other but not with the recorded bits of this arithmetic"
    else:
        detail = f"{agreed} with the recorded bits"
    ok = not disagreed and expected in (None, got)
    return CanaryResult(arithmetic, device, ok, got, expected, detail)


def require(arithmetic: str, device: str = "cpu") -> None:
    """Raises CanaryError where a declared arithmetic does not hold here; an undeclared one passes."""
    if arithmetic_class(arithmetic) is DeterminismClass.BEST_EFFORT:
        return
    result = check(arithmetic, device)
    if not result.ok:
        raise CanaryError(
            f"{arithmetic} on {device} cannot be offered: {result.detail} (digest {result.digest or 'none'}, "
            f"recorded {result.expected or 'none'}). Run `queueproof doctor`; delete the kernel cache it names; if it stays, "
            "report it"
        )
