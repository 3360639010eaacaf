"""vLLM's figures for benchmarks/gpu_engine.py: the same prompts, the same parameters, a process of its own.

    python benchmarks/vllm_peer.py WORK.json --out RESULT.json --site DIRECTORY [--batch-invariant]

WORK.json: {"config": config.json of the model, "max_model_len", "max_num_seqs", "memory": share of the card's, "warm_up":
[prompt, …], "cases": [{"name", "answer", "rounds": [[prompt, …], …]}, …]}, prompts as lists of token ids. The result is
written after every case, so what was measured is not lost with the process. --site: a directory that has vllm.

Weights are random; their values do not matter for the speed, but flat logits would, so they get a usual spread. Imports
that generating from token ids never calls are stubbed where the directory does not have them.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

# Of parts of vLLM that are imported and not used here: its server, grammars, other model formats.
UNUSED = (
    "anthropic",
    "fastsafetensors",
    "lmformatenforcer",
    "mcp",
    "outlines_core",
    "pycountry",
    "quack",
    "supervisor",
    "tilelang",
    "xgrammar",
)
SPREAD = 0.035  # uniform within it: a standard deviation of 0.02. vLLM's own random weights are within 0.001


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last in the line of finders: a package that is there is used."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in UNUSED else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__ = spec, [], spec.name
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def prepare(site: Path, batch_invariant: bool) -> None:
    """Everything that must be so before vLLM is imported."""
    os.environ.update(
        VLLM_NO_USAGE_STATS="1",
        DO_NOT_TRACK="1",
        HF_HUB_OFFLINE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_LOGGING_LEVEL="WARNING",
        VLLM_BATCH_INVARIANT="1" if batch_invariant else "0",
    )
    sys.path.insert(0, str(site))
    sys.meta_path.append(Stubs())


def measure(work: dict[str, Any], batch_invariant: bool, out: Path) -> None:
    import vllm
    from vllm.model_executor.model_loader import dummy_loader

    initialise = dummy_loader.initialize_dummy_weights
    dummy_loader.initialize_dummy_weights = lambda model, *a, **k: initialise(
        model, *a, **{**k, "low": -SPREAD, "high": SPREAD}
    )
    result: dict[str, Any] = {"version": vllm.__version__, "batch_invariant": batch_invariant, "cases": {}}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(work["config"]))
        start = time.perf_counter()
        llm = vllm.LLM(
            folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype="bfloat16",
            max_model_len=work["max_model_len"],
            max_num_seqs=work["max_num_seqs"],
            gpu_memory_utilization=work["memory"],
            seed=0,
        )
        result["start_seconds"] = time.perf_counter() - start

        def generate(prompts: list[list[int]], answer: int) -> float:
            params = vllm.SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True, detokenize=False)
            begin = time.perf_counter()
            outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
            seconds = time.perf_counter() - begin
            assert all(len(o.outputs[0].token_ids) == answer for o in outputs), "an answer is not complete"
            return seconds

        generate(work["warm_up"], 16)
        for case in work["cases"]:
            seconds = [generate(prompts, case["answer"]) for prompts in case["rounds"]]
            result["cases"][case["name"]] = {"seconds": seconds}
            out.write_text(json.dumps(result))
            print(f"vllm{' batch-invariant' if batch_invariant else ''}: {case['name']}: {seconds}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--site", type=Path, required=True)
    parser.add_argument("--batch-invariant", action="store_true")
    options = parser.parse_args()
    prepare(options.site, options.batch_invariant)
    measure(json.loads(options.work.read_text()), options.batch_invariant, options.out)


if __name__ == "__main__":
    main()
