"""The engine on a card, beside vLLM on the same card in the same run: tokens/s with the guarantee on.

    python benchmarks/gpu_engine.py --vllm-site DIRECTORY --json FILE     (vLLM default and batch-invariant, then ours)
    python benchmarks/gpu_engine.py --users 1,32 --rounds 1 --no-vllm     (quick)
    python benchmarks/gpu_engine.py --no-vllm --users '' --no-prefill --profile 1,32,prefill
    python benchmarks/gpu_engine.py --merge A.json B.json --json FILE     (parts, where one run would take too long)

Models by their config.json with random weights; 170-token prompts and 128 answer tokens for each number of users, and a
prefill of 32 x 2000; every round has prompts of its own. Ours runs through `LLM` with prefix cache and chunked prefill on,
vLLM with its defaults (benchmarks/vllm_peer.py). Tokens/s: answer tokens by wall time, prefill included (for `prefill`:
prompt tokens); medians over rounds. `memory_ratio`: the time in which the card could read the weights once a step, and
the keys and values, at its measured copy bandwidth (bytes read and written), over the time taken. `flops_ratio`: the
same for matrix products and attention at the measured rate of a large bfloat16 product.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from queueproof import LLM, SamplingParams
from tests.support.gpu_cases import (
    MAX_MODEL_LEN,
    MAX_USERS,
    PREFILL_PROMPT,
    PREFILL_USERS,
    PROMPT,
    WARM_UP,
    Case,
    cases,
    prompts,
    round_prompts,
)
from tests.support.gpu_driver import make_backend
from tests.support.gpu_machine import machine, measure_limits
from tests.support.gpu_model import (
    BLOCK,
    PRESETS,
    SMALL_BLOCK,
    SyntheticModel,
    as_inputs,
    load_synthetic,
    matrix_bytes,
    preset,
    read_config,
    tiny_config,
)
from tests.support.gpu_profile import profile_decode, profile_lines, profile_prefill
from tests.support.gpu_report import VLLM, VLLM_BATCH_INVARIANT, Report, add_rows, merge, table

ENGINES = ("vllm", "vllm-batch-invariant", "queueproof")
PEER = Path(__file__).with_name("vllm_peer.py")
TINY_MAX_LEN = 512


def whole_numbers(text: str) -> list[int]:
    parts = [part for part in text.split(",") if part]
    numbers = [int(part) if part.isdecimal() else 0 for part in parts]
    if any(not 0 < n <= MAX_USERS for n in numbers):
        raise argparse.ArgumentTypeError(f"{text!r}: numbers of users are from 1 to {MAX_USERS}")
    return numbers


def profiles(text: str) -> list[str]:
    parts = [part for part in text.split(",") if part]
    whole_numbers(",".join(part for part in parts if part != "prefill"))
    return parts


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="qwen3-8b", help=f"{', '.join(PRESETS)}; several with commas")
    parser.add_argument("--layers", type=int, help="fewer than the model has, to try things out")
    parser.add_argument("--users", type=whole_numbers, default=[1, 8, 32, 64, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-prefill", action="store_true")
    parser.add_argument("--engines", default=",".join(ENGINES), help="some of them, with commas")
    parser.add_argument("--no-vllm", action="store_true")
    parser.add_argument("--vllm-site", type=Path, help="a directory that has vllm")
    parser.add_argument("--vllm-memory", type=float, default=0.7, help="its gpu_memory_utilization")
    parser.add_argument("--vllm-timeout", type=float, default=400, help="seconds, of each of the two")
    parser.add_argument("--arithmetic", default="tensorcore/1", help="of ours; several with commas")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--profile", type=profiles, default=[], help="decode steps of so many users, and `prefill`")
    parser.add_argument("--json", type=Path, help="write the report here, after every engine")
    parser.add_argument("--merge", type=Path, nargs="+", help="reports to merge; measures nothing")
    return parser


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[str]:
    """The engines to measure. Ends with the usage where the options do not go together."""
    engines = [e for e in options.engines.split(",") if not (options.no_vllm and e.startswith("vllm"))]
    for engine in engines:
        if engine not in ENGINES:
            parser.error(f"--engines {engine!r}: there are {', '.join(ENGINES)}")
    if any(e.startswith("vllm") for e in engines) and not (options.vllm_site and (options.vllm_site / "vllm").is_dir()):
        parser.error("--vllm-site must name a directory that has vllm; --no-vllm leaves it out")
    for name in options.model.split(","):
        if name not in (*PRESETS, "tiny"):
            parser.error(f"--model {name!r}: there are {', '.join(PRESETS)}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return engines


def describe(config: dict[str, Any], asked: list[Case]) -> dict[str, Any]:
    """What the figures of a model are derived from."""
    c = read_config(config)
    head = c.vocab_size * c.hidden_size
    return {
        "config": config,
        "matrix_bytes": matrix_bytes(c),
        "kv_bytes_per_token": 4 * c.num_layers * c.num_kv_heads * c.head_dim,
        "trunk_values": matrix_bytes(c) // 2 - head,
        "head_values": head,
        "attention_width": c.num_layers * c.num_heads * c.head_dim,
        "cases": {a.name: {"users": a.users, "prompt": a.prompt, "answer": a.answer} for a in asked},
        "engines": {},
    }


def generate(llm: LLM, ids: list[list[int]], answer: int) -> float:
    """Seconds."""
    params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True, detokenize=False)
    start = time.perf_counter()
    outputs = llm.generate(as_inputs(ids), params)
    seconds = time.perf_counter() - start
    assert all(len(o.outputs[0].token_ids) == answer for o in outputs), "an answer is not complete"
    return seconds


def measure_ours(
    config: dict[str, Any], name: str, arithmetic: str, asked: list[Case], options: argparse.Namespace
) -> dict[str, Any]:
    tiny = name == "tiny"
    start = time.perf_counter()
    backend = make_backend(arithmetic, options.device)
    model: SyntheticModel = load_synthetic(
        config, backend, TINY_MAX_LEN if tiny else MAX_MODEL_LEN, name=name, block_values=SMALL_BLOCK if tiny else BLOCK
    )
    loaded = time.perf_counter()
    vocab = model.config.vocab_size
    # Enough keys for the largest case, as much as vLLM would have: a cache is not what is compared.
    with LLM(model, max_num_seqs=8 if tiny else MAX_USERS) as llm:
        found: dict[str, Any] = {
            "load_seconds": loaded - start,
            "start_seconds": time.perf_counter() - loaded,
            "class": llm.engine.determinism_class,
            "kv_tokens": llm.engine.limits.num_blocks * llm.engine.limits.block_size,
            "max_num_batched_tokens": llm.engine.limits.max_tokens,
            "cases": {},
        }
        generate(llm, prompts("warm-up", [PROMPT] * WARM_UP, vocab), 16)
        for case in asked:
            llm.reset_stats()
            seconds = [generate(llm, round_prompts(case, turn, vocab), case.answer) for turn in range(options.rounds)]
            stats = llm.stats
            found["cases"][case.name] = {
                "seconds": seconds,
                "steps": stats.steps,
                "largest_batch": stats.largest_batch,
                "preemptions": stats.preemptions,
                "prefix_cache_hit_tokens": stats.prefix_cache_hit_tokens,
            }
            print(f"{arithmetic}: {case.name}: {[round(s, 4) for s in seconds]}", flush=True)
        if options.profile:
            found["profile"] = {}
        for what in options.profile:
            on_card = options.device == "cuda"
            if what == "prefill":
                rounds = [round_prompts(Case("profile", PREFILL_USERS, PREFILL_PROMPT, 1), i, vocab) for i in range(4)]
                result = profile_prefill(llm.engine, rounds, on_card)
            else:
                users = int(what)
                result = profile_decode(llm.engine, prompts(f"profile {users}", [PROMPT] * users, vocab), on_card)
            found["profile"][what] = result
            print("\n".join(profile_lines(f"{name}, {arithmetic}, profile {what}", result)), flush=True)
    return found


def measure_vllm(
    config: dict[str, Any], batch_invariant: bool, asked: list[Case], options: argparse.Namespace
) -> dict[str, Any]:
    """In a process of its own; what it had measured when it was stopped is kept."""
    vocab = config["vocab_size"]
    work = {
        "config": config,
        "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": MAX_USERS,
        "memory": options.vllm_memory,
        "warm_up": prompts("warm-up", [PROMPT] * WARM_UP, vocab),
        "cases": [
            {"name": c.name, "answer": c.answer, "rounds": [round_prompts(c, i, vocab) for i in range(options.rounds)]}
            for c in asked
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder, "work.json"), Path(folder, "result.json")
        path.write_text(json.dumps(work))
        command = [sys.executable, "-u", str(PEER), str(path), "--out", str(out), "--site", str(options.vllm_site)]
        command += ["--batch-invariant"] if batch_invariant else []
        environment = os.environ | {"PYTHONPATH": str(options.vllm_site)}
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        failed = None
        try:
            code = process.wait(options.vllm_timeout)
            failed = f"it ended with exit code {code}" if code else None
        except subprocess.TimeoutExpired:
            failed = f"it was stopped after {options.vllm_timeout:g} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # its own group: workers as well
                process.wait()
        found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"cases": {}}
    if failed:
        print(f"vllm{' batch-invariant' if batch_invariant else ''}: {failed}; {len(found['cases'])} cases measured")
        found["failed"] = failed
    return found


def measure(options: argparse.Namespace, engines: list[str]) -> Report:
    asked = cases(options.users, not options.no_prefill)
    report: Report = {"machine": machine("none"), "limits": None, "models": {}}

    def keep() -> None:
        add_rows(report)
        if options.json:
            options.json.write_text(json.dumps(report, indent=1) + "\n")

    for name in options.model.split(","):
        config = tiny_config() if name == "tiny" else preset(name, options.layers)
        entry = report["models"][name] = describe(config, asked)
        # The others first: this process takes no memory of the card before they are done.
        for engine, batch_invariant in (("vllm", False), ("vllm-batch-invariant", True)):
            if engine in engines:
                found = measure_vllm(config, batch_invariant, asked, options)
                entry["engines"][VLLM_BATCH_INVARIANT if batch_invariant else VLLM] = found
                keep()
        if "queueproof" not in engines:
            continue
        for arithmetic in options.arithmetic.split(","):
            entry["engines"][f"queueproof {arithmetic}"] = measure_ours(config, name, arithmetic, asked, options)
            gc.collect()
            if options.device == "cuda":
                import torch

                torch.cuda.empty_cache()
            keep()
    report["machine"] = machine(options.device)
    if options.device == "cuda":
        report["limits"] = measure_limits()
    keep()
    return report


def main(argv: list[str] | None = None) -> int:
    parser = arguments()
    options = parser.parse_args(argv)
    if options.merge:
        try:
            report = merge([json.loads(path.read_text()) for path in options.merge])
        except ValueError as error:
            parser.error(str(error))
        if options.json:
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    else:
        report = measure(options, check(parser, options))
    print(table(report))
    failed = [e["failed"] for m in report["models"].values() for e in m["engines"].values() if "failed" in e]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
