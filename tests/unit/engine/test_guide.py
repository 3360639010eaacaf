"""Answers that follow a JSON schema: what they may be, that nothing else about them changes, and that no schedule is seen."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from queueproof.contract.errors import GuideError, InvalidParameter, UsageError
from queueproof.engine.guide import Guides, library
from queueproof.engine.llm import LLM
from queueproof.engine.outputs import CompletionOutput
from queueproof.engine.sampling_params import SamplingParams
from queueproof.kernels.numba.backend import NumbaBackend
from queueproof.models.loader import load_model
from tests.support.checkpoints import checkpoint, write_hf
from tests.support.fake_backend import FakeLoaded, load_fake
from tests.support.guides import GUIDES, NUMBER, PERSON, PIECES, SHORT, check_followed
from tests.support.hasty import wait_for_no_token
from tests.support.late_backend import late
from tests.support.simulation import MAX_LEN, Alone, Found, simulate

pytest.importorskip("llguidance")

VOCAB = 64  # those without a text here have a letter
EOS = 0


def model(**options: Any) -> FakeLoaded:
    return load_fake(vocab_size=VOCAB, max_len=MAX_LEN, eos_ids=(EOS,), pieces=PIECES, **options)


def guides(eos_ids: tuple[int, ...] = (EOS,)) -> Guides:
    return Guides(model().tokenizer, VOCAB, eos_ids)


def allowed(mask: Any) -> set[str]:
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    piece = model().tokenizer.piece
    return {"<eos>" if i == EOS else piece(i, False).decode() for i in np.flatnonzero(bits).tolist()}


def ids(text: str) -> list[int]:
    found, by_text = [], {piece.decode(): i for i, piece in PIECES.items()}
    while text:
        longest = max((t for t in by_text if text.startswith(t)), key=len)
        found.append(by_text[longest])
        text = text[len(longest) :]
    return found


def ask(*prompts: list[int], **options: Any) -> list[CompletionOutput]:
    options = {"temperature": 1.0, "seed": 3, "max_tokens": 60} | options
    with LLM(model(), num_blocks=64) as llm:
        return [
            answer for output in llm.generate(list(prompts), SamplingParams(**options)) for answer in output.outputs
        ]


def test_a_guide_names_the_tokens_that_may_follow() -> None:
    guide = guides().start(SHORT)
    assert allowed(guide.mask(())) == {'"', "1"}
    for token in ids('"a'):
        assert guide.accept(token) and not guide.complete
    assert allowed(guide.mask(())) == {'"', "b"}
    assert guide.accept(ids('"')[0]) and guide.complete


def test_an_answer_that_could_go_on_ends_with_an_end_token() -> None:
    guide = guides().start(NUMBER)
    assert guide.accept(ids("7")[0]) and not guide.complete
    assert allowed(guide.mask(())) == {"<eos>", *"0123456789"}
    without = guides(eos_ids=()).start(NUMBER)  # a model that has none: no token stands for it
    assert without.accept(ids("7")[0]) and allowed(without.mask(())) == set("0123456789")
    assert guide.accept(EOS) and guide.complete


def test_guesses_are_tried_on_a_copy() -> None:
    guide = guides().start(SHORT)
    quote, a = ids('"a')
    assert allowed(guide.mask([quote])) == {"a", "ab"}
    assert allowed(guide.mask([quote, a])) == {'"', "b"}
    assert guide.mask([quote, a, a]) is None and guide.mask([a]) is None and guide.failure is None
    assert allowed(guide.mask(())) == {'"', "1"}
    fork = guide.fork()
    assert guide.accept(quote) and allowed(guide.mask([a])) == {'"', "b"} and allowed(fork.mask(())) == {'"', "1"}


def test_spaces_come_to_an_end() -> None:
    guide = guides().start(PERSON)
    (brace, space) = ids("{ ")
    assert guide.accept(brace)
    taken = 0
    while taken < 100 and " " in allowed(guide.mask(())):
        assert guide.accept(space)
        taken += 1
    assert 0 < taken <= 64


def test_a_token_that_cannot_follow_is_a_failure() -> None:
    guide = guides().start(SHORT)
    assert not guide.accept(ids("}")[0]) and guide.failure and not guide.complete
    assert not guide.accept(ids("1")[0])


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("3", "an object, or true"),
        ("false", "an object, or true"),
        ('{"type": "strin"}', "strin"),
        ('{"not": {"type": "string"}}', '"not"'),
        ('{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ('{"oneOf": [{"type": "integer"}, {"type": "number"}]}', "oneOf"),
        ('{"type": "string", "format": "weird"}', "weird"),
        ('{"type": "integer", "minimum": 5, "maximum": 2}', "greater than"),
        ('{"$ref": "https://example.com/schema.json"}', "example.com"),
        ('{"x-guidance": {"lenient": true}, "if": {}}', '"if"'),
        ('{"type": "string", "pattern": "("}', ""),
    ],
)
def test_what_cannot_be_enforced_is_refused(schema: str, why: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        guides().start(schema)
    assert caught.value.name == "guide" and why in str(caught.value) and len(str(caught.value)) < 800


@pytest.mark.parametrize("wrong", [{"guide": ""}, {"guide": 5}, {"ignore_eos": True}, {"min_tokens": 3}])
def test_parameters_that_do_not_go_with_a_guide(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        SamplingParams(**({"guide": "json", "max_tokens": 9} | wrong))


def test_without_the_library_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert library() is not None
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UsageError, match=r"queueproof\[guided\]"):
        ask([1, 2], guide="json")


def test_answers_follow_their_schema_and_end_with_it() -> None:
    prompts = [[i, 2, i] for i in range(1, 13)]
    people = [a for a in ask(*prompts, guide=PERSON) if a.finish_reason == "stop"]
    assert len(people) > 6
    for answer in people:
        person = json.loads(answer.text)
        assert isinstance(person["name"], str) and isinstance(person["age"], int) and len(person) == 2
        assert answer.stop_reason is None and EOS not in answer.token_ids
    for answer in ask(*prompts, guide=SHORT, temperature=0):
        assert json.loads(answer.text) in ("a", "ab", 1) and answer.finish_reason == "stop"
    numbers = ask(*prompts, guide=NUMBER)
    assert any(a.token_ids[-1] == EOS and int(a.text) >= 0 and a.finish_reason == "stop" for a in numbers)
    objects = [json.loads(a.text) for a in ask(*prompts, guide="json") if a.finish_reason == "stop"]
    assert objects and all(isinstance(o, dict) for o in objects)


def test_several_answers_and_other_ends() -> None:
    several = ask([1, 2], guide=PERSON, n=4)
    assert len({a.text for a in several}) > 1
    (cut,) = ask([1, 2], guide=PERSON, max_tokens=2)
    assert cut.finish_reason == "length" and len(cut.token_ids) == 2
    (stopped,) = ask([1, 2], guide=PERSON, stop=["na"])
    assert stopped.finish_reason == "stop" and stopped.stop_reason == "na"


def test_reported_logprobs_are_those_of_the_model() -> None:
    with LLM(model(), num_blocks=64) as llm:
        params = SamplingParams(temperature=1.0, seed=3, max_tokens=40, guide=PERSON, logprobs=2)
        answer = llm.generate([[3, 4, 5]], params)[0].outputs[0]
        scored = llm.generate([[3, 4, 5, *answer.token_ids]], SamplingParams(prompt_logprobs=2, max_tokens=1))[0]
        assert scored.prompt_logprobs is not None and len(answer.token_ids) > 5
        assert scored.prompt_logprobs[3:] == answer.logprobs


def test_an_answer_that_has_no_way_on_is_an_error() -> None:
    """No token of this vocabulary begins the word."""
    unwritable, written = ask([1], guide='{"const": "xyz"}'), ask([1], guide=SHORT)
    assert unwritable[0].finish_reason == "error" and isinstance(unwritable[0].error, GuideError)
    assert written[0].finish_reason == "stop"


@pytest.fixture(scope="module")
def alone() -> Iterator[Alone]:
    yield Alone(model())


@pytest.mark.parametrize("kind", ["at once", "late", "eager"])
@pytest.mark.parametrize(
    "seeds", [range(30), pytest.param(range(30, 200), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_no_schedule_is_seen_in_a_guided_answer(seeds: range, kind: str, alone: Alone) -> None:
    served = model() if kind == "at once" else late(model(), eager=kind == "eager")
    found = Found()
    for seed in seeds:
        simulate(seed, served, alone, found, GUIDES)
    assert not found.differences, "\n".join(found.differences[:3])
    assert check_followed(found) > 10
    stats = found.stats
    assert stats.preemptions > 2 and stats.mixed_steps > 50 and stats.prefix_cache_hit_tokens > 100
    assert stats.guesses_accepted > 5 and stats.guesses_proposed > stats.guesses_accepted and found.siblings > 3
    assert kind == "at once" or stats.overlapped_steps > 100


def test_an_engine_that_does_not_wait_for_the_token_is_caught(monkeypatch: pytest.MonkeyPatch, alone: Alone) -> None:
    """Negative control."""
    wait_for_no_token(monkeypatch)
    found = Found()
    for seed in range(16):
        simulate(seed, late(model()), alone, found, GUIDES)
    assert len(found.differences) > 10


def test_a_text_that_is_forced_is_spelled_as_the_tokenizer_spells_it(tmp_path: Path) -> None:
    """Byte-level BPE with a few merges: `hello` is one token, and no other way to write it is open."""
    loaded = load_model(write_hf(checkpoint(), tmp_path), NumbaBackend())
    with LLM(loaded, num_blocks=32, threads=1) as llm:
        params = SamplingParams(temperature=1.0, seed=1, max_tokens=30, guide='{"const": "hello w"}')
        (answer,) = llm.generate("he", params)[0].outputs
    pieces = [loaded.tokenizer.token_bytes(i) for i in answer.token_ids]
    assert answer.finish_reason == "stop" and pieces == [b'"', b"hello", b" w", b'"']
