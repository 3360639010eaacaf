"""lm-eval asks a real server for log-likelihoods and for texts, and gets what our own LLM computes, to the bit.

Needs what no extra of this project installs: `pip install 'lm-eval[api]==0.4.13' transformers==5.24.0` (no torch). The tasks
and their data are made here, so that nothing is fetched; the test of SmolLM2 fetches the model if the cache lacks it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queueproof.engine.llm import LLM
from queueproof.engine.sampling_params import SamplingParams
from tests.support.checkpoints import checkpoint, write_hf
from tests.support.server_process import ServerProcess

if importlib.util.find_spec("lm_eval") is None or importlib.util.find_spec("transformers") is None:
    pytest.skip("lm-eval or transformers is not installed", allow_module_level=True)

pytestmark = pytest.mark.optional

WAYS: list[dict[str, Any]] = [
    {"batch_size": 1},
    {"batch_size": 5},
    {"batch_size": 1, "num_concurrent": 8},
    {"batch_size": 3, "num_concurrent": 4},
    {"batch_size": 1, "num_concurrent": 4, "tokenized_requests": False},
]
QUESTIONS = [
    ("The capital of France is", [" Paris", " a large dog", " London, of course"]),
    ("Water freezes at zero degrees", [" Celsius.", " yesterday.", ""]),
    ("hello hello 12 hell", ["o w", "o", " im"]),
    ("Two and two make", [" four", " five, as everybody knows who has counted", " fo"]),
    ("A queue is", [" a line of people who wait", " naïve Ελλάδα 漢字", " 🙂"]),
]
LONG = " ".join(["the answer does not depend on who else is asking"] * 4)
MAX_TOKENS, UNTIL = 12, ["\n", "w"]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
{more}
"""


@pytest.fixture(scope="module", params=["tiny", pytest.param("smollm2-135m", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param != "tiny":
        return str(request.param)
    return str(write_hf(checkpoint(), tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[LLM]:
    with LLM(model, max_num_seqs=1, enable_prefix_caching=False) as found:
        yield found


@pytest.fixture(scope="module")
def samples(model: str, llm: LLM, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[Any]]]:
    folder = tmp_path_factory.mktemp("lm-eval")
    write_tasks(folder)
    tokenizer = write_tokenizer(llm, folder)
    options = ("--served-model-name", "served", "--max-num-seqs", "8", "--threads", "1")
    with ServerProcess(model, *options, log=folder / "log") as server:
        job = {
            "tasks": str(folder),
            "names": ["queue_choice", "queue_text"],
            "model": {
                "model": "served",
                "base_url": f"{server.url}/v1/completions",
                "tokenizer": str(tokenizer),
                "tokenizer_backend": "huggingface",
                "max_length": 512,
                "max_retries": 1,
            },
            "ways": WAYS,
        }
        script = Path(__file__).parents[1] / "support" / "lm_eval_run.py"
        ran = subprocess.run(
            [sys.executable, str(script), json.dumps(job)],
            capture_output=True,
            text=True,
            timeout=600,
            env=os.environ | {"HF_HOME": str(folder), "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"},
        )
    assert ran.returncode == 0, ran.stderr[-4000:]
    found: list[dict[str, list[Any]]] = json.loads(ran.stdout.splitlines()[-1])
    return found


def write_tasks(folder: Path) -> None:
    data = folder / "data.jsonl"
    documents = [
        {"question": lead + question, "choices": choices, "answer": choices[0]}
        for question, choices in QUESTIONS
        for lead in ("", f"{LONG}. ")  # beginnings that are shared
    ]
    data.write_text("".join(json.dumps(document) + "\n" for document in documents))
    choice = 'output_type: multiple_choice\ndoc_to_choice: "{{choices}}"\nmetric_list: [{metric: acc}]'
    text = (
        f"output_type: generate_until\ngeneration_kwargs: {json.dumps({'until': UNTIL, 'max_gen_toks': MAX_TOKENS})}\n"
        "metric_list: [{metric: exact_match}]"
    )
    for name, more in (("queue_choice", choice), ("queue_text", text)):
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, file=data, more=more))


def write_tokenizer(llm: LLM, folder: Path) -> Path:
    """The model's tokenizer as files that transformers reads, whatever the model came from."""
    tokenizer: Any = llm.engine.model.tokenizer
    spec = json.loads(tokenizer._plain.to_str())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    spec["added_tokens"] = [{"id": token.id, "content": token.text} | flags for token in tokenizer.control.tokens]
    spec["model"]["vocab"] |= {token.text: token.id for token in tokenizer.control.tokens}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    made = folder / "tokenizer"
    made.mkdir()
    (made / "tokenizer.json").write_text(json.dumps(spec))
    (made / "tokenizer_config.json").write_text(json.dumps(config))
    return made


def test_the_way_to_ask_changes_no_score_and_no_text(samples: list[dict[str, list[Any]]]) -> None:
    """Alone, in batches, side by side, as ids or as text: equal as numbers, which JSON hands on to the last bit."""
    first, *others = samples
    assert len(first["queue_choice"]) == 3 * len(first["queue_text"]) == 6 * len(QUESTIONS)
    assert all(other == first for other in others)


def test_log_likelihoods_are_those_of_our_own_llm(samples: list[dict[str, list[Any]]], llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    encode = llm.engine.model.tokenizer.encode
    for context, continuation, (score, greedy) in samples[0]["queue_choice"]:
        ids, start = encode(context + continuation), len(encode(context))
        (output,) = llm.generate({"prompt_token_ids": ids}, params)
        assert output.prompt_logprobs is not None
        chosen = [(position or {})[i] for i, position in list(zip(ids, output.prompt_logprobs, strict=True))[start:]]
        assert score == sum(entry.logprob for entry in chosen)
        assert greedy == all(entry.rank == 1 for entry in chosen)


def test_texts_are_those_of_our_own_llm(samples: list[dict[str, list[Any]]], llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, stop=UNTIL)
    for context, _, text in samples[0]["queue_text"]:
        (output,) = llm.generate(context, params)
        assert text == output.outputs[0].text
