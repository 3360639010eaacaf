"""A real server with two users, one of whom is after the other's data or everybody's time."""

from __future__ import annotations

import dataclasses
import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from queueproof.contract import codec
from queueproof.contract.classes import DeterminismClass
from queueproof.contract.receipt import Bias, Receipt, prompt_digest, read_document, with_id
from tests.support.checkpoints import checkpoint, write_hf
from tests.support.raw_http import connect, exchange, post
from tests.support.server_process import ServerProcess
from tests.support.serving import wait_until
from tests.support.witness import Witness

pytestmark = pytest.mark.xdist_group("attacks")  # one server for all of them

ALICE, MALLORY = "alice-0123456789", "mallory-9876543210"
SECRET = "the number of my account is 4711 0815"
COMPLETIONS, REPLAY = "/v1/completions", "/v1/replay"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    model = write_hf(checkpoint(), folder / "tiny")
    options = ("--api-key", ALICE, "--api-key", MALLORY, "--max-num-seqs", "8", "--threads", "1")
    with ServerProcess(model, *options, log=folder / "log") as process:
        yield process


@pytest.fixture(scope="module")
def alice(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.client(headers={"Authorization": f"Bearer {ALICE}"}) as client:
        yield client


@pytest.fixture(scope="module")
def mallory(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.client(headers={"Authorization": f"Bearer {MALLORY}"}) as client:
        yield client


def ask(client: httpx.Client, **more: Any) -> dict[str, Any]:
    body = {"prompt": SECRET, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True} | more
    found: dict[str, Any] = client.post(COMPLETIONS, json=body).raise_for_status().json()
    return found


def receipt_of(client: httpx.Client, answer: dict[str, Any]) -> Receipt:
    name = answer["determinism"]["receipt"]
    return read_document(client.get(f"/v1/receipts/{name}").raise_for_status().text).receipt


PATHS = """
    /v1/models //v1/models /v1/models/ /V1/MODELS /%76%31/models /v1/models/%2e%2e /metrics /metrics? /metrics/. /health/../metrics
    /page/../metrics /page/%2e%2e/metrics /page//metrics /page/..%2f..%2fpyproject.toml /page/../../../../etc/passwd
    /page/%2e%2e%2f%2e%2e%2f%2e%2e%2fetc%2fpasswd /page/..\\..\\app.py /page/ /page/page.py /page/__init__.py /live/state
    /live/events /live/receipts /v1/receipts /v1/receipts/.. /v1/receipts/%2e%2e%2freceipts /v1/receipts/* /v1/contract
    /.well-known/queueproof /version /tokenize /docs /openapi.json /reset_prefix_cache /health%00 /health;x /health/ *
    http://127.0.0.1/metrics /%ff /%c0%ae%c0%ae/metrics /v1/completions /v1/chat/completions /v1/replay /detokenize
"""


def test_no_spelling_of_a_path_opens_a_route_without_the_key(server: ServerProcess) -> None:
    opened = []
    for path in PATHS.split():
        for key in ("", "Authorization: Bearer wrong\r\n", "Authorization: Basic YTpi\r\n", f"X-Api-Key: {ALICE}\r\n"):
            for method in ("GET", "POST"):
                head = f"{method} {path} HTTP/1.1\r\nHost: a\r\n{key}Content-Length: 0\r\n\r\n"
                reply = exchange(server.port, head.encode("latin-1"))
                if reply is None or reply.status not in (400, 401, 404, 405) or b"root:" in reply.body:
                    opened.append((method, path, reply))
    assert not opened


@pytest.mark.parametrize(
    "key", [ALICE[:-1], ALICE + "0", ALICE.upper(), f"{ALICE},{MALLORY}", f"{ALICE} {MALLORY}", ""]
)
def test_keys_that_are_nearly_right(key: str, server: ServerProcess) -> None:
    reply = exchange(server.port, f"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
    assert reply is not None and reply.status == 401


def test_nothing_that_is_told_to_others_has_words_ids_or_receipts_of_a_user(
    server: ServerProcess, alice: httpx.Client, mallory: httpx.Client
) -> None:
    answer = ask(alice)
    (choice,) = answer["choices"]
    name = answer["determinism"]["receipt"]
    told = [
        mallory.get(path).text for path in ("/live/state", "/v1/receipts", "/metrics", "/v1/models", "/v1/contract")
    ]
    with mallory.stream("GET", "/live/events") as events:
        ask(alice)
        lines = events.iter_lines()
        told += [next(lines) for _ in range(4)]
    told += [server.text]  # operators read the log, and it goes to other machines
    private = [SECRET, SECRET[:12], choice["text"], name[8:], ALICE, MALLORY]
    private += [json.dumps(ids)[1:-1] for ids in (choice["prompt_token_ids"], choice["token_ids"])]
    everything = "".join("\n".join(told).split())
    assert not [text for text in private if "".join(text.split()) in everything]


def test_another_users_receipt_is_as_unknown_as_none(alice: httpx.Client, mallory: httpx.Client) -> None:
    name = ask(alice)["determinism"]["receipt"]
    for made_up in (name, "rcpt-" + "0" * 32):
        assert mallory.get(f"/v1/receipts/{made_up}").status_code == 404
        assert mallory.post(REPLAY, json={"id": made_up}).status_code == 404
    assert alice.get(f"/v1/receipts/{name}").status_code == 200


def test_a_handle_tells_nothing_of_the_prompt(alice: httpx.Client, mallory: httpx.Client) -> None:
    """Not even whether a guess is right."""
    answer = ask(alice)
    handle = answer["determinism"]["receipt"].removeprefix("rcpt-")[:8]
    assert set(mallory.post(REPLAY, json={"handle": handle}).json()) == {"handle", "verdict", "tokens"}
    right = answer["choices"][0]["prompt_token_ids"]
    guesses = [mallory.post(REPLAY, json={"handle": handle, "prompt_token_ids": ids}) for ids in (right, [5, 6])]
    assert guesses[0].status_code == 400 and guesses[0].json() == guesses[1].json()


def test_the_cache_tells_nobody_what_another_user_asked(alice: httpx.Client, mallory: httpx.Client) -> None:
    def cached(client: httpx.Client) -> int:
        found: int = ask(client, prompt=f"asked here alone, twice: {SECRET}")["usage"]["prompt_tokens_details"][
            "cached_tokens"
        ]
        return found

    assert cached(alice) == 0
    assert cached(mallory) == 0
    assert cached(alice) > 0


def forged(receipt: Receipt, **changes: Any) -> dict[str, Any]:
    """With other sampling parameters and a sound id."""
    sampling = dataclasses.replace(receipt.sampling, **changes)
    plain: dict[str, Any] = codec.to_plain(with_id(dataclasses.replace(receipt, sampling=sampling)))
    return plain


FORGED: dict[str, dict[str, Any]] = {
    "the longest answer there may be": {"max_tokens": 1 << 52, "min_tokens": 1 << 52},
    "ten thousand stops": {"stop": tuple(f"s{i}" for i in range(10_000))},
    "long stops": {"stop": tuple(chr(200 + i) * 2000 for i in range(30))},
    "a hundred thousand biases": {"logit_bias": tuple(Bias(i, 1.0) for i in range(60_000))},
    "ids that end it": {"stop_token_ids": tuple(range(60_000))},
    "a schema of a megabyte": {"guide": json.dumps({"enum": ["x" * 1_000_000]}), "guide_library": "llguidance 0"},
    "a schema that is none": {"guide": "{", "guide_library": "llguidance 0"},
    "a temperature beyond floats": {"temperature": 1e308},
    "negative": {"top_k": -1, "top_p": -1.0, "min_p": -1.0},
}


def test_a_forged_receipt_takes_no_more_than_a_request_may(
    server: ServerProcess, alice: httpx.Client, mallory: httpx.Client
) -> None:
    mine = receipt_of(mallory, ask(mallory, prompt="my own"))
    replies = {}
    with Witness(server.url, ALICE) as witness:
        for name, changes in FORGED.items():
            start = time.monotonic()
            reply = mallory.post(REPLAY, json={"receipt": forged(mine, **changes)})
            replies[name] = (reply.status_code, reply.json(), time.monotonic() - start)
    wrong = {
        name: reply
        for name, reply in replies.items()
        if not (reply[0] == 400 or reply[0] == 200 and reply[1]["verdict"] in ("unknown", "different")) or reply[2] > 10
    }
    assert not wrong
    witness.check()
    assert witness.longest_wait < 5.0


def test_what_a_forged_receipt_says_of_others_is_not_believed(alice: httpx.Client, mallory: httpx.Client) -> None:
    hers, mine = (receipt_of(client, ask(client, prompt=p)) for client, p in ((alice, SECRET), (mallory, "my own")))
    changes: list[dict[str, Any]] = [
        {"prompt_sha256": hers.prompt_sha256},  # beside another prompt
        {"prompt_sha256": hers.prompt_sha256, "prompt_token_ids": None, "prompt_tokens": hers.prompt_tokens},
        {"class_": DeterminismClass.PORTABLE, "arithmetic": "vendor"},
        {"arithmetic": "tensorcore/1", "class_": DeterminismClass.REQUEST},
        {"model": dataclasses.replace(mine.model, sha256="0" * 64)},
    ]
    for change in changes:
        reply = mallory.post(REPLAY, json={"receipt": codec.to_plain(with_id(dataclasses.replace(mine, **change)))})
        assert reply.status_code == 400 or reply.json()["verdict"] == "unknown", (change, reply.text)
        assert SECRET not in reply.text
    # A verdict that was made up is told to who made it up, and to nobody else.
    assert mallory.get("/v1/receipts").json()["data"][0]["verdict"] is None


def test_a_prompt_cannot_be_guessed_through_a_digest(alice: httpx.Client, mallory: httpx.Client) -> None:
    """A receipt with the digest of another's prompt and the right ids is the guesser's own knowledge; with wrong ids it is
    refused before anything is computed."""
    mine = receipt_of(mallory, ask(mallory, prompt="my own"))
    assert mine.prompt_token_ids is not None
    bare = dataclasses.replace(mine, prompt_token_ids=None, prompt_sha256=prompt_digest([1, 2, 3]), prompt_tokens=3)
    reply = mallory.post(REPLAY, json={"receipt": codec.to_plain(with_id(bare)), "prompt_token_ids": [1, 2, 4]})
    assert reply.json()["verdict"] == "unknown"


SCHEMAS: dict[str, Any] = {
    "itself": {"$ref": "#"},
    "in a circle": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "a file": {"$ref": "file:///etc/passwd"},
    "repeated repeats": {"type": "string", "pattern": "^(.{1,1000}){1,1000}$"},
    "many ways to the same": {"type": "string", "pattern": "^(a|aa|aaa|aaaa){500,1000}b$"},
    "an exponential automaton": {"type": "string", "pattern": "^(.*a.{20}|.*b.{21}|.*c.{22})$"},
    "a billion characters": {"type": "string", "minLength": 10**9},
    "thousands of values": {"enum": [f"v{i:05}" for i in range(5000)]},
    "thousands of properties": {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(1800)}},
    "a large factor": {"type": "integer", "multipleOf": 999_999_937},
}


def test_schemas_that_are_traps_hold_up_nobody(server: ServerProcess, mallory: httpx.Client) -> None:
    pytest.importorskip("llguidance")
    before, slow = server.rss(), []
    with Witness(server.url, ALICE) as witness:
        for name, schema in SCHEMAS.items():
            wanted = {"type": "json_schema", "json_schema": {"name": "trap", "schema": schema}}
            start = time.monotonic()
            reply = mallory.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 20, "response_format": wanted})
            assert reply.status_code in (200, 400, 500) and "root:" not in reply.text
            if time.monotonic() - start > 15:
                slow.append(name)
    assert not slow
    witness.check()
    assert witness.longest_wait < 5.0
    assert server.rss() - before < 200 << 20


def test_clients_that_vanish_leave_nothing_behind(server: ServerProcess, alice: httpx.Client) -> None:
    """With a reset, at every moment from the first byte of their request to the last of their answer."""
    body = {"prompt": "a b c", "max_tokens": 300, "ignore_eos": True, "n": 2, "stream": True}
    with Witness(server.url, ALICE) as witness:
        for number in range(150):
            data = post(COMPLETIONS, body | {"stream": number % 2 == 0}, f"Authorization: Bearer {MALLORY}")
            with connect(server.port) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(data[: len(data) - (5 if number % 10 == 9 else 0)])
                time.sleep(0.001 * (number % 25))
    witness.check()

    def gone() -> bool:
        lines = alice.get("/metrics").text.splitlines()
        names = ("queueproof_num_requests_running{", "queueproof_num_requests_waiting{")
        return [line.rsplit(" ", 1)[1] for line in lines if line.startswith(names)] == ["0.0", "0.0"]

    wait_until(gone)
    assert server.alive and "Traceback" not in server.text
