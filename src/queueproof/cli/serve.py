"""`queueproof serve`: an OpenAI-compatible server that says which class its answers have, and keeps it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs
from rich.table import Table

from queueproof import __version__
from queueproof.cli import serve_options as o
from queueproof.cli.env import settings
from queueproof.cli.exits import ExitCode, err, guarded, out, print_json
from queueproof.cli.options import DeviceArithmeticOption, DeviceOption, ThreadsOption, threads_in_use
from queueproof.contract import codec
from queueproof.contract.classes import parse_class
from queueproof.contract.document import ContractDocument, Model, Price
from queueproof.contract.errors import InvalidParameter, UsageError

if TYPE_CHECKING:
    from queueproof.cli.loading import Report
    from queueproof.engine.service import EngineService
    from queueproof.server.config import ServerConfig
    from queueproof.server.extension import Extension
    from queueproof.server.receipts.keeper import ReceiptKeeper

LOG_LEVELS = ("debug", "info", "warning", "error")
_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is served. arithmetics: the strongest first. engine: options of EngineConfig. json_ready: how it is announced."""

    model: str
    arithmetics: tuple[str, ...]
    device: str
    engine: dict[str, Any]
    price: bool
    log_level: str
    otlp_endpoint: str | None
    json_ready: bool


@guarded
def command(
    model: o.ModelArgument = None,
    class_: o.ClassOption = None,
    best_effort: o.BestEffortOption = False,
    price: o.PriceOption = False,
    device: DeviceOption = "cpu",
    arithmetic: DeviceArithmeticOption = None,
    threads: ThreadsOption = None,
    json_ready: o.JsonReadyOption = False,
    host: o.HostOption = "127.0.0.1",
    port: o.PortOption = 8000,
    served_model_name: o.ServedNameOption = None,
    api_key: o.ApiKeyOption = None,
    admin: o.AdminOption = False,
    allow_origin: o.OriginOption = None,
    max_waiting: o.MaxWaitingOption = None,
    request_timeout: o.TimeoutOption = None,
    max_body: o.MaxBodyOption = None,
    grace: o.GraceOption = None,
    log_level: o.LogLevelOption = "info",
    otlp_endpoint: o.OtlpOption = None,
    max_num_seqs: o.MaxSeqsOption = None,
    max_num_batched_tokens: o.ChunkOption = None,
    kv_cache_memory: o.KvMemoryOption = None,
    block_size: o.BlockSizeOption = None,
    max_model_len: o.MaxLenOption = None,
    policy: o.PolicyOption = "fcfs",
    num_speculative_tokens: o.SpeculationOption = 0,
    receipts: o.ReceiptsOption = o.ReceiptMode.FULL,
    receipts_path: o.ReceiptsPathOption = None,
    receipts_max_age: o.ReceiptsAgeOption = 30.0,
    receipts_max_count: o.ReceiptsCountOption = 100_000,
    signing_key: o.SigningKeyOption = None,
) -> ExitCode:
    """Serve a model with an OpenAI-compatible API. Every answer says which class it has, and its receipt can be replayed."""
    from queueproof.cli.serving import arithmetics_to_serve, contract_of
    from queueproof.engine.config import EngineConfig
    from queueproof.models.loader import name_of
    from queueproof.server.config import ServerConfig
    from queueproof.server.run import listen

    # All that can be wrong without the model is found before it is loaded.
    if log_level not in LOG_LEVELS:
        raise InvalidParameter("log_level", log_level, f"it must be one of {', '.join(LOG_LEVELS)}")
    name = model or settings().model
    engine = _given(
        threads=threads_in_use(threads),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_cache_memory=None if kv_cache_memory is None else o.in_bytes("kv_cache_memory", kv_cache_memory),
        block_size=block_size,
        max_model_len=max_model_len,
        policy=policy,
        num_speculative_tokens=num_speculative_tokens,
    )
    EngineConfig(**engine)
    arithmetics = arithmetics_to_serve(arithmetic, device, best_effort)
    default_class = None if class_ is None else parse_class(class_)
    if default_class is not None:
        contract_of(Model(name, "not loaded yet"), device, arithmetics, {}).grant(default_class)
    deadline: dict[str, Any] = {} if request_timeout is None else {"deadline": request_timeout or None}
    config = ServerConfig(
        model_names=tuple(served_model_name or [name_of(name)]),
        build=__version__,
        host=host,
        port=port,
        api_keys=_keys(api_key),
        admin=admin,
        default_class=default_class,
        receipts=receipts.value,
        allowed_origins=tuple(allow_origin or ()),
        **_given(
            max_waiting=max_waiting,
            max_body=None if max_body is None else o.in_bytes("max_body", max_body),
            grace=grace,
        ),
        **deadline,
    )
    keeper = _keeper(receipts, receipts_path, receipts_max_age * _DAY, receipts_max_count, signing_key)
    plan = Plan(name, arithmetics, device, engine, price, log_level, otlp_endpoint, json_ready)
    with listen(config) as opened:
        return _serve(plan, config, opened, keeper)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _keys(given: list[str] | None) -> tuple[str, ...]:
    """Those of the command line, else that of the environment."""
    if given:
        return tuple(given)
    key = settings().api_key
    return () if key is None else (key,)


def _keeper(
    mode: o.ReceiptMode, path: Path | None, max_age: float, max_count: int, signing_key: Path | None
) -> ReceiptKeeper | None:
    """Raises UsageError for a key that cannot be used, ReceiptStoreError for a file that cannot."""
    if mode is o.ReceiptMode.OFF:
        if signing_key is not None:
            raise UsageError("--signing-key signs receipts, and --receipts off makes none; leave one of them out")
        return None
    from queueproof.server.receipts.keeper import ReceiptKeeper
    from queueproof.server.receipts.signing import Signer
    from queueproof.server.receipts.store import Bounds, ReceiptStore

    signer = None if signing_key is None else Signer.load(signing_key)
    if path is None:
        path = Path(platformdirs.user_data_dir("queueproof", appauthor=False, ensure_exists=True)) / "receipts.sqlite"
    store = ReceiptStore(path, Bounds(max_age=max_age, max_count=max_count))
    return ReceiptKeeper(store, "full" if mode is o.ReceiptMode.FULL else "hash", __version__, signer)


def _serve(plan: Plan, config: ServerConfig, opened: socket.socket, keeper: ReceiptKeeper | None) -> ExitCode:
    from queueproof.cli.loading import shown
    from queueproof.cli.serving import stop_engines
    from queueproof.server.app import make_app
    from queueproof.server.logs import uvicorn_log_config
    from queueproof.server.run import new_event_loop, serve
    from queueproof.server.tracing import open_tracing

    endpoint, name = plan.otlp_endpoint, config.model_names[0]
    tracing = [] if endpoint is None else [open_tracing(endpoint, name, __version__)]
    with shown(err()) as report:
        services, contract = _start(plan, report)
    try:
        extensions = [*_extensions(name, services, contract), *tracing]
        app = make_app(config, services, contract, receipts=keeper, extensions=extensions)
        # While it runs, signals are the server's; it raises them once more when it has ended, and here all is done then.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _done)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            listened = runner.run(
                serve(
                    app,
                    [opened],
                    started=lambda: _announce(plan, config, opened, contract),
                    log_config=uvicorn_log_config(plan.log_level),
                )
            )
    finally:
        stop_engines(services)
    return ExitCode.OK if listened else ExitCode.ENVIRONMENT


def _start(plan: Plan, report: Report) -> tuple[list[EngineService], ContractDocument]:
    """Loads, measures if asked to, and starts. The canary of each arithmetic runs before its weights are loaded."""
    from queueproof.cli.class_price import measure
    from queueproof.cli.serving import VENDOR, contract_of, load_models, start_engines
    from queueproof.engine.replay import receipt_model
    from queueproof.kernels.registry import machine

    served = plan.arithmetics
    measured = (*served, VENDOR) if plan.price and VENDOR not in served else served
    models = load_models(plan.model, measured, plan.device, plan.engine.get("max_model_len"), report)
    report("reading the digests of the weights")
    identity = receipt_model(models[0])
    prices: dict[str, Price] = {}
    if plan.price:
        where = f"{machine(plan.device)}" + (f", {plan.engine['threads']} threads" if plan.device == "cpu" else "")
        prices = measure(models, VENDOR, identity, plan.engine, where, report)
    del models[len(served) :]
    services = start_engines(models, identity, plan.engine, report)
    report("preparing structured output")
    for service in services:
        service.prepare_guides()
    model = Model(identity.name, identity.dtype, identity.sha256)
    return services, contract_of(model, plan.device, served, prices)


def _extensions(name: str, services: list[EngineService], contract: ContractDocument) -> list[Extension]:
    from queueproof.server.logs import LogsExtension
    from queueproof.server.metrics import MetricsExtension
    from queueproof.server.routes.page import PageExtension

    return [MetricsExtension(services, contract, name, __version__), LogsExtension(), PageExtension(services)]


def _done(number: int, frame: object) -> None:
    """The server has ended because of this signal."""


def _announce(plan: Plan, config: ServerConfig, opened: socket.socket, contract: ContractDocument) -> None:
    url = _url(opened)
    offers = [codec.to_plain(offer) for offer in contract.offers]
    if plan.json_ready:
        print_json({"url": url, "pid": os.getpid(), "models": list(config.model_names), "offers": offers})
        return
    console = out()
    console.print(f"{contract.model.name} at {url}", markup=False, soft_wrap=True)
    console.print(_table(contract))
    for refusal in contract.refused:
        console.print(f"not on offer: {refusal.class_.value}. {refusal.reason}", markup=False, soft_wrap=True)
    if not config.api_keys and not _is_local(opened):
        text = "No key is asked for: whoever can reach this address can use it. --api-key changes that."
        err().print(text, markup=False, soft_wrap=True)


def _table(contract: ContractDocument) -> Table:
    priced = any(offer.price is not None for offer in contract.offers)
    table = Table()
    for heading in (
        "class",
        "arithmetic",
        "cannot change an answer",
        *(("speed", "tokens/s", "TPOT ms") if priced else ()),
    ):
        table.add_column(heading, overflow="fold", justify="right" if heading[0] in "stT" else "left")
    for offer in contract.offers:
        cells = [offer.class_.value, offer.arithmetic, ", ".join(offer.axes) or "nothing is promised"]
        if offer.price is not None:
            price = offer.price
            cells += [f"{price.throughput_ratio:.0%}", f"{price.tokens_per_s:.1f}", f"{price.tpot_ms:.2f}"]
        table.add_row(*cells)
    if priced:
        table.caption = f"measured on {next(o.price.measured_on for o in contract.offers if o.price is not None)}"
    return table


def _address(opened: socket.socket) -> tuple[str, int]:
    host, port = opened.getsockname()[:2]
    return str(host), int(port)


def _url(opened: socket.socket) -> str:
    """One that works on this machine."""
    host, port = _address(opened)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_local(opened: socket.socket) -> bool:
    host, _ = _address(opened)
    return host == "::1" or host.startswith("127.")
