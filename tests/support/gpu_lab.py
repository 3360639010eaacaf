"""What the checks share: a model, sizes, executors by their options, and one long sequence computed token by token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from queueproof.kernels.ops import Backend, Limits
from tests.support.gpu_cases import prompts
from tests.support.gpu_driver import Bits, Driver, joined, kept, make_backend
from tests.support.gpu_model import BLOCK, SyntheticModel, load_synthetic


@dataclass(frozen=True, slots=True)
class Sizes:
    """row_counts: rows in a step. long: tokens of the long sequence. context: most keys before a decode step."""

    row_counts: tuple[int, ...]
    long: int
    context: int
    chunk_sizes: tuple[int, ...]
    boundaries: tuple[int, ...]  # lengths; each is tried with one more and one fewer
    copies: tuple[int, ...]  # of the same request at once
    repeats: int
    middle: int  # rows around which some kernel of others changes its shape
    neighbour: int  # most tokens of the neighbour's growing prefill
    strangers: int
    prompts: int
    longest_prompt: int
    small_pool: int  # tokens that the small pool of the engine holds
    block_sizes: tuple[int, ...] = (16, 32, 128)
    block_size: int = 64


FULL = Sizes(
    row_counts=tuple(range(1, 521)),
    long=1300,
    context=96,
    chunk_sizes=(7, 16, 33, 64, 100, 256, 511, 512, 513, 1300),
    boundaries=(16, 48, 64, 128, 512, 576, 1024),
    copies=(44, 45, 46, 47, 48),
    repeats=5,
    middle=256,
    neighbour=40,
    strangers=200,
    prompts=56,
    longest_prompt=1100,
    small_pool=3200,
)
# For the negative control, which launches every operation by itself.
COARSE = Sizes(
    row_counts=(1, 2, 3, 5, 8, 13, 16, 17, 24, 32, 33, 48, 64, 65, 100, 128, 129, 192, 255, 256, 257, 384, 512, 520),
    long=600,
    context=96,
    chunk_sizes=(16, 100, 256, 513),
    boundaries=(16, 64, 512),
    copies=(44, 48),
    repeats=2,
    middle=256,
    neighbour=40,
    strangers=64,
    prompts=56,
    longest_prompt=560,
    small_pool=2000,
)
# For tests of the checks themselves, on a processor.
TINY = Sizes(
    row_counts=(1, 2, 3, 8, 17, 24),
    long=70,
    context=24,
    chunk_sizes=(7, 33),
    boundaries=(16, 64),
    copies=(4,),
    repeats=2,
    middle=16,
    neighbour=12,
    strangers=6,
    prompts=8,
    longest_prompt=60,
    small_pool=112,
    block_sizes=(16, 32),
    block_size=16,
)
SIZES = {"full": FULL, "coarse": COARSE, "tiny": TINY}


def _most_blocks(sizes: Sizes, block_size: int) -> int:
    """Room for the sequences of any one check."""

    def each(tokens: int) -> int:
        return -(-tokens // block_size)

    decoding = max(sizes.row_counts) * each(sizes.context + 2)
    # Lengths of the matrix are spread evenly up to the longest, but for some at the edges of blocks.
    matrix = sizes.prompts * (each(sizes.longest_prompt + 4) // 2 + 3) + sizes.strangers * each(120)
    return max(decoding, matrix) + 4 * each(sizes.long)


class Lab:
    """Executors are made when first asked for and live until `close`."""

    def __init__(
        self, config: dict[str, Any], arithmetic: str, device: str, sizes: Sizes, block_values: int = BLOCK
    ) -> None:
        self.sizes, self.arithmetic, self.device = sizes, arithmetic, device
        self.backend = make_backend(arithmetic, device)
        self.max_len = max(sizes.long, sizes.longest_prompt) + 64
        self.model: SyntheticModel = load_synthetic(config, self.backend, self.max_len, block_values=block_values)
        self._drivers: dict[tuple[int, bool], Driver] = {}
        self._eager: Backend | None = None
        self._long_rows: Bits | None = None
        self.long_ids = self.ids("long", [sizes.long])[0]

    def ids(self, seed: str, lengths: list[int]) -> list[list[int]]:
        return prompts(seed, lengths, self.model.config.vocab_size)

    @property
    def eager_backend(self) -> Backend:
        """Of the same arithmetic, without CUDA graphs."""
        if self._eager is None:
            self._eager = make_backend(self.arithmetic, self.device, graphs=False)
        return self._eager

    def driver(self, block_size: int | None = None, graphs: bool = True) -> Driver:
        size, sizes = block_size or self.sizes.block_size, self.sizes
        if (size, graphs) not in self._drivers:
            rows = max(sizes.row_counts)
            seqs = max(rows, sizes.prompts + sizes.strangers) + 8
            tokens = max(4096, sizes.long) if sizes.long > 100 else 512
            blocks = _most_blocks(sizes, size)
            limits = Limits(tokens, seqs, rows, blocks, size, self.max_len)
            backend = self.backend if graphs else self.eager_backend
            self._drivers[size, graphs] = Driver(self.model, backend, limits)
        return self._drivers[size, graphs]

    @property
    def long_rows(self) -> Bits:
        """[long, V]: logits of the long sequence, decoded token by token, alone. The first call runs steps on `driver()`:
        take it before the rows that it is compared with, which are valid until the next step."""
        if self._long_rows is None:
            driver = self.driver()
            with driver.sequences([self.long_ids]) as (sequence,):
                self._long_rows = joined([kept(driver.run([(sequence, 1)])) for _ in self.long_ids])
        return self._long_rows

    def close(self) -> None:
        for driver in self._drivers.values():
            driver.close()
        self._drivers.clear()
        self._long_rows = None
