"""Audits of real servers: llama.cpp and vLLM on the CPU give other answers in a crowd, ours does not.

Needs a folder with the servers, as benchmarks/peer_servers.py describes it, named by QUEUEPROOF_PEERS; minutes each.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peer_servers import SERVERS, Setup, started
from queueproof.audit.records import AuditRecord, Verdict

PEERS = os.environ.get("QUEUEPROOF_PEERS")
PORT = 8417

pytestmark = [
    pytest.mark.optional,
    pytest.mark.skipif(PEERS is None, reason="QUEUEPROOF_PEERS names no folder with servers"),
]


def audited(name: str, folder: Path, *arguments: str, more: str = "") -> tuple[int, AuditRecord]:
    """The exit code and the record of an audit of that server, started for it."""
    (server,) = [server for server in SERVERS if server.name == name]
    server = replace(server, command=server.command + more)
    setup = Setup(Path(str(PEERS)), threads=2, users=24, length=2048)
    missing = setup.missing(server)
    if missing is not None:
        pytest.skip(missing)
    command = [sys.executable, "-m", "queueproof", "audit", f"http://127.0.0.1:{PORT}", "--out", str(folder / "run")]

    async def main() -> int:
        async with started(server, setup, PORT, folder):
            done = await asyncio.to_thread(subprocess.run, [*command, *arguments], timeout=400)
        return done.returncode

    return asyncio.run(main()), AuditRecord.from_json((folder / "run" / "audit.json").read_text(encoding="utf-8"))


def verdicts(record: AuditRecord) -> dict[str, Verdict]:
    return {result.name: result.verdict for result in record.probes}


def test_llama_cpp_depends_on_neighbours_and_cache(tmp_path: Path) -> None:
    probes = ("--probes", "alone,neighbours,cache,stream")
    code, record = audited("llama.cpp", tmp_path, *probes, "--budget", "3m", more=" --metrics")
    assert code == 1 and record.endpoint.vendor == "llama.cpp"
    assert verdicts(record) == {
        "alone": Verdict.HOLDS,
        "neighbours": Verdict.CHANGES,
        "cache": Verdict.CHANGES,
        "stream": Verdict.HOLDS,
    }
    assert {"batch composition", "cache path"} <= {cause.name for cause in record.causes}


def test_vllm_depends_on_what_is_computed_beside(tmp_path: Path) -> None:
    code, record = audited("vllm", tmp_path, "--probes", "alone,neighbours,load,lengths", "--budget", "5m")
    assert code == 1 and record.endpoint.vendor == "vllm"
    found = verdicts(record)
    assert found["alone"] is Verdict.HOLDS
    assert Verdict.CHANGES in (found["neighbours"], found["load"], found["lengths"])


def test_ours_holds_with_every_witness(tmp_path: Path) -> None:
    code, record = audited("queueproof", tmp_path, "--budget", "4m")
    assert code == 0 and record.endpoint.vendor == "queueproof" and record.causes == ()
    assert set(verdicts(record).values()) == {Verdict.HOLDS}
    assert all(witness.moved for result in record.probes for witness in result.witnesses)
