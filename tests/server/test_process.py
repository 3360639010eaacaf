"""`queueproof serve` as a process: two arithmetics side by side that cannot be seen in each other's bits, and how it ends."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from queueproof.engine.guide import library
from queueproof.engine.llm import LLM
from queueproof.engine.outputs import RequestOutput
from queueproof.engine.sampling_params import SamplingParams
from tests.support.checkpoints import checkpoint, write_hf
from tests.support.server_process import COMMAND, ServerProcess

SIZES = (
    "--threads",
    "1",
    "--max-num-seqs",
    "4",
    "--chunk",
    "32",
    "--kv-cache-memory",
    "48KiB",
    "--max-model-len",
    "96",
)
SCHEMA = {"type": "object", "properties": {"hello": {"enum": [1, 12, "w"]}}, "required": ["hello"], "additionalProperties": False}  # fmt: skip
COMPLETIONS = "/v1/completions"
Body = dict[str, Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(checkpoint(), tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    options = ("--best-effort", "--admin", "--num-speculative-tokens", "2", "--policy", "random")
    receipts = ("--receipts-path", str(folder / "receipts.sqlite"))
    with ServerProcess(model, *SIZES, *options, *receipts, log=folder / "log") as process:
        yield process


def draw(seed: int) -> list[Body]:
    """Requests that share beginnings, of several lengths, sampled or not, some with a schema."""
    rng = random.Random(seed)
    common = [rng.randrange(3, 280) for _ in range(64)]
    bodies: list[Body] = []
    for i in range(16):
        prompt = common[: rng.choice([0, 16, 32, 32])] + [rng.randrange(3, 280) for _ in range(rng.choice([1, 2, 17]))]
        body: Body = {"model": "tiny", "prompt": prompt, "max_tokens": rng.choice([1, 45, 45]), "seed": 1000 + i}
        body["temperature"] = rng.choice([0, 1.0])
        body |= rng.choice([{}, {"top_p": 0.9}, {"top_k": 9, "presence_penalty": 0.5}, {"logit_bias": {"5": 2.5}}])
        if library() is not None and i % 4 == 1:
            form = {"name": "hello", "schema": SCHEMA}
            body |= {"response_format": {"type": "json_schema", "json_schema": form}, "max_tokens": 45}
        bodies.append(body)
    return bodies


def params(body: Body) -> SamplingParams:
    same = {k: v for k, v in body.items() if k not in ("model", "prompt", "determinism", "response_format")}
    if "response_format" in body:
        same["guide"] = json.dumps(body["response_format"]["json_schema"]["schema"])
    if "logit_bias" in same:
        same["logit_bias"] = {int(k): v for k, v in same["logit_bias"].items()}
    return SamplingParams(**same)


def alone(model: Path, bodies: list[Body]) -> list[Body]:
    """What receipts should say of the `portable` answers: each computed by itself."""
    with LLM(
        model, arithmetic="ieee/1", threads=1, max_num_seqs=1, max_model_len=96, enable_prefix_caching=False
    ) as llm:
        return [in_bits(llm.generate({"prompt_token_ids": b["prompt"]}, params(b))[0]) for b in bodies]


def in_bits(output: RequestOutput) -> Body:
    (answer,) = output.outputs
    bits = ([f"{word:08x}" for word in words.tolist()] for words in (answer.logprob_bits, answer.lse_bits))
    return {"token_ids": list(answer.token_ids), "finish_reason": answer.finish_reason} | dict(
        zip(("logprob_bits", "lse_bits"), bits, strict=True)
    )


async def ask(client: httpx.AsyncClient, body: Body, class_: str) -> Body:
    response = await client.post(COMPLETIONS, json=body | {"determinism": class_})
    assert response.status_code == 200, response.text
    answer: Body = response.json()
    assert answer["determinism"]["class"] == class_
    kept = await client.get(f"/v1/receipts/{answer['determinism']['receipt']}")
    receipt = kept.raise_for_status().json()["receipt"]
    assert receipt["arithmetic"] == {"portable": "ieee/1", "best-effort": "vendor"}[class_]
    found = {k: receipt["answer"][k] for k in ("token_ids", "finish_reason", "logprob_bits", "lse_bits")}
    return found | {"text": answer["choices"][0]["text"]}


def bits(answer: Body) -> Body:
    return {k: v for k, v in answer.items() if k != "text"}


def test_neither_arithmetic_is_seen_in_the_bits_of_the_other(server: ServerProcess, model: Path) -> None:
    """`best-effort` requests one after another in a quiet server, then again while all `portable` ones run at once and twice,
    then everything together.

    `portable` answers never change. The vendor's kernels keep their bits only where their own batch, chunks and cache are
    the same, so theirs are compared where these are; in the crowd they are load.
    """
    bodies = draw(1)

    async def load() -> tuple[list[Body], list[Body], list[Body]]:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:

            async def in_turn() -> list[Body]:
                await client.post("/reset_prefix_cache")
                return [await ask(client, body, "best-effort") for body in bodies]

            quiet = await in_turn()
            disturbed, *first = await asyncio.gather(in_turn(), *(ask(client, b, "portable") for b in bodies + bodies))
            crowd = [ask(client, body, class_) for body in bodies for class_ in ("portable", "best-effort")]
            second = await asyncio.gather(*crowd)
            return quiet, disturbed, [*first, *second[::2]]

    before = server.counters()
    quiet, disturbed, portable = asyncio.run(load())
    after = server.counters()
    expected = alone(model, bodies)
    assert [bits(answer) for answer in portable] == expected * 3
    assert quiet == disturbed
    assert [bits(answer) for answer in quiet] != expected, "the two arithmetics could not be told apart"
    guided = [a for a, b in zip(portable, bodies * 3, strict=True) if "response_format" in b]
    assert all(json.loads(a["text"])["hello"] in (1, 12, "w") for a in guided if a["finish_reason"] == "stop")
    # Witnesses: the schedule of the one was as restless as it could be.
    moved = {name: after[name] - before[name] for name in after if name in before and 'arithmetic="ieee/1"' in name}
    assert sum(v for k, v in moved.items() if "preemptions_total" in k) > 0
    assert sum(v for k, v in moved.items() if "prefix_cache_hits_total" in k) > 0


def test_each_arithmetic_has_a_cache_of_its_own(server: ServerProcess) -> None:
    prompt = list(range(20, 70))

    def cached(class_: str) -> int:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 2, "determinism": class_}
        answer = client.post(COMPLETIONS, json=body).raise_for_status().json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    with server.client() as client:
        client.post("/reset_prefix_cache").raise_for_status()
        assert [cached(c) for c in ("portable", "best-effort", "portable", "best-effort")] == [0, 0, 48, 48]


def test_what_it_says_of_itself(server: ServerProcess) -> None:
    with server.client() as client:
        contract = client.get("/v1/contract").json()
        assert [o["class"] for o in contract["offers"]] == ["portable", "best-effort"] and "refused" in contract
        assert not any("price" in offer for offer in contract["offers"]), "none was measured"
        assert len(contract["model"]["sha256"]) == 64
        refused = client.post(COMPLETIONS, json={"model": "tiny", "prompt": "x", "determinism": "perfect"})
        assert refused.status_code == 422
        wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": True}}}
        answer = client.post(COMPLETIONS, json={"model": "tiny", "prompt": "x", "response_format": wrong})
        assert answer.status_code == 400 and "uniqueItems" in answer.json()["error"]["message"]
    assert "portable" in server.text and "ieee/1" in server.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_answers_end(model: Path, tmp_path: Path, number: signal.Signals) -> None:
    options = (*SIZES[:2], "--receipts", "off", "--price", "--api-key", "key")
    with ServerProcess(model, *options, log=tmp_path / "log") as process:
        with process.client(headers={"Authorization": "Bearer key"}) as client:
            prices = [offer["price"] for offer in client.get("/v1/contract").json()["offers"]]
            assert all(p["tokens_per_s"] > 0 and p["tpot_ms"] > 0 and p["throughput_ratio"] > 0 for p in prices)
            assert httpx.get(process.url + "/v1/contract").status_code == 401
            body = {"model": "tiny", "prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}
            with client.stream("POST", COMPLETIONS, json=body) as response:
                lines = response.iter_lines()
                next(lines)
                process.process.send_signal(number)
                rest = list(lines)
        assert rest[-1] == "data: [DONE]" or rest[-2] == "data: [DONE]"
        assert '"finish_reason":"length"' in "".join(rest)
        assert process.process.wait(30) == 0


def test_a_port_that_is_taken_and_a_line_for_scripts(model: Path, tmp_path: Path) -> None:
    options = ["--host", "127.0.0.1", "--threads", "1", "--receipts", "off", "--json-ready"]
    first = subprocess.Popen(
        [*COMMAND, str(model), "--port", "0", *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert first.stdout is not None
        ready = json.loads(first.stdout.readline())
        assert ready["pid"] == first.pid and ready["models"] == ["tiny"] and ready["offers"][0]["class"] == "portable"
        assert httpx.get(ready["url"] + "/health").status_code == 200
        port = ready["url"].rpartition(":")[2]
        second = subprocess.run(
            [*COMMAND, str(model), "--port", port, *options], capture_output=True, text=True, timeout=60
        )
        assert second.returncode == 2 and not second.stdout
        assert second.stderr.startswith("queueproof: cannot listen on") and second.stderr.count("\n") == 1
    finally:
        first.terminate()
        first.communicate(timeout=30)
    assert first.returncode == 0
