"""From logits to tokens: whatever the oracle draws, scores, ranks and reports, bit for bit, however rows are split."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.oracle.tensorcore.backend import TensorcoreRows
from queueproof.kernels.ops import DrawBatch, Drawn, Edits, Masks
from queueproof.kernels.triton.card import Card, find_card, interpreted_card
from queueproof.kernels.triton.device import DeviceLogits
from queueproof.kernels.triton.rows import TritonRows, build_draws
from tests.support.masks import masks_of

ALL_SEEDS = (1 << 64) - 1


@pytest.fixture
def card(device: str) -> Card:
    return find_card() if device == "cuda" else interpreted_card()


def on(card: Card, x: np.ndarray) -> DeviceLogits:
    tokens = torch.full((len(x) + 3,), -7, dtype=torch.int32, device=card.device)
    return DeviceLogits(torch.from_numpy(x.copy()).to(card.device), tokens)


def logits(rng: np.random.Generator, rows: int, v: int, kind: str) -> np.ndarray:
    x = (rng.standard_normal((rows, v)) * 5).astype(np.float32)
    if kind == "ties":
        x = np.round(x)
    if kind == "zeros":
        x = rng.choice(np.array([0.0, -0.0, -1.0], np.float32), (rows, v))
    if kind == "banned":
        x[:, 1::7] = -np.inf
    if kind == "nan":
        x[rows // 2, v // 3] = -np.nan
    if kind == "huge":
        x *= np.float32(1e30)
    if kind == "tiny":
        x *= np.float32(1e-42)
    return x


def batch(rows: int, **fields: object) -> DrawBatch:
    """Greedy unless told otherwise; a number stands for that number in every row."""
    types = {"tokens": np.int32, "temperature": np.float32, "top_k": np.int32, "top_p": np.float32, "min_p": np.float32}
    types |= {"seed": np.uint64, "position": np.int64}
    values = {"tokens": -1, "temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 1, "position": 9, "top": None}
    values |= {"edits": None, "masks": None} | fields
    made = {name: np.array(np.broadcast_to(np.asarray(values[name], t), (rows,))) for name, t in types.items()}
    return DrawBatch(**made, top=values["top"], edits=values["edits"], masks=values["masks"])  # type: ignore[arg-type]


def random_edits(rng: np.random.Generator, rows: int, v: int) -> Edits:
    pairs = rng.permutation(np.unique(rng.integers(0, (rows, v), (24, 2)), axis=0)).astype(np.int32)
    n = len(pairs)
    return Edits(
        rows=pairs[:, 0].copy(),
        ids=pairs[:, 1].copy(),
        bias=rng.choice(np.array([0, 3.5, -100], np.float32), n),
        repetition=rng.choice(np.array([1, 1.3, 0.5], np.float32), n),
        frequency=rng.choice(np.array([0, 0.7], np.float32), n),
        presence=rng.choice(np.array([0, -0.3], np.float32), n),
        banned=rng.random(n) < 0.2,
    )


def random_batch(rng: np.random.Generator, rows: int, v: int, top: int | None) -> DrawBatch:
    return batch(
        rows,
        tokens=np.where(rng.random(rows) < 0.2, rng.integers(0, v, rows), -1),
        temperature=rng.choice([0, 0.1, 0.7, 1.0, 5.0], rows),
        top_k=rng.choice([0, 0, 1, 5, 50, v, 10 * v], rows),
        top_p=rng.choice([1, 1, 0.9, 0.5, 1e-9], rows),
        min_p=rng.choice([0, 0, 0.05, 0.9, 1], rows),
        seed=rng.integers(0, 1 << 64, rows, dtype=np.uint64),
        position=rng.integers(0, 1 << 40, rows),
        top=top,
        edits=random_edits(rng, rows, v) if rng.random() < 0.5 else None,
        masks=masks_of(rng, rows, v) if rng.random() < 0.5 else None,
    )


def check(got: Drawn, want: Drawn) -> None:
    assert np.array_equal(got.tokens, want.tokens)
    ok = want.tokens >= 0  # nothing else is promised of a row without a token
    assert same_bits(got.logprobs[ok], want.logprobs[ok])
    assert same_bits(got.lse[ok], want.lse[ok])
    assert (got.ranks is None) == (want.ranks is None)
    if want.ranks is not None:
        assert np.array_equal(got.ranks[ok], want.ranks[ok])
        assert np.array_equal(got.top_ids[ok], want.top_ids[ok])
        assert same_bits(got.top_logprobs[ok], want.top_logprobs[ok])


def drawn(card: Card, x: np.ndarray, wanted: DrawBatch, tile: int = 512, room: int = 1024) -> Drawn:
    """A draw on the device, equal to the oracle's; its tokens stay on the device. A card draws in more than one way."""
    want = TensorcoreRows().draw(x, wanted)
    ways = [(tile, room)] if card.device.type == "cpu" else [(64, 64), (256, 1024), (2048, 4096)]
    for tile, room in ways:
        there = on(card, x)
        got = TritonRows(card, tile=tile, room=room).draw(there, wanted).result()
        check(got, want)
        assert np.array_equal(there.tokens.cpu().numpy()[: len(x)], np.maximum(got.tokens, 0))
        assert (there.tokens.cpu().numpy()[len(x) :] == -7).all()
        assert same_bits(there.values.cpu().numpy(), x), "the logits themselves are not changed"
    return got


KINDS = ("usual", "ties", "zeros", "banned", "nan", "huge", "tiny")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("v", [1, 97, 131, 1000])
def test_draws_of_all_sorts(card: Card, kind: str, v: int) -> None:
    rng = np.random.default_rng(v)
    tops = [None, 0, min(v, 5)]
    if card.device.type == "cpu":  # all of them, but not with everything
        tops = [tops[(KINDS.index(kind) + v) % 3]]
    for top in tops:
        x = logits(rng, 4, v, kind)
        got = drawn(card, x, random_batch(rng, 4, v, top), tile=64 if v == 97 else 512)
        assert (got.tokens[4 // 2] == -1) == (kind == "nan")


def test_every_combination_of_filters(card: Card) -> None:
    rng = np.random.default_rng(7)
    options = [(k, p, m) for k in (0, 3, 40) for p in (1.0, 0.7, 0.2) for m in (0.0, 0.1, 0.6)]
    k, p, m = (np.array(column) for column in zip(*options, strict=True))
    for kind in ("usual", "ties") if card.device.type == "cuda" else ("ties",):
        x = logits(rng, len(options), 131, kind)
        drawn(card, x, batch(len(options), temperature=1.3, top_k=k, top_p=p, min_p=m, seed=np.arange(len(options))))


def test_more_candidates_than_there_is_room_for(card: Card) -> None:
    """Flat rows: the search goes over the row itself. A peaked one beside them does not change that."""
    rng = np.random.default_rng(8)
    x = (rng.standard_normal((5, 150)) * 0.1).astype(np.float32)
    x[1] = np.round(x[1] * 4)  # ties at the threshold
    x[2, 77] = 60
    x[3, ::2] = -np.inf
    x[4] = 1.25
    k, p, m = [0, 100, 0, 0, 100], [0.99, 0.9, 0.99, 1, 1], [0, 0, 0, 0.5, 0]
    drawn(card, x, batch(5, temperature=1, top_k=k, top_p=p, min_p=m, seed=np.arange(5)), room=64)
    drawn(card, x[1:4], batch(3, top=2), room=64)
    drawn(card, x[:1], batch(1, top=80), room=64)


def test_filters_keep_the_first_of_equals(card: Card) -> None:
    x = np.zeros((3, 97), np.float32)
    ids = set()
    for seed in range(3):
        got = drawn(card, x, batch(3, temperature=1, top_k=[2, 0, 5], top_p=[1, 0.02, 0.5], seed=seed))
        ids |= {(row, int(token)) for row, token in enumerate(got.tokens)}
    assert all(token < (2, 2, 3)[row] for row, token in ids)


def test_infinities(card: Card) -> None:
    """An infinite best logit is drawn; filters that have nothing to compare it with keep it."""
    x = np.zeros((7, 131), np.float32)
    x[:4, 90] = np.inf
    x[3, 70] = np.inf
    x[4] = -np.inf
    x[5] = 3e38  # infinite after the division by the temperature
    x[6] = -np.inf
    x[6, 130] = 2
    got = drawn(
        card,
        x,
        batch(7, temperature=[0, 1, 1, 1, 1, 0.1, 1], min_p=[0, 0, 0.1, 0.5, 0, 0.2, 0], top_k=[0, 0, 0, 9, 3, 0, 2]),
    )
    assert got.tokens.tolist() == [90, 90, 90, 70, 0, 0, 130]
    assert np.isnan(got.lse).tolist() == [True] * 5 + [False] * 2


def test_seeds_and_positions_of_64_bits(card: Card) -> None:
    x = logits(np.random.default_rng(9), 6, 1000, "usual")
    seeds = [ALL_SEEDS, ALL_SEEDS - (1 << 32), 1 << 32, 1, 0, 7]
    positions = [(1 << 32) + 5, 5, (1 << 40) + 5, 1 << 31, (1 << 32) - 1, 0]
    got = drawn(card, x, batch(6, temperature=4, seed=np.array(seeds, np.uint64), position=positions))
    again = drawn(card, x, batch(6, temperature=4, seed=np.array(seeds[::-1], np.uint64), position=positions))
    assert not np.array_equal(got.tokens, again.tokens)


def test_edits_change_what_is_drawn_and_not_what_is_reported(card: Card) -> None:
    x = logits(np.random.default_rng(10), 3, 131, "usual")
    best = x[1].argmax()
    one = np.ones(1, np.float32)
    ban = Edits(
        np.array([1], np.int32), np.array([best], np.int32), 0 * one, one, 0 * one, 0 * one, np.ones(1, np.bool_)
    )
    plain = drawn(card, x, batch(3, top=3))
    edited = drawn(card, x, batch(3, top=3, edits=ban))
    assert edited.tokens[1] != plain.tokens[1] == best and edited.tokens[0] == plain.tokens[0]
    assert np.array_equal(edited.top_ids, plain.top_ids) and edited.ranks[1] == 2
    scored = drawn(card, x, batch(3, tokens=[-1, best, 5], edits=ban))
    assert scored.tokens.tolist() == [plain.tokens[0], best, 5]


def test_masks_change_what_is_drawn_and_not_what_is_reported(card: Card) -> None:
    """Alone and after edits of the same row, drawn in every way; also from a single token."""
    rng = np.random.default_rng(12)
    x = logits(rng, 4, 131, "usual")
    masks = Masks(np.array([2, 0, 1], np.int32), np.zeros((3, 5), np.uint32))
    masks.allowed[0, 4] = 1 << 2  # id 130
    masks.allowed[1, :] = 0x80000001
    masks.allowed[2, 1] = 0xFFFF
    plain = drawn(card, x, batch(4, top=3))
    bias = Edits(*(np.array([v], np.int32) for v in (1, 41)), *(np.array([v], np.float32) for v in (90, 1, 0, 0)), np.zeros(1, np.bool_))  # fmt: skip
    for edits in (None, bias):
        wanted = batch(4, top=3, masks=masks, edits=edits, temperature=[0, 1, 0.5, 0], top_p=[1, 0.7, 1, 1], seed=[1, 2, 3, 4])
        got = drawn(card, x, wanted)
        assert got.tokens[2] == 130 and got.tokens[3] == plain.tokens[3]
        assert got.tokens[0] in {*range(0, 131, 32), *range(31, 131, 32)} and 32 <= got.tokens[1] < 48
        assert (got.tokens[1] == 41) == (edits is not None)
        assert np.array_equal(got.top_ids, plain.top_ids)


def test_neighbours_and_splits_cannot_be_seen(card: Card) -> None:
    """A row alone, in other company, in another place and in other tiles."""
    rng = np.random.default_rng(11)
    x = logits(rng, 9, 300, "usual")
    settings = {"temperature": [0, 1, 1.5, 1, 1, 0, 2, 1, 1], "top_p": [1, 1, 0.8, 1, 0.3, 1, 1, 0.9, 1]}
    settings |= {"top_k": [0, 0, 0, 9, 0, 0, 0, 30, 0], "seed": np.arange(9)}
    every = batch(9, top=3, **settings)
    together = TritonRows(card, tile=512, room=256).draw(on(card, x), every).result()
    for row in range(9):
        alone = batch(1, top=3, **{name: np.array(value)[row : row + 1] for name, value in settings.items()})
        got = TritonRows(card, tile=128, room=1024).draw(on(card, x[row : row + 1]), alone).result()
        for name in ("tokens", "logprobs", "lse", "ranks", "top_ids", "top_logprobs"):
            assert same_bits(getattr(got, name)[0], getattr(together, name)[row]), (row, name)


def test_a_draw_stays_readable_until_the_one_after_the_next(card: Card) -> None:
    rng = np.random.default_rng(12)
    rows, oracle = TritonRows(card, tile=128), TensorcoreRows()
    pending = []
    for n, v in ((2, 300), (5, 300), (1, 300), (9, 300), (3, 300)):
        x = logits(rng, n, v, "usual")
        wanted = random_batch(rng, n, v, top=n % 3 or None)
        pending.append((rows.draw(on(card, x), wanted), oracle.draw(x, wanted)))
        wanted.tokens[:] = 0  # the batch is the caller's again
        wanted.seed[:] = 0
        if len(pending) == 2:
            draw, want = pending.pop(0)
            check(draw.result(), want)
    check(pending[0][0].result(), pending[0][1])


def test_host_gives_a_copy(card: Card) -> None:
    x = logits(np.random.default_rng(13), 2, 97, "usual")
    there = on(card, x)
    copy = TritonRows(card).host(there)
    assert same_bits(copy, x)
    copy[:] = 0
    assert same_bits(there.values.cpu().numpy(), x)


@pytest.mark.gpu
def test_a_real_vocabulary(card: Card) -> None:
    if card.device.type != "cuda":
        pytest.skip("too large for the interpreter")
    rng = np.random.default_rng(14)
    v = 151_936  # of Qwen3
    for rows in (1, 7):
        x = (rng.standard_normal((rows, v)) * 3).astype(np.float32)
        wanted = random_batch(rng, rows, v, top=20)
        want = TensorcoreRows().draw(x, wanted)
        for num_warps in (1, 2, 4, 8):
            check(TritonRows(card, num_warps=num_warps).draw(on(card, x), wanted).result(), want)


def test_draws_are_built_ahead(card: Card) -> None:
    build_draws(card, 131)
