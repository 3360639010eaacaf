"""Receipts of a busy server over real kernels, replayed by another one, and by the library."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from queueproof.contract.classes import arithmetic_class
from queueproof.contract.document import ContractDocument, Model, Offer
from queueproof.contract.receipt import Receipt, read_document
from queueproof.contract.verdict import Outcome
from queueproof.engine.llm import LLM
from queueproof.engine.replay import replay
from queueproof.engine.service import EngineService
from queueproof.kernels.registry import backend
from queueproof.models.loader import LoadedModel, load_model
from queueproof.server.app import make_app
from queueproof.server.config import ServerConfig
from queueproof.server.receipts.keeper import ReceiptKeeper
from queueproof.server.receipts.store import ReceiptStore
from tests.support.checkpoints import checkpoint, write_gguf
from tests.support.serving import CHAT, COMPLETIONS, client_of

ANSWERS = 50


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(checkpoint(), tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(model_file: Path) -> LoadedModel:
    return load_model(model_file, backend("ieee/1"))


@asynccontextmanager
async def served(
    *models: LoadedModel, path: Path, **options: Any
) -> AsyncGenerator[tuple[httpx.AsyncClient, list[EngineService]], None]:
    engines = [EngineService(model, **options) for model in models]
    offers = tuple(Offer.of(arithmetic_class(e.arithmetic), e.arithmetic) for e in engines)
    contract = ContractDocument(Model("tiny", "bfloat16"), "cpu", offers)
    keeper = ReceiptKeeper(ReceiptStore(path), "full", "1.2.3", max_replays=8)
    config = ServerConfig(model_names=("tiny",), build="1.2.3")
    try:
        async with client_of(make_app(config, engines, contract, keeper), timeout=120.0) as client:
            yield client, engines
    finally:
        for engine in engines:
            engine.close()


def draw(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A request of any kind: greedy or sampled, penalties, stops, several choices, seed given or not, a chat, a stream."""
    text = rng.choice(["hello world", "hello", "12 im"]) * rng.randint(1, 9) + str(rng.randint(0, 9))
    body: dict[str, Any] = {
        "max_tokens": rng.randint(1, 40),
        "temperature": rng.choice([0, 1.0, 4.0, 8.0]),
        "top_p": rng.choice([1.0, 0.9]),
        "presence_penalty": rng.choice([0, 0, 0.5]),
        "frequency_penalty": rng.choice([0, 0, 0.3]),
        "n": rng.choice([1, 1, 2]),
        "stream": rng.random() < 0.3,
    }
    if rng.random() < 0.5:
        body["seed"] = rng.getrandbits(63)
    if rng.random() < 0.4:
        body["stop"] = rng.sample(["e", "q", "7", "ll"], 2)
    if rng.random() < 0.3:
        body["logit_bias"] = {str(rng.randint(3, 250)): rng.uniform(-5, 5)}
    if rng.random() < 0.5:
        return CHAT, body | {"messages": [{"role": "user", "content": text}]}
    return COMPLETIONS, body | {"prompt": text}


async def receipts_of(client: httpx.AsyncClient, seed: int) -> list[str]:
    """The ids in the answer to a drawn request."""
    rng = random.Random(seed)
    await asyncio.sleep(rng.uniform(0, 0.3))
    path, body = draw(rng)
    got = await client.post(path, json=body)
    assert got.status_code == 200, got.text
    return sorted({part for part in got.text.split('"') if part.startswith("rcpt-")})


def test_receipts_of_a_crowd_replay_after_a_restart(tmp_path: Path, model: LoadedModel) -> None:
    path = tmp_path / "receipts.db"

    async def write() -> list[str]:
        busy: dict[str, Any] = {"threads": 2, "max_num_seqs": 6, "max_num_batched_tokens": 64, "num_blocks": 14}
        async with served(model, path=path, **busy) as (client, (engine,)):
            found = [
                name
                for names in await asyncio.gather(*(receipts_of(client, i) for i in range(ANSWERS)))
                for name in names
            ]
            # In the middle of others, too.
            crowd = asyncio.gather(*(receipts_of(client, i) for i in range(100, 120)))
            assert await verdict(client, found[0]) == "same"
            await crowd
            # Witnesses: there was a crowd, and it was not always easy.
            load = engine.load()
            assert load.preemptions > 0 and load.prefix_cache_hit_tokens > 0
            assert load.generated_tokens > 2 * load.steps
        return found

    async def read(names: list[str]) -> list[Receipt]:
        async with served(model, path=path, threads=1, max_num_seqs=2, num_speculative_tokens=3) as (client, _):
            assert await asyncio.gather(*(verdict(client, name) for name in names[:8])) == ["same"] * 8
            for name in names[8:]:
                assert await verdict(client, name) == "same"
            return [read_document((await client.get(f"/v1/receipts/{name}")).text).receipt for name in names]

    names = asyncio.run(write())
    assert len(names) >= ANSWERS
    receipts = asyncio.run(read(names))
    assert {receipt.answer.finish_reason for receipt in receipts} == {"stop", "length"}
    with LLM(model, threads=1) as llm:
        assert all(replay(llm, receipt).outcome is Outcome.SAME for receipt in receipts)


async def verdict(client: httpx.AsyncClient, name: str) -> str:
    got = await client.post("/v1/replay", json={"id": name})
    assert got.status_code == 200, got.text
    found: str = got.json()["verdict"]
    return found


def test_kernels_under_a_false_name_are_found_out(tmp_path: Path, model: LoadedModel, model_file: Path) -> None:
    """Negative control: the libraries' own sums, called ieee/1."""
    path = tmp_path / "receipts.db"
    door: Any = backend("vendor")
    vendor = load_model(model_file, door)

    async def work() -> None:
        async with served(model, path=path, threads=1) as (client, _):
            names = [name for i in range(12) for name in await receipts_of(client, i)]
        door.arithmetic = "ieee/1"
        async with served(vendor, path=path, threads=1) as (client, _):
            assert [await verdict(client, name) for name in names] == ["different"] * len(names)
            listed = (await client.get("/v1/receipts?limit=100")).json()["data"]
            assert {entry["verdict"] for entry in listed} == {"different"}

    asyncio.run(work())


def test_both_arithmetics_in_one_server_replay_on_their_own_engine(
    tmp_path: Path, model: LoadedModel, model_file: Path
) -> None:
    vendor = load_model(model_file, backend("vendor"))

    async def work() -> None:
        async with served(model, vendor, path=tmp_path / "receipts.db", threads=1) as (client, _):
            body = {"prompt": "hello", "max_tokens": 8, "seed": 1}
            for asked, given in (("portable", "ieee/1"), ("best-effort", "vendor")):
                answer = (await client.post(COMPLETIONS, json=body | {"determinism": asked})).json()
                assert answer["determinism"]["arithmetic"] == given
                got = await client.post("/v1/replay", json={"id": answer["determinism"]["receipt"]})
                assert got.json()["arithmetic"] == given and got.json()["class"] == asked
                assert asked == "best-effort" or got.json()["verdict"] == "same"

    asyncio.run(work())
