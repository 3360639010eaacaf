"""Health, version, models, contract, the administrator's route, and what every exchange has."""

from __future__ import annotations

import pytest

from queueproof.contract.classes import DeterminismClass
from queueproof.contract.document import ContractDocument
from queueproof.contract.errors import ContractError, InvalidParameter, UnsupportedClass
from queueproof.server.app import make_app
from queueproof.server.config import ServerConfig
from tests.support.fake_engine import FakeEngine, contract_of
from tests.support.serving import MODEL, app_of, error_of, request


def test_health_is_that_of_the_engines() -> None:
    engine, other = FakeEngine(), FakeEngine(arithmetic="vendor")
    app = app_of(engine, other)
    assert request(app, "GET", "/health").json() == {"status": "ok"}
    other.running = False
    assert "vendor" in error_of(request(app, "GET", "/health"), 503)["message"]


def test_version_names_the_build() -> None:
    assert request(app_of(FakeEngine()), "GET", "/version").json() == {"version": "1.2.3"}


def test_models_list_every_name_and_the_classes_on_offer() -> None:
    app = app_of(FakeEngine(), model_names=("one", "org/two"))
    listed = request(app, "GET", "/v1/models").json()
    assert listed["object"] == "list" and [model["id"] for model in listed["data"]] == ["one", "org/two"]
    assert request(app, "GET", "/v1/models/org/two").json() == listed["data"][1]
    model = listed["data"][0]
    assert model["object"] == "model" and model["max_model_len"] == 512 and model["root"] == "fake-model"
    assert model["determinism"]["default"] == "portable"
    assert [offer["class"] for offer in model["determinism"]["offers"]] == ["batch", "request", "portable"]
    assert error_of(request(app, "GET", "/v1/models/three"), 404)["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/v1/contract", "/.well-known/queueproof"])
def test_the_contract_can_be_read_back(path: str) -> None:
    engine = FakeEngine()
    text = request(app_of(engine), "GET", path).text
    assert ContractDocument.from_json(text) == contract_of(engine)


def test_the_administrators_route_is_there_for_administrators_only() -> None:
    engine, other = FakeEngine(), FakeEngine(arithmetic="vendor")
    assert error_of(request(app_of(engine), "POST", "/reset_prefix_cache"), 404)["code"] == "unknown_route"
    assert request(app_of(engine, other, admin=True), "POST", "/reset_prefix_cache").status_code == 200
    assert (engine.resets, other.resets) == (1, 1)


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/chat/completions/", "/v1/embeddings", "/health/", "/%00", "/v1/../x"]
)
def test_an_unknown_route_is_404(path: str) -> None:
    assert error_of(request(app_of(FakeEngine()), "POST", path), 404)["code"] == "unknown_route"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/completions"), ("DELETE", "/v1/models"), ("PUT", "/v1/chat/completions")]
)
def test_a_wrong_method_is_405_and_names_the_right_one(method: str, path: str) -> None:
    got = request(app_of(FakeEngine()), method, path)
    assert error_of(got, 405)["code"] == "method_not_allowed"
    assert got.headers["allow"] in ("POST", "GET, HEAD", "HEAD, GET")


def test_the_request_id_is_the_clients_if_it_is_harmless() -> None:
    app = app_of(FakeEngine())
    for path in ("/health", "/nowhere"):
        assert request(app, "GET", path, headers={"X-Request-Id": "a-1.B"}).headers["x-request-id"] == "a-1.B"
        for odd in ("", "x" * 129, "a b", "a\tb", "é".encode()):
            made = request(app, "GET", path, headers={b"X-Request-Id": odd}).headers["x-request-id"]  # type: ignore[dict-item]
            assert len(made) == 32 and int(made, 16) >= 0


def test_what_no_engine_computes_cannot_be_offered() -> None:
    engine, vendor = FakeEngine(), FakeEngine(arithmetic="vendor")
    config = ServerConfig(model_names=(MODEL,), build="0")
    with pytest.raises(ContractError, match="ieee/1"):
        make_app(config, [vendor], contract_of(engine))
    with pytest.raises(ContractError, match="two engines"):
        make_app(config, [engine, FakeEngine()], contract_of(engine))
    with pytest.raises(ContractError, match="nothing to serve"):
        make_app(config, [engine], ContractDocument(contract_of(engine).model, "fake", ()))
    with pytest.raises(UnsupportedClass):
        strict = ServerConfig(model_names=(MODEL,), build="0", default_class=DeterminismClass.PORTABLE)
        make_app(strict, [vendor], contract_of(vendor))


@pytest.mark.parametrize(
    "options",
    [
        {"model_names": ()},
        {"model_names": ("",)},
        {"api_keys": ("",)},
        {"api_keys": ("two words",)},
        {"receipts": "some"},
        {"port": 65536},
        {"max_body": 0},
        {"max_waiting": -1},
        {"deadline": 0.0},
        {"body_timeout": 0.0},
    ],
    ids=str,
)
def test_options_out_of_range_are_errors(options: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter, match=next(iter(options))):
        ServerConfig(**({"model_names": (MODEL,), "build": "0"} | options))  # type: ignore[arg-type]
