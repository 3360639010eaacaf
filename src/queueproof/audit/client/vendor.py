"""Which software answers, and in which version, by the pages that each has and the others have not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from queueproof.audit.client import counters
from queueproof.audit.client.trouble import from_status
from queueproof.audit.client.wire import Wire
from queueproof.contract.errors import UsageError

VLLM, SGLANG, LLAMA_CPP, TGI = "vllm", "sglang", "llama.cpp", "tgi"
TRANSFORMERS, QUEUEPROOF, UNKNOWN = "transformers", "queueproof", "unknown"

_CONTRACT, _VERSION, _PROPS, _INFO = "/.well-known/queueproof", "/version", "/props", "/info"
_SERVER_INFO, _METRICS = "/get_server_info", "/metrics"
_SERVER_INFO_NEW, _OPENAPI = "/server_info", "/openapi.json"


@dataclass(frozen=True, slots=True)
class Software:
    """vendor: one of the names above. block_size: tokens of a KV block, where the server says."""

    vendor: str
    version: str | None = None
    block_size: int | None = None


async def listed_models(wire: Wire) -> list[dict[str, Any]] | None:
    """The entries of /v1/models, or of /models where the API's address has no /v1: the wire learns which it is.

    None where there is no such page. Raises Failure for a server that cannot be reached or does not let us in.
    """
    response = await wire.fetch(f"{wire.root}/v1/models")
    if response.status_code == 404:
        plain = await wire.fetch(f"{wire.root}/models")
        if plain.status_code == 200 and _entries(plain) is not None:
            wire.api, response = wire.root, plain
    if response.status_code in (401, 403) or response.is_redirect:
        raise from_status(response.status_code, response.headers, response.content)
    return _entries(response) if response.status_code == 200 else None


def _entries(response: httpx.Response) -> list[dict[str, Any]] | None:
    match _json(response):
        case {"data": list(entries)}:
            return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
    return None


def chosen(model: str | None, entries: list[dict[str, Any]] | None, url: str) -> str:
    """The model to ask: the one given, else the only one there is. Raises UsageError that lists them."""
    if model is not None:
        return model
    names = list(dict.fromkeys(str(entry["id"]) for entry in entries or ()))
    if len(names) == 1:
        return names[0]
    if not names:
        raise UsageError(
            f"{url} lists no models at /v1/models: if it is the address of an OpenAI-compatible API, name one with --model"
        )
    some = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    raise UsageError(f"{url} has several models: choose one with --model: {some}")


async def identify(wire: Wire, entries: list[dict[str, Any]] | None) -> Software:
    """Looks at all pages that tell servers apart, at once. A page that is not there says nothing."""
    paths = (_CONTRACT, _VERSION, _PROPS, _INFO, _SERVER_INFO, _METRICS)
    found = await asyncio.gather(*(wire.page(path) for path in paths))
    pages = {path: page for path, page in zip(paths, found, strict=True) if page is not None and page.is_success}
    owners = {str(entry.get("owned_by", "")) for entry in entries or ()}
    servers = {page.headers.get("server", "").lower() for page in found if page is not None}
    plain = {path: _object(page) for path, page in pages.items()}
    metrics = pages[_METRICS].content if _METRICS in pages else b""
    version = _text(plain.get(_VERSION, {}).get("version"))
    if str(plain.get(_CONTRACT, {}).get("schema", "")).startswith("queueproof") or "queueproof" in owners:
        return Software(QUEUEPROOF, version, counters.block_size(metrics))
    if "vllm" in owners or b"\nvllm:" in metrics:
        return Software(VLLM, version, counters.block_size(metrics))
    info = plain.get(_SERVER_INFO, {})
    if "sglang" in owners or b"\nsglang:" in metrics or "max_total_num_tokens" in info:
        if not info:  # its name from 0.5.8 on
            newer = await wire.page(_SERVER_INFO_NEW)
            info = _object(newer) if newer is not None else {}
        return Software(SGLANG, _text(info.get("version")), counters.a_block(info.get("page_size")))
    props = plain.get(_PROPS, {})
    if "llama.cpp" in servers or "llamacpp" in owners or "default_generation_settings" in props:
        return Software(LLAMA_CPP, _text(props.get("build_info")))
    about = plain.get(_INFO, {})
    if "model_id" in about and ("router" in about or "docker_label" in about):
        return Software(TGI, _text(about.get("version")))
    openapi = await wire.page(_OPENAPI)
    routes = _object(openapi).get("paths") if openapi is not None else None
    if isinstance(routes, dict) and "/load_model" in routes and "/v1/chat/completions" in routes:
        return Software(TRANSFORMERS, version)
    return Software(UNKNOWN, version)


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


def _object(response: httpx.Response) -> Mapping[str, Any]:
    found = _json(response)
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
