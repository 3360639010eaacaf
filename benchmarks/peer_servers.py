"""The servers that benchmarks/cpu_peers.py compares: how each is started, what it takes, and its processes while it runs.

Peers live in one folder: llama/bin/llama-server, vllm/bin/vllm (a virtual environment), base/bin/transformers (another),
models/SmolLM2-135M-Instruct.{BF16,Q4_1}.gguf and smollm2-hf/bf16, which all hold the values of Queueproof's `smollm2-135m`.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peer_loads import Load
from queueproof import __version__
from queueproof.audit.price.launch import Launch, running

MODEL = "smollm2-135m"
HOST = "127.0.0.1"
IDLE = 0.01  # of a core: a server that takes more while it has nothing to do is stopped when it is not its turn
_WATCHED = 2.0  # seconds
_NEEDED = 2 << 30  # bytes of memory that must be free before one more server is started


@dataclass(frozen=True, slots=True)
class Server:
    """One of the compared.

    weights: what it keeps in memory; only servers of equal weights are compared. command: with {peers}, {hf}, {gguf},
    {port}, {threads}, {users}, {length} (tokens of prompt and answer) and {context} (of all users together). needs: files
    below the folder of peers. body: what its requests have besides the common. users: the most that it is asked by. mixed: whether prompts arrive
    at it while others read.
    """

    name: str
    weights: str
    command: str
    needs: tuple[str, ...] = ()
    body: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    users: int = 64
    mixed: bool = True
    ours: bool = False

    def takes(self, load: Load) -> bool:
        return load.users <= self.users and (self.mixed or not load.arriving)

    def bytes_per_weight(self, values: int, peers: Path) -> float:
        """Of a matrix weight in memory; of quantised ones as the file has them. values: weights of all matrices."""
        if self.weights == "bf16":
            return 2.0
        from queueproof.models.store import resolve
        from queueproof.models.weights.gguf_file import read_gguf

        path = peers / _gguf(self.weights)
        path = path if path.exists() else resolve(MODEL)
        data = path.stat().st_size - min(tensor.start for tensor in read_gguf(path).tensors.values())
        return data / values


def _gguf(kind: str) -> str:
    return f"models/SmolLM2-135M-Instruct.{kind}.gguf"


_OURS = (
    f"{{python}} -m queueproof serve {{model}} --host {HOST} --port {{port}} --threads {{threads}} "
    f"--served-model-name {MODEL} --receipts off "
    "--max-num-seqs {users} --max-model-len {length}"
)
_LLAMA = (
    f"{{peers}}/llama/bin/llama-server -m {{peers}}/{{gguf}} --host {HOST} --port {{port}} -t {{threads}} -tb {{threads}} "
    "-c {context} -np {users} --jinja --no-webui"
)
_VLLM = (
    f"{{peers}}/vllm/bin/vllm serve {{hf}} --host {HOST} --port {{port}} --dtype bfloat16 "
    "--max-model-len {length} --max-num-seqs {users}"
)
_TRANSFORMERS = (
    f"{{peers}}/base/bin/transformers serve {{hf}} --host {HOST} --port {{port}} --continuous-batching --dtype bfloat16 "
    "--cb-max-memory-percent 0.3"  # its default takes most of the memory, which the others need, too
)
_STREAMED = {"ignore_eos": True, "stream_options": {"include_usage": True}}
_MODELS = "smollm2-hf/bf16/model.safetensors"
_LLAMA_BODY = _STREAMED | {"cache_prompt": False}
_LLAMA_VERSION = "{peers}/llama/bin/llama-server --version"
_PACKAGE = "{peers}/%s/bin/python -c 'from importlib.metadata import version; print(version(\"%s\"))'"

# Another pair is another two lines: ours and the peers of the same `weights` are held against each other.
SERVERS = (
    Server("queueproof", "bf16", _OURS.replace("{model}", "{hf}"), needs=(_MODELS,), body=_STREAMED, ours=True),
    Server(
        "llama.cpp",
        "bf16",
        _LLAMA.replace("{gguf}", _gguf("BF16")),
        needs=("llama/bin/llama-server", _gguf("BF16")),
        body=_LLAMA_BODY,
        version=_LLAMA_VERSION,
    ),
    Server(
        "vllm",
        "bf16",
        _VLLM,
        needs=("vllm/bin/vllm", _MODELS),
        body=_STREAMED,
        env={"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
        version=_PACKAGE % ("vllm", "vllm"),
    ),
    Server(
        "transformers",
        "bf16",
        _TRANSFORMERS,
        needs=("base/bin/transformers", _MODELS),
        # It counts tokens unasked, and rejects fields that it does not know; no id is the end of an answer then.
        body={"model": "{hf}", "generation_config": '{"eos_token_id": -1}'},
        version=_PACKAGE % ("base", "transformers"),
        mixed=False,  # minutes, at a tenth of the others' prefill
    ),
    Server("queueproof Q4_1", "Q4_1", _OURS.replace("{model}", MODEL), body=_STREAMED, ours=True, users=10),
    Server(
        "llama.cpp Q4_1",
        "Q4_1",
        _LLAMA.replace("{gguf}", _gguf("Q4_1")),
        needs=("llama/bin/llama-server", _gguf("Q4_1")),
        body=_LLAMA_BODY,
        version=_LLAMA_VERSION,
        users=10,  # of 8, and prompts that arrive: its caches take the memory of the others, and what a step reads matters at few users
    ),
)


@dataclass(frozen=True, slots=True)
class Setup:
    """What all servers of a run have in common. users: the most at once; length: tokens of the longest request."""

    peers: Path
    threads: int
    users: int
    length: int

    def missing(self, server: Server) -> str | None:
        """Why it cannot be started, if so."""
        absent = [need for need in server.needs if not (self.peers / need).exists()]
        if absent:
            return f"not installed: {', '.join(absent)} not found in the folder of peers"
        free = psutil.virtual_memory().available
        return f"only {free / 1e9:.1f} GB of memory are free" if free < _NEEDED else None

    def command(self, server: Server, port: int, text: str | None = None) -> str:
        users = min(self.users, server.users)
        return (server.command if text is None else text).format(
            python=shlex.quote(sys.executable),
            peers=shlex.quote(str(self.peers)),
            hf=shlex.quote(self._hf),
            port=port,
            threads=self.threads,
            users=users,
            length=self.length,
            context=users * self.length,
        )

    def shown(self, server: Server) -> str:
        """The command for a report, without places of this machine."""
        filled = self.command(server, 8000).replace(str(self.peers), "$PEERS")
        return filled.replace(shlex.quote(sys.executable), "python")

    def env(self, server: Server) -> dict[str, str]:
        dropped = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # would hold a peer's BLAS to what suits another machine
        found = {name: value for name, value in os.environ.items() if name not in dropped} | {"HF_HUB_OFFLINE": "1"}
        if server.name.startswith("vllm"):  # it compiles, with tools of its own environment
            found["PATH"] = f"{self.peers}/vllm/bin:{found.get('PATH', '')}"
            found["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{self.threads - 1}"
        return found | dict(server.env)

    def body(self, server: Server) -> dict[str, Any]:
        return {k: self._hf if v == "{hf}" else v for k, v in server.body.items()}

    def version(self, server: Server) -> str:
        if server.ours:
            return __version__
        command = self.command(server, 0, server.version)
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, env=self.env(server))
        return version_in(done.stdout + done.stderr)

    @property
    def _hf(self) -> str:
        return str(self.peers / "smollm2-hf/bf16")


def version_in(text: str) -> str:
    """The first thing that looks like a version in what a program says about itself."""
    found = re.search(r"(?:version: *)?(\d+(?:\.\d+)*[^\s(]*(?: \([^)]*\))?)", text)
    return found.group(1) if found else "unknown"


@dataclass(slots=True)
class Running:
    """A server that listens. group: the id of its process group. start_s: from its start until it listens."""

    server: Server
    port: int
    group: int
    start_s: float
    body: dict[str, Any]
    idle_cores: float | None = None
    freezes: bool = False

    @property
    def memory_bytes(self) -> int:
        """Of all its processes; what they share counts once."""
        return sum(_pss(process) for process in _members(self.group))

    async def watch(self) -> None:
        """Finds out how much it computes while nobody asks anything, and whether it must be stopped meanwhile."""
        before, begun = _cpu_seconds(self.group), time.perf_counter()
        await asyncio.sleep(_WATCHED)
        self.idle_cores = (_cpu_seconds(self.group) - before) / (time.perf_counter() - begun)
        self.freezes = self.idle_cores > IDLE

    def foreign_seconds(self) -> float:
        """Processor time that neither this server nor the client has used, since some moment: differences count."""
        now = psutil.cpu_times()
        busy = sum(getattr(now, kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq", "steal"))
        return float(busy) - _cpu_seconds(self.group) - time.process_time()

    def rest(self) -> None:
        if self.freezes:
            os.killpg(self.group, signal.SIGSTOP)

    def resume(self) -> None:
        if self.freezes:
            os.killpg(self.group, signal.SIGCONT)


@asynccontextmanager
async def started(server: Server, setup: Setup, port: int, logs: Path) -> AsyncIterator[Running]:
    """The server, listening; at the end all its processes are gone. Raises what `running` raises."""
    own = psutil.Process()
    known = {child.pid for child in own.children()}
    launch = Launch(
        f"exec {setup.command(server, port)}", setup.env(server), f"http://{HOST}:{port}", ready=400.0, grace=10.0
    )
    begun = time.perf_counter()
    async with running(launch, logs / f"{re.sub(r'[^a-z0-9]+', '-', server.name.lower())}.log"):
        seconds = time.perf_counter() - begun
        (group,) = (child.pid for child in own.children() if child.pid not in known)
        try:
            yield Running(server, port, group, seconds, setup.body(server))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGCONT)  # what is stopped cannot end


def _members(group: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(OSError):  # it ended meanwhile
            if os.getpgid(process.pid) == group:
                found.append(process)
    return found


def _cpu_seconds(group: int) -> float:
    total = 0.0
    for process in _members(group):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:  # it ended meanwhile
        return 0
