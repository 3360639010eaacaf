"""The blocks of the KV cache: who holds each one, and which free one is reused next.

A block is free (no holder) or held by one or more sequences. A free block may still be in the prefix index: then
its keys are whole and may be taken again; free blocks are reused least recently freed first, those out of the index
before all others. A block with two holders, or in the index, is never written.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from queueproof.engine.kv.prefix_index import PrefixIndex


class BlockPool:
    """index: None without a prefix cache."""

    def __init__(self, num_blocks: int, block_size: int, index: PrefixIndex | None) -> None:
        self.num_blocks, self.block_size, self.index = num_blocks, block_size, index
        self._holders = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def free(self) -> int:
        """Blocks that `allocate` could give now."""
        return len(self._free)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def lookup(self, hashes: Sequence[bytes]) -> list[int]:
        """Blocks that hold the longest known beginning of the chain; nothing is taken yet."""
        return self.index.longest(hashes) if self.index is not None else []

    def free_after_sharing(self, blocks: Sequence[int]) -> int:
        """What `free` would be after `share(blocks)`."""
        return len(self._free) - sum(not self._holders[block] for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """One more holder for each. Pre: each comes from `lookup`, with no `allocate` in between."""
        for block in blocks:
            if not self._holders[block]:
                del self._free[block]
            self._holders[block] += 1

    def allocate(self, n: int) -> list[int]:
        """n blocks with one holder each, out of the index. Pre: n <= free."""
        blocks = []
        for _ in range(n):
            block, _ = self._free.popitem(last=False)
            self._holders[block] = 1
            if self.index is not None:
                self.index.forget(block)
            blocks.append(block)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less for each. Later blocks are freed first: a beginning is of use to more texts than an end."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free[block] = None
                if self.index is None or block not in self.index:
                    self._free.move_to_end(block, last=False)

    def publish(self, block: int, digest: bytes) -> None:
        """The held block is whole and will not be written again; see PrefixIndex.publish."""
        if self.index is not None:
            self.index.publish(block, digest)

    def forget_prefixes(self) -> None:
        """Empties the prefix index; held blocks stay with their holders."""
        if self.index is not None:
            self.index.clear()

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError unless the counts are those of `tables`, the blocks of every holder."""
        held = Counter(block for table in tables for block in table)
        for block, holders in enumerate(self._holders):
            assert holders == held[block], f"block {block} counts {holders} holders and has {held[block]}"
            assert (block in self._free) == (holders == 0), f"block {block} is both free and held, or neither"
        assert len(self._free) + len(held) == self.num_blocks
        if self.index is not None:
            self.index.check_integrity()
