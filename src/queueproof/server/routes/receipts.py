"""Receipts that were kept, and their replay: the same request computed again, alone, while others are served."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from contextlib import aclosing
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from queueproof.contract import codec
from queueproof.contract.errors import CannotTell, ContractError, RequestTooLong, UsageError
from queueproof.contract.receipt import Receipt, ReceiptDocument, is_receipt_id, read_document
from queueproof.contract.verdict import Answer, Outcome, Replayer, Verdict, judge, plan
from queueproof.server.body import read_object
from queueproof.server.config import ServerConfig
from queueproof.server.errors import ApiError, bad_request, brief
from queueproof.server.jsonio import JsonResponse
from queueproof.server.limits import Interrupted, Watch, due, try_later
from queueproof.server.openai.fields import Few, Integer, Strict, read_fields
from queueproof.server.protocol import Choice, ServedEngine
from queueproof.server.receipts.store import ReceiptStore
from queueproof.server.state import AppState, owner_of, state_of

_log = logging.getLogger("queueproof.server")
MOST_LISTED = 100
_USUALLY_LISTED = 20
_NO_STORE = {"Cache-Control": "no-store"}


class ReplayFields(Strict):
    """One of id, handle and receipt. prompt_token_ids: for a receipt that does not hold the prompt; not with a handle, which
    anybody may know: whether a prompt is the right one tells what another user asked."""

    id: str | None = None
    handle: Annotated[str, Field(pattern="^[0-9a-f]{8}$")] | None = None
    receipt: dict[str, Any] | None = None
    prompt_token_ids: Annotated[Few[Integer], Field(max_length=1 << 20)] | None = None


class ReceiptRoutes:
    """max_replays: that run or wait for the engine at once."""

    def __init__(self, store: ReceiptStore, max_replays: int) -> None:
        self._store, self._max_replays, self._replays = store, max_replays, 0

    def routes(self) -> Sequence[BaseRoute]:
        return (
            Route("/v1/receipts", self.newest, methods=["GET"]),
            Route("/v1/receipts/{id}", self.receipt, methods=["GET"]),
            Route("/v1/replay", self.replay, methods=["POST"]),
        )

    async def receipt(self, request: Request) -> Response:
        """A receipt, for who knows its id and has the key that it was made with."""
        document = await self._known(request.path_params["id"], owner_of(request))
        return JsonResponse(codec.to_plain(document), headers=_NO_STORE)

    async def newest(self, request: Request) -> Response:
        """What anybody may know of the last receipts: neither prompts nor answers nor ids, which open receipts."""
        given = request.query_params.get("limit", str(_USUALLY_LISTED))
        if not (given.isascii() and given.isdigit() and 1 <= int(given[:9]) <= MOST_LISTED):
            raise bad_request(f"limit={brief(given)} must be a number from 1 to {MOST_LISTED}", "limit")
        data = [
            {
                "handle": listed.handle,
                "created": listed.created,
                "class": listed.class_,
                "arithmetic": listed.arithmetic,
                "prompt_tokens": listed.prompt_tokens,
                "tokens": listed.tokens,
                "verdict": listed.verdict,
                "checked": listed.checked,
            }
            for listed in await self._store.newest(int(given))
        ]
        return JsonResponse({"object": "list", "data": data}, headers=_NO_STORE)

    async def replay(self, request: Request) -> Response:
        state = state_of(request)
        state.shutdown.refuse_new()
        fields = read_fields(ReplayFields, await read_object(request), {}, harmless=False)
        receipt = (await self._document(fields, owner_of(request))).receipt
        _check_limits(receipt, state.config)
        prompt = fields.prompt_token_ids
        if self._replays >= self._max_replays:
            why = f"{self._replays} receipts are being replayed, which is as many as may be"
            raise try_later(state.config, "replays_busy", why)
        self._replays += 1
        try:
            verdict, computed = await self._verdict(request, state, receipt, prompt)
        finally:
            self._replays -= 1
        state.extensions.replayed(verdict.outcome.value, receipt.class_, own=fields.receipt is None)
        if verdict.outcome is Outcome.DIFFERENT:
            assert verdict.difference is not None
            _log.warning("receipt %s is different at step %s", receipt.handle, verdict.difference.step)
        if computed:
            await self._store.record(receipt.id, verdict.outcome.value)
        return JsonResponse(
            _private(receipt, verdict) if fields.handle is None else _public(receipt, verdict), headers=_NO_STORE
        )

    async def _verdict(
        self, request: Request, state: AppState, receipt: Receipt, prompt: list[int] | None
    ) -> tuple[Verdict, bool]:
        """And whether anything was computed."""
        engine = state.desk.engine_of(receipt.arithmetic)
        if engine is None:
            have = ", ".join(engine.arithmetic for engine in state.engines)
            return Verdict.unknown(
                f"the receipt is of the arithmetic {receipt.arithmetic}, this server has {have}"
            ), False
        until = due(state.config, request.scope["queueproof"].arrival)
        with state.admission.sequences(engine, 1):
            try:
                async with Watch(request.receive, state.shutdown, until):
                    return await run_again(engine, receipt, prompt), True
            except CannotTell as error:
                return Verdict.unknown(str(error)), False
            except Interrupted as error:
                raise error.api_error(state.config.deadline) from None

    async def _document(self, fields: ReplayFields, owner: str | None) -> ReceiptDocument:
        given = [name for name in ("id", "handle", "receipt") if getattr(fields, name) is not None]
        if len(given) != 1:
            raise bad_request(f"give one of id, handle and receipt, not {', '.join(given) or 'none of them'}")
        if fields.handle is not None and fields.prompt_token_ids is not None:
            raise bad_request("prompt_token_ids needs the id or the receipt, not a handle", "prompt_token_ids")
        if fields.receipt is not None:
            try:
                return await asyncio.to_thread(read_document, fields.receipt)  # it may be megabytes
            except ContractError as error:
                raise bad_request(str(error), "receipt", error.code) from None
        if fields.id is not None:
            return await self._known(fields.id, owner)
        assert fields.handle is not None
        found = await self._store.by_handle(fields.handle)
        if found is None:
            raise _not_found(fields.handle)
        return found

    async def _known(self, receipt_id: str, owner: str | None) -> ReceiptDocument:
        """Another user's receipt is as unknown as one that never was."""
        found = await self._store.get(receipt_id, owner) if is_receipt_id(receipt_id) else None
        if found is None:
            raise _not_found(receipt_id)
        return found


def _check_limits(receipt: Receipt, config: ServerConfig) -> None:
    """A receipt may come from anybody: it asks for no more than a request may. Raises ApiError 400."""
    sampling = receipt.sampling
    sizes = {
        "stop": (len(sampling.stop), config.max_stops),
        "stop, in characters,": (sum(map(len, sampling.stop)), config.max_stop_text),
        "stop_token_ids": (len(sampling.stop_token_ids), config.max_biases),
        "logit_bias": (len(sampling.logit_bias), config.max_biases),
        "guide": (len(sampling.guide or ""), config.max_schema),
    }
    for name, (size, limit) in sizes.items():
        if size > limit:
            raise bad_request(f"{name} of the receipt has the length {size}, this server takes {limit}", "receipt")


async def run_again(engine: ServedEngine, receipt: Receipt, prompt_token_ids: Sequence[int] | None) -> Verdict:
    """Computes the answer of a receipt again, with nothing from the prefix cache. Raises CannotTell; EngineError."""
    replayer = Replayer(engine.model, engine.arithmetic, engine.family, engine.guide_library)
    todo = plan(receipt, replayer, prompt_token_ids)
    ended: Choice | None = None
    try:
        params = engine.params(**todo.options)
        outputs = engine.generate(todo.prompt_token_ids, params, f"replay-{secrets.token_hex(16)}", alone=True)
        async with aclosing(outputs):
            async for output in outputs:
                ended = output.outputs[0]
    except UsageError as error:
        # Who knows the handle only shall not learn parameters from a message.
        why = f": {error}" if isinstance(error, RequestTooLong) else ""
        raise CannotTell(f"this server cannot serve the request of the receipt{why}") from None
    if ended is None or ended.finish_reason in (None, "abort"):
        raise ApiError(503, "aborted", "the engine ended the replay before the answer was complete; try again")
    return judge(receipt, Answer.of(ended), replayer).with_text(engine.decode)


def _private(receipt: Receipt, verdict: Verdict) -> dict[str, Any]:
    return {
        "id": receipt.id,
        **verdict.to_plain(),
        "tokens": receipt.answer.tokens,
        "class": receipt.class_.value,
        "arithmetic": receipt.arithmetic,
    }


def _public(receipt: Receipt, verdict: Verdict) -> dict[str, Any]:
    """For who knows the handle only: no token, no bits."""
    plain: dict[str, Any] = {
        "handle": receipt.handle,
        "verdict": verdict.outcome.value,
        "tokens": receipt.answer.tokens,
    }
    if verdict.reason is not None:
        plain["reason"] = verdict.reason
    if verdict.difference is not None and verdict.difference.step is not None:
        plain["step"] = verdict.difference.step
    return plain


def _not_found(name: str) -> ApiError:
    return ApiError(404, "receipt_not_found", f"there is no receipt {brief(name)} here, or none for this key", "id")
