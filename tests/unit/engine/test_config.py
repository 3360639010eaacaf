"""Engine options, and the sizes that follow from them."""

from __future__ import annotations

from typing import Any

import pytest

from queueproof.contract.errors import EngineError, InvalidParameter, UnsupportedArithmetic, UsageError
from queueproof.engine.config import EngineConfig, limits_of, thread_count
from queueproof.engine.engine import Engine
from queueproof.engine.llm import LLM
from queueproof.kernels.ops import Defaults
from tests.support.fake_backend import load_fake
from tests.support.late_backend import load_late


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("arithmetic", [1, b"vendor"]),
        ("device", [0]),
        ("threads", [0, -1, True, 1.5, "2", 1025]),
        ("max_model_len", [0, -5, True, 2.0]),
        ("max_num_seqs", [0, -1, True, (1 << 16) + 1]),
        ("max_num_batched_tokens", [0, 1.0, (1 << 20) + 1]),
        ("prefill_tokens_beside_decode", [0, -1, True, 1.0, (1 << 20) + 1]),
        ("block_size", [0, 8, 17, 24, 1 << 24]),
        ("kv_cache_memory", [0, -1, 1e9]),
        ("num_blocks", [0, -1, True, 1 << 31]),
        ("kv_cache_share", [0, -0.5, 1.01, float("nan"), True, "half"]),
        ("enable_prefix_caching", [1, None]),
        ("async_scheduling", [1, None]),
        ("policy", ["lifo", None, 3]),
        ("policy_seed", [-1, 1 << 64, None]),
        ("num_speculative_tokens", [-1, 65, True]),
    ],
)
def test_values_are_checked(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidParameter, match=f"{name}="):
            EngineConfig(**{name: value})


def test_an_unknown_option_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(InvalidParameter, match="gpu_memory_utilization=0.9.*known are arithmetic, device.*"):
        LLM(load_fake(), gpu_memory_utilization=0.9)


def test_one_way_to_say_the_size_of_the_cache() -> None:
    with pytest.raises(InvalidParameter, match="not both"):
        EngineConfig(num_blocks=4, kv_cache_memory=1 << 20)


def test_a_share_of_the_memory() -> None:
    model = load_fake()
    per_block = model.backend.kv_bytes_per_token(model.forward.kv_shape) * 16
    model.backend.defaults = lambda: Defaults(64, 512, 16, per_block * 100)  # type: ignore[method-assign]
    for share, blocks in ((1.0, 100), (0.5, 50), (1e-9, 1)):
        assert limits_of(EngineConfig(kv_cache_share=share), model).num_blocks == blocks


def test_the_cache_in_bytes() -> None:
    model = load_fake()
    per_block = model.backend.kv_bytes_per_token(model.forward.kv_shape) * 32
    limits = limits_of(EngineConfig(kv_cache_memory=per_block * 5 + 1, block_size=32), model)
    assert limits.num_blocks == 5
    with pytest.raises(UsageError, match="hold no block of 32 keys"):
        limits_of(EngineConfig(kv_cache_memory=per_block - 1, block_size=32), model)


def test_sizes_that_are_not_given_are_those_of_the_device() -> None:
    model = load_fake(max_len=64)
    model.backend.defaults = lambda: Defaults(7, 300, 32, 20 * 32 * 8)  # type: ignore[method-assign]
    limits = limits_of(EngineConfig(), model)
    assert (limits.max_seqs, limits.max_tokens, limits.block_size) == (7, 300, 32)
    assert limits.num_blocks == 14  # two for each sequence
    assert limits_of(EngineConfig(max_num_seqs=40), model).num_blocks == 20  # what there is memory for
    given = limits_of(EngineConfig(max_num_seqs=2, max_num_batched_tokens=9, block_size=16), model)
    assert (given.max_seqs, given.max_tokens, given.block_size) == (2, 9, 16)


def test_a_step_on_an_asynchronous_device_is_drawn_in_one_piece() -> None:
    many = EngineConfig(max_num_seqs=1000, max_num_batched_tokens=4096)
    assert limits_of(many, load_fake()).max_logit_rows == 256
    assert limits_of(many, load_late()).max_logit_rows == 1000


def test_without_a_size_the_cache_holds_all_sequences_in_full() -> None:
    limits = limits_of(EngineConfig(max_num_seqs=3, max_model_len=100), load_fake())
    assert limits.num_blocks == 3 * 7 and limits.max_model_len == 100 and limits.max_blocks_per_seq == 7


def test_the_context_is_that_of_the_model() -> None:
    assert limits_of(EngineConfig(), load_fake(max_len=300)).max_model_len == 300
    with pytest.raises(InvalidParameter, match="max_model_len=301.*has 300 positions"):
        Engine(load_fake(max_len=300), EngineConfig(max_model_len=301))


def test_threads() -> None:
    assert thread_count(EngineConfig(threads=3)) == 3
    assert thread_count(EngineConfig()) >= 1


def test_weights_belong_to_one_arithmetic() -> None:
    with pytest.raises(InvalidParameter, match="arithmetic='ieee/1 on cpu'.*packed for vendor on cpu"):
        Engine(load_fake(arithmetic="vendor"), EngineConfig())
    with LLM(load_fake(arithmetic="vendor")) as llm:  # a loaded model brings its own
        assert llm.engine.determinism_class == "best-effort"
    with LLM(load_fake()) as llm:
        assert llm.engine.determinism_class == "portable"


def test_an_arithmetic_without_a_backend() -> None:
    with pytest.raises(UnsupportedArithmetic, match="ieee/9"):
        LLM("model", arithmetic="ieee/9")


def test_the_type_of_a_loaded_model_is_settled() -> None:
    with pytest.raises(InvalidParameter, match="dtype='float16'.*loaded already"):
        LLM(load_fake(), dtype="float16")


def test_a_cache_that_no_memory_holds() -> None:
    model = load_fake()

    def none_left(*_: object) -> None:
        raise MemoryError("Unable to allocate 1.00 PiB")

    model.backend.executor = none_left  # type: ignore[assignment, method-assign]
    with pytest.raises(EngineError, match="1.00 PiB.*lower num_blocks"):
        Engine(model, EngineConfig(kv_cache_memory=1 << 100))
