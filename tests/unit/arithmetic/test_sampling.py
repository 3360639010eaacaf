"""Random numbers, ranks and the sampler of the oracle."""

from __future__ import annotations

import numpy as np
import pytest

from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.oracle import sampling
from queueproof.arithmetic.oracle.functions import exp, log
from queueproof.arithmetic.oracle.sums import row_sum

ALL = 0xFFFFFFFF
NAN, INF = np.nan, np.inf


def row(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # Random123, tests/kat_vectors: philox 4x32 with 10 rounds
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ALL, ALL, ALL, ALL), (ALL, ALL), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter, key, expected) -> None:  # type: ignore[no-untyped-def]
    assert sampling.philox4x32_10(counter, key) == expected


def test_noise_words_are_addressed_by_seed_position_and_id() -> None:
    seed, position = 0x0123456789ABCDEF, 0x500000007
    words = sampling.noise_words(11, seed, position)
    for i in range(11):
        four = sampling.philox4x32_10((i >> 2, 7, 5, 0), (0x89ABCDEF, 0x01234567))
        assert words[i] == four[i & 3]
    assert np.array_equal(words, sampling.noise_words(40, seed, position)[:11]), "the vocabulary's size does not matter"
    for other in (sampling.noise_words(11, seed + 1, position), sampling.noise_words(11, seed, position + 1)):
        assert (other != words).all()


def test_gumbel_is_finite_at_both_ends() -> None:
    g = sampling.gumbel(np.array([0, 511, ALL, ALL - 511, 512], np.uint32))
    assert np.isfinite(g).all()
    assert g[0] == g[1] and g[2] == g[3] and g[4] > g[0], "the low 9 bits are not used"
    u = np.float32(0.5) * np.float32(2.0**-23)
    assert g[0] == -log(-log(u))


def test_stats() -> None:
    logits = np.stack(
        [row(1, 3, 3, -1), row(-0.0, 0.0, -1, -2), row(1, NAN, 2, 0), row(-INF, 5, -INF, 5), row(1, INF, 0, 0)]
    )
    first, m, logz = sampling.stats(logits)
    assert first.tolist() == [1, 0, -1, 1, 1] and first.dtype == np.int32
    assert m.tolist() == [3, 0, 2, 5, INF]
    for i in (0, 1, 3):
        assert logz[i] == log(row_sum(exp(logits[i] - m[i])))
    assert np.isnan(logz[2]) and np.isnan(logz[4])
    probabilities = np.exp(sampling.logprobs(logits[:1]).astype(np.float64))
    assert abs(probabilities.sum() - 1) < 1e-6


def test_running_maximum_keeps_the_first_zero_and_skips_nan() -> None:
    got = sampling.row_max(np.stack([row(-0.0, 0.0), row(0.0, -0.0), row(NAN, -3), row(NAN, NAN)]))
    assert same_bits(got, row(-0.0, 0.0, -3, -INF))


def test_ranks_break_ties_by_id() -> None:
    assert sampling.topk(row(2, 7, -0.0, 7, 0.0, -INF)[None], 6).tolist() == [[1, 3, 0, 2, 4, 5]]


def draw(logits: np.ndarray, n: int = 300, **kwargs: float) -> set[int]:
    """The ids that n seeds draw."""
    options = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | kwargs
    return {sampling.sample(logits, **options, seed=s, position=4) for s in range(n)}  # type: ignore[arg-type]


def test_filters_keep_what_they_should() -> None:
    logits = row(0, 1, 1, 0.5, -0.25, 1)
    assert draw(logits) == {0, 1, 2, 3, 4, 5}
    assert draw(logits, top_k=1) == {1}
    assert draw(logits, top_k=2) == {1, 2}
    assert draw(logits, top_k=100) == {0, 1, 2, 3, 4, 5}
    assert draw(logits, min_p=1.0) == {1, 2, 5}
    assert draw(logits, min_p=0.5) == {1, 2, 3, 5}
    assert draw(logits, top_p=1e-9) == {1}
    assert draw(logits, top_k=2, top_p=0.99) == {1, 2}, "Z is that of the kept ones"
    assert draw(logits, top_k=2, top_p=0.5) == {1}, "the running sum reaches half of Z with the first"
    assert draw(logits, temperature=1e-3) == {1, 2, 5}
    assert draw(row(NAN, 1, 2)) == {-1}
    assert draw(row(-INF, 1, -INF)) == {1}
    assert draw(row(1, INF, INF)) == {1}, "infinities tie, and the smaller id wins"


def test_the_noise_decides_as_defined() -> None:
    logits = np.random.default_rng(3).standard_normal(50, dtype=np.float32)
    noise = sampling.gumbel(sampling.noise_words(50, 99, 1234))
    z = logits / np.float32(0.7) + noise
    assert sampling.sample(logits, 0.7, 0, 1.0, 0.0, 99, 1234) == int(np.argmax(z))
    best = sorted(range(50), key=lambda i: (-logits[i], i))[:5]
    assert sampling.sample(logits, 0.7, 5, 1.0, 0.0, 99, 1234) == max(best, key=lambda i: z[i])


def test_frequencies_follow_the_softmax() -> None:
    logits = row(0.0, 1.0, -1.0, 0.5)
    n = 4000
    drawn = [sampling.sample(logits, 1.5, 0, 1.0, 0.0, 12345, position) for position in range(n)]
    expected = np.exp(logits / 1.5) / np.exp(logits / 1.5).sum()
    counts = np.bincount(drawn, minlength=4)
    chi_square = (((counts - n * expected) ** 2) / (n * expected)).sum()
    assert chi_square < 16.3  # 3 degrees of freedom, one in a thousand; the draws are the same at every run
