"""Options of an engine. None of them may change an answer but `arithmetic`; they are checked when it is built."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any

import psutil

from queueproof.contract.errors import InvalidParameter, UsageError
from queueproof.contract.receipt import MAX_SEED
from queueproof.engine.protocols import LoadedModel
from queueproof.engine.sampling_params import as_integer
from queueproof.engine.scheduler.policies import POLICIES
from queueproof.kernels.ops import Limits

# Far above what is of use; beyond them buffers and books would fill the memory before anything runs.
MOST_THREADS = 1 << 10
MOST_SEQS = 1 << 16
MOST_TOKENS = 1 << 20
MOST_BLOCKS = (1 << 31) - 1  # block tables are i32
_LOGIT_ROWS = 256  # room for so many on a host: more take memory, and need no fewer passes over the head's weights


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Raises InvalidParameter for a value out of range, of another type, or an unknown name.

    arithmetic, device: which kernels (`kernels/registry.py`); arithmetic None takes the default of the device.
    threads: of the kernels on the CPU; None takes the cores this process may use.
    max_model_len: prompt and answer together; None takes what the model was made for.
    max_num_seqs: sequences in one step. max_num_batched_tokens: tokens in one step; longer prompts are cut in chunks.
    prefill_tokens_beside_decode: of these, tokens of prompts in a step in which answers are written too (or as many as
    there are answers): fewer keep TPOT even while prompts arrive, more bring the first token of a prompt sooner.
    block_size: keys in a block of the KV cache, a multiple of 16. None of these four: what suits the device
    (`Backend.defaults`).
    kv_cache_memory (bytes) or num_blocks: the size of the KV cache. Without either: room for max_num_seqs full
    sequences, as far as the device has memory for it; on the CPU at most 4 GiB and a quarter of what is free.
    kv_cache_share: of what the device has memory for, where none of these is given and other engines live on it.
    async_scheduling: begin a step before the tokens of the one before are known, where the device allows it.
    policy: who is admitted next, "fcfs", "random" (with policy_seed) or "longest-first".
    num_speculative_tokens: most tokens that are guessed from earlier text and verified in one step; 0 switches it off.
    """

    arithmetic: str | None = None
    device: str = "cpu"
    threads: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    prefill_tokens_beside_decode: int | None = None
    block_size: int | None = None
    kv_cache_memory: int | None = None
    num_blocks: int | None = None
    kv_cache_share: float = 1.0
    enable_prefix_caching: bool = True
    async_scheduling: bool = True
    policy: str = "fcfs"
    policy_seed: int = 0
    num_speculative_tokens: int = 0

    def __new__(cls, *args: Any, **options: Any) -> EngineConfig:
        # Before the generated __init__, whose TypeError would not name what there is.
        known = [f.name for f in dataclasses.fields(cls)]
        for name, value in options.items():
            if name not in known:
                raise InvalidParameter(name, value, f"there is no such engine option; known are {', '.join(known)}")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        if not isinstance(self.arithmetic, str | None):
            raise InvalidParameter("arithmetic", self.arithmetic, "it must be a string, or None")
        if not isinstance(self.device, str):
            raise InvalidParameter("device", self.device, "it must be a string")
        for name in ("max_model_len", "kv_cache_memory"):
            if getattr(self, name) is not None:
                self._integer(name, 1, "it must be an integer from 1, or None")
        for name, most in (
            ("threads", MOST_THREADS),
            ("num_blocks", MOST_BLOCKS),
            ("max_num_seqs", MOST_SEQS),
            ("max_num_batched_tokens", MOST_TOKENS),
            ("prefill_tokens_beside_decode", MOST_TOKENS),
            ("block_size", MOST_TOKENS),
        ):
            if getattr(self, name) is not None:
                self._integer(name, 1, f"it must be an integer from 1 to {most}, or None", most)
        if self.block_size is not None and self.block_size % 16:
            raise InvalidParameter("block_size", self.block_size, "it must be a multiple of 16")
        if self.kv_cache_memory is not None and self.num_blocks is not None:
            raise InvalidParameter("num_blocks", self.num_blocks, "give either num_blocks or kv_cache_memory, not both")
        for name in ("enable_prefix_caching", "async_scheduling"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameter(name, getattr(self, name), "it must be True or False")
        share = self.kv_cache_share
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise InvalidParameter("kv_cache_share", share, "it must be a number above 0, up to 1")
        if self.policy not in POLICIES:
            raise InvalidParameter("policy", self.policy, f"it must be one of {', '.join(POLICIES)}")
        self._integer("policy_seed", 0, "it must be an integer from 0 to 2^64 - 1", MAX_SEED)
        self._integer("num_speculative_tokens", 0, "it must be an integer from 0 to 64", 64)

    def _integer(self, name: str, low: int, allowed: str, high: int | None = None) -> None:
        object.__setattr__(self, name, as_integer(name, getattr(self, name), allowed, low, high))


def thread_count(config: EngineConfig) -> int:
    """Threads for the kernels: as asked, else the physical cores, at most the CPUs this process may run on."""
    if config.threads is not None:
        return config.threads
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, psutil.cpu_count(logical=False) or allowed)


def prefill_beside_decode(config: EngineConfig, model: LoadedModel) -> int:
    """Tokens of prefill in a step that decodes too. MOST_TOKENS: as many as it has room for."""
    if config.prefill_tokens_beside_decode is not None:
        return config.prefill_tokens_beside_decode
    return model.backend.defaults().prefill_tokens_beside_decode or MOST_TOKENS


def limits_of(config: EngineConfig, model: LoadedModel) -> Limits:
    """The sizes of an engine for this model. Raises InvalidParameter, or UsageError for a cache of less than a block."""
    longest = model.max_len
    max_len = longest if config.max_model_len is None else config.max_model_len
    if max_len > longest:
        raise InvalidParameter("max_model_len", max_len, f"the model {model.name} has {longest} positions")
    backend, defaults = model.backend, model.backend.defaults()
    size = defaults.block_size if config.block_size is None else config.block_size
    seqs = defaults.max_num_seqs if config.max_num_seqs is None else config.max_num_seqs
    tokens = defaults.max_num_batched_tokens if config.max_num_batched_tokens is None else config.max_num_batched_tokens
    blocks_each = -(-max_len // size)
    block_bytes = backend.kv_bytes_per_token(model.forward.kv_shape) * size
    if config.num_blocks is not None:
        num_blocks = config.num_blocks
    elif config.kv_cache_memory is not None:
        num_blocks = min(config.kv_cache_memory // block_bytes, MOST_BLOCKS)
        if num_blocks < 1:
            raise UsageError(
                f"kv_cache_memory={config.kv_cache_memory} bytes hold no block of {size} keys, which takes "
                f"{block_bytes} bytes; give more memory or a smaller block_size"
            )
    else:
        memory = int(defaults.kv_cache_memory * config.kv_cache_share)
        num_blocks = max(1, min(seqs * blocks_each, memory // block_bytes, MOST_BLOCKS))
    rows = seqs * (1 + config.num_speculative_tokens)
    # A step that is drawn in one piece can overlap with the next one.
    most_rows = max(_LOGIT_ROWS, seqs) if backend.asynchronous else _LOGIT_ROWS
    return Limits(
        max_tokens=tokens,
        max_seqs=seqs,
        max_logit_rows=min(tokens, rows, most_rows),
        num_blocks=num_blocks,
        block_size=size,
        max_model_len=max_len,
    )
