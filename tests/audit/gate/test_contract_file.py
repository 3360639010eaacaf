"""contract.yaml: what it may say, and what is said of one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from queueproof.audit import names
from queueproof.audit.gate.contract_file import (
    PROBES,
    SCHEMA_VERSION,
    Also,
    Compare,
    PriceCeiling,
    json_schema,
    parse_contract,
    read_contract,
    schema_text,
)
from queueproof.contract.axes import Axis
from queueproof.contract.classes import DeterminismClass
from queueproof.contract.errors import ContractError

ROOT = Path(__file__).parents[3]
HEAD = f"schema: {SCHEMA_VERSION}\nendpoint: http://server:8000\n"
PRICE = "price: {{baseline: http://plain:8000, users: {}, max_tpot_ratio: {}}}\n"


def test_everything_it_may_say() -> None:
    found = parse_contract(
        HEAD + "model: some/model\nclass: batch\nalso: [seeds, drift]\ncompare: tokens\ndetect: 1.5%\n"
        "price:\n  baseline: https://plain\n  users: [1, 8]\n  max_tpot_ratio: 2\n  min_throughput_ratio: 0.5\n"
    )
    assert (found.endpoint, found.model, found.class_) == ("http://server:8000", "some/model", DeterminismClass.BATCH)
    assert found.axes == (Axis.NEIGHBOURS, Axis.ORDER) and found.also == (Also.SEEDS, Also.DRIFT)
    assert (found.compare, found.detect) == (Compare.TOKENS, 0.015)
    assert found.price == PriceCeiling("https://plain", (1, 8), 2.0, None, 0.5)
    assert found.probes() == ("alone", "neighbours", "order", "seeds", "drift")


def test_what_is_not_said() -> None:
    found = parse_contract(HEAD + "axes: [cache]\n")
    assert (found.compare, found.detect, found.model, found.price) == (Compare.LOGPROBS, 0.05, None, None)
    assert found.probes() == ("alone", "cache")
    assert parse_contract(HEAD + "also: [stream]").probes() == ("stream",)
    assert parse_contract(HEAD + PRICE.format(8, 1.5)).price == PriceCeiling("http://plain:8000", (8,), 1.5)
    assert parse_contract(HEAD + "class: batch\ndetect: 1e-2").detect == 0.01


def test_every_axis_has_its_probes() -> None:
    assert set(PROBES) == set(Axis)
    assert names.AGAINST in parse_contract(HEAD + "class: portable").probes()


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "must be a mapping that begins with `schema: queueproof/audit-contract/1`, not None"),
        ("schema: queueproof/audit-contract/2", "schema is 'queueproof/audit-contract/2'; this reader knows"),
        (f"schema: {SCHEMA_VERSION}\nclass: batch", "lacks: endpoint"),
        (HEAD, "promises nothing"),
        (HEAD + "class: best-effort", "promises nothing"),
        (HEAD + "clas: batch", "unknown keys: clas; known are: schema, endpoint, axes, also"),
        (HEAD + "class: strict", "class is 'strict'; it must be one of: best-effort, batch, request, portable"),
        (HEAD + "class: no", "class is 'no'; it must be one of"),
        (HEAD + "class: batch\nclass: request", "line 4, column 1: 'class' is there twice"),
        (HEAD + "class: batch\naxes: [cache]", "has both class and axes"),
        (HEAD + "axes: [cache, cache]", "axes names one thing twice"),
        (HEAD + "axes: cache", "axes must be a list, not 'cache'"),
        (HEAD + "axes: [weather]", r"axes\[0\] is 'weather'; it must be one of: neighbours"),
        (HEAD + "also: [cache]", r"also\[0\] is 'cache'; it must be one of: alone, seeds"),
        (HEAD + "class: batch\nmodel:", "model must be a string, not None"),
        (HEAD + "class: batch\ncompare: bits", "compare is 'bits'"),
        (HEAD + "class: batch\ndetect: 5", "detect is 5; it must be a share between 0 and 1, such as 5% or 0.05"),
        (HEAD + "class: batch\ndetect: 0%", "detect is '0%'"),
        (HEAD + "class: batch\ndetect: true", "detect is True"),
        (HEAD + "class: batch\ndetect: 1:30", "detect is '1:30'"),
        (HEAD.replace("http://", "") + "class: batch", "endpoint is 'server:8000'; it must be an address"),
        (HEAD.replace("http://server:8000", "http://[") + "class: batch", r"endpoint is 'http://\['"),
        (HEAD + PRICE.format("[]", 1), r"price.users is \[\]"),
        (HEAD + PRICE.format(0, 1), r"price.users is \[0\]"),
        (HEAD + PRICE.format("010", 1), "price.users must be a list, not '010'"),
        (HEAD + PRICE.format(8, -1), "price.max_tpot_ratio is -1; it must be above 0"),
        (HEAD + PRICE.format(8, ".inf"), "price.max_tpot_ratio must be a number, not '.inf'"),
        (HEAD + "price: {baseline: http://plain, users: 8}", "has no ceiling; there are: max_tpot_ratio"),
        (HEAD + "class: &c batch\nmodel: *c", "aliases"),
        (HEAD + "1: 2", "line 3, column 1: '1' is no key"),
        (HEAD + "class: !!python/name:os.system x", "line 3, column 8: tags"),
        (HEAD + "also: !!timestamp x", "line 3, column 7: tags"),
        (HEAD + "also: !!int abc", "line 3, column 7: tags"),
        (HEAD + "also: !!bool x", "line 3, column 7: tags"),
        (HEAD + "also: !!set {alone}", "line 3, column 7: tags"),
        (HEAD + "also: [alone]\ndetect: " + "9" * 5000, "is no YAML: Exceeds the limit"),
        (HEAD + PRICE.format("[1, 10001]", 1), r"price.users is \[1, 10001\]; .* from 1 to 10000"),
        (HEAD + "class: {", "line 3, column 9: expected"),
        (HEAD + "class: batch\n---\n" + HEAD, "line 4, column 1: but found another document"),
        ("[" * 1200 + "]" * 1200, "is no YAML"),
        ("\x07", "is no YAML: unacceptable character"),
    ],
)
def test_an_error_says_where_and_what_is_allowed(text: str, says: str) -> None:
    with pytest.raises(ContractError, match=rf"^contract\.yaml.*{says}"):
        parse_contract(text)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("\ufeff" + HEAD + "class: batch\n", encoding="utf-8")
    assert read_contract(path) == parse_contract(HEAD + "class: batch")
    path.write_bytes(b"\xff")
    with pytest.raises(ContractError, match="c.yaml is not UTF-8: byte 0"):
        read_contract(path)
    path.write_bytes(b"#" * (1 << 17))
    with pytest.raises(ContractError, match="c.yaml is longer than 65536 bytes"):
        read_contract(path)
    for other in (tmp_path, tmp_path / "none"):
        with pytest.raises(ContractError, match="cannot be read .*: name a contract.yaml"):
            read_contract(other)
    with pytest.raises(ContractError, match="/dev/zero is longer than 65536 bytes"):
        read_contract(Path("/dev/zero"))


def test_the_published_schema_is_current() -> None:
    """To renew it: python -c 'from queueproof.audit.gate.contract_file import *; print(schema_text(), end="")'."""
    assert (ROOT / "docs" / "audit-contract.schema.json").read_text() == schema_text()


def test_the_schema_names_what_is_read() -> None:
    schema = json_schema()
    assert schema["required"] == ["schema", "endpoint"] and schema["additionalProperties"] is False
    with pytest.raises(ContractError) as raised:
        parse_contract(HEAD + "unknown: 1")
    assert str(raised.value).endswith("known are: " + ", ".join(schema["properties"]))
    assert schema["$defs"]["Axis"]["enum"] == [axis.value for axis in Axis]
