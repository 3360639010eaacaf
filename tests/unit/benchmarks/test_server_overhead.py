"""The benchmark of what HTTP costs runs, and measures what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "server_overhead.py"


def test_it_measures_both_ways_and_the_gaps(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    sizes = ("--users", "3", "--itl-users", "2", "--tokens", "24", "--prompt", "20", "--rounds", "2")
    command = [sys.executable, str(BENCHMARK), "--model", "paced:4", *sizes, "--json", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    assert [set(r) for r in found["rounds"]] == [{"http_tokens_per_s", "engine_tokens_per_s", "ratio"}] * 2
    for measured in found["rounds"]:
        # The device takes 4 ms for each of 24 steps, however the answer is asked for.
        assert 0 < measured["engine_tokens_per_s"] < 3 / 0.004 * 1.1
        assert 0 < measured["http_tokens_per_s"] < 3 / 0.004 * 1.1
    assert found["inter_token"]["median_ms"] > 3 and found["inter_token"]["p99_by_median"] >= 1
