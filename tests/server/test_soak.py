"""Many clients at once, with random arrivals, lengths, classes and early leaves: every answer is the one computed alone.

The minute-long version is benchmarks/server_soak.py.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from queueproof.kernels.registry import backend
from queueproof.models.loader import load_model
from tests.support.checkpoints import checkpoint, write_hf
from tests.support.server_process import ServerProcess
from tests.support.soak import Asked, Judge, Sizes, Soak, draw_pool, fetch_receipts, watch

pytestmark = pytest.mark.xdist_group("soak")  # one server for all of them

SECONDS, CLIENTS = 4.0, 64
SIZES = Sizes(vocabulary=288, longest_prompt=200, longest_answer=48, pool=60, rate=3.0)
# Room for 40 blocks of 16 tokens, which is less than two of the longest requests: the others are preempted.
POOL = str(40 * 16 * 256)
REPLAYED = 50


@dataclass(frozen=True)
class Run:
    """What a soak found. verdicts: of some receipts, on the server that made them and after a restart."""

    asked: Sequence[Asked]
    errors: Sequence[str]
    receipts: dict[str, Any]
    largest_batch: int
    counters: dict[str, float]
    verdicts: list[str]
    verdicts_after_restart: list[str]
    model: Path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("soak")
    model = write_hf(checkpoint(tied=False, hidden_size=144, intermediate_size=200), folder / "tiny")
    file = folder / "receipts.sqlite"
    options = ("--best-effort", "--max-num-seqs", "12", "--chunk", "64", "--kv-cache-memory", POOL, "--threads", "1")
    with ServerProcess(model, *options, log=folder / "log", receipts=file) as server:
        soak = Soak(server.url, draw_pool(1, SIZES), SIZES, CLIENTS, seed=1)
        largest_batch = asyncio.run(watch(server.url, soak.run(SECONDS)))
        counters = server.counters()
        receipts = asyncio.run(fetch_receipts(server.url, soak.asked))
        portable = sorted(i for i, receipt in receipts.items() if receipt["class"] != "best-effort")
        chosen = random.Random(1).sample(portable, REPLAYED)
        verdicts = replayed(server, chosen)
        assert server.stop() == 0, server.text
    options = ("--max-num-seqs", "3", "--threads", "2", "--policy", "random")
    with ServerProcess(model, *options, log=folder / "log2", receipts=file) as server:
        again = replayed(server, chosen)
    return Run(soak.asked, soak.errors, receipts, largest_batch, counters, verdicts, again, model)


def replayed(server: ServerProcess, receipts: Sequence[str]) -> list[str]:
    with server.client() as client:
        return [client.post("/v1/replay", json={"id": receipt}).json()["verdict"] for receipt in receipts]


def by_class(asked: Sequence[Asked], best_effort: bool) -> list[Asked]:
    return [item for item in asked if (item.draw.body["determinism"] == "best-effort") == best_effort]


def differences(run: Run, arithmetic: str) -> tuple[int, list[str]]:
    judge = Judge(load_model(run.model, backend(arithmetic, "cpu")), run.receipts)
    found = judge.differences(by_class(run.asked, arithmetic == "vendor"))
    return judge.compared, found


def test_every_answer_is_the_one_computed_alone(run: Run) -> None:
    assert not run.errors
    compared, found = differences(run, "ieee/1")
    assert not found, "\n".join(found[:3])
    assert compared > 100


def test_receipts_replay_on_their_server_and_after_a_restart(run: Run) -> None:
    """With other threads, another batch size, another policy and a larger pool."""
    assert run.verdicts == run.verdicts_after_restart == ["same"] * REPLAYED


def test_the_crowd_was_one(run: Run) -> None:
    """Witnesses: what the soak is meant to try did happen."""
    assert run.largest_batch >= 8
    assert sum(item.left for item in run.asked) > 10
    ieee = {name: value for name, value in run.counters.items() if 'arithmetic="ieee/1"' in name}
    count = {name.partition("{")[0].removeprefix("queueproof_"): value for name, value in ieee.items()}
    assert count["prefix_cache_hits_total"] > 500
    assert count["num_preemptions_total"] > 0
    assert {item.draw.body["stream"] for item in run.asked} == {True, False}
    assert {item.draw.path for item in run.asked} == {"/v1/completions", "/v1/chat/completions"}


def test_kernels_without_a_promise_are_caught(run: Run) -> None:
    """Negative control: under the same load, the libraries' own kernels give other answers than alone."""
    compared, found = differences(run, "vendor")
    assert compared > 20 and len(found) > compared // 10
