from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from queueproof.cli import loading
from queueproof.cli.main import app
from queueproof.contract.classes import DeterminismClass
from queueproof.contract.errors import UnsupportedDevice, UsageError
from queueproof.contract.receipt import Receipt, ReceiptAnswer, ReceiptDocument, read_document, with_id
from queueproof.engine.llm import LLM
from queueproof.engine.sampling_params import SamplingParams
from queueproof.server.receipts.keeper import ReceiptKeeper
from queueproof.server.receipts.signing import Signer, new_key
from queueproof.server.receipts.store import ReceiptStore
from tests.support.checkpoints import checkpoint, write_gguf
from tests.support.fake_backend import load_fake
from tests.support.fake_engine import FakeEngine
from tests.support.receipts import a_receipt
from tests.support.replays import receipt_of
from tests.support.serving import Live, live

DOCS = Path(__file__).parents[3] / "docs"
PARAMS = SamplingParams(max_tokens=12, temperature=0.9, seed=5, ignore_eos=True)


def replay(*arguments: Any, **options: Any) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, arguments)], **options)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was loaded; a fake model is."""
    asked: list[tuple[Any, ...]] = []

    def load(model: str, arithmetic: str | None, report: Any, dtype: str, device: str) -> Any:
        asked.append((model, arithmetic, dtype, device))
        return load_fake(arithmetic=arithmetic or "ieee/1")

    monkeypatch.setattr(loading, "load", load)
    return asked


@pytest.fixture(scope="module")
def receipt() -> Receipt:
    with LLM(load_fake(), max_num_seqs=4) as llm:
        outputs = llm.generate([[1, 2, 3], [4, 5, 6], [7, 8]], PARAMS)
        return receipt_of(llm, outputs[1], PARAMS)


def digests_of(receipt: Receipt) -> Receipt:
    answer = ReceiptAnswer(receipt.answer.finish_reason, receipt.answer.tokens, receipt.answer.sha256)
    return with_id(dataclasses.replace(receipt, prompt_token_ids=None, answer=answer))


def lie_of(receipt: Receipt) -> Receipt:
    """It holds together, and its answer is not that of its request."""
    return with_id(dataclasses.replace(receipt, sampling=dataclasses.replace(receipt.sampling, seed="6")))


def written(path: Path, receipt: Receipt | ReceiptDocument) -> Path:
    path.write_text(receipt.to_json())
    return path


def test_the_same_answer_exits_with_0(tmp_path: Path, receipt: Receipt, loads: list[Any]) -> None:
    result = replay(written(tmp_path / "r.json", receipt))
    assert (result.exit_code, result.stdout) == (0, "same: 12 tokens of fake, portable, ieee/1\n")
    assert loads == [("fake", "ieee/1", "bfloat16", "cpu")]
    assert replay(written(tmp_path / "d.json", ReceiptDocument(receipt))).exit_code == 0
    assert replay("-", "--threads", 1, "--model", "other", input=receipt.to_json()).exit_code == 0
    assert loads[-1] == ("other", "ieee/1", "bfloat16", "cpu")


def test_another_answer_exits_with_1_and_says_where(tmp_path: Path, receipt: Receipt, loads: list[Any]) -> None:
    path = written(tmp_path / "r.json", lie_of(receipt))
    result = replay(path)
    assert result.exit_code == 1
    first, step, theirs, ours = result.stdout.splitlines()
    assert first.startswith("different: 12 tokens") and step.endswith(": another token")
    assert theirs.startswith("  receipt token ") and ours.startswith("  replay  token ")
    assert all("logprob -" in line and "lse " in line and "'" in line for line in (theirs, ours))
    found = json.loads(replay(path, "--json").stdout)
    assert found["verdict"] == "different" and f"step {found['difference']['step']}:" in step
    assert f"token {found['difference']['replay']['token_id']} " in ours
    assert found["difference"]["replay"]["logprob_bits"] in ours


def test_json_says_the_same(tmp_path: Path, receipt: Receipt, loads: list[Any]) -> None:
    result = replay(written(tmp_path / "r.json", receipt), "--json")
    assert json.loads(result.stdout) == {"id": receipt.id, "verdict": "same"}


def test_without_a_prompt_it_cannot_tell(tmp_path: Path, receipt: Receipt, loads: list[Any]) -> None:
    path = written(tmp_path / "r.json", digests_of(receipt))
    result = replay(path)
    assert result.exit_code == 3 and "cannot tell: the receipt does not hold the prompt" in result.stdout
    assert loads == []
    assert json.loads(replay(path, "--json").stdout)["verdict"] == "unknown"


@pytest.mark.parametrize(
    ("content", "code"),
    [("[4, 5, 6]", 0), ('{"prompt_token_ids": [4, 5, 6]}', 0), ("456", 0), ('{"prompt": "456"}', 0), ("[4, 5]", 3),
     ('{"messages": [{"role": "user", "content": "456"}]}', 3), ('{"prompt_token_ids": ["4"]}', 3), ("", 3)],
)  # fmt: skip
def test_the_prompt_may_come_from_a_file(
    tmp_path: Path, receipt: Receipt, loads: list[Any], content: str, code: int
) -> None:
    (tmp_path / "prompt").write_text(content)
    result = replay(written(tmp_path / "r.json", digests_of(receipt)), "--prompt-file", tmp_path / "prompt")
    assert result.exit_code == code, result.stdout
    lie = written(tmp_path / "l.json", digests_of(lie_of(receipt)))
    found = replay(lie, "--prompt-file", tmp_path / "prompt")
    assert found.exit_code == (1 if code == 0 else 3)
    assert code or "another digest" in found.stdout


def test_what_this_machine_cannot_tell(
    tmp_path: Path, receipt: Receipt, loads: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    later = written(tmp_path / "later.json", with_id(dataclasses.replace(receipt, arithmetic="ieee/2")))
    assert replay(later).exit_code == 3 and "this version has ieee/1, vendor" in replay(later).stdout
    card = a_receipt(arithmetic="tensorcore/1", class_=DeterminismClass.REQUEST, family="sm90")
    errors: dict[str, Exception] = {
        "no card": UnsupportedDevice("no card"),
        "'fake' is not here: there is no model 'fake'; name it with --model": UsageError("there is no model 'fake'"),
    }
    for (message, error), kept in zip(errors.items(), (card, receipt), strict=True):

        def fail(*_: Any, error: Exception = error, **__: Any) -> None:
            raise error

        monkeypatch.setattr(loading, "load", fail)
        result = replay(written(tmp_path / "r.json", kept))
        assert result.exit_code == 3 and message in result.stdout
    assert replay(tmp_path / "r.json", "--model", "fake").exit_code == 2  # who names a model is told that it is wrong


def test_another_model_cannot_tell(tmp_path: Path, receipt: Receipt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load", lambda *_, **__: load_fake(eos_ids=(9,)))
    result = replay(written(tmp_path / "r.json", receipt))
    assert result.exit_code == 3 and "cannot tell: another model" in result.stdout


@pytest.mark.parametrize("content", ["", "{}", "[", "null", "\udcff"])
def test_what_is_no_receipt_exits_with_2(tmp_path: Path, loads: list[Any], content: str) -> None:
    (tmp_path / "r.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert replay(tmp_path / "r.json").exit_code == 2
    assert replay(tmp_path / "nowhere.json").exit_code == 2
    assert replay("rcpt-" + "0" * 32).exit_code == 2
    assert loads == []


def test_a_receipt_that_was_tampered_with_exits_with_2(tmp_path: Path, receipt: Receipt, loads: list[Any]) -> None:
    plain = json.loads(receipt.to_json())
    plain["answer"]["token_ids"][3] += 1
    (tmp_path / "r.json").write_text(json.dumps(plain))
    result = replay(tmp_path / "r.json")
    assert result.exit_code == 2 and "answer.sha256 is not that of the token ids" in result.stderr
    assert loads == []


def test_the_signature_is_looked_at(tmp_path: Path, receipt: Receipt, loads: list[Any]) -> None:
    for name in ("key", "other"):
        new_key(tmp_path / name)
    signed = written(tmp_path / "s.json", ReceiptDocument(receipt, Signer.load(tmp_path / "key").sign(receipt)))
    assert replay(signed, "--verify-key", tmp_path / "key.pub").exit_code == 0
    for path, key, message in (
        (signed, "other.pub", "is signed with the key"),
        (written(tmp_path / "u.json", receipt), "key.pub", "not signed"),
        (signed, "key", "no public key"),
        (signed, "nowhere", "cannot be read"),
    ):
        result = replay(path, "--verify-key", tmp_path / key)
        assert result.exit_code == 2 and message in result.stderr
    assert len(loads) == 1


def test_keys_new(tmp_path: Path) -> None:
    run = CliRunner().invoke
    made = json.loads(run(app, ["keys", "new", str(tmp_path / "k"), "--json"]).stdout)
    assert made["key_id"] == Signer.load(tmp_path / "k").key_id and made["public_key"] == str(tmp_path / "k.pub")
    again = run(app, ["keys", "new", str(tmp_path / "k")])
    assert again.exit_code == 2 and "never overwritten" in again.stderr
    assert run(app, ["keys", "new", str(tmp_path / "l")]).stdout.startswith("key ")


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(checkpoint(), tmp_path_factory.mktemp("model") / "tiny.gguf")


def test_a_model_from_a_file_with_other_threads(tmp_path: Path, model_file: Path) -> None:
    params = [
        SamplingParams(max_tokens=20, temperature=4.0, seed=seed, stop=["e", "q"], presence_penalty=0.5, min_tokens=2)
        for seed in range(3)
    ]
    with LLM(model_file, threads=2, max_num_seqs=3) as llm:
        outputs = llm.generate(["hello world", "hello", "12 im"], params)
        receipts = [receipt_of(llm, o, p) for o, p in zip(outputs, params, strict=True)]
    assert {receipt.answer.finish_reason for receipt in receipts} >= {"stop"}
    for receipt in receipts:
        path = written(tmp_path / "r.json", receipt)
        result = replay(path, "--model", model_file, "--threads", 1)
        assert (result.exit_code, result.stdout[:4]) == (0, "same"), result.output
    result = replay(written(tmp_path / "l.json", lie_of(receipts[0])), "--model", model_file)
    assert result.exit_code == 1
    elsewhere = replay(tmp_path / "r.json")
    assert elsewhere.exit_code == 3 and "'tiny.gguf' is not here" in elsewhere.stdout


@pytest.mark.slow
def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    """The model that is named there, and the output that is printed there."""
    text, example = (DOCS / "receipts.md").read_text(), DOCS / "receipt.example.json"
    result = replay(example)
    assert (result.exit_code, result.stdout) == (0, "same: 16 tokens of smollm2-135m, portable, ieee/1\n")
    assert f"queueproof replay docs/receipt.example.json\n{result.stdout}```" in text
    honest = read_document(example.read_bytes()).receipt
    lie = with_id(dataclasses.replace(honest, sampling=dataclasses.replace(honest.sampling, seed="8")))
    different = replay(written(tmp_path / "lie.json", lie))
    assert different.exit_code == 1 and different.stdout in text


@pytest.fixture
def server() -> Iterator[tuple[Live, FakeEngine]]:
    engine = FakeEngine()
    receipts = ReceiptKeeper(ReceiptStore(None), "full", "1.2.3")
    with live(engine, receipts=receipts, api_keys=("sesame",)) as running:
        yield running, engine


def asked(url: str) -> str:
    body = {"prompt": "Once", "max_tokens": 9, "temperature": 0.8, "seed": 3}
    got = httpx.post(f"{url}/v1/completions", json=body, headers={"Authorization": "Bearer sesame"})
    name: str = got.json()["determinism"]["receipt"]
    return name


def test_a_server_computes_it_again(
    tmp_path: Path, server: tuple[Live, FakeEngine], loads: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    running, engine = server
    name = asked(running.url)
    monkeypatch.setenv("QUEUEPROOF_API_KEY", "sesame")
    result = replay(name, "--server", running.url)
    assert (result.exit_code, result.stdout) == (0, "same: 9 tokens of fake-model, portable, ieee/1\n")
    assert engine.seen[-1].alone and loads == []
    saved = httpx.get(f"{running.url}/v1/receipts/{name}", headers={"Authorization": "Bearer sesame"})
    path = tmp_path / "saved.json"
    path.write_bytes(saved.content)
    assert replay(path, "--server", f"{running.url}/v1/").exit_code == 0
    engine.script = lambda prompt, params, index: b"something else"
    different = replay(name, "--server", running.url, "--json")
    assert different.exit_code == 1
    assert json.loads(different.stdout)["difference"]["replay"]["token"] == "s"
    # With --model the server only hands out the receipt, which is of another model than the fake one here.
    here = replay(name, "--server", running.url, "--model", "fake")
    assert here.exit_code == 3 and "another model" in here.stdout and len(loads) == 1


def test_a_server_is_given_the_prompt(tmp_path: Path, server: tuple[Live, FakeEngine]) -> None:
    running, engine = server
    asked(running.url)
    name = asked(running.url)
    headers = {"Authorization": "Bearer sesame"}
    plain = httpx.get(f"{running.url}/v1/receipts/{name}", headers=headers).json()["receipt"]
    path = written(tmp_path / "r.json", digests_of(read_document(plain).receipt))
    (tmp_path / "ids").write_text(json.dumps(engine.seen[0].prompt))
    (tmp_path / "text").write_text("Once")
    where = ("--server", running.url, "--api-key", "sesame")
    assert replay(path, *where, "--prompt-file", tmp_path / "ids").exit_code == 0
    result = replay(path, *where, "--prompt-file", tmp_path / "text")
    assert result.exit_code == 2 and "token ids" in result.stderr
    assert replay(path, *where).exit_code == 3


def test_servers_that_refuse_or_are_not_there(
    tmp_path: Path, server: tuple[Live, FakeEngine], receipt: Receipt
) -> None:
    running, _ = server
    path = written(tmp_path / "r.json", receipt)
    no_key = replay(path, "--server", running.url)
    assert no_key.exit_code == 2 and "asks for an API key" in no_key.stderr
    unknown = replay("rcpt-" + "0" * 32, "--server", running.url, "--api-key", "sesame")
    assert unknown.exit_code == 2 and "there is no receipt" in unknown.stderr
    other = replay(path, "--server", running.url, "--api-key", "sesame")
    assert other.exit_code == 3 and "another model" in other.stdout
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = replay(path, "--server", f"http://127.0.0.1:{free.getsockname()[1]}")
    assert gone.exit_code == 4 and "cannot be asked" in gone.stderr
    for address in ("localhost", "ftp://x", "http://"):
        result = replay(path, "--server", address)
        assert result.exit_code == 2 and "no address of a server" in result.stderr, (address, result.output)
