"""Paged attention equals the oracle bit for bit, however a step is put together; unwritten memory holds NaNs throughout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from queueproof.arithmetic.bits import round16_bits
from queueproof.arithmetic.oracle.tensorcore import attention as oracle
from queueproof.arithmetic.tensorcore1 import FAMILIES
from queueproof.kernels.ops import U16, KVShape, Limits
from tests.support.triton_cpu import DEVICE, FAMILY, Exp2  # before any kernel

from queueproof.kernels.triton import attention as gpu  # isort: skip
from queueproof.kernels.triton.attention import Attention, Schedule  # isort: skip
from queueproof.kernels.triton.card import find_card, interpreted_card  # isort: skip
from tests.support.paged import UNWRITTEN, Model, Piece, Sequence, Settings, Step  # isort: skip

TINY = Model(2, 1, 16)
PREFILL = Schedule(warps=4, stages=2, programs=1, rows=64)
DECODED, PREFILLED = Settings(prefill=PREFILL), Settings(decode_tokens=0, prefill=PREFILL)


def expected(model: Model, piece: Piece, window: int | None, exp2: Exp2) -> U16:
    q, k, v = piece.sequence.wide(model.dtype)
    positions = np.arange(piece.start, piece.end, dtype=np.int32)
    unit = oracle.Unit(FAMILIES[FAMILY], model.dtype, exp2)
    here, end = slice(piece.start, piece.end), piece.end
    return round16_bits(oracle.attention(q[here], k[:end], v[:end], positions, window, unit), model.dtype)


def check(model: Model, pieces: list[Piece], settings: Settings, device: str, exp2: Exp2) -> Step:
    step = Step(model, pieces, settings, device)
    got = step.run()
    want = np.concatenate([expected(model, piece, settings.window, exp2) for piece in pieces])
    np.testing.assert_array_equal(got[: len(want)], want)
    assert (got[len(want) :] == UNWRITTEN).all()
    return step


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 128, 129])
def test_whole_prefills(length: int, device: str, exp2: Exp2) -> None:
    check(TINY, [Piece(Sequence.random(TINY, length, length), 0, length)], PREFILLED, device, exp2)


@pytest.mark.parametrize("settings", [DECODED, PREFILLED], ids=["decode", "prefill"])
@pytest.mark.parametrize("edge", [64, 512, 576, 1024])
def test_around_the_ends_of_blocks_and_splits(edge: int, settings: Settings, device: str, exp2: Exp2) -> None:
    sequence = Sequence.random(TINY, edge + 3, edge)
    step = check(TINY, [Piece(sequence, edge - 2, edge + 2)], settings, device, exp2)
    assert bool(len(step.plan.decode_items)) == (settings is DECODED)


@pytest.mark.parametrize("decode_tokens", [8, 0], ids=["decode", "prefill"])
@pytest.mark.parametrize(
    ("window", "planned"), [(1, True), (2, False), (63, False), (64, True), (65, True), (450, False), (513, True)]
)
def test_windows(window: int, decode_tokens: int, planned: bool, device: str, exp2: Exp2) -> None:
    """Also where the plan is for a layer that looks back further."""
    sequence = Sequence.random(TINY, 600, window)
    settings = replace(PREFILLED, window=window, decode_tokens=decode_tokens, planned_window=planned)
    pieces = [Piece(sequence, 0, 2), Piece(sequence, 510, 515), Piece(sequence, 575, 578)]
    check(TINY, pieces, settings, device, exp2)


@pytest.mark.parametrize("block_size", [16, 32, 48, 80, 128, 192])
@pytest.mark.parametrize("settings", [DECODED, PREFILLED], ids=["decode", "prefill"])
def test_block_sizes(settings: Settings, block_size: int, device: str, exp2: Exp2) -> None:
    sequence = Sequence.random(TINY, 530, 5)
    pieces = [Piece(sequence, 60, 66), Piece(sequence, 525, 530)]
    check(TINY, pieces, replace(settings, block_size=block_size), device, exp2)


@pytest.mark.parametrize(
    "model",
    [
        Model(1, 1, 16),
        Model(3, 1, 16, "float16"),
        Model(8, 2, 24),
        Model(8, 1, 64),
        Model(14, 2, 80, "float16"),
        Model(4, 2, 96),
        Model(2, 2, 256),
        Model(40, 2, 16),
    ],
    ids=str,
)
def test_heads_and_head_sizes(model: Model, device: str, exp2: Exp2) -> None:
    sequences = [Sequence.random(model, length, length) for length in (140, 520)]
    pieces = [Piece(sequences[0], 120, 140), Piece(sequences[1], 519, 520)]
    step = check(model, pieces, DECODED, device, exp2)
    assert len(step.plan.decode_items) and len(step.plan.prefill_items)


def test_cuts_and_neighbours_do_not_matter(device: str, exp2: Exp2) -> None:
    """One sequence whole, in chunks, token by token, and with strangers, all in the same step or not."""
    length = 130
    sequence, stranger = Sequence.random(TINY, length, 1), Sequence.random(TINY, 700, 2)
    whole = check(TINY, [Piece(sequence, 0, length)], PREFILLED, device, exp2).run()[:length]
    cuts = [0, 1, 9, 63, 65, 100, 127, length]
    chunks = [Piece(sequence, a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
    for settings in (DECODED, replace(PREFILLED, prefill=replace(PREFILL, rows=16))):
        np.testing.assert_array_equal(Step(TINY, chunks, settings, device).run()[:length], whole)
    crowd = [Piece(stranger, 690, 700), Piece(sequence, 70, 71), Piece(stranger, 511, 513), Piece(sequence, 90, 110)]
    got = Step(TINY, crowd, DECODED, device, seed=3).run()
    np.testing.assert_array_equal(got[10:11], whole[70:71])
    np.testing.assert_array_equal(got[13:33], whole[90:110])


SCHEDULES = (
    [(Schedule(w, s, 1), Schedule(w, s, 1, r), p) for w, s, r, p in ((4, 2, 16, 1), (4, 2, 32, 7), (4, 2, 128, 50))]
    if DEVICE == "cpu"  # the interpreter knows neither warps nor stages
    else [
        (Schedule(w, s, 1), Schedule(w, s, 1, r), p)
        for w in (1, 2, 4, 8)
        for s in (1, 2, 3, 4)
        for r in (16, 64, 128)
        for p in (1, 50)
        if r <= 32 * w
    ]
)


@pytest.mark.parametrize(("decode", "prefill", "programs"), SCHEDULES)
def test_schedules(decode: Schedule, prefill: Schedule, programs: int, device: str, exp2: Exp2) -> None:
    model = Model(4, 2, 16)
    sequence = Sequence.random(model, 530, 9)
    settings = Settings(decode=decode, prefill=prefill, programs=programs)
    check(
        model, [Piece(sequence, 480, 500), Piece(sequence, 511, 514), Piece(sequence, 50, 51)], settings, device, exp2
    )


@pytest.mark.parametrize("spread", [0.0, 2.0**-60, 30.0, 1000.0])
def test_flat_and_steep_scores(spread: float, device: str, exp2: Exp2) -> None:
    """All weights equal, and one key taking nearly all the weight."""
    sequence = Sequence.random(TINY, 520, 4)
    q, k, v = sequence.wide(TINY.dtype)
    steep = Sequence(round16_bits(q * np.float32(spread), TINY.dtype), sequence.k, sequence.v)
    for settings in (DECODED, PREFILLED):
        check(TINY, [Piece(steep, 513, 518)], settings, device, exp2)


def test_values_that_cancel_and_negative_zeros(device: str, exp2: Exp2) -> None:
    sequence = Sequence.random(TINY, 70, 6)
    v = sequence.v.copy()
    v[1::2] = v[0::2] ^ 0x8000
    v[:, :, 3] = 0x8000
    cancelling = Sequence(np.zeros_like(sequence.q), sequence.k, v)
    for settings in (DECODED, PREFILLED):
        step = check(TINY, [Piece(cancelling, 64, 70)], settings, device, exp2)
        assert not step.run()[:6, :, 3].any()


def test_what_has_no_room_is_prefilled(device: str, exp2: Exp2) -> None:
    sequence = Sequence.random(TINY, 600, 7)
    pieces = [Piece(sequence, 520, 523), Piece(sequence, 30, 32), Piece(sequence, 550, 551)]
    step = check(TINY, pieces, replace(DECODED, most_decode_items=8), device, exp2)
    assert len(step.plan.decode_items) == 8 and len(step.plan.prefill_items) == 1


def test_the_limits_of_a_model_bound_its_items() -> None:
    card = find_card() if DEVICE == "cuda" else interpreted_card()
    limits = Limits(max_tokens=40, max_seqs=3, max_logit_rows=3, num_blocks=64, block_size=64, max_model_len=1025)
    attention = Attention(KVShape(1, 2, 16), 6, limits, card)
    assert attention.most_items == (24 * 3, 40)
    assert attention.tile == gpu.prefill_schedule(16, card.family).rows // 3


class TestTheComparisonCanFail:
    """The definition's other choices would give other bits, and these inputs show it."""

    def differs(self, device: str, exp2: Exp2) -> bool:
        sequence = Sequence.random(TINY, 530, 9)
        piece = Piece(sequence, 520, 524)
        return not np.array_equal(Step(TINY, [piece], DECODED, device).run()[:4], expected(TINY, piece, None, exp2))

    def test_as_defined(self, device: str, exp2: Exp2) -> None:
        assert not self.differs(device, exp2)

    @pytest.mark.parametrize(("name", "value"), [("KEY_SPLIT", 256), ("KEY_BLOCK", 32)])
    def test_other_blocks(
        self, name: str, value: int, device: str, exp2: Exp2, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(oracle, name, value)
        assert self.differs(device, exp2)


def parts(sequence: Sequence, position: int, unit: oracle.Unit) -> list[oracle.State]:
    """The splits of one query in f32, before anything is rounded to 16 bits."""
    q, k, v = (x.swapaxes(0, 1) for x in sequence.wide(unit.dtype))
    q = q[:, position].reshape(k.shape[0], -1, q.shape[-1])
    states = []
    for start in range(0, position + 1, 512):
        here = slice(start, min(start + 512, position + 1))
        allowed = np.ones((q.shape[1], here.stop - start), np.bool_)
        pad = -(here.stop - start) % 64
        keys, values = (np.pad(x[:, here], ((0, 0), (0, pad), (0, 0))) for x in (k, v))
        states.append(oracle._split(q, keys, values, np.pad(allowed, ((0, 0), (0, pad))), unit))
    return states


def test_every_bit_of_a_split(device: str, exp2: Exp2, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the decode kernel leaves in its scratch; a denominator summed in another way does not pass for it."""
    model, position = Model(6, 2, 16), 1100
    sequence = Sequence.random(model, position + 1, 12)
    step = Step(model, [Piece(sequence, position, position + 1)], DECODED, device)
    step.run()
    stats, acc = (t.cpu().numpy() for t in (step.scratch.stats, step.scratch.acc))
    unit = oracle.Unit(FAMILIES[FAMILY], model.dtype, exp2)
    want = parts(sequence, position, unit)
    assert len(want) == len(stats) == 3
    for i, state in enumerate(want):
        np.testing.assert_array_equal(stats[i, :, 0], state.m)
        np.testing.assert_array_equal(stats[i, :, 1], state.l[..., 0])
        np.testing.assert_array_equal(acc[i], state.acc)
    monkeypatch.setattr(oracle, "isum", lambda lanes: np.add.accumulate(lanes, -1, dtype=np.float32)[..., -1])
    assert any((stats[i, :, 1] != state.l[..., 0]).any() for i, state in enumerate(parts(sequence, position, unit)))
