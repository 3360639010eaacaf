from __future__ import annotations

import base64
import builtins
import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_public_key,
)

from queueproof.contract.errors import ContractError, UsageError
from queueproof.contract.receipt import ReceiptDocument, read_document
from queueproof.server.receipts.signing import Signer, Verifier, new_key
from tests.support.receipts import a_receipt


@pytest.fixture
def key(tmp_path: Path) -> Path:
    new_key(tmp_path / "key.pem")
    return tmp_path / "key.pem"


def public(key: Path) -> Path:
    return key.with_name(key.name + ".pub")


def signed(key: Path, **changes: Any) -> ReceiptDocument:
    receipt = a_receipt(**changes)
    return ReceiptDocument(receipt, Signer.load(key).sign(receipt))


def test_a_new_key_is_its_owners_alone(tmp_path: Path) -> None:
    key_id, path = new_key(tmp_path / "key.pem")
    assert path == tmp_path / "key.pem.pub"
    assert (tmp_path / "key.pem").stat().st_mode & 0o777 == 0o600
    assert Signer.load(tmp_path / "key.pem").key_id == Verifier.load(path).key_id == key_id
    other, _ = new_key(tmp_path / "other.pem")
    assert other != key_id and len(key_id) == 16


def test_keys_are_never_overwritten(key: Path, tmp_path: Path) -> None:
    before = key.read_bytes()
    with pytest.raises(UsageError, match="never overwritten"):
        new_key(key)
    public(key).rename(tmp_path / "fresh.pub")
    with pytest.raises(UsageError, match="fresh.pub is there already"):
        new_key(tmp_path / "fresh")
    with pytest.raises(UsageError, match="never overwritten"):
        new_key(key)
    assert key.read_bytes() == before and not (tmp_path / "fresh").exists() and not public(key).exists()
    with pytest.raises(UsageError, match="cannot be written"):
        new_key(tmp_path / "nowhere" / "key.pem")


def test_a_signature_verifies_also_by_hand(key: Path) -> None:
    document = read_document(signed(key).to_json())
    Verifier.load(public(key)).verify(document)
    assert document.signature is not None
    raw = load_pem_public_key(public(key).read_bytes())
    assert isinstance(raw, ed25519.Ed25519PublicKey)
    raw.verify(base64.b64decode(document.signature.value), document.receipt.to_json().encode())


def test_what_does_not_fit_is_refused(key: Path, tmp_path: Path) -> None:
    new_key(tmp_path / "other.pem")
    verifier, other = Verifier.load(public(key)), Verifier.load(tmp_path / "other.pem.pub")
    document = signed(key)
    with pytest.raises(ContractError, match="not signed"):
        verifier.verify(ReceiptDocument(document.receipt))
    with pytest.raises(ContractError, match=f"signed with the key '{verifier.key_id}', not with {other.key_id}"):
        other.verify(document)
    assert document.signature is not None
    forged = dataclasses.replace(document.signature, key_id=other.key_id)
    with pytest.raises(ContractError, match="does not fit"):
        other.verify(ReceiptDocument(document.receipt, forged))
    with pytest.raises(ContractError, match="does not fit"):  # a receipt that holds together, but not the signed one
        verifier.verify(ReceiptDocument(a_receipt(created=1), document.signature))
    value = base64.b64decode(document.signature.value)
    for wrong in (bytes([value[0] ^ 1]) + value[1:], value[:-1], b""):
        text = base64.b64encode(wrong).decode()
        with pytest.raises(ContractError, match="does not fit"):
            verifier.verify(ReceiptDocument(document.receipt, dataclasses.replace(document.signature, value=text)))
    with pytest.raises(ContractError, match="does not fit"):
        verifier.verify(ReceiptDocument(document.receipt, dataclasses.replace(document.signature, value="no base64!")))


def test_a_key_that_others_may_read_is_refused(key: Path) -> None:
    os.chmod(key, 0o640)
    with pytest.raises(UsageError, match=f"chmod 600 {key}"):
        Signer.load(key)


def test_files_that_are_no_such_key_are_refused(key: Path, tmp_path: Path) -> None:
    pem = Encoding.PEM
    curve = ec.generate_private_key(ec.SECP256R1())
    secret = ed25519.Ed25519PrivateKey.generate()
    files = {
        "text": b"not a key",
        "public": public(key).read_bytes(),
        "locked": secret.private_bytes(pem, PrivateFormat.PKCS8, BestAvailableEncryption(b"word")),
        "curve": curve.private_bytes(pem, PrivateFormat.PKCS8, NoEncryption()),
    }
    for name, content in files.items():
        path = tmp_path / name
        path.touch(0o600)
        path.write_bytes(content)
        with pytest.raises(UsageError, match="keys new PATH"):
            Signer.load(path)
    (tmp_path / "curve.pub").write_bytes(curve.public_key().public_bytes(pem, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(UsageError, match="another kind"):
        Verifier.load(tmp_path / "curve.pub")
    with pytest.raises(UsageError, match="no public key"):
        Verifier.load(key)
    for load in (Signer.load, Verifier.load):
        with pytest.raises(UsageError, match="cannot be read: No such file"):
            load(tmp_path / "nowhere")


def test_without_the_library_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name.split(".")[0] == "cryptography":
            raise ModuleNotFoundError("No module named 'cryptography'", name="cryptography")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    for call in (new_key, Signer.load, Verifier.load):
        with pytest.raises(UsageError, match=r'pip install "queueproof\[sign\]"'):
            call(tmp_path / "key.pem")
