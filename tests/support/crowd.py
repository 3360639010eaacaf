"""A soak from beginning to end: a server, its crowd, receipts that replay, a restart with other options, and what was found."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from queueproof.engine.protocols import LoadedModel
from tests.support.server_process import ServerProcess
from tests.support.soak import Asked, Judge, Sizes, Soak, draw_pool, fetch_receipts, watch


@dataclass
class Crowd:
    """What a soak found. verdicts: of some receipts, on the server that made them and after a restart.

    counters: of /metrics. rss: bytes of the server's memory when it was ready and after the soak.
    """

    asked: Sequence[Asked]
    errors: Sequence[str]
    receipts: dict[str, Any]
    largest_batch: int
    counters: dict[str, float]
    rss: tuple[int, int]
    verdicts: list[str]
    verdicts_after_restart: list[str]

    @property
    def left(self) -> int:
        """Clients that did not wait for the end of their answer."""
        return sum(item.left for item in self.asked)

    @cached_property
    def of_ieee1(self) -> dict[str, float]:
        """Counters of the engine that computes ieee/1, by their short names."""
        mine = {
            name: value
            for name, value in self.counters.items()
            if 'arithmetic="ieee/1"' in name and "class=" not in name
        }
        return {name.partition("{")[0].removeprefix("queueproof_"): value for name, value in mine.items()}

    def judge(self, loaded: LoadedModel) -> tuple[int, list[str]]:
        """How many answers of this arithmetic were compared with those alone, and where they differ."""
        wanted, judge = loaded.backend.arithmetic, Judge(loaded, self.receipts)
        found = judge.differences(
            item
            for item in self.asked
            if item.answers and self.receipts[str(item.answers[0].receipt)]["arithmetic"] == wanted
        )
        return judge.compared, found


def soak_server(
    model: str | Path,
    folder: Path,
    options: Sequence[str],
    options_after_restart: Sequence[str],
    sizes: Sizes,
    seconds: float,
    clients: int,
    seed: int,
    replays: int = 50,
) -> Crowd:
    file = folder / "receipts.sqlite"
    with ServerProcess(model, "--best-effort", *options, log=folder / "log", receipts=file) as server:
        before = server.rss()
        soak = Soak(server.url, draw_pool(seed, sizes), sizes, clients, seed)
        largest_batch = asyncio.run(watch(server.url, soak.run(seconds)))
        rss, counters = server.rss(), server.counters()
        receipts = asyncio.run(fetch_receipts(server.url, soak.asked))
        promised = sorted(i for i, receipt in receipts.items() if receipt["class"] != "best-effort")
        chosen = random.Random(seed).sample(promised, min(replays, len(promised)))
        verdicts = _replayed(server, chosen)
        assert server.stop() == 0, server.text
    with ServerProcess(model, *options_after_restart, log=folder / "log2", receipts=file) as server:
        again = _replayed(server, chosen)
    return Crowd(soak.asked, soak.errors, receipts, largest_batch, counters, (before, rss), verdicts, again)


def _replayed(server: ServerProcess, receipts: Sequence[str]) -> list[str]:
    with server.client() as client:
        return [client.post("/v1/replay", json={"id": receipt}).json()["verdict"] for receipt in receipts]
