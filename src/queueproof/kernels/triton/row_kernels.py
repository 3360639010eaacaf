"""Rows of logits: best token, sum of exponentials, Gumbel race, edits and ranks (docs/arithmetic-tensorcore.md, section 4).

A row is split over several programs. What they find is a maximum or a sum of integers, so neither the split nor the order
in which they finish can be seen in a result.
"""

from __future__ import annotations

import triton
import triton.language as tl

from queueproof.kernels.triton.launch import begin
from queueproof.kernels.triton.math import INF, gumbel, log, philox, quantised_exp, sum_value

# What is known of a row: FIELDS i32 words in `wanted`
TOKEN, TEMPERATURE, TOP_K, TOP_P, MIN_P = (tl.constexpr(i) for i in range(5))
SEED, POSITION = tl.constexpr(5), tl.constexpr(7)  # two words each, the low one first
SOURCE = tl.constexpr(9)  # its row of `edited`, or -1
HOW = tl.constexpr(10)  # how its token is found: one of the next four
GIVEN, GREEDY, RACE, FILTERED = (tl.constexpr(i) for i in range(4))
FIELDS = tl.constexpr(12)

PARTS = tl.constexpr(64)  # the most programs that a row is split over
LOADS_AHEAD = tl.constexpr(3)  # tiles on their way while one is worked on
LEAST = tl.constexpr(-(1 << 63))
NAN_KEY = tl.constexpr(0x7FFFFFFF)
LAST_ID = tl.constexpr(0x7FFFFFFF)
GUMBEL_MOST = tl.constexpr(16.75)  # gumbel() of the largest word is 16.64


@triton.jit
def order_key(x):
    """i32 in the order of f32 x; zeros of both signs are equal, NaNs above everything."""
    b = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(x != x, NAN_KEY, b ^ ((b >> 31) & 0x7FFFFFFF))


@triton.jit
def key_value(key):
    """The f32 value of a key; a zero is +0."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def pack(x, i):
    """i64 whose order is that of ranks, reversed: the larger, the better; of equal values the smaller id is better."""
    return (order_key(x).to(tl.int64) << 32) | (i ^ LAST_ID).to(tl.int64)


@triton.jit
def packed_key(packed):
    return (packed >> 32).to(tl.int32)


@triton.jit
def packed_id(packed):
    return (packed & LAST_ID).to(tl.int32) ^ LAST_ID


@triton.jit
def word(wanted, row, FIELD: tl.constexpr):
    return tl.load(wanted + row * FIELDS + FIELD)


@triton.jit
def number(wanted, row, FIELD: tl.constexpr):
    """f32 field of a row."""
    return word(wanted, row, FIELD).to(tl.float32, bitcast=True)


@triton.jit
def unsigned(wanted, row, FIELD: tl.constexpr):
    return word(wanted, row, FIELD).to(tl.uint32, bitcast=True)


@triton.jit
def best_of(best, row, parts):
    """The best of a row, packed, from what the programs of `best_kernel` found."""
    i = tl.arange(0, PARTS)
    return tl.max(tl.load(best + row * parts + i, mask=i < parts, other=LEAST))


@triton.jit
def noise_at(i, wanted, row):
    """u32 random words of ids i (i32, any)."""
    w0, w1, w2, w3 = philox(
        (i >> 2).to(tl.uint32),
        unsigned(wanted, row, POSITION),
        unsigned(wanted, row, POSITION + 1),
        unsigned(wanted, row, SEED),
        unsigned(wanted, row, SEED + 1),
    )
    k = i & 3
    return tl.where(k < 2, tl.where(k == 0, w0, w1), tl.where(k == 2, w2, w3))


@triton.jit
def noise_from(first, wanted, row, TILE: tl.constexpr):
    """u32 [TILE]: the random words of ids first, first + 1, …; first is a multiple of 4. One Philox gives four."""
    w0, w1, w2, w3 = philox(
        ((first >> 2) + tl.arange(0, TILE // 4)).to(tl.uint32),
        unsigned(wanted, row, POSITION),
        unsigned(wanted, row, POSITION + 1),
        unsigned(wanted, row, SEED),
        unsigned(wanted, row, SEED + 1),
    )
    return tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (TILE,))


@triton.jit
def source_row(logits, edited, wanted, row, V: tl.constexpr):
    """Where the logits are that a token of the row is drawn from."""
    source = word(wanted, row, SOURCE)
    return edited + source.to(tl.int64) * V if source >= 0 else logits + row.to(tl.int64) * V


@triton.jit
def best_source(best, wanted, row, rows, parts):
    """Packed best of the logits that a token of the row is drawn from."""
    source = word(wanted, row, SOURCE)
    return best_of(best, tl.where(source >= 0, rows + source, row), parts)


@triton.jit
def finish_row(logits, row, token, m, logz, out, last_tokens, rows, V: tl.constexpr):
    """Writes the token (-1: a NaN), its log-probability and, for ranks to be counted on, a 1."""
    x = tl.load(logits + row.to(tl.int64) * V + tl.maximum(token, 0))
    tl.store(out + row, token)
    tl.store(out + rows + row, ((x - m) - logz).to(tl.int32, bitcast=True))
    tl.store(out + 3 * rows + row, 1)
    tl.store(last_tokens + row, tl.maximum(token, 0))


@triton.jit(do_not_specialize=["rows", "tiles"])
def best_kernel(logits, edited, best, rows, tiles, V: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr):
    """Grid (parts, rows and edited rows). best: i64 [rows and edited rows, parts], packed."""
    part, row = tl.program_id(0), tl.program_id(1)
    begin(PDL)
    x_row = logits + row.to(tl.int64) * V if row < rows else edited + (row - rows).to(tl.int64) * V
    first = part * tiles * TILE + tl.arange(0, TILE)
    at = first
    largest = tl.full((TILE,), float("-inf"), tl.float32)
    for t in tl.range(tiles, num_stages=LOADS_AHEAD):
        i = first + t * TILE
        x = tl.load(x_row + i, mask=i < V, other=float("-inf"))
        at = tl.where(x > largest, i, at)
        largest = tl.maximum(largest, x, propagate_nan=tl.PropagateNan.ALL)
    found = tl.max(tl.where(first < V, pack(largest, at), LEAST))
    tl.store(best + row * tl.num_programs(0) + part, found)


@triton.jit
def _race_part(x_row, wanted, row, best_x, part, tiles, V: tl.constexpr, TILE: tl.constexpr):
    """The best score z + gumbel of a program's part, packed. best_x: packed best of the row."""
    temperature = number(wanted, row, TEMPERATURE)
    # Far below the score of the best token nothing can win: such tiles need no noise.
    enough = tl.div_rn(key_value(packed_key(best_x)), temperature) + gumbel(noise_at(packed_id(best_x), wanted, row))
    at = part * tiles * TILE + tl.arange(0, TILE)
    inside = at < V
    largest = tl.full((TILE,), float("-inf"), tl.float32)
    for t in range(tiles):
        first = (part * tiles + t) * TILE
        i = first + tl.arange(0, TILE)
        x = tl.load(x_row + i, mask=i < V, other=float("-inf"))
        z = tl.div_rn(x, temperature)
        if tl.max(z) + GUMBEL_MOST >= enough:
            score = z + gumbel(noise_from(first, wanted, row, TILE))
            at = tl.where(score > largest, i, at)
            largest = tl.maximum(largest, score)
    return tl.max(tl.where(inside, pack(largest, at), LEAST))


@triton.jit(do_not_specialize=["rows", "tiles"])
def mass_kernel(
    logits,
    edited,
    wanted,
    best,
    sums,
    races,
    arrivals,
    state,
    out,
    last_tokens,
    rows,
    tiles,
    HAS_RACE: tl.constexpr,
    V: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (parts, rows). Log-sum-exp of every row, and the token of every row that is not filtered.

    sums, races: i64 [rows, parts]. arrivals: i32 [rows], zeros, and so again at the end. state: f32 [rows, 2], (m, logz).
    out: see `rows.py`.
    """
    part, parts = tl.program_id(0), tl.num_programs(0)
    row = rows - 1 - tl.program_id(1)  # the rows that `best_kernel` read last may still be in the cache
    begin(PDL)
    x_row = logits + row.to(tl.int64) * V
    how = word(wanted, row, HOW)
    best_x = best_of(best, row, parts)
    m = key_value(packed_key(best_x))
    total = tl.zeros((TILE,), tl.int64)
    for t in tl.range(tiles, num_stages=LOADS_AHEAD):
        i = (part * tiles + t) * TILE + tl.arange(0, TILE)
        total += quantised_exp(tl.load(x_row + i, mask=i < V, other=float("-inf")) - m)
    tl.store(sums + row * parts + part, tl.sum(total))
    if HAS_RACE:  # noqa: SIM102  known when the kernel is built, unlike the next
        if how == RACE:
            drawn_from = source_row(logits, edited, wanted, row, V)
            best_drawn = best_source(best, wanted, row, rows, parts)
            tl.store(
                races + row * parts + part,
                _race_part(drawn_from, wanted, row, best_drawn, part, tiles, V, TILE),
            )
    if tl.atomic_add(arrivals + row, 1, sem="acq_rel") == parts - 1:  # the last program of the row
        tl.store(arrivals + row, 0)
        lane = tl.arange(0, PARTS)
        mine = row * parts + lane
        z = tl.sum(tl.load(sums + mine, mask=lane < parts, other=0, cache_modifier=".cg"))
        logz = tl.where(tl.abs(m) == INF, float("nan"), log(sum_value(z)))  # no difference from it is a number
        first = tl.load(x_row + packed_id(best_x))  # m with its sign, should it be a zero
        tl.store(state + 2 * row, first)
        tl.store(state + 2 * row + 1, logz)
        tl.store(out + 2 * rows + row, (first + logz).to(tl.int32, bitcast=True))
        if how != FILTERED:
            token = word(wanted, row, TOKEN)
            if how != GIVEN:
                chosen = best_source(best, wanted, row, rows, parts)
                bad = packed_key(chosen) == NAN_KEY
                if HAS_RACE:  # noqa: SIM102
                    if how == RACE:
                        chosen = tl.max(tl.load(races + mine, mask=lane < parts, other=LEAST, cache_modifier=".cg"))
                token = tl.where(bad, -1, packed_id(chosen))
            token = tl.where(packed_key(best_x) == NAN_KEY, -1, token)
            finish_row(logits, row, token, first, logz, out, last_tokens, rows, V)


@triton.jit(do_not_specialize=["tiles"])
def copy_rows(logits, edited_rows, edited, tiles, V: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr):
    """Grid (parts, edited rows): copies logits[edited_rows[·]]."""
    part, copy = tl.program_id(0), tl.program_id(1)
    begin(PDL)
    source = logits + tl.load(edited_rows + copy).to(tl.int64) * V
    target = edited + copy.to(tl.int64) * V
    for t in range(tiles):
        i = (part * tiles + t) * TILE + tl.arange(0, TILE)
        tl.store(target + i, tl.load(source + i, mask=i < V), mask=i < V)


@triton.jit(do_not_specialize=["count"])
def edit_kernel(edits, edited, count, V: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """edits: i32 [7, count]: row of `edited`, id, then as f32 bias, repetition, frequency and presence, then banned."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < count
    begin(PDL)
    row = tl.load(edits + i, mask=inside, other=0)
    token = tl.load(edits + count + i, mask=inside, other=0)
    bias = tl.load(edits + 2 * count + i, mask=inside, other=0).to(tl.float32, bitcast=True)
    repetition = tl.load(edits + 3 * count + i, mask=inside, other=0x3F800000).to(tl.float32, bitcast=True)
    frequency = tl.load(edits + 4 * count + i, mask=inside, other=0).to(tl.float32, bitcast=True)
    presence = tl.load(edits + 5 * count + i, mask=inside, other=0).to(tl.float32, bitcast=True)
    banned = tl.load(edits + 6 * count + i, mask=inside, other=0)
    place = edited + row.to(tl.int64) * V + token
    x = tl.load(place, mask=inside, other=0.0) + bias
    x = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
    x = (x - frequency) - presence
    tl.store(place, tl.where(banned != 0, float("-inf"), x), mask=inside)


@triton.jit(do_not_specialize=["tiles"])
def mask_kernel(places, allowed, edited, tiles, V: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr):
    """Grid (parts, masked rows). places: i32, rows of `edited`. allowed: i32 [masked rows, ceil(V / 32)], a bit for each id."""
    part, mask = tl.program_id(0), tl.program_id(1)
    WORDS: tl.constexpr = (V + 31) // 32
    begin(PDL)
    target = edited + tl.load(places + mask).to(tl.int64) * V
    bits = allowed + mask * WORDS
    for t in range(tiles):
        i = (part * tiles + t) * TILE + tl.arange(0, TILE)
        bit = tl.load(bits + i // 32, mask=i < V, other=0) >> (i % 32)
        tl.store(target + i, float("-inf"), mask=(i < V) & (bit & 1 == 0))


@triton.jit(do_not_specialize=["rows", "tiles"])
def rank_kernel(logits, out, rows, tiles, V: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr):
    """Grid (parts, rows): adds to the rank of the row's token the number of better ones in this part."""
    part, row = tl.program_id(0), tl.program_id(1)
    begin(PDL)
    x_row = logits + row.to(tl.int64) * V
    token = tl.maximum(tl.load(out + row), 0)
    own = tl.load(x_row + token)
    better = tl.zeros((TILE,), tl.int32)
    for t in range(tiles):
        i = (part * tiles + t) * TILE + tl.arange(0, TILE)
        x = tl.load(x_row + i, mask=i < V, other=float("-inf"))
        better += ((x > own) | ((x == own) & (i < token))).to(tl.int32)
    tl.atomic_add(out + 3 * rows + row, tl.sum(better), sem="relaxed")
