"""What the recorder writes beside the operations: the weights that a thread asks for while others are not done."""

from __future__ import annotations

from queueproof.kernels.numba.program import AHEAD, NEXT_WEIGHTS, Op
from queueproof.kernels.numba.recorder import TOKENS, Recorder
from queueproof.kernels.ops import KVShape
from queueproof.kernels.registry import backend
from tests.support.tiny import TinyConfig, build, limits


def test_each_instruction_names_the_next_weights_and_what_was_asked_for() -> None:
    model = build(backend("ieee/1"), TinyConfig(layers=2))
    ops = Recorder(limits(), KVShape(2, model.kv_shape.kv_heads, model.kv_shape.head_dim))
    model.trunk(ops)
    code = ops.finish()
    products = [i for i, words in enumerate(code) if words[0] == Op.LINEAR]
    assert len(products) == 8
    asked = 0
    for i, words in enumerate(code):
        after = next((j for j in products if j > i), None)
        expected = [0, 0, 0] if after is None else [int(code[after, word]) for word in (4, 9, 5)]
        assert words[NEXT_WEIGHTS : NEXT_WEIGHTS + 3].tolist() == expected
        asked = 0 if i in products else asked + AHEAD
        assert words[NEXT_WEIGHTS + 3] == asked
        assert words[1] == TOKENS
