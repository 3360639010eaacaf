"""The pool of blocks and the prefix index."""

from __future__ import annotations

import random

import numpy as np
import pytest

from queueproof.engine.kv.pool import BlockPool
from queueproof.engine.kv.prefix_index import PrefixIndex, extend_chain, root_hash


def chain(tokens: list[int], size: int = 16, root: bytes = b"root") -> list[bytes]:
    hashes: list[bytes] = []
    extend_chain(hashes, root, np.array(tokens, np.int32), len(tokens) // size, size)
    return hashes


def test_a_chain_names_everything_before_it() -> None:
    tokens = list(range(48))
    hashes = chain(tokens)
    assert len(set(hashes)) == 3
    assert chain([99, *tokens[1:]])[1:] != hashes[1:]  # the first token is part of every later hash
    assert chain(tokens[:32]) == hashes[:2]
    assert chain(tokens, root=b"other")[0] != hashes[0]
    assert chain([7] * 32)[0] != chain([7] * 32)[1]


def test_extending_a_chain_step_by_step_gives_the_same() -> None:
    tokens = np.arange(64, dtype=np.int32)
    hashes: list[bytes] = []
    for blocks in (1, 1, 3, 4):
        extend_chain(hashes, b"root", tokens, blocks, 16)
    assert hashes == chain(tokens.tolist())


def test_roots() -> None:
    roots = {
        root_hash("m", None),
        root_hash("m", "s"),
        root_hash("n", None),
        root_hash("ms", None),
        root_hash("n", "s"),
    }
    assert len(roots) == 5


def test_blocks_are_shared_and_given_back() -> None:
    index = PrefixIndex()
    pool = BlockPool(4, 16, index)
    hashes = chain(list(range(48)))
    mine = pool.allocate(3)
    for block, digest in zip(mine, hashes, strict=True):
        pool.publish(block, digest)
    other = pool.lookup(hashes[:2])
    assert other == mine[:2]
    assert pool.free_after_sharing(other) == pool.free == 1
    pool.share(other)
    pool.check_integrity([mine, other])
    pool.release(mine)
    pool.check_integrity([other])
    assert pool.free == 2
    assert pool.free_after_sharing(pool.lookup(hashes)) == 1
    pool.release(other)
    pool.check_integrity([])
    assert pool.lookup(hashes) == mine  # still there, until reused


def test_reuse_starts_with_what_nobody_can_find_and_ends_with_beginnings() -> None:
    index = PrefixIndex()
    pool = BlockPool(4, 16, index)
    hashes = chain(list(range(48)))
    held = pool.allocate(4)
    for block, digest in zip(held, hashes, strict=False):
        pool.publish(block, digest)
    pool.release(held)
    assert [pool.allocate(1)[0] for _ in range(4)] == [held[3], held[2], held[1], held[0]]
    assert len(index) == 0 and pool.lookup(hashes) == []


def test_the_first_block_of_a_chain_stays_the_one() -> None:
    index = PrefixIndex()
    index.publish(1, b"x")
    index.publish(2, b"x")
    assert index.longest([b"x"]) == [1] and 2 not in index
    index.forget(2)
    assert index.longest([b"x"]) == [1]
    index.check_integrity()


def test_forgetting_all_prefixes() -> None:
    pool = BlockPool(2, 16, PrefixIndex())
    held = pool.allocate(1)
    pool.publish(held[0], b"x")
    pool.forget_prefixes()
    assert pool.lookup([b"x"]) == []
    pool.check_integrity([held])


def test_integrity_finds_a_lost_and_a_doubled_block() -> None:
    pool = BlockPool(3, 16, None)
    held = pool.allocate(2)
    with pytest.raises(AssertionError, match="counts 1 holders and has 0"):
        pool.check_integrity([held[:1]])
    with pytest.raises(AssertionError, match="counts 1 holders and has 2"):
        pool.check_integrity([held, held])


def test_random_use_keeps_the_books() -> None:
    rng = random.Random(0)
    pool = BlockPool(10, 16, PrefixIndex())
    tables: list[tuple[list[int], list[bytes]]] = []
    hits = 0
    for _ in range(2000):
        if tables and rng.random() < 0.45:
            pool.release(tables.pop(rng.randrange(len(tables)))[0])
        else:
            hashes = chain([rng.randrange(2)] * 16 + [rng.randrange(3)] * 16 + [rng.randrange(3)] * 16)
            cached = pool.lookup(hashes)
            missing = 3 - len(cached)
            if missing <= pool.free_after_sharing(cached):
                pool.share(cached)
                blocks = cached + pool.allocate(missing)
                for block, digest in zip(blocks, hashes, strict=True):
                    pool.publish(block, digest)
                tables.append((blocks, hashes))
                hits += len(cached)
        pool.check_integrity([blocks for blocks, _ in tables])
    assert hits > 500
