"""The bits suite of the GPU: whatever shares a step and however a sequence was cut, no bit of an answer moves.

    python benchmarks/gpu_bits.py [--arithmetic tensorcore/1,vendor] [--only rows_decode,chunks] [--json FILE]

Real layer sizes with few layers and random weights (tests/support/gpu_model.py); the checks are those of tests/gpu. For
`vendor` the sizes are coarser: it is the control that shows that the checks can find something. `accuracy` compares logits
with a float64 model and needs transformers. Exit code 1: a difference on an arithmetic that promises bits, a check that
found none on `vendor` at all, or a witness that is missing. --budget: seconds after which no further check is begun; what
was not run is named, and is no success.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from queueproof.contract.classes import DeterminismClass, arithmetic_class
from tests.support.gpu_accuracy import Accuracy, measure_accuracy
from tests.support.gpu_checks import CHECKS
from tests.support.gpu_driver import Found
from tests.support.gpu_lab import SIZES, Lab
from tests.support.gpu_machine import machine
from tests.support.gpu_model import BLOCK, SMALL_BLOCK, SUITE, parse_model, tiny_config

ACCURACY = "accuracy"
ACCURACY_MODEL, ACCURACY_TOKENS = "qwen3-0.6b:8", 512


def parse_names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in (*CHECKS, ACCURACY):
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join((*CHECKS, ACCURACY))}")
    return names


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--arithmetic", default="tensorcore/1,vendor", help="one or several, with commas")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default=",".join(SUITE), help="NAME[:LAYERS[:WINDOW]], several with commas")
    parser.add_argument("--sizes", choices=sorted(SIZES), help="default: full, and coarse for vendor")
    parser.add_argument("--only", type=parse_names, default=[*CHECKS, ACCURACY], help="names of checks, with commas")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--json", type=Path, help="write the results here, after every check")
    return parser


def accuracy_row(result: Accuracy, arithmetic: str, seconds: float) -> dict[str, Any]:
    return {
        "check": ACCURACY,
        "model": ACCURACY_MODEL,
        "arithmetic": arithmetic,
        "seconds": seconds,
        "failed": arithmetic != "vendor" and result.ours > result.torch_bf16,
        **dataclasses.asdict(result),
    }


def check_row(found: Found, name: str, model: str, arithmetic: str, seconds: float) -> dict[str, Any]:
    promised = arithmetic_class(arithmetic) is not DeterminismClass.BEST_EFFORT
    return {
        "check": name,
        "model": model,
        "arithmetic": arithmetic,
        "seconds": seconds,
        "compared": found.compared,
        "different": found.different,
        "inconclusive": found.inconclusive,
        "failed": found.inconclusive or (promised and found.different > 0),
        "witness": found.witness,
        "examples": found.examples,
    }


def line(row: dict[str, Any]) -> str:
    start = f"{row['arithmetic']:13} {row['model']:16} {row['check']:18} {row['seconds']:6.1f} s  "
    if row["check"] == ACCURACY:
        return start + f"error {row['ours']:.5f}, of torch's bfloat16 model {row['torch_bf16']:.5f}"
    verdict = "INCONCLUSIVE" if row["inconclusive"] else "FAILED" if row["failed"] else ""
    example = f"  ({row['examples'][0]})" if row["examples"] else ""
    return start + f"{row['different']:7} of {row['compared']:7} differ {verdict}{example}"


def conclude(rows: list[dict[str, Any]], not_run: list[str]) -> list[str]:
    """What is wrong, in words; empty if all is well."""
    wrong = [f"{r['arithmetic']} {r['model']} {r['check']}" for r in rows if r["failed"]]
    control = [r for r in rows if r["arithmetic"] == "vendor" and "different" in r]
    if control and not any(r["different"] for r in control):
        wrong.append("vendor: no check found a difference, so nothing shows that they can")
    return wrong + [f"not run: {name}" for name in not_run]


def main(argv: list[str] | None = None) -> int:
    parser = arguments()
    options = parser.parse_args(argv)
    try:
        models = {text: parse_model(text) for text in options.model.split(",")}
    except ValueError as error:
        parser.error(str(error))
    start, rows, not_run = time.perf_counter(), [], []

    def left() -> bool:
        return time.perf_counter() - start < options.budget

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        print(line(row), flush=True)
        if options.json:
            options.json.write_text(json.dumps({"machine": machine(options.device), "rows": rows}, indent=1) + "\n")

    for arithmetic in options.arithmetic.split(","):
        sizes = SIZES[options.sizes or ("coarse" if arithmetic == "vendor" else "full")]
        for text, config in models.items():
            names = [n for n in options.only if n != ACCURACY]
            lab = None
            for name in names:
                if not left():
                    not_run.append(f"{arithmetic} {text} {name}")
                    continue
                began = time.perf_counter()
                if lab is None:
                    lab = Lab(config, arithmetic, options.device, sizes, SMALL_BLOCK if text == "tiny" else BLOCK)
                add(check_row(CHECKS[name](lab), name, text, arithmetic, time.perf_counter() - began))
            if lab is not None:
                lab.close()
        if ACCURACY in options.only and left():
            began = time.perf_counter()
            config = tiny_config() if "tiny" in models else parse_model(ACCURACY_MODEL)
            block = SMALL_BLOCK if "tiny" in models else BLOCK
            torch_device = "cuda" if options.device == "cuda" else "cpu"
            tokens = 96 if "tiny" in models else ACCURACY_TOKENS
            result = measure_accuracy(config, arithmetic, options.device, torch_device, tokens, block)
            add(accuracy_row(result, arithmetic, time.perf_counter() - began))
        elif ACCURACY in options.only:
            not_run.append(f"{arithmetic} {ACCURACY}")
    compared = sum(r.get("compared", 0) for r in rows if r["arithmetic"] != "vendor")
    different = sum(r.get("different", 0) for r in rows if r["arithmetic"] != "vendor")
    print(f"{different} of {compared} comparisons differ where bits are promised; {time.perf_counter() - start:.0f} s")
    wrong = conclude(rows, not_run)
    for what in wrong:
        print("WRONG:", what)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
