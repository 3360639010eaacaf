from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from queueproof.contract.errors import ReceiptStoreError
from queueproof.contract.receipt import ReceiptDocument, Signature
from queueproof.server.receipts.store import Bounds, ReceiptStore
from tests.support.receipts import a_receipt

T = TypeVar("T")
NOW = 1_700_000_000
ROOT = Path(__file__).parents[4]


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def document(number: int, created: int = NOW) -> ReceiptDocument:
    return ReceiptDocument(a_receipt(response_id=f"cmpl-{number}", created=created))


def open_store(path: Path | None, clock: float = NOW, max_pending: int = 256, **bounds: Any) -> ReceiptStore:
    return ReceiptStore(path, Bounds(**bounds), max_pending, lambda: clock)


async def keep(store: ReceiptStore, documents: list[ReceiptDocument], owner: str | None = None) -> None:
    await asyncio.gather(*(store.put(d, owner) for d in documents))


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_receipt_is_found_by_its_id_and_by_its_handle(tmp_path: Path, in_memory: bool) -> None:
    async def work() -> None:
        store = open_store(None if in_memory else tmp_path / "deep" / "receipts.db")
        signed = ReceiptDocument(document(1).receipt, Signature("0123456789abcdef", "AAAA"))
        await keep(store, [signed, document(2)])
        assert await store.get(signed.receipt.id, None) == signed
        assert await store.by_handle(signed.receipt.handle) == signed
        assert await store.get("rcpt-" + "0" * 32, None) is None and await store.by_handle("00000000") is None
        await store.put(signed, None)  # once more: nothing happens
        assert len(await store.newest(10)) == 2
        await store.close()
        await store.close()

    run(work())


def test_what_put_returned_for_is_there_after_opening_again(tmp_path: Path) -> None:
    path = tmp_path / "receipts.db"

    async def write() -> None:
        store = open_store(path)
        await keep(store, [document(i) for i in range(300)])
        await store.close()

    async def read() -> None:
        store = open_store(path)
        assert [d.handle for d in await store.newest(2)] == [document(i).receipt.handle for i in (299, 298)]
        assert await store.get(document(7).receipt.id, None) == document(7)
        await store.close()

    run(write())
    run(read())


def test_a_receipt_belongs_to_its_owner(tmp_path: Path) -> None:
    async def work() -> None:
        store = open_store(tmp_path / "receipts.db")
        await store.put(document(1), "alice")
        await store.put(document(2), None)
        mine, open_to_all = document(1).receipt.id, document(2).receipt.id
        assert await store.get(mine, "alice") is not None
        assert await store.get(mine, "bob") is None and await store.get(mine, None) is None
        assert await store.get(open_to_all, "bob") is not None
        await store.close()

    run(work())


def test_the_list_shows_no_prompt_no_answer_and_no_id(tmp_path: Path) -> None:
    async def work() -> None:
        store = open_store(tmp_path / "receipts.db")
        receipt = document(1).receipt
        await store.put(document(1), "alice")
        assert await store.newest(5) == [(receipt.handle, NOW, "portable", "ieee/1", 3, 3, None, None)]
        await store.record(receipt.id, "same")
        await store.record("rcpt-" + "0" * 32, "different")
        assert [(listed.verdict, listed.checked) for listed in await store.newest(5)] == [("same", NOW)]
        await store.close()

    run(work())


def test_the_file_is_bounded_by_count_and_age(tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "receipts.db"
        store = open_store(path, max_count=10, max_age=100)
        for i in range(0, 60, 3):
            await keep(store, [document(i + j) for j in range(3)])
            assert len(await store.newest(100)) <= 10
        newest = {document(i).receipt.handle for i in range(50, 60)}
        assert {listed.handle for listed in await store.newest(100)} == newest
        await store.close()
        later = open_store(path, clock=NOW + 101, max_count=10, max_age=100)
        assert await later.newest(100) == []  # also before anything is written
        assert await later.get(document(59).receipt.id, None) is None
        assert await later.by_handle(document(59).receipt.handle) is None
        await later.put(document(99, created=NOW + 101), None)
        await later.close()
        with sqlite3.connect(path) as db:
            assert db.execute("SELECT count(*) FROM receipts").fetchone() == (1,)
        db.close()

    run(work())


def test_the_file_is_bounded_by_bytes(tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "receipts.db"
        store = open_store(path, max_bytes=200_000)
        for i in range(0, 600, 20):
            await keep(store, [document(i + j) for j in range(20)])
        kept = await store.newest(1000)
        assert 50 < len(kept) < 250 and kept[0].handle == document(599).receipt.handle
        await store.close()
        assert path.stat().st_size < 300_000
        one = open_store(None, max_bytes=1)
        await keep(one, [document(1), document(2)])
        assert len(await one.newest(5)) == 1
        await one.close()

    run(work())


def test_deleted_prompts_leave_nothing_in_the_file(tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "receipts.db"
        store = open_store(path, max_count=1)
        await store.put(document(1), None)
        await store.put(document(2), None)
        await store.close()
        content = path.read_bytes()
        assert b"cmpl-2" in content and b"cmpl-1" not in content

    run(work())


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "receipts.db"
        store = open_store(path)
        await store.put(document(1), None)
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
        assert modes["receipts.db"] == 0o600 and set(modes.values()) == {0o600}
        await store.close()

    run(work())


def test_writing_holds_up_nobody_and_loses_nothing(tmp_path: Path) -> None:
    """A disk that stands still: puts wait, few are let in, the event loop goes on, and all is written in the end."""

    async def work() -> None:
        store = open_store(tmp_path / "receipts.db", max_pending=4)
        store._lock.acquire()
        try:
            puts = [asyncio.create_task(store.put(document(i), None)) for i in range(50)]
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert not any(task.done() for task in puts)
            assert len(store._pending) < 4  # and some are in the batch that waits for the disk
        finally:
            store._lock.release()
        await asyncio.gather(*puts)
        assert len(await store.newest(100)) == 50
        await store.close()

    run(work())


def test_who_leaves_does_not_take_others_along(tmp_path: Path) -> None:
    async def work() -> None:
        store = open_store(tmp_path / "receipts.db")
        with store._lock:
            puts = [asyncio.create_task(store.put(document(i), None)) for i in range(6)]
            await asyncio.sleep(0.01)
            puts[0].cancel()
            puts[4].cancel()
            await asyncio.sleep(0.01)
        done = await asyncio.gather(*puts, return_exceptions=True)
        assert [isinstance(d, asyncio.CancelledError) for d in done] == [True, False, False, False, True, False]
        assert {listed.handle for listed in await store.newest(9)} >= {document(i).receipt.handle for i in (1, 2, 3, 5)}
        await store.close()

    run(work())


def test_closing_waits_for_what_is_being_written(tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "receipts.db"
        store = open_store(path)
        puts = [asyncio.create_task(store.put(document(i), None)) for i in range(20)]
        await asyncio.sleep(0)
        await store.close()
        await asyncio.gather(*puts)
        with pytest.raises(ReceiptStoreError, match="closed"):
            await store.put(document(99), None)
        again = open_store(path)
        assert len(await again.newest(100)) == 20
        await again.close()

    run(work())


def test_a_full_disk_is_an_error_for_each_and_the_next_try_works(tmp_path: Path) -> None:
    async def work() -> None:
        store = open_store(tmp_path / "receipts.db")
        await store.put(document(0), None)
        store._db.execute("PRAGMA max_page_count = 8")
        results = await asyncio.gather(*(store.put(document(i), None) for i in range(1, 80)), return_exceptions=True)
        assert any(isinstance(r, ReceiptStoreError) and "full" in str(r) for r in results)
        assert all(r is None or isinstance(r, ReceiptStoreError) for r in results)
        store._db.execute("PRAGMA max_page_count = 1000000")
        await keep(store, [document(i) for i in range(1, 80)])
        assert len(await store.newest(100)) == 80
        await store.close()

    run(work())


def test_two_processes_may_use_one_file(tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "receipts.db"
        stores = [open_store(path, max_count=1000) for _ in range(3)]
        await asyncio.gather(
            *(keep(store, [document(100 * s + i) for i in range(60)]) for s, store in enumerate(stores))
        )
        for store in stores:
            assert len(await store.newest(1000)) == 180
            await store.close()

    run(work())


def test_many_openers_of_a_new_file_make_one_table(tmp_path: Path) -> None:
    opened: list[ReceiptStore] = []
    threads = [threading.Thread(target=lambda: opened.append(open_store(tmp_path / "new.db"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 8
    for store in opened:
        run(store.close())


@pytest.mark.parametrize("kind", ["DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
def test_opening_waits_for_a_process_that_is_at_work_on_the_new_file(tmp_path: Path, kind: str) -> None:
    """With IMMEDIATE SQLite itself does not wait: see `_open`."""
    path = tmp_path / "new.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute(f"BEGIN {kind}")
    other.execute("SELECT count(*) FROM sqlite_master").fetchone()
    leaves = threading.Timer(0.3, lambda: other.execute("ROLLBACK"))
    leaves.start()
    store = open_store(path)
    leaves.join()
    other.close()
    run(store.close())


def written(path: Path, count: int = 400) -> bytes:
    async def write() -> None:
        store = open_store(path)
        await keep(store, [document(i) for i in range(count)])
        await store.close()

    run(write())
    return path.read_bytes()


def test_a_damaged_file_is_an_error_and_stays_as_it_is(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.db")
    rng = random.Random(0)
    page = 4096
    damages = {
        "garbage": rng.randbytes(20_000),
        "text": b"these are no receipts, " * 500,
        "head": rng.randbytes(100) + whole[100:],
        "cut": whole[: len(whole) // 2],
        "pages": whole[: 4 * page] + rng.randbytes(12 * page) + whole[16 * page :],
    }
    for name, content in damages.items():
        path = tmp_path / f"{name}.db"
        path.write_bytes(content)
        with pytest.raises(ReceiptStoreError, match="damaged.*left as it is"):
            open_store(path)
        assert path.read_bytes() == content, name


def test_a_damaged_receipt_is_an_error_where_it_is_read(tmp_path: Path) -> None:
    whole = written(tmp_path / "receipts.db", 3)
    (tmp_path / "receipts.db").write_bytes(
        whole.replace(b'"seed":"18446744073709551615"', b'"seed":"18446744073709551614"')
    )

    async def work() -> None:
        store = open_store(tmp_path / "receipts.db")
        with pytest.raises(ReceiptStoreError, match="damaged: .*the id is not that of the content"):
            await store.get(document(1).receipt.id, None)
        await store.close()

    run(work())


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE receipts (x)")
    db.close()
    before = foreign.read_bytes()
    with pytest.raises(ReceiptStoreError, match="database of another program"):
        open_store(foreign)
    assert foreign.read_bytes() == before and {f.name for f in tmp_path.iterdir()} == {"foreign.db"}
    written(tmp_path / "later.db", 1)
    with sqlite3.connect(tmp_path / "later.db") as db:
        db.execute("PRAGMA user_version = 2")
    db.close()
    with pytest.raises(ReceiptStoreError, match="in the form 2; this version knows 1"):
        open_store(tmp_path / "later.db")
    with pytest.raises(ReceiptStoreError, match="cannot be opened"):
        open_store(tmp_path)


WRITER = """
import asyncio, sys
from pathlib import Path
from tests.unit.server.receipts.test_store import document, open_store

async def main():
    store = open_store(Path(sys.argv[1]), max_count=200)
    first = int(sys.argv[2])
    for i in range(first, first + 100000, 10):
        batch = [document(j) for j in range(i, i + 10)]
        await asyncio.gather(*(store.put(d, None) for d in batch))
        print(batch[-1].receipt.id, flush=True)

asyncio.run(main())
"""


def test_a_killed_writer_leaves_whole_receipts_only(tmp_path: Path) -> None:
    """kill -9 at random moments, again and again on one file: all that was acknowledged is there, and it reads well."""
    path, rng = tmp_path / "receipts.db", random.Random(0)
    for attempt in range(3):
        command = [sys.executable, "-c", WRITER, str(path), str(attempt * 1_000_000)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            acknowledged = [process.stdout.readline().strip()]  # it has begun
            time.sleep(rng.uniform(0.0, 0.15))
            process.send_signal(signal.SIGKILL)
            acknowledged += [line.strip() for line in process.stdout.readlines() if line.endswith("\n")]
        assert process.returncode == -signal.SIGKILL and acknowledged[0].startswith("rcpt-")

        async def check(last: str) -> None:
            store = open_store(path)
            assert await store.get(last, None) is not None
            listed = await store.newest(1000)
            assert 10 <= len(listed) <= 200
            for entry in listed:
                assert await store.by_handle(entry.handle) is not None  # read and checked
            await store.close()

        run(check(acknowledged[-1]))
