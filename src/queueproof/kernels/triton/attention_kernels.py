"""Paged attention of `tensorcore/1` (docs/arithmetic-tensorcore.md, section 3).

Two schedules of one arithmetic, which is written once, in `take_block` and `merge`. In the decode kernel a program takes one
token, key/value head and split of 512 keys; the last one to arrive of a token merges its splits. In the prefill kernel
a program takes a tile of tokens and walks all of their splits. Rows of the matrix unit are (token, head of the group).
Which program takes what is planned on the host (attention_plan.py); attention.py launches them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from queueproof.arithmetic.tensorcore1 import KEY_BLOCK, KEY_SPLIT
from queueproof.kernels.triton.attention_plan import DECODE_FIELDS, PREFILL_FIELDS
from queueproof.kernels.triton.launch import begin
from queueproof.kernels.triton.linear import prefetch
from queueproof.kernels.triton.math import quantised, sum_value

KEYS = tl.constexpr(KEY_BLOCK)
SPLIT_BLOCKS = tl.constexpr(KEY_SPLIT // KEY_BLOCK)
NEG_INF = tl.constexpr(float("-inf"))
DECODE_WORDS, PREFILL_WORDS = tl.constexpr(DECODE_FIELDS), tl.constexpr(PREFILL_FIELDS)


@triton.jit
def finite(m):
    """m, or 0 in the place of -inf, so that a difference with it is no NaN."""
    return tl.where(m == NEG_INF, 0.0, m)


@triton.jit
def round16(x, dtype: tl.constexpr, PAIRS: tl.constexpr):
    """x.to(dtype). PAIRS: two at a time, which the compiler does by itself only where the result has one use; one at a
    time costs as much as exp2."""
    if PAIRS and dtype == tl.bfloat16:
        y = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    elif PAIRS:
        y = tl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [x], dtype=tl.float16, is_pure=True, pack=2
        )
    else:
        y = x.to(dtype)
    return y


@triton.jit
def take_block(t, v, m, lanes, acc, PAIRS: tl.constexpr):
    """A split's state with one more block. t: f32 [R, 64], scores, -inf for keys not allowed; v: h16 [64, D], finite.

    m: f32 [R], lanes: f32 [R, 64], acc: f32 [R, D].
    """
    top = tl.maximum(m, tl.max(t, 1))
    base = finite(top)
    a = tl.exp2(m - base)[:, None]
    p = round16(tl.exp2(t - base[:, None]), v.dtype, PAIRS)
    lanes = tl.fma(lanes, a, p.to(tl.float32))
    acc = tl.dot(p, v, acc * a)
    return top, lanes, acc


@triton.jit
def lane_sum(lanes):
    return sum_value(tl.sum(quantised(lanes), 1))


@triton.jit
def merge(m, l, acc, part_m, part_l, part_acc):  # noqa: E741  the definition's name
    """The state (m, l: f32 [R], acc: f32 [R, D]) with one more split."""
    top = tl.maximum(m, part_m)
    base = finite(top)
    a, b = tl.exp2(m - base), tl.exp2(part_m - base)
    l = tl.fma(l, a, part_l * b)  # noqa: E741
    acc = tl.fma(acc, a[:, None], part_acc * b[:, None])
    return top, l, acc


@triton.jit
def answer(acc, l, dtype: tl.constexpr):  # noqa: E741
    return (tl.div_rn(acc, l[:, None]) + 0.0).to(dtype)


@triton.jit
def keys_of(block):
    """i32 [64]."""
    return tl.arange(0, KEYS) + block * KEYS


@triton.jit
def first_row(entry, block, head, KV_HEADS: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr):
    """i64, the row in the pool [num_blocks * kv_heads * BLOCK, D] of a key block's first key.

    entry: the pool block that holds the key block. PIECES: key blocks in a pool block; not 0.
    """
    return (entry.to(tl.int64) * KV_HEADS + head) * BLOCK + block % PIECES * KEYS


@triton.jit
def load_block(pool, entry, table, block, head, last, KV_HEADS: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr, D: tl.constexpr, DP: tl.constexpr):  # fmt: skip
    """h16 [64, DP]: a key block out of the pool, zeros past the key `last` and past D."""
    keys = keys_of(block)
    d = tl.arange(0, DP)
    inside = (keys <= last)[:, None]
    if PIECES:
        at = first_row(entry, block, head, KV_HEADS, BLOCK, PIECES) * D
        pointers = pool + at + (tl.arange(0, KEYS)[:, None] * D + d[None, :])
    else:
        entries = tl.load(table + keys // BLOCK, mask=keys <= last, other=0)
        rows = (entries.to(tl.int64) * KV_HEADS + head) * BLOCK + keys % BLOCK
        pointers = pool + (rows[:, None] * D + d[None, :])
    if D == DP:
        return tl.load(pointers, mask=inside, other=0.0)
    return tl.load(pointers, mask=inside & (d < D)[None, :], other=0.0)


@triton.jit
def table_entry(table, block, end, PIECES: tl.constexpr):
    """The pool block of a key block before `end`; 0 where key blocks are no pieces of pool blocks."""
    if PIECES:
        return tl.load(table + block // PIECES, mask=block < end, other=0)
    return 0


@triton.jit
def merged(stats_ptr, acc_ptr, base, parts, dtype: tl.constexpr, KV_HEADS: tl.constexpr, G: tl.constexpr, GM: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, TOGETHER: tl.constexpr):  # fmt: skip
    """h16 [GM, DP]: the answer from the scratch of a row's splits, the first of which is work `base`."""
    d = tl.arange(0, DP)
    g = tl.arange(0, GM)
    inside = (g < G)[:, None] & (d < D)[None, :]
    m = tl.full((GM,), NEG_INF, tl.float32)
    l = tl.zeros((GM,), tl.float32)  # noqa: E741
    acc = tl.zeros((GM, DP), tl.float32)
    for part in range(0, parts, TOGETHER):
        for i in tl.static_range(TOGETHER):
            # Parts past the last one are empty: they change nothing. .cg: other programs wrote them, no nearer cache knows.
            there = part + i < parts
            at = (base + (part + i) * KV_HEADS).to(tl.int64) * G
            stats = stats_ptr + 2 * at + g
            part_m = tl.load(stats, mask=there & (g < G), other=NEG_INF, cache_modifier=".cg")
            part_l = tl.load(stats + G, mask=there & (g < G), other=0.0, cache_modifier=".cg")
            pointers = acc_ptr + at * D + (g[:, None] * D + d[None, :])
            part_acc = tl.load(pointers, mask=there & inside, other=0.0, cache_modifier=".cg")
            m, l, acc = merge(m, l, acc, part_m, part_l, part_acc)  # noqa: E741
    return answer(acc, l, dtype)


@triton.jit
def ask_ahead(k_ptr, v_ptr, items_ptr, tables_ptr, works, width, window, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr):  # fmt: skip
    """Asks for the keys and values of a program's first item in L2, where all works (at most AHEAD) have room in it.

    Nobody writes them any more, but for the newest: the kernels before this one may still run.
    """
    work = tl.program_id(0)
    if (works <= AHEAD) & (work < works):
        fields = items_ptr + work // KV_HEADS * DECODE_WORDS
        table = tables_ptr + tl.load(fields + 1).to(tl.int64) * width
        position = tl.load(fields + 2)
        keys = tl.load(fields + 3) * (SPLIT_BLOCKS * KEYS) + tl.arange(0, SPLIT_BLOCKS * KEYS)
        keys = tl.minimum(tl.maximum(keys, position - window + 1), position)
        rows = (tl.load(table + keys // BLOCK).to(tl.int64) * KV_HEADS + work % KV_HEADS) * BLOCK + keys % BLOCK
        prefetch(k_ptr + rows * D, D * 2)
        prefetch(v_ptr + rows * D, D * 2)


@triton.jit(do_not_specialize=["window"])
def decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    items_ptr,
    tables_ptr,
    meta_ptr,
    stats_ptr,
    acc_ptr,
    arrived_ptr,
    scale,
    window,
    WIDTH_AT: tl.constexpr,
    COUNT_AT: tl.constexpr,
    KV_HEADS: tl.constexpr,
    G: tl.constexpr,
    GP: tl.constexpr,
    GM: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    BLOCK: tl.constexpr,
    PIECES: tl.constexpr,
    PAIRS: tl.constexpr,
    TOGETHER: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
):
    """q, out: h16 [R, KV_HEADS * G * D]. k, v: h16 [num_blocks, KV_HEADS, BLOCK, D]. tables: i32, rows of meta[WIDTH_AT].

    items: i32 [meta[COUNT_AT], DECODE_FIELDS]. Scratch by item and key/value head: stats f32 [2, G], acc f32 [G, D];
    arrived: i32, 0 before and after. window: keys that a query sees at most.
    GP: G padded for the matrix unit, GM: to a power of two; DP: D to a power of two. PIECES: key blocks in a
    pool block, 0 where they are no whole pieces of it. TOGETHER: splits fetched at once by a merge.
    AHEAD: see `ask_ahead`; 0: never.
    """
    # The step's numbers were copied before its first kernel began.
    works = tl.load(meta_ptr + COUNT_AT) * KV_HEADS
    width = tl.load(meta_ptr + WIDTH_AT)
    if AHEAD:
        ask_ahead(k_ptr, v_ptr, items_ptr, tables_ptr, works, width, window, KV_HEADS, D, BLOCK, AHEAD)
    begin(PDL)
    d = tl.arange(0, DP)
    g = tl.arange(0, GP)
    dtype = out_ptr.dtype.element_ty
    for work in range(tl.program_id(0), works, tl.num_programs(0)):
        item = work // KV_HEADS
        head = work % KV_HEADS
        fields = items_ptr + item * DECODE_WORDS
        row = tl.load(fields).to(tl.int64)
        table = tables_ptr + tl.load(fields + 1).to(tl.int64) * width
        position = tl.load(fields + 2)
        split = tl.load(fields + 3)
        first_key = tl.maximum(position - window + 1, 0)
        first = first_key // (SPLIT_BLOCKS * KEYS)
        last = position // (SPLIT_BLOCKS * KEYS)
        if split >= first:  # the plan is for the layer that looks back furthest
            start = tl.maximum(split * SPLIT_BLOCKS, first_key // KEYS)
            end = tl.minimum((split + 1) * SPLIT_BLOCKS, position // KEYS + 1)
            at = (row * KV_HEADS + head) * G * D
            q = tl.load(q_ptr + at + (g[:, None] * D + d[None, :]), mask=(g < G)[:, None] & (d < D)[None, :], other=0.0)
            m = tl.full((GP,), NEG_INF, tl.float32)
            lanes = tl.zeros((GP, KEYS), tl.float32)
            acc = tl.zeros((GP, DP), tl.float32)
            entry = table_entry(table, start, end, PIECES)
            for block in range(start, end):
                k = load_block(k_ptr, entry, table, block, head, position, KV_HEADS, BLOCK, PIECES, D, DP)
                v = load_block(v_ptr, entry, table, block, head, position, KV_HEADS, BLOCK, PIECES, D, DP)
                entry = table_entry(table, block + 1, end, PIECES)  # a step ahead: its latency is hidden
                t = tl.dot(q, k.T) * scale
                keys = keys_of(block)
                t = tl.where(((keys >= first_key) & (keys <= position))[None, :], t, NEG_INF)
                m, lanes, acc = take_block(t, v, m, lanes, acc, PAIRS)
            l = lane_sum(lanes)  # noqa: E741
            if first == last:
                o = answer(acc, l, dtype)
                tl.store(out_ptr + at + (g[:, None] * D + d[None, :]), o, mask=(g < G)[:, None] & (d < D)[None, :])
            else:
                mine = tl.cast(work, tl.int64) * G
                tl.store(stats_ptr + 2 * mine + g, m, mask=g < G)
                tl.store(stats_ptr + 2 * mine + G + g, l, mask=g < G)
                pointers = acc_ptr + mine * D + (g[:, None] * D + d[None, :])
                tl.store(pointers, acc, mask=(g < G)[:, None] & (d < D)[None, :])
                tl.debug_barrier()  # every thread has stored before one of them says so
                base = work - (split - first) * KV_HEADS
                parts = last - first + 1
                before = tl.atomic_add(arrived_ptr + base, 1, sem="acq_rel", scope="gpu")
                if before == parts - 1:
                    o = merged(stats_ptr, acc_ptr, base, parts, dtype, KV_HEADS, G, GM, D, DP, TOGETHER)
                    gm = tl.arange(0, GM)
                    to = out_ptr + at + (gm[:, None] * D + d[None, :])
                    tl.store(to, o, mask=(gm < G)[:, None] & (d < D)[None, :])
                    tl.store(arrived_ptr + base, 0)


@triton.jit(do_not_specialize=["window"])
def prefill_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    items_ptr,
    tables_ptr,
    meta_ptr,
    scale,
    window,
    WIDTH_AT: tl.constexpr,
    COUNT_AT: tl.constexpr,
    KV_HEADS: tl.constexpr,
    G: tl.constexpr,
    R: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    BLOCK: tl.constexpr,
    PIECES: tl.constexpr,
    PAIRS: tl.constexpr,
    PDL: tl.constexpr,
):
    """As `decode_kernel`. items: i32 [meta[COUNT_AT], PREFILL_FIELDS], of at most R // G tokens each. R: a power of two."""
    works = tl.load(meta_ptr + COUNT_AT) * KV_HEADS
    width = tl.load(meta_ptr + WIDTH_AT)
    begin(PDL)
    d = tl.arange(0, DP)
    r = tl.arange(0, R)
    programs = tl.num_programs(0)
    for turn in range(0, tl.cdiv(works, programs)):
        # Back and forth: who had the longest walk of a turn gets the shortest of the next one.
        mine = tl.program_id(0) if turn % 2 == 0 else programs - 1 - tl.program_id(0)
        work = turn * programs + mine
        if work < works:
            head = work % KV_HEADS
            fields = items_ptr + work // KV_HEADS * PREFILL_WORDS
            row = tl.load(fields).to(tl.int64)
            tokens = tl.load(fields + 1)
            table = tables_ptr + tl.load(fields + 2).to(tl.int64) * width
            position = tl.load(fields + 3)
            last = position + tokens - 1
            positions = position + r // G
            at = (row * KV_HEADS + head) * G * D
            offsets = (r // G * (KV_HEADS * G * D) + r % G * D)[:, None] + d[None, :]
            inside = (r < tokens * G)[:, None] & (d < D)[None, :]
            q = tl.load(q_ptr + at + offsets, mask=inside, other=0.0)
            total_m = tl.full((R,), NEG_INF, tl.float32)
            total_l = tl.zeros((R,), tl.float32)
            total = tl.zeros((R, DP), tl.float32)
            m = tl.full((R,), NEG_INF, tl.float32)
            lanes = tl.zeros((R, KEYS), tl.float32)
            acc = tl.zeros((R, DP), tl.float32)
            start = tl.maximum(position - window + 1, 0) // KEYS
            end = last // KEYS + 1
            stop = (start // SPLIT_BLOCKS + 1) * SPLIT_BLOCKS
            # Blocks in between are seen whole by every row.
            whole_start = tl.cdiv(tl.maximum(last - window + 1, 0), KEYS)
            whole_end = (position + 1) // KEYS
            entry = table_entry(table, start, end, PIECES)
            for block in range(start, end):
                k = load_block(k_ptr, entry, table, block, head, last, KV_HEADS, BLOCK, PIECES, D, DP)
                v = load_block(v_ptr, entry, table, block, head, last, KV_HEADS, BLOCK, PIECES, D, DP)
                entry = table_entry(table, block + 1, end, PIECES)
                t = tl.dot(q, k.T) * scale
                # A split is merged when the next one begins, in a branch that needs `t`. The product of `acc` is still under
                # way in a loop's turn until the one of `t` is waited for: Triton 3.6 (WGMMA) lets a branch that needs `acc`
                # alone read it before that.
                if (block < whole_start) | (block >= whole_end) | (block == stop):
                    if block == stop:
                        stop += SPLIT_BLOCKS
                        total_m, total_l, total = merge(total_m, total_l, total, m, lane_sum(lanes), acc)
                        m = tl.full((R,), NEG_INF, tl.float32)
                        lanes = tl.zeros((R, KEYS), tl.float32)
                        acc = tl.zeros((R, DP), tl.float32)
                    back = positions[:, None] - keys_of(block)[None, :]
                    t = tl.where((back >= 0) & (back < window), t, NEG_INF)
                m, lanes, acc = take_block(t, v, m, lanes, acc, PAIRS)
            total_m, total_l, total = merge(total_m, total_l, total, m, lane_sum(lanes), acc)
            tl.store(out_ptr + at + offsets, answer(total, total_l, out_ptr.dtype.element_ty), mask=inside)
