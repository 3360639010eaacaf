"""Every value of SamplingParams is checked, and an unknown name is an error."""

from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any

import numpy as np
import pytest

from queueproof.contract.errors import InvalidParameter
from queueproof.engine.sampling_params import SamplingParams

NOT_NUMBERS = [math.nan, math.inf, -math.inf, True, "1", None, [1.0], 10**400]
NOT_INTEGERS = [True, False, np.True_, np.array([1, 2]), 1.0, "1", math.nan, [1], -1]


@pytest.mark.parametrize("value", [*NOT_NUMBERS, -0.1, 1e-6, 1e6])
def test_temperature(value: Any) -> None:
    with pytest.raises(InvalidParameter, match="temperature="):
        SamplingParams(temperature=value)


@pytest.mark.parametrize(
    ("name", "outside"),
    [
        ("top_p", [0.0, -0.5, 1.01]),
        ("min_p", [-0.01, 1.01]),
        ("repetition_penalty", [0.0, -1.0, 101.0]),
        ("presence_penalty", [-2.1, 2.1]),
        ("frequency_penalty", [-2.1, 2.1]),
    ],
)
def test_numbers(name: str, outside: list[float]) -> None:
    for value in [*NOT_NUMBERS, *outside]:
        with pytest.raises(InvalidParameter, match=f"{name}="):
            SamplingParams(**{name: value})


@pytest.mark.parametrize("name", ["n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs"])
def test_integers(name: str) -> None:
    for value in NOT_INTEGERS:
        with pytest.raises(InvalidParameter, match=f"{name}="):
            SamplingParams(**{name: value})


@pytest.mark.parametrize(("name", "value"), [("n", 0), ("max_tokens", 0), ("seed", 1 << 64), ("n", 1 << 20)])
def test_integers_out_of_range(name: str, value: int) -> None:
    with pytest.raises(InvalidParameter, match=f"{name}="):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("name", ["ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "detokenize"])
@pytest.mark.parametrize("value", [0, 1, None, "yes"])
def test_switches(name: str, value: Any) -> None:
    with pytest.raises(InvalidParameter, match=f"{name}="):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("value", ["", ["a", ""], [1], b"a", 3, ["a", None], [["a"]]])
def test_stop(value: Any) -> None:
    with pytest.raises(InvalidParameter, match="stop="):
        SamplingParams(stop=value)


@pytest.mark.parametrize("value", [[-1], [True], ["1"], "12", 3, [1.5]])
def test_stop_token_ids(value: Any) -> None:
    with pytest.raises(InvalidParameter, match="stop_token_ids="):
        SamplingParams(stop_token_ids=value)


@pytest.mark.parametrize("value", [[1], {1: math.nan}, {1: 101.0}, {-1: 1.0}, {"1": 1.0}, {True: 1.0}, {1: True}, 5])
def test_logit_bias(value: Any) -> None:
    with pytest.raises(InvalidParameter, match="logit_bias="):
        SamplingParams(logit_bias=value)


def test_an_unknown_name_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(InvalidParameter, match="temprature=0.5.*known are n, temperature, top_k.*detokenize"):
        SamplingParams(temprature=0.5)  # type: ignore[call-arg]


def test_parameters_that_contradict_each_other() -> None:
    with pytest.raises(InvalidParameter, match="min_tokens=9.*max_tokens=8"):
        SamplingParams(min_tokens=9, max_tokens=8)
    with pytest.raises(InvalidParameter, match="stop strings need the text"):
        SamplingParams(stop="x", detokenize=False)


def test_values_are_kept_in_one_form() -> None:
    params = SamplingParams(
        temperature=1,
        stop="x",
        stop_token_ids=[5, 3, 5],
        max_tokens=None,
        logit_bias={np.int32(4): 1},
        seed=np.int64(7),
    )
    assert params.stops == ("x",) and params.stop_ids == {3, 5} and params.logit_bias == {4: 1.0}
    assert type(params.temperature) is float and type(params.seed) is int
    assert SamplingParams(stop=["b", "a", "b"]).stops == ("b", "a")
    assert math.copysign(1, SamplingParams(temperature=-0.0).temperature) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.seed = 8  # type: ignore[misc]


def test_copies() -> None:
    params = SamplingParams(seed=3, stop=["a"], logit_bias={1: 2.0})
    assert pickle.loads(pickle.dumps(params)) == params
    assert dataclasses.replace(params, n=2) == SamplingParams(seed=3, stop=["a"], logit_bias={1: 2.0}, n=2)
