"""The record of an audit, as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from queueproof.audit.records import AuditRecord, schema_text
from queueproof.contract.errors import ContractError
from tests.support import audit_records

ROOT = Path(__file__).parents[2]


def test_the_schema_in_the_docs_is_current() -> None:
    assert (ROOT / "docs" / "audit.schema.json").read_text() == schema_text()


@pytest.mark.parametrize("name", ["clean", "broken", "inconclusive", "interrupted", "failed"])
def test_a_record_is_read_as_it_was_written(name: str) -> None:
    record = audit_records.everything()[name]
    assert AuditRecord.from_json(record.to_json()) == record


def test_another_version_is_refused() -> None:
    text = audit_records.clean().to_json()
    with pytest.raises(ContractError, match="queueproof/audit/99"):
        AuditRecord.from_json(text.replace("queueproof/audit/1", "queueproof/audit/99"))
    with pytest.raises(ContractError, match="not JSON"):
        AuditRecord.from_json("{")
