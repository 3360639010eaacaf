"""Receipts on disk: one SQLite file, written in batches off the event loop.

What `put` has returned for survives a killed process and a power cut: each batch is one transaction in the write-ahead log,
synced before it counts (synchronous=FULL; one sync for a batch, so that it costs little). There is never half a receipt.
The file is bounded by the age, number and size of what is in it. Several processes may use it at once.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from queueproof.contract.errors import ContractError, ReceiptStoreError
from queueproof.contract.receipt import ReceiptDocument, read_document

T = TypeVar("T")
APPLICATION_ID = 0x51507263  # "QPrc"
SCHEMA_VERSION = 1
_BUSY_SECONDS = 10.0  # how long to wait for another process that writes
_SCHEMA = """
CREATE TABLE receipts (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  handle TEXT NOT NULL,
  owner TEXT,
  created INTEGER NOT NULL,
  class TEXT NOT NULL,
  arithmetic TEXT NOT NULL,
  prompt_tokens INTEGER NOT NULL,
  tokens INTEGER NOT NULL,
  document TEXT NOT NULL,
  verdict TEXT,
  checked INTEGER
);
CREATE INDEX receipts_handle ON receipts (handle);
CREATE INDEX receipts_created ON receipts (created);
"""


class Listed(NamedTuple):
    """What anybody may know of a receipt. verdict, checked: of the last replay, and when; None before the first."""

    handle: str
    created: int
    class_: str
    arithmetic: str
    prompt_tokens: int
    tokens: int
    verdict: str | None
    checked: int | None


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is kept, the newest first. max_age: seconds; max_bytes: of the file, roughly."""

    max_age: float = 30 * 86400.0
    max_count: int = 100_000
    max_bytes: int = 2 << 30


class _Row(NamedTuple):
    document: ReceiptDocument
    owner: str | None


class ReceiptStore:
    """path: of the file, which is made if it is not there, for its owner alone. None keeps receipts in memory.

    max_pending: receipts that wait for the disk; more have to wait before they may wait.
    Raises ReceiptStoreError for a file that is damaged, of another program or of a later version: it is left as it is.
    Coroutines may be used from one event loop.
    """

    def __init__(
        self,
        path: Path | None,
        bounds: Bounds | None = None,
        max_pending: int = 64,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path, self._bounds, self._clock = path, bounds or Bounds(), clock
        self._lock = threading.Lock()  # one connection for all threads
        self._db = _open(path)
        self._slots = asyncio.Semaphore(max_pending)
        self._pending: list[tuple[_Row, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._closed = False

    async def put(self, document: ReceiptDocument, owner: str | None) -> None:
        """Returns when the receipt is on disk. owner: SHA-256, hex, of the API key; None lets everybody read it who knows
        the id.

        Who is cancelled while waiting may still find it stored. Raises ReceiptStoreError if it cannot be.
        """
        async with self._slots:
            if self._closed:
                raise ReceiptStoreError("the store of receipts is closed")
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._pending.append((_Row(document, owner), done))
            if self._writer is None:
                self._writer = asyncio.create_task(self._write_pending(), name="queueproof-receipts")
            await done

    async def get(self, receipt_id: str, owner: str | None) -> ReceiptDocument | None:
        """None if there is none, or none for this owner. Raises ReceiptStoreError for one that is damaged."""
        return await self._find("id = ? AND (owner IS NULL OR owner = ?)", (receipt_id, owner))

    async def by_handle(self, handle: str) -> ReceiptDocument | None:
        """The newest one of that handle, whoever owns it."""
        return await self._find("handle = ?", (handle,))

    async def newest(self, count: int) -> list[Listed]:
        """The last `count` receipts, the newest first."""
        columns = "handle, created, class, arithmetic, prompt_tokens, tokens, verdict, checked"
        query = f"SELECT {columns} FROM receipts WHERE created >= ? ORDER BY seq DESC LIMIT ?"
        rows = await self._on_thread(lambda db: db.execute(query, (self._oldest(), count)).fetchall())
        return [Listed(*row) for row in rows]

    async def record(self, receipt_id: str, verdict: str) -> None:
        """Keeps the outcome of a replay; nothing for a receipt that is not here."""
        values = (verdict, int(self._clock()), receipt_id)
        await self._on_thread(
            lambda db: db.execute("UPDATE receipts SET verdict = ?, checked = ? WHERE id = ?", values)
        )

    async def close(self) -> None:
        """Waits for what is being written. Safe to call twice."""
        self._closed = True
        if self._writer is not None:
            await self._writer
        await asyncio.to_thread(self._close)

    async def _find(self, condition: str, values: tuple[str | None, ...]) -> ReceiptDocument | None:
        query = f"SELECT document FROM receipts WHERE {condition} AND created >= ? ORDER BY seq DESC LIMIT 1"
        row = await self._on_thread(lambda db: db.execute(query, (*values, self._oldest())).fetchone())
        if row is None:
            return None
        try:
            return read_document(row[0])
        except ContractError as error:
            raise ReceiptStoreError(f"a receipt in {self._name} is damaged: {error}") from error

    async def _write_pending(self) -> None:
        """Until nothing waits. All that came while a batch was written is the next batch."""
        while self._pending:
            batch, self._pending = self._pending, []
            failure: Exception | None = None
            try:
                await self._on_thread(partial(self._write, [row for row, _ in batch]))
            except Exception as error:
                failure = error  # those who wait get it
            for _, done in batch:
                if done.done():  # cancelled: nobody waits for this one
                    continue
                if failure is None:
                    done.set_result(None)
                else:
                    done.set_exception(failure)
        self._writer = None

    # What follows runs on threads.

    def _write(self, rows: Sequence[_Row], db: sqlite3.Connection) -> None:
        values = [
            (
                (receipt := row.document.receipt).id,
                receipt.handle,
                row.owner,
                receipt.created,
                receipt.class_.value,
                receipt.arithmetic,
                receipt.prompt_tokens,
                receipt.answer.tokens,
                row.document.to_json(),
            )
            for row in rows
        ]
        with _transaction(db):
            db.executemany(
                "INSERT OR IGNORE INTO receipts (id, handle, owner, created, class, arithmetic, prompt_tokens, tokens, "
                "document) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            self._prune(db)

    def _prune(self, db: sqlite3.Connection) -> None:
        bounds = self._bounds
        db.execute("DELETE FROM receipts WHERE created < ?", (self._oldest(),))
        # Numbers have gaps, so this leaves max_count or a few less, without counting.
        db.execute("DELETE FROM receipts WHERE seq <= (SELECT max(seq) FROM receipts) - ?", (bounds.max_count,))
        while _bytes_in_use(db) > bounds.max_bytes:
            (count,) = db.execute("SELECT count(*) FROM receipts").fetchone()
            if count < 2:
                return  # one is kept, however long
            some = max(1, count // 20)
            db.execute("DELETE FROM receipts WHERE seq IN (SELECT seq FROM receipts ORDER BY seq LIMIT ?)", (some,))

    def _oldest(self) -> int:
        return int(self._clock() - self._bounds.max_age)

    async def _on_thread(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def run() -> T:
            with self._lock, _errors(self._name):
                return work(self._db)

        return await asyncio.to_thread(run)

    def _close(self) -> None:
        with self._lock:
            self._db.close()

    @property
    def _name(self) -> str:
        return "memory" if self.path is None else str(self.path)


def _open(path: Path | None) -> sqlite3.Connection:
    name = "memory" if path is None else str(path)
    end = time.monotonic() + _BUSY_SECONDS
    with _errors(name):
        if path is not None:
            _make_file(path)
        while True:
            try:
                return _connect(path, name)
            except sqlite3.OperationalError as error:
                # SQLite waits for other processes by itself, but not where it would have to strengthen a lock that it
                # holds already: several that turn a new file into one with a write-ahead log do. Begin anew then.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
            time.sleep(0.01 * (1 + random.random()))


def _connect(path: Path | None, name: str) -> sqlite3.Connection:
    db = sqlite3.connect(
        ":memory:" if path is None else path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        _prepare(db, name)
    except BaseException:
        db.close()
        raise
    return db


def _make_file(path: Path) -> None:
    """Readable by its owner alone: it holds prompts. SQLite gives the files beside it the same mode."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise ReceiptStoreError(f"the file of receipts {path} cannot be opened: {error.strerror}") from error


def _prepare(db: sqlite3.Connection, name: str) -> None:
    """Checks the file before anything in it is changed, then makes the tables if they are not there."""
    db.execute("BEGIN")  # three reads of one moment: another process may be making the tables
    try:
        _check_kind(db, name)
    finally:
        db.execute("ROLLBACK")
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(" ".join(found.split()))
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode not in ("wal", "memory"):
        raise ReceiptStoreError(
            f"{name} is on a file system that has no write-ahead log for SQLite; keep receipts on a local disk"
        )
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA secure_delete = ON")  # prompts that were deleted leave nothing behind
    with _transaction(db):
        if _check_kind(db, name) == 0:  # another process may have been faster
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _check_kind(db: sqlite3.Connection, name: str) -> int:
    """The version of the schema, 0 for an empty file. Raises ReceiptStoreError for a file that is not ours."""
    (application,), (version,) = (db.execute(f"PRAGMA {p}").fetchone() for p in ("application_id", "user_version"))
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == 0 and version == 0 and tables == 0:
        return 0
    if application != APPLICATION_ID:
        raise ReceiptStoreError(f"{name} is a database of another program; give another path for receipts")
    if version != SCHEMA_VERSION:
        raise ReceiptStoreError(
            f"{name} holds receipts in the form {version}; this version knows {SCHEMA_VERSION}: update, or give another path"
        )
    return SCHEMA_VERSION


def _bytes_in_use(db: sqlite3.Connection) -> int:
    size, pages, free = (db.execute(f"PRAGMA {p}").fetchone()[0] for p in ("page_size", "page_count", "freelist_count"))
    return int((pages - free) * size)


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # a full disk has ended it already
            db.execute("ROLLBACK")
        raise


@contextmanager
def _errors(name: str) -> Iterator[None]:
    """SQLite's errors as ReceiptStoreError."""
    try:
        yield
    except sqlite3.Error as error:
        if type(error) is sqlite3.DatabaseError:  # not one of its subclasses
            raise ReceiptStoreError(
                f"the file of receipts {name} is damaged ({error}) and was left as it is; move it away or restore a copy"
            ) from error
        raise ReceiptStoreError(f"receipts in {name}: {error}") from error
