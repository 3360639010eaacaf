"""A server among many clients for as long as you like: is every answer the one computed alone, and does memory stay bounded?

    python benchmarks/server_soak.py --seconds 60 --clients 64 --model smollm2-135m --requests 10000 --kills 3

First the crowd of tests/server/test_soak.py, with its receipts and a restart; then so many tiny requests; then a server that
is killed so often under load and started again on the same receipts. Exits with 1 if anything is not as promised. The
negative control is `vendor` under the same load: it must differ.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sqlite3
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from queueproof.contract.receipt import read_document
from queueproof.kernels.registry import backend
from queueproof.models.loader import load_model
from tests.support.checkpoints import checkpoint, write_hf
from tests.support.crowd import Crowd, soak_server
from tests.support.flood import flood
from tests.support.server_process import ServerProcess
from tests.support.soak import Sizes, Soak, draw_pool

MB = 1 << 20
GROWTH = 300 * MB  # of a server's memory, whatever is asked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="name or path; tiny is made here, of random numbers")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument(
        "--rate", type=float, default=1.0, help="requests a second of each client that waits for nothing"
    )
    parser.add_argument("--longest-prompt", type=int, default=200)
    parser.add_argument("--longest-answer", type=int, default=48)
    parser.add_argument("--pool", type=int, default=300, help="different requests")
    parser.add_argument("--kv-cache-memory", help="of the server; the default of tiny makes it preempt")
    parser.add_argument("--threads", type=int, default=1, help="of the server; after the restart it has one more")
    parser.add_argument("--max-num-seqs", type=int, default=16)
    parser.add_argument("--requests", type=int, default=10_000, help="tiny ones")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = args.model
        if model == "tiny":
            model = str(write_hf(checkpoint(tied=False, hidden_size=144, intermediate_size=200), folder / "tiny"))
            args.kv_cache_memory = args.kv_cache_memory or str(40 * 16 * 256)
        wrong = crowd(args, model, folder) + tiny_requests(args, model, folder) + kills(args, model, folder)
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


def crowd(args: argparse.Namespace, model: str, folder: Path) -> list[str]:
    loaded = load_model(model, backend("ieee/1", "cpu"))
    sizes = Sizes(
        vocabulary=loaded.config.vocab_size,
        longest_prompt=args.longest_prompt,
        longest_answer=args.longest_answer,
        pool=args.pool,
        rate=args.rate,
    )
    memory = () if args.kv_cache_memory is None else ("--kv-cache-memory", args.kv_cache_memory)
    options = ("--max-num-seqs", str(args.max_num_seqs), "--threads", str(args.threads), "--chunk", "256", *memory)
    after_restart = ("--max-num-seqs", "3", "--threads", str(args.threads + 1), "--policy", "random")
    found = soak_server(model, folder, options, after_restart, sizes, args.seconds, args.clients, args.seed)
    compared, different = found.judge(loaded)
    control, control_different = found.judge(load_model(model, backend("vendor", "cpu")))
    report(found)
    print(f"ieee/1: {compared} answers, {len(different)} differences from the answers alone")
    print(f"vendor: {control} answers, {len(control_different)} differences (the negative control)")
    wrong = [f"error: {error}" for error in found.errors[:5]] + different[:5]
    if set(found.verdicts + found.verdicts_after_restart) != {"same"}:
        wrong.append("a receipt does not replay")
    if not control_different:
        wrong.append("the negative control does not differ")
    if found.largest_batch < 2 or not found.left or not found.of_ieee1["prefix_cache_hits_total"]:
        wrong.append("no crowd: an axis did not move")
    return wrong + memory_wrong("soak", *found.rss)


def report(found: Crowd) -> None:
    count = found.of_ieee1
    print(
        f"{len(found.asked)} requests, {found.left} left early, largest batch {found.largest_batch}; of ieee/1: "
        f"{count['generation_tokens_total']:.0f} tokens, {count['prefix_cache_hits_total']:.0f} of "
        f"{count['prefix_cache_queries_total']:.0f} prompt tokens from the prefix cache, "
        f"{count['num_preemptions_total']:.0f} preemptions; memory {found.rss[0] // MB} to {found.rss[1] // MB} MiB"
    )
    for name, verdicts in (("same server", found.verdicts), ("after a restart", found.verdicts_after_restart)):
        print(
            f"{len(verdicts)} receipts, {name}: {', '.join(f'{verdicts.count(v)} {v}' for v in sorted(set(verdicts)))}"
        )


def tiny_requests(args: argparse.Namespace, model: str, folder: Path) -> list[str]:
    with ServerProcess(model, "--threads", str(args.threads), log=folder / "flood") as server:
        asyncio.run(flood(server.port, requests=200, connections=50))  # whatever is allocated once, is
        before = server.rss()
        statuses = asyncio.run(flood(server.port, args.requests, connections=50))
        after = server.rss()
    print(f"{args.requests} tiny requests: {dict(statuses)}; memory {before // MB} to {after // MB} MiB")
    wrong = [] if statuses == {200: args.requests} else [f"tiny requests: {dict(statuses)}"]
    return wrong + memory_wrong("tiny requests", before, after)


def kills(args: argparse.Namespace, model: str, folder: Path) -> list[str]:
    file, told = folder / "killed.sqlite", set()
    sizes = Sizes(vocabulary=280, longest_prompt=64, longest_answer=16, pool=40, rate=20.0, classes=("portable",))
    threads = ("--threads", str(args.threads))
    for number in range(args.kills):
        with ServerProcess(model, *threads, log=folder / f"kill{number}", receipts=file) as server:
            soak = Soak(server.url, draw_pool(number, sizes), sizes, clients=16, seed=number)
            timer = threading.Timer(3.0 + 0.37 * number, server.kill)
            timer.start()
            asyncio.run(soak.run(3.5 + 0.37 * number))
            timer.join()
        told |= {str(answer.receipt) for item in soak.asked for answer in item.answers}
    if not told:
        return []
    with contextlib.closing(sqlite3.connect(file)) as db:
        documents = [read_document(text) for (text,) in db.execute("SELECT document FROM receipts")]
    kept = {document.receipt.id for document in documents}
    with ServerProcess(model, *threads, log=folder / "after", receipts=file) as server, server.client() as client:
        verdicts = [client.post("/v1/replay", json={"id": name}).json()["verdict"] for name in sorted(told)[:50]]
    print(
        f"{args.kills} kills: {len(told)} receipts told, {len(told - kept)} lost; {verdicts.count('same')} of {len(verdicts)} replay"
    )
    return [] if told <= kept and set(verdicts) == {"same"} else ["receipts were lost or do not replay after a kill"]


def memory_wrong(what: str, before: int, after: int) -> list[str]:
    return [f"{what}: memory grew by {(after - before) // MB} MiB"] if after - before > GROWTH else []


if __name__ == "__main__":
    sys.exit(main())
