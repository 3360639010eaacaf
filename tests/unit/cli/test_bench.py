from __future__ import annotations

import ctypes

import numpy as np
import pytest
from typer.testing import CliRunner

from queueproof.cli import machine
from queueproof.cli.bench import Work
from queueproof.cli.machine import MachineLimits
from queueproof.cli.main import app
from queueproof.models.gguf_config import from_gguf
from queueproof.models.store import resolve
from queueproof.models.weights.gguf_file import read_gguf


def test_the_read_loop_reads_every_word() -> None:
    words = np.random.default_rng(1).integers(0, 1 << 62, 8 * machine.READ_STREAMS * 10)
    got = machine._compiled()["read"](words.ctypes.data, 10)
    assert ctypes.c_int64(got).value == np.bitwise_xor.reduce(words)


@pytest.mark.parametrize("steps", [1, 2, 30])
def test_the_multiply_add_loop_does_what_it_counts(steps: int) -> None:
    chains = np.arange(machine.FMA_CHAINS, dtype=np.float32)
    for _ in range(steps):
        chains = chains * np.float32(0.5) + np.float32(1)  # every step is exact, or has one rounding on both sides
    assert machine._compiled()["fma"](steps) == pytest.approx(float(chains.sum()), rel=1e-6)


def test_the_dot_loop_does_what_it_counts() -> None:
    if "dot" in machine._compiled():  # only where the CPU has the instruction
        assert machine._compiled()["dot"](5) == float(sum(c + 5 * 2 for c in range(machine.FMA_CHAINS)))


def test_measured_limits_are_plausible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "READ_BYTES", 1 << 22)
    monkeypatch.setattr(machine, "FMA_STEPS", 100_000)
    limits = machine.measure(2)
    assert limits.threads == 2
    assert 1e8 < limits.read_bytes_per_s < 1e13 and 1e8 < limits.flops_per_s < 1e15
    assert (limits.dot_flops_per_s > 0) == ("dot" in machine._compiled())


def test_the_weights_of_smollm2_are_counted() -> None:
    config = from_gguf(read_gguf(resolve("smollm2-135m")), "bfloat16")
    work = Work(config.trunk_weights, config.head_weights, 2)
    assert work.trunk_weights + work.head_weights == 134_479_872  # 134,515,008 without the 61 norms of 576
    limits = MachineLimits(read_bytes_per_s=2.0 * 134_479_872, flops_per_s=2.0 * 134_479_872, threads=1)
    assert work.seconds_at_least(limits, steps=1, tokens=1, drawn=1) == (1.0, 1.0)
    assert work.seconds_at_least(limits, steps=1, tokens=24, drawn=24) == (1.0, 24.0)


@pytest.mark.parametrize("users", ["", "0", "1,,2", "many", "1000"])
def test_concurrency_that_is_no_list_of_numbers(users: str) -> None:
    result = CliRunner().invoke(app, ["bench", "--concurrency", users])
    assert result.exit_code == 2
    assert "concurrency" in result.stderr
