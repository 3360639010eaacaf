"""The tokens that min-p, top-k and top-p keep, a draw among them, and the best tokens to report.

The candidates of a row are collected first: a histogram over the distance from the best token says up to which distance
enough of them lie, and the few that do are copied. What is then looked for is a place in rank order, which is found by
bisection over integers (counts, or sums of quantised exponentials), so again no order of work can be seen. A row with
more candidates than there is ROOM for is searched where it lies: the same functions, over many tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

from queueproof.kernels.triton.launch import begin
from queueproof.kernels.triton.math import INF, exp, gumbel, log, quantised, quantised_exp
from queueproof.kernels.triton.row_kernels import (
    LEAST,
    MIN_P,
    NAN_KEY,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    best_of,
    best_source,
    finish_row,
    key_value,
    noise_at,
    number,
    order_key,
    pack,
    packed_id,
    packed_key,
    source_row,
    word,
)

BINS = tl.constexpr(256)
BIN_SCALE = tl.constexpr(8.0)  # bins of 1/8; the last holds all from 31.875 on
SELECT_PARTS = tl.constexpr(32)  # the most programs that a row is split over here
NO_KEY, ANY_ID = tl.constexpr(-(1 << 31)), tl.constexpr(0x7FFFFFFF)
LOWEST_KEY = tl.constexpr(-2139095041)  # of −∞


@triton.jit
def _scaled(x_row, i, temperature, V: tl.constexpr):
    return tl.div_rn(tl.load(x_row + i, mask=i < V, other=float("-inf")), temperature)


@triton.jit
def _bin(largest, z):
    return tl.minimum((largest - z) * BIN_SCALE, BINS - 1.0).to(tl.int32)


@triton.jit
def _place(logits, edited, wanted, best, jobs, job, rows, best_parts, REPORT: tl.constexpr, V: tl.constexpr):
    """(row, its logits, temperature, largest z) of a job: every row to report, or the filtered rows that `jobs` names."""
    if REPORT:
        row = job
        x_row = logits + row.to(tl.int64) * V
        temperature = 1.0
        packed = best_of(best, row, best_parts)
    else:
        row = tl.load(jobs + job)
        x_row = source_row(logits, edited, wanted, row, V)
        temperature = number(wanted, row, TEMPERATURE)
        packed = best_source(best, wanted, row, rows, best_parts)
    return row, x_row, temperature, tl.div_rn(key_value(packed_key(packed)), temperature)


@triton.jit(do_not_specialize=["rows", "tiles", "best_parts"])
def spread_kernel(
    logits,
    edited,
    wanted,
    best,
    jobs,
    table,
    masses,
    rows,
    tiles,
    best_parts,
    REPORT: tl.constexpr,
    V: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (parts, jobs). table: i32 [jobs, parts, BINS], how many lie where. masses: i64 [jobs, parts], of what min-p keeps."""
    part, job, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    begin(PDL)
    row, x_row, temperature, largest = _place(logits, edited, wanted, best, jobs, job, rows, best_parts, REPORT, V)
    counts = tl.zeros((BINS,), tl.int32)
    total = tl.zeros((TILE,), tl.int64)
    for t in range(tiles):
        i = (part * tiles + t) * TILE + tl.arange(0, TILE)
        z = _scaled(x_row, i, temperature, V)
        counts += tl.histogram(_bin(largest, z), BINS, mask=i < V)
        if not REPORT:
            e = exp(z - largest)
            total += tl.where(e >= number(wanted, row, MIN_P), quantised(e), 0)
    tl.store(table + (job * parts + part) * BINS + tl.arange(0, BINS), counts)
    if not REPORT:
        tl.store(masses + job * parts + part, tl.sum(total))


@triton.jit
def _filtered_bins(wanted, row, largest, counts, masses, job, parts):
    """How many bins, the nearest first, surely hold all that the filters of the row keep. counts: i32 [BINS]."""
    lane = tl.arange(0, BINS)
    bins = row * 0 + BINS
    k = word(wanted, row, TOP_K)
    if k > 0:
        bins = tl.minimum(bins, tl.sum((tl.cumsum(counts) < k).to(tl.int32)) + 1)
    min_p = number(wanted, row, MIN_P)
    top_p = number(wanted, row, TOP_P)
    if min_p > 0:
        bins = tl.minimum(bins, (-log(min_p) * BIN_SCALE).to(tl.int32) + 2)
    elif (top_p < 1) & (k == 0):  # after top-k the mass is added up from the candidates: none of its k may be missing
        part = tl.arange(0, SELECT_PARTS)
        mass = tl.sum(tl.load(masses + job * parts + part, mask=part < parts, other=0))
        # Every token of a bin has more than this, so the true sums are reached no later. 2^-9: for roundings
        least = quantised_exp((lane + 1).to(tl.float32) * -0.125)
        reached = tl.cumsum(counts.to(tl.int64) * tl.maximum(least - (least >> 9) - 1, 0))
        needed = (mass.to(tl.float64) * top_p.to(tl.float64)).to(tl.int64) + 1
        bins = tl.minimum(bins, tl.sum((reached < needed).to(tl.int32)) + 1)
    return tl.where(tl.abs(largest) == INF, BINS, bins)  # there are no distances from infinity


@triton.jit(do_not_specialize=["rows", "tiles", "best_parts", "top"])
def collect_kernel(
    logits,
    edited,
    wanted,
    best,
    jobs,
    table,
    masses,
    candidates,
    counted,
    rows,
    tiles,
    best_parts,
    top,
    REPORT: tl.constexpr,
    V: tl.constexpr,
    TILE: tl.constexpr,
    ROOM: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (parts, jobs). candidates: i64 [jobs, ROOM], packed, in any order; counted: i32 [jobs], how many there are.

    Where there is no room for them, none are written. top: how many to report.
    """
    part, job, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    begin(PDL)
    row, x_row, temperature, largest = _place(logits, edited, wanted, best, jobs, job, rows, best_parts, REPORT, V)
    lane, of_part = tl.arange(0, BINS)[None, :], tl.arange(0, SELECT_PARTS)[:, None]
    counts = tl.load(table + (job * parts + of_part) * BINS + lane, mask=of_part < parts, other=0)
    everywhere = tl.sum(counts, 0)
    if REPORT:
        bins = tl.sum((tl.cumsum(everywhere) < top).to(tl.int32)) + 1
    else:
        bins = _filtered_bins(wanted, row, largest, everywhere, masses, job, parts)
    each = tl.sum(tl.where(lane < bins, counts, 0), 1)
    total = tl.sum(each)
    if part == 0:
        tl.store(counted + job, total)
    if total <= ROOM:
        before = tl.sum(tl.where(tl.arange(0, SELECT_PARTS) < part, each, 0))
        for t in range(tiles):
            i = (part * tiles + t) * TILE + tl.arange(0, TILE)
            z = _scaled(x_row, i, temperature, V)
            chosen = (_bin(largest, z) < bins) & (i < V)
            place = before + tl.cumsum(chosen.to(tl.int32)) - 1
            tl.store(candidates + job.to(tl.int64) * ROOM + place, pack(z, i), mask=chosen)
            before += tl.sum(chosen.to(tl.int32))


@triton.jit
def _up_to(key, i, last_key, last_id):
    """Whether tokens come no later than (last_key, last_id) in rank order."""
    return (key > last_key) | ((key == last_key) & (i <= last_id))


@triton.jit
def _weights(z, key, i, largest, min_p, k_key, k_id, COUNT: tl.constexpr, V: tl.constexpr):
    """i64: 1 of every token, or its mass where min-p and top-k keep it; 0 past V."""
    if COUNT:
        return (i < V).to(tl.int64)
    e = exp(z - largest)
    return tl.where((e >= min_p) & _up_to(key, i, k_key, k_id) & (i < V), quantised(e), 0)


@triton.jit
def _race(z, key, i, largest, min_p, k_key, k_id, p_key, p_id, wanted, row, V: tl.constexpr):
    """Packed scores of the tokens that are kept; LEAST of others."""
    e = exp(z - largest)
    kept = tl.where(e == e, e, 0.0) >= min_p  # min_p 0 is off: it keeps what is infinite, too
    kept &= _up_to(key, i, k_key, k_id) & _up_to(key, i, p_key, p_id) & (i < V)
    return tl.where(kept, pack(z + gumbel(noise_at(i, wanted, row)), i), LEAST)


@triton.jit
def _sum_up_to(
    key,
    i,
    weights,
    last_key,
    last_id,
    x_row,
    temperature,
    largest,
    min_p,
    k_key,
    k_id,
    COUNT: tl.constexpr,
    HERE: tl.constexpr,
    V: tl.constexpr,
):
    """i64 sum of the weights of tokens up to a place. HERE: the candidates in registers are all there is to add up."""
    if HERE:
        return tl.sum(tl.where(_up_to(key, i, last_key, last_id), weights, 0))
    ROOM: tl.constexpr = key.shape[0]
    total = tl.zeros((ROOM,), tl.int64)
    for first in range(0, V, ROOM):
        j = first + tl.arange(0, ROOM)
        z = _scaled(x_row, j, temperature, V)
        other = order_key(z)
        w = _weights(z, other, j, largest, min_p, k_key, k_id, COUNT, V)
        total += tl.where(_up_to(other, j, last_key, last_id), w, 0)
    return tl.sum(total)


@triton.jit
def _first_place(
    needed,
    low_key,
    high_key,
    key,
    i,
    weights,
    x_row,
    temperature,
    largest,
    min_p,
    k_key,
    k_id,
    COUNT: tl.constexpr,
    HERE: tl.constexpr,
    V: tl.constexpr,
):
    """The first place (key, id) in rank order up to which the weights add up to f64 `needed`; keys within low … high."""
    low, high = low_key.to(tl.int64), high_key.to(tl.int64)
    while low < high:  # the largest key that is far enough, with all of its ids
        middle = low + (high - low + 1) // 2
        total = _sum_up_to(
            key,
            i,
            weights,
            middle.to(tl.int32),
            ANY_ID,
            x_row,
            temperature,
            largest,
            min_p,
            k_key,
            k_id,
            COUNT,
            HERE,
            V,
        )
        if total.to(tl.float64) >= needed:
            low = middle
        else:
            high = middle - 1
    last_key = low.to(tl.int32)
    first, last = low * 0, low * 0 + (V - 1)
    if HERE:
        first = tl.min(tl.where(key == last_key, i, V - 1)).to(tl.int64)
        last = tl.max(tl.where(key == last_key, i, 0)).to(tl.int64)
    while first < last:  # the smallest id of that key that is far enough
        middle = (first + last) // 2
        total = _sum_up_to(
            key,
            i,
            weights,
            last_key,
            middle.to(tl.int32),
            x_row,
            temperature,
            largest,
            min_p,
            k_key,
            k_id,
            COUNT,
            HERE,
            V,
        )
        if total.to(tl.float64) >= needed:
            last = middle
        else:
            first = middle + 1
    return last_key, last.to(tl.int32)


@triton.jit
def _draw(packed, masses, job, parts, x_row, temperature, largest, wanted, row, HERE: tl.constexpr, V: tl.constexpr):
    """The token of a filtered row. HERE: `packed` holds all tokens that the filters can keep."""
    i = tl.where(packed == LEAST, V, packed_id(packed))
    key = packed_key(packed)
    z = key_value(key)
    min_p = number(wanted, row, MIN_P)
    high = order_key(largest)
    low = tl.min(tl.where(i < V, key, high)) if HERE else high * 0 + LOWEST_KEY
    k_key, k_id = low * 0 + NO_KEY, low * 0 + ANY_ID
    p_key, p_id = k_key, k_id
    k = word(wanted, row, TOP_K)
    if k > 0:
        ones = _weights(z, key, i, largest, min_p, k_key, k_id, True, V)
        k_key, k_id = _first_place(
            k.to(tl.float64), low, high, key, i, ones, x_row, temperature, largest, min_p, k_key, k_id, True, HERE, V
        )
    top_p = number(wanted, row, TOP_P)
    if top_p < 1:
        weights = _weights(z, key, i, largest, min_p, k_key, k_id, False, V)
        if k > 0:
            mass = _sum_up_to(
                key,
                i,
                weights,
                low * 0 + NO_KEY,
                ANY_ID,
                x_row,
                temperature,
                largest,
                min_p,
                k_key,
                k_id,
                False,
                HERE,
                V,
            )
        else:
            part = tl.arange(0, SELECT_PARTS)
            mass = tl.sum(tl.load(masses + job * parts + part, mask=part < parts, other=0))
        needed = top_p.to(tl.float64) * mass.to(tl.float64)
        p_key, p_id = _first_place(
            needed, low, high, key, i, weights, x_row, temperature, largest, min_p, k_key, k_id, False, HERE, V
        )
    if HERE:
        won = tl.max(_race(z, key, i, largest, min_p, k_key, k_id, p_key, p_id, wanted, row, V))
        first = tl.max(packed)
    else:
        ROOM: tl.constexpr = packed.shape[0]
        scores = tl.full((ROOM,), LEAST, tl.int64)
        ranks = tl.full((ROOM,), LEAST, tl.int64)
        for start in range(0, V, ROOM):
            j = start + tl.arange(0, ROOM)
            zj = _scaled(x_row, j, temperature, V)
            race = _race(zj, order_key(zj), j, largest, min_p, k_key, k_id, p_key, p_id, wanted, row, V)
            scores = tl.maximum(scores, race)
            ranks = tl.maximum(ranks, tl.where(j < V, pack(zj, j), LEAST))
        won, first = tl.max(scores), tl.max(ranks)
    # The best one stays. That needs saying where the maximum is infinite, and no exponential is a number.
    return packed_id(tl.where(won == LEAST, first, won))


@triton.jit
def _candidates(candidates, job, count, ROOM: tl.constexpr):
    """Packed; LEAST past their number."""
    lane = tl.arange(0, ROOM)
    return tl.load(candidates + job.to(tl.int64) * ROOM + lane, mask=lane < count, other=LEAST)


@triton.jit(do_not_specialize=["rows", "best_parts", "parts"])
def draw_kernel(
    logits,
    edited,
    wanted,
    best,
    jobs,
    masses,
    candidates,
    counted,
    state,
    out,
    last_tokens,
    rows,
    best_parts,
    parts,
    V: tl.constexpr,
    ROOM: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (jobs,). The token of each filtered row; parts: those of `masses`."""
    job = tl.program_id(0)
    begin(PDL)
    row, x_row, temperature, largest = _place(logits, edited, wanted, best, jobs, job, rows, best_parts, False, V)
    count = tl.load(counted + job)
    packed = _candidates(candidates, job, count, ROOM)
    if count <= ROOM:
        token = _draw(packed, masses, job, parts, x_row, temperature, largest, wanted, row, True, V)
    else:
        token = _draw(packed, masses, job, parts, x_row, temperature, largest, wanted, row, False, V)
    drawn_from = packed_key(best_source(best, wanted, row, rows, best_parts))
    bad = (drawn_from == NAN_KEY) | (packed_key(best_of(best, row, best_parts)) == NAN_KEY)
    m, logz = tl.load(state + 2 * row), tl.load(state + 2 * row + 1)
    finish_row(logits, row, tl.where(bad, -1, token), m, logz, out, last_tokens, rows, V)


@triton.jit(do_not_specialize=["rows", "top"])
def report_kernel(
    logits, candidates, counted, state, out, rows, top, V: tl.constexpr, ROOM: tl.constexpr, PDL: tl.constexpr
):
    """Grid (rows,). The `top` best ids of each row and their log-probabilities, best first."""
    row = tl.program_id(0)
    begin(PDL)
    x_row = logits + row.to(tl.int64) * V
    m, logz = tl.load(state + 2 * row), tl.load(state + 2 * row + 1)
    count = tl.load(counted + row)
    packed = _candidates(candidates, row, count, ROOM)
    ids = out + 4 * rows + row * top
    logprobs = ids + rows * top
    last = tl.max(packed) * 0 + ((1 << 63) - 1)
    for place in range(top):
        if count <= ROOM:
            last = tl.max(tl.where(packed < last, packed, LEAST))
        else:
            most = tl.full((ROOM,), LEAST, tl.int64)
            for first in range(0, V, ROOM):
                j = first + tl.arange(0, ROOM)
                x = tl.load(x_row + j, mask=j < V, other=float("-inf"))
                other = tl.where(j < V, pack(x, j), LEAST)
                most = tl.maximum(most, tl.where(other < last, other, LEAST))
            last = tl.max(most)
        i = packed_id(last)
        tl.store(ids + place, i)
        tl.store(logprobs + place, ((tl.load(x_row + i) - m) - logz).to(tl.int32, bitcast=True))
