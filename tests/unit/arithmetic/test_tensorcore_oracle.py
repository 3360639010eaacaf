"""The layers, attention and sampling of `tensorcore/1`: near f64, and the same whatever else is computed with them."""

from __future__ import annotations

import numpy as np
import pytest

from queueproof.arithmetic.bits import Dtype, round16
from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.oracle import sampling as ieee_sampling
from queueproof.arithmetic.oracle.tensorcore import layers, mma, sampling
from queueproof.arithmetic.oracle.tensorcore.attention import Unit, attention
from queueproof.arithmetic.oracle.tensorcore.backend import OracleTensorcoreBackend
from queueproof.arithmetic.oracle.tensorcore.numbers import exp2
from queueproof.arithmetic.tensorcore1 import FAMILIES
from queueproof.kernels.canary import digest
from tests.support.tiny import Sequence, TinyConfig, build, limits, step

SM90 = FAMILIES["sm90"]
UNIT = Unit(SM90, "bfloat16", exp2)


def random16(shape: tuple[int, ...], seed: int, dtype: Dtype = "bfloat16") -> np.ndarray:
    return round16(np.random.default_rng(seed).standard_normal(shape).astype(np.float32), dtype)


@pytest.mark.parametrize("scale", [1.0, 2.0**60, 2.0**-60, 2.0**100, 2.0**-100])
def test_norm_is_accurate_at_any_scale(scale: float) -> None:
    x = (np.random.default_rng(0).standard_normal((5, 300)) * scale).astype(np.float32)
    weight = np.linspace(0.5, 1.5, 300, dtype=np.float32)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True)) * weight
    if 2.0**-60 <= scale <= 2.0**60:  # beyond, the mean of squares is no f32
        np.testing.assert_allclose(layers.norm(x, weight, 0.0), want, rtol=1e-6)
    assert same_bits(layers.norm(x[2:3], weight, 1e-5), layers.norm(x, weight, 1e-5)[2:3])


def test_norm_of_zeros_and_of_one_large_value() -> None:
    x = np.zeros((2, 64), np.float32)
    x[1, 7] = 2.0**63
    got = layers.norm(x, np.ones(64, np.float32), 1e-5)
    assert not got[0].any()
    assert got[1, 7] == 8 and np.count_nonzero(got[1]) == 1


def test_linear_is_rounded_and_the_head_is_not() -> None:
    x, w, bias = random16((3, 72), 1), random16((10, 72), 2), np.linspace(-1, 1, 10, dtype=np.float32)
    chain = mma.chain(x, w, SM90, "bfloat16")
    assert same_bits(layers.logits(x, w, None, SM90, "bfloat16"), chain)
    assert same_bits(layers.logits(x, w, bias, SM90, "bfloat16"), chain + bias)
    assert same_bits(layers.linear(x, w, bias, SM90, "bfloat16"), round16(chain + bias, "bfloat16"))


def f64_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, positions: np.ndarray, window: int | None) -> np.ndarray:
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k.astype(np.float64), group, axis=1), np.repeat(v.astype(np.float64), group, axis=1)
    s = np.einsum("thd,lhd->thl", q.astype(np.float64), k) / np.sqrt(q.shape[2])
    keys = np.arange(len(k))
    allowed = (keys <= positions[:, None]) & (keys > positions[:, None] - (window or len(k)))
    s = np.where(allowed[:, None, :], s, -np.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return np.einsum("thl,lhd->thd", p / p.sum(axis=-1, keepdims=True), v)


@pytest.mark.parametrize("window", [None, 1, 50, 600])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_attention_is_near_f64(window: int | None, dtype: Dtype) -> None:
    positions = np.array([0, 1, 62, 63, 64, 65, 511, 512, 513, 700], np.int32)
    q, k, v = random16((10, 4, 24), 3, dtype), random16((701, 2, 24), 4, dtype), random16((701, 2, 24), 5, dtype)
    got = attention(q, k, v, positions, window, Unit(SM90, dtype, exp2))
    bound = 2.0**-7 if dtype == "bfloat16" else 2.0**-10
    np.testing.assert_allclose(got, f64_attention(q, k, v, positions, window), atol=bound * 2)


@pytest.mark.parametrize("window", [None, 70])
def test_attention_of_a_query_does_not_depend_on_the_others(window: int | None) -> None:
    length = 580
    q, k, v = random16((length, 4, 16), 6), random16((length, 2, 16), 7), random16((length, 2, 16), 8)
    positions = np.arange(length, dtype=np.int32)
    whole = attention(q, k, v, positions, window, UNIT)
    for a, b in ((0, 1), (63, 66), (500, 530), (579, 580)):
        part = attention(q[a:b], k[:b], v[:b], positions[a:b], window, UNIT)
        assert same_bits(part, whole[a:b])
    one_head = attention(q[:, 2:], k[:, 1:], v[:, 1:], positions, window, UNIT)
    assert same_bits(one_head, whole[:, 2:])


def test_keys_that_a_query_does_not_see_do_not_matter() -> None:
    q, k, v = random16((1, 2, 16), 9), random16((200, 1, 16), 10), random16((200, 1, 16), 11)
    last = np.array([150], np.int32)
    want = attention(q, k, v, last, 60, UNIT)
    k[:91], k[151:], v[:91], v[151:] = np.nan, np.nan, np.nan, np.inf
    assert same_bits(attention(q, k, v, last, 60, UNIT), want)


def test_attention_takes_the_exp2_it_is_given() -> None:
    calls: list[int] = []

    def counted(x: np.ndarray) -> np.ndarray:
        calls.append(x.size)
        return exp2(x)

    q, k = random16((3, 1, 16), 12), random16((70, 1, 16), 13)
    positions = np.array([5, 64, 69], np.int32)
    assert same_bits(
        attention(q, k, k, positions, None, Unit(SM90, "bfloat16", counted)),
        attention(q, k, k, positions, None, UNIT),
    )
    assert calls == [3, 192, 2, 128, 3, 3]  # block of 64 for three rows, the second for two, one merge


def test_stats_are_sums_of_integers() -> None:
    logits = np.random.default_rng(14).standard_normal((6, 1000)).astype(np.float32) * 5
    first, m, logz = sampling.stats(logits)
    want = np.log(np.exp((logits - m[:, None]).astype(np.float64)).sum(axis=1))
    np.testing.assert_allclose(logz, want, rtol=1e-6)
    assert (first == logits.argmax(axis=1)).all()
    order = np.random.default_rng(0).permutation(1000)
    assert same_bits(sampling.stats(logits[:, order])[2], logz)
    logits[2, 5] = np.nan
    assert sampling.stats(logits)[0].tolist() == [*first[:2], -1, *first[3:]]


def test_nucleus_is_the_shortest_prefix() -> None:
    e = np.array([0.25, 1.0, 0.5, 0.25], np.float32)
    kept, order = np.ones(4, np.bool_), np.array([1, 2, 0, 3])
    for top_p, ids in ((0.4, [1]), (0.5, [1]), (0.51, [1, 2]), (0.75, [1, 2]), (0.8, [0, 1, 2]), (0.99, [0, 1, 2, 3])):
        assert np.flatnonzero(sampling.nucleus(e, kept, order, top_p)).tolist() == ids
    kept[2] = False  # of what is kept: 1, 1/4, 1/4
    assert np.flatnonzero(sampling.nucleus(e, kept, order, 0.7)).tolist() == [0, 1]


def test_sampling_is_that_of_ieee_but_for_the_nucleus() -> None:
    rng = np.random.default_rng(15)
    for position in range(20):
        row = rng.standard_normal(300).astype(np.float32) * 3
        plain = (0.9, 50, 1.0, 0.01, 7, position)
        assert sampling.sample(row, *plain) == ieee_sampling.sample(row, *plain)
        token = sampling.sample(row, 0.9, 0, 0.3, 0.0, 7, position)
        assert token == ieee_sampling.sample(row, 0.9, 0, 0.3, 0.0, 7, position)  # no near tie of the sums here


CONFIGS = [
    TinyConfig(),
    TinyConfig(seed=1, dtype="float16", bias=True),
    TinyConfig(seed=2, qk_norm=True, tied=False),
    TinyConfig(seed=3, window=20, heads=2, kv_heads=2),
]


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("config", CONFIGS, ids=["plain", "bias-f16", "qk-norm-untied", "window"])
def test_logits_depend_on_nothing_but_the_tokens_before(family: str, config: TinyConfig) -> None:
    backend = OracleTensorcoreBackend(family)
    ids = np.random.default_rng(config.seed).integers(0, 97, 80).tolist()
    model = build(backend, config)
    executor = backend.executor(model, limits(), threads=1)
    executor.forward(step([(Sequence(ids, [3, 1, 4, 15, 9]), 80)], 16))
    whole = executor.logits(np.arange(80, dtype=np.int32))
    assert np.isfinite(whole).all()

    executor = backend.executor(model, limits(), threads=1)
    one, other = Sequence(ids, [20, 21, 2, 30, 31]), Sequence(ids[::-1], [50, 51, 52, 53, 54])
    executor.forward(step([(other, 33), (one, 50)], 16))
    assert same_bits(executor.logits(np.arange(33, 83, dtype=np.int32)), whole[:50])
    for position in range(50, 53):
        executor.forward(step([(one, 1), (other, 2)], 16))
        assert same_bits(executor.logits(np.array([0], np.int32))[0], whole[position])


@pytest.mark.slow
def test_the_canary_agrees_with_itself() -> None:
    """Whole, in chunks and token by token. Its digest on a card differs, by the card's exp2."""
    value, disagreed = digest(OracleTensorcoreBackend("sm90"))
    assert (disagreed, len(value)) == ("", 64)
