"""What a class costs here: tokens/s and TPOT of each arithmetic, measured in turns at start-up."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from queueproof.cli.serving import start_engines, stop_engines
from queueproof.contract.document import Price
from queueproof.contract.errors import UsageError

if TYPE_CHECKING:
    from queueproof.cli.loading import Report
    from queueproof.contract.receipt import ReceiptModel
    from queueproof.engine.service import EngineService
    from queueproof.models.loader import LoadedModel

USERS, PROMPT, ROUNDS = 8, 32, 3
SECONDS = 1.5  # that a run shall take, about
LEAST, MOST = 4, 64  # tokens of an answer


@dataclass(frozen=True, slots=True)
class Run:
    """tokens_per_s: of all users together, from the first request to the last token. tpot: seconds, the median of users."""

    tokens_per_s: float
    tpot: float


def measure(
    models: Sequence[LoadedModel],
    baseline: str,
    identity: ReceiptModel,
    options: dict[str, Any],
    where: str,
    report: Report,
) -> dict[str, Price]:
    """The price of each model's arithmetic, `baseline` being the one whose ratio is 1. On small engines made for it.

    They take turns, so that what else the machine does meets all of them; medians are taken. options: of EngineConfig, those
    of the sizes left out. where: the machine, in words. Raises UsageError for a model whose context is too short.
    """
    room = min(model.max_len for model in models)
    if room < PROMPT + LEAST:
        raise UsageError(f"--price needs a context of at least {PROMPT + LEAST} tokens, the model has {room}")
    sizes = {"max_num_seqs": USERS, "max_model_len": min(room, PROMPT + MOST), "enable_prefix_caching": False}
    services = start_engines(models, identity, options | sizes, report)
    try:
        return _measure(services, baseline, where, report)
    finally:
        stop_engines(services)


def _measure(services: Sequence[EngineService], baseline: str, where: str, report: Report) -> dict[str, Price]:
    length = services[0].max_model_len - PROMPT
    runs: dict[str, list[Run]] = {service.arithmetic: [] for service in services}
    report("measuring the price", 0, ROUNDS)
    with asyncio.Runner() as runner:
        for service in services:  # the first steps are slower than those to come
            tpot = runner.run(_run(service, LEAST)).tpot
            length = max(LEAST, min(length, int(SECONDS / tpot)))
        for done in range(ROUNDS):
            for service in services:
                runs[service.arithmetic].append(runner.run(_run(service, length)))
            report("measuring the price", done + 1, ROUNDS)
    return _prices(runs, baseline, f"{where}; {USERS} users, {PROMPT} + {length} tokens each")


def _prices(runs: dict[str, list[Run]], baseline: str, where: str) -> dict[str, Price]:
    found = {}
    for arithmetic, mine in runs.items():
        ratios = [a.tokens_per_s / b.tokens_per_s for a, b in zip(mine, runs[baseline], strict=True)]
        found[arithmetic] = Price(
            throughput_ratio=round(statistics.median(ratios), 3),
            measured_on=where,
            tokens_per_s=round(statistics.median(run.tokens_per_s for run in mine), 2),
            tpot_ms=round(1e3 * statistics.median(run.tpot for run in mine), 3),
        )
    return found


async def _run(service: EngineService, length: int) -> Run:
    """All users at once, with prompts that share nothing."""
    start = time.perf_counter()
    tpots = await asyncio.gather(*(_user(service, user, length) for user in range(USERS)))
    return Run(USERS * length / (time.perf_counter() - start), statistics.median(tpots))


async def _user(service: EngineService, user: int, length: int) -> float:
    prompt = [(7919 * (user * PROMPT + i) + 11) % service.vocab_size for i in range(PROMPT)]
    params = service.params(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False)
    first = last = None
    async for output in service.generate(prompt, params, f"price-{user}"):
        metrics = output.metrics
        first, last = metrics.first_token_time, metrics.finish_time
    assert first is not None and last is not None
    return max(last - first, 1e-9) / (length - 1)
