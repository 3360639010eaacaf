"""guidellm, a load tool, measures a real server; every text it got is the one that our own LLM computes alone.

Needs what no extra of this project installs: `pip install guidellm==0.8.1 torch==2.13.0` (the CPU build will do).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from queueproof.contract.receipt import Receipt, read_document
from queueproof.contract.verdict import Outcome
from queueproof.engine.llm import LLM
from queueproof.engine.replay import replay
from tests.support.checkpoints import checkpoint, write_hf
from tests.support.server_process import ServerProcess

if importlib.util.find_spec("guidellm") is None or importlib.util.find_spec("torch") is None:
    pytest.skip("guidellm or torch is not installed", allow_module_level=True)

pytestmark = pytest.mark.optional

REQUESTS, STREAMS, PROMPT_TOKENS, OUTPUT_TOKENS = 16, 8, 40, 20


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_guidellm(route: str, tmp_path: Path) -> None:
    model = write_hf(checkpoint(), tmp_path / "tiny")
    with_names(model)
    file, report = tmp_path / "receipts.sqlite", tmp_path / "report.json"
    with ServerProcess(
        model, "--served-model-name", "served", "--threads", "1", log=tmp_path / "log", receipts=file
    ) as server:
        run_guidellm(server.url, route, model, report)
        counters = server.counters()
        assert server.stop() == 0, server.text
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    assert benchmark["metrics"]["request_totals"] == {
        "successful": REQUESTS,
        "errored": 0,
        "incomplete": 0,
        "total": REQUESTS,
    }
    assert counters["queueproof_receipts_written_total"] >= REQUESTS
    receipts = receipts_of(file)
    with LLM(model) as llm:
        for answer in benchmark["requests"]["successful"]:
            assert answer["output_tokens"] == OUTPUT_TOKENS and answer["time_to_first_token_ms"] > 0
            receipt = receipts[answer["response_id"]]
            assert answer["prompt_tokens"] == receipt.prompt_tokens >= PROMPT_TOKENS
            assert answer["output"] == llm.engine.model.tokenizer.decode(receipt.answer.token_ids or (), False)
            assert replay(llm, receipt).outcome is Outcome.SAME


def with_names(model: Path) -> None:
    """What transformers wants to know of a tokenizer, beside the template."""
    file = model / "tokenizer_config.json"
    more = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    file.write_text(json.dumps(json.loads(file.read_text()) | more))


def textless(model: Path) -> dict[str, float]:
    """A ban of the ids that stand for no text: the model has more of them than the tokenizer."""
    with LLM(model) as llm:
        loaded = llm.engine.model
    return {str(i): -100.0 for i in range(loaded.config.vocab_size) if not loaded.tokenizer.token_bytes(i)}


def run_guidellm(url: str, route: str, tokenizer: Path, report: Path) -> None:
    options = {
        # Every token has a text, or an answer of others alone would have no first text to time.
        "backend": json.dumps(
            {
                "kind": "openai_http",
                "target": url,
                "model": "served",
                "request_format": route,
                "extras": {"body": {"skip_special_tokens": False, "logit_bias": textless(tokenizer)}},
            }
        ),
        "profile": f"kind=concurrent,streams=[{STREAMS}]",
        "constraint": f"kind=max_requests,count={REQUESTS}",
        "tokenizer": f"kind=huggingface_auto,model={tokenizer}",
        "data": f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}",
        "output": f"kind=json,path={report}",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    ran = subprocess.run(
        [sys.executable, "-m", "guidellm", "run", "--disable-console", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]


def receipts_of(file: Path) -> dict[Any, Receipt]:
    """By the id of the answer."""
    with contextlib.closing(sqlite3.connect(file)) as db:
        documents = [read_document(text) for (text,) in db.execute("SELECT document FROM receipts")]
    return {document.receipt.response_id: document.receipt for document in documents}
