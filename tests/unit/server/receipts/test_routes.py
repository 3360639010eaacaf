"""Receipts of a server's answers: made, read back, listed and replayed through its routes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from queueproof.contract.classes import DeterminismClass
from queueproof.contract.receipt import ReceiptDocument, check, read_document
from queueproof.server.extension import Extension, FinishedAnswer
from queueproof.server.receipts.keeper import ReceiptKeeper
from queueproof.server.receipts.make import make_receipt
from queueproof.server.receipts.signing import Signer, Verifier, new_key
from queueproof.server.receipts.store import ReceiptStore
from tests.support.fake_engine import FakeEngine
from tests.support.receipts import a_receipt
from tests.support.serving import CHAT, COMPLETIONS, HELLO, app_of, client_of, error_of, run

SAMPLED = {"prompt": "Once", "max_tokens": 12, "temperature": 0.8, "seed": 2**64 - 1}


class Heard(Extension):
    def __init__(self) -> None:
        self.verdicts: list[tuple[str, bool]] = []

    def replayed(self, verdict: str, class_: DeterminismClass, own: bool) -> None:
        self.verdicts.append((verdict, own))


@asynccontextmanager
async def served(
    *engines: FakeEngine,
    mode: Any = "full",
    path: Path | None = None,
    keeper: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncGenerator[httpx.AsyncClient, None]:
    receipts = ReceiptKeeper(ReceiptStore(path), mode, "1.2.3", **(keeper or {}))
    async with client_of(app_of(*(engines or (FakeEngine(),)), receipts=receipts, **options)) as client:
        yield client


async def answered(client: httpx.AsyncClient, path: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    got = await client.post(path, json=SAMPLED | body if path == COMPLETIONS else {"messages": HELLO, **body})
    assert got.status_code == 200, got.text
    found: dict[str, Any] = got.json()
    return found


async def receipt_id(client: httpx.AsyncClient, **body: Any) -> str:
    found: str = (await answered(client, **body))["determinism"]["receipt"]
    return found


async def replayed(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    got = await client.post("/v1/replay", json=body)
    assert got.status_code == 200, got.text
    found: dict[str, Any] = got.json()
    return found


def test_an_answer_has_a_receipt_that_can_be_read_and_replayed() -> None:
    async def work() -> None:
        engine, heard = FakeEngine(cached=2), Heard()
        async with served(engine, extensions=[heard]) as client:
            answer = await answered(client)
            name = answer["determinism"]["receipt"]
            got = await client.get(f"/v1/receipts/{name}")
            assert got.headers["cache-control"] == "no-store"
            document = read_document(got.text)
            receipt = document.receipt
            assert receipt.id == name and document.signature is None
            assert (receipt.response_id, receipt.index, receipt.build) == (answer["id"], 0, "1.2.3")
            assert receipt.created == answer["created"] and receipt.class_ is DeterminismClass.PORTABLE
            assert receipt.model == engine.model and receipt.arithmetic == "ieee/1" and receipt.family == "any"
            assert receipt.sampling.seed == str(2**64 - 1) and receipt.sampling.temperature == 0.8
            assert receipt.answer.tokens == 12 and receipt.answer.finish_reason == "length"
            assert receipt.prompt_token_ids == tuple(engine.seen[0].prompt)
            found = await replayed(client, id=name)
            assert found == {
                "id": name, "verdict": "same", "tokens": 12, "class": "portable", "arithmetic": "ieee/1"
            }  # fmt: skip
            again = engine.seen[-1]
            assert again.alone and again.prompt == engine.seen[0].prompt and again.request_id.startswith("replay-")
            assert (await replayed(client, receipt=json.loads(receipt.to_json())))["verdict"] == "same"
            assert (await replayed(client, receipt=got.json()))["verdict"] == "same"  # with what is around it
            assert heard.verdicts == [("same", True), ("same", False), ("same", False)]

    run(work())


def test_what_a_request_asked_for_is_in_its_receipt() -> None:
    body = {
        "prompt": "Once", "max_tokens": 9, "min_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 1 << 60,
        "min_p": 0.05, "repetition_penalty": 1.1, "presence_penalty": 0.25, "frequency_penalty": -0.5,
        "stop": ["\n", "zz"], "stop_token_ids": [9, 7], "logit_bias": {"9": -1.5, "5": 2}, "ignore_eos": True,
        "skip_special_tokens": False, "include_stop_str_in_output": True,
    }  # fmt: skip

    async def work() -> None:
        engine = FakeEngine()
        async with served(engine) as client:
            name = await receipt_id(client, **body)
            document = read_document((await client.get(f"/v1/receipts/{name}")).text)
            options = document.receipt.sampling.options()
            assert options["stop"] == ("\n", "zz") and options["stop_token_ids"] == (7, 9)
            assert options["logit_bias"] == {5: 2.0, 9: -1.5} and options["top_k"] == (1 << 53) - 1
            for name in set(body) - {"prompt", "top_k", "stop", "stop_token_ids", "logit_bias"}:
                assert options[name] == body[name], name
            assert (await replayed(client, receipt=json.loads(document.to_json())))["verdict"] == "same"
            first, second = engine.seen[0].params, engine.seen[1].params
            for name in set(options) - {"n", "seed", "top_k"}:
                assert getattr(first, name) == getattr(second, name), name

    run(work())


def test_each_choice_has_its_own_receipt() -> None:
    async def work() -> None:
        async with served() as client:
            answer = await answered(client, prompt=["Once", "Twice"], n=2, seed=5)
            names = [choice["receipt"] for choice in answer["choices"]]
            assert len(set(names)) == 4 and answer["determinism"]["receipt"] == names[0]
            for index, name in enumerate(names):
                receipt = read_document((await client.get(f"/v1/receipts/{name}")).text).receipt
                assert receipt.index == index and receipt.response_id == answer["id"]
                assert (await replayed(client, id=name))["verdict"] == "same"
            assert len((await client.get("/v1/receipts")).json()["data"]) == 4

    run(work())


def test_a_stream_ends_with_the_receipt() -> None:
    async def work() -> None:
        async with served() as client:
            got = await client.post(CHAT, json={"messages": HELLO, "stream": True, "max_tokens": 5, "seed": 3})
            name = next(part for part in got.text.split('"') if part.startswith("rcpt-"))
            assert (await replayed(client, id=name))["verdict"] == "same"

    run(work())


def test_max_tokens_is_the_one_in_use() -> None:
    async def work() -> None:
        async with served(FakeEngine(max_model_len=64)) as client:
            answer = await answered(client, CHAT, seed=1)
            name = answer["determinism"]["receipt"]
            receipt = read_document((await client.get(f"/v1/receipts/{name}")).text).receipt
            assert receipt.prompt_tokens + receipt.sampling.max_tokens == 64

    run(work())


def test_another_answer_is_different_and_says_where() -> None:
    async def work() -> None:
        engine = FakeEngine(script=lambda prompt, params, index: b"abcdef")
        async with served(engine) as client:
            name = await receipt_id(client, max_tokens=6)
            engine.script = lambda prompt, params, index: b"abXdef"
            found = await replayed(client, id=name)
            assert found["verdict"] == "different" and "reason" not in found
            difference = found["difference"]
            assert (difference["what"], difference["step"]) == ("token", 2)
            assert (difference["receipt"]["token"], difference["replay"]["token"]) == ("c", "X")
            assert difference["receipt"]["token_id"] == 99 and len(difference["replay"]["logprob_bits"]) == 8
            listed = (await client.get("/v1/receipts")).json()["data"][0]
            assert listed["verdict"] == "different" and listed["checked"] is not None
            handle = listed["handle"]
            assert await replayed(client, handle=handle) == {
                "handle": handle, "verdict": "different", "tokens": 6, "step": 2
            }  # fmt: skip

    run(work())


def test_digests_are_replayed_with_the_prompt() -> None:
    async def work() -> None:
        engine = FakeEngine()
        async with served(engine, mode="hash") as client:
            name = await receipt_id(client)
            text = (await client.get(f"/v1/receipts/{name}")).text
            assert '"token_ids"' not in text and "prompt_token_ids" not in text and "_bits" not in text
            prompt = engine.seen[0].prompt
            found = await replayed(client, id=name)
            assert found["verdict"] == "unknown" and "does not hold the prompt" in found["reason"]
            assert (await client.get("/v1/receipts")).json()["data"][0]["verdict"] is None
            assert (await replayed(client, id=name, prompt_token_ids=prompt))["verdict"] == "same"
            wrong = await replayed(client, id=name, prompt_token_ids=prompt[:-1])
            assert wrong["verdict"] == "unknown" and "not the receipt's" in wrong["reason"]
            engine.script = lambda prompt, params, index: b"something else"
            found = await replayed(client, id=name, prompt_token_ids=prompt)
            assert found["verdict"] == "different" and "step" not in found["difference"]

    run(work())


def test_receipts_belong_to_the_key_that_made_them() -> None:
    async def work() -> None:
        alice, bob = ({"Authorization": f"Bearer {key}"} for key in ("alice-key", "bob-key"))
        async with served(api_keys=("alice-key", "bob-key")) as client:
            made = await client.post(COMPLETIONS, json=SAMPLED, headers=alice)
            name = made.json()["determinism"]["receipt"]
            assert (await client.get(f"/v1/receipts/{name}", headers=alice)).status_code == 200
            hidden = error_of(await client.get(f"/v1/receipts/{name}", headers=bob), 404)
            unknown = error_of(await client.get(f"/v1/receipts/rcpt-{'0' * 32}", headers=bob), 404)
            assert hidden["code"] == unknown["code"] == "receipt_not_found"
            assert error_of(await client.post("/v1/replay", json={"id": name}, headers=bob), 404)
            for method, path in (("GET", f"/v1/receipts/{name}"), ("GET", "/v1/receipts"), ("POST", "/v1/replay")):
                assert error_of(await client.request(method, path), 401)["code"] == "invalid_api_key"
            # The public part is for everybody with a key: no prompt, no answer, no id.
            listed = await client.get("/v1/receipts", headers=bob)
            (entry,) = listed.json()["data"]
            assert name not in listed.text and entry["handle"] == name[5:13]
            assert set(entry) == {
                "handle", "created", "class", "arithmetic", "prompt_tokens", "tokens", "verdict", "checked"
            }  # fmt: skip
            found = (await client.post("/v1/replay", json={"handle": entry["handle"]}, headers=bob)).json()
            assert found == {"handle": entry["handle"], "verdict": "same", "tokens": 12}

    run(work())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "give one of id, handle and receipt, not none of them"),
        ({"id": "rcpt-" + "0" * 32, "handle": "00000000"}, "not id, handle"),
        ({"handle": "0000000"}, "handle"),
        ({"handle": "0000000G"}, "handle"),
        ({"receipt": {}}, "receipt of schema None"),
        ({"receipt": {"receipt": 3}}, "object"),
        ({"receipt": "rcpt-1"}, "receipt"),
        ({"id": 7}, "id"),
        ({"ids": "x"}, "there is no field 'ids'; did you mean 'id'"),
        ({"id": "rcpt-" + "0" * 32, "prompt_token_ids": ["1"]}, "prompt_token_ids"),
    ],
)
def test_a_malformed_replay_is_400(body: dict[str, Any], message: str) -> None:
    async def work() -> None:
        async with served() as client:
            assert message in error_of(await client.post("/v1/replay", json=body), 400)["message"]

    run(work())


def test_a_receipt_that_was_tampered_with_is_400() -> None:
    async def work() -> None:
        engine = FakeEngine()
        async with served(engine) as client:
            plain = (await client.get(f"/v1/receipts/{await receipt_id(client)}")).json()["receipt"]
            plain["answer"]["token_ids"][1] += 1
            error = error_of(await client.post("/v1/replay", json={"receipt": plain}), 400)
            assert "the id is not that of the content" in error["message"] and "answer.sha256" in error["message"]
            assert (error["param"], len(engine.seen)) == ("receipt", 1)

    run(work())


@pytest.mark.parametrize("name", ["rcpt-" + "0" * 32, "rcpt-1", "x" * 500, "%00", "..%2f..%2fetc"])
def test_an_unknown_receipt_is_404(name: str) -> None:
    async def work() -> None:
        async with served() as client:
            assert error_of(await client.get(f"/v1/receipts/{name}"), 404)
            assert error_of(await client.post("/v1/replay", json={"id": name}), 404)["code"] == "receipt_not_found"
            assert error_of(await client.post("/v1/replay", json={"handle": "0" * 8}), 404)

    run(work())


@pytest.mark.parametrize("limit", ["0", "101", "x", "-1", "9" * 5000, "٣", ""])
def test_the_list_has_a_limit(limit: str) -> None:
    async def work() -> None:
        async with served() as client:
            assert error_of(await client.get("/v1/receipts", params={"limit": limit}), 400)["param"] == "limit"
            for _ in range(3):
                await receipt_id(client)
            listed = (await client.get("/v1/receipts", params={"limit": "2"})).json()["data"]
            assert len(listed) == 2

    run(work())


def test_what_this_server_cannot_tell() -> None:
    engine = FakeEngine(max_model_len=32)
    elsewhere = dataclasses.replace(engine.model, sha256="00" * 32)
    cases = {
        "this server has ieee/1": a_receipt(arithmetic="vendor", class_=DeterminismClass.BEST_EFFORT),
        "another model": a_receipt(model=elsewhere),
        "cannot serve the request": a_receipt(model=engine.model),  # its prompt has an id that no token has
    }

    async def work() -> None:
        async with served(engine) as client:
            for reason, receipt in cases.items():
                found = await replayed(client, receipt=json.loads(receipt.to_json()))
                assert found["verdict"] == "unknown" and reason in found["reason"], found

    run(work())


def test_a_difference_in_best_effort_proves_nothing() -> None:
    async def work() -> None:
        engine = FakeEngine(arithmetic="vendor")
        async with served(FakeEngine(), engine) as client:
            answer = await answered(client, determinism="best-effort")
            assert answer["determinism"]["arithmetic"] == "vendor"
            name = answer["determinism"]["receipt"]
            assert (await replayed(client, id=name))["verdict"] == "same" and engine.seen[-1].alone
            engine.script = lambda prompt, params, index: b"something else"
            found = await replayed(client, id=name)
            assert (
                found["verdict"] == "unknown"
                and "proves nothing" in found["reason"]
                and found["difference"]["step"] == 0
            )

    run(work())


def test_replays_are_limited_and_others_are_served_meanwhile() -> None:
    async def work() -> None:
        engine = FakeEngine()
        async with served(engine, keeper={"max_replays": 2}) as client:
            name = await receipt_id(client)
            engine.hold = asyncio.Event()
            running = [asyncio.create_task(replayed(client, id=name)) for _ in range(2)]
            other = asyncio.create_task(answered(client))
            while len(engine.active) < 3:
                await asyncio.sleep(0.001)
            refused = await client.post("/v1/replay", json={"id": name})
            assert error_of(refused, 429)["code"] == "replays_busy" and int(refused.headers["retry-after"]) >= 1
            engine.hold.set()
            assert [found["verdict"] for found in await asyncio.gather(*running)] == ["same", "same"]
            assert (await other)["choices"]
            engine.hold = None
            assert (await replayed(client, id=name))["verdict"] == "same"  # there is room again

    run(work())


def test_a_replay_that_takes_too_long_is_ended() -> None:
    async def work() -> None:
        engine = FakeEngine()
        async with served(engine, deadline=0.2) as client:
            name = await receipt_id(client)
            engine.hold = asyncio.Event()
            assert error_of(await client.post("/v1/replay", json={"id": name}), 504)["code"] == "deadline_exceeded"
            assert engine.seen[-1].ended == "aborted"

    run(work())


def test_an_engine_that_ends_is_an_error_and_no_verdict() -> None:
    async def work() -> None:
        engine, heard = FakeEngine(), Heard()
        async with served(engine, extensions=[heard]) as client:
            name = await receipt_id(client)
            engine.fail_at = {"Once": "dead"}
            assert error_of(await client.post("/v1/replay", json={"id": name}), 503)["code"] == "engine"
            assert heard.verdicts == []

    run(work())


def test_a_replay_whose_numbers_fail_is_different() -> None:
    async def work() -> None:
        engine = FakeEngine()
        async with served(engine) as client:
            name = await receipt_id(client)
            engine.fail_at = {"Once": "nan"}
            found = await replayed(client, id=name)
            assert found["verdict"] == "different"
            assert found["difference"]["replay"]["finish_reason"] == "error"

    run(work())


def test_signed_receipts_verify(tmp_path: Path) -> None:
    async def work() -> None:
        new_key(tmp_path / "key.pem")
        async with served(keeper={"signer": Signer.load(tmp_path / "key.pem")}) as client:
            got = await client.get(f"/v1/receipts/{await receipt_id(client)}")
            document = read_document(got.text)
            Verifier.load(tmp_path / "key.pem.pub").verify(document)
            assert (await replayed(client, receipt=got.json()))["verdict"] == "same"

    run(work())


def test_receipts_outlive_the_server(tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "receipts.db"
        async with served(path=path) as client:
            names = await asyncio.gather(*(receipt_id(client, seed=i) for i in range(20)))
        async with served(FakeEngine(max_num_seqs=2), path=path) as client:
            for name in names:
                assert (await replayed(client, id=name))["verdict"] == "same"

    run(work())


def test_an_answer_without_a_place_for_its_receipt_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        store = ReceiptStore(tmp_path / "receipts.db")
        async with client_of(app_of(FakeEngine(), receipts=ReceiptKeeper(store, "full", "1.2.3"))) as client:
            store._db.execute("PRAGMA max_page_count = 1")
            answers = [await answered(client, prompt="x" * 300) for _ in range(8)]
            assert answers[-1]["determinism"]["receipt"] is None and answers[-1]["choices"][0]["text"]

    run(work())
    assert "no receipt for cmpl-" in caplog.text


def test_an_answer_that_was_cut_off_has_no_receipt() -> None:
    async def work() -> None:
        engine = FakeEngine()
        prompt = engine.encode("x")
        params = engine.params(max_tokens=4, seed=1)
        (output,) = [o async for o in engine.generate(prompt, params, "r") if o.finished]
        for reason, made in (("stop", True), ("length", True), ("abort", False), ("error", False), (None, False)):
            choice = dataclasses.replace(output.outputs[0], finish_reason=reason)
            answer = FinishedAnswer("cmpl-1", 0, 1, None, DeterminismClass.PORTABLE, engine, params, output, choice)
            receipt = make_receipt(answer, "full", "1")
            assert (receipt is not None) == made
            if receipt is not None:
                check(receipt)
                assert read_document(receipt.to_json()) == ReceiptDocument(receipt)

    run(work())
