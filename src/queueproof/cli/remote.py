"""What commands ask of a running server."""

from __future__ import annotations

from typing import Any

import httpx

from queueproof import __version__
from queueproof.contract import codec
from queueproof.contract.canonical import parse_json
from queueproof.contract.errors import ContractError, ServerError, UsageError
from queueproof.contract.receipt import ReceiptDocument, read_document
from queueproof.contract.verdict import Verdict

_CONNECT_SECONDS = 10.0


def fetch_receipt(server: str, api_key: str | None, receipt_id: str) -> ReceiptDocument:
    """Raises ServerError, UsageError (no such receipt, or not for this key), ContractError."""
    return read_document(_ask(server, api_key, "GET", f"/v1/receipts/{receipt_id}"))


def replay_there(
    server: str, api_key: str | None, document: ReceiptDocument, prompt_token_ids: list[int] | None
) -> Verdict:
    """Raises ServerError, UsageError."""
    body: dict[str, Any] = {"receipt": codec.to_plain(document)}
    if prompt_token_ids is not None:
        body["prompt_token_ids"] = prompt_token_ids
    answer = _ask(server, api_key, "POST", "/v1/replay", body)
    try:
        found = {key: answer[key] for key in ("verdict", "reason", "difference") if key in answer}
        return Verdict.from_plain(found)
    except ContractError as error:
        raise ServerError(f"{server} answers in another way than this version expects: {error}") from None


def _ask(
    server: str, api_key: str | None, method: str, path: str, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    base = server.rstrip("/").removesuffix("/v1")
    headers = {"User-Agent": f"queueproof/{__version__}"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    # A replay may take as long as an answer does; the server has a deadline.
    timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
    try:
        response = httpx.request(method, base + path, headers=headers, json=body, timeout=timeout)
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise UsageError(f"{server} is no address of a server, such as http://localhost:8000: {error}") from None
    except httpx.HTTPError as error:
        raise ServerError(f"{server} cannot be asked: {error}") from None
    try:
        answer = parse_json(response.content)
    except ContractError:
        answer = None
    if response.is_success and isinstance(answer, dict):
        return answer
    message = _message(answer)
    if response.is_client_error and response.status_code != 429 and message is not None:
        raise UsageError(f"{server}: {message}")
    raise ServerError(
        f"{server} answers with {response.status_code}: {message or 'and not as a Queueproof server does'}"
    )


def _message(answer: Any) -> str | None:
    match answer:
        case {"error": {"message": str(message)}}:
            return message
    return None
