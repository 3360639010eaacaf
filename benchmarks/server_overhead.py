"""What HTTP costs: tokens/s through a server of its own process, beside the same engine without one, in turns.

    python benchmarks/server_overhead.py --model smollm2-135m --threads 1
    python benchmarks/server_overhead.py --model paced:5 --tokens 256
    python benchmarks/server_overhead.py --model synthetic:qwen3-8b --device cuda --json FILE

In every round the same prompts are answered by `LLM.generate` in this process and by streams of completions from a server
(receipts, metrics and logs on, as `queueproof serve` has them); the ratio is taken for each round. Then some users stream,
and the gaps between a stream's chunks are measured where they arrive. `synthetic:NAME[:LAYERS]` has random weights and a
tokenizer that makes a word of every token; `paced:MS` computes nothing, on a device that takes so long for each step while
the processor is free, as a card does: all that is left to measure is Python.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.engine_host import NoBackend, Nothing
from queueproof import LLM, SamplingParams
from queueproof.cli.loading import backend_of
from queueproof.cli.serving import contract_of
from queueproof.contract.document import Model
from queueproof.contract.errors import UsageError
from queueproof.engine.service import EngineService
from queueproof.kernels.host import Finished
from queueproof.kernels.ops import DrawBatch, Drawn, Limits
from queueproof.models.loader import load_model
from queueproof.server.app import make_app
from queueproof.server.config import ServerConfig
from queueproof.server.logs import LogsExtension, uvicorn_log_config
from queueproof.server.metrics import MetricsExtension
from queueproof.server.receipts.keeper import ReceiptKeeper
from queueproof.server.receipts.store import ReceiptStore
from queueproof.server.routes.page import PageExtension
from queueproof.server.run import listen, new_event_loop, serve
from tests.support.fake_backend import load_fake

MODEL_NAME = "served"
PROMPT = 170


class Words:
    """A tokenizer of any size: token i is the word " wi"."""

    digest = "0" * 64

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def token_bytes(self, token_id: int) -> bytes:
        return f" w{token_id}".encode()

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        return "".join(f" w{i}" for i in ids)

    def encode(self, text: str, add_bos: bool | None = None) -> list[int]:
        return [int(word[1:]) for word in text.split()]

    def encode_chat(self, messages: Any, **options: Any) -> list[int]:
        raise UsageError("words have no chat template")

    def is_control(self, token_id: int) -> bool:
        return False

    def stream(self, skip_special_tokens: bool = True) -> Words:
        return self

    def push(self, token_id: int) -> str:
        return f" w{token_id}"

    def finish(self) -> str:
        return ""


def load(options: argparse.Namespace) -> Any:
    """A LoadedModel."""
    if options.model.startswith("paced:"):
        return paced(float(options.model.removeprefix("paced:")) / 1e3, options.max_model_len)
    backend = backend_of(options.arithmetic, options.device)
    if not options.model.startswith("synthetic:"):
        return load_model(options.model, backend, max_len=options.max_model_len)
    from tests.support.gpu_model import load_synthetic, parse_model

    made = load_synthetic(parse_model(options.model.removeprefix("synthetic:")), backend, options.max_model_len)
    return _Digested(replace(made, tokenizer=Words(made.config.vocab_size)))


class _Digested:
    """A synthetic model as receipts name one."""

    digest = "0" * 64

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class Paced(Nothing):
    """Steps follow one another on a device that is busy for `seconds` with each."""

    def __init__(self, seconds: float, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self._seconds, self._free = seconds, 0.0

    def forward(self, batch: Any) -> None:
        self._free = max(self._free, time.perf_counter()) + self._seconds

    def draw(self, logits: None, batch: DrawBatch) -> Finished:
        return PacedDraw(super().draw(logits, batch).drawn, self._free)


@dataclass(frozen=True, slots=True)
class PacedDraw(Finished):
    at: float

    def result(self) -> Drawn:
        time.sleep(max(0.0, self.at - time.perf_counter()))
        return self.drawn


class PacedBackend(NoBackend):
    def __init__(self, seconds: float) -> None:
        super().__init__("ieee/1")
        self._device = Paced(seconds)

    def rows(self, threads: int) -> Any:
        return self._device

    def executor(self, model: Any, limits: Limits, threads: int) -> Any:
        self._device.limits = limits
        return self._device


def paced(seconds: float, max_len: int) -> Any:
    """A LoadedModel that computes nothing."""
    model = load_fake(vocab_size=150_000, max_len=max_len)
    model.backend = PacedBackend(seconds)
    return replace(model, tokenizer=Words(150_000))


def engine_options(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"max_num_seqs": max(options.users, options.itl_users), "kv_cache_memory": options.kv << 20}
    return found | ({"threads": options.threads} if options.device == "cpu" else {})


def be_server(options: argparse.Namespace) -> None:
    """The other process: says its port, and serves until it is ended."""
    service = EngineService(load(options), **engine_options(options))
    contract = contract_of(Model(MODEL_NAME, "bfloat16"), options.device, (service.arithmetic,), {})
    config = ServerConfig(model_names=(MODEL_NAME,), build="benchmark", port=0, grace=1.0)
    with tempfile.TemporaryDirectory() as folder, listen(config) as opened:
        keeper = ReceiptKeeper(ReceiptStore(Path(folder) / "receipts.sqlite"), "full", "benchmark")
        extensions = [
            MetricsExtension([service], contract, MODEL_NAME, "benchmark"),
            LogsExtension(),
            PageExtension([service]),
        ]
        app = make_app(config, [service], contract, receipts=keeper, extensions=extensions)

        def started() -> None:
            print(json.dumps({"port": opened.getsockname()[1]}), flush=True)

        signal.signal(signal.SIGTERM, lambda *_: None)  # the server raises it once more when it has ended
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve(app, [opened], started, uvicorn_log_config("info")))
        service.close()


@dataclass(slots=True)
class Stream(asyncio.Protocol):
    """One request, read with as little work as possible, so that the client is not what is measured.

    times: of the arrival of chunks with text, from time.perf_counter; several in one packet count once each.
    """

    request: bytes
    done: asyncio.Future[None]
    times: list[float] = field(default_factory=list)
    tail: bytes = b""
    data: bytearray = field(default_factory=bytearray)
    transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.times += [now] * (data.count(b'"text":"') - data.count(b'"text":""'))
        self.data += data
        if b"data: [DONE]" in self.data[-40:]:
            self.transport.close()
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(f"the stream ended early: {bytes(self.data[-400:])!r}"))

    @property
    def tokens(self) -> int:
        text = self.data.decode()
        return int(text[text.rindex('"completion_tokens":') :].split(":", 1)[1].split(",", 1)[0])


async def stream_all(port: int, prompts: list[list[int]], tokens: int) -> list[Stream]:
    """All at once."""
    loop = asyncio.get_running_loop()
    streams = []
    for prompt in prompts:
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        data = json.dumps(body | {"stream_options": {"include_usage": True}}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        stream = Stream(head.encode() + data, loop.create_future())
        await loop.create_connection(lambda stream=stream: stream, "127.0.0.1", port)
        streams.append(stream)
    await asyncio.gather(*(stream.done for stream in streams))
    return streams


def through_http(port: int, prompts: list[list[int]], tokens: int) -> tuple[float, list[Stream]]:
    """Tokens/s, and the streams."""
    begun = time.perf_counter()
    streams = asyncio.run(stream_all(port, prompts, tokens))
    seconds = time.perf_counter() - begun
    assert sum(stream.tokens for stream in streams) == tokens * len(prompts)
    return tokens * len(prompts) / seconds, streams


def alone(llm: LLM, prompts: list[list[int]], tokens: int) -> float:
    """Tokens/s of the engine by itself."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    begun = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    seconds = time.perf_counter() - begun
    assert sum(len(output.outputs[0].token_ids) for output in outputs) == tokens * len(prompts)
    return tokens * len(prompts) / seconds


def gaps(streams: list[Stream]) -> dict[str, float]:
    """Milliseconds between one token of a stream and the next, over all streams, once all of them have begun."""
    begun = max(stream.times[0] for stream in streams)
    found = np.concatenate([np.diff([t for t in stream.times if t >= begun]) for stream in streams]) * 1e3
    median, p99 = float(np.median(found)), float(np.percentile(found, 99))
    return {"median_ms": median, "p99_ms": p99, "max_ms": float(found.max()), "p99_by_median": p99 / median}


def measure(options: argparse.Namespace, port: int) -> dict[str, Any]:
    model = load(options)
    vocab = model.config.vocab_size
    rng = np.random.default_rng(0)

    def prompts(users: int) -> list[list[int]]:
        return rng.integers(10, vocab, (users, options.prompt)).tolist()

    rounds: list[dict[str, float]] = []
    with LLM(model, **engine_options(options)) as llm:
        through_http(port, prompts(options.users), 8)
        alone(llm, prompts(options.users), 8)
        for number in range(options.rounds):
            work = prompts(options.users)
            if number % 2:
                own = alone(llm, work, options.tokens)
                http, _ = through_http(port, work, options.tokens)
            else:
                http, _ = through_http(port, work, options.tokens)
                own = alone(llm, work, options.tokens)
            rounds.append({"http_tokens_per_s": http, "engine_tokens_per_s": own, "ratio": http / own})
            print(f"round {number}: HTTP {http:.1f} tokens/s, engine {own:.1f}, ratio {http / own:.3f}", flush=True)
        latencies = [
            gaps(through_http(port, prompts(options.itl_users), options.tokens)[1]) for _ in range(options.rounds)
        ]
    return {
        "model": options.model,
        "device": options.device,
        "users": options.users,
        "prompt_tokens": options.prompt,
        "answer_tokens": options.tokens,
        "rounds": rounds,
        "ratio": statistics.median(r["ratio"] for r in rounds),
        "inter_token": {"users": options.itl_users, "rounds": latencies}
        | {name: statistics.median(found[name] for found in latencies) for name in latencies[0]},
    }


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--arithmetic")
    parser.add_argument("--threads", type=int, default=1, help="of the engine; one core is for the rest")
    parser.add_argument("--users", type=int, default=24)
    parser.add_argument("--itl-users", type=int, default=8, help="for the gaps between tokens")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--prompt", type=int, default=PROMPT, help="tokens of each prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kv", type=int, default=512, help="MiB for keys and values, of each engine")
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    options = arguments().parse_args()
    if options.serve:
        be_server(options)
        return
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, __file__, "--serve", *sys.argv[1:]]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line:
                log.seek(0)
                raise SystemExit(f"the server did not start:\n{log.read()}")
            found = measure(options, json.loads(line)["port"])
        finally:
            server.terminate()
            server.wait(30)
    print(json.dumps({key: value for key, value in found.items() if key != "rounds"}, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
