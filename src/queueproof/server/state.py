"""What the routes of a running server share."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import HTTPConnection

from queueproof.contract.document import ContractDocument
from queueproof.server.classes import ClassDesk
from queueproof.server.config import ServerConfig
from queueproof.server.extension import Extensions, Receipts
from queueproof.server.limits import Admission, Shutdown
from queueproof.server.protocol import ServedEngine


@dataclass(frozen=True, slots=True)
class AppState:
    """started: seconds since 1970."""

    config: ServerConfig
    contract: ContractDocument
    engines: tuple[ServedEngine, ...]
    desk: ClassDesk
    admission: Admission
    shutdown: Shutdown
    receipts: Receipts | None
    extensions: Extensions
    started: int


def state_of(connection: HTTPConnection) -> AppState:
    """The state of the application that a request came to."""
    state: AppState = connection.app.state.queueproof
    return state


def owner_of(connection: HTTPConnection) -> str | None:
    """SHA-256, hex, of the API key of a request; None where keys are not asked for."""
    owner: str | None = connection.scope["queueproof"].owner
    return owner


def request_id_of(connection: HTTPConnection) -> str:
    """X-Request-Id of the exchange: the client's, or one made here."""
    request_id: str = connection.scope["queueproof"].request_id
    return request_id
