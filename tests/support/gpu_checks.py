"""Checks of an executor: whatever shares a step, and however a sequence was cut, whole logits rows keep their bits.

Each returns a `Found`. Rows are compared with the same position computed alone, one token at a time, unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.gpu_driver import Found, joined, kept
from tests.support.gpu_lab import Lab
from tests.support.gpu_matrix import engine_matrix, executor_matrix


def rows_decode(lab: Lab) -> Found:
    """Every number of rows, each the next token of another sequence."""
    found, driver, sizes = Found("decode, rows in a step"), lab.driver(), lab.sizes
    n, rng = max(sizes.row_counts), np.random.default_rng(1)
    lengths = [2 + int(i) for i in rng.integers(0, sizes.context - 1, n)]
    before = driver.graph_replays
    with driver.sequences(lab.ids("decode", lengths)) as sequences:
        alone = []
        for s in sequences:
            driver.run([(s, len(s.ids) - 1)])
            alone.append(kept(driver.run([(s, 1)])))
        expected = joined(alone)
        for m in sizes.row_counts:
            chosen = rng.permutation(n)[:m]
            parts = []
            for i in chosen:
                sequences[i].done -= 1
                parts.append((sequences[i], 1))
            found.rows(f"{m} rows", driver.run(parts), expected[chosen])
    found.saw(largest_step=n)
    if lab.arithmetic == "tensorcore/1":
        found.saw(graph_replays=driver.graph_replays - before)
    return found


def rows_prefill(lab: Lab) -> Found:
    """Every number of rows, consecutive tokens of one sequence, against decoding."""
    found, driver = Found("prefill, rows in a step"), lab.driver()
    expected = lab.long_rows
    for m in lab.sizes.row_counts:
        if m <= lab.sizes.long:
            with driver.sequences([lab.long_ids[:m]]) as (s,):
                found.rows(f"{m} rows", driver.run([(s, m)], "all"), expected[:m])
            found.saw(prefills=1)
    return found


def middle_rows(lab: Lab) -> Found:
    """Decode rows and a piece of a prefill together, with totals around 256: where others change a kernel's shape."""
    found, driver, sizes = Found(f"mixtures around {lab.sizes.middle} rows"), lab.driver(), lab.sizes
    expected, most = lab.long_rows, sizes.middle // 2
    for total in range(sizes.middle - 6, sizes.middle + 7):
        for decodes in (1, most // 3, most):
            piece = total - decodes
            # The decode rows are positions of the long sequence, too, each in a sequence of its own.
            at = [int(i) for i in np.linspace(1, min(sizes.context, sizes.long - 1), decodes)]
            with driver.sequences([*(lab.long_ids[: p + 1] for p in at), lab.long_ids[:piece]]) as sequences:
                driver.fill([(s, p) for s, p in zip(sequences, at, strict=False)])
                parts = [(s, 1) for s in sequences[:-1]] + [(sequences[-1], piece)]
                got = driver.run(parts, "all")
                found.rows(f"{decodes} + {piece}", got, joined([expected[at], expected[:piece]]))
            found.saw(mixed_steps=1)
    return found


def growing_neighbour(lab: Lab) -> Found:
    """A decoding victim beside an unrelated prefill that grows token by token."""
    found, driver, sizes = Found("a growing prefill beside a decode"), lab.driver(), lab.sizes
    expected, other = lab.long_rows, lab.ids("neighbour", [sizes.neighbour])[0]
    with driver.sequences([other]) as (s,):
        neighbour = joined([kept(driver.run([(s, 1)])) for _ in other])
    for at in (sizes.context // 3, sizes.context, min(513, sizes.long - 1)):
        with driver.sequences([lab.long_ids]) as (victim,):
            driver.run([(victim, at)])
            for n in range(1, sizes.neighbour + 1):
                victim.done = at
                with driver.sequences([other]) as (s,):
                    got = driver.run([(victim, 1), (s, n)], "all")
                    found.rows(f"{n} beside position {at}", got, joined([expected[at : at + 1], neighbour[:n]]))
                found.saw(mixed_steps=1)
    return found


def copies(lab: Lab) -> Found:
    """Identical requests at once, prefill and decode, several times over."""
    found, driver, sizes = Found("identical requests at once"), lab.driver(), lab.sizes
    expected, prompt = lab.long_rows, min(20, sizes.context)
    for n in sizes.copies:
        for _ in range(sizes.repeats):
            with driver.sequences([lab.long_ids[: prompt + 8]] * n) as sequences:
                for position in range(prompt - 1, prompt + 8):
                    count = prompt if position == prompt - 1 else 1
                    got = driver.run([(s, count) for s in sequences])
                    found.rows(f"{n} copies, position {position}", got, joined([expected[position : position + 1]] * n))
            found.saw(repeats=1)
    return found


def chunks(lab: Lab) -> Found:
    """One long prompt, cut in pieces of several sizes."""
    found, driver, ids = Found("chunk sizes"), lab.driver(), lab.long_ids
    expected = lab.long_rows
    for chunk in lab.sizes.chunk_sizes:
        with driver.sequences([ids]) as (s,):
            while s.done < len(ids):
                first = s.done
                got = driver.run([(s, min(chunk, len(ids) - first))], "all")
                found.rows(f"{chunk} from {first}", got, expected[first : s.done])
        found.saw(prefills=1)
    return found


def boundaries(lab: Lab) -> Found:
    """Prompts that end at the edges of blocks and splits: in one prefill, and with the last token decoded."""
    found, driver, rows = Found("prompts at block boundaries"), lab.driver(), lab.long_rows
    for edge in lab.sizes.boundaries:
        for length in (edge - 1, edge, edge + 1):
            expected = rows[length - 1 : length]
            for first in (length, length - 1):
                with driver.sequences([lab.long_ids[:length]]) as (s,):
                    got = driver.run([(s, first)])
                    if first < length:
                        got = driver.run([(s, 1)])
                    found.rows(f"{length} tokens, {first} of them at once", got, expected)
            found.saw(prompts=1)
    return found


def cache_hits(lab: Lab) -> Found:
    """A sequence that starts from the blocks of another: none, some or all but one token of it computed before."""
    found, driver, ids = Found("cache hits"), lab.driver(), lab.long_ids
    expected = lab.long_rows
    size = driver.limits.block_size
    with driver.sequences([ids]) as (first,):
        driver.run([(first, len(ids))])
        for blocks in sorted({1, 2, 3, len(ids) // size // 2, (len(ids) - 1) // size}):
            hit = blocks * size
            s = driver.sequence(ids, first, hit)
            found.rows(f"{hit} tokens found", driver.run([(s, len(ids) - hit)], "all"), expected[hit:])
            driver.drop(s, hit)
            found.saw(hit_tokens=hit)
    return found


def recompute(lab: Lab) -> Found:
    """Preemption: blocks are given away in the middle of an answer, and all of it is computed again beside others."""
    found, driver, sizes = Found("eviction and recompute"), lab.driver(), lab.sizes
    prompt, answer = sizes.context // 2, sizes.context // 4
    expected, others = lab.long_rows, lab.ids("others", [sizes.context] * 8)
    for again in range(1, answer):
        with driver.sequences([lab.long_ids, *others]) as (s, *rest):
            driver.run([(s, prompt)])
            for _ in range(again):
                driver.run([(s, 1)])
            ids = s.ids
            driver.drop(s)
            new = driver.sequence(ids)
            end = prompt + again
            got = driver.run([(new, end), *((r, 8 + i) for i, r in enumerate(rest))])
            found.rows(f"recomputed at {end}", got[:1], expected[end - 1 : end])
            got = driver.run([*((r, 1) for r in rest), (new, 1)])
            found.rows(f"decoded after it at {end}", got[-1:], expected[end : end + 1])
            driver.drop(new)
        found.saw(evictions=1)
    return found


def block_sizes(lab: Lab) -> Found:
    """Other block sizes of the pool: prefill in one piece, and decode from there."""
    found, ids = Found("block sizes"), lab.long_ids
    expected = lab.long_rows
    for size in lab.sizes.block_sizes:
        driver = lab.driver(size)
        with driver.sequences([ids]) as (s,):
            half = len(ids) // 2 + 1
            found.rows(f"block size {size}, prefill", driver.run([(s, half)], "all"), expected[:half])
            for position in range(half, min(half + 40, len(ids))):
                found.rows(f"block size {size}, decode", driver.run([(s, 1)]), expected[position : position + 1])
        found.saw(block_sizes=1)
    return found


def graphs(lab: Lab) -> Found:
    """Steps as CUDA graphs against the same steps launched kernel by kernel."""
    found, graph, eager = Found("graph or no graph"), lab.driver(), lab.driver(graphs=False)
    counts = [m for m in lab.sizes.row_counts if m in (1, 2, 3, 8, 9, 17, 64, 100, 256)]
    lengths = [2 + i % lab.sizes.context for i in range(max(counts))]
    ids, before, eagerly = lab.ids("graphs", lengths), graph.graph_replays, eager.graph_replays
    with graph.sequences(ids) as ours, eager.sequences(ids) as theirs:
        for m in counts:
            for n in (1, 2):  # decode, and pieces of two tokens
                for s in (*ours, *theirs):
                    s.done = 0
                got = graph.run([(s, min(n, len(s.ids))) for s in ours[:m]])
                found.rows(f"{m} x {n}", kept(got), eager.run([(s, min(n, len(s.ids))) for s in theirs[:m]]))
    found.saw(steps=len(counts))
    if lab.arithmetic == "tensorcore/1":
        found.saw(graph_replays=graph.graph_replays - before)
        assert eager.graph_replays == eagerly == 0, "the executor without graphs used one"
    return found


CHECKS: dict[str, Callable[[Lab], Found]] = {
    "rows_decode": rows_decode,
    "rows_prefill": rows_prefill,
    "middle_rows": middle_rows,
    "growing_neighbour": growing_neighbour,
    "copies": copies,
    "chunks": chunks,
    "boundaries": boundaries,
    "cache_hits": cache_hits,
    "recompute": recompute,
    "block_sizes": block_sizes,
    "graphs": graphs,
    "executor_matrix": executor_matrix,
    "engine_matrix": engine_matrix,
}
