"""The part of the server that makes receipts, keeps them, and replays them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from starlette.routing import BaseRoute

from queueproof.contract.errors import ReceiptStoreError
from queueproof.contract.receipt import Receipt, ReceiptDocument, Signature
from queueproof.server.extension import FinishedAnswer, Receipts
from queueproof.server.receipts.make import Mode, make_receipt
from queueproof.server.receipts.signing import Signer
from queueproof.server.receipts.store import ReceiptStore
from queueproof.server.routes import receipts as routes
from queueproof.server.state import AppState

_log = logging.getLogger("queueproof.server")
_LONG = 4096  # tokens: above it, making a receipt takes milliseconds, in which every stream would stand still


class ReceiptKeeper(Receipts):
    """Owns its store. build: version of the software. max_replays: at once; more are refused with 429."""

    def __init__(
        self, store: ReceiptStore, mode: Mode, build: str, signer: Signer | None = None, max_replays: int = 4
    ) -> None:
        self.store, self._mode, self._build, self._signer = store, mode, build, signer
        self._routes = routes.ReceiptRoutes(store, max_replays)

    def routes(self) -> Sequence[BaseRoute]:
        return self._routes.routes()

    def running(self, state: AppState) -> AbstractAsyncContextManager[None]:
        return self._open()

    async def keep(self, answer: FinishedAnswer) -> str | None:
        """None also if the store fails, which is logged: the answer is right without its receipt, and says so."""
        tokens = len(answer.output.prompt_token_ids) + len(answer.choice.token_ids)
        receipt = self._make(answer) if tokens <= _LONG else await asyncio.to_thread(self._make, answer)
        if receipt is None:
            return None
        try:
            await self.store.put(ReceiptDocument(receipt, self._sign(receipt)), answer.owner)
        except ReceiptStoreError as error:
            _log.error("no receipt for %s: %s", answer.response_id, error)
            return None
        return receipt.id

    def _make(self, answer: FinishedAnswer) -> Receipt | None:
        return make_receipt(answer, self._mode, self._build)

    def _sign(self, receipt: Receipt) -> Signature | None:
        return None if self._signer is None else self._signer.sign(receipt)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self.store.close()
