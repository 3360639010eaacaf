"""The prompts of our own: each kind is there, wherever a run stops taking them."""

from __future__ import annotations

from collections import Counter

from queueproof.audit.plan import LEAST_PROMPTS, digest
from queueproof.audit.prompts.builtin import CHAT, CODE, LANGUAGE, LONG, NEAR_TIE, builtin

KINDS = {CHAT, CODE, LONG, LANGUAGE, NEAR_TIE}


def test_each_has_its_own_key_and_its_own_words() -> None:
    prompts = builtin()
    assert len({p.key for p in prompts}) == len({p.messages for p in prompts}) == len(prompts) == 32
    assert {p.kind for p in prompts} == KINDS
    assert digest(prompts) == digest(builtin())


def test_no_two_begin_alike() -> None:
    """Else a server's prefix cache would know one from the other."""
    beginnings = Counter(p.messages[0][1][:24] for p in builtin() if p.messages)
    assert max(beginnings.values()) == 1


def test_the_first_few_are_a_mix() -> None:
    kinds = [p.kind for p in builtin()]
    assert len(set(kinds[:LEAST_PROMPTS])) == LEAST_PROMPTS
    assert set(kinds[:5]) == KINDS
    for first in range(8, len(kinds) + 1):
        counts = Counter(kinds[:first])
        assert counts[NEAR_TIE] >= first / 5 and counts[LONG] <= first / 5, first


def test_long_ones_are_long_and_the_others_are_not() -> None:
    for prompt in builtin():
        words = sum(len(content.split()) for _, content in prompt.messages or ())
        assert (words > 700) if prompt.kind == LONG else (words < 60), prompt.key
