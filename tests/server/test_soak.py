"""Many clients at once, with random arrivals, lengths, classes and early leaves: every answer is the one computed alone.

The minute-long version is benchmarks/server_soak.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from queueproof.kernels.registry import backend
from queueproof.models.loader import load_model
from tests.support.checkpoints import checkpoint, write_hf
from tests.support.crowd import Crowd, soak_server
from tests.support.soak import Sizes

pytestmark = pytest.mark.xdist_group("soak")  # one server for all of them

SIZES = Sizes(vocabulary=288, longest_prompt=200, longest_answer=48, pool=60, rate=3.0)
# Room for 40 blocks of 16 tokens, which is less than three of the longest requests: the others are preempted.
POOL = str(40 * 16 * 256)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = checkpoint(tied=False, hidden_size=144, intermediate_size=200)
    return write_hf(made, tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def crowd(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Crowd:
    options = ("--max-num-seqs", "12", "--chunk", "64", "--kv-cache-memory", POOL, "--threads", "1")
    after_restart = ("--max-num-seqs", "3", "--threads", "2", "--policy", "random")
    folder = tmp_path_factory.mktemp("soak")
    return soak_server(model, folder, options, after_restart, SIZES, seconds=4.0, clients=64, seed=1)


def test_every_answer_is_the_one_computed_alone(crowd: Crowd, model: Path) -> None:
    assert not crowd.errors
    compared, found = crowd.judge(load_model(model, backend("ieee/1", "cpu")))
    assert not found, "\n".join(found[:3])
    assert compared > 100


def test_receipts_replay_on_their_server_and_after_a_restart(crowd: Crowd) -> None:
    """With other threads, another batch size, another policy and a larger pool."""
    assert crowd.verdicts == crowd.verdicts_after_restart == ["same"] * 50


def test_the_crowd_was_one(crowd: Crowd) -> None:
    """Witnesses: what the soak is meant to try did happen."""
    assert crowd.largest_batch >= 8
    assert crowd.left > 10
    assert crowd.of_ieee1["prefix_cache_hits_total"] > 500
    assert crowd.of_ieee1["num_preemptions_total"] > 0
    assert {item.draw.body["stream"] for item in crowd.asked} == {True, False}
    assert {item.draw.path for item in crowd.asked} == {"/v1/completions", "/v1/chat/completions"}


def test_kernels_without_a_promise_are_caught(crowd: Crowd, model: Path) -> None:
    """Negative control: under the same load, the libraries' own kernels give other answers than alone."""
    compared, found = crowd.judge(load_model(model, backend("vendor", "cpu")))
    assert compared > 20 and len(found) > compared // 10
