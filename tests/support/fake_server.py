"""An OpenAI-style server as a process, of the standard library alone: `python fake_server.py PORT [OPTION=VALUE ...]`.

Options: ready (seconds until /health says yes), dies (at: start, or after that many completions), stubborn (1: ignores
SIGTERM), child (1: a process of its group that ignores SIGTERM and holds nothing), health (0: no such route). The variable
FAKE_STEP is seconds from one token to the next.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OPTIONS = dict(argument.split("=", 1) for argument in sys.argv[2:])
STEP = float(os.environ.get("FAKE_STEP", "0.001"))
STARTED = time.monotonic()
asked = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *values: Any) -> None:
        pass

    def plain(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/health" and OPTIONS.get("health") != "0":
            ready = time.monotonic() - STARTED >= float(OPTIONS.get("ready", 0))
            self.plain({"status": "ok" if ready else "loading"}, 200 if ready else 503)
        elif self.path == "/v1/models":
            self.plain({"object": "list", "data": [{"id": "fake", "object": "model"}]})
        else:
            self.plain({"error": {"message": "no such route"}}, 404)

    def do_POST(self) -> None:
        global asked
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions":
            self.plain({"error": {"message": "no such route"}}, 404)
            return
        asked += 1
        if OPTIONS.get("dies", "").isdigit() and asked > int(OPTIONS["dies"]):
            print("out of memory, or so", flush=True)
            os._exit(7)
        count = int(body.get("max_tokens") or body.get("max_completion_tokens") or 8)
        if body.get("stream"):
            self.stream(count)
            return
        message = {"role": "assistant", "content": "word " * count}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        self.plain({"id": "x", "model": "fake", "choices": [choice], "usage": usage(count)})

    def stream(self, count: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(count):
            time.sleep(STEP)
            self.chunk(
                [{"index": 0, "delta": {"content": "word "}, "finish_reason": None if i + 1 < count else "length"}]
            )
        self.chunk([], usage=usage(count))
        self.piece(b"data: [DONE]\n\n")
        self.piece(b"")

    def chunk(self, choices: list[Any], **more: Any) -> None:
        value = {"id": "x", "object": "chat.completion.chunk", "model": "fake", "choices": choices, **more}
        self.piece(b"data: " + json.dumps(value).encode() + b"\n\n")

    def piece(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")


def usage(count: int) -> dict[str, int]:
    return {"prompt_tokens": 80, "completion_tokens": count, "total_tokens": 80 + count}


def main() -> None:
    print(f"starting with a step of {STEP:g} s", flush=True)
    if OPTIONS.get("dies") == "start":
        print("no such weights", flush=True)
        sys.exit(3)
    if OPTIONS.get("stubborn") == "1":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if OPTIONS.get("child") == "1":
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('child', flush=True); time.sleep(60)"
        child = subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None and child.stdout.readline() == "child\n"
        print(f"child {child.pid}", flush=True)
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
