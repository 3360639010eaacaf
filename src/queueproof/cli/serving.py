"""What a server is made of: models loaded for each arithmetic on offer, their engines, and the contract that says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from queueproof.cli import loading
from queueproof.contract.classes import DeterminismClass, arithmetic_class
from queueproof.contract.document import ContractDocument, Model, Offer, Price, Refusal
from queueproof.contract.errors import InvalidParameter, UsageError
from queueproof.kernels.registry import SUPPORTED, arithmetics_on, default_arithmetic

if TYPE_CHECKING:
    from queueproof.cli.loading import Report
    from queueproof.contract.receipt import ReceiptModel
    from queueproof.engine.service import EngineService
    from queueproof.models.loader import LoadedModel

VENDOR = "vendor"


def arithmetics_to_serve(asked: str | None, device: str, best_effort: bool) -> tuple[str, ...]:
    """The strongest first. Raises UsageError, or InvalidParameter for a device of another name."""
    first = default_arithmetic(device) if asked is None else asked
    if arithmetic_class(first) is DeterminismClass.BEST_EFFORT:
        if not best_effort:
            raise UsageError(f"{first} promises nothing; to serve it all the same, say --best-effort")
        return (first,)
    return (first, VENDOR) if best_effort and VENDOR in arithmetics_on(device) else (first,)


def contract_of(model: Model, device: str, arithmetics: Sequence[str], prices: dict[str, Price]) -> ContractDocument:
    """Each arithmetic is on offer as its own class; what none of them keeps is refused, with the reason."""
    offers = tuple(Offer.of(arithmetic_class(name), name, prices.get(name)) for name in arithmetics)
    refused = tuple(
        Refusal(wanted, _reason(wanted, device, arithmetics))
        for wanted in DeterminismClass
        if not any(offer.class_.satisfies(wanted) for offer in offers)
    )
    return ContractDocument(model, device, offers, refused)


def _reason(wanted: DeterminismClass, device: str, arithmetics: Sequence[str]) -> str:
    able = [(a, d) for a, d in SUPPORTED if arithmetic_class(a).satisfies(wanted)]
    served = " and ".join(arithmetics)
    here = [a for a, d in able if d == device]
    if here:
        return f"This server computes with {served} only; {here[0]} would keep it."
    elsewhere = ", ".join(f"{a} on {d}" for a, d in able)
    return f"No arithmetic on {device} keeps it; {elsewhere} does."


def load_models(
    model: str, arithmetics: Sequence[str], device: str, max_model_len: int | None, report: Report
) -> list[LoadedModel]:
    """The model for each arithmetic. Raises what loading raises."""
    try:
        return [loading.load(model, a, report, max_len=max_model_len, device=device) for a in arithmetics]
    except InvalidParameter as error:
        if error.name != "max_len":
            raise
        raise InvalidParameter("max_model_len", error.value, error.allowed) from None  # its name here


def start_engines(
    models: Sequence[LoadedModel], identity: ReceiptModel, options: dict[str, Any], report: Report
) -> list[EngineService]:
    """An engine for each, with a cache of its own. options: of EngineConfig. Nothing is left running if one cannot be made."""
    from queueproof.engine.service import EngineService

    services: list[EngineService] = []
    try:
        for i, model in enumerate(models):
            report(f"making the engine of {model.backend.arithmetic}")
            share = 1.0 / (len(models) - i)  # of what those before it left
            services.append(EngineService(model, identity, kv_cache_share=share, **options))
    except BaseException:
        stop_engines(services)
        raise
    return services


def stop_engines(services: Sequence[EngineService]) -> None:
    for service in services:
        service.close()
