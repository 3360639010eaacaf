"""The comparison with other CPU servers: what it asks, how it reads answers, what it makes of them, and that it cleans up."""

from __future__ import annotations

import asyncio
import io
import json
import random
import re
import socket
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from benchmarks import cpu_peers, peer_loads, peer_servers
from benchmarks.peer_loads import (
    WORDS,
    Answer,
    Load,
    LoadError,
    Target,
    decode_figures,
    gap_figures,
    measure,
    parse_loads,
    prompt,
    read_answer,
)
from benchmarks.peer_report import plot, show, summarise
from benchmarks.peer_servers import MODEL, SERVERS, Server, Setup, version_in
from queueproof.cli.machine import MachineLimits

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"


def event(text: str | None, usage: dict[str, int] | None = None) -> bytes:
    chunk: dict[str, Any] = {"choices": [] if text is None else [{"text": text}], "usage": usage}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def chunked(*parts: bytes) -> list[bytes]:
    return [f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts] + [b"0\r\n\r\n"]


def test_loads_are_read() -> None:
    one, many, prefill, long, mixed = parse_loads("1,24,prefill512,prefill4096,mixed", 64)
    assert (one.users, one.answer, one.times) == (1, 64, 3)
    assert (many.users, many.times, many.title) == (24, 1, "24 users")
    assert prefill.prefill and (prefill.prompt, prefill.length) == (512, 513)
    assert (long.prompt, long.times) == (4096, 1)
    assert mixed.arriving == 1024 and mixed.length == 1025 and not mixed.prefill


@pytest.mark.parametrize("text", ["", "0", "65", "prefill", "prefill9000", "１", "many", "1,,8"])
def test_what_is_no_load_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is no load"):
        parse_loads(text, 64)


def test_prompts_have_their_length_and_share_no_beginning() -> None:
    assert len(set(WORDS)) == len(WORDS)
    texts = [prompt(30, "round 1", "8", user) for user in range(64)]
    assert all(len(text.split()) == 30 for text in texts)
    assert len({tuple(text.split()[:8]) for text in texts}) == 64
    assert prompt(30, "round 1", "8", 3) == texts[3] != prompt(30, "round 2", "8", 3)


def test_an_answer_is_read_however_it_was_cut() -> None:
    usage = {"prompt_tokens": 30, "completion_tokens": 4}
    whole = HEAD + b"".join(
        chunked(event(""), event(" a") + event(" b"), event(" c"), event(None, usage), b"data: [DONE]\n\n")
    )
    rng = random.Random(0)
    for _ in range(50):
        cuts = sorted(rng.sample(range(1, len(whole)), 12))
        packets = [whole[i:j] for i, j in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        answer = read_answer(10.0, [(11.0 + i, packet) for i, packet in enumerate(packets)])
        assert (answer.prompt_tokens, answer.output_tokens) == (30, 4)
        assert len(answer.times) == 3 and list(answer.times) == sorted(answer.times)
    at_once = read_answer(10.0, [(12.5, whole)])
    assert at_once.times == (2.5, 2.5, 2.5) and at_once.ttft == 2.5 and at_once.tpot == 0.0


def test_without_a_usage_chunks_are_tokens() -> None:
    whole = HEAD + b"".join(chunked(event(" a"), event(""), event(" b")))
    answer = read_answer(0.0, [(1.0, whole)])
    assert (answer.prompt_tokens, answer.output_tokens) == (None, 2)


def test_an_answer_without_text_has_its_end_as_its_first_token() -> None:
    whole = HEAD + b"".join(chunked(event("", {"prompt_tokens": 512, "completion_tokens": 1})))
    answer = read_answer(1.0, [(3.0, whole)])
    assert answer.ttft == 2.0 and answer.tpot is None and answer.output_tokens == 1


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 7\r\n\r\nno\nroom", "status 400.*no.*room"),
        (HEAD + b"".join(chunked(event(" a"))[:1]), "cut"),
        (HEAD + b"".join(chunked(b'data: {"error": "out of memory"}\n\n')), "out of memory"),
        (HEAD + b"".join(chunked(b": nothing\n\n")), "empty"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP"),
        (b"", "status missing|cut"),
    ],
)
def test_what_is_no_whole_answer_is_an_error(data: bytes, said: str) -> None:
    with pytest.raises(LoadError, match=said):
        read_answer(0.0, [(1.0, data)] if data else [])


def test_the_figures_of_decode() -> None:
    answers = [
        Answer(10.0, (1.0, 1.5, 2.0), 2.1, 30, 3),
        Answer(10.5, (0.5, 1.5, 3.5), 3.6, 30, 3),
    ]
    found = decode_figures(answers)
    assert found["tokens_per_s"] == pytest.approx(6 / 4.0)
    assert found["ttft_ms"] == pytest.approx(750) and found["tpot_ms"] == pytest.approx(1000)
    with pytest.raises(LoadError, match="more than a token"):
        decode_figures([Answer(0.0, (1.0,), 1.0, 30, 1)])


def test_only_gaps_while_prompts_arrive_count() -> None:
    readers = [Answer(0.0, (1.0, 2.0, 2.5, 3.0, 5.0, 9.0), 9.0, 30, 6)]
    others = [Answer(2.2, (0.5,), 0.5, 1024, 1), Answer(3.0, (1.0,), 1.2, 1024, 1)]
    found = gap_figures(readers, others)  # from 2.2 to 4.2: gaps of 0.5, 0.5, 2.0
    assert found["gap_median_ms"] == pytest.approx(500) and found["arrivals"] == 2
    assert found["gap_p99_ms"] == pytest.approx(500 + 0.98 * 1500)
    assert found["p99_by_median"] == pytest.approx(found["gap_p99_ms"] / 500)
    with pytest.raises(LoadError, match="under way"):
        gap_figures([Answer(0.0, (1.0,), 1.0, 30, 1)], others)


@asynccontextmanager
async def answering(extra: int = 0) -> AsyncIterator[tuple[Target, list[dict[str, Any]]]]:
    """A server that answers words at once, and counts `extra` tokens more than a prompt has words; what it was asked."""
    asked: list[dict[str, Any]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        found = re.search(r"Content-Length: (\d+)", head)
        assert found is not None
        body = json.loads(await reader.readexactly(int(found.group(1))))
        asked.append(body)
        writer.write(HEAD)
        for _ in range(body["max_tokens"]):
            writer.write(chunked(event(" w"))[0])
            await writer.drain()
            await asyncio.sleep(0.002)
        counts = {"prompt_tokens": len(body["prompt"].split()) + extra, "completion_tokens": body["max_tokens"]}
        writer.write(b"".join(chunked(event(None, counts))))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield Target("127.0.0.1", server.sockets[0].getsockname()[1], {"ignore_eos": True}), asked
    finally:
        server.close()
        await server.wait_closed()


def test_a_load_asks_all_at_once_and_measures() -> None:
    async def go() -> None:
        async with answering() as (target, asked):
            found = await measure(Load("3", 3, 30, 8, times=2), target, "round 0")
            assert found["output_tokens"] == 24 and found["tokens_per_s"] > 0 and found["tpot_ms"] > 1
            assert len(asked) == 6 and len({body["prompt"] for body in asked}) == 6
            assert all(body["ignore_eos"] and body["temperature"] == 0 and body["stream"] for body in asked)
            prefill = await measure(Load("prefill512", 1, 512, 1), target, "round 0")
            assert prefill["tokens_per_s"] == pytest.approx(512e3 / prefill["ttft_ms"])

    asyncio.run(go())


def test_prompts_arrive_while_others_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_loads, "EVERY", 0.02)

    async def go() -> None:
        async with answering() as (target, asked):
            found = await measure(Load("mixed", 2, 30, 40, arriving=100), target, "round 0")
            assert found["arrivals"] == sum(len(body["prompt"].split()) == 100 for body in asked) > 1
            assert found["p99_by_median"] >= 1 and found["output_tokens"] == 80

    asyncio.run(go())


def test_a_server_that_reads_other_texts_is_no_peer() -> None:
    async def go() -> None:
        async with answering(extra=1) as (target, _):
            with pytest.raises(LoadError, match="30 tokens were counted as \\[31\\]"):
                await measure(Load("1", 1, 30, 2), target, "x")
        with pytest.raises(LoadError, match="no connection"):
            await measure(Load("1", 1, 30, 2), target, "x")

    asyncio.run(go())


def test_commands_are_whole_and_a_report_names_no_place_of_this_machine(tmp_path: Path) -> None:
    peers = tmp_path / "some peers"
    setup = Setup(peers, 2, 64, 4160)
    for server in SERVERS:
        command = setup.command(server, 8201)
        assert "{" not in command and "8201" in command
        assert "{" not in setup.shown(server) and str(tmp_path) not in setup.shown(server)
        assert (setup.missing(server) is None) == (server.name == "queueproof Q4_1")
    named = {server.name: server for server in SERVERS}
    one, crowd, mixed = parse_loads("1,24,mixed", 64)
    assert all(server.takes(one) for server in SERVERS)
    assert MODEL in setup.command(named["queueproof Q4_1"], 1)  # whose file is in 4 bits
    assert not named["llama.cpp Q4_1"].takes(crowd) and named["llama.cpp Q4_1"].takes(mixed)
    assert named["queueproof"].takes(mixed) and not named["transformers"].takes(mixed)
    assert f"-c {64 * 4160} -np 64" in setup.command(named["llama.cpp"], 1)
    assert f"-c {10 * 4160} -np 10" in setup.command(named["llama.cpp Q4_1"], 1)
    assert setup.body(named["transformers"])["model"] == str(peers / "smollm2-hf/bf16")
    assert setup.env(named["vllm"])["PATH"].startswith(f"{peers}/vllm/bin:")
    assert setup.env(named["vllm"])["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert {server.weights for server in SERVERS if server.ours} <= {
        server.weights for server in SERVERS if not server.ours
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("version: 0.6.0-dev (build 0, commit unknown)\nbuilt with GNU 12.2.0", "0.6.0-dev (build 0, commit unknown)"),
        ("version: 4242 (abcdef0)\n", "4242 (abcdef0)"),
        ("0.32.0+cpu\n", "0.32.0+cpu"),
        ("no such file", "unknown"),
    ],
)
def test_versions_are_found(text: str, found: str) -> None:
    assert version_in(text) == found


def report_of(rows: list[tuple[str, str, float]]) -> dict[str, Any]:
    """rows: (load, server, tokens/s)."""
    kinds = {"ours": ("bf16", True), "p": ("bf16", False), "q": ("bf16", False), "p4": ("Q4_1", False)}
    loads = parse_loads("1,8,prefill512,mixed", 64)
    return {
        "machine": {"name": "a <CPU>", "cores": 2, "features": ["avx2"]},
        "model": {"name": "m", "trunk_weights": 900, "head_weights": 100},
        "threads": 2,
        "loads": {
            load.name: {"title": load.title, "users": load.users, "prompt": load.prompt, "answer": load.answer}
            | {"arriving": load.arriving}
            for load in loads
        },
        "servers": {
            name: {
                "weights": weights,
                "ours": ours,
                "bytes_per_weight": 2.0 if weights == "bf16" else 0.7,
                "note": None,
            }
            for name, (weights, ours) in kinds.items()
        },
        "limits": [{"read_bytes_per_s": b, "flops_per_s": f, "dot_flops_per_s": 2 * f} for b, f in ((3e5, 9e6), (2e5, 1e7), (2.5e5, 1.2e7))],
        "measured": [
            {"round": turn, "load": load, "server": server, "tokens_per_s": rate, "ttft_ms": 5.0, "tpot_ms": 2.0}
            | ({"gap_p99_ms": 9.0, "gap_median_ms": 3.0, "p99_by_median": 3.0} if load == "mixed" else {})
            for turn, (load, server, rate) in enumerate(rows)
        ],
    }


def test_medians_ratios_and_the_shares_of_the_limits() -> None:
    report = report_of(
        [("1", "ours", 90.0), ("1", "ours", 110.0), ("1", "ours", 100.0), ("1", "p", 80.0), ("1", "q", 50.0)]
        + [("1", "p4", 400.0), ("8", "p", 300.0), ("prefill512", "ours", 2560.0), ("prefill512", "p", 5120.0)]
    )
    summarise(report)
    assert report["limit"] == {"read_bytes_per_s": 2.5e5, "flops_per_s": 1e7, "dot_flops_per_s": 2e7}
    one = report["results"]["1"]
    assert one["ours"]["tokens_per_s"] == 100.0 and one["ours"]["rounds"] == 3
    assert one["ours"]["times"] == {"p": 1.25, "q": 2.0} and one["ours"]["times_best"] == 1.25
    assert one["ours"]["of_memory"] == pytest.approx(100 * 1000 * 2 / 2.5e5)
    assert one["ours"]["of_fma"] == pytest.approx(100 * 2 * 1000 / 1e7)
    assert one["p4"]["of_memory"] == pytest.approx(400 * 1000 * 0.7 / 2.5e5) and "times" not in one["p4"]
    assert report["results"]["8"]["p"]["of_memory"] == pytest.approx(300 / 8 * 1000 * 2 / 2.5e5)
    prefill = report["results"]["prefill512"]["ours"]
    assert prefill["of_fma"] == pytest.approx(2 * (2560 * 900 + 5 * 100) / 1e7) and prefill["times_best"] == 0.5
    assert "mixed" not in report["results"]


def test_the_table_and_the_plot() -> None:
    report = report_of(
        [
            ("1", "ours", 100.0),
            ("1", "p", 80.0),
            ("prefill512", "ours", 2560.0),
            ("mixed", "ours", 60.0),
            ("1", "p4", 7.0),
        ]
    )
    report["servers"]["q"]["note"] = "not installed: [here]"
    report["measured"][1]["foreign_cores"] = 0.4
    summarise(report)
    console = Console(width=150, record=True, file=io.StringIO())
    show(report, console)
    text = console.export_text()
    assert "80.0 (1.25x)" in text and "9.0 / 3.0 = 3.00" in text and "q: not installed: [here]" in text
    assert "1 of 5 measurements had other work beside them" in text
    assert "Q4_1 weights" in text and "a <CPU>, 2 cores, avx2; 2 threads" in text
    root = ET.fromstring(plot(report))
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}svg")) == 2  # the two panels
    said = [element.text for element in root.iter(f"{space}title")]
    assert "m on a <CPU>, 2 threads" in said and "p, 1: 80.0" in said
    nothing = report_of([])
    summarise(nothing)
    with pytest.raises(ValueError, match="nothing to plot"):
        plot(nothing)


FAKE = """
import json, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *a): pass
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["max_tokens"] > 8 and "dies" in sys.argv:
            self.send_response(500); self.end_headers(); return
        self.send_response(200); self.send_header("Content-Length", str(10**6)) if "cut" in sys.argv else None
        self.end_headers()
        for _ in range(body["max_tokens"]):
            self.wfile.write(b'data: {"choices": [{"text": " w"}]}\\n\\n'); time.sleep(0.001)
        usage = {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": body["max_tokens"]}
        self.wfile.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\\n\\ndata: [DONE]\\n\\n")

if "spins" in sys.argv:
    threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
ThreadingHTTPServer.request_queue_size = 64
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "fake.py"
    script.write_text(FAKE)
    command = f"{{python}} {script} {{port}}"
    made = (
        Server("queueproof", "bf16", command, ours=True),
        Server("spins", "bf16", f"{command} spins", version="echo version: 1.2"),
        Server("dies", "bf16", f"{command} dies", version="echo 3"),
        Server("ends", "bf16", "false"),
        Server("cut", "bf16", f"{command} cut", version="echo 3"),
        Server("absent", "bf16", command, needs=("bin/absent",)),
    )
    monkeypatch.setattr(cpu_peers, "SERVERS", made)
    monkeypatch.setattr(peer_servers, "_WATCHED", 0.2)
    monkeypatch.setattr(cpu_peers.limits, "measure", lambda threads: MachineLimits(3e10, 2e11, threads))
    return tmp_path


def free_port() -> int:
    """The first of six that are free."""
    for first in range(20000, 30000, 6):
        with ExitStack() as stack:
            try:
                for port in range(first, first + 6):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no ports are free")


def test_a_whole_run(fakes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, svg = fakes / "report.json", fakes / "plot.svg"
    options = ["--loads", "1,2,prefill16", "--rounds", "2", "--tokens", "12", "--peers", str(fakes), "--port"]
    status = cpu_peers.main([*options, str(free_port()), "--out", str(out), "--plot", str(svg), "--logs", str(fakes)])
    assert status == 0 and not psutil.Process().children(recursive=True)
    report = json.loads(out.read_text())
    servers = report["servers"]
    assert servers["queueproof"]["note"] is None and servers["queueproof"]["start_to_first_token_s"] > 0
    assert servers["spins"]["stopped_when_idle"] and servers["spins"]["idle_cores"] > 0.01
    assert servers["spins"]["version"] == "1.2" and not servers["queueproof"]["stopped_when_idle"]
    assert "failed at 1 user: status 500" in servers["dies"]["note"]
    assert "ended by itself, with status 1" in servers["ends"]["note"]
    assert "cut" in servers["cut"]["note"] and "bin/absent" in servers["absent"]["note"]
    assert all(0 <= row["foreign_cores"] <= 64 for row in report["measured"])
    assert len(report["measured"]) == 2 * 2 * 3 and len(report["limits"]) == 3
    order = [row["server"] for row in report["measured"] if row["load"] == "2"]
    assert order == ["queueproof", "spins", "spins", "queueproof"]
    assert (
        report["results"]["2"]["queueproof"]["rounds"] == 2 and "spins" in report["results"]["2"]["queueproof"]["times"]
    )
    assert str(fakes) not in servers["absent"]["command"] and "absent: not installed" in capsys.readouterr().out
    ET.parse(svg)
    assert cpu_peers.main(["--show", str(out)]) == 0 and "over the best" in capsys.readouterr().out


def test_what_was_measured_before_an_interruption_is_kept(fakes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = fakes / "report.json"
    real = cpu_peers.measure

    async def interrupted(load: Load, target: Target, key: str) -> dict[str, float]:
        if key == "round 1":
            raise KeyboardInterrupt
        return await real(load, target, key)

    monkeypatch.setattr(cpu_peers, "measure", interrupted)
    options = ["--only", "queueproof", "--loads", "2", "--tokens", "4", "--port", str(free_port()), "--out", str(out)]
    assert cpu_peers.main(options) == 130
    report = json.loads(out.read_text())
    assert len(report["measured"]) == 1 and report["results"]["2"]["queueproof"]["rounds"] == 1
    assert not psutil.Process().children(recursive=True)


@pytest.mark.parametrize("options", [["--only", "nothing"], ["--loads", "x"], ["--rounds", "0"], ["--tokens", "1"]])
def test_a_line_that_cannot_be_meant_ends_with_the_usage(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cpu_peers.main(options)
    assert ended.value.code == 2 and "usage:" in capsys.readouterr().err
