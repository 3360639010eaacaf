"""Every error that Queueproof raises on purpose.

QueueproofError
├── UsageError                     what was asked for is not possible as asked; the message says what is
│   ├── InvalidParameter           a sampling or engine parameter (name, value, what is allowed)
│   ├── RequestTooLong             a prompt, or prompt + output, that can never fit
│   ├── UnsupportedClass           a determinism class that is not on offer
│   ├── UnsupportedArithmetic      an arithmetic that has no backend on the device
│   ├── UnsupportedDevice          a device that is not there, too old, or whose packages are not installed
│   └── UnsupportedModel           a family, tensor type or option that no code here implements
├── ModelError                     a model file that is missing, truncated, corrupt or inconsistent
├── DownloadError                  nothing could be fetched; nothing half-written is left
├── NumericalError                 the model itself produced NaN logits
├── GuideError                     no token can go on with an answer that has to follow a JSON schema
├── ContractError                  a contract document that is malformed or of another schema version
├── ReceiptStoreError              receipts cannot be kept or read (a corrupt file, a full disk)
├── CannotTell                     a receipt that cannot be checked here, and why
├── ServerError                    another server cannot be reached, or does not answer as it should
├── CanaryError                    kernels on this machine do not give the recorded bits
└── EngineError                    the engine cannot go on (closed, worker lost)
"""

from __future__ import annotations

from collections.abc import Sequence


class QueueproofError(Exception):
    """Root of all deliberate errors. `code` is a stable machine-readable name."""

    code = "error"


class UsageError(QueueproofError):
    code = "usage"


class InvalidParameter(UsageError, ValueError):
    code = "invalid_parameter"

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{name}={value!r} is not supported: {allowed}")
        self.name, self.value, self.allowed = name, value, allowed


class RequestTooLong(UsageError, ValueError):
    code = "request_too_long"


class UnsupportedClass(UsageError):
    code = "unsupported_class"


class UnsupportedArithmetic(UsageError):
    code = "unsupported_arithmetic"

    def __init__(self, arithmetic: str, device: str, supported: Sequence[tuple[str, str]]) -> None:
        have = ", ".join(f"{a} on {d}" for a, d in supported)
        super().__init__(f"no backend for arithmetic {arithmetic!r} on {device!r}; there are: {have}")


class UnsupportedDevice(UsageError):
    code = "unsupported_device"


class UnsupportedModel(UsageError):
    code = "unsupported_model"


class ModelError(QueueproofError):
    code = "model"


class DownloadError(QueueproofError):
    code = "download"


class NumericalError(QueueproofError):
    code = "numerical"


class GuideError(QueueproofError):
    code = "guide"


class ContractError(QueueproofError, ValueError):
    code = "contract"


class ReceiptStoreError(QueueproofError):
    code = "receipt_store"


class CannotTell(QueueproofError):
    code = "cannot_tell"


class ServerError(QueueproofError):
    code = "server"


class CanaryError(QueueproofError):
    code = "canary"


class EngineError(QueueproofError):
    code = "engine"
