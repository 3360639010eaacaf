"""The report of benchmarks/gpu_engine.py: figures derived from seconds, reports merged, a table.

A report is {"machine", "limits", "models": {name: {"matrix_bytes", "kv_bytes_per_token", "trunk_values", "head_values",
"attention_width", "cases": {name: {"users", "prompt", "answer"}}, "engines": {name: {…, "cases": {name: {"seconds": [...]}}}},
"rows": [...]}}}. `rows` follow from the rest.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tests.support.gpu_cases import Case, least_bytes, least_flops

VLLM, VLLM_BATCH_INVARIANT = "vllm", "vllm batch-invariant"
RATIOS = {"ratio_vllm_default": VLLM, "ratio_vllm_batch_invariant": VLLM_BATCH_INVARIANT}
Report = dict[str, Any]


def add_rows(report: Report) -> None:
    """Derives `rows` of every model: medians, and ratios to the other engines and to the card."""
    for model in report["models"].values():
        model["rows"] = [
            row
            for name, case in model["cases"].items()
            for row in _rows_of_case(model, Case(name, **case), report["limits"])
        ]


def _rows_of_case(model: dict[str, Any], case: Case, limits: dict[str, float] | None) -> list[dict[str, Any]]:
    medians = {
        name: statistics.median(engine["cases"][case.name]["seconds"])
        for name, engine in model["engines"].items()
        if case.name in engine["cases"]
    }
    rows = []
    for name, seconds in medians.items():
        row: dict[str, Any] = {
            "case": case.name,
            "engine": name,
            "rounds": len(model["engines"][name]["cases"][case.name]["seconds"]),
            "seconds": seconds,
            "tokens_per_s": case.counted_tokens / seconds,
            "ms_per_step": 1e3 * seconds / case.answer,
        }
        for ratio, other in RATIOS.items():
            row[ratio] = medians[other] / seconds if other in medians and name not in RATIOS.values() else None
        row |= {"memory_ratio": None, "flops_ratio": None}
        if limits is not None:
            read = least_bytes(case, model["matrix_bytes"], model["kv_bytes_per_token"])
            flops = least_flops(case, model["trunk_values"], model["head_values"], model["attention_width"])
            row["memory_ratio"] = read / limits["copy_bytes_per_s"] / seconds
            row["flops_ratio"] = flops / limits["bf16_flops_per_s"] / seconds
        rows.append(row)
    return rows


def merge(reports: Sequence[Report]) -> Report:
    """Parts of one measurement; engines and cases of later ones win. Raises ValueError for parts of different cards."""
    cards = {r["machine"]["gpu"] for r in reports}
    if len(cards) > 1:
        raise ValueError(f"the parts were measured on different cards: {', '.join(map(str, sorted(map(str, cards))))}")
    whole: Report = {"machine": reports[-1]["machine"], "limits": None, "models": {}}
    for report in reports:
        whole["limits"] = report["limits"] or whole["limits"]
        for name, model in report["models"].items():
            into = whole["models"].setdefault(name, model | {"cases": {}, "engines": {}})
            for case, what in model["cases"].items():
                if into["cases"].setdefault(case, what) != what:
                    raise ValueError(f"{name}: the parts disagree about what {case!r} is")
            for engine, found in model["engines"].items():
                before = into["engines"].get(engine, {"cases": {}})
                into["engines"][engine] = before | found | {"cases": before["cases"] | found["cases"]}
    add_rows(whole)
    return whole


HEADER = ("case", "engine", "tok/s", "ms/step", "x vLLM", "x batch-inv.", "of memory", "of FLOPs")


def table(report: Report) -> str:
    """Fixed-width lines, one for each engine and case."""
    lines = []
    for name, model in report["models"].items():
        cells = [HEADER] + [
            (
                row["case"],
                row["engine"],
                f"{row['tokens_per_s']:.1f}",
                f"{row['ms_per_step']:.3f}",
                *(_or_dash(row[r], ".2f") for r in (*RATIOS, "memory_ratio", "flops_ratio")),
            )
            for row in model["rows"]
        ]
        widths = [max(len(line[i]) for line in cells) for i in range(len(HEADER))]
        lines.append(f"{name}")
        lines += ["  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))) for line in cells]  # fmt: skip
    if report["limits"] is not None:
        limits = report["limits"]
        copy, flops = limits["copy_bytes_per_s"] / 1e12, limits["bf16_flops_per_s"] / 1e12
        lines.append(f"measured: copy {copy:.2f} TB/s (read and written), bfloat16 products {flops:.0f} TFLOP/s")
    return "\n".join(lines)


def _or_dash(value: float | None, kind: str) -> str:
    return "-" if value is None else format(value, kind)
