"""What the recorder writes beside the operations: whose rows, what a thread makes for itself, the weights it asks for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from queueproof.kernels.numba.microkernel import PANEL
from queueproof.kernels.numba.program import AHEAD, GATED, NEXT_WEIGHTS, OWN, Op
from queueproof.kernels.numba.recorder import LOGIT_ROWS, TOKENS, Recorder
from queueproof.kernels.ops import KVShape
from queueproof.kernels.registry import backend
from tests.support.tiny import TinyConfig, TinyModel, build, limits


def record(model: TinyModel) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    ops = Recorder(limits(), model.kv_shape)
    model.head(ops, model.trunk(ops))
    return ops.finish()


def names(code: NDArray[np.int64]) -> list[str]:
    return [Op(int(word)).name for word in code[:, 0]]


def test_each_instruction_names_the_next_weights_and_what_was_asked_for() -> None:
    code = np.concatenate(record(build(backend("ieee/1"), TinyConfig(layers=2))))
    products = [i for i, words in enumerate(code) if words[0] == Op.LINEAR]
    assert len(products) == 9
    asked = 0
    for i, words in enumerate(code):
        after = next((j for j in products if j > i), None)
        expected = [0, 0, 0] if after is None else [int(code[after, word]) for word in (4, 9, 5)]
        assert words[NEXT_WEIGHTS : NEXT_WEIGHTS + 3].tolist() == expected
        asked = 0 if i in products else asked + AHEAD
        assert words[NEXT_WEIGHTS + 3] == asked


def test_what_follows_the_last_layers_attention_is_for_the_rows_with_logits() -> None:
    trunk, head = record(build(backend("ieee/1"), TinyConfig(layers=2)))
    assert set(trunk[:, 1]) == {TOKENS} and set(head[:, 1]) == {LOGIT_ROWS}
    attention = ["RMS_NORM", "LINEAR", "ROPE_AND_CACHE", "ATTENTION", "COMBINE"]
    rest = ["LINEAR", "RMS_NORM", "LINEAR", "SILU_MUL", "LINEAR"]
    assert names(trunk) == ["EMBED", *attention, *rest, *attention]
    take = ["TAKE_ROWS"]
    assert names(head) == [*take, *rest[:1], *take, *rest[1:], "ADD", "RMS_NORM", "LINEAR"]


def test_norms_and_gates_of_the_next_product_are_each_threads_own() -> None:
    for code in record(build(backend("ieee/1"), TinyConfig(layers=3))):
        own = [i for i, words in enumerate(code) if words[OWN] and words[0] != Op.LINEAR]
        assert own == [i for i, name in enumerate(names(code)) if name in ("RMS_NORM", "SILU_MUL")]
        for i in own:
            result = code[i, 7 if code[i, 0] == Op.RMS_NORM else 4]
            assert code[i + 1, 0] == Op.LINEAR and code[i + 1, 2] == result and code[i + 1, OWN] == code[i, OWN]
            if code[i, 0] == Op.RMS_NORM and code[i, 8]:  # of each other, what is read and what is written
                assert len({int(code[i, word]) for word in (2, 3, 7, 8)}) == 4
        others = [words for i, words in enumerate(code) if i not in own and i - 1 not in own]
        assert not any(words[OWN] for words in others)


def test_a_product_gates_itself_where_gate_and_up_are_whole_panels() -> None:
    for width, fits in ((2 * PANEL, True), (2 * PANEL + 8, False)):
        code = np.concatenate(record(build(backend("ieee/1"), TinyConfig(intermediate=width))))
        silu = [i for i, words in enumerate(code) if words[0] == Op.SILU_MUL]
        for i in silu:
            to = int(code[i, 4]) if fits else 0
            assert code[i, GATED] == to and code[i - 1, GATED] == to and code[i - 1, 6] == code[i, 2]
            assert int(code[i, 4]) not in (int(code[i - 1, 2]), int(code[i, 2]))  # it is not what the product reads
        assert len(silu) == 2 and not any(words[GATED] for i, words in enumerate(code) if i not in silu and i + 1 not in silu)


def test_what_they_read_is_kept_until_the_product_has_its_place() -> None:
    """Without a barrier between the two, one thread may be in the product while another still reads."""
    packer = backend("ieee/1").packer("bfloat16")
    square, tall = (packer.matrix(n, 64, [np.ones((n, 64), np.uint16)]) for n in (64, 128))
    ops = Recorder(limits(), KVShape(1, 1, 64))
    h = ops.embed(square)
    gate = ops.gated_linear(h, tall)  # of what gate and up had, the recorder alone knows
    after = ops.linear(gate, tall)
    delta = ops.linear(h, square)
    norm = ops.rms_norm(h, np.ones(64, np.float32), 1e-5, delta)
    del delta
    again = ops.linear(norm, square)
    code = [words for part in ops.finish() for words in part]
    (silu,), (rms,) = ([i for i, words in enumerate(code) if words[0] == op] for op in (Op.SILU_MUL, Op.RMS_NORM))
    assert after.width == 128 and code[silu][2] != code[silu + 1][6]
    assert again.width == 64 and code[rms][3] != code[rms + 1][6] and code[rms][2] != code[rms + 1][6]
