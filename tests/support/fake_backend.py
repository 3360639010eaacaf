"""A model without weights behind the kernel door, made so that any mistake of the engine changes its answers.

Its "KV cache" is two real arrays with one entry per slot: the token id, and a state that hashes every token up
to that position *as read back through the block table when it was computed*. The logits of a position hash all
states read back through the block table. So a wrong slot, a wrong block, a stale or foreign block, a cache hit
under another prefix, a rejected guess that stays behind, or a row mixed up with its neighbour gives other bits.

Most of the time the best next token is a fixed function of the last one, so that n-gram guesses get accepted;
now and then the hash of the history overrules it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queueproof.contract.errors import InvalidParameter
from queueproof.kernels import host
from queueproof.kernels.host import HostRows
from queueproof.kernels.ops import F32, I32, Defaults, Dtype, ForwardModel, KVShape, Limits, StepBatch

U64 = NDArray[np.uint64]
_BASE = 0x9E3779B97F4A7C15
_UNWRITTEN = -7


def _mix(x: U64) -> U64:
    """splitmix64's finaliser: every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _powers(n: int) -> U64:
    return np.concatenate([np.ones(1, np.uint64), np.full(n - 1, _BASE, np.uint64)]).cumprod(dtype=np.uint64)


@dataclass
class FakeModel:
    """vocab_size logits per position. A sequence whose last token is `nan_token` has a NaN in its logits.

    broken: the logits also depend on how many tokens share the step (the negative control).
    """

    vocab_size: int = 64
    nan_token: int | None = None
    broken: bool = False
    crash_token: int | None = None
    dtype: Dtype = "bfloat16"
    kv_shape: KVShape = field(default_factory=lambda: KVShape(1, 1, 2))

    def trunk(self, ops: Any) -> Any:
        raise AssertionError("the fake executor needs no operations")

    head = trunk


class FakeExecutor:
    def __init__(self, model: FakeModel, limits: Limits) -> None:
        self.limits, self.model = limits, model
        slots = limits.num_blocks * limits.block_size
        self._ids = np.full(slots, _UNWRITTEN, np.int64)
        self._states = np.zeros(slots, np.uint64)
        self._powers = _powers(max(limits.max_model_len, 2))
        self._hashes = np.empty(0, np.uint64)
        self._last = np.empty(0, np.int64)
        self._vocab = np.arange(model.vocab_size, dtype=np.uint64) * np.uint64(_BASE)
        self.closed = False

    def forward(self, batch: StepBatch) -> None:
        limits, size = self.limits, self.limits.block_size
        tokens, seqs = batch.token_ids.size, batch.query_start.size - 1
        assert not self.closed
        assert 0 < tokens <= limits.max_tokens and 0 < seqs <= limits.max_seqs
        assert batch.positions.size == batch.slots.size == tokens
        assert batch.block_tables.shape[0] == seqs
        assert batch.query_start[0] == 0 and batch.query_start[-1] == tokens
        assert np.unique(batch.slots).size == tokens, "two tokens write one slot"
        assert not (batch.token_ids < 0).any() and not (batch.token_ids >= self.model.vocab_size).any()
        if self.model.crash_token is not None and (batch.token_ids == self.model.crash_token).any():
            raise RuntimeError("the fake model crashed, as asked")
        self._ids[batch.slots] = batch.token_ids
        self._hashes = np.empty(tokens, np.uint64)
        self._last = batch.token_ids.astype(np.int64)
        for s in range(seqs):
            own = slice(int(batch.query_start[s]), int(batch.query_start[s + 1]))
            positions = batch.positions[own].astype(np.int64)
            assert positions.size and (np.diff(positions) == 1).all() and positions[-1] < limits.max_model_len
            places = np.arange(positions[-1] + 1)
            slots = batch.block_tables[s, places // size].astype(np.int64) * size + places % size
            assert (slots[positions] == batch.slots[own]).all(), "slots and block table disagree"
            powers = self._powers[: places.size]
            history = np.cumsum((self._ids[slots] + 11).astype(np.uint64) * powers, dtype=np.uint64)
            self._states[batch.slots[own]] = _mix(history[positions])
            self._hashes[own] = _mix(np.cumsum(self._states[slots] * powers, dtype=np.uint64)[positions])
        if self.model.broken:
            self._hashes = self._hashes + np.uint64(tokens)

    def logits(self, rows: I32) -> F32:
        assert 0 < rows.size <= self.limits.max_logit_rows
        words = _mix(self._hashes[rows][:, None] + self._vocab[None, :])
        logits = (words >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-21)  # [0, 8)
        last = self._last[rows]
        logits[np.arange(rows.size), (last * 5 + 3) % self.model.vocab_size] += np.float32(7.5)
        if self.model.nan_token is not None:
            logits[:, self.model.nan_token] = -30.0  # so that it only comes from a prompt
            logits[last == self.model.nan_token, 1] = np.nan
        return logits

    def close(self) -> None:
        self.closed = True


class FakeRows(HostRows):
    """Row operations in a few NumPy calls. No arithmetic of the definition: only a function of the row alone."""

    def stats(self, logits: F32) -> tuple[I32, F32, F32]:
        best = logits.argmax(axis=1).astype(np.int32)
        top = logits.max(axis=1)
        best[np.isnan(top)] = -1
        with np.errstate(all="ignore"):
            # cumsum: one ascending chain, whatever the number of rows
            return best, top, np.log(np.exp(logits - top[:, None]).cumsum(axis=1, dtype=np.float32)[:, -1])

    def topk(self, logits: F32, k: int) -> I32:
        return np.argsort(-logits, axis=1, kind="stable")[:, :k].astype(np.int32)

    def sample(
        self, row: F32, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int
    ) -> int:
        """The best of the kept ids after uniform noise from (seed, position, id); every argument matters."""
        assert temperature > 0 and 0 <= seed < 1 << 64
        order = np.argsort(-row, kind="stable")
        kept = order[: max(1, int((top_k or row.size) * top_p))]
        kept = kept[row[kept] >= row[order[0]] - np.float32(12 * (1 - min_p))]
        words = _mix(
            kept.astype(np.uint64) * np.uint64(_BASE) + np.array([seed], np.uint64) + np.uint64(position << 20)
        )
        noise = (words >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-20)
        return int(kept[np.argmax(row[kept] / np.float32(temperature) + noise)])


class FakeBackend:
    device = "cpu"
    family = "any"
    asynchronous = False

    def __init__(self, arithmetic: str = "ieee/1") -> None:
        self.arithmetic = arithmetic
        self.executors: list[FakeExecutor] = []

    def defaults(self) -> Defaults:
        return host.defaults()

    def packer(self, dtype: Dtype) -> Any:
        raise AssertionError("the fake model has no weights")

    def rows(self, threads: int) -> FakeRows:
        return FakeRows()

    def kv_bytes_per_token(self, shape: KVShape) -> int:
        return 2 * shape.layers * shape.kv_heads * shape.head_dim * 2

    def executor(self, model: ForwardModel, limits: Limits, threads: int) -> FakeExecutor:
        assert isinstance(model, FakeModel)
        self.executors.append(FakeExecutor(model, limits))
        return self.executors[-1]

    def warm_up(self, progress: Callable[[str], None] | None = None) -> None: ...


class FakeStream:
    def __init__(self, tokenizer: FakeTokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer, self._skip, self._held = tokenizer, skip_special_tokens, b""

    def push(self, token_id: int) -> str:
        self._held += self._tokenizer.piece(token_id, self._skip)
        try:
            text = self._held.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data" and len(self._held) < 4:
                return ""
            text = self._held.decode(errors="replace")
        self._held = b""
        return text

    def finish(self) -> str:
        text, self._held = self._held.decode(errors="replace"), b""
        return text


class FakeTokenizer:
    """Bytes. `pieces` gives chosen ids a text of their own; ids in `special` have none when special tokens are skipped.

    An id from 256 on, or in `pieces`, is never the result of `encode`.
    """

    def __init__(
        self, vocab_size: int = 64, special: Iterable[int] = (), pieces: Mapping[int, bytes] | None = None
    ) -> None:
        self._vocab_size, self._special, self._pieces = vocab_size, frozenset(special), dict(pieces or {})
        self.digest = _digest((vocab_size, sorted(self._special), self._pieces))

    def piece(self, token_id: int, skip_special_tokens: bool) -> bytes:
        if token_id in self._special:
            return b"" if skip_special_tokens else b"<%d>" % token_id
        return self._pieces.get(token_id, bytes([token_id % 64 + 48]))

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def token_bytes(self, token_id: int) -> bytes:
        return self.piece(token_id, False)

    def is_control(self, token_id: int) -> bool:
        return token_id in self._special

    def encode(self, text: str, add_bos: bool | None = None) -> list[int]:
        return [(byte - 48) % self._vocab_size for byte in text.encode()]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        return b"".join(self.piece(i, skip_special_tokens) for i in ids).decode(errors="replace")

    def stream(self, skip_special_tokens: bool = True) -> FakeStream:
        return FakeStream(self, skip_special_tokens)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        if options:
            raise InvalidParameter("chat option", sorted(options), "the fake template takes none")
        return self.encode("".join(f"{m['role']}:{m['content']};" for m in messages))


@dataclass(frozen=True)
class FakeConfig:
    vocab_size: int
    eos_ids: tuple[int, ...]


@dataclass
class FakeLoaded:
    """`LoadedModel` over the fake backend."""

    config: FakeConfig
    forward: FakeModel
    tokenizer: FakeTokenizer
    backend: FakeBackend
    max_len: int
    name: str = "fake"

    @property
    def digest(self) -> str:
        return _digest((self.config, getattr(self.forward, "config", self.forward)))


def load_fake(
    *,
    vocab_size: int = 64,
    max_len: int = 512,
    eos_ids: tuple[int, ...] = (0,),
    arithmetic: str = "ieee/1",
    pieces: Mapping[int, bytes] | None = None,
    **model: Any,
) -> FakeLoaded:
    """A fake model; `model` goes to FakeModel (nan_token, broken, crash_token)."""
    return FakeLoaded(
        FakeConfig(vocab_size, eos_ids),
        FakeModel(vocab_size=vocab_size, **model),
        FakeTokenizer(vocab_size, eos_ids, pieces),
        FakeBackend(arithmetic),
        max_len,
    )
