"""`queueproof serve` up to where it listens: what is refused before a model is loaded, what is on offer, what it costs."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from typer.testing import CliRunner, Result

from queueproof.cli import class_price, loading
from queueproof.cli.main import app
from queueproof.cli.serve_options import in_bytes
from queueproof.cli.serving import arithmetics_to_serve, contract_of
from queueproof.contract.classes import DeterminismClass
from queueproof.contract.document import Model, Price
from queueproof.contract.errors import CanaryError, InvalidParameter, UsageError
from queueproof.engine.replay import receipt_model
from queueproof.kernels.registry import default_arithmetic, machine
from queueproof.server import run
from tests.support.fake_backend import FakeLoaded, load_fake

BEST_EFFORT, PORTABLE, REQUEST = DeterminismClass.BEST_EFFORT, DeterminismClass.PORTABLE, DeterminismClass.REQUEST
MODEL = Model("m", "bfloat16", "ab" * 32)


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


class Served:
    """Stands for the server: says that it listens, and looks at what it was given."""

    def __init__(self) -> None:
        self.apps: list[Starlette] = []
        self.loaded: list[FakeLoaded] = []
        self.listens = True
        self.meanwhile: Callable[[Starlette], None] = lambda app: None

    def load(
        self, model: str, arithmetic: str | None, report: Any, max_len: int | None = None, device: str = "cpu"
    ) -> Any:
        if max_len is not None and max_len > 512:
            raise InvalidParameter("max_len", max_len, "1 to 512 positions are")
        self.loaded.append(load_fake(arithmetic=arithmetic or default_arithmetic(device)))
        return self.loaded[-1]

    async def serve(self, app: Starlette, sockets: Any, started: Callable[[], None], log_config: Any) -> bool:
        self.apps.append(app)
        if self.listens:
            started()
            self.meanwhile(app)
        return self.listens


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    fake = Served()
    monkeypatch.setattr(loading, "load", fake.load)
    monkeypatch.setattr(run, "serve", fake.serve)
    monkeypatch.delenv("QUEUEPROOF_API_KEY", raising=False)
    return fake


@pytest.fixture
def invoke(tmp_path: Path) -> Callable[..., Result]:
    def run_it(*options: str, receipts: bool = True) -> Result:
        path = ["--receipts-path", str(tmp_path / "receipts.sqlite")] if receipts else []
        return CliRunner().invoke(app, ["serve", "some/model", "--port", "0", *path, *options])

    return run_it


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--log-level", "loud"], "log_level='loud'"),
        (["--block-size", "17"], "block_size=17"),
        (["--policy", "lifo"], "policy='lifo'"),
        (["--max-num-seqs", "0"], "max_num_seqs=0"),
        (["--kv-cache-memory", "a lot"], "kv_cache_memory='a lot'"),
        (["--max-body", "0"], "max_body='0'"),
        (["--device", "tpu"], "device='tpu'"),
        (["--arithmetic", "ieee/2"], "ieee/2"),
        (["--arithmetic", "vendor"], "--best-effort"),
        (["--class", "perfect"], "no determinism class 'perfect'"),
        (["--class", "batch", "--arithmetic", "vendor", "--best-effort"], "ieee/1 would keep it"),
        (["--class", "portable", "--device", "cuda"], "ieee/1 on cpu does"),
        (["--api-key", "no spaces please"], "api_keys"),
        (["--signing-key", "/nonexistent.pem"], "/nonexistent.pem"),
        (["--receipts", "off", "--signing-key", "/nonexistent.pem"], "leave one of them out"),
        (["--host", "not a host"], "cannot listen on not a host"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_loaded(
    options: list[str], message: str, served: Served, invoke: Callable[..., Result]
) -> None:
    result = invoke(*options)
    assert result.exit_code == 2 and message in result.stderr and len(result.stderr.splitlines()) == 1
    assert not served.loaded and not served.apps


def test_a_port_that_is_taken(served: Served, invoke: Callable[..., Result]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        result = invoke("--port", str(other.getsockname()[1]))
    assert result.exit_code == 2 and "choose another --host or --port" in result.stderr and not served.loaded


def test_a_file_that_is_no_store_of_receipts(served: Served, tmp_path: Path, invoke: Callable[..., Result]) -> None:
    (tmp_path / "receipts.sqlite").write_text("something else " * 100)
    result = invoke()
    assert result.exit_code == 4 and "receipts.sqlite" in result.stderr and not served.loaded


def test_the_table_says_what_is_on_offer(served: Served, invoke: Callable[..., Result]) -> None:
    result = invoke("--best-effort")
    assert result.exit_code == 0, result.stderr
    assert re.search(r"fake at http://127\.0\.0\.1:\d+", result.stdout)
    assert all(word in result.stdout for word in ("portable", "ieee/1", "best-effort", "vendor", "nothing is promised"))
    assert "TPOT" not in result.stdout and "No key" not in result.stderr
    assert [model.backend.arithmetic for model in served.loaded] == ["ieee/1", "vendor"]
    state = served.apps[0].state.queueproof
    assert state.config.model_names == ("some/model",) and [e.arithmetic for e in state.engines] == ["ieee/1", "vendor"]
    assert not any(engine.running for engine in state.engines), "its engines are closed after it"


def test_one_line_of_json(served: Served, invoke: Callable[..., Result]) -> None:
    result = invoke("--json-ready", "--served-model-name", "a", "--served-model-name", "b")
    ready = json.loads(result.stdout)
    assert ready["url"].startswith("http://127.0.0.1:") and ready["models"] == ["a", "b"] and ready["pid"] > 0
    assert [offer["class"] for offer in ready["offers"]] == ["portable"] and "price" not in ready["offers"][0]


def test_options_reach_the_engine_and_the_server(served: Served, invoke: Callable[..., Result]) -> None:
    found = {}

    def look(app: Starlette) -> None:
        state = app.state.queueproof
        engine = state.engines[0]
        limits = engine._engine.engine.limits
        found.update(limits=limits, config=state.config, engine=engine._engine.engine.config)

    served.meanwhile = look
    given = (
        "--max-num-seqs 3 --chunk 33 --block-size 32 --max-model-len 128 --policy random --num-speculative-tokens 2 "
        "--threads 1 --kv-cache-memory 1MiB --max-waiting 7 --request-timeout 0 --max-body 2k --grace 1 --admin "
        "--class batch --receipts hash --receipts-max-age 2 --receipts-max-count 9 --api-key k1 --api-key k2 "
        "--allow-origin http://x"
    )
    result = invoke(*given.split())
    assert result.exit_code == 0, result.stderr
    config, limits = found["config"], found["limits"]
    assert (limits.max_seqs, limits.max_tokens, limits.block_size, limits.max_model_len) == (3, 33, 32, 128)
    assert (found["engine"].policy, found["engine"].num_speculative_tokens, found["engine"].threads) == ("random", 2, 1)
    assert found["engine"].kv_cache_memory == 1 << 20
    assert (config.max_waiting, config.deadline, config.max_body, config.grace) == (7, None, 2000, 1.0)
    assert config.admin and config.default_class is DeterminismClass.BATCH and config.receipts == "hash"
    assert config.api_keys == ("k1", "k2") and config.allowed_origins == ("http://x",)


def test_a_key_of_the_environment(
    served: Served, invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEUEPROOF_API_KEY", "secret")
    assert invoke().exit_code == 0 and invoke("--api-key", "other").exit_code == 0
    assert [app.state.queueproof.config.api_keys for app in served.apps] == [("secret",), ("other",)]


def test_an_address_that_others_can_reach_without_a_key(served: Served, invoke: Callable[..., Result]) -> None:
    assert "No key is asked for" in invoke("--host", "0.0.0.0").stderr
    assert "No key is asked for" not in invoke("--host", "0.0.0.0", "--api-key", "k").stderr


def test_no_receipts(served: Served, invoke: Callable[..., Result]) -> None:
    assert invoke("--receipts", "off", receipts=False).exit_code == 0
    assert served.apps[0].state.queueproof.receipts is None


def test_traces_without_their_library(
    served: Served, invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    result = invoke("--otlp-endpoint", "http://127.0.0.1:1/v1/traces")
    assert result.exit_code == 2 and "queueproof[otel]" in result.stderr and not served.loaded


def test_a_context_longer_than_the_models(served: Served, invoke: Callable[..., Result]) -> None:
    result = invoke("--max-model-len", "1000")
    assert result.exit_code == 2 and "max_model_len=1000" in result.stderr


def test_a_server_that_does_not_come_up(served: Served, invoke: Callable[..., Result]) -> None:
    served.listens = False
    assert invoke().exit_code == 4


def test_a_canary_that_fails_serves_nothing(
    served: Served, invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise CanaryError("ieee/1 does not give its bits here")

    monkeypatch.setattr(loading, "load", broken)
    result = invoke("--best-effort")
    assert result.exit_code == 1 and "does not give its bits" in result.stderr and not served.apps


def test_which_arithmetics_are_served() -> None:
    assert arithmetics_to_serve(None, "cpu", False) == ("ieee/1",)
    assert arithmetics_to_serve(None, "cpu", True) == ("ieee/1", "vendor")
    assert arithmetics_to_serve(None, "cuda", True) == ("tensorcore/1", "vendor")
    assert arithmetics_to_serve("vendor", "cpu", True) == ("vendor",)
    with pytest.raises(UsageError, match="--best-effort"):
        arithmetics_to_serve("vendor", "cpu", False)
    with pytest.raises(InvalidParameter):
        arithmetics_to_serve(None, "tpu", False)


def test_the_contract() -> None:
    cost = Price(0.9, "here", 10.0, 5.0)
    both = contract_of(MODEL, "cpu", ("ieee/1", "vendor"), {"ieee/1": cost})
    assert [(o.class_, o.arithmetic, o.price) for o in both.offers] == [
        (PORTABLE, "ieee/1", cost),
        (BEST_EFFORT, "vendor", None),
    ]
    assert not both.refused and both.grant(DeterminismClass.BATCH).arithmetic == "ieee/1"
    assert both.grant(BEST_EFFORT).arithmetic == "vendor"
    card = contract_of(MODEL, "cuda", ("tensorcore/1",), {})
    assert [o.class_ for o in card.offers] == [REQUEST] and [r.class_ for r in card.refused] == [PORTABLE]
    assert card.refused[0].reason == "No arithmetic on cuda keeps it; ieee/1 on cpu does."
    nothing = contract_of(MODEL, "cpu", ("vendor",), {})
    assert [r.class_ for r in nothing.refused] == [DeterminismClass.BATCH, REQUEST, PORTABLE]


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("500M", 500_000_000), ("2GiB", 2 << 30), ("1.5k", 1500), ("7 kib", 7 << 10)]
)
def test_sizes(text: str, size: int) -> None:
    assert in_bytes("x", text) == size


@pytest.mark.parametrize("text", ["", "x", "5X", "-1", "0", "nan", "inf", "1e999", "GiB", "5 GiB more"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(InvalidParameter, match="x="):
        in_bytes("x", text)


def test_prices_are_medians_of_runs_in_turns() -> None:
    runs = {
        "ieee/1": [class_price.Run(90.0, 0.02), class_price.Run(50.0, 0.03), class_price.Run(80.0, 0.04)],
        "vendor": [class_price.Run(100.0, 0.01), class_price.Run(50.0, 0.05), class_price.Run(100.0, 0.02)],
    }
    found = class_price._prices(runs, "vendor", "here")
    assert found["ieee/1"] == Price(0.9, "here", 80.0, 30.0)
    assert found["vendor"] == Price(1.0, "here", 100.0, 20.0)


def test_measuring() -> None:
    models: list[Any] = [load_fake(arithmetic=a, max_len=120) for a in ("ieee/1", "vendor")]
    said: list[tuple[str, int, int]] = []

    def report(what: str, done: int = 0, total: int = 0) -> None:
        said.append((what, done, total))

    found = class_price.measure(models, "vendor", receipt_model(models[0]), {"threads": 1}, "a machine", report)
    assert set(found) == {"ieee/1", "vendor"} and found["vendor"].throughput_ratio == 1.0
    for cost in found.values():
        assert cost.tokens_per_s and cost.tokens_per_s > 0 and cost.tpot_ms and cost.tpot_ms > 0
        assert cost.measured_on == "a machine; 8 users, 32 + 64 tokens each"
    assert said[-1] == ("measuring the price", class_price.ROUNDS, class_price.ROUNDS)
    assert all(executor.closed for model in models for executor in model.backend.executors)
    with pytest.raises(UsageError, match="context"):
        class_price.measure([load_fake(max_len=20)], "ieee/1", receipt_model(models[0]), {}, "", report)  # type: ignore[list-item]


def test_prices_reach_the_contract(served: Served, invoke: Callable[..., Result]) -> None:
    result = invoke("--price")
    assert result.exit_code == 0, result.stderr
    assert "tokens/s" in result.stdout and "measured on" in result.stdout
    assert [model.backend.arithmetic for model in served.loaded] == ["ieee/1", "vendor"]
    state = served.apps[0].state.queueproof
    assert [e.arithmetic for e in state.engines] == ["ieee/1"], "measured against best-effort, which is not on offer"
    (offer,) = state.contract.offers
    assert offer.price is not None and offer.price.throughput_ratio > 0 and machine("cpu") in offer.price.measured_on
