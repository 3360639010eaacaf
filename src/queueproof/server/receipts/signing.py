"""Ed25519 signatures of receipts, through the package `cryptography` (the extra `sign`)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from queueproof.contract.errors import ContractError, UsageError
from queueproof.contract.receipt import Receipt, ReceiptDocument, Signature

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_PUBLIC_MODE = 0o644


class Signer:
    """A private key in use."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.key_id = _key_id(key.public_key())

    @classmethod
    def load(cls, path: Path) -> Signer:
        """From a PEM file that only its owner may read. Raises UsageError."""
        _require_library()
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        data = _read(path)
        if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise UsageError(f"others may read the signing key {path}; give it to its owner alone: chmod 600 {path}")
        try:
            key = load_pem_private_key(data, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise UsageError(
                f"{path} is no unencrypted private key in PEM form ({error}); `queueproof keys new PATH` makes one"
            ) from None
        if not isinstance(key, Ed25519PrivateKey):
            raise UsageError(f"{path} holds a key of another kind than Ed25519; `queueproof keys new PATH` makes one")
        return cls(key)

    def sign(self, receipt: Receipt) -> Signature:
        """Over the canonical form."""
        value = self._key.sign(receipt.to_json().encode())
        return Signature(self.key_id, base64.b64encode(value).decode())


class Verifier:
    """A public key."""

    def __init__(self, key: Ed25519PublicKey) -> None:
        self._key = key
        self.key_id = _key_id(key)

    @classmethod
    def load(cls, path: Path) -> Verifier:
        """From a PEM file. Raises UsageError."""
        _require_library()
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        try:
            key = load_pem_public_key(_read(path))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise UsageError(f"{path} is no public key in PEM form: {error}") from None
        if not isinstance(key, Ed25519PublicKey):
            raise UsageError(f"{path} holds a key of another kind than Ed25519")
        return cls(key)

    def verify(self, document: ReceiptDocument) -> None:
        """Raises ContractError: no signature, one of another key, or one that does not fit the receipt."""
        from cryptography.exceptions import InvalidSignature

        signature = document.signature
        if signature is None:
            raise ContractError("the receipt is not signed")
        if signature.key_id != self.key_id:
            raise ContractError(f"the receipt is signed with the key {signature.key_id!r:.40}, not with {self.key_id}")
        try:
            value = base64.b64decode(signature.value, validate=True)
            self._key.verify(value, document.receipt.to_json().encode())
        except (binascii.Error, InvalidSignature):
            raise ContractError(f"the signature of the key {self.key_id} does not fit the receipt") from None


def new_key(path: Path) -> tuple[str, Path]:
    """Writes a new private key to `path`, for its owner's eyes, and its public key beside it with the suffix .pub.

    Returns the key's id and the path of the public key. Raises UsageError if one of the files is there already.
    """
    _require_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    public = path.with_name(path.name + ".pub")
    if public.exists():
        raise UsageError(f"{public} is there already, and keys are never overwritten; choose another name")
    _write(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
    _write(public, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), _PUBLIC_MODE)
    return _key_id(key.public_key()), public


def _key_id(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def _require_library() -> None:
    try:
        import cryptography  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError('signatures need the package cryptography: pip install "queueproof[sign]"') from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"the key {path} cannot be read: {error.strerror}") from None


def _write(path: Path, data: bytes, mode: int) -> None:
    """With its mode from the start."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise UsageError(f"{path} is there already, and keys are never overwritten; choose another name") from None
    except OSError as error:
        raise UsageError(f"the key {path} cannot be written: {error.strerror}") from None
    with os.fdopen(file, "wb") as stream:
        stream.write(data)
