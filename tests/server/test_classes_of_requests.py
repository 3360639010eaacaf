"""The class of a request: what it asks for is what it gets or more, never less, and another arithmetic is another engine."""

from __future__ import annotations

from typing import Any

import pytest

from queueproof.contract.classes import DeterminismClass
from queueproof.contract.document import ContractDocument, Model, Offer, Refusal
from queueproof.server.app import make_app
from queueproof.server.classes import fingerprint
from queueproof.server.config import ServerConfig
from tests.support.fake_engine import FakeEngine
from tests.support.serving import CHAT, COMPLETIONS, HELLO, MODEL, answer, app_of, error, post, request, streamed


def three() -> list[FakeEngine]:
    return [FakeEngine(arithmetic=name) for name in ("ieee/1", "tensorcore/1", "vendor")]


@pytest.mark.parametrize(
    ("asked", "given", "arithmetic"),
    [
        (None, "portable", "ieee/1"),
        ("portable", "portable", "ieee/1"),
        ("request", "request", "tensorcore/1"),
        ("batch", "batch", "tensorcore/1"),
        ("best-effort", "best-effort", "vendor"),
    ],
)
def test_each_class_is_computed_by_the_engine_that_keeps_it(asked: str | None, given: str, arithmetic: str) -> None:
    engines = three()
    app = app_of(*engines)
    for body in ({"determinism": asked}, {"determinism": {"class": asked}} if asked else {}):
        got = answer(app, CHAT, messages=HELLO, max_tokens=1, **body)["determinism"]
        assert (got["class"], got["arithmetic"]) == (given, arithmetic)
        assert set(got["axes"]) == DeterminismClass(given).axes
    assert [len(engine.seen) for engine in engines] == [2 * (e.arithmetic == arithmetic) for e in engines]
    first = streamed(app, COMPLETIONS, prompt="x", **({"determinism": asked} if asked else {}))[0]["determinism"]
    assert (first["class"], first["arithmetic"]) == (given, arithmetic)


def test_the_header_asks_too() -> None:
    app = app_of(*three())
    got = post(app, CHAT, messages=HELLO, max_tokens=1, headers={"Queueproof-Determinism": "best-effort"})
    assert got.json()["determinism"]["class"] == got.headers["queueproof-determinism"] == "best-effort"
    both = {"messages": HELLO, "max_tokens": 1, "determinism": "batch"}
    assert post(app, CHAT, headers={"Queueproof-Determinism": "batch"}, **both).status_code == 200
    got = post(app, CHAT, headers={"Queueproof-Determinism": "request"}, **both)
    assert got.status_code == 400 and got.json()["error"]["param"] == "determinism"


def test_a_class_not_on_offer_gets_a_stronger_one() -> None:
    engine = FakeEngine()
    contract = ContractDocument(Model("m", "bfloat16"), "fake", (Offer.of(DeterminismClass.PORTABLE, "ieee/1"),))
    app = make_app(ServerConfig(model_names=(MODEL,), build="0"), [engine], contract)
    for asked in DeterminismClass:
        assert answer(app, CHAT, messages=HELLO, max_tokens=1, determinism=asked)["determinism"]["class"] == "portable"


def test_a_class_that_nothing_satisfies_is_422_and_lists_the_offers() -> None:
    engine = FakeEngine(arithmetic="tensorcore/1")
    contract = ContractDocument(
        Model("m", "bfloat16"),
        "fake",
        (Offer.of(DeterminismClass.REQUEST, "tensorcore/1"),),
        (Refusal(DeterminismClass.PORTABLE, "There is one card only."),),
    )
    app = make_app(ServerConfig(model_names=(MODEL,), build="0"), [engine], contract)
    for stream in (False, True):
        found = error(app, CHAT, 422, messages=HELLO, determinism="portable", stream=stream)
        assert (found["code"], found["param"]) == ("unsupported_class", "determinism")
        assert "There is one card only" in found["message"] and "request (tensorcore/1)" in found["message"]
        assert found["offers"] == request(app, "GET", "/v1/contract").json()["offers"]
    found = error(app, COMPLETIONS, 422, prompt="x", determinism="total")
    assert "best-effort, batch, request, portable" in found["message"] and found["offers"]
    assert not engine.seen


def test_the_operator_may_choose_the_default() -> None:
    app = app_of(*three(), default_class=DeterminismClass.REQUEST)
    assert answer(app, CHAT, messages=HELLO, max_tokens=1)["determinism"]["arithmetic"] == "tensorcore/1"
    assert request(app, "GET", "/v1/models").json()["data"][0]["determinism"]["default"] == "request"


def test_the_fingerprint_names_build_model_and_arithmetic() -> None:
    engines = three()
    got: set[Any] = {fingerprint(build, engine) for build in ("1", "2") for engine in engines}
    assert len(got) == 6
    app = app_of(*engines)
    for engine, asked in zip(engines, ("portable", "request", "best-effort"), strict=True):
        whole = answer(app, CHAT, messages=HELLO, max_tokens=1, determinism=asked)
        chunks = streamed(app, CHAT, messages=HELLO, max_tokens=1, determinism=asked)
        assert {whole["system_fingerprint"], *(c["system_fingerprint"] for c in chunks)} == {
            fingerprint("1.2.3", engine)
        }
