from __future__ import annotations

import hashlib
import json
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queueproof.contract import codec
from queueproof.contract.canonical import canonical_json
from queueproof.contract.classes import DeterminismClass
from queueproof.contract.errors import ContractError
from queueproof.contract.receipt import (
    Bias,
    Receipt,
    ReceiptDocument,
    Signature,
    answer_digest,
    bits_to_hex,
    check,
    hex_to_bits,
    prompt_digest,
    read_document,
    receipt_id,
    receipt_schema,
    receipt_schema_text,
    with_id,
)
from tests.support.receipts import ANSWER, a_receipt, at, leaves, put

ROOT = Path(__file__).parents[3]
FULL = a_receipt(
    sampling={"stop": ("\n\n", "é"), "stop_token_ids": (2, 9), "logit_bias": (Bias(5, -1.5),), "guide": "json"}
)


def test_a_receipt_survives_its_json() -> None:
    assert read_document(FULL.to_json()) == ReceiptDocument(FULL)
    pretty = json.dumps(json.loads(FULL.to_json()), indent=4)
    assert read_document(pretty).receipt == FULL


def test_a_document_may_have_a_signature_beside_the_receipt() -> None:
    document = ReceiptDocument(FULL, Signature("0123456789abcdef", "AAAA"))
    assert read_document(document.to_json()) == document
    assert read_document(ReceiptDocument(FULL).to_json()) == ReceiptDocument(FULL)


def test_digests_are_what_the_documentation_says() -> None:
    answer = FULL.answer
    words = [*ANSWER.token_ids, *ANSWER.logprob_bits, *ANSWER.lse_bits]
    assert answer.sha256 == hashlib.sha256(struct.pack("<9I", *words)).hexdigest()
    assert FULL.prompt_sha256 == hashlib.sha256(b"\x05\0\0\0\x01\0\0\0\x00\x28\x6b\xee").hexdigest()
    plain = json.loads(FULL.to_json())
    del plain["id"]
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # No number here is one that ECMAScript prints in another way.
    assert text.replace("1.0,", "1,").replace(":0.0,", ":0,").encode() == canonical_json(plain)
    assert FULL.id == "rcpt-" + hashlib.sha256(canonical_json(plain)).hexdigest()[:32]
    assert FULL.handle == FULL.id[5:13]


def test_the_answer_digest_does_not_confuse_its_parts() -> None:
    ids, logprobs, lses = ANSWER.token_ids, ANSWER.logprob_bits, ANSWER.lse_bits
    digests = {
        answer_digest(ids, logprobs, lses),
        answer_digest(ids, lses, logprobs),
        answer_digest(logprobs, ids, lses),
    }
    assert len(digests) == 3


def other(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value + 0.125
    last = "1" if value[-1:] != "1" else "2"
    return value[:-1] + last if value else "x"


@pytest.mark.parametrize("path", list(leaves(json.loads(FULL.to_json()))), ids=lambda p: ".".join(map(str, p)))
def test_a_receipt_that_was_tampered_with_is_refused(path: tuple[Any, ...]) -> None:
    plain = json.loads(FULL.to_json())
    put(plain, path, other(at(plain, path)))
    with pytest.raises(ContractError):
        read_document(json.dumps(plain))


@pytest.mark.parametrize("path", [("id",), ("answer",), ("answer", "token_ids"), ("sampling", "seed"), ("schema",)])
def test_a_receipt_that_lacks_something_is_refused(path: tuple[Any, ...]) -> None:
    plain = json.loads(FULL.to_json())
    del at(plain, path[:-1])[path[-1]]
    with pytest.raises(ContractError):
        read_document(json.dumps(plain))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("answer", "token_ids", 1), 99, "answer.sha256 is not that of the token ids, logprob bits and lse bits"),
        (("answer", "logprob_bits", 0), "bf000001", "answer.sha256 is not that"),
        (("answer", "lse_bits", 2), "40fffffe", "answer.sha256 is not that"),
        (("answer", "sha256"), "00" * 32, "answer.sha256 is not that"),
        (("answer", "lse_bits"), ["40fffffe"], "different lengths"),
        (("answer", "tokens"), 2, "different lengths"),
        (("answer", "finish_reason"), "abort", "not stop or length"),
        (("answer", "finish_reason"), "stop", "the id is not that of the content"),
        (("prompt_token_ids", 0), 6, "prompt_sha256 is not that of prompt_token_ids"),
        (("prompt_tokens",), 2, "prompt_tokens is 2, and there are 3 ids"),
        (("sampling", "temperature"), 0.75, "the id is not that of the content"),
        (("sampling", "seed"), "18446744073709551616", "0 to 2\\^64 - 1"),
        (("sampling", "seed"), "007", "no decimal number"),
        (("sampling", "seed"), 7, "sampling.seed must be a string"),
        (("sampling", "max_tokens"), 2, "max_tokens is 2"),
        (("prompt_token_ids", 2), 1 << 32, r"prompt_token_ids\[2\] is not a token id"),
        (("answer", "token_ids", 1), -1, r"token_ids\[1\] is not a token id"),
        (("answer", "lse_bits", 2), "40FFFFFF", r"lse_bits\[2\] is not eight hexadecimal digits"),
        (("arithmetic",), "vendor", "vendor cannot promise the class portable"),
        (("class",), "strict", "must be one of"),
        (("model", "sha256"), "ab", "model.sha256 is no SHA-256"),
        (("id",), "rcpt-1", "no id of a receipt"),
        (("schema",), "queueproof/receipt/2", "this reader knows 'queueproof/receipt/1'"),
        (("note",), "x", "unknown keys: note"),
    ],
)
def test_the_error_says_what_does_not_agree(path: tuple[Any, ...], value: Any, message: str) -> None:
    plain = json.loads(FULL.to_json())
    put(plain, path, value)
    with pytest.raises(ContractError, match=message):
        read_document(json.dumps(plain))


def test_a_new_id_does_not_hide_a_changed_answer() -> None:
    """Who recomputes the id has still to recompute the digest; what is then left is a replay, or a signature."""
    answer = replace(FULL.answer, token_ids=(7, 8, 10))
    with pytest.raises(ContractError, match="answer.sha256"):
        check(with_id(replace(FULL, answer=answer)))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '"x"', '{"receipt": 1}', '{"receipt": {}}', "{" * 9999, b"\xff"]
)
def test_what_is_no_receipt_is_refused(text: str | bytes) -> None:
    with pytest.raises(ContractError):
        read_document(text)


def test_a_key_given_twice_is_refused() -> None:
    text = FULL.to_json()
    with pytest.raises(ContractError, match="stands twice"):
        read_document(text[:-1] + ',"id":"rcpt-00000000000000000000000000000000"}')


def test_a_receipt_of_digests_holds_no_token() -> None:
    receipt = a_receipt(digests_only=True)
    check(receipt)
    assert "token_ids" not in json.loads(receipt.to_json())["answer"]
    assert "prompt_token_ids" not in json.loads(receipt.to_json())
    assert (receipt.prompt_sha256, receipt.answer.sha256) == (FULL.prompt_sha256, FULL.answer.sha256)
    assert receipt.id != FULL.id


def test_an_arithmetic_of_a_later_version_can_be_read() -> None:
    check(a_receipt(arithmetic="ieee/2"))
    with pytest.raises(ContractError, match="cannot promise"):
        check(a_receipt(arithmetic="tensorcore/1"))
    check(a_receipt(arithmetic="tensorcore/1", family="sm90", class_=DeterminismClass.REQUEST))


def test_options_are_those_of_the_request() -> None:
    options = FULL.sampling.options()
    assert options["seed"] == (1 << 64) - 1 and options["logit_bias"] == {5: -1.5}
    assert options["stop"] == ("\n\n", "é") and options["guide"] == "json"
    assert "guide" not in a_receipt().sampling.options()


WORDS = st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=12)


@given(WORDS, st.randoms(use_true_random=False))
def test_bits_survive_the_receipt(words: list[int], rng: Any) -> None:
    lse = rng.sample(words, len(words))
    answer = replace(ANSWER, token_ids=tuple(words), logprob_bits=tuple(words[::-1]), lse_bits=tuple(lse))
    receipt = a_receipt(answer, sampling={"max_tokens": len(words)})
    read = read_document(receipt.to_json()).receipt
    assert read == receipt and receipt_id(read) == receipt.id
    assert read.answer.lse_bits is not None and hex_to_bits(read.answer.lse_bits) == tuple(lse)
    assert hex_to_bits(bits_to_hex(words)) == tuple(words)
    assert prompt_digest(words) == hashlib.sha256(struct.pack(f"<{len(words)}I", *words)).hexdigest()


def test_the_example_of_the_documentation_holds_together() -> None:
    text = (ROOT / "docs" / "receipt.example.json").read_text()
    assert read_document(text).receipt.to_json() + "\n" == text
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "receipts.md").read_text(), re.DOTALL)
    exec(snippet.replace("docs/receipt.example.json", str(ROOT / "docs" / "receipt.example.json")), {})


def test_every_field_is_in_the_documentation() -> None:
    text = (ROOT / "docs" / "receipts.md").read_text()
    for path in {tuple(key for key in path if isinstance(key, str)) for path in leaves(json.loads(FULL.to_json()))}:
        name = ".".join(path)
        if path[0] != "sampling":  # those of SamplingParams are named there
            assert f"`{name}`" in text or name == "answer.finish_reason", name


def test_the_published_schema_is_current() -> None:
    """To renew it: python -c 'from queueproof.contract.receipt import *; print(receipt_schema_text(), end="")'."""
    assert (ROOT / "docs" / "receipt.schema.json").read_text() == receipt_schema_text()


def test_the_schema_describes_what_is_written() -> None:
    schema = receipt_schema()

    def covered(value: Any, rule: dict[str, Any]) -> None:
        if "$ref" in rule:
            rule = schema["$defs"][rule["$ref"].rsplit("/", 1)[1]]
        if rule.get("type") == "object":
            assert set(rule["required"]) <= set(value) <= set(rule["properties"])
            for key, item in value.items():
                covered(item, rule["properties"][key])
        elif rule.get("type") == "array":
            for item in value:
                covered(item, rule["items"])

    for receipt in (FULL, a_receipt(digests_only=True)):
        covered(codec.to_plain(receipt), schema)
    assert codec.from_plain(Receipt, codec.to_plain(FULL)) == FULL
