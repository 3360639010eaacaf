from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from queueproof.contract.classes import DeterminismClass
from queueproof.contract.document import (
    ContractDocument,
    Model,
    Offer,
    Price,
    Refusal,
    json_schema,
    schema_text,
)
from queueproof.contract.errors import ContractError, UnsupportedClass

ROOT = Path(__file__).parents[3]
PORTABLE, BEST_EFFORT = DeterminismClass.PORTABLE, DeterminismClass.BEST_EFFORT


@pytest.fixture
def document() -> ContractDocument:
    return ContractDocument(
        model=Model("smollm2-135m", "bfloat16", sha256="ab" * 32),
        device="cpu",
        offers=(
            Offer.of(PORTABLE, "ieee/1", Price(0.97, "2-core AMD EPYC", 81.5, 12.25)),
            Offer.of(BEST_EFFORT, "vendor"),
        ),
    )


def changed(document: ContractDocument, *path: Any, value: Any) -> str:
    """The document as JSON with one value set."""
    plain = json.loads(document.to_json())
    target = plain
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return json.dumps(plain)


def test_json_round_trip(document: ContractDocument) -> None:
    assert ContractDocument.from_json(document.to_json()) == document
    assert json.loads(document.to_json())["offers"][0]["class"] == "portable"


def test_a_whole_number_is_a_price(document: ContractDocument) -> None:
    read = ContractDocument.from_json(changed(document, "offers", 0, "price", "throughput_ratio", value=1))
    assert read.offers[0].price == Price(1.0, "2-core AMD EPYC", 81.5, 12.25)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("extra",), 1, "unknown keys: extra"),
        (("offers", 0, "prize"), {}, r"offers\[0\] has unknown keys: prize"),
        (("offers",), {}, "offers must be a list"),
        (("offers", 0, "class"), "strict", "must be one of: best-effort, batch, request, portable"),
        (("offers", 0, "axes"), ["neighbours"], "the document says"),
        (("offers", 1, "axes"), ["neighbours"], "the document says"),
        (("offers", 0, "price", "throughput_ratio"), 0, "above 0"),
        (("offers", 0, "price", "tpot_ms"), 0, "tpot_ms must be above 0"),
        (("offers", 0, "price", "throughput_ratio"), True, "must be a number"),
        (("offers", 0, "price", "throughput_ratio"), "1", "must be a number"),
        (("model",), "smollm2", "model must be an object"),
        (("model", "name"), None, "model.name must be a string"),
        (("refused",), [{"class": "portable", "reason": "x"}], "both offered and refused: portable"),
        (("refused",), [{"class": "batch"}], "lacks: reason"),
        (("schema",), "queueproof/contract/2", "this reader knows"),
    ],
)
def test_a_malformed_document_is_refused(
    document: ContractDocument, path: tuple[Any, ...], value: Any, message: str
) -> None:
    with pytest.raises(ContractError, match=message):
        ContractDocument.from_json(changed(document, *path, value=value))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "NaN"])
def test_what_is_not_a_document_is_refused(text: str) -> None:
    with pytest.raises(ContractError):
        ContractDocument.from_json(text)


def test_grant_gives_the_class_or_a_stronger_one(document: ContractDocument) -> None:
    assert document.grant(BEST_EFFORT).arithmetic == "vendor"
    assert document.grant(DeterminismClass.BATCH).class_ is PORTABLE
    assert document.grant(PORTABLE).class_ is PORTABLE


def test_grant_never_downgrades() -> None:
    document = ContractDocument(
        model=Model("m", "bfloat16"),
        device="cpu",
        offers=(Offer.of(BEST_EFFORT, "vendor"),),
        refused=(Refusal(PORTABLE, "The canary of ieee/1 gave other bits."),),
    )
    with pytest.raises(UnsupportedClass, match=r"canary of ieee/1 gave other bits; on offer: best-effort \(vendor\)"):
        document.grant(PORTABLE)
    with pytest.raises(UnsupportedClass, match="'request' is not on offer; on offer: best-effort"):
        document.grant(DeterminismClass.REQUEST)


def test_the_published_schema_is_current() -> None:
    """To renew it: python -c 'from queueproof.contract.document import *; print(schema_text(), end="")'."""
    assert (ROOT / "docs" / "contract.schema.json").read_text() == schema_text()


def test_the_schema_describes_what_is_written(document: ContractDocument) -> None:
    schema = json_schema()

    def check(value: Any, rule: dict[str, Any]) -> None:
        if "$ref" in rule:
            return check(value, schema["$defs"][rule["$ref"].rsplit("/", 1)[1]])
        if "const" in rule:
            assert value == rule["const"]
        elif rule["type"] == "object":
            assert set(rule["required"]) <= set(value) <= set(rule["properties"])
            for key, item in value.items():
                check(item, rule["properties"][key])
        elif rule["type"] == "array":
            for item in value:
                check(item, rule["items"])
        elif rule["type"] == "string":
            assert isinstance(value, str) and value in rule.get("enum", [value])
        else:
            assert rule["type"] == "number" and isinstance(value, float)

    check(json.loads(document.to_json()), schema)
