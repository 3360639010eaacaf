"""Which whole blocks of the pool hold which beginning of a text: a chain of hashes, each over its parent's."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from queueproof.kernels.ops import I32


def root_hash(namespace: str, salt: str | None) -> bytes:
    """The parent of every first block. Texts under two roots never share a block.

    namespace: model identity and arithmetic, of which keys and values are a function. salt: chosen by a request.
    """
    digest = hashlib.sha256(b"queueproof/prefix/1\0")
    for part in (namespace, salt or ""):
        encoded = part.encode(errors="surrogatepass")  # any string is a salt
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()


def extend_chain(hashes: list[bytes], root: bytes, tokens: I32, blocks: int, block_size: int) -> None:
    """Appends to `hashes` until it covers the first `blocks` whole blocks of `tokens` (i32): sha256(parent + ids)."""
    for i in range(len(hashes), blocks):
        parent = hashes[-1] if hashes else root
        hashes.append(hashlib.sha256(parent + tokens[i * block_size : (i + 1) * block_size].tobytes()).digest())


class PrefixIndex:
    """A one-to-one map between hashes and blocks. It owns nothing: the pool tells it when a block is reused."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def __contains__(self, block: int) -> bool:
        return block in self._hash_of

    def longest(self, hashes: Sequence[bytes]) -> list[int]:
        """Blocks of the longest beginning of the chain that is held."""
        blocks = []
        for digest in hashes:
            block = self._block_of.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def publish(self, block: int, digest: bytes) -> None:
        """From now on the chain that ends in `digest` may read `block`. The first block of a chain stays the one."""
        if digest not in self._block_of:
            self._block_of[digest] = block
            self._hash_of[block] = digest

    def forget(self, block: int) -> None:
        """The block is about to hold something else."""
        digest = self._hash_of.pop(block, None)
        if digest is not None:
            del self._block_of[digest]

    def clear(self) -> None:
        self._block_of.clear()
        self._hash_of.clear()

    def check_integrity(self) -> None:
        """Raises AssertionError unless the two maps are each other's inverse."""
        assert len(self._block_of) == len(self._hash_of)
        assert all(self._hash_of[block] == digest for digest, block in self._block_of.items())
