"""The GPU benchmark's arithmetic, its merging of parts, its arguments, and a small run on the CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_engine, vllm_peer
from queueproof.engine.llm import LLM
from queueproof.kernels.registry import backend
from tests.support.gpu_cases import Case, cases, least_bytes, least_flops, prompts, round_prompts
from tests.support.gpu_model import SMALL_BLOCK, load_synthetic, tiny_config
from tests.support.gpu_profile import profile_prefill
from tests.support.gpu_report import add_rows, merge, table

LIMITS = {"copy_bytes_per_s": 1e6, "bf16_flops_per_s": 1e9}
SHAPE = {"matrix_bytes": 1000, "kv_bytes_per_token": 10, "trunk_values": 400, "head_values": 100, "attention_width": 8}


def report(engines: dict[str, list[float]], limits: dict[str, float] | None = None, gpu: str = "H") -> dict[str, Any]:
    """One model, one case of 2 users; seconds by engine."""
    measured = {name: {"cases": {"2 users": {"seconds": s}}} for name, s in engines.items()}
    case = {"2 users": {"users": 2, "prompt": 5, "answer": 4}}
    return {"machine": {"gpu": gpu}, "limits": limits, "models": {"m": SHAPE | {"cases": case, "engines": measured}}}


def test_ratios_are_those_of_the_medians() -> None:
    r = report({"queueproof x": [0.5, 0.1, 0.2], "vllm": [0.3], "vllm batch-invariant": [0.8]}, LIMITS)
    add_rows(r)
    ours, vllm, _ = r["models"]["m"]["rows"]
    assert ours["tokens_per_s"] == 8 / 0.2 and ours["ms_per_step"] == 50 and ours["rounds"] == 3
    assert ours["ratio_vllm_default"] == 0.3 / 0.2 and ours["ratio_vllm_batch_invariant"] == 0.8 / 0.2
    assert vllm["ratio_vllm_default"] is None
    # 4 steps of all matrices; 2 users that read 6, 7 and 8 keys after their prefill
    assert ours["memory_ratio"] == pytest.approx((4 * 1000 + 2 * 10 * (6 + 7 + 8)) / 1e6 / 0.2)
    # 8 tokens through the trunk, 4 rows of the head, 1 + … + 8 keys for each user
    assert ours["flops_ratio"] == pytest.approx(2 * (2 * 400 * 8 + 2 * 100 * 4 + 4 * 8 * 36) / 1e9 / 0.2)


def test_the_least_work_of_a_prefill() -> None:
    case = Case("prefill", 3, 10, 1)
    assert case.counted_tokens == 30
    assert least_bytes(case, 1000, 10) == 1000
    assert least_flops(case, 400, 100, 8) == 3 * (2 * 400 * 10 + 2 * 100 + 4 * 8 * 55)


def test_parts_are_merged() -> None:
    whole = merge([report({"vllm": [0.4]}), report({"queueproof x": [0.2]}, LIMITS)])
    rows = {row["engine"]: row for row in whole["models"]["m"]["rows"]}
    assert rows["queueproof x"]["ratio_vllm_default"] == 2
    assert rows["queueproof x"]["ratio_vllm_batch_invariant"] is None
    text = table(whole)
    assert "2.00" in text and "queueproof x" in text and "0.00 TB/s" in text
    with pytest.raises(ValueError, match="different cards: A, H"):
        merge([report({}), report({}, gpu="A")])
    other = report({})
    other["models"]["m"]["cases"]["2 users"]["prompt"] = 6
    with pytest.raises(ValueError, match="disagree about what '2 users' is"):
        merge([report({}), other])


def test_rounds_share_no_prompt() -> None:
    small, large = cases([1, 8])[1:]
    assert (large.name, large.users, large.prompt, large.answer) == ("prefill", 32, 2000, 1)
    first, second = round_prompts(small, 0, 1000), round_prompts(small, 1, 1000)
    assert first == round_prompts(small, 0, 1000)
    assert len({tuple(p) for p in first + second}) == 16 and {len(p) for p in first} == {170}


def test_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "engine.json"
    options = ["--device", "cpu", "--arithmetic", "ieee/1", "--model", "tiny", "--users", "2", "--rounds", "1"]
    assert gpu_engine.main([*options, "--no-vllm", "--no-prefill", "--profile", "2", "--json", str(out)]) == 0
    (row,) = json.loads(out.read_text())["models"]["tiny"]["rows"]
    assert row["engine"] == "queueproof ieee/1" and row["tokens_per_s"] > 0 and row["memory_ratio"] is None
    printed = capsys.readouterr().out
    assert "tiny, ieee/1, profile 2:" in printed and "2 users" in printed.splitlines()[-1]
    found = json.loads(out.read_text())["models"]["tiny"]["engines"]["queueproof ieee/1"]
    assert found["class"] == "portable" and found["cases"]["2 users"]["largest_batch"] == 2
    assert found["cases"]["2 users"]["prefix_cache_hit_tokens"] == 0
    assert gpu_engine.main(["--merge", str(out), str(out), "--json", str(tmp_path / "whole.json")]) == 0
    assert json.loads((tmp_path / "whole.json").read_text())["models"]["tiny"]["rows"] == [row]


def test_a_prefill_is_profiled() -> None:
    model = load_synthetic(tiny_config(), backend("ieee/1"), 64, block_values=SMALL_BLOCK)
    with LLM(model, max_num_seqs=4) as llm:
        rounds = [prompts(f"round {i}", [20, 30], 257) for i in range(4)]
        found = profile_prefill(llm.engine, rounds, on_card=False)
        assert not llm.engine.has_work and llm.stats.prompt_tokens == 150  # a first round, one timed, one profiled
    assert found["wall"] > 0 and any("llm" in f or "engine" in f for f, _, _ in found["host"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--users", "0"], "from 1 to 256"),
        (["--users", "257"], "from 1 to 256"),
        (["--users", "many"], "from 1 to 256"),
        (["--profile", "decode"], "from 1 to 256"),
        (["--model", "gpt-2", "--no-vllm"], "there are qwen3-8b"),
        (["--engines", "sglang"], "there are vllm"),
        (["--rounds", "0", "--no-vllm"], "at least 1"),
        ([], "--vllm-site must name a directory that has vllm"),
    ],
)
def test_arguments_are_checked(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu_engine.main(options)
    assert ended.value.code == 2 and message in capsys.readouterr().err


FAKE_VLLM = """
import os, time, types
__version__ = "0.0"
class SamplingParams:
    def __init__(self, temperature, max_tokens, ignore_eos, detokenize): self.max_tokens = max_tokens
class LLM:
    def __init__(self, folder, **options):
        import anthropic.types  # not installed: stubbed
        assert os.path.exists(folder + "/config.json") and options["max_num_seqs"] == 256
        self.invariant = os.environ["VLLM_BATCH_INVARIANT"]
        self.calls = 0
    def generate(self, prompts, params, use_tqdm):
        self.calls += 1
        if self.invariant == "1" and self.calls > 2:
            time.sleep(60)
        answer = types.SimpleNamespace(token_ids=[0] * params.max_tokens)
        return [types.SimpleNamespace(outputs=[answer]) for _ in prompts]
"""


def test_vllm_is_measured_in_a_process_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = tmp_path / "vllm" / "model_executor" / "model_loader"
    loader.mkdir(parents=True)
    for folder in (loader.parent, loader):
        (folder / "__init__.py").touch()
    (tmp_path / "vllm" / "__init__.py").write_text(FAKE_VLLM)
    (loader / "dummy_loader.py").write_text("def initialize_dummy_weights(model): ...")
    out = tmp_path / "engine.json"
    options = ["--vllm-site", str(tmp_path), "--engines", "vllm,vllm-batch-invariant", "--vllm-timeout", "5"]
    options += ["--model", "tiny", "--device", "cpu", "--users", "1,2", "--rounds", "1", "--json", str(out)]
    assert gpu_engine.main(options) == 1  # the second hangs in its second case
    engines = json.loads(out.read_text())["models"]["tiny"]["engines"]
    assert list(engines["vllm"]["cases"]) == ["1 users", "2 users", "prefill"] and engines["vllm"]["version"] == "0.0"
    assert list(engines["vllm batch-invariant"]["cases"]) == ["1 users"]
    assert engines["vllm batch-invariant"]["failed"] == "it was stopped after 5 s"
    assert "1 cases measured" in capsys.readouterr().out


def test_stubs_are_only_for_what_is_not_used() -> None:
    finder = vllm_peer.Stubs()
    assert finder.find_spec("xgrammar.x", None) is not None and finder.find_spec("torch", None) is None
    assert not any(name in sys.modules for name in vllm_peer.UNUSED)
