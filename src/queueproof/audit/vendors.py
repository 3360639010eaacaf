"""What to do next, by cause and server. Flags and fields were read in the servers' own documentation or source.

Sources, by server: vLLM 0.32.0 (docs/features/batch_invariance, its argument parser, environment variables and routes, and
the issues named); SGLang (docs/advanced_features/deterministic_inference, its FAQ, the issues named); llama.cpp
(tools/server/README.md and `llama-server --help` of build 11434, the issues named); TGI 3 (its launcher's reference and
source); transformers 5.24 (`transformers serve --help`); OpenAI's cookbook on `seed` and `system_fingerprint`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from queueproof.audit.names import Cause
from queueproof.audit.records import EndpointIdentity


@dataclass(frozen=True, slots=True)
class Step:
    """One sentence or two. before: only for versions below it (and where the version is not known)."""

    text: str
    before: tuple[int, ...] | None = None


Steps = tuple[Step, ...]


def _steps(*texts: str) -> Steps:
    return tuple(map(Step, texts))


_VLLM_MODE = Step(
    "Start it with VLLM_BATCH_INVARIANT=1 (beta). The mode needs an NVIDIA GPU of compute capability 8.0 or higher, an AMD "
    "Instinct gfx90a, gfx942 or gfx950, or an Intel XPU with the Triton attention backend; CPUs are not among them."
)
_VLLM_BATCH: Steps = (
    _VLLM_MODE,
    Step(
        "Before 0.32.0 a model that picks its own attention backend skips the mode's check: take 0.32.0 or later.",
        before=(0, 32),
    ),
    Step(
        "With the mode, leave sequence parallelism and async tensor parallelism off (pass_config.enable_sp, "
        "fuse_gemm_comms): they break it without an error (vllm-project/vllm#56370)."
    ),
    Step(
        "Audit again with the mode on. Open reports: log-probabilities move at about 44 requests at once (#51187; "
        "VLLM_USE_FLASHINFER_SAMPLER=0 helped one reporter) and when another prefill grows (#51902)."
    ),
    Step(
        "Measure what it costs on your machine: queueproof price --launch 'vllm serve MODEL' --env VLLM_BATCH_INVARIANT=1. "
        "Where the price is too high, --max-num-seqs 1 or one request at a time leaves no neighbours."
    ),
)
_VLLM_CACHE = _steps(
    "Give each request that must repeat a `cache_salt` of its own, which keeps it from what others left in the cache; or "
    "start with --no-enable-prefix-caching.",
    "For an evaluation run, empty the cache first: POST /reset_prefix_cache, on a server started with VLLM_SERVER_DEV_MODE=1.",
    "If KV blocks are offloaded to files: these have no checksum, and a damaged one is used as it is "
    "(vllm-project/vllm#54363).",
)
_VLLM: Mapping[Cause, Steps] = {
    Cause.BATCH: _VLLM_BATCH,
    Cause.ORDER: _VLLM_BATCH,
    Cause.CACHE: _VLLM_CACHE,
    Cause.BOUNDARY: _VLLM_CACHE,
    Cause.CHUNKING: _steps(
        "Start it with --no-enable-chunked-prefill and --max-num-batched-tokens of at least --max-model-len, so that a "
        "prefill is one piece; audit again, to see that this was it.",
        "With VLLM_BATCH_INVARIANT=1 chunks should not matter; if they do, report the attention backend and both lengths, "
        "as in vllm-project/vllm#51902.",
    ),
    Cause.PHASE: (
        Step(
            "Do not compare prompt_logprobs with the logprobs of generated tokens, nor mix them in one score (as importance "
            "ratios in RL do): take both from one of the two."
        ),
        _VLLM_MODE,
    ),
    Cause.SAMPLER: _steps(
        "Start it with VLLM_USE_FLASHINFER_SAMPLER=0, which takes the PyTorch sampler, and audit again."
    ),
    Cause.SEED: _steps(
        "Send `seed` in each request: --seed is the engine's, shared by all requests. If it was sent, look for a proxy or "
        "client that drops the field."
    ),
}

_SGLANG_BATCH = _steps(
    "Start it with --enable-deterministic-inference and --attention-backend flashinfer, fa3 or triton: the mode has no "
    "others.",
    "Audit again with the mode on: it has failed to start on some cards (sgl-project/sglang#34683).",
    "Without it: one request at a time, by the client or --max-running-requests 1, leaves no neighbours.",
)
_SGLANG_CACHE = _steps(
    "Start it with --disable-radix-cache, or empty the cache before each run by /flush_cache; a hit that changes greedy "
    "answers is known (sgl-project/sglang#34683).",
    "--enable-deterministic-inference is meant to hold with the radix cache too, by attention backend: audit it.",
)
_SGLANG: Mapping[Cause, Steps] = {
    Cause.BATCH: _SGLANG_BATCH,
    Cause.ORDER: _SGLANG_BATCH,
    Cause.CACHE: _SGLANG_CACHE,
    Cause.BOUNDARY: _SGLANG_CACHE,
    Cause.CHUNKING: _steps(
        "Start it with a --chunked-prefill-size above your longest prompt, and audit again, to see that this was it.",
        "--enable-deterministic-inference cuts chunks where they do not matter (sgl-project/sglang#10645).",
    ),
    Cause.SEED: _steps(
        "Start it with --enable-deterministic-inference, which also makes sampling at temperature > 0 repeat "
        "(sgl-project/sglang#10678)."
    ),
}

_LLAMA_BATCH = _steps(
    "Start it with -np 1: one slot, one request at a time. It documents no mode in which neighbours do not matter; in a "
    "report with CUDA, one slot without prompt cache was the only setting that repeated, continuous batching on or off "
    "(ggml-org/llama.cpp#7228).",
)
_LLAMA_CACHE = _steps(
    'Send "cache_prompt": false with each request that must repeat, or start it with --no-cache-prompt. Its README says '
    "that the cache can cause nondeterministic results, since logits differ by batch size (ggml-org/llama.cpp#7745, #28527).",
)
_LLAMA: Mapping[Cause, Steps] = {
    Cause.BATCH: _LLAMA_BATCH,
    Cause.ORDER: _LLAMA_BATCH,
    Cause.CACHE: _LLAMA_CACHE,
    Cause.BOUNDARY: _LLAMA_CACHE,
    Cause.CHUNKING: _steps(
        "A prompt longer than --ubatch-size (512) is computed in pieces, and slots share these: raise --ubatch-size and "
        "--batch-size above your longest prompt, or take -np 1; audit again.",
    ),
    Cause.SEED: _steps(
        "Send `seed` with each request: without one the server draws one (--seed -1). If it was sent, look for a proxy or "
        "client that drops the field."
    ),
    Cause.WARM_UP: _steps(
        'Where only the first ask of a prompt differs, it is the prompt cache as a rule: send "cache_prompt": false and '
        "audit again."
    ),
}

_TGI: Mapping[Cause, Steps] = {
    Cause.BATCH: _steps("It documents no mode in which neighbours do not matter; --max-batch-size 1 leaves none."),
    Cause.CACHE: _steps("Start it with PREFIX_CACHING=0 in its environment, and audit again."),
    Cause.BOUNDARY: _steps("Start it with PREFIX_CACHING=0 in its environment, and audit again."),
    Cause.CHUNKING: _steps(
        "Raise --max-batch-prefill-tokens above your longest prompt, and audit again, to see that this was it."
    ),
}

_TRANSFORMERS: Mapping[Cause, Steps] = {
    Cause.BATCH: _steps(
        "Start `transformers serve` without --continuous-batching: requests are then not put into one batch."
    ),
    Cause.CHUNKING: _steps(
        "Raise --cb-max-batch-tokens above your longest prompt, or start it without --continuous-batching; audit again."
    ),
    Cause.SEED: _steps(
        "Send `seed` with each request, one request at a time: the seed sets the random generator of the whole process, "
        "which requests at the same time share."
    ),
}

_OWN_DEFECT = (
    "Under a class that promises this it is a defect: run `queueproof doctor`, then `queueproof replay` on a receipt"
)
_QUEUEPROOF_BATCH = _steps(
    "Ask for the class `batch` or a stronger one, by the field `determinism` or the header Queueproof-Determinism, and see "
    "which one the answers say they got: `best-effort` promises nothing.",
    f"{_OWN_DEFECT} of an answer that changed, and report both.",
)
_QUEUEPROOF_REQUEST = _steps(
    "Ask for the class `request` or a stronger one, by the field `determinism` or the header Queueproof-Determinism, and see "
    "which one the answers say they got: `best-effort` promises nothing.",
    f"{_OWN_DEFECT} of an answer that changed, and report both.",
)
_QUEUEPROOF: Mapping[Cause, Steps] = {
    Cause.BATCH: _QUEUEPROOF_BATCH,
    Cause.ORDER: _QUEUEPROOF_BATCH,
    **dict.fromkeys((Cause.CHUNKING, Cause.CACHE, Cause.BOUNDARY, Cause.PHASE), _QUEUEPROOF_REQUEST),
    **dict.fromkeys(
        (Cause.SAMPLER, Cause.SEED, Cause.WARM_UP, Cause.LOGPROBS, Cause.STREAM, Cause.UNSTABLE),
        _steps(f"{_OWN_DEFECT} of an answer that changed, and report both."),
    ),
}

_ASK = (
    "Ask the provider whether answers depend on what else is computed at the same time, and for an endpoint where not."
)
_ANY: Mapping[Cause, Steps] = {
    Cause.BATCH: _steps(
        _ASK,
        "Until then, treat one answer as a sample: score an evaluation on several, and send the arms of an A/B test "
        "interleaved in time rather than one after the other.",
    ),
    Cause.ORDER: _steps(_ASK, "Where order must not matter, send one request at a time."),
    Cause.CHUNKING: _steps(_ASK, "Keep very long prompts on another endpoint than the requests that must repeat."),
    Cause.CACHE: _steps(
        "Begin each request that must repeat with something never seen before (in the system message), so that nothing of "
        "it is cached, or ask for a way to switch the cache off for a request."
    ),
    Cause.BOUNDARY: _steps(
        "Report it, with the lengths below: it is a defect of the cache's blocks rather than rounding.",
        "Until then, switch the prefix cache off for requests that must repeat.",
    ),
    Cause.PHASE: _steps("Do not compare log-probabilities of prompts with those of generated tokens."),
    Cause.SAMPLER: _steps(
        "Report one of the differences: equal log-probabilities and another token is no rounding. Look for sampling fields "
        "that a proxy or a default adds (a temperature above 0, penalties)."
    ),
    Cause.SEED: _steps(
        "See whether the field `seed` reaches the server, and whether it is documented to be kept: many services call it "
        "best effort, or drop it."
    ),
    Cause.REPLICA: _steps(
        "Ask each replica by itself (queueproof audit URL1 --against URL2), and compare their build, model revision, data "
        "type and devices.",
        "Where they are to differ, send what must agree to one of them; and write `system_fingerprint` down with each answer.",
    ),
    Cause.WARM_UP: _steps(
        "After each start, send a crowd as large as it will ever be, and throw its answers away, before real requests."
    ),
    Cause.LOGPROBS: _steps(
        "Ask for log-probabilities always, or never, in all runs that are to be compared; and report it, with one prompt of "
        "those below."
    ),
    Cause.STREAM: _steps(
        "Use one of the two in all runs that are to be compared; and report it, with one prompt of those below. If only "
        "the text differs and not the tokens, it is how pieces are decoded to text."
    ),
    Cause.UNSTABLE: _steps(
        "See first that nobody else uses the endpoint meanwhile: other people's requests are neighbours. Then audit again.",
        "On one's own server: atomics in a kernel, an autotuner, or speculative decoding; switch them off one by one.",
    ),
}

_BY_VENDOR: Mapping[str, Mapping[Cause, Steps]] = {
    "vllm": _VLLM,
    "sglang": _SGLANG,
    "llama.cpp": _LLAMA,
    "tgi": _TGI,
    "transformers": _TRANSFORMERS,
    "queueproof": _QUEUEPROOF,
}
VENDORS = tuple(_BY_VENDOR)


def next_steps(cause: Cause, identity: EndpointIdentity) -> tuple[str, ...]:
    """What to do about a cause at this server, in the order to try; what holds of any server where it is not known."""
    steps = _BY_VENDOR.get(identity.vendor, {}).get(cause) or _ANY[cause]
    version = _numbers(identity.version)
    return tuple(step.text for step in steps if step.before is None or version is None or version < step.before)


def _numbers(version: str | None) -> tuple[int, ...] | None:
    """The leading numbers of a version, as `0.32.0+cpu` has 0, 32, 0. None where it has none."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version or "")
    return tuple(map(int, found[1].split("."))) if found is not None else None
